"""The parts of an explanation that several mechanisms fill alike, and words of their reasons for
missing keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from dpsql.description import RANK_STDERR
from dpsql.errors import InputError
from dpsql.explained_times import When
from dpsql.explanation import (
    WEEK,
    BudgetShares,
    ErrorBar,
    ExplainedColumn,
    Guarantee,
    JointCost,
    Keys,
    gaussian,
)
from dpsql.parsed_query import (
    DEVIATIONS,
    REGRESSIONS,
    Aggregate,
    AggregateFunction,
    Paired,
    ParsedQuery,
    Percentile,
    PerGroup,
    Quantiles,
)
from dpsql.parts.increments import MOMENTS, sums_of
from dpsql.parts.sums import Summed
from dpsql.privacy.cost import Cost, Overlap, touched_in_days
from dpsql.privacy.curve import epsilon_of
from dpsql.schedule import Schedule, polling_interval
from dpsql.text import percent
from dpsql.times import duration, timestamp
from dpsql.udfs.table.leaves import QuantileTree

Sum = TypeVar("Sum", bound=Summed)

DAYS = {1: "a day (UTC)", 7: WEEK, 30: "any 30 days in a row"}
"""Spans of days whose cost for one unit is told, for the most periods that such a span can touch."""
EVENTS = (2, 10, 100)
"""Numbers of events of one person whose cost is told."""
AT_ZERO = "{}: its error is that of AVG(y), and that of the slope times AVG(x)."
RANKS = 4
"""Number of a unit's keys whose weight is told."""


def protects(plan: Any, cost: Cost, windows_meet: bool = False) -> Guarantee:
    """Return the guarantee of a plan; `windows_meet`: windows overlap."""
    query = plan.query
    period = plan.period if query.privacy_unit else None
    meet = windows_meet and period is not None
    return Guarantee(
        unit=query.privacy_unit,
        stream=query.stream,
        period_us=period[0] if period else None,
        meet=meet,
        epsilon=plan.epsilon,
        delta=plan.delta,
        cost=asdict(cost),
        totals=tuple(_totals(plan, cost, meet)),
        rows_end=getattr(plan, "changes", None) is not None,
    )


def _totals(plan: Any, cost: Cost, meet: bool) -> Iterator[JointCost]:
    query = plan.query
    delta_noise = plan.delta - cost.failure
    if query.privacy_unit and plan.period:
        year = {365: "any 365 days in a row"} if cost.overlap is Overlap.TOGETHER else {}
        spans = DAYS | year
        counts = {span: touched_in_days(days, *plan.period) for days, span in spans.items()}
        for span, count in (({"one window": 2} if meet else {}) | counts).items():
            yield total(span, count, cost, count * delta_noise)
    elif not query.privacy_unit:
        for count in EVENTS:
            yield total(f"{count} events", count, cost, delta_noise)


def total(span: str, count: int, cost: Cost, delta_noise: float) -> JointCost:
    """Return the joint cost of several events, or periods of one unit.

    Args:
        span: what they are called.
        count: how many.
        cost: of one.
        delta_noise: the part of delta that is left to the noise of all.
    """
    joint = cost.periods(count)
    delta = delta_noise + joint.failure
    if delta >= 1:
        return JointCost(span, count, None, 1.0)
    epsilon = epsilon_of(joint.mu, delta_noise) if joint.mu else 0.0
    return JointCost(span, count, joint.epsilon + epsilon, delta)


def times(
    query: ParsedQuery[Any], schedule: Schedule, releases: int | None, panes: int | None = None
) -> When:
    """Return the times of a query.

    Args:
        query: what is asked.
        schedule: of its plan.
        releases: triggers of a window, or of a table.
        panes: slides of a window that is added up from panes.
    """
    window = query.window
    has_start = window is None and not query.once
    start_us = schedule.offset_us
    interval_us = query.trigger_interval_us
    end_us = start_us + (releases or 0) * interval_us
    try:
        poll_us = polling_interval(schedule)
    except InputError:
        poll_us = None
    return When(
        event_time=None if query.once else query.event_time,
        window_us=window.size_us if window else None,
        slide_us=window.slide_us if window else None,
        trigger_us=interval_us,
        releases=releases,
        start=timestamp(start_us) if has_start else None,
        end=timestamp(end_us) if releases and has_start else None,
        lateness_us=query.allowed_lateness_us,
        ahead_us=query.max_ahead_us,
        panes=panes,
        poll_us=None if query.once else poll_us,
    )


