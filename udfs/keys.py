"""Keys as bytes: per column a four-character header (decimal length, or `----` for NULL) and then the value's bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, span_rows

HEADER = 4
NULL_HEADER = b"----"
MAX_KEY_BYTES = 4096
"""Bytes of the values of all columns of a key together; headers do not count."""


@dataclass(frozen=True)
class PublicGroups:
    """Keys that are released in every window from first_window_us on, records or not: hashes and encoded keys."""

    keys: tuple[int, ...]
    key_bytes: tuple[bytes, ...]
    first_window_us: int

    def for_bucket(self, bucket: int, buckets: int) -> PublicGroups:
        """Return the groups of one bucket only."""
        places = [i for i, key in enumerate(self.keys) if key % buckets == bucket]
        return PublicGroups(
            tuple(self.keys[i] for i in places),
            tuple(self.key_bytes[i] for i in places),
            self.first_window_us,
        )

    def names(self, places: Int) -> pa.Array:
        """Return the encoded keys at some places."""
        return pa.array(self.key_bytes, pa.binary()).take(places)


@dataclass(frozen=True)
class NumberedGroups:
    """Groups of several kinds that are released at every trigger, or from that on at which they close, records or not: those of a kind have numbers
    that follow each other.

    Args:
        first: number of the first group of each kind, and after the last one how many groups there are.
        grouping_ids: of each kind.
        encoded: the encoded keys of some groups, ascending.
        closing: of some groups the trigger at which each is measured, once and for all; 0: it is at every trigger. None: all are.
        bucket, buckets: whose groups.
    """

    first: tuple[int, ...]
    grouping_ids: tuple[int, ...]
    encoded: Callable[[Int], pa.Array]
    closing: Callable[[Int], Int] | None = None
    bucket: int = 0
    buckets: int = 1

    def for_bucket(self, bucket: int, buckets: int) -> NumberedGroups:
        """Return the groups of one bucket only."""
        return replace(self, bucket=bucket, buckets=buckets)

    @property
    def keys(self) -> Int:
        """Numbers of the groups."""
        return np.arange(self.bucket, self.first[-1], self.buckets)

    def names(self, places: Int) -> pa.Array:
        """Return the encoded keys at some places."""
        return self.encoded(self.keys[places])

    def kinds(self, keys: Int) -> Int:
        """Return the kind of each of some groups."""
        return np.searchsorted(self.first, keys, side="right") - 1


def encode(values: list[bytes | None]) -> bytes:
    """Encode the values of one key. The engines build the same bytes column by column; this is the reference.

    >>> encode([b"en", None])
    b'0002en----'
    """
    return b"".join(
        NULL_HEADER if value is None else b"%04d" % len(value) + value for value in values
    )


def max_encoded_bytes(columns: int) -> int:
    """Return how long the encoding of so many columns may be: each has a header, NULL too."""
    return MAX_KEY_BYTES + HEADER * columns


def decode(key_bytes: pa.Array, columns: int) -> list[pa.Array]:
    """Split encoded keys into their columns.

    Args:
        key_bytes: binary array without NULLs, each value made by the encoding above.
        columns: how many key columns there are.

    Returns:
        One nullable binary array per column, each as long as `key_bytes`.
    """
    if isinstance(key_bytes, pa.ChunkedArray):
        key_bytes = key_bytes.combine_chunks()
    key_bytes = key_bytes.cast(pa.large_binary())
    size = len(key_bytes)
    buffers = key_bytes.buffers()
    offsets = (
        np.frombuffer(buffers[1], dtype=np.int64)[key_bytes.offset : key_bytes.offset + size + 1]
        if size
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(buffers[2] or b"", dtype=np.uint8) if size else np.zeros(0, np.uint8)
    position = offsets[:-1].copy()
    decoded = []
    for _ in range(columns):
        header = data[position[:, None] + np.arange(HEADER)]
        null = header[:, 0] == ord("-")
        length = np.where(
            null, 0, (header.astype(np.int64) - ord("0")) @ np.array([1000, 100, 10, 1])
        )
        decoded.append(_slices(data, position + HEADER, length, null))
        position += HEADER + length
    return decoded


def _slices(data: np.ndarray, start: np.ndarray, length: np.ndarray, null: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    source = span_rows(start, start + length)
    validity = pa.py_buffer(np.packbits(~null, bitorder="little").tobytes())
    array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(start),
        [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data[source].tobytes())],
        int(null.sum()),
    )
    return array.cast(pa.binary())
