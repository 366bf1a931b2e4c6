"""The options of a query of sketches, how they are read, and what it may not say."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.sketch.plan import (
    DEPTH,
    SketchChoices,
    SketchKind,
    SketchLimits,
    Wanted,
    WantedPerGroup,
)
from dpsql.mechanisms.sketch.planner import APART, MOST_DRAWS, collisions
from dpsql.parsed_query import AggregateFunction
from dpsql.sql import clause_rules, options, time_rules
from dpsql.sql.aggregates import BOUNDS, PER_GROUP, Call, argument_name, read_bounds
from dpsql.sql.allowed import READING
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.event_rules import cap_of_level, event, rows_of_events, units_of_events
from dpsql.sql.options import HORIZON_LIMIT, whole_option
from dpsql.sql.relations import write
from dpsql.sql.select_rules import type_problems
from dpsql.sql.text import problem
from dpsql.sql.values import NUMBER

# The options that a query of sketches may write.

MOST_LISTED = 10_000
WIDEST = 1 << 20
MOST_BYTES = 100_000_000
"""Limit on the cells of a trigger: the file is written in one piece."""

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
    """Tell whether any sketch has a list."""
    return any(call.function is not AggregateFunction.COUNT_SKETCH for call in draft.sketches)


def number_of(call: Call) -> int | None:
    """Return the length of a call's list; 0 without one, None where it is no whole number from 1."""
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


def read_choices(draft: Draft) -> SketchChoices:
    """Return what an accepted query asks, every default filled in."""
    return SketchChoices(
        level=draft.value("privacy_level"),
        value=", ".join(write(part) for part in draft.sketches[0].canonical_values),
        wanted=tuple(map(_read_sketch, draft.sketches)),
        width=draft.value("sketch_width"),
        kind=SketchKind.COUNT_MIN if draft.paper else SketchKind.COUNT_SKETCH,
        bounds=None if event(draft) else _bounds(draft),
    )


def _bounds(draft: Draft) -> SketchLimits:
    rows = draft.value("max_rows_contributed")
    # Values are no keys of GROUP BY, of which there is none: as many as there are rows, unless it is written.
    groups = (
        rows
        if draft.entry("max_rows_contributed") and not draft.entry("max_groups_contributed")
        else draft.value("max_groups_contributed")
    )
    return SketchLimits(rows, draft.value("max_rows_per_group"), groups)


def _read_sketch(call: Call) -> Wanted:
    weight = None if call.weight is None else write(call.canonical_arguments[call.weight])
    bounds = read_bounds(call.bounds_arguments[0]) if call.bounds_arguments else None
    return (WantedPerGroup if call.per_group else Wanted)(
        call.item.name or "", number_of(call) or 0, weight, bounds
    )


# What a query of sketches may not say, besides what no query may.

EXAMPLES = {
    AggregateFunction.APPROX_TOP_COUNT: "APPROX_TOP_COUNT(page, 50)",
    AggregateFunction.APPROX_TOP_SUM: f"APPROX_TOP_SUM(page, seconds, 50, {BOUNDS} => (LOW, HIGH))",
    AggregateFunction.COUNT_SKETCH: "COUNT_SKETCH(page)",
}
NUMBERS = {
    AggregateFunction.APPROX_TOP_COUNT: 2,
    AggregateFunction.APPROX_TOP_SUM: 3,
    AggregateFunction.COUNT_SKETCH: 1,
}
"""Positional arguments of each."""


def keys_beside(draft: Draft) -> Iterator[Problem]:
    """Reject a sketch per key of GROUP BY."""
    for item in draft.keys if draft.sketches else ():
        parts_text = ", ".join(
            [item.sql, *(write(part) for part in draft.sketches[0].canonical_values)]
        )
        message = "One sketch per key needs state without bound"
        yield problem(
            item.span,
            message,
            f"count both: APPROX_TOP_COUNT(STRUCT({parts_text}), 50), and leave the key out of GROUP BY",
        )


