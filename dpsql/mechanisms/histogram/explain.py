"""Explain a plan of the histogram: what is promised, how noisy, and who gets to appear; from the plan alone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpsql import text
from dpsql.mechanisms.histogram.accounting import cost
from dpsql.mechanisms.histogram.plan import (
    ColumnPlan,
    PerturbationPlan,
    PrivacyPlan,
    QuantilePlan,
    ReleaseRule,
)
from dpsql.mechanisms.histogram.planner import unnamed_plan
from dpsql.mechanisms.histogram.stages import grid, quantiles_of, stderr
from dpsql.mechanisms.other_ways import Ways
from dpsql.mechanisms.protocol import BOUNDS, bounds_told
from dpsql.parsed_query import ContributionPeriod, CounterName, Quantiles
from dpsql.parts.words import (
    NOT_HIDDEN,
    adds_up,
    aggregate_text,
    allowance,
    bounding,
    bounds_of_rows,
    budget,
    clamp,
    clamps,
    divisor_text,
    in_days,
    live_runs,
    main,
    of_days,
    of_periods,
    of_quantiles,
    of_several,
    page,
    promise_to_rows,
    promised,
    shares,
    stages,
    without_infinity,
)
from dpsql.privacy.cost import Cost
from dpsql.schedule import by_window
from dpsql.sources.config import Source
from dpsql.text import Z95, number, percent
from dpsql.times import duration
from dpsql.udfs.measure import quantiles

# A plan in six lines: who is protected, what that adds up to, when, which keys, how noisy, and
# what is left out without an error bar.


def in_short(plan: PrivacyPlan, days: Sequence[dict[str, Any]]) -> str:
    """Return the first lines of the explanation.

    Args:
        plan: the plan.
        days: what one unit pays in all windows that some days touch; nothing for a STREAM.
    """
    query = plan.query
    unit = ", ".join(query.privacy_unit)
    size = duration(query.windows.size_us)
    key = ", ".join(key.name for key in query.keys)
    period = "for ever" if query.contribution_period is ContributionPeriod.STREAM else f"in {size}"
    protected = (
        f"everything that one {unit} does {period}"
        if unit
        else f"one row of {query.stream}, not one person"
    )
    lines = {
        "Protected": f"{protected}: epsilon {plan.epsilon:g}, delta {plan.delta:g}.",
        **({"Adds up to": adds_up(days)} if unit else {}),
        "When": f"windows of {size}, released every {duration(query.trigger_interval_us)}.",
        "Keys": _keys_in_short(plan, unit, key),
        "Noise": _noise(plan),
        **({"Left out": _left_out(plan, unit, key, period)} if unit else {}),
    }
    return text.in_short(lines)


def _keys_in_short(plan: PrivacyPlan, unit: str, key: str) -> str:
    if plan.selection is None:
        return "the listed ones, all of them." if key else "none: one row per window."
    carried_plan = plan.selection.carried
    if carried_plan is not None:
        units_alone = plan.selection.users_needed(plan.horizon)
        units_together = carried_plan.users_needed(-1, plan.selection.weights[0])
        return (
            f"{key} appears once about {units_alone:,} different {unit} have it in a window, or {units_together:,} in each of {carried_plan.windows}; "
            "what is missing is not zero."
        )
    return (
        f"{key} appears once about {plan.selection.users_needed(plan.horizon):,} different {unit} have it in a window; "
        "what is missing is not zero."
    )


def _noise(plan: PrivacyPlan) -> str:
    errors = []
    for column in plan.columns:
        if tree := quantiles_of(plan, column):
            errors.append(f"{column.aggregate.alias} ± {number(Z95 * tree.stderr(1))} rows")
            continue
        errors.append(
            f"{column.aggregate.alias} ± {number(Z95 * stderr(main(column.perturbations))[-1])}{divisor_text(column.aggregate)}"
        )
    average = (
        " (n: values of the average)"
        if any(len(column.perturbations) == 2 for column in plan.columns)
        else ""
    )
    if any(len(column.perturbations) > 2 for column in plan.columns):
        average = " (n: how many values there are, s: their deviation)"
    return f"{', '.join(errors)}{average} at a window's end, 95%."


def _left_out(plan: PrivacyPlan, unit: str, key: str, period: str) -> str:
    choices = plan.query.asked
    max_rows = choices.max_rows_contributed
    max_per_group = choices.max_rows_per_group
    groups = choices.max_groups_contributed
    if max_rows == math.inf:
        return f"values of {key} in which one {unit} counts: at most {groups:,} {period}. Further ones are dropped, and no error bar says so."
    max_rows = max_rows if key else min(max_rows, max_per_group)  # the one, empty key is a key
    sentence = f"records of one {unit} that count: at most {max_rows:,} {period}"
    sentence += f", {max_per_group:,} with one {key}" if key and max_per_group < max_rows else ""
    sentence += f"; values of {key}: at most {groups:,}" if key and groups < max_rows else ""
    return f"{sentence}. Further ones are dropped, and no error bar says so."


# Explain a plan to somebody who knows no differential privacy: what is promised, how noisy, and
# who gets to appear.

# Everything here is computed from the plan alone: public numbers, no data. `facts` has stable
# names for programs.

PERIODS = (7, 30, 365)
FEW_GROUPS = 3
SEVERAL = {2: "an average has two", 3: "a variance or deviation three"}


def facts(plan: PrivacyPlan, source: Source) -> dict[str, Any]:
    """Return the plan's public numbers under stable names (`dpsql explain --json`).

    `sigma` is the standard deviation of the noise of one strategy step: noise multiplier times sensitivity. `stderr_*` are
    standard deviations of released values, where `stderr_of` is `value`. Where it is `sum` the column is an average: a noisy sum over a
    noisy count n of values. Its error depends on n, so `sigma` and `stderr_*` are the sum's, and `parts` has those of both; an average
    that lies q from the middle of its bounds has standard error sqrt(sum's^2 + (q * count's)^2) / n. Where it is `squares` the column is a
    variance, or the root of one, and `sigma` and `stderr_*` are those of the sum of squares.
    Users needed is ceil(tau / w_1): users that have the key as their first. `cost` is what one unit pays in one contribution period, and
    `periods` in several, `days` in all that so many days can touch (none for STREAM): `failure` is part of that delta, at which `epsilon` is what `mu` gives.
    """
    query = plan.query
    period_cost = cost(plan, source)
    return {
        **promised(plan, period_cost),
        "periods": [of_periods(period_cost, plan.delta_noise, n) for n in (1, 2, *PERIODS)]
        if _renews(plan)
        else [],
        "days": [without_infinity(day) for day in _days(plan, period_cost)],
        "horizon": plan.horizon,
        **dict(zip(BOUNDS, bounds_told(query), strict=True)),
        "query_identity": plan.identity,
        "selection": _selection_facts(plan),
        "columns": [_column_facts(column) for column in plan.columns],
    }


def explain(plan: PrivacyPlan, source: Source) -> str:
    """Return the whole explanation as plain text, at most 120 characters wide."""
    days = _days(plan, cost(plan, source))
    about = (
        in_short(plan, days),
        _promise(plan, source),
        live_runs(by_window(grid(plan))),
        _time(plan),
        _bounds(plan, source),
    )
    return page(
        plan,
        *about,
        _keys(plan, source),
        _columns(plan),
        _other_ways(plan),
        _budget(plan),
        _stages(plan),
    )


def _selection_facts(plan: PrivacyPlan) -> dict[str, Any] | None:
    if plan.selection is None:
        return None
    carried_plan = plan.selection.carried
    several = (
        []
        if carried_plan is None
        else [
            carried_plan.users_needed(i, plan.selection.weights[0])
            for i in range(len(carried_plan.lengths))
        ]
    )
    return {
        "sigma": plan.selection.sigma,
        "counter": str(plan.selection.counter),
        "users_needed_first_trigger": plan.selection.users_needed(1),
        "users_needed_last_trigger": plan.selection.users_needed(plan.horizon),
        **(
            {
                "users_needed_in_each_of": dict(
                    zip(map(str, carried_plan.lengths), several, strict=True)
                )
            }
            if carried_plan
            else {}
        ),
    }


def _column_facts(column: ColumnPlan) -> dict[str, Any]:
    errors = _errors(column)
    rank = {"stderr_of": "rank"} if isinstance(column.aggregate, Quantiles) else {}
    return {
        "alias": column.aggregate.alias,
        "aggregate": str(column.aggregate.function),
        "sigma": main(column.perturbations).sigma,
        "stderr_first_trigger": errors[0],
        "stderr_last_trigger": errors[-1],
        **clamp(column.aggregate),
        "stderr_of": "value" if len(column.perturbations) == 1 else main(column.perturbations).rule,
        "parts": [_part_facts(part) for part in column.perturbations]
        if len(column.perturbations) > 1
        else None,
        **rank,
    }


def _part_facts(part: PerturbationPlan | QuantilePlan) -> dict[str, Any]:
    errors = stderr(part)
    statistic = part.rule if part.rule in ("sum", "squares") else "count"
    return {
        "of": statistic,
        "sigma": part.sigma,
        "stderr_first_trigger": errors[0],
        "stderr_last_trigger": errors[-1],
    }


def _errors(column: ColumnPlan) -> tuple[float, ...]:
    """Return the standard error per trigger. An average's depends on its group's size: given for the sum it divides (see `_columns`)."""
    return stderr(main(column.perturbations))


def _renews(plan: PrivacyPlan) -> bool:
    return plan.query.contribution_period is ContributionPeriod.WINDOW


def _days(plan: PrivacyPlan, period_cost: Cost) -> list[dict[str, Any]]:
    """Return what one unit pays in the windows that some days touch; nothing where they are one period."""
    return of_days(period_cost, plan.delta_noise, plan.query.windows) if _renews(plan) else []


def _promise(plan: PrivacyPlan, source: Source) -> str:
    query = plan.query
    if not query.privacy_unit:
        return promise_to_rows(query, cost(plan, source))
    sliding = plan.windows_per_record > 1
    length = duration(query.windows.size_us)
    span = "in one window" if _renews(plan) else "in the whole stream, for ever,"
    if _renews(plan) and sliding:
        span = f"in one period of {length} (of every window that it is in)"
    lines = [
        "What is promised",
        f"  Everything one privacy unit ({', '.join(query.privacy_unit)}) does {span} is protected:",
        "  whoever sees all released tables, of all triggers together, learns almost the same whether that unit's records",
        "  were there or not,",
        f"  up to (epsilon, delta) = ({plan.epsilon:g}, {plan.delta:g}), on this run alone: what all runs cost together, dpsql budget says.",
    ]
    if _renews(plan):
        windows_text = f"periods of {length}" if sliding else "windows"
        period_cost = cost(plan, source)
        lines += in_days(_days(plan, period_cost), windows_text)
        if sliding:
            window = of_periods(period_cost, plan.delta_noise, 2)
            lines += [
                "  A window can hold records of two periods; their contributions add up:",
                f"  one whole window, like any stretch of {length}, has epsilon {number(window['epsilon'])}, delta {window['delta']:.2g}.",
            ]
    lines.append(NOT_HIDDEN)
    return "\n".join(lines)


def _time(plan: PrivacyPlan) -> str:
    query = plan.query
    window = query.windows
    lateness = (
        f", plus {duration(query.allowed_lateness_us)} for late records"
        if query.allowed_lateness_us
        else ""
    )
    slide = f", one every {duration(window.slide_us)}" if window.slide_us != window.size_us else ""
    lines = [
        "When",
        f"  Windows of {duration(window.size_us)}{slide} by {query.event_time} (UTC), released every {duration(query.trigger_interval_us)}{lateness}:",
        f"  T = {plan.horizon} release{'' if plan.horizon == 1 else 's'} per window. A record counts from the first trigger after its event time.",
    ]
    if plan.windows_per_record > 1:
        lines.append(
            f"  The windows overlap: a record counts in {plan.windows_per_record} windows, and the noise covers all of them."
        )
    lines += [
        f"  Dropped: records of a closed window, and records more than {duration(query.max_ahead_us)} ahead of the clock."
    ]
    return "\n".join(lines)


def _bounds(plan: PrivacyPlan, source: Source) -> str:
    query = plan.query
    if not query.privacy_unit:
        return bounds_of_rows(query)
    renews = query.contribution_period is ContributionPeriod.WINDOW
    period = (
        (
            "per window"
            if plan.windows_per_record == 1
            else f"per period of {duration(query.windows.size_us)}"
        )
        if renews
        else "for ever"
    )
    lines = [
        "What each unit may contribute",
        f"  {allowance(query.asked, period)}",
        "  the earliest count, the rest are dropped (and counted for the operator).",
    ]
    if not query.keys:
        max_rows = min(query.asked.max_rows_contributed, query.asked.max_rows_per_group)
        lines.append(
            f"  All records have the same, empty key: at most {max_rows:,} of one unit count."
        )
    if plan.windows_per_record > 1 or not renews:
        lines.append(
            f"  Of one unit at most {plan.max_groups:,} pairs of window and key count {period}; further ones add nothing."
        )
    lines += clamps(plan.query.aggregates)
    lines.append(
        f"  Declared for {source.name}: at most {source.max_users:,} units and {source.max_keys:,} keys."
    )
    return "\n".join(lines)


def _keys(plan: PrivacyPlan, source: Source) -> str:
    if plan.selection is None:
        windows = "in every window from the declared start of the stream on, at every trigger, with or without records"
        if not plan.query.keys:
            return f"Which keys appear\n  There is no key: one row per window,\n  {windows}."
        return f"Which keys appear\n  Those that public_groups lists when the run first starts, each one\n  {windows}."
    first = plan.selection.users_needed(1)
    last = plan.selection.users_needed(plan.horizon)
    later = "from then on it is refreshed at every trigger of its window"
    if plan.query.asked.release is ReleaseRule.RESELECT:
        later = "to be released again it has to\n  gather as many units anew, with records after that; a unit counts once per round of gathering"
    lines = [
        "Which keys appear",
        f"  No key is known beforehand. A key appears once about {first} units have it by the first trigger, {last} by the last",
        f"  (half of the keys with exactly that many appear); {later}.",
    ]
    lines += [*_with_fewer_groups(plan, source), *_carried_lines(plan)]
    times = len(plan.selection.weights)
    if plan.selection.falls:
        share = plan.selection.weights[-1] / plan.selection.weights[0]
        subject = "record" if plan.query.asked.release is ReleaseRule.RESELECT else "key"
        subject += " (and window)" if plan.windows_per_record > 1 else ""
        lines.append(
            f"  A unit's first {subject} counts in full, later ones less and less; number {times} counts {percent(share)} of the first."
        )
    if plan.periods_meet:
        unit_text = (
            "In each round a unit" if plan.query.asked.release is ReleaseRule.RESELECT else "A unit"
        )
        lines.append(
            f"  {unit_text} counts once per period of {duration(plan.query.windows.size_us)}, so up to twice where a window holds records of two periods."
        )
    if plan.query.asked.min_privacy_units_per_group > 1 and not plan.carries:
        lines.append(
            f"  A key with fewer than {plan.query.asked.min_privacy_units_per_group} units never appears."
        )
    return "\n".join(lines)


def _with_fewer_groups(plan: PrivacyPlan, source: Source) -> list[str]:
    """Return what a smaller G would change: a unit that may count with fewer keys weighs more with each."""
    choices = plan.query.asked
    if choices.max_groups_contributed <= FEW_GROUPS:
        return []
    fewer = unnamed_plan(
        replace(plan.query, asked=replace(choices, max_groups_contributed=FEW_GROUPS)), source
    )
    assert fewer.selection is not None
    return [
        f"  With max_groups_contributed = {FEW_GROUPS} in the place of {choices.max_groups_contributed}: about "
        f"{fewer.selection.users_needed(plan.horizon)} by the last; a unit's further keys are dropped."
    ]


def _other_ways(plan: PrivacyPlan) -> str:
    choices = plan.query.asked
    if plan.selection is not None or choices.counter is not CounterName.BLT:
        return ""
    rows = min(
        choices.max_rows_contributed, choices.max_groups_contributed * choices.max_rows_per_group
    )
    event = not plan.query.privacy_unit
    return Ways(
        query=plan.query,
        rows=rows,
        per_key=choices.max_rows_per_group,
        query_way=choices.counter,
        event=event,
    ).describe()


def _carried_lines(plan: PrivacyPlan) -> list[str]:
    """Return what windows do together, and what a row of a known key means."""
    selection = plan.selection
    m = plan.query.asked.min_privacy_units_per_group
    if selection is None or selection.carried is None:
        return []
    carried_plan = selection.carried
    needs = [
        f"{carried_plan.users_needed(i, selection.weights[0]):,} over {d}"
        for i, d in enumerate(carried_plan.lengths)
    ]
    sentences = [
        f"Windows prove a key together, at the end of each; units needed in every window: {', '.join(needs)} windows.",
        "From then on it is shown in every window from the first trigger on, at no cost, until its last windows no longer support it: a carried "
        "key may have no record now, so read its number with its error bar. A key whose records end goes after some windows.",
        f"The declared max_keys counts all keys of {carried_plan.windows} windows, and all known ones.",
    ]
    if m > 1:
        sentences.insert(
            2,
            f"No key becomes known that did not have {m:,} different units within one of the last {carried_plan.windows} windows; once known it may "
            "be shown longer.",
        )
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, 112, initial_indent="  ", subsequent_indent="  ")
    ]


def _columns(plan: PrivacyPlan) -> str:
    lines = [
        "How noisy each column is (95% of released values are this close to the bounded truth)"
    ]
    width = max(len(column.aggregate.alias) for column in plan.columns)
    wide = max(16, *(len(aggregate_text(column.aggregate)) for column in plan.columns))
    lines.append(
        f"  {'column':<{max(width, 6)}}  {'aggregate':<{wide}} {'first trigger':>16} {'last trigger':>16}"
    )
    for column in plan.columns:
        if tree := quantiles_of(plan, column):
            cells = ["", f"± {number(Z95 * tree.stderr(1))} rows"]
        else:
            errors = _errors(column)
            divisor = divisor_text(column.aggregate)
            cells = [f"± {number(Z95 * errors[i])}{divisor}" for i in (0, -1)]
        lines.append(
            f"  {column.aggregate.alias:<{max(width, 6)}}  {aggregate_text(column.aggregate):<{wide}} {cells[0]:>16} {cells[1]:>16}"
        )
    for column in plan.columns:
        if tree := quantiles_of(plan, column):
            lines += [
                *of_quantiles(column.aggregate.alias, tree, column.perturbations[0].grid),
                f"  It is released once, at a window's last trigger, and is NULL before. A key keeps up to {quantiles.LEAVES:,} counts for it.",
            ]
        first, last = (number(Z95 * stderr(column.perturbations[-1])[i]) for i in (0, -1))
        lines += of_several(
            column.aggregate, f"± {first} at the first and ± {last} at the last trigger"
        )
    compare = (
        " Try `dpsql try --compare` on data you may look at."
        if plan.query.privacy_unit and not plan.trees
        else ""
    )
    lines.append(f"  Not in these numbers: what the bounds above drop or clamp.{compare}")
    return "\n".join(lines)


def _budget(plan: PrivacyPlan) -> str:
    several = [
        words
        for n, words in SEVERAL.items()
        if any(len(column.perturbations) == n for column in plan.columns)
    ]
    return budget(plan, shares(plan, ", ".join(several)))


def _choice(plan: PrivacyPlan) -> str:
    query = plan.query
    if plan.selection is None:
        return (
            f"public groups: {query.public_groups}"
            if query.public_groups
            else "one group per window"
        )
    key_names = "".join(", " + key.name for key in query.keys)
    rounds = ", in rounds" if query.asked.release is ReleaseRule.RESELECT else ""
    triggers = f"{plan.horizon} trigger{'' if plan.horizon == 1 else 's'}"
    return f"key selection{rounds}, by (window{key_names}): counter {query.asked.counter}, thresholds for {triggers}"


def _stages(plan: PrivacyPlan) -> str:
    query = plan.query
    noisy = f"perturbation of {', '.join(column.aggregate.alias for column in plan.columns)}: counter {query.asked.counter}"
    return stages(
        query, bounding(query), _choice(plan), noisy, "histogram, appended once per trigger"
    )
