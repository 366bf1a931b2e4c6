"""Explain a plan of sliding windows to somebody who knows no differential privacy; public numbers alone, no data."""

from __future__ import annotations

from typing import Any

from dpsql.description import MEASURED, SMOOTHED, STDERR
from dpsql.mechanisms.other_ways import Ways
from dpsql.mechanisms.sliding import stages
from dpsql.mechanisms.sliding.accounting import account
from dpsql.mechanisms.sliding.plan import MeasurementPlan, PaneGrouping, SlidingPlan
from dpsql.parsed_query import Aggregate, ContributionPeriod, CounterName, PrivacyLevel
from dpsql.parts.words import (
    EVENTS,
    clamp,
    clamps,
    epsilon_of_several,
    in_days,
    live_runs,
    main,
    middle,
    of_days,
    of_periods,
    of_rows,
    page,
    too_much,
    without_infinity,
    wrapped,
)
from dpsql.privacy.cost import Cost
from dpsql.sources.config import Source
from dpsql.times import duration

PERIODS = (7, 30, 365)


def explain(plan: SlidingPlan, source: Source) -> str:
    """Return the whole explanation as plain text."""
    about = (
        _promise(plan, source),
        live_runs(stages.schedule(plan)),
        _time(plan),
        _bounds(plan, source),
        _keys(plan),
    )
    ways = _ways(plan).describe() if plan.query.asked.grouping is PaneGrouping.NONE else ""
    return wrapped(page(plan, *about, _columns(plan), ways))


def facts(plan: SlidingPlan, source: Source) -> dict[str, Any]:
    """Return the plan's public numbers under stable names.

    `cost` is what one event, or one unit in one contribution period, pays. `events` and `periods` are epsilon for several, at delta. `stderr` is
    of a late window's value; of an average (`stderr_of` is `sum`) that of the sum it divides. `half_width` is that of the exact 95% interval,
    but for the rounding of values.
    """
    choices = plan.query.asked
    cost = account(plan, source)
    event = choices.privacy_level is PrivacyLevel.EVENT
    ways = _ways(plan)
    return {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "protects": str(choices.privacy_level),
        "mu": plan.mu,
        "cost": cost.document(),
        "events": [
            {"events": n, "epsilon": epsilon_of_several(cost, n, plan.delta)}
            for n in (1, 2, *EVENTS)
        ]
        if event
        else [],
        "periods": []
        if event or not _renews(plan)
        else [of_periods(cost, plan.delta - cost.failure, n) for n in (1, 2, *PERIODS)],
        "days": [without_infinity(day) for day in _days(plan, cost)],
        "panes": plan.panes,
        "counter": str(plan.counter),
        "grouping": str(choices.grouping),
        "smooths": plan.smooths,
        "max_rows_contributed": choices.max_rows_contributed,
        "max_rows_per_group": choices.max_rows_per_group,
        "max_groups_contributed": choices.max_groups_contributed,
        "query_identity": plan.identity,
        "columns": [_column_facts(aggregate, parts) for aggregate, parts in _parts(plan)],
        "stderr_of_count": {"delta": ways.delta, **ways.errors} if ways.exist else None,
    }


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


def _column_facts(aggregate: Aggregate, parts: tuple[MeasurementPlan, ...]) -> dict[str, Any]:
    several = len(parts) > 1
    noisy = main(parts)
    return {
        "alias": aggregate.alias,
        "aggregate": str(aggregate.function),
        "stderr": noisy.stderr,
        "stderr_of": noisy.rule if several else "value",
        "half_width": None if several else noisy.half_width,
        **clamp(aggregate),
        "parts": [
            {"of": "count" if m.rule == "valid" else m.rule, "stderr": m.stderr} for m in parts
        ]
        if several
        else None,
    }


def _parts(plan: SlidingPlan) -> list[tuple[Aggregate, tuple[MeasurementPlan, ...]]]:
    return list(zip(plan.query.aggregates, stages.parts(plan), strict=True))


def _renews(plan: SlidingPlan) -> bool:
    return plan.query.contribution_period is ContributionPeriod.WINDOW


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _days(plan: SlidingPlan, cost: Cost) -> list[dict[str, Any]]:
    """Return what one unit pays in the periods that some days touch; nothing where they are one, or rows are protected."""
    if plan.query.asked.privacy_level is PrivacyLevel.EVENT or not _renews(plan):
        return []
    return of_days(cost, plan.delta - cost.failure, plan.query.windows)


