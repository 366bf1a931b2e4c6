"""The paper's algorithm on plain lists and dicts, beside ours: the baseline of every comparison, checked by an independent hand.

    python benchmarks/papers/paper_reference.py                  # 1/20 of the paper's workload: 500,000 users, 50,000 keys
    python benchmarks/papers/paper_reference.py --scale 0.005    # seconds

DP-SQLP (arXiv 2303.18086) section 4: user contribution bounding, key selection in rounds (Algorithm 2), hierarchical perturbation
(Algorithm 3), binary trees with Honaker's bottom-up estimates (Algorithm 1). `reference` is slow and shares no code with `udfs`: it
takes numbers (sigmas, thresholds, weight, C), draws its own noise, and tests every key that has users in its round at every trigger.
`ours` runs the same plan through the real steps. Both release a key's value when it is selected; the last one counts.

Workload (the paper's section 6): users' records Zipf-Mandelbrot on [1, 100000], p(x) ~ (x + 26)^-6.738; the key of each record
Zipf-Mandelbrot on 1,000,000 keys, p(k) ~ (k + 1000)^-1.4; times uniform over the day. A scale multiplies users, keys and the 1000
alike: keys scale with it and keep their numbers of users, so l_inf hardly moves, l_1 scales with it and l_2 with its root.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from dpsql.mechanisms.histogram.plan import HistogramChoices, PrivacyPlan, ReleaseRule  # noqa: E402
from dpsql.mechanisms.histogram.planner import make_plan  # noqa: E402
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters  # noqa: E402
from dpsql.parsed_query import (  # noqa: E402
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    Key,
    ParsedQuery,
    WindowSpec,
)
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.histogram.release import release  # noqa: E402
from dpsql.udfs.intake.contribution_bounding import admit  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402

DAY = 86_400_000_000
PAPER_USERS = 10_000_000
PAPER_KEYS = 1_000_000
PAPER_FLAT = 1000
Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """One day: user, key (rank of popularity, 0 first) and event time in microseconds, in order of time."""

    user: Int
    key: Int
    ts: Int


@dataclass(frozen=True)
class Numbers:
    """What the reference needs of a plan.

    Args:
        rows: C. weight: what a user adds to a round. selection_sigma, sigma: of one tree node. thresholds: tau_1..tau_T.
    """

    rows: int
    weight: float
    selection_sigma: float
    thresholds: tuple[float, ...]
    sigma: float


@dataclass(frozen=True)
class Figures:
    """The four figures of the paper's Table 1, at the last trigger, over the true and unbounded histogram."""

    keys: float
    l_inf: float
    l_1: float
    l_2: float


def workload(scale: float, seed: int = 1) -> Records:
    """A day of records."""
    generator = np.random.default_rng(seed)
    users = round(PAPER_USERS * scale)
    keys = round(PAPER_KEYS * scale)
    flat = (PAPER_FLAT + 0.5) * scale - 0.5
    each = 1 + _zipf_mandelbrot(generator, 100_000, 26, 6.738, users)
    user = np.repeat(np.arange(users), each)
    ts = generator.integers(0, DAY, len(user))
    order = np.argsort(ts, kind="stable")
    return Records(user[order], _zipf_mandelbrot(generator, keys, flat, 1.4, len(user)), ts[order])


def _zipf_mandelbrot(generator: np.random.Generator, n: int, q: float, s: float, size: int) -> Int:
    """Ranks 0..n-1 with p ~ (rank + 1 + q)^-s."""
    cumulative = np.cumsum((np.arange(1, n + 1) + q) ** -s)
    return np.searchsorted(cumulative / cumulative[-1], generator.random(size))


