"""The checksums that Hadoop keeps beside a local file: `.NAME.crc` has a CRC-32 of every so many bytes of `NAME`.

Spark's checkpoints and what Spark commits to a Delta table have one; Spark refuses a file that differs from it.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from dpsql.files import Place

MAGIC = b"crc\x00"
HEADER = struct.Struct(">4sI")


def checksum_path(path: Place) -> Place:
    """Return where the checksums of a file are."""
    return path.parent / f".{path.name}.crc"


def differs(path: Place) -> bool:
    """Tell whether a file is not what its checksums say, or these are damaged; False where it has none (an object store keeps its own)."""
    sums = checksum_path(path)
    if not isinstance(path, Path) or not sums.exists():
        return False
    stored = sums.read_bytes()
    content = path.read_bytes()
    if len(stored) < HEADER.size:
        return True
    magic, step = HEADER.unpack(stored[: HEADER.size])
    if magic != MAGIC or not step:
        return True
    computed = b"".join(
        struct.pack(">I", zlib.crc32(content[start : start + step]))
        for start in range(0, len(content), step)
    )
    return computed != stored[HEADER.size :]
