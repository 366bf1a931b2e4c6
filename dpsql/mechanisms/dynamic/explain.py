"""Explain the plan of a table without windows: what is promised for ever, how noisy, and who gets to appear. From the plan alone."""

from __future__ import annotations

import math
from typing import Any

from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.plan import ChangeChoices, TableColumnPlan, TablePlan, TreePlan
from dpsql.mechanisms.dynamic.planner import HIDE_BELOW
from dpsql.mechanisms.dynamic.stages import perturbations, quantile_noise, users_needed
from dpsql.mechanisms.protocol import BOUNDS, bounds_told
from dpsql.parts.words import (
    aggregate_text,
    allowance,
    bounding,
    bounds_of_rows,
    budget,
    clamp,
    clamps,
    counter_said,
    divisor_text,
    growing,
    how_often,
    live_runs,
    main,
    of_quantiles,
    of_several,
    page,
    promise,
    promise_to_rows,
    promised,
    schedule,
    shares,
    stages,
    triggers,
)
from dpsql.sources.config import Source
from dpsql.text import Z95, number, percent
from dpsql.times import duration, timestamp
from dpsql.udfs.dynamic.interval_tree import TreeSum
from dpsql.udfs.measure import quantiles
from dpsql.udfs.table.leaves import QuantileTree
from dpsql.udfs.table.release import Perturbation

HANDED_ON = "  A row that is handed on to another user is that user's from then on, and is not hidden by this promise."


def facts(plan: TablePlan, source: Source) -> dict[str, Any]:
    """Return the plan's public numbers under stable names, those of the histogram where they mean the same (`dpsql explain --json`).

    Numbers by trigger are `{"trigger": .., ..}` for powers of ten, and for the last trigger where there is one.
    """
    choices = plan.query.asked
    return {
        **promised(plan, account(plan, source)),
        "periods": [],
        "start": timestamp(plan.start_us),
        "max_triggers": choices.max_triggers,
        **dict(zip(BOUNDS, bounds_told(plan.query), strict=True)),
        **(_change_facts(plan.changes) if plan.changes else {}),
        "query_identity": plan.identity,
        "selection": None
        if plan.selection is None
        else {
            "sigma": plan.selection.sigma,
            "users_needed": [
                {"trigger": trigger, "units": users_needed(plan, trigger)}
                for trigger in triggers(plan.query)
            ],
        },
        "columns": [_column_facts(plan, column) for column in plan.columns],
    }


def _change_facts(choices: ChangeChoices) -> dict[str, Any]:
    return {
        "max_spells_contributed": choices.max_spells_contributed,
        "change_feed": str(choices.feed.form),
        "primary_key": list(choices.feed.primary_key),
    }


def explain(plan: TablePlan, source: Source) -> str:
    """Return the whole explanation as plain text, at most 120 characters wide."""
    about = (
        _promise(plan, source),
        live_runs(schedule(plan.query, plan.start_us)),
        _time(plan),
        _bounds(plan, source),
        _keys(plan),
    )
    return page(plan, *about, _columns(plan, source), _budget(plan), _stages(plan))


def _promise(plan: TablePlan, source: Source) -> str:
    if not plan.query.privacy_unit:
        return promise_to_rows(plan.query, account(plan, source))
    return (
        promise(plan.query, "rows, and all that happened to them,", HANDED_ON)
        if plan.changes
        else promise(plan.query, "records")
    )


def _parts(
    plan: TablePlan, column: TableColumnPlan
) -> tuple[Perturbation | TreeSum | QuantileTree, ...]:
    return tuple(
        p
        for p in (*perturbations(plan), *quantile_noise(plan))
        if p.mechanism in {part.noise_stream for part in column.perturbations}
    )


def _column_facts(plan: TablePlan, column: TableColumnPlan) -> dict[str, Any]:
    parts = [
        {
            "of": {"sum": "sum", "squares": "squares", "leaf": "rank"}.get(of.rule, "count"),
            "sigma": p.sigma,
            "stderr": _stderr(plan, p),
        }
        for of, p in zip(column.perturbations, _parts(plan, column), strict=True)
    ]
    noisy = parts[column.perturbations.index(main(column.perturbations))]
    return {
        "alias": column.aggregate.alias,
        "aggregate": str(column.aggregate.function),
        "sigma": noisy["sigma"],
        "stderr": noisy["stderr"],
        **clamp(column.aggregate),
        "stderr_of": noisy["of"] if len(parts) > 1 or noisy["of"] == "rank" else "value",
        "parts": parts if len(parts) > 1 else None,
    }