def shown_as_listed(draft: Draft) -> Iterator[Problem]:
    """Reject HAVING, ORDER BY and LIMIT: a list is in order and has a length."""
    for name in sorted(READING):
        if draft.sketches and draft.select.args.get(name):
            message = "HAVING, ORDER BY and LIMIT are not supported with a sketch: a list has the largest values first"
            yield problem(
                draft.sketches[0].item.span,
                message,
                "write how many are listed: APPROX_TOP_COUNT(x, 10)",
            )
            return


def others_beside(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates that are no sketch."""
    for call in draft.calls:
        if call.function and not call.of_values:
            yield problem(
                call.item.span,
                f"{call.name.upper()} is not supported with a sketch",
                "write a query of its own for it",
            )


def arguments(draft: Draft) -> Iterator[Problem]:
    """Reject arguments of a wrong number or kind."""
    for call in draft.sketches:
        function = call.function
        assert function is not None
        example = f"write {EXAMPLES[function]}"
        if call.distinct or len(call.positional) != NUMBERS[function]:
            expected = {
                1: "one expression",
                2: "an expression and a number",
                3: "an expression, a weight and a number",
            }[NUMBERS[function]]
            yield problem(call.item.span, f"{function} takes {expected}", example)
        elif write(call.canonical_arguments[0]) == "*":
            yield problem(
                call.item.span,
                f"{function}(*) has no meaning: it counts the values of an expression",
                example,
            )
        elif number_of(call) is None:
            yield problem(
                draft.span(call.positional[-1]),
                f"The length of the list must be a whole number from 1 to {MOST_LISTED:,}",
                example,
            )
        for argument in call.named_arguments:
            if argument_name(argument) not in (BOUNDS, PER_GROUP):
                hint = f"the named arguments are {BOUNDS} and {PER_GROUP}"
                yield problem(
                    draft.span(argument), f"Unknown argument {argument_name(argument)}", hint
                )
            elif function is not AggregateFunction.APPROX_TOP_SUM:
                hint = (
                    "leave the argument out, or write max_rows_per_group"
                    if call.per_group
                    else "leave the argument out"
                )
                yield problem(
                    draft.span(argument), f"{function} has no bounds: every record counts one", hint
                )
        for argument in call.bounds_arguments[1:]:
            yield problem(draft.span(argument), "The bounds are written twice", "keep one of them")


def bounds_of_sums(draft: Draft) -> Iterator[Problem]:
    """Reject APPROX_TOP_SUM without bounds: two finite number literals in order."""
    for call in draft.sketches:
        if call.function is not AggregateFunction.APPROX_TOP_SUM:
            continue
        if not call.bounds_arguments:
            yield problem(
                call.item.span,
                "APPROX_TOP_SUM needs clamping bounds",
                f"add {BOUNDS} => (LOW, HIGH)",
            )
            continue
        argument = call.bounds_arguments[0]
        bounds = read_bounds(call.bounds_arguments[0])
        if bounds is None:
            yield problem(
                draft.span(argument),
                "The bounds must be two number literals",
                f"write {BOUNDS} => (LOW, HIGH)",
            )
        elif bounds[0] >= bounds[1]:
            yield problem(
                draft.span(argument),
                "The lower bound must be below the upper bound",
                f"write {BOUNDS} => (LOW, HIGH) with LOW < HIGH",
            )
        elif bounds[0] < 0 and draft.paper:
            message = (
                "The paper takes the smallest cell, which says nothing where values are negative"
            )
            yield problem(
                draft.span(argument), message, "leave mechanism out, or write a lower bound of 0"
            )


def one_expression(draft: Draft) -> Iterator[Problem]:
    """Reject sketches of different expressions in one query."""
    first = [write(part) for call in draft.sketches[:1] for part in call.canonical_values]
    for call in draft.sketches[1:]:
        if call.counted_values and [write(part) for part in call.canonical_values] != first:
            message = "All sketches of a query count the values of one expression"
            yield problem(
                call.item.span, message, f"write {', '.join(first)} here too, or a query of its own"
            )


def types(draft: Draft) -> Iterator[Problem]:
    """Reject values that do not have a key's type."""
    for part in (part for call in draft.sketches[:1] for part in call.counted_values):
        yield from type_problems(
            draft, "The values of a sketch", part, draft.span(part), write(part)
        )


def lists_only(draft: Draft) -> Iterator[Problem]:
    """Reject listed groups, or a word for their selection, where no sketch lists anything."""
    for entry in map(draft.entry, ("group_selection_strategy", "public_groups")):
        if entry and not lists(draft):
            message = f"{entry.name} is of lists, and COUNT_SKETCH has none"
            yield problem(
                entry.name_span, message, "leave it out, or write APPROX_TOP_COUNT(page, 50)"
            )


def unknown_values(draft: Draft) -> Iterator[Problem]:
    """Reject what the floor test cannot take: it needs signs, and hash keys that are secret until
    their window closes."""
    if not lists(draft) or draft.listed:
        return
    if draft.window_times and draft.window_times[1] < draft.window_times[0]:
        message = (
            "The hash key of a window must stay secret until it closes, and these windows overlap"
        )
        hint = "leave the slide out, or add public_groups = (SELECT page FROM pages)"
        yield problem(draft.span(draft.window_calls[0].expressions[2]), message, hint)
    entry = draft.entry("mechanism")
    if entry and draft.paper:
        message = "The paper's cells have no signs, so a value that no record has cannot be told from others"
        yield problem(
            entry.name_span,
            message,
            "leave mechanism out, or add public_groups = (SELECT page FROM pages)",
        )


def sizes(draft: Draft) -> Iterator[Problem]:
    """Reject cells and triggers that do not fit each other."""
    width = draft.value("sketch_width")
    triggers = draft.horizon
    if triggers is None or not width:
        return
    place = (
        draft.entry("trigger_interval")
        or draft.entry("sketch_width")
        or draft.entry("allowed_lateness")
    )
    span = place.value_span if place else draft.clause_span
    if triggers > HORIZON_LIMIT:
        message = (
            f"A window would have {triggers:,} triggers; at most {HORIZON_LIMIT:,} are accepted"
        )
        yield problem(
            span, message, "write a longer trigger_interval, or a shorter allowed_lateness"
        )
    elif DEPTH * width * triggers * len(draft.sketches) > MOST_DRAWS:
        message = f"{DEPTH} x {width} cells at {triggers:,} triggers are more than 2^36 draws of noise per window"
        yield problem(span, message, "write a longer trigger_interval, or a smaller sketch_width")
    elif (size := 8 * DEPTH * width * len(draft.sketches)) > MOST_BYTES:
        wide = draft.entry("sketch_width")
        message = f"{len(draft.sketches)} x {DEPTH} x {width:,} cells are {size / 1e6:.0f} MB at each trigger; at most {MOST_BYTES / 1e6:.0f} MB are accepted"
        yield problem(
            wide.value_span if wide else span,
            message,
            "write a smaller sketch_width, or one query for each sketch",
        )


def own_values_apart(draft: Draft) -> Iterator[Problem]:
    """Reject too few columns for the values of one unit."""
    rows = draft.value("max_rows_contributed")
    width = draft.value("sketch_width")
    if event(draft) or not draft.sketches or not rows or not width:
        return
    groups = draft.entry("max_groups_contributed")
    keys = min(rows, draft.value("max_groups_contributed") or rows) if groups else rows
    if width >= APART * keys:
        return
    place = draft.entry("sketch_width") or groups or draft.entry("max_rows_contributed")
    width_needed = 1 << (APART * keys - 1).bit_length()
    message = f"A user's own values would collide: each row would miss up to {collisions(keys, width):.1%} of the counts"
    hint = (
        f"write sketch_width = {width_needed}"
        if width_needed <= WIDEST
        else "write a smaller max_groups_contributed"
    )
    yield problem(place.value_span if place else draft.clause_span, message, hint)


RULES = (
    time_rules.window_missing,
    clause_rules.required_options,
    units_of_events,
    rows_of_events,
    clause_rules.delta_above_zero,
    keys_beside,
    shown_as_listed,
    others_beside,
    arguments,
    bounds_of_sums,
    one_expression,
    types,
    lists_only,
    unknown_values,
    sizes,
    own_values_apart,
    cap_of_level,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
)

__all__ = ["RULES"]
