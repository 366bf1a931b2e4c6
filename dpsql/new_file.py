"""Small files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def create_file(path: Path, content: bytes) -> None:
    """Make a file (mode 0600) that is on disk, whole, when this returns.

    It is written under another name and linked: of two callers at once exactly one succeeds.

    Raises:
        FileExistsError: the file is there already; it was not touched.
        OSError: the folder cannot be written.
    """
    _write(path, content, replace=False)


def replace_file(path: Path, content: bytes) -> None:
    """As `create_file`, in the place of what is there: after a crash it is the old file or the new one.

    Raises:
        OSError: the folder cannot be written.
    """
    _write(path, content, replace=True)


def _write(path: Path, content: bytes, replace: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
