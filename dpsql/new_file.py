"""Files that appear whole or not at all, and never replace one another."""

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
