"""What the limits left out of a window, in words: shares of its units, keys, records and values, each with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpsql.description import START, STDERR, Protects, Published, Role
from dpsql.parsed_query import AggregateFunction
from dpsql.parts.left_out import BEYOND
from dpsql.published.public_rows import PublicRows
from dpsql.text import Z95
from dpsql.view.words import TIME, printable

TENTH = 0.1
"""Shares below it have a decimal."""
MOST_UNSURE = 0.5
"""A share of which no more is known than that it is below this is not told."""
MOSTLY_FEW = 4
"""Where units that are over lose a quarter of what is counted of one, or more, on average, some are beyond what is counted."""
VERY_ACTIVE = "A few units are very active: this estimate includes at most {:,} left-out {} of each, so much more can be missing."
FEW = "There are too few {} for an estimate of what the limits left out."
FEW_IN_ALL = "At most {:,.0f} {} in all: too few to release, or the records do not fit the schema."
KEYS = "{} of {} have more than {:,} values of {}"
RECORDS = "{} of {} have more records than may count; {} of the records are left out."
CLAMPED = "{} of the {} were clamped to {}."
VALUES = "values that count"
SUMS = "sums of a unit and key"
SUMS_OF_UNITS = "sums of a unit"


@dataclass(frozen=True)
class Share:
    """A share with its 95% interval, of released numbers."""

    value: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is larger than its own error."""
        return self.value > self.error

    @property
    def low(self) -> float:
        return max(0.0, self.value - self.error)

    @property
    def high(self) -> float:
        return min(1.0, max(0.0, self.value) + self.error)

    def __str__(self) -> str:
        if not self.is_clear:
            return f"fewer than {_percent(self.high)}"
        for decimals in range(int(self.low < TENTH), 3):
            low, value, high = (
                f"{100 * share:.{decimals}f}" for share in (self.low, self.value, self.high)
            )
            if low != high:
                break
        return f"about {value}% ({low} to {high}%)"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < TENTH else f"{share:.0%}"


