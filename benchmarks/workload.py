"""The workload of the paper's Table 1, record by record and in order of time.

Users' records are Zipf-Mandelbrot on [1, 100000], p(x) ~ (x + 26)^-6.738; the key of each record is Zipf-Mandelbrot on 1,000,000
keys, p(k) ~ (k + 1000)^-1.4; times are uniform over one day. At full size: 10 million users and about 61 million records. A scale
multiplies users, keys and the 1000 alike: keys keep their numbers of users.

The day is cut into 1,000 slices. Who the record of each place in time belongs to is drawn for the whole day at once (four bytes a
record), because a user's records are spread over all of it; times and keys are drawn slice by slice, from the seed and the number of
the slice. So the stream is the same however many micro-batches it is read in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DAY = 86_400_000_000
SLICES = 1000
PAPER_USERS = 10_000_000
PAPER_KEYS = 1_000_000
PAPER_FLAT = 1000

Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """One seeded day. `users`: whose record each place in time is; `edges`: where slices begin; `popularity`: cumulative over keys."""

    users: npt.NDArray[np.int32]
    edges: Int
    popularity: npt.NDArray[np.float64]
    seed: int

    @classmethod
    def of(cls, scale: float = 1.0, seed: int = 1) -> Workload:
        """Draw who comes when."""
        generator = np.random.default_rng(seed)
        population = round(PAPER_USERS * scale)
        keys = round(PAPER_KEYS * scale)
        each = 1 + np.searchsorted(
            zipf_mandelbrot(100_000, 26, 6.738), generator.random(population)
        )
        users = np.repeat(np.arange(population, dtype=np.int32), each)
        generator.shuffle(
            users
        )  # times are independent and uniform: every order of the records is as likely
        sizes = generator.multinomial(len(users), np.full(SLICES, 1 / SLICES))
        popularity = zipf_mandelbrot(keys, (PAPER_FLAT + 0.5) * scale - 0.5, 1.4)
        return cls(users, np.concatenate([[0], np.cumsum(sizes)]), popularity, seed)

    @property
    def keys(self) -> int:
        """How many keys there are; a key is its rank of popularity, 0 first."""
        return len(self.popularity)

    def slices(self, first: int, last: int) -> tuple[npt.NDArray[np.int32], Int, Int]:
        """(user, key, event time) of slices first..last - 1, in order of time."""
        parts = [self._slice(number) for number in range(first, last)]
        return self.users[self.edges[first] : self.edges[last]], *(
            np.concatenate(column) for column in zip(*parts, strict=True)
        )  # type: ignore[return-value]

    def _slice(self, number: int) -> tuple[Int, Int]:
        generator = np.random.default_rng([self.seed, number])
        size = int(self.edges[number + 1] - self.edges[number])
        length = DAY // SLICES
        ts = number * length + np.sort(generator.integers(0, length, size))
        return np.searchsorted(self.popularity, generator.random(size)), ts


def zipf_mandelbrot(n: int, q: float, s: float) -> npt.NDArray[np.float64]:
    """Cumulative probabilities of ranks 0..n-1 with p ~ (rank + 1 + q)^-s."""
    cumulative = np.cumsum((np.arange(1, n + 1) + q) ** -s)
    return cumulative / cumulative[-1]


def identifiers(numbers: npt.NDArray[np.integer]) -> Int:
    """Well spread 64-bit ids, as the engines' hashes are; odd factors and shifts make a bijection."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(29))).view(np.int64)


def records(user: npt.NDArray[np.integer], key: Int, ts: Int) -> pa.Table:
    """The records table of docs/architecture.md; a key's bytes are its rank, eight bytes, big-endian."""
    ends = pa.py_buffer(np.arange(0, 8 * len(key) + 1, 8, dtype=np.int32))
    names = pa.Array.from_buffers(
        pa.binary(), len(key), [None, ends, pa.py_buffer(key.astype(">u8").tobytes())]
    )
    return pa.table(
        {
            "drop": np.zeros(len(key), np.int8),
            "user": identifiers(user),
            "ts": ts,
            "key": identifiers(key),
            "key_bytes": names,
        }
    )


def ranks(key_bytes: pa.ChunkedArray) -> Int:
    """Keys of released rows."""
    flat = key_bytes.combine_chunks()
    data = np.frombuffer(flat.buffers()[2], dtype=">u8") if len(flat) else np.zeros(0, ">u8")
    return data[flat.offset : flat.offset + len(flat)].astype(np.int64)
