"""What pins a static table: of Delta its version, of files in other formats a digest of their bytes.

A version can be read again whatever is written later. Files cannot: so a digest is kept, and an attempt that would read others is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dpsql.errors import DataError, LakeError
from dpsql.sources.config import Source
from dpsql.streaming import sources
from dpsql.udfs.bucket_state import filesystem

Pins = Mapping[str, int | str]
"""By source name."""
PIECE = 1 << 22


def pins(session: SparkSession, tables: Sequence[Source]) -> dict[str, int | str]:
    """What the static tables are now; a table without files of its own (a foreign database) has no pin.

    Raises:
        DataError: a table cannot be read.
    """
    found: dict[str, int | str] = {}
    for source in tables:
        if source.format == "delta" and source.path:
            found[source.name] = DeltaTable(source.path).version()
        elif files := sources.static_files(session, source):
            found[source.name] = _digest(files, source.name)
    return found


def check_unchanged(kept: Pins, now: Pins) -> None:
    """Refuse files that are not those that a catch-up, or a live run, has begun with.

    Raises:
        LakeError: names the table.
    """
    for name, pin in kept.items():
        if isinstance(pin, str) and now.get(name, pin) != pin:
            raise LakeError(
                f"the files of static table {name!r} are not those that this run is reading: put the old ones back until it has caught up "
                "(a live run keeps them for ever), or start a new run under another --name. A Delta table may change: its version is kept"
            )


def versions(kept: Pins) -> dict[str, int]:
    """The Delta versions among them."""
    return {name: pin for name, pin in kept.items() if isinstance(pin, int)}


def _digest(files: Sequence[str], name: str) -> str:
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            system, path = filesystem(file)
            path = unquote(path) if urlsplit(file).scheme not in ("", "file") else path
            digest.update(PurePosixPath(path).name.encode() + b"\0")
            with system.open_input_stream(path, compression=None) as stream:
                while piece := stream.read(PIECE):
                    digest.update(piece)
    except OSError as problem:
        raise DataError(
            f"static table {name!r} cannot be read ({type(problem).__name__})"
        ) from None
    return digest.hexdigest()
