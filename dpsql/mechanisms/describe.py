"""From a plan to what its public tables say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpsql.description import (
    ADDITIVE,
    DUE,
    END,
    START,
    Column,
    Measure,
    Protects,
    Published,
    Role,
    Rows,
    Windows,
)
from dpsql.mechanisms.protocol import Plan, Shape
from dpsql.parsed_query import ParsedQuery, PerGroup, Reading


def described(plan: Plan, shape: Shape, reading: Reading) -> Published:
    """Return the description of the public table.

    Args:
        plan: the plan.
        shape: of it.
        reading: of the query; a private condition is left out.
    """
    query = plan.query
    facts = shape.facts
    schedule = shape.schedule
    window = query.window
    bounds = facts.bounds
    return Published(
        rows=Rows.LISTS if shape.sketch else Rows.CUBE if facts.sets else Rows.HISTOGRAM,
        trigger_us=query.trigger_interval_us,
        columns=tuple(_columns(query, shape)),
        windows=None
        if window is None
        else Windows(
            window.size_us,
            window.slide_us,
            window.offset_us,
            query.allowed_lateness_us,
            schedule.grid.horizon,
        ),
        measures=tuple(
            Measure(
                aggregate.alias,
                aggregate.function,
                aggregate.function in ADDITIVE,
                aggregate.clamps,
                facts.grids.get(aggregate.alias),
                isinstance(aggregate, PerGroup),
            )
            for aggregate in query.aggregates
        ),
        noise=facts.noise,
        reading=replace(reading, condition=None) if reading.private else reading,
        sets=facts.sets,
        protects=(
            Protects(
                level=str(query.protects),
                units=query.privacy_unit,
                period_us=plan.period[0] if plan.period else None,
                max_rows=bounds[0],
                max_rows_per_group=bounds[1],
                max_groups=bounds[2],
                sums=facts.sums,
                units_needed=facts.units_needed,
                rows_end=shape.feed is not None,
                epsilon=plan.epsilon,
                delta=plan.delta,
            ),
        ),
        neighbours=shape.neighbours,
        once=query.once,
    )


def _columns(query: ParsedQuery[Any], shape: Shape) -> list[Column]:
    """Return the columns of the public table: times, then keys and aggregates in the order of the select list."""
    times: tuple[str, ...] = ("trigger", DUE)
    if shape.schedule.windows:
        times = (START, END, *times)
    keys = {key.name for key in query.output_keys}
    columns = [Column(name, Role.TIME) for name in times]
    values = tuple(key.name.rpartition(".")[2] for key in query.keys) if shape.sketch else ()
    for name in query.columns_in_order:
        if name in keys:
            columns.append(Column(name, Role.KEY))
        columns.extend(
            Column(
                column.name,
                column.role,
                None if column.role is Role.SET else name,
                values if column.role is Role.LIST else (),
            )
            for column in shape.columns_of(name)
        )
    return columns
