"""Words of several explanations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dpsql.description import RANK_STDERR, STDERR
from dpsql.errors import InputError
from dpsql.parsed_query import (
    DEVIATIONS,
    SPREADS,
    Aggregate,
    AggregateFunction,
    ParsedQuery,
    PerGroup,
    WindowSpec,
)
from dpsql.parts.increments import sums_of
from dpsql.parts.sums import Summed, as_stored
from dpsql.privacy.cost import Cost, touched_in_days
from dpsql.privacy.curve import epsilon_of
from dpsql.schedule import ASSUMPTION, Eras, Schedule, polling_interval
from dpsql.text import number, percent
from dpsql.times import duration, timestamp
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, column_norm
from dpsql.udfs.table.grid import LAST_STEP, TableGrid
from dpsql.udfs.table.leaves import QuantileTree

Sum = TypeVar("Sum", bound=Summed)

NOT_HIDDEN = "  Not hidden: when triggers happen, and the operator's own metrics (exact totals per micro-batch of what WHERE leaves)."
SPANS = {1: "a day (UTC)", 7: "any 7 days in a row", 30: "any 30 days in a row"}
"""Spans whose cost for one unit is told, for the most contribution periods that such a span can touch."""
MUCH = 20.0
"""No single query may ask for more; in a week all its periods together may come to it."""
EVENTS = (10, 100)
"""Events of one person, whose cost is told where one row is protected."""
RANKS = 4
"""Number of a unit's keys whose weight is told."""


def aggregate_text(aggregate: Aggregate) -> str:
    """Return an aggregate as it is called in a table."""
    function = aggregate.function
    return {
        AggregateFunction.COUNT_DISTINCT_UNIT: "COUNT(DISTINCT)",
        AggregateFunction.COUNT_ROWS: "COUNT(*)",
    }.get(function, f"{function}(x)")


def allowance(choices: Any, period: str) -> str:
    """Write `C = 8 records per window, c = 4 of them with one key, G = 2 keys;`, or keys alone
    where records are not counted."""
    keys = f"G = {choices.max_groups_contributed} keys"
    if choices.max_rows_contributed == math.inf:
        return f"{keys} {period}, of each any number of records: what they add up to has bounds;"
    return f"C = {choices.max_rows_contributed} records {period}, c = {choices.max_rows_per_group} of them with one key, {keys};"


def not_counted(choices: Any) -> str:
    """Return which of a unit's records are not."""
    keys = f"keys after its first {choices.max_groups_contributed:,} (G)"
    if choices.max_rows_contributed == math.inf:
        return f"A unit's {keys}"
    first = f"records after its first {choices.max_rows_contributed:,} (C), after its first {choices.max_rows_per_group:,} with one key (c)"
    return f"A unit's {first}, and {keys}"


def clamps(aggregates: Iterable[Aggregate]) -> list[str]:
    """Return what is done to values, a line for each aggregate of values."""
    row = "  {}: each value is clamped to [{:g}, {:g}]; NULL and NaN add nothing."
    group = "  {}: what one unit adds to a group is kept between {:g} and {:g}; what is beyond is cut, and no error bar shows it."
    return [
        (group if isinstance(each, PerGroup) else row).format(each.alias, *each.bounds)
        for each in aggregates
        if each.bounds
    ]


def clamp(aggregate: Aggregate) -> dict[str, Any]:
    """Return its bounds under stable names."""
    of = {"clamp_of": "group"} if isinstance(aggregate, PerGroup) else {}
    return {"clamp": list(aggregate.bounds) if aggregate.bounds else None} | of


def promised(plan: Any, cost: Cost) -> dict[str, Any]:
    """Return promise and cost under stable names."""
    names = ("epsilon", "delta", "delta_noise", "delta_threshold", "delta_hash", "mu")
    return {name: getattr(plan, name) for name in names if hasattr(plan, name)} | {
        "cost": cost.document()
    }


def epsilon_of_several(cost: Cost, n: int, delta: float) -> float:
    """Return what n rows, or n periods of a unit, cost together at a delta."""
    together = cost.periods(n)
    return (
        together.epsilon
        if not together.mu2
        else epsilon_of(math.sqrt(together.mu2), delta - together.failure)
    )


