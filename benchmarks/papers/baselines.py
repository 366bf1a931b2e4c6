"""The paper's two baselines over the same admitted records: batch releases, one for each trigger.

Baseline 1 asks the same one-shot query of everything so far at each trigger; the figures are those of the last answer. Baseline 2 asks it
of each micro-batch by itself and adds the answers up. Both select keys by a noisy threshold on users and add Gaussian noise to counts,
as one release of ours with T = 1 and no decay does, with half of delta for the thresholds. Accounting:

* naive: epsilon and delta are divided, by T for baseline 1, and by min(T, C) for baseline 2, where a user is in no more micro-batches.
* tight: Gaussian-DP parameters add up in squares. Baseline 1 has mu / sqrt(T) for each answer. Baseline 2 needs no division at all: a
  user's squared changes of all answers together are bounded by C and C c.

Computed from the exact counts that `admit` let through, per key and micro-batch, with the noise function of the releases. Where
c > 1, the users of a micro-batch's key are counted by their records; a user who repeats a key within one micro-batch is rare here.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from benchmarks.measure import Figures
from benchmarks.sharded import Job
from benchmarks.workload import identifiers, ranks
from dpsql.parts.key_selection import THRESHOLD_DELTA_SHARE
from dpsql.privacy.curve import total_mu
from dpsql.udfs.columns import Bool, Float, Int, run_starts, run_sums, sort_order
from dpsql.udfs.noise.randomness import normals, tags


@dataclass(frozen=True)
class OneShot:
    """Numbers of one answer: a key is shown if users * weight + noise reaches tau; its count has noise of deviation sigma."""

    weight: float
    selection_sigma: float
    tau: float
    sigma: float

    @classmethod
    def of(
        cls,
        baseline: int,
        tight: bool,
        triggers: int,
        rows: int,
        per_group: int,
        share: float,
        epsilon: float,
        delta: float,
    ) -> OneShot:
        """Calibrate for one of the two baselines under one of the two accountings."""
        parts = triggers if baseline == 1 else min(triggers, rows)
        noise = delta * (1 - THRESHOLD_DELTA_SHARE)
        failure = delta * THRESHOLD_DELTA_SHARE / rows
        if tight:
            mu = total_mu(epsilon, noise) / (math.sqrt(triggers) if baseline == 1 else 1.0)
            failure /= triggers if baseline == 1 else 1
        else:
            mu = total_mu(epsilon / parts, noise / parts)
            failure = failure / parts
        weight = 1 / math.sqrt(rows)
        selection_sigma = 1 / (mu * math.sqrt(share))
        tau = weight + selection_sigma * float(norm.isf(failure))
        return cls(
            weight, selection_sigma, tau, math.sqrt(rows * per_group) / (mu * math.sqrt(1 - share))
        )

    def answer(self, users: Int, counts: Int, noise: tuple[Float, Float]) -> Float:
        """Noisy counts, NaN where a key is not shown."""
        shown = users * self.weight + self.selection_sigma * noise[0] >= self.tau
        return np.where(shown, np.rint(counts + self.sigma * noise[1]), np.nan)


class Answering:
    """A consumer that keeps exact counts for baseline 1 and adds up the answers of baseline 2 for two numbers of triggers.

    The plan's triggers are the finer of the two; the coarser micro-batches are the job's own.
    """

    def __init__(self, job: Job, number: int, processes: int, mine: Bool) -> None:
        query = job.plan.query
        self._rows = query.asked.max_rows_contributed
        self._per_group = query.asked.max_rows_per_group
        self._fine = job.plan.horizon
        self._coarse = job.batches
        assert job.plan.selection is not None
        self._share = job.plan.selection.share
        self._epsilon = query.epsilon
        self._delta = query.delta
        self._mine = np.flatnonzero(mine)
        self._ids = identifiers(np.arange(len(mine)))
        self._noise_key = hashlib.sha256(b"baselines, seed %d" % job.seed).digest()
        self._users = np.zeros(len(mine), np.int64)
        self._counts = np.zeros(len(mine), np.int64)
        self._sums = {
            (tight, t): np.full(len(mine), np.nan)
            for tight in (False, True)
            for t in (self._coarse, self._fine)
        }

    def take(self, batch: int, contributions: pa.Table, closed_us: int, truth: Int) -> None:
        key = ranks(contributions.column("key_bytes"))
        trigger, users, rows = (
            contributions.column(name).to_numpy() for name in ("trigger", "users", "v0")
        )
        np.add.at(self._users, key, users)
        np.add.at(self._counts, key, rows)
        self._add(np.full(len(key), batch + 1), key, rows, self._coarse)
        self._add(trigger, key, rows, self._fine)
        self._truth = truth

    def _add(self, trigger: Int, key: Int, rows: Int, triggers: int) -> None:
        order = sort_order(trigger, key)
        starts = run_starts(trigger[order], key[order])
        rows = run_sums(rows[order], starts)
        key = key[order[starts]]
        trigger = trigger[order[starts]]
        for tight in (False, True):
            one = self._one(2, tight, triggers)
            total = self._sums[tight, triggers]
            for now in np.unique(trigger):
                at = trigger == now
                answer = one.answer(
                    rows[at], rows[at], self._noise(key[at], 2 + 4 * tight, int(now))
                )
                shown = ~np.isnan(answer)
                where = key[at][shown]
                total[where] = np.nan_to_num(total[where]) + answer[shown]

    def _one(self, baseline: int, tight: bool, triggers: int) -> OneShot:
        return OneShot.of(
            baseline,
            tight,
            triggers,
            self._rows,
            self._per_group,
            self._share,
            self._epsilon,
            self._delta,
        )

    def _noise(self, key: Int, mechanism: int, trigger: int) -> tuple[Float, Float]:
        tag = tags(self._noise_key, np.zeros(len(key), np.int64), self._ids[key])
        return normals(self._noise_key, tag, mechanism, 0, trigger), normals(
            self._noise_key, tag, mechanism + 1, 0, trigger
        )

    def result(self) -> Any:
        out = []
        some = self._mine[self._counts[self._mine] > 0]
        for triggers in (self._coarse, self._fine):
            for tight in (False, True):
                shown = np.full(len(self._counts), np.nan)
                one = self._one(1, tight, triggers)
                shown[some] = one.answer(
                    self._users[some],
                    self._counts[some],
                    self._noise(some, 10 + 4 * tight, triggers),
                )
                for baseline, values in ((1, shown), (2, self._sums[tight, triggers])):
                    figures = Figures.of(self._truth[self._mine], values[self._mine])
                    out.append(
                        {"baseline": baseline, "tight": tight, "triggers": triggers}
                        | asdict(figures)
                    )
        return out


def answering(job: Job, number: int, processes: int, mine: Bool) -> Answering:
    """Makes the consumer of one process."""
    return Answering(job, number, processes, mine)
