"""Explain the plan of a table without windows, and why a key is missing: from the plan alone, no data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsql.allowance import Limits
from dpsql.explanation import ExplainedColumn, Explanation, Keys, Notes, UnitsNeeded
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.plan import TableColumnPlan, TablePlan, TreePlan
from dpsql.mechanisms.dynamic.planner import HIDE_BELOW
from dpsql.mechanisms.dynamic.stages import perturbations, quantile_noise, users_needed
from dpsql.mechanisms.explanations import (
    HANDED_ON,
    RANKS,
    budget,
    changing,
    falling,
    growing,
    listed_keys,
    noisy_column,
    not_counted,
    protects,
    quantile_notes,
    times,
    versions,
)
from dpsql.mechanisms.protocol import bounds_told
from dpsql.parts.left_out import OF_ONE_ROW
from dpsql.parts.sums import NoisySum
from dpsql.parts.whole_table import schedule, triggers
from dpsql.sources.config import Source
from dpsql.text import number, percent
from dpsql.times import duration
from dpsql.udfs.measure import quantiles
from dpsql.udfs.table.leaves import QuantileTree


def _no_figures(plan: TablePlan) -> str:
    """Return why nothing is told of what the limits leave out."""
    if plan.changes:
        return "rows that end make room for others"
    if not plan.query.privacy_unit:
        return OF_ONE_ROW
    return "a table without windows has none yet"


def explanation(plan: TablePlan, source: Source) -> Explanation:
    """Return all that is said of a plan."""
    query = plan.query
    changes = plan.changes
    is_tree = isinstance(plan, TreePlan)
    return Explanation(
        protects=protects(plan, account(plan, source)),
        when=times(query, schedule(query, plan.start_us), query.asked.max_triggers),
        limits=Limits(
            *bounds_told(query),
            max_users=source.max_users,
            max_keys=source.max_keys,
            max_spells_contributed=changes.max_spells_contributed if changes else None,
            no_figures=_no_figures(plan),
        ),
        keys=_keys(plan),
        columns=tuple(_column(plan, column, source) for column in plan.columns),
        budget=budget(plan, None if is_tree else len(plan.perturbations)),
        identity=plan.identity,
        notes=Notes(
            protects=(HANDED_ON,) if changes else (),
            when=changing(query) if changes else growing(query),
            limits=tuple(versions(query, changes.max_spells_contributed)) if changes else (),
            keys=tuple(_key_notes(plan)),
            columns=_column_notes(plan),
            budget=TREE_BUDGET if is_tree else (),
        ),
    )


TREE_BUDGET = (
    "3/8 of the budget go to what nodes release, 3/8 to what leaves them, 1/8 each to their sizes and to how many rows leave. Of that, "
    "level l has in round r the part (6 / pi^2 / (l r))^2, and each column as much as the others.",
)
TREE_ERRORS = (
    "These errors are for nodes that have not ended a round: in round r a node of level l is l r times as noisy as one of level 1 "
    "in its first. A node with too few rows for its noise answers 0: that error is in no number here.",
    "Where no node answers, the row says 0 and its error is NULL.",
    "This is the mechanism of Qiu and Yi, corrected, to compare with: omit mechanism for far less noise.",
)


def _keys(plan: TablePlan) -> Keys:
    if plan.selection is None:
        return listed_keys(plan.query)
    names = tuple(key.name for key in plan.query.keys)
    needed = [UnitsNeeded(trigger, users_needed(plan, trigger)) for trigger in triggers(plan.query)]
    return Keys(how="selected", names=names, units_needed=tuple(needed))


def _column(plan: TablePlan, column: TableColumnPlan, source: Source) -> ExplainedColumn:
    noise = {each.mechanism: each for each in (*perturbations(plan), *quantile_noise(plan))}

    def stderrs(part: NoisySum) -> dict[int, float]:
        released = noise[part.noise_stream]
        return {trigger: released.stderr(trigger) for trigger in triggers(plan.query)}

    tree = noise[column.perturbations[0].noise_stream]
    notes: tuple[str, ...] = ()
    if isinstance(tree, QuantileTree):
        grid = column.perturbations[0].grid
        notes = (*quantile_notes(column.aggregate, tree, grid), _size(plan, source))
    return noisy_column(column.aggregate, column.perturbations, stderrs, notes)


def _size(plan: TablePlan, source: Source) -> str:
    """Say how large the state of quantiles is."""
    megabytes = quantiles.NODES * plan.counter.width * 8 / 1e6
    groups = ""
    if plan.query.keys:
        groups = f"; all {source.max_keys:,} declared keys {number(megabytes * source.max_keys / 1e3)} GB"
    return f"A released key keeps {quantiles.NODES:,} counters for it, {megabytes:.1f} MB{groups}."


def _key_notes(plan: TablePlan) -> Iterator[str]:
    selection = plan.selection
    if selection is None:
        return
    yield (
        "That a key was released stays public. The key is shown at each trigger at which its noisy number of units is at least "
        f"{percent(HIDE_BELOW)} of the number needed then."
    )
    if plan.changes:
        yield "A key whose rows have ended disappears, up to the noise; it returns by the same rule."
    yield from falling(selection.weights, "first time in a key" if plan.changes else "first key")
    min_units = plan.query.asked.min_privacy_units_per_group
    if min_units > 1:
        yield f"A key with fewer than {min_units} units is never released."


def _column_notes(plan: TablePlan) -> tuple[str, ...]:
    if isinstance(plan, TreePlan):
        return TREE_ERRORS
    if plan.query.asked.max_triggers is not None:
        return ()
    return (
        "The noise grows slowly: with the logarithm of the trigger's number up to trigger 1,000,000, with its square root after it.",
    )


def missing(plan: TablePlan) -> tuple[str, dict[str, Any]]:
    """Return all that is told."""
    return why_missing(plan), _missing_facts(plan)


def _missing_facts(plan: TablePlan) -> dict[str, Any]:
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
        "     Each trigger tests again: a key may come later.",
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
        period_us = plan.changes.period_us
        span = f"within {duration(period_us)}" if period_us else "however long the query runs"
        lines += [
            f"     A unit's row versions after its first {choices.max_rows_contributed:,} (C), rows that began while {choices.max_rows_per_group:,} were there",
            f"     with that key (c), and keys after its first {choices.max_groups_contributed:,} (G) are not counted, {span};",
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
