"""What a source reads, told by where it is and not by its name in `sources.yaml`: caps and comparisons go by that.

A place is a text: `path /data/visits` (links resolved), `file 2049:131` (device and inode: it finds hard links and renamed folders),
`file 2049:977:1767225600000000000` (a file in the folder, with the time of its last change, because numbers are used again),
`uri s3://bucket/visits`, `topic visits`, `topics REGEX`, `table shop.visits`, `options DIGEST`, `frame PEOPLE`. A copy of the data is another place:
nothing can tell that it is of the same people but its owner.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from dpsql.sources.reader_options import CATALOG

WILD = re.compile(r"[*?\[{]")
FIRST_FILES = 20
"""Files of a folder that are told by their own numbers: enough to know a folder of links to them."""
PASSED_OVER = (".", "_")
"""How names begin that Spark does not read, as those of logs."""
ONE_TEXT = ("file ", "options ", "frame ")
"""Places that are the same only if their texts are."""


class ReaderBlock(Protocol):
    """The part of a source that says where it reads: its block in `sources.yaml`."""

    @property
    def format(self) -> str:
        """A Spark data source."""

    @property
    def path(self) -> str | None:
        """Where it is, as a path or a URI."""

    @property
    def table(self) -> str | None:
        """A name in Spark's catalog."""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of its reader."""


def places(source: ReaderBlock, files: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return where a source reads.

    Args:
        source: as declared.
        files: files or folders that are read in its name (`dpsql try --input`).
    """
    return tuple(
        dict.fromkeys((*_declared(source), *(place for file in files for place in _on_disk(file))))
    )


def overlap(first: Iterable[str], second: Iterable[str]) -> bool:
    """Tell whether anything is read by both: one and the same place, or one inside the other."""
    first_places = set(first)
    second_places = set(second)
    if first_places & second_places:
        return True
    splittable = [place.split(" ", 1) for place in second_places if not place.startswith(ONE_TEXT)]
    return any(
        _meet(kind, text, *second_pair)
        for kind, text in (place.split(" ", 1) for place in first_places)
        for second_pair in splittable
    )


def is_own_input(source: ReaderBlock, paths: Sequence[Path]) -> Path | None:
    """Return the first of the given files or folders that is, holds or lies in what the source reads, under whatever name; None: none is."""
    declared = [place for place in _declared(source) if place.startswith("path ")]
    if not declared:
        return None
    inodes: set[tuple[int, int]] | None = None
    for path in paths:
        if overlap((f"path {os.path.realpath(path)}",), declared):
            return path
        inodes = (
            inodes
            if inodes is not None
            else {
                _inode(file)
                for place in declared
                for file in _files(Path(place.removeprefix("path ")))
            }
        )
        if any(_inode(file) in inodes for file in _files(path)):
            return path
    return None


def _declared(source: ReaderBlock) -> Iterator[str]:
    options = {name.lower(): value for name, value in source.options}
    if source.format == CATALOG:
        yield f"table {str(source.table).lower()}"
    elif source.path is not None:
        parts = urlsplit(source.path)
        if parts.scheme in ("", "file"):
            yield from _on_disk(Path(unquote(parts.path) if parts.scheme else source.path))
        else:
            yield "uri " + _uri(source.path)
    elif "subscribe" in options:
        yield from (f"topic {topic.strip()}" for topic in options["subscribe"].split(","))
    elif "assign" in options:
        yield from (f"topic {topic}" for topic in _assigned(options["assign"]))
    elif "subscribepattern" in options:
        yield f"topics {options['subscribepattern']}"
    else:  # a digest, because options may hold a password
        yield (
            "options "
            + hashlib.sha256(json.dumps([source.format, source.options]).encode()).hexdigest()
        )


def _uri(path: str) -> str:
    """Return one text for all spellings of one place; as on a disk, a pattern stands for the folder that it searches."""
    scheme, rest = path.split(":", 1)
    scheme = re.sub(r"^s3[an]$", "s3", scheme.lower())
    parts = [part for part in rest.split("/") if part]
    plain = parts[: next((i for i, part in enumerate(parts) if WILD.search(part)), len(parts))]
    return f"{scheme}:{'//' if rest.startswith('//') else '/'}" + "/".join(plain)


def _assigned(text: str) -> Iterator[str]:
    try:
        yield from json.loads(text)
    except (ValueError, TypeError):
        yield text


def _on_disk(path: Path) -> Iterator[str]:
    """Yield a pattern stands for the folder that it searches."""
    searched = Path(
        *path.parts[
            : next((i for i, part in enumerate(path.parts) if WILD.search(part)), len(path.parts))
        ]
    )
    path = path if os.path.exists(path) else searched
    yield f"path {os.path.realpath(path)}"
    if os.path.exists(path):
        yield "file {}:{}".format(*_inode(path))
    if path.is_file():
        yield from _one_file(path)
    for entry in islice(_entries(path), FIRST_FILES):
        yield from _one_file(entry)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield files below a folder, and links in it, in the order of their names; without those that readers pass over."""
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(PASSED_OVER))
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        names = [name for name in files if not name.startswith(PASSED_OVER)]
        yield from (Path(base, name) for name in sorted(names + links))


def _one_file(path: Path) -> Iterator[str]:
    """Yield where a symbolic link leads; of another file what all its hard links share."""
    if path.is_symlink():
        yield f"path {os.path.realpath(path)}"
        return
    with contextlib.suppress(OSError):  # it may be gone since it was listed
        status = path.stat()
        yield f"file {status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _files(path: Path) -> Iterator[Path]:
    """Yield all files of a file, or below a folder."""
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (file for name in names if (file := Path(folder, name)).is_file())


def _meet(kind: str, text: str, other_kind: str, other_text: str) -> bool:
    if {kind, other_kind} == {"topic", "topics"}:
        topic, pattern = (text, other_text) if kind == "topic" else (other_text, text)
        return _matches(pattern, topic)
    if kind != other_kind:
        return False
    if kind in ("path", "uri"):
        return (
            text == other_text
            or text.startswith(other_text.rstrip("/") + "/")
            or other_text.startswith(text.rstrip("/") + "/")
        )
    if kind == "table":  # a name with and without its catalog or schema
        return (
            text == other_text or text.endswith(f".{other_text}") or other_text.endswith(f".{text}")
        )
    return text == other_text


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # Java's expressions are not all Python's: then it may be
        return True