def _stderr(plan: TablePlan, p: Perturbation | TreeSum | QuantileTree) -> list[dict[str, Any]]:
    return [{"trigger": trigger, "stderr": p.stderr(trigger)} for trigger in triggers(plan.query)]


def _time(plan: TablePlan) -> str:
    query = plan.query
    if not plan.changes:
        return growing(query, plan.start_us)
    dropped = "" if query.asked.max_triggers is None else ", and after the last trigger"
    return "\n".join(
        [
            "When",
            f"  What is in the table then, {how_often(query, plan.start_us)}.",
            f"  A change counts from the first trigger after its commit ({query.event_time}, UTC), an old one from trigger 1.",
            "  Nothing is late: a change that comes after its trigger counts from the next one.",
            f"  Dropped: beginnings of rows more than {duration(query.max_ahead_us)} ahead of the clock{dropped}. Ends never are.",
        ]
    )


def _bounds(plan: TablePlan, source: Source) -> str:
    choices = plan.query.asked
    if not plan.query.privacy_unit:
        return bounds_of_rows(plan.query)
    used = "" if choices.max_rows_contributed == math.inf else ": who has used C adds nothing more"
    lines = [
        "What each unit may contribute",
        f"  {allowance(choices, 'for ever')}",
        f"  the earliest count, the rest are dropped (and counted for the operator){used},",
        "  however long the query runs.",
    ]
    if plan.changes:
        rows = (
            f"a row is ({', '.join((*plan.query.privacy_unit, *plan.changes.feed.primary_key))})"
            if plan.changes.feed.primary_key
            else ""
        )
        lines = [
            "What each unit may contribute",
            f"  C = {choices.max_rows_contributed} row versions for ever, c = {choices.max_rows_per_group} with one key at the same time, "
            f"G = {choices.max_groups_contributed} keys.",
            "  An insert begins a version, a delete ends one, an update does both; one of columns not read here is none.",
            f"  After {choices.max_rows_contributed} versions a unit's further rows are not counted, for ever; nor are rows for which a key had no room",
            "  when they began. Rows that count stop counting when they end, whatever the unit has used.",
            f"  S = {plan.changes.max_spells_contributed}: a unit that comes to keys, all its rows there end, and it comes again, is counted as a unit so many",
            "  times; then its rows still count, but not the unit.",
            f"  Told apart: {rows or 'rows of one unit by what the query reads of them; equal ones are copies'}.",
        ]
    if not plan.query.keys:
        lines.append("  All records have the same, empty key.")
    lines += clamps(plan.query.aggregates)
    lines.append(
        f"  Declared for {source.name}: at most {source.max_users:,} units and {source.max_keys:,} keys."
    )
    return "\n".join(lines)


def _keys(plan: TablePlan) -> str:
    choices = plan.query.asked
    if plan.selection is None:
        subject = (
            "Those that public_groups lists when the run first starts, each one"
            if plan.query.keys
            else "There is no key: one row"
        )
        return f"Which keys appear\n  {subject} at every trigger, with or without records."
    units_text = ", ".join(
        f"{users_needed(plan, trigger):,} by trigger {trigger:,}"
        for trigger in triggers(plan.query)
    )
    lines = [
        "Which keys appear",
        "  No key is known beforehand. A key appears once about so many units have it (half of the keys with so many do):",
        f"  {units_text}.",
        "  That it has appeared stays public; it is shown at each trigger at which its noisy number of units",
        f"  is at least {percent(HIDE_BELOW)} of what it takes then.",
        *(
            ["  A key whose rows have ended goes within the noise; it comes back by the same rule."]
            if plan.changes
            else []
        ),
    ]
    times = len(plan.selection.weights)
    if plan.selection.weights[-1] < plan.selection.weights[0]:
        share = plan.selection.weights[-1] / plan.selection.weights[0]
        subject = "first time in a key" if plan.changes else "first key"
        lines.append(
            f"  A unit's {subject} counts in full, later ones less and less; number {times} counts {percent(share)} of the first."
        )
    if choices.min_privacy_units_per_group > 1:
        lines.append(
            f"  A key with fewer than {choices.min_privacy_units_per_group} units never appears."
        )
    return "\n".join(lines)


