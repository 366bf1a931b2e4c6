"""Rules on the aggregates of the select list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.parsed_query import BOUNDED, AggregateFunction
from dpsql.sql import allowed
from dpsql.sql.aggregates import (
    BOUNDS,
    FOREIGN_AGGREGATES,
    MOST_PARTS,
    NEEDLESS_ARGUMENTS,
    PAIR_OF_BOUNDS,
    PER_GROUP,
    PERCENTILE,
    WAYS_OUT,
    Bounds,
    Call,
    argument_name,
    bounds_of_values,
    read_bounds,
    read_parts,
    read_share,
)
from dpsql.sql.draft import Draft
from dpsql.sql.edits import known_word, removal, removal_problem, replacement, replacement_problem
from dpsql.sql.event_rules import event
from dpsql.sql.googlesql import (
    aggregates_alone,
    bounds_per_row,
    hint_of_element,
    other_aggregate,
    unwrapped,
)
from dpsql.sql.items import OUR_AGGREGATES, Kind
from dpsql.sql.relations import value_type
from dpsql.sql.select_rules import WHOLE_TYPES
from dpsql.sql.text import problem
from dpsql.sql.values import bare, suggest

_NUMBERS = frozenset({*WHOLE_TYPES, exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL})

COUNTS = (AggregateFunction.COUNT_ROWS, AggregateFunction.COUNT)
MOST_COUNTED = 10**9
"""Limit on one user's records in a group."""


def aggregates_missing(draft: Draft) -> Iterator[Problem]:
    """Reject a select list without an aggregate."""
    if not any(item.kind in (Kind.AGGREGATE, Kind.COMPUTED, Kind.STAR) for item in draft.items):
        span = (
            (draft.items[0].span[0], draft.items[-1].span[1]) if draft.items else draft.clause_span
        )
        yield problem(
            span, "The select list has no aggregate", "add one, for example COUNT(*) AS records"
        )


def computed_aggregates(draft: Draft) -> Iterator[Problem]:
    """Reject arithmetic on aggregates."""
    for item in draft.items:
        if item.kind is Kind.COMPUTED:
            yield problem(
                item.span,
                "An aggregate must stand alone in the select list",
                hint_of_element(item)
                or "select the aggregates and compute with them when reading the histogram",
                *aggregates_alone(draft, item),
            )


def aggregate_wrappers(draft: Draft) -> Iterator[Problem]:
    """Reject OVER, FILTER and IGNORE NULLS around an aggregate."""
    for item in draft.items:
        refusal = allowed.REFUSED_NODES.get(type(item.root))
        if item.kind is Kind.AGGREGATE and refusal:
            yield problem(item.span, refusal.message, refusal.hint, *unwrapped(draft, item))


def aggregate_fields(draft: Draft) -> Iterator[Problem]:
    """Reject fields of an aggregate, as in SUM(x).value."""
    for item in draft.items:
        if item.kind is Kind.AGGREGATE and isinstance(item.root, exp.Dot):
            yield problem(
                item.span,
                "An aggregate has no fields",
                "write the aggregate alone, without the field",
                *aggregates_alone(draft, item),
            )


