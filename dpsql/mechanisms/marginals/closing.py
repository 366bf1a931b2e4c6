"""Keys that cut the event time: which trigger has all records of their values. Its cells close there, and are measured once (docs/privacy/marginals.md)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dpsql.sources.domains import Domain
from dpsql.udfs.table_grid import TableGrid

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
MOST_PIECES = 200_000
"""A run of more minutes, hours or days is not looked through; its cells do not close."""
MOST_VALUES = 10_000
"""Keys with more combinations of values do not close: a plan tells the trigger of each."""


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
    "text of minute": Cut(MINUTE_US, lambda time: time.replace(second=0, tzinfo=None)),
    "text of hour": Cut(HOUR_US, lambda time: time.replace(minute=0, second=0, tzinfo=None)),
    "text of day": Cut(DAY_US, lambda time: time.replace(hour=0, minute=0, tzinfo=None)),
}
"""By the name of the SQL function; `date` is one that is cast to a text, as are times from `date_trunc`."""


def closing_triggers(cuts: Sequence[tuple[Cut, Domain]], grid: TableGrid) -> tuple[int, ...] | None:
    """Return the trigger after which no record can have these values together any more, for each combination; 0: no record of the run has it.

    Args:
        cuts: keys, each with its domain. The last one's values come one after another.
        grid: of the table.

    Returns:
        None: some values have records of several triggers, so that their cells never close, or there are too many.
    """
    piece_us = min(cut.piece_us for cut, _ in cuts)
    start_us = grid.offset_us
    end_us = start_us + grid.horizon * grid.trigger_us
    first_us = start_us // piece_us * piece_us
    combinations = math.prod(domain.size for _, domain in cuts)
    if combinations > MOST_VALUES or (end_us - first_us) // piece_us > MOST_PIECES:
        return None
    triggers: dict[tuple[str | None, ...], int] = {}
    for begin_us in range(first_us, end_us, piece_us):
        bounds_us = max(begin_us, start_us), min(begin_us + piece_us, end_us) - 1
        first, last = ((us - start_us) // grid.trigger_us + 1 for us in bounds_us)
        time = datetime.fromtimestamp(begin_us // 1_000_000, UTC)
        values = tuple(_declared(str(cut.value(time)), domain) for cut, domain in cuts)
        if None in values:
            continue  # a record of this time counts nowhere
        if first != last or triggers.setdefault(values, first) != first:
            return None
    declared = itertools.product(*(domain.values for _, domain in cuts))
    return tuple(triggers.get(values, 0) for values in declared)


def _declared(text: str, domain: Domain) -> str | None:
    """Return the value of a domain that stands for a text."""
    if text in domain.values:
        return text
    return domain.values[-1] if domain.other else None
