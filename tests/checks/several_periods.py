"""The worst unit of n contribution periods, searched for on the real contribution bounding, and held against what is stated. Many streams
of one unit are admitted at once, each as a unit of its own with keys of its own: once with all records, once without those of n consecutive
periods. Periods before and after may stay: what they add can change when their neighbour is gone. The difference goes through the dense
matrix of the counter. Nothing here knows a sensitivity, a rank or an overlap rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.parsed_query import ContributionPeriod
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.stage import Clock
from tests.checks.test_sensitivity import strategy

KEYS = 64
"""Key numbers that one stream may use."""


@dataclass(frozen=True)
class Streams:
    """Records of many units, one value per record: whose, in which period (0: before those left out), when, key, value, micro-batch."""

    stream: np.ndarray
    period: np.ndarray
    ts: np.ndarray
    key: np.ndarray
    value: np.ndarray
    batch: np.ndarray
    closed: tuple[int, ...]
    """Closed time per micro-batch."""

    def without(self, n: int, everything: bool) -> Streams:
        """World 0: the records of periods 1..n are gone, or all of them."""
        kept = (
            np.zeros(len(self.period), bool)
            if everything
            else (self.period < 1) | (self.period > n)
        )
        columns = (self.stream, self.period, self.ts, self.key, self.value, self.batch)
        return Streams(*(column[kept] for column in columns), self.closed)


@dataclass(frozen=True)
class Found:
    """The largest over all streams: squared shift of all noise together, probability that a group only this unit has is selected."""

    mu2: float
    failure: float


def search(plan: PrivacyPlan, n: int, seed: int, streams: int = 90) -> Found:
    pick = np.random.default_rng(seed)
    p = bounding_parameters(plan)
    everything = plan.query.contribution_period is ContributionPeriod.STREAM
    mu2 = failure = 0.0
    for made in candidates(plan, n, pick, streams):
        with_unit = admitted(made, p)
        without = admitted(made.without(n, everything), p)
        shift, fails = shifts(plan, with_unit, without, streams)
        mu2 = max(mu2, float(shift.max()))
        failure = max(failure, float(fails.max()))
    return Found(mu2, failure)


# ---- streams

Edge = Callable[[int], str]


def candidates(
    plan: PrivacyPlan, n: int, pick: np.random.Generator, streams: int
) -> Iterator[Streams]:
    """Streams at the edges of periods, in order and out of it, in time and late, so that copies of neighbours fall into the same triggers."""
    window = plan.query.windows
    step = plan.query.trigger_interval_us
    size = window.size_us
    phases = window.slide_us // math.gcd(window.size_us, window.slide_us)
    for phase in {
        0,
        int(pick.integers(phases)),
    }:  # where slides do not divide the size, windows lie otherwise in each period
        yield from _in_phase(plan, n, pick, streams, window.offset_us + phase * size, size, step)


def _in_phase(
    plan: PrivacyPlan,
    n: int,
    pick: np.random.Generator,
    streams: int,
    offset: int,
    size: int,
    step: int,
) -> Iterator[Streams]:
    columns = [[*one_stream(plan, n, pick, number, offset)] for number in range(streams)]
    flat = np.array(
        [(number, *record) for number, records in enumerate(columns) for record in records], float
    )
    stream, period, key = (flat[:, i].astype(np.int64) for i in (0, 1, 3))
    ts = flat[:, 2].astype(np.int64) + offset
    value = flat[:, 4]

    def cut(batch_of_period: Sequence[int], closed: Sequence[int]) -> Streams:
        return Streams(
            stream, period, ts, key, value, np.array(batch_of_period)[period], tuple(closed)
        )

    periods = n + 2
    edge = [offset + (p + 1) * size for p in range(periods)]  # where period p ends
    yield cut([0] * periods, [NO_CLOCK])
    yield cut(range(periods - 1, -1, -1), [NO_CLOCK] * periods)  # later periods first
    for late in (0, step * int(pick.integers(1, plan.horizon + 1))):
        # Pairs (1, 2), (3, 4), ... each in a micro-batch of its own when the period between them is over: both get the same triggers.
        pairs = [max(p - 1, 0) // 2 for p in range(periods)]
        yield cut(pairs, [edge[1 + 2 * j] + late for j in range(pairs[-1] + 1)])
    yield cut(
        [min(p, n) for p in range(periods)],
        [edge[0] - size, *[edge[p - 1] for p in range(1, n + 1)]],
    )
    for late in (NO_CLOCK, edge[0] + step * int(pick.integers(1, plan.horizon))):
        yield cut(
            [1, *[0] * n, 1], [NO_CLOCK, late]
        )  # what stays comes after what is left out, and perhaps late
    # The last period first, then the others, some of which are late.
    yield cut(
        [1] * (periods - 1) + [0], [NO_CLOCK, edge[n] - size + step * int(pick.integers(0, 3))]
    )


def one_stream(
    plan: PrivacyPlan, n: int, pick: np.random.Generator, number: int, offset: int
) -> Iterator[tuple[int, int, int, float]]:
    """(period, time since period 0 began, key, value): a plain pattern for small numbers, else anything."""
    q = plan.query
    size = q.windows.size_us
    slide = q.windows.slide_us
    step = q.trigger_interval_us
    patterns: tuple[Edge, ...] = (
        lambda p: "end" if p % 2 else "start",  # (1, 2), (3, 4), ... meet
        lambda p: "start" if p % 2 else "end",  # (0, 1), (2, 3), ... meet
        lambda p: "start",
        lambda p: "end",
        lambda p: "both",
        lambda p: "window",
        lambda p: {0: "end", 1: "first", n: "last", n + 1: "start"}.get(
            p, "window"
        ),  # what is left out meets what stays
        lambda p: str(pick.choice(["start", "end", "both", "window", "trigger"])),
    )
    pattern = patterns[number % len(patterns)]
    packed, turned, before, after = (
        (bool(number // len(patterns) >> bit & 1) for bit in range(4))
        if number < 16 * len(patterns) // 2
        else pick.random(4) < 0.5
    )
    here = range(0 if before else 1, n + 2 if after else n + 1)
    rows = int(
        min(q.asked.max_rows_contributed, 3 * q.asked.max_groups_contributed)
    )  # where they are not counted, more than fill a room
    per_group = int(min(q.asked.max_rows_per_group, rows))
    extreme = max((b for a in q.aggregates if a.bounds for b in a.bounds), key=abs, default=0.0)
    for period in here:
        where = pattern(period)
        keys = _keys(rows, per_group if packed else 1, q.asked.max_groups_contributed)
        if turned and period % 2:
            keys = keys[::-1]
        for i, key in enumerate(keys):
            edge = ("start" if i % 2 else "end") if where == "both" else where
            place = {"start": i, "end": size - len(keys) + i}.get(edge)
            if place is None:  # where a window begins, or a trigger
                grid = step if edge == "trigger" else slide
                numbers = {"first": 0, "last": size // grid - 1}
                place = (
                    (q.windows.offset_us - offset - period * size) % grid
                    + numbers.get(edge, int(pick.integers(0, size // grid))) * grid
                ) % size + i
            yield (
                period,
                period * size + place,
                key,
                extreme * (1, int(pick.choice([1, -1])), (-1) ** i)[number % 3],
            )


def _keys(rows: int, per_group: int, groups: int) -> list[int]:
    """Keys of `rows` records, `per_group` of one key after the other, and again from the first when all keys have been."""
    return [i // per_group % groups for i in range(rows)]


# ---- what they add


def admitted(streams: Streams, p: BoundingParameters) -> pa.Table:
    """Contributions of all streams, with the number of the stream and of its key."""
    user = _spread(streams.stream)
    key = _spread((1 << 40) + streams.stream * KEYS + streams.key)
    state = None
    sums = None
    parts = []
    for batch, closed in enumerate(streams.closed):
        now = np.flatnonzero(streams.batch == batch)
        rows = {
            "drop": np.zeros(len(now), np.int8),
            "user": user[now],
            "ts": streams.ts[now],
            "key": key[now],
        }
        rows |= {"key_bytes": pa.array([b""] * len(now), pa.binary()), "a0": streams.value[now]}
        step = admit(state, pa.table(rows), Clock(closed), p, sums)
        state = step.state
        sums = step.sums
        parts.append(step.contributions)
    table = pa.concat_tables(parts)
    known = np.argsort(key)
    at = (
        known[np.searchsorted(key[known], table.column("key").to_numpy())]
        if len(key)
        else np.zeros(0, np.int64)
    )
    return table.append_column("stream", pa.array(streams.stream[at])).append_column(
        "name", pa.array(streams.key[at])
    )


def shifts(
    plan: PrivacyPlan, more: pa.Table, less: pa.Table, streams: int
) -> tuple[np.ndarray, np.ndarray]:
    """Per stream: sum over all mechanisms of |C d|^2 / sigma^2, and of its failures."""
    matrix = {
        name: strategy(name, plan.horizon) for name in {part.counter for part in plan.perturbations}
    }
    squared = np.zeros(streams)
    for j, part in enumerate(plan.perturbations):
        group, d = _difference(more, less, f"v{j}", plan.horizon)
        if isinstance(part, PerturbationPlan) and part.on_selection:
            d = d - _difference(more, less, "weight", plan.horizon)[1] / 2**20
            if not part.sigma:
                assert not d.any()
                continue
        squared += (
            np.bincount(
                group, np.sum((d * part.grid @ matrix[part.counter].T) ** 2, axis=1), streams
            )
            / part.sigma**2
        )
    failure = np.zeros(streams)
    if plan.selection is not None:
        c = strategy(plan.selection.counter, plan.horizon)
        sigma = plan.selection.sigma
        if "user" in more.column_names:
            squared += in_rounds(more, less, c, streams) / sigma**2
        else:
            group, d = _difference(more, less, "weight", plan.horizon)
            squared += (
                np.bincount(group, np.sum((d / 2**20 @ c.T) ** 2, axis=1), streams) / sigma**2
            )
        failure = failures(plan, more, less, streams)
    return squared, failure


def _groups(*tables: pa.Table) -> tuple[np.ndarray, list[np.ndarray]]:
    """(stream of every group, the group of every row of each table)."""
    rows = [
        np.stack([t.column(n).to_numpy() for n in ("stream", "window", "name")], axis=1)
        for t in tables
    ]
    groups, inverse = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    return groups[:, 0], np.split(inverse.reshape(-1), np.cumsum([len(r) for r in rows])[:-1])


def _dense(table: pa.Table, of: np.ndarray, groups: int, column: str, horizon: int) -> np.ndarray:
    out = np.zeros((groups, horizon))
    np.add.at(
        out,
        (of, table.column("trigger").to_numpy() - 1),
        table.column(column).to_numpy().astype(float),
    )
    return out


def _difference(
    more: pa.Table, less: pa.Table, column: str, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    stream, (one, other) = _groups(more, less)
    return stream, _dense(more, one, len(stream), column, horizon) - _dense(
        less, other, len(stream), column, horizon
    )


def failures(plan: PrivacyPlan, more: pa.Table, less: pa.Table, streams: int) -> np.ndarray:
    """Sum over the tests that are made only if the unit is there, with as many others, of the largest weight, as do not make them alone."""
    s = plan.selection
    assert s is not None
    least = release_parameters(plan).selection.min_users
    rounds = "user" in more.column_names
    if rounds:
        more = _once(more)
        less = _once(less)
    stream, (one, other) = _groups(more, less)
    counted, before = (
        np.cumsum(_dense(t, g, len(stream), "users", plan.horizon), axis=1)
        for t, g in ((more, one), (less, other))
    )
    weight = np.cumsum(_dense(more, one, len(stream), "weight", plan.horizon), axis=1)
    # As many others at every trigger as leave the group untested without the unit.
    others = np.maximum(least - 1 - before[:, -1:], 0)
    only = (counted + others >= least) & (before + others < least)
    reach = ndtr(
        ((weight + others * s.weights[0]) - np.array(s.thresholds)) / 2**20 / np.array(s.sd)
    )
    return np.bincount(stream, np.sum(np.where(only, reach, 0.0), axis=1), streams)


def _once(table: pa.Table) -> pa.Table:
    """Rounds that never end: who counts does so at the first trigger, once."""
    names = ["stream", "window", "name", "user", "trigger"]
    table = table.sort_by([(name, "ascending") for name in names])
    if not table.num_rows:
        return table
    who = np.stack([table.column(name).to_numpy() for name in names[:4]], axis=1)
    first = np.concatenate([[True], (who[1:] != who[:-1]).any(axis=1)])
    return (
        table.filter(pa.array(first))
        .drop_columns(["users"])
        .append_column("users", pa.array(np.ones(int(first.sum()), np.int64)))
    )


def in_rounds(more: pa.Table, less: pa.Table, c: np.ndarray, streams: int) -> np.ndarray:
    """Per stream, the squared shift of selection under the worst choice of when every group's rounds end."""
    out = np.zeros(streams)
    entries: dict[tuple[int, ...], tuple[dict, dict]] = {}
    for world, table in enumerate((more, less)):
        for row in table.select(
            ["stream", "window", "name", "trigger", "user", "weight"]
        ).to_pylist():
            mine = entries.setdefault((row["stream"], row["window"], row["name"]), ({}, {}))[world]
            at = row["trigger"], row["user"]
            mine[at] = max(mine.get(at, 0.0), row["weight"] / 2**20)
    for (stream, *_), (one, other) in entries.items():
        if one != other:
            out[stream] += _worst_rounds(one, other, c)
    return out


def _worst_rounds(one: dict, other: dict, c: np.ndarray) -> float:
    """By dynamic programming over the trigger at which the last round ended; a round that ends is seen up to its end."""
    horizon = c.shape[1]
    ends = sorted({t for t, _ in (*one, *other)} | {horizon})
    best = {0: 0.0}
    for end in ends:
        rows = c if end == horizon else _seen(c, end)
        for start in [e for e in best if e < end]:
            d = np.zeros(horizon)
            for world, sign in ((one, 1.0), (other, -1.0)):
                counted = set()
                for (trigger, who), weight in sorted(world.items()):
                    if start < trigger <= end and who not in counted:
                        counted.add(who)
                        d[trigger - 1] += sign * weight
            best[end] = max(best.get(end, 0.0), best[start] + float(np.sum((rows @ d) ** 2)))
    return best[horizon]


def _seen(c: np.ndarray, end: int) -> np.ndarray:
    """Rows of C that are out by a trigger: those that read none later."""
    return c[~(c[:, end:] != 0).any(axis=1)]


def _spread(names: np.ndarray) -> np.ndarray:
    """Ids with different upper halves."""
    return (names.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
