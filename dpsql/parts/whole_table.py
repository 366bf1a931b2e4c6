"""Tables without windows, which are released as they are: their triggers, and what explanations say of them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from dpsql.parsed_query import ParsedQuery
from dpsql.parts.words import NOT_HIDDEN
from dpsql.schedule import Eras, Schedule
from dpsql.times import duration, timestamp
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, column_norm
from dpsql.udfs.table.grid import LAST_STEP, TableGrid

STEPS = (1, 10, 100, 1_000, 10_000)


def grid(query: ParsedQuery[Any], start_us: int) -> TableGrid:
    """The trigger grid."""
    return TableGrid.of(start_us, query.trigger_interval_us, query.asked.max_triggers)


def schedule(query: ParsedQuery[Any], start_us: int) -> Schedule:
    """One window that does not end; contributions of a trigger are needed until it is due."""
    eras = Eras("trigger", 0, 1, start_us, query.trigger_interval_us)
    return Schedule(
        grid(query, start_us),
        start_us,
        query.trigger_interval_us,
        eras,
        windows=False,
        replayed=True,
    )


def document(plan: Any) -> dict[str, Any]:
    """The plan as JSON values: what its identity digests, and what run.json keeps."""
    given = {"mechanism": plan.mechanism} | asdict(plan)
    given["query"] |= given["query"].pop("asked")
    return given


def triggers(query: ParsedQuery[Any]) -> tuple[int, ...]:
    """Those of which numbers are told: powers of ten, and the last if there is one."""
    last = query.asked.max_triggers
    return STEPS if last is None else (*(trigger for trigger in STEPS if trigger < last), last)


def norm_of(chosen: Counter | BltInf) -> float:
    """Norm of a column of C, with a last trigger or without."""
    return math.sqrt(chosen.squared_norm()) if isinstance(chosen, BltInf) else column_norm(chosen)


def reach_of(chosen: Counter | BltInf) -> float:
    """How many times the largest draw a path can be."""
    return chosen.response_sum(LAST_STEP) if isinstance(chosen, BltInf) else float(chosen.horizon)


def counter_said(query: ParsedQuery[Any]) -> str:
    """The counter of every path, in words."""
    last = query.asked.max_triggers
    return "BLT without a last trigger" if last is None else f"BLT for {last:,} triggers"


def promise(query: ParsedQuery[Any], what: str, *more: str) -> str:
    """What is promised; `what` of a unit were there or not."""
    last = query.asked.max_triggers
    many = (
        "of all triggers together, and there is no last one"
        if last is None
        else f"of all {last:,} triggers together"
    )
    return "\n".join(
        [
            "What is promised",
            f"  Everything one privacy unit ({', '.join(query.privacy_unit)}) ever does is protected, for ever:",
            f"  whoever sees the released tables {many}, learns almost the same",
            f"  whether that unit's {what} were there or not,",
            f"  up to (epsilon, delta) = ({query.epsilon:g}, {query.delta:g}), on this run alone: what all runs cost together, dpsql budget says.",
            *more,
            NOT_HIDDEN,
        ]
    )


def how_often(query: ParsedQuery[Any], start_us: int) -> str:
    """From when on, and until when."""
    last = query.asked.max_triggers
    interval_us = query.trigger_interval_us
    until = (
        "for ever"
        if last is None
        else f"{last:,} times, the last at {timestamp(start_us + last * interval_us)}"
    )
    return f"every {duration(interval_us)} from {timestamp(start_us)} on, {until}"


def growing(query: ParsedQuery[Any], start_us: int) -> str:
    """When a table that only grows is released, and what counts then."""
    end = "" if query.asked.max_triggers is None else ", and all after the last trigger"
    return "\n".join(
        [
            "When",
            f"  No window: the whole table, {how_often(query, start_us)}.",
            f"  A record counts from the first trigger after its event time ({query.event_time}, UTC), one from before the start from trigger 1.",
            "  Nothing is late: a record that comes after its trigger counts from the next one. Nothing is ever taken out again.",
            f"  Dropped: records more than {duration(query.max_ahead_us)} ahead of the clock{end}.",
        ]
    )