def listed_keys(query: ParsedQuery[Any]) -> Keys:
    """Return the keys of a query that selects none."""
    names = tuple(key.name for key in query.keys)
    return Keys(how="public" if names else "none", names=names)


def growing(query: ParsedQuery[Any], has_closing_cells: bool = False) -> tuple[str, ...]:
    """Say what counts in a table that only grows; nothing of a one-time release, where all does."""
    if query.once:
        return ()
    end = "" if query.asked.max_triggers is None else ", and all after the last trigger"
    times = (
        f"A record counts from the first trigger after its event time ({query.event_time}, UTC); one from before the start from trigger 1.",
        "Nothing is late: a record that comes after its trigger counts from the next one. Nothing is ever taken out again.",
    )
    if has_closing_cells:
        times = (
            f"A record counts from the first trigger after its event time ({query.event_time}, UTC).",
            "What comes after that trigger is dropped, and what is from before the start: its cells have closed. Nothing is ever taken out again.",
        )
    return (
        *times,
        f"Dropped: records more than {duration(query.max_ahead_us)} ahead of the clock{end}.",
    )


HANDED_ON = (
    "A row that passes to another unit is that unit's from then on; this promise does not hide it."
)


def changing(query: ParsedQuery[Any]) -> tuple[str, ...]:
    """Say what counts in a table whose rows end."""
    end = "" if query.asked.max_triggers is None else ", and after the last trigger"
    return (
        f"A change counts from the first trigger after its commit ({query.event_time}, UTC), an old one from trigger 1.",
        "Nothing is late: a change that comes after its trigger counts from the next one.",
        f"Dropped: beginnings of rows more than {duration(query.max_ahead_us)} ahead of the clock{end}. Ends never are.",
    )


def versions(query: ParsedQuery[Any], spells: int | None = None) -> Iterator[str]:
    """Say what counts as a record of a change feed, and how rows are told apart; `spells`: S, where units are counted."""
    feed = query.asked.feed
    columns = (*query.privacy_unit, *feed.primary_key)
    rows = "rows of one unit by what the query reads of them; equal ones are copies."
    if feed.primary_key:
        kept_time = duration(feed.ended_rows_kept_us)
        rows = f"a row is ({', '.join(columns)}); messages that come again are ignored until {kept_time} after its end."
    yield (
        "A record is a row version: an insert begins one, a delete ends one, an update does both; an update of columns that the query "
        "does not read does neither. max_rows_per_group limits versions with one key at the same time."
    )
    yield "A row counts from its begin, if its key had remaining capacity then, until its end."
    yield _after_the_last(query)
    if spells:
        yield f"S = {spells} times a unit is counted as present in a key: until all its rows there have ended. Later its rows count, it does not."
    yield f"Told apart: {rows}"


def _after_the_last(query: ParsedQuery[Any]) -> str:
    """Say what becomes of a unit that has used up its allowance."""
    if query.asked.period_us is None:
        rows = query.asked.max_rows_contributed
        return f"After {rows:,} versions of a unit none counts any more, whatever has ended; contribution_period = '30 days' renews C."
    return f"The limits renew every {duration(query.asked.period_us)}, for rows that begin or change from then on."


def budget(plan: Any, noisy_numbers: int | None) -> BudgetShares:
    """Return what the budget of a plan with Gaussian noise is spent on."""
    selection = getattr(plan, "selection", None)
    left_out = getattr(plan, "left_out", None)
    figures_share = left_out.share if left_out else 0.0
    return BudgetShares(
        mu=plan.mu,
        figures_share=figures_share,
        selection_share=selection.share * (1 - figures_share) if selection else 0.0,
        noisy_numbers=noisy_numbers,
        delta_noise=plan.delta_noise,
        delta_threshold=plan.delta_threshold if selection else 0.0,
        delta_hash=plan.delta_hash,
    )


def falling(weights: Sequence[int], first: str) -> Iterator[str]:
    """Say that later keys of a unit count less, if they do; `first`: what counts in full."""
    if weights[-1] < weights[0]:
        share = percent(weights[-1] / weights[0])
        yield f"For key selection a unit's {first} counts in full, later ones less; number {len(weights)} counts {share}."


