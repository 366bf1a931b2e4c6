"""What the limits leave out is counted for any stream, cut, number of buckets and clock, and no unit adds more than its bounds."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.intake.left_out import FigureLimits
from tests.property.streams import (
    USERS,
    Stream,
    bounding,
    cells,
    cut_by_time,
    live_streams,
    records,
    replay_stream,
    run_admission,
    table,
)
from tests.reference import Bounder, Record, brings, parts_of, period_of

LIMITS = st.builds(FigureLimits, st.integers(0, 4), st.integers(0, 5), st.booleans())
Figures = dict[tuple[int, str], int]


def tumbling() -> st.SearchStrategy[BoundingParameters]:
    return bounding(sliding=False) | bounding(renews=True, sliding=False, rooms=True)


def streams() -> st.SearchStrategy[list[Record]]:
    return st.lists(records(), max_size=40) | st.lists(records(crowded=True), max_size=40)


def figures(stream: Stream, p: BoundingParameters, buckets: int = 1) -> Figures:
    """The figures by period, over buckets and micro-batches; those that are 0 are left out."""
    states: list[pa.Table | None] = [None] * buckets
    sums = states.copy()
    totals = Counter[tuple[int, str]]()
    for batch, clock in zip(stream.batches, stream.clocks, strict=True):
        for b in range(buckets):
            part = table([r for r in batch if r.user % buckets == b])
            done = admit(states[b], part, clock, p, sums[b])
            states[b], sums[b] = done.state, done.sums
            assert done.left_out is not None
            for row in done.left_out.to_pylist():
                period = row.pop("period")
                totals.update({(period, name): amount for name, amount in row.items()})
    return {cell: amount for cell, amount in totals.items() if amount}


def most(p: BoundingParameters, limits: FigureLimits) -> dict[str, float]:
    """The bounds, as docs/privacy/histogram.md has them."""
    rows = min(p.max_rows, p.max_groups * p.max_rows_per_group)
    keys = min(p.max_rows, p.max_groups)
    clamped = keys if p.per_group else 0
    clamped += rows if any(rule.rule == "sum" for rule in p.increments) else 0
    return {
        "units": 1,
        "units_over": 1,
        "pairs": keys,
        "pairs_left_out": limits.most_pairs,
        "rows": rows,
        "rows_left_out": limits.most_rows,
        "values_clamped": clamped if limits.clamps else 0,
    }


@given(live_streams(), tumbling(), LIMITS)
def test_what_counts_is_unchanged(
    stream: Stream, p: BoundingParameters, limits: FigureLimits
) -> None:
    """Catches: a figure that takes an allowance away, or gives one back."""
    with_figures = run_admission(stream, dataclasses.replace(p, figures=limits))
    without = run_admission(stream, p)
    assert cells(with_figures.contributions) == cells(without.contributions)
    assert with_figures.drops == without.drops


@given(live_streams(), tumbling(), LIMITS, st.integers(1, 4))
def test_units_do_not_touch_each_other_and_have_bounds(
    stream: Stream, p: BoundingParameters, limits: FigureLimits, buckets: int
) -> None:
    """Catches: a unit that adds more than its bound, or another amount beside others."""
    p = dataclasses.replace(p, figures=limits)
    whole = Counter[tuple[int, str]]()
    for user in USERS:
        own = figures(stream.only(user), p)
        assert all(0 <= amount <= most(p, limits)[name] for (_, name), amount in own.items())
        whole.update(own)
    assert figures(stream, p, buckets) == dict(whole)


@given(streams(), tumbling(), LIMITS, st.data())
def test_cuts_do_not_matter(
    stream: list[Record], p: BoundingParameters, limits: FigureLimits, data: st.DataObject
) -> None:
    """Catches: a figure that is counted once per micro-batch, or forgotten between two."""
    p = dataclasses.replace(p, figures=limits)
    whole = figures(replay_stream([stream]), p)
    cuts = data.draw(st.lists(st.integers(-31, 31), max_size=6))
    batches = [data.draw(st.permutations(batch)) for batch in cut_by_time(stream, cuts)]
    assert figures(replay_stream(batches), p, data.draw(st.integers(1, 5))) == whole


@given(
    st.lists(records(crowded=True), max_size=40),
    bounding(renews=True, sliding=False, rooms=True),
    st.data(),
)
def test_a_group_is_cut_once(
    stream: list[Record], p: BoundingParameters, data: st.DataObject
) -> None:
    """Catches: a group that is cut again in each micro-batch, or whose state forgets what it has refused."""
    p = dataclasses.replace(p, figures=FigureLimits(2, 3, clamps=True))
    cuts = data.draw(st.lists(st.integers(0, 25), min_size=2, max_size=6))
    batches = cut_by_time(stream, cuts)
    assert figures(replay_stream(batches), p) == plain(stream, p, p.figures)


@given(
    streams(),
    bounding(renews=True, sliding=False) | bounding(renews=True, sliding=False, rooms=True),
    LIMITS,
)
def test_figures_are_those_of_a_plain_loop(
    stream: list[Record], p: BoundingParameters, limits: FigureLimits
) -> None:
    p = dataclasses.replace(p, figures=limits)
    assert figures(replay_stream([stream]), p) == plain(stream, p, limits)


def plain(stream: Iterable[Record], p: BoundingParameters, limits: FigureLimits) -> Figures:
    """Count by the reference's admissions, one unit and period after the other."""
    timely = [r for r in stream if r.drop == 0 and r.ts <= 1 << 62]
    bounder = Watcher(p)
    counted = [each.record for each in bounder.admit(timely, -(1 << 62), 1 << 62)]
    of_unit = defaultdict[tuple[int, int], tuple[list[Record], list[Record]]](lambda: ([], []))
    for place, chosen in enumerate((timely, counted)):
        for r in chosen:
            of_unit[int(p.grid.period(np.array([r.ts]))[0]), r.user][place].append(r)
    totals = Counter[tuple[int, str]]()
    for (period, _), (own, own_counted) in of_unit.items():
        keys = {r.key for r in own_counted}
        refused = len({r.key for r in own} - keys)
        lost = len(own) - len(own_counted)
        is_over = lost > 0 if limits.most_rows else refused > 0 and limits.most_pairs > 0
        amounts = {"units": bool(own_counted), "units_over": is_over}
        if limits.most_pairs:
            amounts |= {"pairs": len(keys), "pairs_left_out": min(refused, limits.most_pairs)}
        if limits.most_rows:
            amounts |= {"rows": len(own_counted), "rows_left_out": min(lost, limits.most_rows)}
        totals.update({(period, name): int(amount) for name, amount in amounts.items()})
    if limits.clamps:
        of_rows = [rule for rule in p.increments if rule.rule == "sum"]
        clamped = [r for r in counted if any(side_beyond(r, rule) for rule in of_rows)]
        totals.update((period_of(r.ts, p), "values_clamped") for r in clamped)
        totals.update((period, "values_clamped") for period, _, _ in cut_groups(bounder.summed, p))
    return {cell: amount for cell, amount in totals.items() if amount}


