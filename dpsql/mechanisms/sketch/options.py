"""The options that a query of sketches may write."""

from __future__ import annotations

from dpsql.mechanisms.sketch.asked import Asked, Bounds, SketchKind, Wanted, WantedPerGroup
from dpsql.parsed_query import AggregateFunction
from dpsql.sql import options
from dpsql.sql.aggregates import Call, read_bounds
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.event_rules import event
from dpsql.sql.options import whole_option
from dpsql.sql.relations import write
from dpsql.sql.values import NUMBER

MOST_LISTED = 10_000
WIDEST = 1 << 20
MOST_BYTES = 100_000_000
"""Of cells at a trigger: the file is written in one piece."""

_POWER = Check(
    "power of two",
    lambda w: w >= 64 and w & (w - 1) == 0,
    "sketch_width must be a power of two, 64 to 2^20",
    "write sketch_width = 8192, or leave it out",
)


WIDTH = whole_option(
    "sketch_width = 8192",
    "columns of a sketch, which has 9 rows of cells",
    "8192",
    WIDEST,
    lambda draft: 8192,
    _POWER,
)
OPTIONS: tuple[Option, ...] = (*options.USUAL, WIDTH)


def lists(draft: Draft) -> bool:
    """Whether any sketch has a list."""
    return any(call.function is not AggregateFunction.COUNT_SKETCH for call in draft.sketches)


def number_of(call: Call) -> int | None:
    """The length of a call's list; 0 without one, None where it is no whole number from 1."""
    if call.function is AggregateFunction.COUNT_SKETCH:
        return 0
    place = 2 if call.function is AggregateFunction.APPROX_TOP_SUM else 1
    if len(call.positional) != place + 1:
        return None
    text = (
        call.positional[place].name
        if call.positional[place].is_int and NUMBER.fullmatch(call.positional[place].name)
        else ""
    )
    return int(text) if text.isdigit() and 1 <= int(text) <= MOST_LISTED else None


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    return Asked(
        level=draft.value("privacy_level"),
        value=", ".join(write(part) for part in draft.sketches[0].counted_plain),
        wanted=tuple(map(_wanted, draft.sketches)),
        width=draft.value("sketch_width"),
        kind=SketchKind.COUNT_MIN if draft.paper else SketchKind.COUNT_SKETCH,
        bounds=None if event(draft) else _bounds(draft),
    )


def _bounds(draft: Draft) -> Bounds:
    rows = draft.value("max_rows_contributed")
    # Values are no keys of GROUP BY, of which there is none: as many as there are rows, unless it is written.
    groups = (
        draft.value("max_groups_contributed") if draft.given("max_groups_contributed") else rows
    )
    return Bounds(rows, draft.value("max_rows_per_group"), groups)


def _wanted(call: Call) -> Wanted:
    weight = None if call.weight is None else write(call.plain[call.weight])
    bounds = read_bounds(call.bounds_arguments[0]) if call.bounds_arguments else None
    return (WantedPerGroup if call.per_group else Wanted)(
        call.item.name or "", number_of(call) or 0, weight, bounds
    )