class Tree:
    """Noise of one tree (Algorithm 1), leaf by leaf: `prefix` is the noise of the newest prefix sum, for unit node noise."""

    def __init__(self, levels: int, gauss: Callable[[float, float], float]) -> None:
        self.variance = [1.0]
        for _ in range(levels - 1):
            self.variance.append(1 / (1 + 1 / (2 * self.variance[-1])))
        self.gauss = gauss
        self.leaves = 0
        self.roots: list[
            tuple[int, float]
        ] = []  # complete subtrees, the largest first: (height, estimate)

    def prefix(self, leaf: int) -> float:
        """Noise of the prefix sum that ends at this leaf; leaves come in order."""
        while self.leaves < leaf:
            self.leaves += 1
            height = 0
            estimate = self.gauss(0.0, 1.0)
            while self.roots and self.roots[-1][0] == height:
                _, left = self.roots.pop()
                height += 1
                own = self.variance[
                    height
                ]  # inverse-variance weight of the node's own noise, whose variance is 1
                estimate = own * self.gauss(0.0, 1.0) + (1 - own) * (left + estimate)
            self.roots.append((height, estimate))
        return sum(estimate for _, estimate in self.roots)


@dataclass
class KeyState:
    """What is kept of one key: users of the round, its tree, the tree of its counts, everything counted, the last release."""

    users: set[int]
    round: Tree
    counts: Tree
    total: int = 0
    released: float | None = None