def _promise(plan: SlidingPlan, source: Source) -> str:
    cost = account(plan, source)
    promise = f"epsilon {plan.epsilon:g}, delta {plan.delta:g}"
    lines = ["What is promised"]
    if plan.query.asked.privacy_level is PrivacyLevel.EVENT:
        lines += of_rows(plan.query, cost)
    else:
        unit = ", ".join(plan.query.privacy_unit)
        period = duration(plan.query.windows.size_us)
        span = f"in one period of {period}" if _renews(plan) else "in the whole stream, for ever"
        lines.append(
            f"  protects everything one privacy unit ({unit}) does {span}: {promise}, for the whole infinite output."
        )
        if _renews(plan):
            days = _days(plan, cost)
            two = of_periods(cost, plan.delta - cost.failure, 2)
            lines += [
                f"  Any stretch of {period} touches two periods: epsilon {_figure(two['epsilon'])}, delta {two['delta']:.2g}.",
                *in_days(days, f"periods of {period}"),
                *([f" {too_much(days)}"] if too_much(days) else []),
            ]
    if not plan.delta:
        lines.append(
            "  delta is 0 for ideal random words; they come from a pseudo-random function (AES), as all noise does."
        )
    lines += [
        "  On this run alone: what all runs cost together, dpsql budget says.",
        "  Not hidden: when windows end, and the operator's own metrics (exact totals per micro-batch of what WHERE leaves).",
    ]
    return "\n".join(lines)


def _time(plan: SlidingPlan) -> str:
    query = plan.query
    window = plan.query.windows
    size = duration(window.size_us)
    slide = duration(window.slide_us)
    late = f" and {duration(plan.lateness_us)} for late records" if plan.lateness_us else ""
    return "\n".join(
        [
            "When",
            f"  Windows of {size}, one every {slide}, by {query.event_time} (UTC). Each is released once: at its end{late}.",
            f"  It is made of {plan.panes} panes of {slide}. A record counts in its own pane, as long as that is open, and in no other.",
            f"  Dropped: records of a closed pane, and records more than {duration(query.max_ahead_us)} ahead of the clock.",
            "  The first window begins at the declared start of the stream; there is no last one, and nothing grows with time.",
        ]
    )


def _bounds(plan: SlidingPlan, source: Source) -> str:
    choices = plan.query.asked
    lines = list[str]()
    if choices.privacy_level is PrivacyLevel.USER:
        period = (
            f"per period of {duration(plan.query.windows.size_us)}" if _renews(plan) else "for ever"
        )
        lines += [
            f"  C = {choices.max_rows_contributed} records {period}, c = {choices.max_rows_per_group} of them with one key, "
            f"G = {choices.max_groups_contributed} keys;",
            "  the earliest count, the rest are dropped (and counted for the operator). No record is copied into several windows.",
        ]
    lines += clamps(plan.query.aggregates)
    if choices.privacy_level is PrivacyLevel.USER:
        lines.append(f"  Declared for {source.name}: at most {source.max_users:,} units.")
        return "\n".join(["What each unit may contribute", *lines])
    return "\n".join(
        ["What each event may contribute", "  One row, to one pane of one key.", *lines]
    )


def _keys(plan: SlidingPlan) -> str:
    what = (
        "Those that public_groups lists when the run first starts, each one"
        if plan.query.keys
        else "There is no key: one row per window,"
    )
    return f"Which keys appear\n  {what} in every window, with or without records."


def _columns(plan: SlidingPlan) -> str:
    choices = plan.query.asked
    lines = ["How exact the numbers are"]
    for aggregate, parts in _parts(plan):
        alias = aggregate.alias
        m = parts[0]
        if len(parts) > 1:
            *sums, counts = (_figure(part.stderr) for part in parts)
            sums_text, error = (
                ("noisy sums of values and of squares", "errors")
                if len(sums) > 1
                else ("a noisy sum", "error")
            )
            lines += [
                f"  {alias}: {sums_text} (standard {error} {' and '.join(sums)}) over a noisy count n (standard error {counts});",
                f"  {middle(alias)}",
            ]
        elif m.half_width is not None and m.rule == "sum":
            lines.append(
                f"  {alias}: standard error {_figure(m.stderr)}; within {_figure(m.half_width)} of the truth with probability 0.95, and at most "
                f"{_figure(m.grid)} further off for each row, as values are rounded to multiples of that."
            )
        elif m.half_width is not None:
            lines.append(
                f"  {alias}: unbiased, standard error {_figure(m.stderr)}; within {_figure(m.half_width)} of the truth with probability 0.95, whatever "
                "the stream."
            )
        else:
            lines += [
                f"  {alias}: panes that have not been measured are predicted, and no error bar covers that without an assumption;",
                f"  {alias}_{STDERR} is NULL then; {alias}_{MEASURED} says how many of the {plan.panes} panes were measured.",
            ]
        if plan.smooths and len(parts) == 1:
            lines.append(
                f"  {alias}_{SMOOTHED}: the better guess, made of released values, so it costs no budget; the interval is that of {alias}."
            )
    if plan.counter is CounterName.WINDOW_SQRT:
        lines.append(
            "  The first windows have less noise than later ones; their standard errors say so."
        )
    if choices.grouping is PaneGrouping.RETROACTIVE:
        lines.append(
            "  mechanism = PAPER is worse than the query without it, which measures every pane, on every stream that was tried."
        )
    return "\n".join(lines)


def _ways(plan: SlidingPlan) -> Ways:
    choices = plan.query.asked
    event = choices.privacy_level is PrivacyLevel.EVENT
    return Ways(
        query=plan.query,
        rows=choices.rows,
        per_key=choices.max_rows_per_group or 1,
        query_way=plan.counter,
        event=event,
    )
