"""What a public table says of itself, in words: who is protected, how a key comes to be in it, and what each column is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

from dpsql.description import DUE, END, START, Column, Protects, Published, Role, Rows
from dpsql.parsed_query import AVERAGED, AggregateFunction
from dpsql.text import Z95
from dpsql.times import duration

NAMED = {
    START: "the window begins, UTC",
    END: "the window ends, UTC",
    DUE: "when it was due, UTC",
    "smoothed": "a better guess of {of}, made of its neighbours in time",
    "measured": "how many slides of the window had been measured",
    "row": "row of the sketches, one after the other",
    "cells": "noisy cells of that row, in steps of the grid",
    "hash_key": "with which values are hashed",
}
"""Columns of the roles TIME and BESIDE, by their names, or by the endings of these."""

MEANINGS = {
    "units": "units with a record that counts",
    "units_over": "units with a record that is left out",
    "pairs": "pairs of a unit and a key that count",
    "pairs_left_out": "further pairs without a record that counts",
    "rows": "records that count",
    "rows_left_out": "records that came in time and do not count",
    "values_clamped": "values of records, and sums of one unit in a group, that were moved to a bound",
}
"""Figures of what the limits left out."""

WORDS = {
    Role.KEY: "key; NULL is a key, too",
    Role.SET: "which keys the row is not grouped by, a bit for each",
    Role.STDERR: "standard deviation of the noise in {of}",
    Role.RANK_STDERR: "standard deviation of the ranks of {of}, as a share of all rows",
    Role.LIST: "the largest values, each with its noise and the interval that holds it",
}
TOO_FEW = "too few to say"
"""What people read instead of a quotient of which the noise allows everything, and of a NULL: the noisy count says that there is no row."""
AT_END = "at the window's end"
"""What a NULL says where quantiles of a window are asked for before its last trigger."""
MOST_RANK_ERROR = 0.5
"""Share of all rows: quantiles whose ranks are so far off say nothing."""
QUARTERS = 4
SEVERAL = "Several runs wrote into this table: whoever is in the records of several has the promise of each, and their epsilons add up."


def promises(published: Published) -> tuple[str, ...]:
    """Say of each run that wrote into the table who is protected, for how long, and with which
    epsilon; and how often rows come."""
    windows = published.windows
    span = duration(published.trigger_us)
    when = f"When: windows of {duration(windows.size_us)}" if windows else "When: the whole table"
    runs = tuple(_promise(run, published) for run in published.protects)
    if published.fit is not None:
        rows_text = (
            f"{published.fit.drawn:,} rows drawn"
            if published.fit.drawn
            else "every cell, with its weight"
        )
        runs = (
            f"Fitted to what {published.fit.of} has published, and to nothing else: {rows_text}.",
            *runs,
        )
    often = "When: once, over all existing records." if published.once else ""
    return (
        *runs,
        *([SEVERAL] if len(published.protects) > 1 else ()),
        often or f"{when}, released every {span}.",
    )


def has_limits(published: Published) -> bool:
    """Tell whether limits can leave something out; not of a count of units without keys, in which each counts once."""
    windows = published.windows
    run = published.protects[-1]
    functions = {measure.function for measure in published.measures}
    is_counted_once = functions == {AggregateFunction.COUNT_DISTINCT_UNIT}
    is_keyed = published.names(Role.KEY, Role.LIST)
    renews = windows is None or run.period_us == windows.size_us == windows.slide_us
    return bool(not is_counted_once or is_keyed or not renews or run.rows_end)


def appears(run: Protects, published: Published) -> str:
    """Return how many a key needs."""
    span = f"window of {duration(published.windows.size_us)}" if published.windows else "table"
    whom = ", ".join(run.units) or "rows"
    return f"A key appears once about {run.units_needed:,} different {whom} have it in one {span}."


def table_description(published: Published) -> str:
    """Return what the public Delta table says of itself to whoever opens it, however they do."""
    parts = (
        "Differentially private numbers: noise is added.",
        *promises(published),
        *_reading(published),
    )
    return " ".join(parts)


def _reading(published: Published) -> Iterator[str]:
    """Yield how the rows of a table are read without being added up twice."""
    if published.fit is not None:
        return
    if published.names(Role.KEY):
        yield from sorted({_counts(run, published) for run in published.protects if run.max_groups})
    if averages := [each.alias for each in published.measures if each.within]:
        yield (
            f"Where a value of {', '.join(averages)} is at least half as far off (1.96 times its stderr) as its range is wide, it says nothing: "
            "dpsql reads it as NULL."
        )
    windows = published.windows
    of_key = " and key" if published.names(Role.KEY) else ""
    if windows is None and not published.once:
        yield (
            "Each trigger restates the whole table so far: never add triggers up. "
            f"One row per trigger{of_key}; the newest: WHERE trigger = (SELECT max(trigger) FROM t)."
        )
    elif windows is not None and windows.triggers == 1:
        yield f"One row per window{of_key}."
    elif windows is not None:
        last = windows.triggers
        yield (
            f"Rows of one window_start restate their window at triggers 1 to {last}: never add them up. One row per window{of_key}: "
            f"WHERE trigger = {last} (closed windows), or QUALIFY trigger = max(trigger) OVER (PARTITION BY window_start)."
        )
    if windows is not None and windows.slide_us < windows.size_us:
        yield "Windows overlap: never add them up."
    if published.sets is not None:
        yield "Rows of one grouping_id are one table: never add up rows of several."
        if published.sets.closing:
            names = " and ".join(published.sets.keys[key] for key in published.sets.closing)
            yield f"A row that has {names} comes when its time is over: until then the cell has no records."


def _counts(run: Protects, published: Published) -> str:
    """Say in how many groups one unit counts."""
    keys = published.names(Role.KEY)
    values = f"values of {keys[0]}" if len(keys) == 1 else f"combinations of {', '.join(keys)}"
    span = f" per window of {duration(published.windows.size_us)}" if published.windows else ""
    return f"Each unit ({', '.join(run.units)}) counts in at most {run.max_groups} {values}{span}."


def columns(published: Published) -> list[tuple[str, str]]:
    """Return the columns, and what each is."""
    return [(column.name, _is(column, published)) for column in published.columns]


def _promise(run: Protects, published: Published) -> str:
    protected = (
        f"everything that one {', '.join(run.units)} {deeds(run, published)}"
        if run.units
        else "one row, not one person"
    )
    keys = " Keys are listed beforehand." if published.names(Role.KEY) else ""
    if run.units_needed is not None:
        keys = f" {appears(run, published)} What is missing is not zero."
    return f"Protected: {protected}: epsilon {run.epsilon:g}, delta {run.delta:g}.{keys}"


def deeds(run: Protects, published: Published) -> str:
    """Return what of a unit is protected: `does in a window of 7 days`, which are not any 7 days."""
    period = "in all records" if published.once else "for ever"
    if run.period_us:
        window = published.windows
        is_window = window is not None and window.slide_us == window.size_us
        period = f"in a {'window' if is_window else 'period'} of {duration(run.period_us)}"
    verb = "begins" if run.rows_end and run.period_us else "does"
    return f"{verb} {period}"


def _is(column: Column, published: Published) -> str:
    if column.role is Role.VALUE:
        return _value(column, published)
    if column.role is Role.TIME and column.name == "trigger":
        return _release_number(published)
    if column.role in (Role.TIME, Role.BESIDE):
        meaning = NAMED[column.name.removeprefix(f"{column.of}_")]
    elif column.role is Role.KEY and published.sets:
        meaning = "key; NULL where the row is not grouped by it"
    else:
        meaning = WORDS[column.role]
    predicted = (
        "; NULL where that is predicted"
        if column.role is Role.STDERR and published.predicts
        else ""
    )
    return meaning.format(of=column.of) + predicted


def _release_number(published: Published) -> str:
    number = "number of the release"
    if published.once:
        return number
    if published.windows is None:
        return f"{number}; each restates the whole table so far"
    last = published.windows.triggers
    several = f"; {last} is the last; each release restates its whole window so far"
    return f"{number} within its window{several if last > 1 else ''}"


def _value(column: Column, published: Published) -> str:
    if published.rows is Rows.LEFT_OUT:
        return f"noisy number of {MEANINGS[column.name]}"
    (measure,) = (each for each in published.measures if each.alias == column.of)
    bounds_prefix = "to which one unit adds" if measure.per_group else "of values from"
    ranges = ", and ".join(f"{low:g} to {high:g}" for low, high in measure.ranges)
    bounds = f" {bounds_prefix} {ranges}" if ranges else ""
    sums = (
        ", may be added up over keys"
        if measure.additive and published.rows is not Rows.CUBE
        else ""
    )
    if published.fit is not None:
        return f"weight of the row, fitted to the noisy {measure.function}"
    once = f", {AT_END}" if published.windows and column.name in published.quantiles else ""
    few = (
        f"; NULL: {TOO_FEW}"
        if measure.function in AVERAGED or column.name in published.quantiles
        else ""
    )
    return f"noisy {measure.function}{bounds}{sums}{once}{few}"


def silence(alias: str, published: Published) -> tuple[str, float]:
    """Return an aggregate's column of errors, and the standard error from which on its value says nothing: half of what its bounds allow, half of all
    ranks; infinite for a count."""
    if ranks := published.columns_of(alias, Role.RANK_STDERR):
        return ranks[0], MOST_RANK_ERROR / Z95
    within = next(
        (measure.within for measure in published.measures if measure.alias == alias), None
    )
    width = math.inf if within is None else within[1] - within[0]
    return published.stderr(alias), 0.999 * width / 2 / Z95


def is_rough(values: Any, rank_error: float) -> bool:
    """Tell whether ranks are off by more than half a step from one quantile to the next."""
    parts = len(values) - 1 if isinstance(values, Sized) else QUARTERS
    return rank_error > 0.5 / parts


def null_of(alias: str, published: Published) -> tuple[str, str]:
    """Return what a person reads where an aggregate is NULL, and where its error is: a slide that is predicted, or a tree of which no node answers."""
    few = any(each.alias == alias and each.function in AVERAGED for each in published.measures)
    return TOO_FEW if few else "NULL", "predicted" if published.predicts else "not measured"
