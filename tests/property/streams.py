"""Strategies for streams, parameters and clocks, and the smallest possible feeders of the two steps."""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from hypothesis import strategies as st

from dpsql.parts.key_selection import selection_weights
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.release import ReleaseParameters, ReleaseState, release
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import Clock, Tick
from tests.reference import Cells, Record

WINDOW = 12
FAR = 1 << 60
EVERYTHING = 1 << 61
"""A closed time after every window that the strategies make."""

INCREMENTS = (
    Increment("rows"), Increment("valid", 0), Increment("users"), Increment("sum", 0, 0.25, -8, 12, 0.5),
    Increment("squares", 0, 0.5, -6, 6, 0.5),
)  # fmt: skip


PER_GROUP = (
    Increment("rows_per_group", upper=1), Increment("sum_per_group", 0, 0.25, -8, 12), Increment("users"), Increment("sum_per_group", 0, 0.25, 0, 3),
)  # fmt: skip
"""Increments with rooms; a query may have others beside them."""


def identifier(name: int) -> int:
    """A 64-bit id as the engines make them; users and keys share this function, so that a user can have the id of a key."""
    return int.from_bytes(hashlib.sha256(b"%d" % name).digest()[:8], "big", signed=True)


USERS = [identifier(i) for i in range(4)]
KEYS = [identifier(i) for i in range(5)]
VALUES = [
    0.0,
    -0.0,
    0.625,
    1.0,
    -3.7,
    2.9,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e300,
    5e-324,
]


def records(crowded: bool = False) -> st.SearchStrategy[Record]:
    """Ties of every kind, times before 1970 and far from now, and records that were dropped before bounding; `crowded`: one user's, of few keys."""
    times = (
        st.one_of(st.integers(-30, 30), st.integers(0, 12), st.sampled_from([FAR, FAR + 1, -FAR]))
        if not crowded
        else st.integers(0, 24)
    )
    who, keys = (USERS[:1], KEYS[:2]) if crowded else (USERS, KEYS)
    live = st.builds(
        Record,
        st.sampled_from(who),
        times,
        st.sampled_from(keys),
        st.tuples(st.sampled_from(VALUES)),
    )
    dropped = st.builds(
        Record, st.just(0), st.just(0), st.just(0), st.just((float("nan"),)), st.integers(1, 4)
    )
    return st.one_of(*[live] * 9, dropped)


