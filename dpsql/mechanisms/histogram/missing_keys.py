"""Why a key is missing, from the plan alone: how many units it takes, trigger by trigger (`dpsql explain --missing`).

Nothing here, and nothing anywhere else, says how close a key came: that is a fact about few units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpsql.mechanisms.explanations import RANKS, not_counted
from dpsql.mechanisms.histogram.plan import PrivacyPlan, ReleaseRule, SelectionPlan
from dpsql.parsed_query import ContributionPeriod
from dpsql.text import percent
from dpsql.times import duration

Z_MOST = 1.6448536269514722
"""Standard normal quantile of 95%."""

SHOWN = 12


@dataclass(frozen=True)
class Needed:
    """Units that a key needs at one trigger, each with this key as its first.

    Args:
        trigger: number in the window, from 1.
        half: with so many, half of the keys pass at this trigger; never below what the exact test wants.
        units_95: with so many, 95% pass.
    """

    trigger: int
    half: int
    units_95: int


def units_needed(plan: PrivacyPlan, count: int = SHOWN) -> tuple[Needed, ...]:
    """Return what it takes at up to `count` triggers, the first and the last among them; nothing where keys are public."""
    if plan.selection is None:
        return ()
    steps = min(count, plan.horizon)
    triggers = {round(1 + i * (plan.horizon - 1) / max(1, steps - 1)) for i in range(steps)}
    return tuple(
        _units_at(plan.selection, trigger, plan.min_counted) for trigger in sorted(triggers)
    )


def carried_needs(selection: SelectionPlan) -> str:
    """Return how many units a key needs in each of several windows, where windows prove keys together."""
    needs = [f"{units:,} units over {windows}" for windows, units in selection.users_needed_jointly]
    return f"half of the keys pass with {', '.join(needs)} windows, in each of them"


def missing(plan: PrivacyPlan) -> tuple[str, dict[str, Any]]:
    """Return all that is told."""
    return why_missing(plan), facts(plan)


def facts(plan: PrivacyPlan) -> dict[str, Any]:
    """Return the public reasons under stable names (`dpsql explain --missing --json`)."""
    weights = plan.selection.weights if plan.selection else ()
    return {
        "keys": "selected" if plan.selection else "public" if plan.query.keys else "none",
        "users_needed": [
            {"trigger": each.trigger, "half_pass": each.half, "95_percent_pass": each.units_95}
            for each in units_needed(plan)
        ],
        "weight_of_a_users_nth_key": [weight / weights[0] for weight in weights[:RANKS]],
        "min_privacy_units_per_group": plan.query.asked.min_privacy_units_per_group,
    }


def why_missing(plan: PrivacyPlan) -> str:
    """Return all public reasons as plain text."""
    query = plan.query
    selection = plan.selection
    if selection is None:
        often = " at every trigger of every window from the source's `start` on"
        of_window = " per window"
        if query.once:
            often = of_window = ""
        no_key = f"There is no key: one row{of_window} is"
        subject = "Every key of public_groups is" if query.keys else no_key
        return f"Why is my key missing?\n  {subject} released{often}: none is missing.\n"
    parts = [_takes(plan, selection), _counts(plan, selection), _dropped(plan)]
    return (
        "\n\n".join(
            [
                "Why is my key missing?\n  A key that is missing is not zero. All that can be said is said from the query alone:",
                *parts,
            ]
        )
        + "\n"
    )


def _units_at(selection: SelectionPlan, trigger: int, min_units: int) -> Needed:
    first = selection.weights[0]
    half = max(min_units, selection.users_needed(trigger))
    units_95 = math.ceil(
        (selection.thresholds[trigger - 1] + Z_MOST * selection.sd[trigger - 1] * (1 << 20)) / first
    )
    return Needed(trigger, half, max(half, units_95))


def _takes(plan: PrivacyPlan, selection: SelectionPlan) -> str:
    rows = units_needed(plan)
    if plan.query.once:
        return _takes_once(plan, rows[0])
    lines = [
        "  1. Too few units. A key is shown once a noisy number of its units passes a threshold:",
        "",
        f"     {'trigger':>7}  {'after':<14} {'half of keys pass with':>22} {'95% pass with':>14}",
        *(
            f"     {row.trigger:>7,}  {duration(row.trigger * plan.query.trigger_interval_us):<14} {row.half:>16,} units {row.units_95:>8,} units"
            for row in rows
        ),
        "",
        *(
            [
                "     Each trigger tests again, with what the window has so far: a key may come later. A new window begins with nothing."
            ]
            if selection.carried is None
            else [
                "     Each trigger tests again, with what the window has so far: a key may come later. Several windows prove a key together at",
                f"     the end of each: {carried_needs(selection)}.",
            ]
        ),
    ]
    if plan.periods_meet:
        lines += [
            f"     A window holds records of up to two periods of {duration(plan.query.windows.size_us)}. A unit counts once in each: one with",
            "     records in both counts twice here.",
        ]
    if plan.query.asked.min_privacy_units_per_group > 1:
        lines.append(
            f"     With fewer than {plan.query.asked.min_privacy_units_per_group:,} units it never passes (min_privacy_units_per_group)."
        )
    return "\n".join(lines)


def _takes_once(plan: PrivacyPlan, row: Needed) -> str:
    min_units = plan.query.asked.min_privacy_units_per_group
    lines = [
        "  1. Too few units. A key is shown if a noisy number of its units passes a threshold:",
        f"     half of the keys pass with {row.half:,} units, 95% with {row.units_95:,}.",
    ]
    if min_units > 1:
        lines.append(f"     With fewer than {min_units:,} units none passes.")
    return "\n".join(lines)


def _counts(plan: PrivacyPlan, selection: SelectionPlan) -> str:
    query = plan.query
    weights = selection.weights
    lines = ["  2. Units that count less, or not at all."]
    if selection.falls:
        shares = [
            f"number {i} counts {percent(weight / weights[0])}"
            for i, weight in enumerate(weights[1:RANKS], start=2)
        ]
        subject = "record" if query.asked.release is ReleaseRule.RESELECT else "key"
        lines += [
            f"     Of a unit's {subject}s the first counts in full, {', '.join(shares)}:",
            f"     {subject}s that people come to later need more of them.",
        ]
    renews = query.contribution_period is ContributionPeriod.WINDOW
    period = "" if query.once else "in a window " if renews else "ever "
    lines += [
        f"     {not_counted(query.asked)}",
        f"     {period}are dropped before anybody is counted.",
    ]
    return "\n".join(lines)


def _dropped(plan: PrivacyPlan) -> str:
    reasons = "a join without a match, no privacy unit"
    remedies = "more epsilon, fewer columns"
    if not plan.query.once:
        ahead = duration(plan.query.max_ahead_us)
        reasons += f" or event time, a closed window, an event time\n     more than {ahead} ahead"
        remedies = f"a longer window, fewer triggers, {remedies}"
    return "\n".join(
        [
            f"  3. Records that never got there: WHERE, {reasons}. `dpsql try` and a run's log say how many, never whose or which key's.",
            "",
            f"  What helps: {remedies}; or public_groups, where the keys",
            "  are no secret. Nothing says how close a key came: that would tell about few units.",
        ]
    )
