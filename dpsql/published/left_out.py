"""Figures of what the limits left out, as the public table `NAME.left_out` has them: one row for each window that has released rows, at its last
trigger, or one for all records that are released once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import STDERR, Column, Measure, Published, Role, Rows
from dpsql.parsed_query import AS_RELEASED, AggregateFunction
from dpsql.parts.left_out import FigurePlan
from dpsql.published.rows import times_of
from dpsql.schedule import Schedule
from dpsql.udfs.stage import LEFT_OUT


def of_left_out(published: Published, figures: Sequence[FigurePlan]) -> Published:
    """Return what the table of figures says of itself; `published`: what the histogram says."""
    times = tuple(column for column in published.columns if column.role is Role.TIME)
    numbers = tuple(
        column
        for figure in figures
        for column in (
            Column(figure.name, Role.VALUE, figure.name),
            Column(f"{figure.name}_{STDERR}", Role.STDERR, figure.name),
        )
    )
    return replace(
        published,
        rows=Rows.LEFT_OUT,
        columns=(*times, *numbers),
        measures=tuple(
            Measure(figure.name, AggregateFunction.COUNT_ROWS, False, None, None)
            for figure in figures
        ),
        reading=AS_RELEASED,
        protects=tuple(replace(run, units_needed=None) for run in published.protects),
        neighbours=(),
    )


def last_windows(released: pa.Table, horizon: int) -> Collection[int]:
    """Return the windows that release a group at their last trigger."""
    is_group = pc.equal(pc.binary_length(released[LEFT_OUT.name]), 0)
    is_last = pc.equal(released["trigger"], horizon)
    return set(pc.unique(released.filter(pc.and_(is_group, is_last))["window"]).to_pylist())


def left_out_rows(
    released: pa.Table, windows: Collection[int], schedule: Schedule, figures: Sequence[FigurePlan]
) -> pa.Table:
    """Return rows of the table of figures.

    Args:
        released: rows of the release stage.
        windows: that have released rows at their last trigger; others have no row here.
        schedule: of the triggers.
        figures: of the plan.
    """
    has_figures = pc.greater(pc.binary_length(released[LEFT_OUT.name]), 0)
    is_told = pc.is_in(released["window"], pa.array(sorted(windows), pa.int64()))
    rows = released.filter(pc.and_(has_figures, is_told)).sort_by("window")
    flat = np.frombuffer(b"".join(rows[LEFT_OUT.name].to_pylist()), "<i8")
    amounts = flat.reshape(rows.num_rows, len(figures))
    columns = times_of(rows, schedule)
    for place, figure in enumerate(figures):
        columns[figure.name] = pa.array(amounts[:, place], pa.int64())
        columns[f"{figure.name}_{STDERR}"] = pa.array(np.full(len(amounts), figure.stderr))
    return pa.table(columns)


def as_records(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as JSON values, times as text in UTC."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            texts = [time.isoformat() for time in rows[field.name].to_pylist()]
            rows = rows.set_column(place, field.name, pa.array(texts, pa.string()))
    return rows.to_pylist()
