"""Sketches as plain lists: one record, one key, one row of cells at a time. Hashes are asked for by name, so that both forms have the same."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


@dataclass(frozen=True)
class Record:
    """A record that is timely: who, when (event time), what, and what it weighs."""

    user: int
    ts: int
    key: bytes
    value: int = 1
    shares: Mapping[int, int] = field(default_factory=dict)
    """By window, what it adds where bounds per group cut that."""


@dataclass
class Rooms:
    """What a unit's records with one key may add in a window, above zero and below; `alone`: who adds nothing is refused."""

    lower: int
    upper: int
    alone: bool
    windows: Callable[[int], list[int]]
    used: dict[tuple[int, int, bytes, bool], int] = field(default_factory=dict)

    def asked(self, r: Record) -> tuple[dict[tuple[int, int, bytes, bool], int], bool]:
        """How full rooms are after a record, and whether all of them were full before."""
        limit = self.upper if r.value > 0 else -self.lower
        before = {
            (r.user, w, r.key, r.value > 0): self.used.get((r.user, w, r.key, r.value > 0), 0)
            for w in self.windows(r.ts)
        }
        full = (
            bool(before)
            and limit > 0
            and r.value != 0
            and all(had == limit for had in before.values())
        )
        return {
            place: min(had + abs(r.value), limit) for place, had in before.items()
        }, full and self.alone

    def admit(self, r: Record, after: dict[tuple[int, int, bytes, bool], int]) -> Record:
        shares = {
            place[1]: (now - self.used.get(place, 0)) * (1 if r.value > 0 else -1)
            for place, now in after.items()
        }
        self.used |= after
        return replace(r, shares=shares)


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


def admitted(
    records: Sequence[Record], max_rows: int, per_key: int, keys: int, rooms: Rooms
) -> list[Record]:
    """What the bounds let through, records in order of arrival."""
    seen: dict[int, dict[bytes, int]] = {}
    out = []
    for record in records:
        mine = seen.setdefault(record.user, {})
        if (
            sum(mine.values()) >= max_rows
            or (record.key not in mine and len(mine) >= keys)
            or mine.get(record.key, 0) >= per_key
        ):
            continue
        after, full = rooms.asked(record)
        if not full:
            mine[record.key] = mine.get(record.key, 0) + 1
            out.append(rooms.admit(record, after))
    return out


def owned(
    records: Sequence[Record], row: int, column: Callable[[Record, int], tuple[int, int]]
) -> list[Record]:
    """The one-cell rule in one row: `column(record, row)` is (place, column); a unit's first key in a cell has it."""
    owner: dict[tuple[int, int, int], bytes] = {}
    return [
        record
        for record in records
        if owner.setdefault((record.user, *column(record, row)), record.key) == record.key
    ]