def column(
    aggregate: Aggregate,
    errors: Sequence[ErrorBar],
    parts: Sequence[ErrorBar] = (),
    notes: Sequence[str] = (),
) -> ExplainedColumn:
    """Return a released column with its errors, and those of its parts."""
    function = str(aggregate.function)
    if isinstance(aggregate, Percentile):
        function = f"PERCENTILE_CONT(x, {share_of(aggregate):g})"
    bounds_of = "group" if isinstance(aggregate, PerGroup) else "row"
    values = "x"
    if isinstance(aggregate, Paired):
        bounds_of = "pair"
        values = "y, x"
    if aggregate.function is AggregateFunction.REGR_INTERCEPT:
        notes = (*notes, AT_ZERO.format(aggregate.alias))
    return ExplainedColumn(
        alias=aggregate.alias,
        aggregate=function if function.endswith(")") else f"{function}({values})",
        bounds=aggregate.clamps,
        bounds_of=bounds_of if aggregate.bounds else None,
        errors=tuple(errors),
        parts=tuple(parts),
        notes=tuple(notes),
    )


def noisy_column(
    aggregate: Aggregate,
    sums: Sequence[Sum],
    stderrs: Callable[[Sum], Mapping[int, float]],
    notes: Sequence[str] = (),
) -> ExplainedColumn:
    """Return a column that is made of sums with Gaussian noise; `stderrs`: of one of them, by
    trigger."""
    noisy = main(sums)
    several = len(sums) > 1
    names = statistics_of(aggregate, sums)
    statistic = names[sums.index(noisy)]
    by_name = zip(names, sums, strict=True)
    parts = [each for name, part in by_name for each in _errors(name, stderrs(part))]
    return column(
        aggregate,
        _errors(statistic, stderrs(noisy), divisor(aggregate)),
        parts if several else (),
        notes,
    )


def _errors(statistic: str, stderrs: Mapping[int, float], divisor: str = "") -> list[ErrorBar]:
    return [gaussian(trigger, statistic, stderr, divisor) for trigger, stderr in stderrs.items()]


def main(parts: Sequence[Sum]) -> Sum:
    """Return the noisy sum that makes most of a column's error: of a variance that of the
    squares, of two values that of their products."""
    return next((part for part in parts if part.rule in ("product", "squares")), parts[0])


def statistics_of(aggregate: Aggregate, parts: Sequence[Summed]) -> tuple[str, ...]:
    """Return what each noisy sum is of; what is the value itself is a `value`."""
    if isinstance(aggregate, Paired):
        return MOMENTS[aggregate.function]
    names = {"sum": "sum", "squares": "squares", "leaf": "rank"}
    is_value = len(parts) == 1 and parts[0].rule != "leaf"
    return ("value",) if is_value else tuple(names.get(part.rule, "count") for part in parts)


def divisor(aggregate: Aggregate) -> str:
    """Return what the error of the main noisy sum is divided by."""
    if aggregate.function in DEVIATIONS:
        return "(2 n s)"
    if aggregate.function in REGRESSIONS:
        return "(n s(x)^2)"
    if aggregate.function is AggregateFunction.CORR:
        return "(n s(x) s(y))"
    return "n" if sums_of(aggregate.function) > 1 else ""


def share_of(aggregate: Percentile) -> float:
    """Return the share of a percentile."""
    return aggregate.element / aggregate.parts


def quantile_notes(aggregate: Aggregate, tree: QuantileTree, grid: float) -> tuple[str, ...]:
    """Say what the numbers of quantiles mean."""
    name = aggregate.alias
    values = f"{tree.parts + 1} values from {tree.lower:g} to {tree.upper:g}, on a grid of {grid:.4g}, with equally many rows between them"
    if isinstance(aggregate, Percentile):
        values = f"the value that {share_of(aggregate):.0%} of the rows lie below, on a grid of {grid:.4g}"
    return (
        f"{name}: {values}. Its error is in ranks: this many rows too many or too few can lie below a value, more where many rows have "
        "one value.",
        f"{name}_{RANK_STDERR} is that error as a share of the noisy number of rows; if that number is below 1, {name} is NULL.",
    )


def compare_notes(query: ParsedQuery[Any]) -> tuple[str, ...]:
    """Say how limits are judged, where exact values can be had for comparison."""
    has_quantiles = any(isinstance(each, Quantiles) for each in query.aggregates)
    if query.once or not query.privacy_unit or has_quantiles:
        return ()
    return ("Try `dpsql try --compare` on data you may look at.",)


def not_counted(choices: Any) -> str:
    """Say which records of a unit do not count."""
    keys = f"keys after its first {choices.max_groups_contributed:,} (G)"
    if choices.max_rows_contributed == math.inf:
        return f"A unit's {keys}"
    first = f"records after its first {choices.max_rows_contributed:,} (C), after its first {choices.max_rows_per_group:,} with one key (c)"
    return f"A unit's {first}, and {keys}"