@dataclass
class Watcher(Bounder):
    """Bounding that notes which records are of the sum of their group: those that count, and those for which it has no capacity."""

    summed: list[Record] = field(default_factory=list)

    def _within_bounds(self, record: Record, closed_us: int) -> bool:
        refused = self.drops["over_bounds_per_group"]
        key_rows = self.used[record.user, period_of(record.ts, self.p)].keys[record.key]
        is_counted = super()._within_bounds(record, closed_us)
        is_refused = self.drops["over_bounds_per_group"] > refused
        if is_counted or (is_refused and key_rows < self.p.max_rows_per_group):
            self.summed.append(record)
        return is_counted


def side_beyond(record: Record, rule: Increment) -> int:
    """1 above the bounds, -1 below, by half a step or more."""
    value = record.values[rule.argument] if "sum" in rule.rule else math.nan
    if not math.isfinite(value):
        return 0 if math.isnan(value) else (value > 0) - (value < 0)
    steps = round((value - rule.centre) / rule.grid)
    return (steps > rule.upper) - (steps < rule.lower)


def cut_groups(summed: Iterable[Record], p: BoundingParameters) -> set[tuple[int, int, int]]:
    """Periods, units and keys with half a unit more on a side than its bound, of any rule."""
    totals = Counter[tuple[tuple[int, int, int], int, bool]]()
    cut = set()
    for r in summed:
        group = period_of(r.ts, p), r.user, r.key
        for j in p.per_group:
            rule = p.increments[j]
            brought = brings(r.values, rule)
            side = group, j, brought < 0
            totals[side] += abs(brought)
            most = parts_of(rule) * (-rule.lower if brought < 0 else rule.upper)
            if side_beyond(r, rule) or 2 * (totals[side] - most) >= parts_of(rule):
                cut.add(group)
    return cut
