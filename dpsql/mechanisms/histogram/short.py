"""A plan in six lines: who is protected, what that adds up to, when, which keys, how noisy, and what is left out without an error bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpsql import text
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import quantiles_of, stderr
from dpsql.parsed_query import ContributionPeriod
from dpsql.parts.words import adds_up, main, over
from dpsql.text import Z95, number
from dpsql.times import duration


def in_short(plan: PrivacyPlan, days: Sequence[dict[str, Any]]) -> str:
    """The first lines of the explanation.

    Args:
        plan: the plan.
        days: what one unit pays in all windows that some days touch; nothing for a STREAM.
    """
    query = plan.query
    unit = ", ".join(query.privacy_unit)
    size = duration(query.windows.size_us)
    key = ", ".join(key.name for key in query.keys)
    period = "for ever" if query.contribution_period is ContributionPeriod.STREAM else f"in {size}"
    who = (
        f"everything that one {unit} does {period}"
        if unit
        else f"one row of {query.stream}, not one person"
    )
    lines = {
        "Protected": f"{who}: epsilon {plan.epsilon:g}, delta {plan.delta:g}.",
        **({"Adds up to": adds_up(days)} if unit else {}),
        "When": f"windows of {size}, released every {duration(query.trigger_interval_us)}.",
        "Keys": _keys(plan, unit, key),
        "Noise": _noise(plan),
        **({"Left out": _left_out(plan, unit, key, period)} if unit else {}),
    }
    return text.in_short(lines)


def _keys(plan: PrivacyPlan, unit: str, key: str) -> str:
    if plan.selection is None:
        return "the listed ones, all of them." if key else "none: one row per window."
    carried = plan.selection.carried
    if carried is not None:
        alone = plan.selection.users_needed(plan.horizon)
        together = carried.users_needed(-1, plan.selection.weights[0])
        return (
            f"{key} appears once about {alone:,} different {unit} have it in a window, or {together:,} in each of {carried.windows}; "
            "what is missing is not zero."
        )
    return (
        f"{key} appears once about {plan.selection.users_needed(plan.horizon):,} different {unit} have it in a window; "
        "what is missing is not zero."
    )


def _noise(plan: PrivacyPlan) -> str:
    each = []
    for column in plan.columns:
        if tree := quantiles_of(plan, column):
            each.append(f"{column.aggregate.alias} ± {number(Z95 * tree.stderr(1))} rows")
            continue
        each.append(
            f"{column.aggregate.alias} ± {number(Z95 * stderr(main(column.perturbations))[-1])}{over(column.aggregate)}"
        )
    average = (
        " (n: values of the average)"
        if any(len(column.perturbations) == 2 for column in plan.columns)
        else ""
    )
    if any(len(column.perturbations) > 2 for column in plan.columns):
        average = " (n: how many values there are, s: their deviation)"
    return f"{', '.join(each)}{average} at a window's end, 95%."


def _left_out(plan: PrivacyPlan, unit: str, key: str, period: str) -> str:
    asked = plan.query.asked
    most = asked.max_rows_contributed
    each = asked.max_rows_per_group
    groups = asked.max_groups_contributed
    if most == math.inf:
        return f"values of {key} in which one {unit} counts: at most {groups:,} {period}. Further ones are dropped, and no error bar says so."
    most = most if key else min(most, each)  # the one, empty key is a key
    counted = f"records of one {unit} that count: at most {most:,} {period}"
    counted += f", {each:,} with one {key}" if key and each < most else ""
    counted += f"; values of {key}: at most {groups:,}" if key and groups < most else ""
    return f"{counted}. Further ones are dropped, and no error bar says so."
