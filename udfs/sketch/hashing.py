"""From a value to its cells: a public digest of all of the value, and a keyed function of all of the digest.

    digest(x) = SHA-256("dpsql/1/sketch", canonical encoding), 32 bytes, halves D1, D2
    words(x)  = AES_k(AES_k(D1) xor D2 xor counter), counter = 0, 1, ..; k is the 16-byte hash key

Row i of a sketch reads lg w bits (its column) and one bit (its sign) of the words. Nothing shorter than the digest stands for a value anywhere:
two values that agree in 64 bits can be made by hand, and one of them could lift the other over the floor test.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpsql.udfs.columns import Int, Word

LABEL = b"dpsql/1/sketch"
SCHEME = "dpsql-sketch/1"
"""What readers of a published sketch must implement; written beside it."""
DIGEST_BYTES = 32
KEY_BYTES = 16
DIGEST = ("d0", "d1", "d2", "d3")
"""A digest as four 64-bit numbers, in tables."""

Field = npt.NDArray[np.uint32]
"""2 * column + sign bit (1: negative), of one row of a sketch."""


def digest(encoded: bytes) -> bytes:
    """Return the digest of one encoded value (`dpsql.udfs.keys`)."""
    return hashlib.sha256(LABEL + encoded).digest()


def digests_of(encoded: pa.ChunkedArray) -> Int:
    """Return digests of a column of encoded values as numbers, shape (n, 4)."""
    distinct, value, _ = distinct_digests(encoded)
    return distinct[value]


def distinct_digests(encoded: pa.ChunkedArray) -> tuple[Int, Int, pa.Array]:
    """Return the distinct values of a column: their digests, shape (m, 4); the number of each row's; the values. Each is digested once."""
    if not len(encoded):
        return np.zeros((0, 4), np.int64), np.zeros(0, np.int64), pa.array([], encoded.type)
    encoding = encoded.combine_chunks().dictionary_encode()
    if isinstance(encoding, pa.ChunkedArray):
        encoding = encoding.unify_dictionaries().combine_chunks()
    start = hashlib.sha256(
        LABEL
    )  # its copies go on from there: a value is digested once, not its label again
    digests = bytearray()
    for value in encoding.dictionary.to_pylist():
        hasher = start.copy()
        hasher.update(value)
        digests += hasher.digest()
    return (
        np.frombuffer(bytes(digests), "<i8").reshape(-1, 4),
        encoding.indices.to_numpy(),
        encoding.dictionary,
    )


def digests(column: pa.Array | pa.ChunkedArray) -> Int:
    """Return a column of 32-byte digests as numbers, shape (n, 4)."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not len(column):
        return np.zeros((0, 4), np.int64)
    if column.type != pa.binary(DIGEST_BYTES):
        column = column.cast(pa.binary(DIGEST_BYTES))
    data = np.frombuffer(column.buffers()[1], "<i8")
    return (
        data[4 * column.offset : 4 * (column.offset + len(column))]
        .reshape(-1, 4)
        .astype(np.int64, copy=False)
    )


def hash_key(root: bytes, window: int | None) -> bytes:
    """Return the hash key of a window, or of all windows of a run (None), from the run's 32 bytes `root`.

    A root is for this alone: published keys say nothing of it (HMAC), nor of keys of other windows.
    """
    mac = hmac.HMAC(root, hashes.SHA256())
    mac.update(
        LABEL + (b"run" if window is None else b"win" + window.to_bytes(8, "big", signed=True))
    )
    return mac.finalize()[:KEY_BYTES]


@dataclass(frozen=True)
class CellShape:
    """Depth d (rows), width w (columns, a power of two), and whether cells have signs (Count-Sketch) or not (Count-Min)."""

    depth: int
    width: int
    signed: bool = True

    @property
    def bits(self) -> int:
        """Bits of a word stream that one row reads."""
        return self.width.bit_length()

    @property
    def blocks(self) -> int:
        """AES blocks that a value needs; one does for 9 x 8192."""
        return -(-self.depth * self.bits // 128)

    def fields(self, key: bytes, values: Int) -> Field:
        """Return where the values with these digests are, shape (depth, n); of a shape without signs all sign bits are 0."""
        words = _words(key, values, self.blocks)
        fields = np.empty((self.depth, len(values)), np.uint32)
        mask = np.uint64(2 * self.width - 1 - (not self.signed))
        for row in range(self.depth):
            word_index, shift = divmod(row * self.bits, 64)
            bits = words[:, word_index] >> np.uint64(shift)
            if shift + self.bits > 64:
                bits |= words[:, word_index + 1] << np.uint64(64 - shift)
            fields[row] = bits & mask
        return fields

    def sums(self, field: Field, values: Int | None) -> Int:
        """Return one row's cells: of records with these fields, counted, or their values (int64, exact) added up."""
        if values is None:
            both = np.bincount(field, minlength=2 * self.width)
        else:
            both = np.zeros(2 * self.width, np.int64)
            np.add.at(both, field, values)
        return both[0::2] - both[1::2]

    def scores(self, cells: Int, fields: Field) -> Int:
        """Return what each row says of each value: sign times cell, shape (depth, n); `cells` is (depth, width)."""
        values = np.stack([row[field >> 1] for row, field in zip(cells, fields, strict=True)])
        return np.where(fields & 1, -values, values)


def _words(key: bytes, values: Int, blocks: int) -> Word:
    """Return the words of digests, shape (n, 2 * blocks)."""
    if not len(values):
        return np.zeros((0, 2 * blocks), np.uint64)
    halves = np.ascontiguousarray(values).view(np.uint64)
    inner = _encrypt(key, halves[:, :2]) ^ halves[:, 2:]
    words = np.empty((len(values), 2 * blocks), np.uint64)
    for block in range(blocks):
        message = inner.copy()
        message[:, 0] ^= np.uint64(block)
        words[:, 2 * block : 2 * block + 2] = _encrypt(key, message)
    return words


def _encrypt(key: bytes, blocks: Word) -> Word:
    encryptor = Cipher(
        algorithms.AES(key), modes.ECB()
    ).encryptor()  # ECB: one call encrypts all blocks independently
    encrypted = (
        encryptor.update(np.ascontiguousarray(blocks, dtype="<u8").data.cast("B"))
        + encryptor.finalize()
    )
    return np.frombuffer(encrypted, dtype="<u8").reshape(-1, 2)
