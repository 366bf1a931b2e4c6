"""Sketches as plain lists: one record, one key, one row of cells at a time. Hashes are asked for by name, so that both forms have the same."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


@dataclass(frozen=True)
class Record:
    """A record that is timely: who, when (event time), what, and what it weighs."""

    user: int
    ts: int
    key: bytes
    value: int = 1


Place = Callable[[bytes, int, int], tuple[int, int]]
"""(column, sign) of a key in a row, by key, row and place (what shares one hash key)."""


def digest(key: bytes) -> bytes:
    return hashlib.sha256(b"dpsql/1/sketch" + key).digest()


def words(hash_key: bytes, name: bytes, blocks: int) -> int:
    """The word stream of a digest as one number, little end first."""
    aes = Cipher(algorithms.AES(hash_key), modes.ECB())

    def encrypt(block: int) -> int:
        one = aes.encryptor()
        return int.from_bytes(one.update(block.to_bytes(16, "little")) + one.finalize(), "little")

    inner = encrypt(int.from_bytes(name[:16], "little")) ^ int.from_bytes(name[16:], "little")
    return sum(encrypt(inner ^ block) << 128 * block for block in range(blocks))


def place(hash_key: bytes, name: bytes, row: int, width: int, blocks: int) -> tuple[int, int]:
    """(column, sign) of a digest in a row."""
    bits = width.bit_length()
    found = words(hash_key, name, blocks) >> row * bits & (2 * width - 1)
    return found >> 1, -1 if found & 1 else 1


def admitted(records: Sequence[Record], max_rows: int, per_key: int, keys: int) -> list[Record]:
    """What the bounds let through, records in order of arrival."""
    seen: dict[int, dict[bytes, int]] = {}
    out = []
    for record in records:
        mine = seen.setdefault(record.user, {})
        if sum(mine.values()) >= max_rows or (record.key not in mine and len(mine) >= keys) or mine.get(record.key, 0) >= per_key:
            continue
        mine[record.key] = mine.get(record.key, 0) + 1
        out.append(record)
    return out


def owned(records: Sequence[Record], row: int, column: Callable[[Record, int], tuple[int, int]]) -> list[Record]:
    """The one-cell rule in one row: `column(record, row)` is (place, column); a unit's first key in a cell has it."""
    owner: dict[tuple[int, int, int], bytes] = {}
    return [record for record in records if owner.setdefault((record.user, *column(record, row)), record.key) == record.key]
