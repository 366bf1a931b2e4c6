"""Keys that cut the event time: which trigger has all records of a value. Its cells close there, and are measured once (docs/privacy/marginals.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dpsql.sources.domains import Domain
from dpsql.udfs.table_grid import TableGrid

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
MOST_PIECES = 200_000
"""A run of more minutes, hours or days is not looked through; its cells do not close."""


@dataclass(frozen=True)
class Cut:
    """A function of the event time: a time so long that it has one value in it, and the value of a time, as a text."""

    piece_us: int
    value: Callable[[datetime], object]


CUTS: Mapping[str, Cut] = {
    "minute": Cut(MINUTE_US, lambda time: time.minute),
    "hour": Cut(HOUR_US, lambda time: time.hour),
    "day": Cut(DAY_US, lambda time: time.day),
    "dayofmonth": Cut(DAY_US, lambda time: time.day),
    "dayofyear": Cut(DAY_US, lambda time: time.timetuple().tm_yday),
    "month": Cut(DAY_US, lambda time: time.month),
    "year": Cut(DAY_US, lambda time: time.year),
    "date": Cut(DAY_US, lambda time: time.date()),
}
"""By the name of the SQL function; `date` is one that is cast to a text."""


def closing_triggers(time_cut: Cut, domain: Domain, grid: TableGrid) -> tuple[int, ...] | None:
    """Return the trigger after which no record can have a value any more, for each value; 0: no record of the run has it.

    None: some value has records of several triggers, so that its cells never close, or the run is too long.
    """
    start_us = grid.offset_us
    end_us = start_us + grid.horizon * grid.trigger_us
    first_us = start_us // time_cut.piece_us * time_cut.piece_us
    if (end_us - first_us) // time_cut.piece_us > MOST_PIECES:
        return None
    other_value = domain.values[-1] if domain.other else None
    triggers: dict[str | None, int] = {}
    for piece_us in range(first_us, end_us, time_cut.piece_us):
        bounds_us = max(piece_us, start_us), min(piece_us + time_cut.piece_us, end_us) - 1
        first, last = ((us - start_us) // grid.trigger_us + 1 for us in bounds_us)
        text = str(time_cut.value(datetime.fromtimestamp(piece_us // 1_000_000, UTC)))
        value = text if text in domain.values else other_value
        if first != last or triggers.setdefault(value, first) != first:
            if value is None:
                continue  # of no value that counts
            return None
    return tuple(triggers.get(value, 0) for value in domain.values)
