"""Why a key is missing from a table without windows, from the plan alone (`dpsql explain --missing`)."""

from __future__ import annotations

from typing import Any

from dpsql.mechanisms.dynamic.plan import TablePlan
from dpsql.mechanisms.dynamic.planner import HIDE_BELOW
from dpsql.mechanisms.dynamic.stages import users_needed
from dpsql.mechanisms.explanations import RANKS, not_counted
from dpsql.parts.whole_table import triggers
from dpsql.text import percent
from dpsql.times import duration


def missing(plan: TablePlan) -> tuple[str, dict[str, Any]]:
    """Return all that is told."""
    return why_missing(plan), facts(plan)


def facts(plan: TablePlan) -> dict[str, Any]:
    """Return the public reasons under stable names (`dpsql explain --missing --json`)."""
    weights = plan.selection.weights if plan.selection else ()
    steps = triggers(plan.query) if plan.selection else ()
    return {
        "keys": "selected" if plan.selection else "public" if plan.query.keys else "none",
        "users_needed": [
            {"trigger": trigger, "half_pass": users_needed(plan, trigger)} for trigger in steps
        ],
        "weight_of_a_users_nth_key": [weight / weights[0] for weight in weights[:RANKS]],
        "min_privacy_units_per_group": plan.query.asked.min_privacy_units_per_group,
    }


def why_missing(plan: TablePlan) -> str:
    """Return all public reasons as plain text."""
    choices = plan.query.asked
    if plan.selection is None:
        subject = (
            "Every key of public_groups is" if plan.query.keys else "There is no key: one row is"
        )
        return f"Why is my key missing?\n  {subject} released at every trigger from the source's `start` on: none is missing.\n"
    weights = plan.selection.weights
    shares = [
        f"number {i} counts {percent(weight / weights[0])}"
        for i, weight in enumerate(weights[1:RANKS], start=2)
    ]
    lines = [
        "Why is my key missing?",
        "  A key that is missing is not zero. All that can be said is said from the query alone:",
        "",
        "  1. Too few units. A key appears once a noisy number of its units passes a threshold; half of the keys pass with",
        *(
            f"     {users_needed(plan, trigger):>9,} units by trigger {trigger:,}, {duration(trigger * plan.query.trigger_interval_us)} after the start"
            for trigger in triggers(plan.query)
        ),
        "     Each trigger tests anew: a key may come later.",
        f"     Afterwards it is hidden at triggers at which its noisy number is below {percent(HIDE_BELOW)} of that.",
    ]
    if choices.min_privacy_units_per_group > 1:
        lines.append(
            f"     With fewer than {choices.min_privacy_units_per_group:,} units it never passes (min_privacy_units_per_group)."
        )
    lines += ["", "  2. Units that count less, or not at all."]
    if weights[-1] < weights[0]:
        lines.append(f"     Of a unit's keys the first counts in full, {', '.join(shares)}.")
    if plan.changes:
        lines += [
            f"     A unit's row versions after its first {choices.max_rows_contributed:,} (C), rows that began while {choices.max_rows_per_group:,} were there",
            f"     with that key (c), and keys after its first {choices.max_groups_contributed:,} (G) are not counted, however long the query runs;",
            f"     nor is the unit itself after {plan.changes.max_spells_contributed:,} times of presence in keys (S).",
            "",
            "  3. Rows that have ended: the table is released as it is then. WHERE, a join without a match, no privacy unit.",
        ]
        return "\n".join(lines) + "\n"
    lines += [
        f"     {not_counted(choices)}",
        "     are dropped before anybody is counted, however long the query runs.",
        "",
        "  3. Records that never got there: WHERE, a join without a match, no privacy unit or event time, an event time",
        f"     more than {duration(plan.query.max_ahead_us)} ahead. `dpsql try` and a run's log say how many, never whose or which key's.",
    ]
    return "\n".join(lines) + "\n"