def reference(records: Records, numbers: Numbers, seed: int) -> dict[int, float]:
    """Key -> last released value."""
    gauss = random.Random(seed).gauss
    triggers = len(numbers.thresholds)
    levels = triggers.bit_length()
    taken: dict[int, int] = defaultdict(int)
    arriving: list[list[tuple[int, int]]] = [[] for _ in range(triggers)]
    for user, key, ts in zip(
        records.user.tolist(), records.key.tolist(), records.ts.tolist(), strict=True
    ):
        taken[user] += 1
        if taken[user] <= numbers.rows:
            arriving[ts * triggers // DAY].append((user, key))
    keys: dict[int, KeyState] = {}
    for trigger in range(1, triggers + 1):
        for user, key in arriving[trigger - 1]:
            state = keys.get(key)
            if state is None:
                state = keys[key] = KeyState(set(), Tree(levels, gauss), Tree(levels, gauss))
            state.users.add(user)
            state.total += 1
        for state in keys.values():
            if not state.users:
                continue
            noisy = len(
                state.users
            ) * numbers.weight + numbers.selection_sigma * state.round.prefix(trigger)
            if noisy >= numbers.thresholds[trigger - 1]:
                state.released = state.total + numbers.sigma * state.counts.prefix(trigger)
                state.users = set()
                state.round = Tree(levels, gauss)
    return {key: state.released for key, state in keys.items() if state.released is not None}


def paper_plan(
    scale: float, triggers: int, rows: int = 32, epsilon: float = 6.0, delta: float = 1e-9
) -> PrivacyPlan:
    """The paper's configuration under our accounting: RESELECT, HONAKER, no decay, c = C, half of mu^2 each."""
    query = ParsedQuery(
        mechanism="histogram",
        epsilon=epsilon,
        delta=delta,
        privacy_unit=("user_id",),
        contribution_period=ContributionPeriod.WINDOW,
        event_time="ts",
        window=WindowSpec(DAY, DAY, 0),
        trigger_interval_us=-(-DAY // triggers),
        allowed_lateness_us=0,
        max_ahead_us=DAY,
        public_groups=None,
        keys=(Key("page", "page"),),
        aggregates=(Aggregate("views", AggregateFunction.COUNT_ROWS),),
        from_sql="FROM visits",
        stream="visits",
        static_sources=(),
        columns_in_order=("page", "views"),
        asked=HistogramChoices(
            max_rows_contributed=rows,
            max_rows_per_group=rows,
            max_groups_contributed=rows,
            min_privacy_units_per_group=1,
            release=ReleaseRule.RESELECT,
            counter=CounterName.HONAKER,
        ),
    )
    source = Source(
        "visits",
        "parquet",
        max_users=round(PAPER_USERS * scale),
        max_keys=round(PAPER_KEYS * scale),
    )
    return make_plan(query, source)


def numbers_of(plan: PrivacyPlan) -> Numbers:
    """The plan's numbers; without decay every participation has the same weight."""
    selection = plan.selection
    assert selection is not None and len(set(selection.weights)) == 1
    unit = 2.0**-20
    thresholds = tuple(tau * unit for tau in selection.thresholds)
    return Numbers(
        plan.query.asked.max_rows_contributed,
        selection.weights[0] * unit,
        selection.sigma,
        thresholds,
        plan.perturbations[0].sigma,
    )


def ours(records: Records, plan: PrivacyPlan, seed: int) -> dict[int, float]:
    """Key -> last released value, by the real steps: one micro-batch and one tick per trigger interval."""
    b = bounding_parameters(plan)
    r = release_parameters(plan)
    noise_key = hashlib.sha256(b"paper reference %d" % seed).digest()
    last: dict[int, float] = {}
    people = None
    groups = None
    cuts = np.searchsorted(records.ts, np.arange(plan.horizon + 1) * plan.query.trigger_interval_us)
    for batch, (low, high) in enumerate(itertools.pairwise(cuts)):
        admission = admit(
            people, _rows(records, low, high), Clock(batch * plan.query.trigger_interval_us), b
        )
        people = admission.state
        contributions = admission.contributions.append_column(
            "batch", pa.array(np.full(admission.contributions.num_rows, batch))
        )
        step = release(
            groups,
            contributions,
            [Tick(batch, (batch + 1) * plan.query.trigger_interval_us)],
            r,
            noise_key,
        )
        groups = step.state
        for name, value in zip(
            step.rows.column("key_bytes").to_pylist(),
            step.rows.column("c0").to_pylist(),
            strict=True,
        ):
            last[int.from_bytes(name, "big")] = value
    return last


def _rows(records: Records, low: int, high: int) -> pa.Table:
    key = records.key[low:high]
    names = [
        None,
        pa.py_buffer(np.arange(0, 8 * len(key) + 1, 8, dtype=np.int32)),
        pa.py_buffer(key.astype(">u8").tobytes()),
    ]
    return pa.table(
        {
            "drop": np.zeros(len(key), np.int8),
            "user": _spread(records.user[low:high]),
            "ts": records.ts[low:high],
            "key": _spread(key),
            "key_bytes": pa.Array.from_buffers(pa.binary(), len(key), names),
        }
    )


def _spread(numbers: Int) -> Int:
    """Well spread 64-bit ids; odd factors and shifts make a bijection."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(29))).view(np.int64)


def figures(records: Records, released: dict[int, float]) -> Figures:
    """A released value is clamped at 0; an unreleased key counts as 0."""
    truth = np.bincount(records.key, minlength=int(records.key.max()) + 1)
    shown = np.zeros(len(truth))
    shown[list(released)] = np.maximum(list(released.values()), 0.0)
    error = np.abs(truth - shown)
    return Figures(
        len(released), float(error.max()), float(error.sum()), float(math.sqrt(np.sum(error**2)))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The paper's algorithm on plain lists beside ours, same numbers, same records."
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=0.05,
        help="part of the paper's 10 million users and 1 million keys",
    )
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds of each")
    asked = parser.parse_args()
    records = workload(asked.scale)
    plan = paper_plan(asked.scale, asked.triggers)
    numbers = numbers_of(plan)
    print(
        f"{round(PAPER_USERS * asked.scale):,} users, {round(PAPER_KEYS * asked.scale):,} keys, {len(records.ts):,} records, {asked.triggers} triggers"
    )
    print("| | seed | keys | l_inf | l_1 | l_2 | seconds |\n|---|---|---|---|---|---|---|")
    runs: dict[str, Callable[[int], dict[int, float]]] = {
        "plain lists": lambda seed: reference(records, numbers, seed),
        "dpsql": lambda seed: ours(records, plan, seed),
    }
    for name, run in runs.items():
        for seed in range(1, asked.seeds + 1):
            start = time.perf_counter()
            f = figures(records, run(seed))
            seconds = time.perf_counter() - start
            print(
                f"| {name} | {seed} | {f.keys:,} | {f.l_inf:,.0f} | {f.l_1:,.0f} | {f.l_2:,.0f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
