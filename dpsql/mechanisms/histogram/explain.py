"""Explain a plan of the histogram: from the plan alone, no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dpsql.allowance import FigureBar, Limits
from dpsql.explanation import ExplainedColumn, Explanation, Keys, Notes, UnitsNeeded
from dpsql.mechanisms.explanations import (
    budget,
    compare_notes,
    falling,
    listed_keys,
    noisy_column,
    protects,
    quantile_notes,
    times,
)
from dpsql.mechanisms.histogram.accounting import cost
from dpsql.mechanisms.histogram.missing_keys import carried_needs
from dpsql.mechanisms.histogram.plan import (
    ColumnPlan,
    PerturbationPlan,
    PrivacyPlan,
    QuantilePlan,
    ReleaseRule,
    SelectionPlan,
)
from dpsql.mechanisms.histogram.planner import unnamed_plan
from dpsql.mechanisms.histogram.stages import grid, quantiles_of, stderr
from dpsql.mechanisms.other_ways import Ways
from dpsql.mechanisms.protocol import bounds_told
from dpsql.parsed_query import CounterName
from dpsql.schedule import by_window
from dpsql.sources.config import Source
from dpsql.text import Z95
from dpsql.times import duration
from dpsql.udfs.measure import quantiles

FEW_GROUPS = 3
OVERLAP = "The windows overlap: a record counts in {} windows, and the noise covers all of them."


def explanation(plan: PrivacyPlan, source: Source) -> Explanation:
    """Return all that is said of a plan."""
    query = plan.query
    selection = plan.selection
    overlap = plan.windows_per_record > 1
    counts_pairs = query.privacy_unit and (overlap or plan.period is None) and not query.once
    return Explanation(
        protects=protects(plan, cost(plan, source), overlap),
        when=times(query, by_window(grid(plan)), plan.horizon),
        limits=Limits(
            *bounds_told(query),
            max_users=source.max_users,
            max_keys=source.max_keys,
            pairs=plan.max_groups if counts_pairs else None,
            left_out=tuple(
                FigureBar(figure.name, figure.bound, figure.stderr, Z95 * figure.stderr)
                for figure in plan.left_out.figures
            ),
            no_figures=plan.left_out.reason,
        ),
        keys=_keys(plan),
        columns=tuple(_column(plan, column) for column in plan.columns),
        budget=budget(plan, sum(part.sigma > 0 for part in plan.perturbations)),
        identity=plan.identity,
        notes=Notes(
            when=(OVERLAP.format(plan.windows_per_record),) if overlap else (),
            keys=tuple(_key_notes(plan, selection, source)) if selection else (),
            columns=(*compare_notes(query), *_other_ways(plan)),
        ),
    )


def _keys(plan: PrivacyPlan) -> Keys:
    selection = plan.selection
    if selection is None:
        return listed_keys(plan.query)
    by_trigger = [
        UnitsNeeded(trigger, selection.users_needed(trigger))
        for trigger in sorted({1, plan.horizon})
    ]
    jointly = [
        UnitsNeeded(plan.horizon, units, windows)
        for windows, units in selection.users_needed_jointly
    ]
    return Keys(
        how="selected",
        names=tuple(key.name for key in plan.query.keys),
        units_needed=tuple(by_trigger),
        units_needed_jointly=tuple(jointly),
    )


def _column(plan: PrivacyPlan, column: ColumnPlan) -> ExplainedColumn:
    tree = quantiles_of(plan, column)
    notes: tuple[str, ...] = ()
    if tree:
        released = "It is released once, at a window's last trigger, and is NULL before. "
        released = "" if plan.query.once else released
        notes = (
            *quantile_notes(column.aggregate, tree, column.perturbations[0].grid),
            f"{released}A key keeps up to {quantiles.LEAVES:,} counts for it.",
        )

    def stderrs(part: PerturbationPlan | QuantilePlan) -> dict[int, float]:
        if tree:
            return {plan.horizon: tree.stderr(1)}
        errors = stderr(part)
        return {1: errors[0], plan.horizon: errors[-1]}

    explained = noisy_column(column.aggregate, column.perturbations, stderrs, notes)
    first = column.perturbations[0]
    is_on_selection = isinstance(first, PerturbationPlan) and first.on_selection
    return replace(explained, on_selection=is_on_selection)


def _key_notes(plan: PrivacyPlan, selection: SelectionPlan, source: Source) -> Iterator[str]:
    choices = plan.query.asked
    in_rounds = choices.release is ReleaseRule.RESELECT
    if in_rounds:
        yield "To be released again, a key needs as many units again, with later records; a unit counts once per round."
    elif not plan.query.once:
        yield "Once released, a key is refreshed at every trigger of its window."
    by_the_end = "" if plan.query.once else " by the last trigger"
    if choices.max_groups_contributed > FEW_GROUPS:
        yield (
            f"With max_groups_contributed = {FEW_GROUPS} instead of {choices.max_groups_contributed}: about "
            f"{_needed_with_fewer_groups(plan, source):,}{by_the_end}; further keys of a unit are dropped."
        )
    yield from _carried_notes(plan, selection)
    window = " (and window)" if plan.windows_per_record > 1 else ""
    yield from falling(selection.weights, f"first {'record' if in_rounds else 'key'}{window}")
    if plan.periods_meet:
        yield (
            f"{'In each round a' if in_rounds else 'A'} unit counts once per period of {duration(plan.query.windows.size_us)}, "
            "so up to twice where a window holds records of two periods."
        )
    min_units = choices.min_privacy_units_per_group
    if min_units > 1 and not plan.carries:
        yield f"A key with fewer than {min_units} units is never released."


def _needed_with_fewer_groups(plan: PrivacyPlan, source: Source) -> int:
    """Count the units that a key needs under a smaller G, where each key of a unit weighs more."""
    choices = replace(plan.query.asked, max_groups_contributed=FEW_GROUPS)
    fewer = unnamed_plan(replace(plan.query, asked=choices), source).selection
    assert fewer is not None
    return fewer.users_needed(plan.horizon)


def _carried_notes(plan: PrivacyPlan, selection: SelectionPlan) -> Iterator[str]:
    """Say what windows do together, and what a row of a known key means."""
    carried_plan = selection.carried
    if carried_plan is None:
        return
    min_units = plan.query.asked.min_privacy_units_per_group
    yield f"Windows prove a key together, at the end of each: {carried_needs(selection)}."
    yield (
        "A known key is released in every window from the first trigger on, at no cost, until its last windows no longer support "
        "it. It may have no record now, so read its number with its error bar. A key whose records end goes after some windows."
    )
    if min_units > 1:
        yield (
            f"No key becomes known without {min_units:,} distinct units within one of the last {carried_plan.windows} windows; "
            "a known key can be released for longer."
        )
    yield f"The declared max_keys counts all keys of {carried_plan.windows} windows, and all known ones."


def _other_ways(plan: PrivacyPlan) -> tuple[str, ...]:
    choices = plan.query.asked
    has_one_way = plan.query.once or choices.counter is not CounterName.BLT
    if plan.selection is not None or has_one_way:
        return ()
    rows = min(
        choices.max_rows_contributed, choices.max_groups_contributed * choices.max_rows_per_group
    )
    return Ways(
        query=plan.query, rows=rows, per_key=choices.max_rows_per_group, query_way=choices.counter
    ).describe()