@st.composite
def grids(draw: st.DrawFn, sliding: bool = True) -> Grid:
    """Windows of 12 with 1..12 triggers, and more when there is lateness; tumbling, or sliding by 6 or by 5."""
    trigger, slide = draw(
        st.sampled_from(
            [(12, 12), (5, 12), (4, 12), (1, 12), *([(6, 6), (2, 6), (5, 5)] if sliding else [])]
        )
    )
    lateness = draw(st.sampled_from([0, 0, 5, 13]))
    return Grid(
        WINDOW,
        slide,
        draw(st.sampled_from([0, 5, -7])),
        trigger,
        -(-(WINDOW + lateness) // trigger),
    )


@st.composite
def bounding(
    draw: st.DrawFn,
    renews: bool | None = None,
    sliding: bool = True,
    rounds: bool | None = False,
    rooms: bool = False,
) -> BoundingParameters:
    """Any bounds C, c <= C, G <= C. `rounds`: contributions keep their user (None: either). `rooms`: increments have bounds per group, and rows
    may go uncounted."""
    rows: float = draw(st.integers(1, 6))
    per_group = draw(st.integers(1, int(rows)))
    groups = draw(st.integers(1, int(rows)))
    grid = draw(grids(sliding))
    by_user = draw(st.booleans()) if rounds is None else rounds
    counted = grid.windows_per_record * (
        min(rows, groups * per_group) if by_user else min(rows, groups)
    )
    if rooms and not by_user and draw(st.booleans()):
        rows = math.inf
        per_group = math.inf
        counted = grid.windows_per_record * groups
    weights = selection_weights(int(counted), draw(st.sampled_from([0.5, 0.0])))
    increments = (
        draw(st.sampled_from((PER_GROUP[:1], PER_GROUP, (*PER_GROUP, *INCREMENTS))))
        if rooms
        else INCREMENTS
    )
    return BoundingParameters(
        grid,
        draw(st.booleans()) if renews is None else renews,
        rows,
        per_group,
        groups,
        weights,
        increments,
        by_user,
    )


@dataclass(frozen=True)
class Stream:
    """Micro-batches, each with the clock it is admitted under. `closed[i]` is the tick that ends micro-batch i."""

    batches: list[list[Record]]
    clocks: list[Clock]
    closed: list[int] = field(default_factory=list)

    @property
    def ticks(self) -> list[Tick]:
        return [Tick(i, closed) for i, closed in enumerate(self.closed)]

    def only(self, user: int) -> Self:
        return Stream(
            [[r for r in batch if r.user == user] for batch in self.batches],
            self.clocks,
            self.closed,
        )

    @property
    def records(self) -> list[Record]:
        return [r for batch in self.batches for r in batch]


@st.composite
def live_streams(draw: st.DrawFn, crowded: bool = False) -> Stream:
    """Any records in any order, any cut, a monotone clock; the last tick closes everything."""
    batches = draw(st.lists(st.lists(records(crowded), max_size=14), min_size=1, max_size=5))
    times = sorted(
        draw(st.lists(st.integers(-40, 60), min_size=len(batches), max_size=len(batches)))
    )
    ahead = draw(st.one_of(st.none(), st.integers(0, 30)))
    before = [NO_CLOCK if draw(st.booleans()) else times[0], *times[1:]]
    clocks = [Clock(t, 1 << 62 if ahead is None or t == NO_CLOCK else t + ahead) for t in before]
    return Stream(batches, clocks, [*before[1:], EVERYTHING])


def replay_stream(batches: Sequence[Sequence[Record]]) -> Stream:
    """No clock while reading; one tick at the end."""
    return Stream(
        [list(b) for b in batches],
        [Clock()] * len(batches),
        [NO_CLOCK] * (len(batches) - 1) + [EVERYTHING],
    )


def cut_by_time(stream: Sequence[Record], cuts: Iterable[int]) -> list[list[Record]]:
    """Event-time order, cut between different event times only: `cuts` are times that start a new micro-batch."""
    ordered = sorted(stream, key=lambda r: r.ts)
    edges = sorted(set(cuts))
    batches: list[list[Record]] = [[] for _ in range(len(edges) + 1)]
    for r in ordered:
        batches[sum(edge <= r.ts for edge in edges)].append(r)
    return batches


def table(batch: Sequence[Record]) -> pa.Table:
    columns: dict[str, Any] = {"drop": pa.array([r.drop for r in batch], pa.int8())}
    columns |= {
        "user": pa.array([r.user for r in batch], pa.int64()),
        "ts": pa.array([r.ts for r in batch], pa.int64()),
    }
    columns |= {"key": pa.array([r.key for r in batch], pa.int64())}
    columns |= {"key_bytes": pa.array([r.key_bytes for r in batch], pa.binary())}
    for i in range(len(batch[0].values) if batch else 1):
        columns[f"a{i}"] = pa.array([r.values[i] for r in batch], pa.float64())
    return pa.table(columns)


@dataclass
class Admissions:
    """What the admission feeder produced: contributions with their arrival batch, drops, and every bucket's last state."""

    contributions: pa.Table
    drops: Counter[str]
    states: list[pa.Table]


def run_admission(stream: Stream, p: BoundingParameters, buckets: int = 1) -> Admissions:
    """Every micro-batch to every bucket that has rows of it or, as in a live run, all of them."""
    states: list[pa.Table | None] = [None] * buckets
    sums = states.copy()
    drops: Counter[str] = Counter()
    tables = []
    for number, (batch, clock) in enumerate(zip(stream.batches, stream.clocks, strict=True)):
        for b in range(buckets):
            admission = admit(
                states[b], table([r for r in batch if r.user % buckets == b]), clock, p, sums[b]
            )
            states[b], sums[b] = admission.state, admission.sums
            drops.update({reason: n for reason, n in admission.drops.items() if n})
            rows = admission.contributions
            tables.append(
                rows.append_column("batch", pa.array([number] * rows.num_rows, pa.int64()))
            )
    return Admissions(pa.concat_tables(tables), drops, [s for s in states if s is not None])


def cells(contributions: pa.Table) -> Cells:
    """(window, trigger, key[, user]) -> (weight, users, increments...), over buckets and micro-batches (one user: its largest weight)."""
    out: Cells = {}
    by_user = "user" in contributions.column_names
    names = ["users", *sorted(n for n in contributions.column_names if n[0] == "v")]
    for row in contributions.to_pylist():
        cell = tuple(row[n] for n in ("window", "trigger", "key", *(["user"] if by_user else [])))
        weight, *others = out.get(cell, (0,) * (1 + len(names)))
        total = max(weight, row["weight"]) if by_user else weight + row["weight"]
        out[cell] = (total, *(x + row[n] for x, n in zip(others, names, strict=True)))
    return out


def added(one: Cells, other: Cells) -> Cells:
    return one | {
        cell: tuple(x + y for x, y in zip(one.get(cell, (0,) * len(v)), v, strict=True))
        for cell, v in other.items()
    }


COLUMNS = (
    OutputColumn("count", (0,), (1.0,), ()),
    OutputColumn("count", (2,), (1.0,), ()),
    OutputColumn("sum", (3,), (INCREMENTS[3].grid,), ()),
    OutputColumn("avg", (3, 1), (INCREMENTS[3].grid, 1.0), (), (-1.5, 3.5), INCREMENTS[3].centre),
    OutputColumn(
        "variance",
        (3, 4, 1),
        (INCREMENTS[3].grid, INCREMENTS[4].grid, 1.0),
        (),
        (-1.5, 3.5),
        INCREMENTS[3].centre,
        3.0,
    ),
    OutputColumn(
        "deviation",
        (3, 4, 1),
        (INCREMENTS[3].grid, INCREMENTS[4].grid, 1.0),
        (),
        (-1.5, 3.5),
        INCREMENTS[3].centre,
        3.0,
        True,
    ),
)


def release_parameters(
    p: BoundingParameters,
    s: SelectionParameters | None,
    name: str = "BLT",
    public: PublicGroups | None = None,
) -> ReleaseParameters:
    """Release what `p` admits: COUNT(*), COUNT(DISTINCT), SUM, AVG, VAR_POP and STDDEV, with much noise."""
    horizon = p.grid.horizon
    perturbations = tuple(
        PerturbationParameters(j + 1, counter(name, horizon), 40.0, rule.grid)
        for j, rule in enumerate(p.increments)
    )
    errors = (
        0.6,
    ) * horizon  # less than there is: else averages would be the middle of their bounds
    columns = tuple(
        dataclasses.replace(column, stderr=(errors,) * len(column.perturbations))
        for column in COLUMNS
    )
    return ReleaseParameters(p.grid, s, perturbations, columns, public)


def selection(
    p: BoundingParameters, thresholds: Sequence[int], min_users: int = 1, name: str = "BLT"
) -> SelectionParameters:
    """Little noise, so that both outcomes are common."""
    return SelectionParameters(
        counter(name, p.grid.horizon), 0.4, tuple(thresholds), min_users, p.by_user
    )


@st.composite
def releasing(draw: st.DrawFn, p: BoundingParameters) -> ReleaseParameters:
    """Thresholds of less than one user up to three, different at every trigger; any counter."""
    thresholds = draw(
        st.lists(st.integers(1 << 18, 3 << 20), min_size=p.grid.horizon, max_size=p.grid.horizon)
    )
    name = draw(st.sampled_from(["BLT", "BLT", "HONAKER"]))
    made = release_parameters(
        p, selection(p, thresholds, draw(st.sampled_from([1, 1, 2])), name), name
    )
    if p.by_user or not draw(st.booleans()):
        return made
    return on_selection(made, draw(st.sampled_from([0.0, 0.7])))


def on_selection(p: ReleaseParameters, sigma_of_people: float) -> ReleaseParameters:
    """The same, with counts of rows and of people that the sum of weights is a part of; nothing is left of people where sigma is 0."""
    sigmas = {0: 0.9, 2: sigma_of_people}
    sd = tuple(0.5 + 0.01 * i for i in range(p.grid.horizon))
    perturbations = tuple(
        dataclasses.replace(q, sigma=sigmas[j], grid=2.0**-20, stderr_on_selection=sd)
        if j in sigmas
        else q
        for j, q in enumerate(p.perturbations)
    )
    return dataclasses.replace(p, perturbations=perturbations)


def run_release(
    contributions: pa.Table,
    ticks: Sequence[Tick],
    p: ReleaseParameters,
    noise_key: bytes,
    buckets: int = 1,
    starts: Sequence[int] = (0,),
) -> list[pa.Table]:
    """Released rows of each micro-batch; micro-batch i holds the arrival batches from starts[i] up to starts[i + 1] - 1."""
    states: list[ReleaseState | None] = [None] * buckets
    out: list[pa.Table] = []
    bucket = [k % buckets for k in contributions.column("key").to_pylist()]
    batch = contributions.column("batch").to_pylist()
    for low, high in zip(starts, [*starts[1:], 1 << 30], strict=True):
        part = []
        for b in range(buckets):
            mine = pa.array(
                [c == b and low <= n < high for c, n in zip(bucket, batch, strict=True)], pa.bool_()
            )
            step = release(
                states[b],
                contributions.filter(mine),
                [t for t in ticks if low <= t.batch < high],
                p.for_bucket(b, buckets),
                noise_key,
            )
            states[b] = step.state
            part.append(step.rows)
        out.append(
            pa.concat_tables(part).sort_by(
                [("window", "ascending"), ("trigger", "ascending"), ("key_bytes", "ascending")]
            )
        )
    return out


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    order = [("window", "ascending"), ("trigger", "ascending"), ("key_bytes", "ascending")]
    return pa.concat_tables(tables).sort_by(order).combine_chunks()


def bits(rows: pa.Table) -> dict[str, object]:
    """Released rows so that == means the same bits (NaN is not equal to itself)."""
    return {
        n: rows.column(n).to_pylist() if n == "key_bytes" else rows.column(n).to_numpy().tobytes()
        for n in rows.column_names
    }
