"""The stream of the throughput benchmark: Parquet files of one micro-batch each, with users and keys as text.

The key of a record is Zipf-Mandelbrot, p(rank) ~ (rank + 1000 * keys / 10^6)^-1.4, as in the paper's Table 1. How active a user is is drawn
once, Zipf-Mandelbrot on [1, 100000] with p(x) ~ (x + 26)^-6.738; each record is of a user drawn in proportion to that. File b holds the
event times of the b-th interval, in order. All from one seed: the same arguments give the same files.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workload import PAPER_FLAT, PAPER_KEYS, Int, zipf_mandelbrot

START_US = 1_767_225_600_000_000
"""2026-01-01."""

INTERVAL_US = 864_000_000
"""A hundredth of a day."""


@dataclass(frozen=True)
class Stream:
    """How many users and keys there are, records per file, and the seed."""

    users: int
    keys: int
    rows: int
    seed: int = 1

    @property
    def name(self) -> str:
        """A folder name."""
        return f"{self.users}-users-{self.keys}-keys-{self.rows}-rows-{self.seed}"

    def write(self, folder: Path, files: int) -> Path:
        """Make the first files, those that are not there yet; returns their folder."""
        out = folder / self.name
        out.mkdir(parents=True, exist_ok=True)
        missing = [number for number in range(files) if not (out / f"{number:04}.parquet").exists()]
        if missing:
            generator = np.random.default_rng(self.seed)
            activity = 1 + np.searchsorted(
                zipf_mandelbrot(100_000, 26, 6.738), generator.random(self.users)
            )
            tickets = np.repeat(np.arange(self.users, dtype=np.int32), activity)
            popularity = zipf_mandelbrot(
                self.keys, (PAPER_FLAT + 0.5) * self.keys / PAPER_KEYS - 0.5, 1.4
            )
            users = _names("user-", self.users)
            pages = _names("/page/", self.keys)
            for number in missing:
                self._write_file(
                    out / f"{number:04}.parquet", number, tickets, popularity, users, pages
                )
        (out.parent / f"{self.name}.json").write_text(json.dumps(asdict(self)))
        return out

    def _write_file(
        self,
        path: Path,
        number: int,
        tickets: Int,
        popularity: np.ndarray,
        users: pa.Array,
        pages: pa.Array,
    ) -> None:
        generator = np.random.default_rng([self.seed, number])
        ts = (
            START_US + number * INTERVAL_US + np.sort(generator.integers(0, INTERVAL_US, self.rows))
        )
        user = users.take(pa.array(tickets[generator.integers(0, len(tickets), self.rows)]))
        page = pages.take(pa.array(np.searchsorted(popularity, generator.random(self.rows))))
        table = pa.table(
            {"user_id": user, "ts": pa.array(ts, pa.timestamp("us", "UTC")), "page": page}
        )
        temporary = path.with_suffix(".tmp")
        pq.write_table(table, temporary)
        # Spark's file source reads files in order of age.
        os.utime(temporary, (1_000_000_000 + number,) * 2)
        temporary.rename(path)


def _names(prefix: str, count: int) -> pa.Array:
    """Texts of one length in no particular order."""
    return pa.array([f"{prefix}{number * 2654435761 % (1 << 32):010d}" for number in range(count)])