def known_aggregates(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates that are not ours."""
    for call in draft.calls:
        if call.name.upper() not in OUR_AGGREGATES and not call.of_values:
            default_hint = (
                "the aggregates are COUNT(*), COUNT(x), COUNT(DISTINCT privacy unit), SUM, AVG, STDDEV, VARIANCE, APPROX_QUANTILES, "
                "CORR, COVAR_POP, REGR_SLOPE and REGR_INTERCEPT"
            )
            replacement = FOREIGN_AGGREGATES.get(call.name)
            hint = f"write {replacement}" if replacement else WAYS_OUT.get(call.name, default_hint)
            edits = other_aggregate(draft, call)
            yield problem(
                call.item.span, f"The aggregate {call.name.upper()} is not available", hint, *edits
            )


def _known_calls(draft: Draft) -> list[Call]:
    return [call for call in draft.calls if call.name.upper() in OUR_AGGREGATES]


def _example(call: Call, argument: str | None = None) -> str:
    """Return the call as it may be written; of `argument`, or of any."""
    if call.of_pairs:
        return f"{call.name.upper()}({argument or 'y, x'}, {BOUNDS} => {PAIR_OF_BOUNDS})"
    argument = argument or "x"
    number = {PERCENTILE: "0.5, ", "approx_quantiles": "4, "}.get(call.name, "")
    return f"{call.name.upper()}({argument}, {number}{BOUNDS} => (LOW, HIGH))"


def quantiles_elsewhere(draft: Draft) -> Iterator[Problem]:
    """Reject APPROX_QUANTILES over several sets of keys, in panes and in rounds."""
    for call in draft.calls:
        if not call.of_quantiles:
            continue
        if draft.sketches:
            continue  # a mechanism's own
        if draft.grouping_sets is not None:
            hint = f"use {' '.join(f'GROUP BY {item.name}' for item in draft.keys[:1]) or 'one GROUP BY'} in a query of its own"
            yield problem(
                call.item.span,
                "Quantiles are not linear, so CUBE, ROLLUP and GROUPING SETS cannot have them",
                hint,
            )
        elif draft.paper and not draft.windowless:
            yield problem(call.item.span, "The paper has no quantiles", "leave mechanism out")
        elif not draft.windowless and draft.value("delta") == 0:
            yield problem(
                call.item.span,
                "Quantiles have Gaussian noise",
                "write a delta above 0, for example delta = 1e-9",
            )


def bounds_per_group_elsewhere(draft: Draft) -> Iterator[Problem]:
    """Reject bounds per group unless units are protected, rows stay, and a group is one window and
    key. Zero has to lie within."""
    rows_end = draft.windowless and draft.stream is not None and draft.stream.change_feed
    refused = {
        "What a deleted row takes back would depend on what was cut when it came": rows_end,
        "Bounds per group are not in CUBE, ROLLUP and GROUPING SETS yet": draft.grouping_sets
        is not None,
        "Bounds per group are not there for unknown values of a sketch yet": draft.sketches
        and not draft.listed,
        "privacy_level EVENT protects one row, which is all that is bounded": event(draft),
        "Bounds per group have Gaussian noise": draft.value("delta") == 0,
        "The paper bounds rows": draft.paper,
    }
    for call in draft.calls:
        if not call.per_group or call.function not in (
            *COUNTS,
            AggregateFunction.SUM,
            AggregateFunction.APPROX_TOP_SUM,
        ):
            continue
        span = draft.span(call.bounds_arguments[0])
        bounds = read_bounds(call.bounds_arguments[0])
        for message in [message for message, applies in refused.items() if applies][:1]:
            yield problem(span, message, f"write {BOUNDS} => (LOW, HIGH), with max_rows_per_group")
        if bounds and not bounds[0] <= 0 <= bounds[1] and call.name != "count":
            message = "Zero must lie within bounds per group: who has no row there adds nothing"
            text = f"{PER_GROUP} => ({min(bounds[0], 0):g}, {max(bounds[1], 0):g})"
            yield replacement_problem(
                span, message, text, "who adds less is not lifted to the lower bound"
            )


def rows_beside_bounds_per_group(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates of rows beside those with bounds per group, where the query does not say how many rows count: a default would cut
    what the bounds promise to hold."""
    of_rows = [call for call in draft.calls if not call.per_group and not call.distinct]
    is_written = draft.entry("max_rows_contributed") or draft.entry("max_rows_per_group")
    for call in draft.calls if of_rows and not is_written else ():
        if call.per_group:
            name = of_rows[0].name.upper()
            message = f"{call.name.upper()} counts all rows of a unit in a group, and {name} next to it needs a number of them"
            hint = f"add max_rows_per_group = N, or write COUNT(*, {PER_GROUP} => (0, N))"
            yield problem(call.item.span, message, hint)


def quantile_parts(draft: Draft) -> Iterator[Problem]:
    """Reject APPROX_QUANTILES without one expression and a whole number of parts."""
    for call in draft.calls:
        if not call.of_quantiles or call.distinct:
            continue
        is_pair = len(call.positional) == 2 and not isinstance(call.positional[0], exp.Star)
        if call.name == PERCENTILE:
            if not is_pair or read_share(call) is None:
                message = "PERCENTILE_CONT takes an expression and a share of at most two decimals"
                yield problem(call.item.span, message, f"write {_example(call)} for the median")
        elif not is_pair:
            yield problem(
                call.item.span,
                "APPROX_QUANTILES takes one expression and a number of parts",
                f"write {_example(call)} for quartiles",
            )
        elif not 2 <= (read_parts(call) or 0) <= MOST_PARTS:
            hint = f"write {_example(call)} for quartiles, 10 for deciles, 100 for percentiles"
            yield problem(
                draft.span(call.positional[1]),
                f"The number of parts must be a whole number from 2 to {MOST_PARTS}",
                hint,
            )


def aggregate_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates without exactly one argument; quantiles have a rule of their own."""
    for call in _known_calls(draft):
        name = call.name.upper()
        if call.of_quantiles:
            continue
        if call.of_pairs:
            yield from _pair_arguments(draft, call)
        elif len(call.positional) != (0 if call.distinct else 1):
            example = (
                "COUNT(*) or COUNT(x)" if name == "COUNT" else f"{name}(x, {BOUNDS} => (LOW, HIGH))"
            )
            yield problem(call.item.span, f"{name} takes one expression", f"write {example}")
        elif name != "COUNT" and call.positional and isinstance(call.positional[0], exp.Star):
            yield problem(
                call.item.span,
                f"{name}(*) has no meaning",
                f"write {name}(x, {BOUNDS} => (LOW, HIGH))",
            )


def _pair_arguments(draft: Draft, call: Call) -> Iterator[Problem]:
    name = call.name.upper()
    hint = f"write {_example(call)}"
    if call.distinct:
        return  # its own rule says so
    if len(call.positional) != 2:
        yield problem(call.item.span, f"{name} takes two expressions, y and x", hint)
    for value in call.positional if len(call.positional) == 2 else ():
        if isinstance(value, exp.Star):
            yield problem(draft.span(value), f"{name} has no meaning for *", hint)
        elif isinstance(value, (exp.Literal, exp.Null)):
            message = f"{name} is of values that vary, and this is one value"
            yield problem(draft.span(value), message, f"{hint}, with a column for each")


def distinct_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject DISTINCT except in COUNT(DISTINCT privacy unit)."""
    unit = sorted(draft.stream.privacy_unit) if draft.stream and draft.stream.privacy_unit else None
    for call in _known_calls(draft):
        if call.distinct is None:
            continue
        if call.name != "count":
            yield problem(
                call.item.span,
                f"{call.name.upper()}(DISTINCT ...) is not available",
                f"write {_example(call)}",
            )
            continue
        columns = [
            bare(part)
            for node in call.distinct.expressions
            for part in (node.expressions if isinstance(node, exp.Tuple) else [node])
        ]
        names = sorted(column.name.lower() for column in columns if isinstance(column, exp.Column))
        if unit is not None and (names != unit or len(names) < len(columns)):
            yield problem(
                call.item.span,
                "Only the privacy unit can be counted distinctly"
                + (
                    ": where rows end, the error of any other such count has no bound"
                    if draft.stream and draft.stream.change_feed
                    else ""
                ),
                f"write COUNT(DISTINCT {', '.join(draft.stream.privacy_unit if draft.stream else ())})",
            )


def named_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject named arguments other than bounds per row or per group, written once, where values are
    added."""
    for call in _known_calls(draft):
        for argument in call.named_arguments:
            name = argument_name(argument)
            span = draft.span(argument)
            if reason := NEEDLESS_ARGUMENTS.get(name):
                message = f"The argument {name} is not part of this dialect"
                yield removal_problem(span, message, reason, removal(span, draft.tokens, reason))
            elif name not in (BOUNDS, PER_GROUP):
                names = (BOUNDS, PER_GROUP)
                hint = suggest(name, names, f"the named arguments are {BOUNDS} and {PER_GROUP}")
                edits = known_word((span[0], span[0] + len(name)), name, names)
                yield problem(span, f"Unknown argument {name}", hint, *edits)
            elif name == PER_GROUP and call.function not in (*COUNTS, AggregateFunction.SUM):
                yield problem(
                    span,
                    f"{call.name.upper()} has no bounds per group",
                    f"write {BOUNDS} => {_places(call)}, with max_rows_per_group",
                    *bounds_per_row(draft, call, argument),
                )
            elif call.name == "count" and name == BOUNDS:
                hint = f"leave the argument out, or bound what one user adds to a key and window: {PER_GROUP} => (0, N)"
                edit = removal(span, draft.tokens, "each record counts one")
                message = "COUNT has no bounds per row: every record counts one"
                yield problem(span, message, hint, edit)
        for argument in call.bounds_arguments[1:]:
            yield problem(draft.span(argument), "The bounds are written twice", "keep one of them")


def bounds_given(draft: Draft) -> Iterator[Problem]:
    """Reject values without bounds: two finite number literals in order."""
    for call in _known_calls(draft):
        if not (call.function in BOUNDED or call.of_quantiles or call.per_group) or call.distinct:
            continue
        bounds_arguments = call.bounds_arguments
        if not bounds_arguments and call.named_arguments:
            continue  # a named argument with another name: its own rule says so
        known_bounds = bounds_of_values(call, draft.stream)
        if not bounds_arguments and all(known_bounds):
            continue
        if not bounds_arguments and call.of_pairs:
            yield from _pair_bounds_missing(call, known_bounds)
            continue
        if not bounds_arguments:
            argument_sql = (
                call.item.root.expressions[0].sql(dialect="spark") if call.positional else "x"
            )
            yield problem(
                call.item.span,
                f"{call.name.upper()} needs clamping bounds",
                f"write {_example(call, argument_sql)} with two numbers; values outside are clamped",
            )
            continue
        bounds = known_bounds[0]
        if None in known_bounds:
            literals = "two pairs of number literals" if call.of_pairs else "two number literals"
            yield problem(
                draft.span(bounds_arguments[0]),
                f"The bounds must be {literals}",
                f"write {argument_name(bounds_arguments[0])} => {_places(call)}",
            )
        elif (
            bounds
            and call.per_group
            and call.name == "count"
            and not (bounds[0] == 0 and bounds[1].is_integer() and bounds[1] <= MOST_COUNTED)
        ):
            message = f"The bounds of a COUNT per group are 0 and a whole number of at most {MOST_COUNTED:,}"
            yield problem(draft.span(bounds_arguments[0]), message, f"write {PER_GROUP} => (0, N)")


def _places(call: Call) -> str:
    return PAIR_OF_BOUNDS if call.of_pairs else "(LOW, HIGH)"


def _pair_bounds_missing(call: Call, bounds: Sequence[Bounds | None]) -> Iterator[Problem]:
    """Say of which of two values nobody has written the bounds."""
    if len(call.positional) != 2 or call.distinct:
        return
    texts = [value.sql(dialect="spark") for value in call.positional]
    missing = [text for text, pair in zip(texts, bounds, strict=True) if pair is None]
    pairs = ["({:g}, {:g})".format(*pair) if pair else "(LOW, HIGH)" for pair in bounds]
    yield problem(
        call.item.span,
        f"{call.name.upper()} needs clamping bounds for {' and '.join(missing)}",
        f"write {call.name.upper()}({', '.join(texts)}, {BOUNDS} => ({', '.join(pairs)})) with numbers; values outside are clamped",
    )


def bounds_ordered(draft: Draft) -> Iterator[Problem]:
    """Reject bounds whose lower end is not below the upper one."""
    for call in _known_calls(draft):
        pairs = bounds_of_values(call, None) if call.bounds_arguments else ()
        if any(pair and pair[0] >= pair[1] for pair in pairs):
            yield problem(
                draft.span(call.bounds_arguments[0]),
                "The lower bound must be below the upper bound",
                f"write {argument_name(call.bounds_arguments[0])} => {_places(call)} with LOW < HIGH",
            )


def numeric_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates over values that are not numbers."""
    for call in _known_calls(draft):
        has_two = call.of_quantiles or call.of_pairs
        if call.name == "count" or len(call.positional) != (2 if has_two else 1):
            continue
        for value in call.positional[: 2 if call.of_pairs else 1]:
            kind = value_type(draft.scope, value)
            if kind is None or kind.this in _NUMBERS:
                continue
            sql = value.sql(dialect="spark")
            span = draft.span(value)
            yield problem(
                span,
                f"{call.name.upper()} needs a number, and this is {kind.sql(dialect='spark')}",
                f"cast it: CAST({sql} AS DOUBLE)",
                replacement(span, f"CAST({draft.text[slice(*span)]} AS DOUBLE)"),
            )
