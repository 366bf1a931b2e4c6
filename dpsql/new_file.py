"""Files that appear whole or not at all, and never replace one another."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa

from dpsql.places import ObjectPath, Place


def create_file(path: Place, content: bytes) -> None:
    """Make a file (mode 0600) that is on disk, whole, when this returns.

    It is written under another name and linked: of two callers at once exactly one succeeds. For an object see `_create_object`.

    Raises:
        FileExistsError: the file is there already; it was not touched.
        OSError: the folder cannot be written.
    """
    if isinstance(path, ObjectPath):
        _create_object(path, content)
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _create_object(path: ObjectPath, content: bytes) -> None:
    """Make an object once, with what Delta has for that: the first commit of a table is put only if there is none.

    The content is in that commit. Whoever comes second, or after a crash between the two requests, puts what the first one said.
    """
    from deltalake import DeltaTable, Schema  # slow to import
    from deltalake.exceptions import DeltaError

    claim = str(path.parent / f".{path.name}")
    try:
        DeltaTable.create(claim, Schema.from_arrow(pa.schema([("claimed", pa.bool_())])), mode="error", description=content.decode())
    except DeltaError:
        # Not only "it is there": of two at once the second one's commit fails.
        first = DeltaTable(claim).metadata().description
        if not path.exists():
            path.write_bytes(first.encode())
        raise FileExistsError(f"{path} is there already") from None
    path.write_bytes(content)