@dataclass(frozen=True)
class LeftOut:
    """The figures of one window, or of all records that are released once.

    Args:
        figures: a row of the table of figures, as JSON has it.
        published: what the histogram says of itself.
    """

    figures: Mapping[str, Any]
    published: Published

    def share(self, name: str) -> Share | None:
        """Return what is left out, of all that is there; None where it is not present."""
        missing = self.number(f"{name}_left_out")
        present = self.number(name)
        if missing is None or present is None:
            return None
        total = max(1.0, missing[0] + present[0])
        error = math.hypot(missing[1] * present[0], present[1] * missing[0]) / total**2
        return Share(missing[0] / total, error)

    def ratio(self, name: str, *bases: str) -> Share | None:
        """Return one figure as a share of others that it is a part of, added up."""
        part = self.number(name)
        totals = [total for base in bases if (total := self.number(base))]
        if part is None or len(totals) < len(bases):
            return None
        size = max(1.0, sum(value for value, _ in totals))
        error = math.hypot(*(error for _, error in totals))
        return Share(part[0] / size, math.hypot(part[1], part[0] / size * error) / size)

    def shortfall(self) -> float:
        """Return the most that pairs left out are of pairs that count; infinite where nothing is known of them."""
        missing = self.number("pairs_left_out")
        counted = self.number("pairs")
        if missing is None or counted is None:
            return math.inf
        return max(0.0, sum(missing)) / max(1.0, counted[0] - counted[1])

    def number(self, name: str) -> tuple[float, float] | None:
        """Return a figure and its 95% error; None where it is not counted."""
        if name not in self.figures:
            return None
        return self.figures[name], Z95 * self.figures[f"{name}_{STDERR}"]

    @property
    def run(self) -> Protects:
        return self.published.protects[-1]

    @property
    def units(self) -> str:
        """Return the units in words, like `units (user_id)`."""
        return f"units ({', '.join(self.run.units)})"

    @property
    def max_keys(self) -> float:
        """Return K, how many keys of one unit may count."""
        return min(self.run.max_groups or math.inf, self.run.max_rows or math.inf)

    @property
    def max_rows(self) -> float:
        """Return R, how many records of one unit may count."""
        groups = self.run.max_groups or math.inf
        per_key = self.run.max_rows_per_group or math.inf
        return min(self.run.max_rows or math.inf, groups * per_key)

    def sentences(self) -> Iterator[str]:
        """Yield what the figures say."""
        active = self.ratio("units_over", "units")
        count = self.number("units") or (0.0, 0.0)
        if self.published.once and count[0] < count[1]:
            yield FEW_IN_ALL.format(max(1.0, sum(count)), self.units)
            return
        if active is None or (active.high > MOST_UNSURE and not active.is_clear):
            yield FEW.format(self.units)
            return
        yield from self._of_pairs(active)
        yield from self._of_rows(active)
        yield from self._of_bounds()

    def _of_pairs(self, active: Share) -> Iterator[str]:
        pairs = self.share("pairs")
        if pairs is None:
            return
        people = [
            printable(measure.alias)
            for measure in self.published.measures
            if measure.function is AggregateFunction.COUNT_DISTINCT_UNIT
        ]
        keys = ", ".join(map(printable, self.published.names(Role.KEY)))
        share = str(active).capitalize()
        who_is_active = KEYS.format(share, self.units, self.max_keys, keys)
        if self.share("rows"):
            if people:
                lacking = _too_low(f"the numbers of {', '.join(people)} above", pairs)
                yield f"{lacking[0].upper()}{lacking[1:]}."
        elif people:
            yield f"{who_is_active}; {_too_low('the counts above', pairs)}."
        else:
            yield f"{who_is_active}."
        yield from self._very_active("pairs", BEYOND * self.max_keys)

    def _of_rows(self, active: Share) -> Iterator[str]:
        rows = self.share("rows")
        if rows is None:
            return
        is_known = rows.is_clear or rows.high <= MOST_UNSURE
        missing = f"at least {_percent(rows.value)}" if rows.is_clear else str(rows)
        missing = missing if is_known else "an unknown share"
        yield RECORDS.format(str(active).capitalize(), self.units, missing)
        yield from self._very_active("rows", BEYOND * self.max_rows)

    def _very_active(self, name: str, limit: float) -> Iterator[str]:
        """Say so where units that are over lose so much that some must be beyond what is counted of one."""
        share = self.share(name)
        missing = self.number(f"{name}_left_out") or (0.0, 0.0)
        active = self.number("units_over") or (0.0, 0.0)
        if share and share.is_clear and missing[0] > max(1.0, active[0]) * limit / MOSTLY_FEW:
            yield VERY_ACTIVE.format(limit, "records" if name == "rows" else name)

    def _of_bounds(self) -> Iterator[str]:
        """Say how many of the values, of the sums of a unit in a group, or of both are clamped."""
        kinds = {measure.per_group for measure in self.published.measures if measure.bounds}
        sums = ("pairs", SUMS) if self.published.names(Role.KEY) else ("units", SUMS_OF_UNITS)
        chosen = [("rows", VALUES)] * (False in kinds) + [sums] * (True in kinds)
        clamped = self.ratio("values_clamped", *(figure for figure, _ in chosen))
        if clamped:
            words = " and ".join(phrase for _, phrase in chosen)
            yield CLAMPED.format(str(clamped).capitalize(), words, self._bounds())

    def _bounds(self) -> str:
        ends = {pair for measure in self.published.measures for pair in measure.ranges}
        return "{:g} or {:g}".format(*ends.pop()) if len(ends) == 1 else "a bound"


def _too_low(numbers: str, pairs: Share) -> str:
    if pairs.is_clear:
        return f"{numbers} are too low by at least {_percent(pairs.value)} on average"
    if pairs.high > MOST_UNSURE:
        return f"there are too few units to say how much too low {numbers} are"
    return f"{numbers} are too low by less than {_percent(pairs.high)} on average, as far as this capped estimate shows"


def has_units(published: Published) -> bool:
    """Tell whether units are protected: then their limits can leave records out."""
    return bool(published.protects and published.protects[-1].units)


def of_window(rows: PublicRows, start: datetime | None = None) -> LeftOut | None:
    """Return the figures of a window, or of all records; None where there are none."""
    if not has_units(rows.description):
        return None
    for figures in rows.left_out:
        text = figures.get(START)
        if start is None or (text and datetime.fromisoformat(text) == start):
            return LeftOut(figures, rows.description)
    return None


def of_shown_windows(rows: PublicRows) -> list[dict[str, Any]]:
    """Return the figures of the windows of some rows, as JSON has them."""
    if not rows.description.windows:
        return rows.left_out
    starts = {start.to_pydatetime() for start in rows.frame[START].unique()}
    return [each for each in rows.left_out if datetime.fromisoformat(each[START]) in starts]


def estimates(rows: PublicRows) -> tuple[str, ...]:
    """Return what the limits left out of the newest window of some rows that has figures; nothing where none has."""
    if not rows.description.windows:
        left_out = of_window(rows)
        return tuple(left_out.sentences()) if left_out else ()
    starts = sorted(rows.frame[START].unique(), reverse=True)
    for start in starts:
        if left_out := of_window(rows, start.to_pydatetime()):
            place = f"Window {start:{TIME}}: " if len(starts) > 1 else ""
            sentences = [*left_out.sentences()]
            return (place + sentences[0], *sentences[1:])
    return ()