def _columns(plan: TablePlan, source: Source) -> str:
    width = max(6, *(len(column.aggregate.alias) for column in plan.columns))
    heads = "".join(f"{f'trigger {trigger:,}':>17}" for trigger in triggers(plan.query))
    lines = [
        "How noisy each column is (95% of released values are this close to the bounded truth)",
        f"  {'column':<{width}}  {'aggregate':<15}{heads}",
    ]
    for column in plan.columns:
        parts = _parts(plan, column)
        divisor = (
            " rows" if column.perturbations[0] in plan.trees else divisor_text(column.aggregate)
        )
        noisy = parts[column.perturbations.index(main(column.perturbations))]
        cells = "".join(
            f"{f'± {number(Z95 * noisy.stderr(trigger))}{divisor}':>17}"
            for trigger in triggers(plan.query)
        )
        lines.append(
            f"  {column.aggregate.alias:<{width}}  {aggregate_text(column.aggregate):<15}{cells}"
        )
    for column in plan.columns:
        counts = [
            number(Z95 * _parts(plan, column)[-1].stderr(trigger))
            for trigger in triggers(plan.query)
        ]
        lines += of_several(column.aggregate, f"± {' / '.join(counts)}")
    for column in plan.columns:
        if column.perturbations[0] in plan.trees:
            lines += _quantiles(plan, column, source)
    if isinstance(plan, TreePlan):
        lines += [
            "  That is where no node of the tree has ended a round: a node of level l is in its round r l times r times as noisy",
            "  as one of level 1 in its first. A node with too few rows for its noise answers 0: that error is in no number here.",
            "  Where no node answers, the row says 0 and its error is NULL.",
            "  This is the mechanism of Qiu and Yi, corrected, to compare with: leave mechanism out for far less noise.",
        ]
    elif plan.query.asked.max_triggers is None:
        lines.append(
            "  It grows for ever, ever more slowly: with the logarithm of the trigger's number, after a million with its root."
        )
    lines.append("  Not in these numbers: what the bounds above drop or clamp.")
    return "\n".join(lines)


def _quantiles(plan: TablePlan, column: TableColumnPlan, source: Source) -> list[str]:
    """Return what the numbers of quantiles mean."""
    (tree,) = (part for part in plan.trees if part in column.perturbations)
    name = column.aggregate.alias
    megabytes = quantiles.NODES * plan.counter.width * 8 / 1e6
    groups = (
        f"; all {source.max_keys:,} declared keys {number(megabytes * source.max_keys / 1e3)} GB"
        if plan.query.keys
        else ""
    )
    (noise,) = (noise for noise in quantile_noise(plan) if noise.mechanism == tree.noise_stream)
    return [
        *of_quantiles(name, noise, tree.grid),
        f"  A key that is shown keeps {quantiles.NODES:,} counters for it, {megabytes:.1f} MB{groups}.",
    ]


def _budget(plan: TablePlan) -> str:
    passing = "keys that only one unit has, at all triggers"
    if not isinstance(plan, TreePlan):
        averages = "an average has two" if len(plan.perturbations) > len(plan.columns) else ""
        return budget(plan, shares(plan, averages), passing=passing)
    return budget(
        plan,
        "  3/8 of mu^2 are for what nodes release, 3/8 for what goes from them, 1/8 each for their sizes and for how many",
        "  rows go; of that, level l has in round r the part (6 / pi^2 / (l r))^2, and each column as much as the others.",
    )


def _stages(plan: TablePlan) -> str:
    query = plan.query
    counter = counter_said(plan.query)
    tree = isinstance(plan, TreePlan)
    if plan.selection is None:
        choice = f"public groups: {query.public_groups}" if query.public_groups else "one group"
    else:
        choice = (
            f"key selection, by ({', '.join(key.name for key in query.keys)}): counter {counter}"
        )
    noisy = f"perturbation of {', '.join(column.aggregate.alias for column in plan.columns)}: {'interval tree, ' if tree else ''}counter {counter}"
    return stages(query, bounding(query), choice, noisy, "table, appended once per trigger")
