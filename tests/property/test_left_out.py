"""What the limits leave out is counted for any stream, cut, number of buckets and clock, and no unit adds more than its bounds."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

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
from tests.reference import Bounder, Record

LIMITS = st.builds(FigureLimits, st.integers(0, 4), st.integers(0, 5))
Figures = dict[tuple[int, str], int]


def tumbling() -> st.SearchStrategy[BoundingParameters]:
    return bounding(sliding=False) | bounding(sliding=False, rooms=True)


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
    return {
        "units": 1,
        "units_over": 1,
        "pairs": min(p.max_rows, p.max_groups),
        "pairs_left_out": limits.most_pairs,
        "rows": rows,
        "rows_left_out": limits.most_rows,
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


@given(st.lists(records(), max_size=40), tumbling(), LIMITS, st.data())
def test_cuts_do_not_matter(
    stream: list[Record], p: BoundingParameters, limits: FigureLimits, data: st.DataObject
) -> None:
    """Catches: a figure that is counted once per micro-batch, or forgotten between two."""
    p = dataclasses.replace(p, figures=limits)
    whole = figures(replay_stream([stream]), p)
    cuts = data.draw(st.lists(st.integers(-31, 31), max_size=6))
    batches = [data.draw(st.permutations(batch)) for batch in cut_by_time(stream, cuts)]
    assert figures(replay_stream(batches), p, data.draw(st.integers(1, 5))) == whole


@given(st.lists(records(), max_size=40), bounding(renews=True, sliding=False), LIMITS)
def test_figures_are_those_of_a_plain_loop(
    stream: list[Record], p: BoundingParameters, limits: FigureLimits
) -> None:
    p = dataclasses.replace(p, figures=limits)
    assert figures(replay_stream([stream]), p) == plain(stream, p, limits)


def plain(stream: Iterable[Record], p: BoundingParameters, limits: FigureLimits) -> Figures:
    """Count by the reference's admissions, one unit and period after the other."""
    timely = [r for r in stream if r.drop == 0 and r.ts <= 1 << 62]
    counted = [each.record for each in Bounder(p).admit(timely, -(1 << 62), 1 << 62)]
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
    return {cell: amount for cell, amount in totals.items() if amount}