def of_periods(cost: Cost, delta_noise: float, n: int) -> dict[str, Any]:
    """Return what n contribution periods of one unit cost, under stable names.

    Args:
        cost: of one period.
        delta_noise: what delta leaves to the noise in one period; n times that for n.
        n: number of periods.
    """
    joint = cost.periods(n)
    noise = n * delta_noise
    failure = min(joint.failure, 1.0)
    delta = min(noise + failure, 1.0)
    gaussian = epsilon_of(joint.mu, noise) if joint.mu and delta < 1 else 0.0
    epsilon = joint.epsilon + gaussian if delta < 1 else math.inf
    return {"periods": n, "mu": joint.mu, "failure": failure, "epsilon": epsilon, "delta": delta}


def of_days(cost: Cost, delta_noise: float, windows: WindowSpec) -> list[dict[str, Any]]:
    """Return what the periods cost that any 1, 7 and 30 days in a row can touch, under stable names."""
    return [
        {
            "days": days,
            **of_periods(
                cost, delta_noise, touched_in_days(days, windows.size_us, windows.offset_us)
            ),
        }
        for days in SPANS
    ]


def without_infinity(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as JSON has them: null where nothing is promised."""
    return {name: None if value == math.inf else value for name, value in facts.items()}


def adds_up(days: Sequence[dict[str, Any]]) -> str:
    """Say what one unit pays in all periods that some days touch; `days` as of `of_days`, empty where one period has them all."""
    if not days:
        return "that is all this run costs, however long it lasts."
    said = ", ".join(f"{number(each['epsilon'])} in {SPANS[each['days']]}" for each in days)
    return f"epsilon {said}, for someone active all the time.{too_much(days)}"


def too_much(days: Sequence[dict[str, Any]]) -> str:
    """Say what helps where a week costs more than any query may ask for; else nothing."""
    week = next(each["epsilon"] for each in days if each["days"] == 7)
    if week <= MUCH:
        return ""
    return (
        f" CAREFUL: more than {MUCH:g} in 7 days promises little to someone active all the time. Longer windows, a smaller epsilon, or "
        "contribution_period = STREAM make it less; a cap on the source limits it."
    )


def in_days(days: Sequence[dict[str, Any]], period_name: str) -> list[str]:
    """Say the same with the number of periods, which are called `period_name`, and delta."""
    spans = " / ".join(str(day["days"]) for day in days)
    counts = " / ".join(f"{day['periods']:,}" for day in days)
    epsilons = " / ".join(number(day["epsilon"]) for day in days)
    deltas = " / ".join(f"{day['delta']:.2g}" for day in days)
    return [
        f"  One unit's records in any {spans} days (UTC) in a row touch up to {counts} {period_name},",
        f"  and together cost epsilon {epsilons}, delta {deltas}.",
    ]


def bounding(query: ParsedQuery[Any]) -> str:
    """Return the stage of it, in an explanation."""
    return (
        f"contribution bounding, by ({', '.join(query.privacy_unit)})"
        if query.privacy_unit
        else "each row for itself"
    )


def stages(query: ParsedQuery[Any], *steps: str) -> str:
    """Return what a run does, after it has read the source."""
    return "\n".join(
        [
            "Stages",
            f"  1. read {query.stream}: {query.from_sql}",
            *(f"  {n}. {step}" for n, step in enumerate(steps, 2)),
        ]
    )


def page(plan: Any, *sections: str) -> str:
    """Return the whole explanation; empty sections are left out."""
    return "\n\n".join([*filter(None, sections), f"Query identity: {plan.identity}"]) + "\n"


def wrapped(text: str) -> str:
    """Wrap a text in lines of at most 120 characters."""
    return (
        "\n".join(
            part
            for line in text.splitlines()
            for part in textwrap.wrap(line, 120, subsequent_indent="  ") or [""]
        )
        + "\n"
    )


def promise_to_rows(query: ParsedQuery[Any], cost: Cost) -> str:
    """Return what is promised, and what is not."""
    return "\n".join(["What is promised", *of_rows(query, cost), NOT_HIDDEN])


def bounds_of_rows(query: ParsedQuery[Any]) -> str:
    """Return what one row may contribute."""
    return "\n".join(
        ["What each event may contribute", "  One row, to one key.", *clamps(query.aggregates)]
    )


def of_rows(query: ParsedQuery[Any], cost: Cost) -> list[str]:
    """Return what is promised where one row is protected."""
    ten, hundred, two = (f"{epsilon_of_several(cost, n, query.delta):.4g}" for n in (*EVENTS, 2))
    return [
        f"  protects one event (one row of `{query.stream}`): epsilon {query.epsilon:g}, delta {query.delta:g}, for the whole infinite output.",
        f"  Not one person: a person with {EVENTS[0]} events has epsilon {ten}, with {EVENTS[1]} events epsilon {hundred}.",
        f"  Changing an event instead of adding it: epsilon {two}.",
    ]


def shares(plan: Any, several: str) -> str:
    """Return what mu^2 goes to; `several`: which columns have more than one noisy number."""
    chosen = plan.selection.share if plan.selection else 0.0
    each = f"{percent((1 - chosen) / len(plan.perturbations))}{'' if plan.selection else ' of mu^2'} goes to each noisy number"
    numbers = f", of which there are {len(plan.perturbations)}: {several}" if several else ""
    return f"  {f'{percent(chosen)} of mu^2 chooses keys, ' if plan.selection else 'No key is chosen: '}{each}{numbers}."


def budget(plan: Any, *spent: str, passing: str = "keys that only one unit has") -> str:
    """Return how the budget is spent: on what, and what delta is for; `passing` keys may be released by mistake."""
    ids = f" + {plan.delta_hash:.2g} for id collisions" if plan.delta_hash else ""
    threshold = f" + {plan.delta_threshold:.3g} for {passing}" if plan.selection else ""
    return "\n".join(
        [
            "How the budget is spent",
            f"  All noise is Gaussian and accounted for together: mu = {plan.mu:.4f}, the most noise-saving way to ({plan.epsilon:g}, {plan.delta_noise:.3g}).",
            *spent,
            f"  delta = {plan.delta_noise:.3g} for the noise{threshold}{ids}.",
        ]
    )


def main(parts: Sequence[Sum]) -> Sum:
    """Return the noisy sum whose error a column's is mostly made of: of a variance that of the squares."""
    return next((p for p in parts if p.rule == "squares"), parts[0])


def divisor_text(aggregate: Aggregate) -> str:
    """Return what that sum's error is divided by."""
    if aggregate.function in DEVIATIONS:
        return " / (2 n s)"
    return " / n" if sums_of(aggregate.function) > 1 else ""


def of_quantiles(name: str, tree: QuantileTree, grid: float) -> list[str]:
    """Return what the numbers of quantiles mean."""
    return [
        f"  {name}: {tree.parts + 1} values from {tree.lower:g} to {tree.upper:g}, on a grid of {grid:.4g}, with equally many rows between them.",
        "  Its error is in ranks: so many rows too many or too few may be below a value, more where many rows have one value.",
        f"  {name}_{RANK_STDERR} says it as a share of the noisy number of rows; where that is below 1, {name} is NULL.",
    ]


def middle(name: str) -> str:
    """Return what the value of an average or a spread is."""
    return f"{name} is the middle of what these allow at 95%: where rows are few, of everything between the bounds."


def of_several(aggregate: Aggregate, count_errors: str) -> list[str]:
    """Return how an average or a spread is made of its noisy sums, and its error of theirs; nothing of other columns."""
    name = aggregate.alias
    if aggregate.function in SPREADS:
        return [
            f"  {name} is made of noisy sums of values and of their squares, and a noisy count n of values; {name}_{STDERR} has",
            f"  the errors of all three, the table that of the squares{'; s is the deviation itself' if aggregate.function in DEVIATIONS else ''}.",
            f"  {middle(name)}",
        ]
    if sums_of(aggregate.function) == 1:
        return []
    return [
        f"  {name} is a noisy sum over a noisy count n of values; the table has the sum's error, to be divided by n.",
        f"  The count's is {count_errors}. {name}_{STDERR} has both.",
        f"  {middle(name)}",
    ]


# Tables without windows, which are released as they are: their triggers, and what explanations
# say of them.

STEPS = (1, 10, 100, 1_000, 10_000)


def grid(query: ParsedQuery[Any], start_us: int) -> TableGrid:
    """Return the trigger grid."""
    return TableGrid.from_start(start_us, query.trigger_interval_us, query.asked.max_triggers)


def schedule(query: ParsedQuery[Any], start_us: int) -> Schedule:
    """Return one window that does not end; contributions of a trigger are needed until it is due."""
    eras = Eras("trigger", 0, 1, start_us, query.trigger_interval_us)
    return Schedule(
        grid(query, start_us),
        start_us,
        query.trigger_interval_us,
        eras,
        windows=False,
        replayed=True,
    )


def document(plan: Any) -> dict[str, Any]:
    """Return the plan as JSON values: what its identity digests, and what run.json keeps."""
    content = {"mechanism": plan.mechanism} | as_stored(plan)
    content["query"] |= content["query"].pop("asked")
    return content


def triggers(query: ParsedQuery[Any]) -> tuple[int, ...]:
    """Return the triggers of which numbers are told: powers of ten, and the last if there is one."""
    last = query.asked.max_triggers
    return STEPS if last is None else (*(trigger for trigger in STEPS if trigger < last), last)


def norm_of(chosen: Counter | BltInf) -> float:
    """Return the norm of a column of C, with a last trigger or without."""
    return math.sqrt(chosen.squared_norm()) if isinstance(chosen, BltInf) else column_norm(chosen)


def reach_of(chosen: Counter | BltInf) -> float:
    """Return how many times the largest draw a path can be."""
    return chosen.response_sum(LAST_STEP) if isinstance(chosen, BltInf) else float(chosen.horizon)


def counter_said(query: ParsedQuery[Any]) -> str:
    """Return the counter of every path, in words."""
    last = query.asked.max_triggers
    return "BLT without a last trigger" if last is None else f"BLT for {last:,} triggers"


def promise(query: ParsedQuery[Any], subject: str, *more: str) -> str:
    """Return what is promised; `subject` of a unit were there or not."""
    last = query.asked.max_triggers
    many = (
        "of all triggers together, and there is no last one"
        if last is None
        else f"of all {last:,} triggers together"
    )
    return "\n".join(
        [
            "What is promised",
            f"  Everything one privacy unit ({', '.join(query.privacy_unit)}) ever does is protected, for ever:",
            f"  whoever sees the released tables {many}, learns almost the same",
            f"  whether that unit's {subject} were there or not,",
            f"  up to (epsilon, delta) = ({query.epsilon:g}, {query.delta:g}), on this run alone: what all runs cost together, dpsql budget says.",
            *more,
            NOT_HIDDEN,
        ]
    )


def how_often(query: ParsedQuery[Any], start_us: int) -> str:
    """Say from when on, and until when, rows come."""
    last = query.asked.max_triggers
    interval_us = query.trigger_interval_us
    until = (
        "for ever"
        if last is None
        else f"{last:,} times, the last at {timestamp(start_us + last * interval_us)}"
    )
    return f"every {duration(interval_us)} from {timestamp(start_us)} on, {until}"


def growing(query: ParsedQuery[Any], start_us: int) -> str:
    """Return when a table that only grows is released, and what counts then."""
    end = "" if query.asked.max_triggers is None else ", and all after the last trigger"
    return "\n".join(
        [
            "When",
            f"  No window: the whole table, {how_often(query, start_us)}.",
            f"  A record counts from the first trigger after its event time ({query.event_time}, UTC), one from before the start from trigger 1.",
            "  Nothing is late: a record that comes after its trigger counts from the next one. Nothing is ever taken out again.",
            f"  Dropped: records more than {duration(query.max_ahead_us)} ahead of the clock{end}.",
        ]
    )


# What every explanation says of live runs.


def live_runs(schedule: Schedule) -> str:
    """Return what a live run's promise assumes (docs/privacy/index.md, A2)."""
    try:
        interval = duration(polling_interval(schedule))
    except InputError:
        return "Live runs\n  This query cannot run live: its triggers are not at whole milliseconds. Stored input: --until-caught-up."
    lines = (
        "Live runs",
        f"  {ASSUMPTION.capitalize()}",
        f"  (--interval, by default {interval}). One that takes longer delays the clock, and so may change which late records of",
        "  others count; a run in which one did says so. Stored input (--until-caught-up) assumes nothing of the kind.",
    )
    return "\n".join(lines)
