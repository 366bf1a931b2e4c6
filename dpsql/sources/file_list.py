"""Files of a source on this machine, found as Spark finds them: folders are searched, patterns matched, hidden names passed over."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpsql.errors import DataError
from dpsql.sources.folders import has_sub_folders
from dpsql.sources.places import WILD


def match_pattern(pattern: Path) -> list[Path]:
    """Return the places whose parts match those of a path, in the order of their names; hidden ones match no pattern.

    Raises:
        DataError: it is no pattern, and nothing is there; or nothing matches it.
    """
    places = [Path(pattern.anchor)]
    for part in pattern.relative_to(pattern.anchor).parts:
        if WILD.search(part):
            places = [
                child
                for place in places
                if place.is_dir()
                for child in sorted(place.iterdir())
                if child.name[0] not in "._" and _matches(child.name, part)
            ]
        else:
            places = [place / part for place in places]
    if matches := [place for place in places if place.exists()]:
        return matches
    if WILD.search(str(pattern)):
        raise DataError(f"{pattern}: no file or folder matches this pattern")
    raise DataError(f"{pattern}: no such file or folder")


def files_in(folder: Path, source: Any) -> Iterator[Path]:
    """Yield the files of a folder in the order of the file system, files before sub-folders, as Spark lists them.

    Of sub-folders, those of a partition (`day=2024-02-29`) are read, or all with `recursiveFileLookup`; of files, those that
    `pathGlobFilter` names.

    Args:
        folder: where to look.
        source: whose options say which files are read (`dpsql.sources.config.Source`).

    Raises:
        DataError: all files are in sub-folders that are not read.
    """
    patterns = [value for name, value in source.options if name.lower() == "pathglobfilter"]
    all_folders = has_sub_folders(source)
    is_empty = True
    left_out = False
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        is_read = all_folders or all("=" in part for part in Path(parent).relative_to(folder).parts)
        for name in names:
            if _is_hidden(name) or not all(_matches(name, pattern) for pattern in patterns):
                continue
            if is_read:
                is_empty = False
                yield Path(parent, name)
            left_out |= not is_read
    if left_out and is_empty:
        raise DataError(
            f"{folder}: all files are in sub-folders, which are read if they are named like day=2024-02-29, or with "
            "`options: {recursiveFileLookup: true}`"
        )


def _is_hidden(name: str) -> bool:
    """Tell whether Spark passes over a file or folder by its name."""
    return name[0] == "." or (name[0] == "_" and "=" not in name)


def _matches(name: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern like `*.{json,csv}`."""
    alternatives = re.search(r"\{([^{}]*)\}", pattern)
    if alternatives is None:
        return fnmatchcase(name, pattern.replace("[^", "[!"))
    before = pattern[: alternatives.start()]
    after = pattern[alternatives.end() :]
    return any(_matches(name, f"{before}{one}{after}") for one in alternatives[1].split(","))
