"""Explain a plan of sliding windows: from the plan alone, no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dpsql.allowance import Limits
from dpsql.description import MEASURED, SMOOTHED, STDERR
from dpsql.explanation import BudgetShares, ErrorBar, ExplainedColumn, Explanation, Notes
from dpsql.mechanisms.explanations import (
    column,
    compare_notes,
    divisor,
    listed_keys,
    main,
    protects,
    statistics_of,
    times,
)
from dpsql.mechanisms.other_ways import Ways
from dpsql.mechanisms.protocol import bounds_told
from dpsql.mechanisms.sliding import stages
from dpsql.mechanisms.sliding.accounting import account
from dpsql.mechanisms.sliding.plan import MeasurementPlan, PaneGrouping, SlidingPlan
from dpsql.parsed_query import Aggregate, CounterName
from dpsql.parts.left_out import OF_ONE_ROW
from dpsql.sources.config import Source
from dpsql.times import duration


def explanation(plan: SlidingPlan, source: Source) -> Explanation:
    """Return all that is said of a plan."""
    query = plan.query
    cost = account(plan, source)
    columns = zip(query.aggregates, stages.parts(plan), strict=True)
    no_figures = "windows are made of panes" if query.privacy_unit else OF_ONE_ROW
    return Explanation(
        protects=protects(plan, cost, plan.panes > 1),
        when=replace(
            times(query, stages.schedule(plan), 1, plan.panes), lateness_us=plan.lateness_us
        ),
        limits=Limits(*bounds_told(query), max_users=source.max_users, no_figures=no_figures),
        keys=listed_keys(query),
        columns=tuple(_column(plan, aggregate, parts) for aggregate, parts in columns),
        budget=BudgetShares(
            mu=plan.mu,
            noisy_numbers=len(plan.measurements),
            delta_noise=plan.delta - plan.failure,
            delta_hash=plan.failure,
        ),
        identity=plan.identity,
        notes=Notes(columns=(*compare_notes(query), *_notes(plan))),
    )


def _column(
    plan: SlidingPlan, aggregate: Aggregate, parts: tuple[MeasurementPlan, ...]
) -> ExplainedColumn:
    noisy = main(parts)
    several = len(parts) > 1
    names = statistics_of(aggregate, parts)
    error = _error(noisy, names[parts.index(noisy)], divisor(aggregate))
    return column(
        aggregate,
        [error],
        [_error(part, name) for part, name in zip(parts, names, strict=True)] if several else (),
        [] if several else [*_value_notes(plan, aggregate.alias, noisy)],
    )


def _error(noisy: MeasurementPlan, statistic: str, divisor: str = "") -> ErrorBar:
    """Return the error of a window; none where panes are predicted."""
    stderr = None if noisy.monitor else noisy.stderr
    return ErrorBar(1, statistic, stderr, noisy.half_width, divisor)


def _value_notes(plan: SlidingPlan, alias: str, noisy: MeasurementPlan) -> Iterator[str]:
    if noisy.half_width is None:
        yield (
            f"{alias}: panes that have not been measured are predicted, and no error bar covers that without an assumption. "
            f"{alias}_{STDERR} is NULL then; {alias}_{MEASURED} says how many of the {plan.panes} panes were measured."
        )
    elif noisy.rule == "sum":
        yield (
            f"{alias}: standard error {noisy.stderr:.4g}. It is at most {noisy.grid:.4g} further off for each row, as values are "
            "rounded to multiples of that."
        )
    else:
        yield f"{alias}: unbiased, standard error {noisy.stderr:.4g}, whatever the stream."
    if plan.smooths:
        yield f"{alias}_{SMOOTHED}: a better guess, made of released values at no cost; its interval is that of {alias}."


def _notes(plan: SlidingPlan) -> tuple[str, ...]:
    if plan.query.asked.grouping is PaneGrouping.RETROACTIVE:
        return (
            "mechanism = PAPER is worse than the query without it, which measures every pane, on every stream that was tried.",
        )
    first = "The first windows have less noise than later ones; their standard errors say so."
    return (*((first,) if plan.counter is CounterName.WINDOW_SQRT else ()), *_ways(plan).describe())


def _ways(plan: SlidingPlan) -> Ways:
    choices = plan.query.asked
    return Ways(
        query=plan.query,
        rows=choices.rows,
        per_key=choices.max_rows_per_group or 1,
        query_way=plan.counter,
    )


def missing(plan: SlidingPlan) -> tuple[str, dict[str, Any]]:
    """Return why a key may be missing."""
    listed = (
        "A key that the list does not have is never shown."
        if plan.query.keys
        else "There is no key: every window has one row."
    )
    lines = [
        "Why is my key missing?",
        f"  {listed} Every listed key has a row in every window, records or not,",
        f"  from the first whole window after the start of the stream on, once its last {duration(plan.query.windows.slide_us)} has closed.",
    ]
    return "\n".join(lines) + "\n", {"listed": bool(plan.query.keys)}
