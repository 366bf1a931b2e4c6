"""What a histogram is worth: keys, l_inf, l_1, l_2 over the true, unbounded histogram, at points of the day."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.sharded import Job, by_bucket
from benchmarks.workload import ranks
from dpsql.mechanisms.histogram.stages import release_parameters
from dpsql.udfs.columns import Bool, Int
from dpsql.udfs.histogram.release import ReleaseState, release
from dpsql.udfs.stage import Tick


@dataclass(frozen=True)
class Figures:
    """The paper's four figures; an unreleased key counts as 0, a negative release as 0. `keys`: released so far."""

    keys: float
    l_inf: float
    l_1: float
    l_2: float

    def __add__(self, other: Figures) -> Figures:
        """Of two sets of keys together."""
        return Figures(
            self.keys + other.keys,
            max(self.l_inf, other.l_inf),
            self.l_1 + other.l_1,
            math.hypot(self.l_2, other.l_2),
        )

    @classmethod
    def of(cls, truth: Int, shown: np.ndarray) -> Figures:
        """`shown`: the newest released value per key, NaN where there is none."""
        error = np.abs(truth - np.maximum(np.nan_to_num(shown), 0.0))
        known = int((~np.isnan(shown)).sum())
        return cls(
            known,
            float(error.max(initial=0)),
            float(error.sum()),
            float(math.sqrt(np.sum(error**2))),
        )


class Releasing:
    """A consumer that runs the release step and measures after each of 100 micro-batches (fewer where there are fewer)."""

    def __init__(self, job: Job, number: int, processes: int, mine: Bool) -> None:
        self._parameters = release_parameters(job.plan)
        self._mine = np.flatnonzero(mine)
        self._noise_key = hashlib.sha256(b"table 1, seed %d" % job.seed).digest()
        self._states: dict[int, ReleaseState] = {}
        self._owned = range(number, job.buckets, processes)
        self._shown = np.full(len(mine), np.nan)
        self._buckets = job.buckets
        self._path: list[dict[str, float]] = []

    def take(self, batch: int, contributions: pa.Table, closed_us: int, truth: Int) -> None:
        parts = dict(by_bucket(contributions, batch, self._buckets))
        nothing = contributions.slice(0, 0).append_column("batch", pa.array([], pa.int64()))
        for bucket in self._owned:
            step = release(
                self._states.get(bucket),
                parts.get(bucket, nothing),
                [Tick(batch, closed_us)],
                self._parameters,
                self._noise_key,
            )
            self._states[bucket] = step.state
            # Rows are in order of triggers: the newest of a key stays.
            self._shown[ranks(step.rows.column("key_bytes"))] = step.rows.column("c0").to_numpy()
        self._path.append(asdict(Figures.of(truth[self._mine], self._shown[self._mine])))

    def result(self) -> Any:
        return self._path


def releasing(job: Job, number: int, processes: int, mine: Bool) -> Releasing:
    """Makes the consumer of one process."""
    return Releasing(job, number, processes, mine)


def together(paths: list[list[dict[str, float]]]) -> list[Figures]:
    """The figures of all processes' keys, per micro-batch."""
    out = []
    for parts in zip(*paths, strict=True):
        whole = Figures(0, 0.0, 0.0, 0.0)
        for part in parts:
            whole += Figures(*(part[name] for name in ("keys", "l_inf", "l_1", "l_2")))
        out.append(whole)
    return out
