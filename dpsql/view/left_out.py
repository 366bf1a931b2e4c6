"""What the limits left out of a window, in words: shares of its units, keys, records and values. No sentence is false in more than 2.5% of secrets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpsql.description import START, STDERR, Protects, Published, Role
from dpsql.parsed_query import AggregateFunction
from dpsql.parts.left_out import BEYOND
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import has_limits
from dpsql.text import Z95
from dpsql.view.words import TIME, printable

FINE = 0.01
"""Shares below it have two decimals."""
LEAST = 0.0001
"""A share that a text has room for."""
TELLING = 0.2
"""An interval that is wider, and a share of which no more is known than that it is below this, are not told."""
Z_BOTH = 2.2414
"""Standard deviations that both ends of an interval keep together as often as `Z95` one end: in all but 2.5% of secrets."""
FEW = "There are too few {} for an estimate of what the limits left out."
FEW_IN_ALL = "At most {:,} {} in all: there are few, or their records do not fit the schema."
KEYS = "of {} have more than {:,} values of {}"
RECORDS = "of {} have more records than may count"
PAIRS = "of the pairs of a unit and a key are left out"
ROWS = "of the records are left out"
COUNTED = ", counting at most {:,} of each unit"
CLAMPED = "of the {} were clamped to {}"
VALUES = "values that count"
SUMS = "sums of a unit and key"
SUMS_OF_UNITS = "sums of a unit"

Figure = tuple[float, float]
"""A released number and its standard error."""


def least_ratio(part: Figure, base: Figure, z: float) -> float:
    """Return the lower end of Fieller's interval of a ratio of two numbers that are not negative; it fails as often as noise exceeds z deviations."""
    x = part[0] / part[1]
    y = max(0.0, base[0] / base[1])
    if x <= z:
        return 0.0
    angle = math.acos(z / math.hypot(x, y)) - math.atan2(y, x)
    return part[1] / base[1] * math.tan(angle)


@dataclass(frozen=True)
class Share:
    """A share that a part has of a base, or, `of_sum`, of both together; by released numbers."""

    part: Figure
    base: Figure
    of_sum: bool = False

    def ends(self, z: float) -> tuple[float, float]:
        """Return both ends, each of which fails as often as noise exceeds z deviations."""
        low = least_ratio(self.part, self.base, z)
        inverse = least_ratio(self.base, self.part, z)
        if self.of_sum:
            return low / (1 + low), 1 / (1 + inverse)
        return min(1.0, low), 1 / max(1.0, inverse)

    def sentence(self, predicate: str, remark: str = "") -> str:
        """Say what is certain of the share in all but 2.5% of secrets; nothing where that tells nothing.

        Args:
            predicate: of the sentence.
            remark: how far the part is counted; only its lower end holds for all of it. Empty: it is counted whole.
        """
        lower, upper = self.ends(Z95)
        low, high = self.ends(Z_BOTH)
        if low >= LEAST and high - low <= TELLING and not remark:
            return f"Between {_text(low, math.floor)}% and {_text(high, math.ceil)}% {predicate}."
        if lower >= LEAST:
            return f"At least {_text(lower, math.floor)}% {predicate}."
        if upper <= TELLING:
            return f"Fewer than {_text(upper, math.ceil)}% {predicate}{remark}."
        return ""


def _text(share: float, rounded: Callable[[float], int]) -> str:
    """Return a share in per cent, rounded to one side."""
    decimals = 1 + (share < FINE)
    return f"{rounded(100 * share * 10**decimals) / 10**decimals:.{decimals}f}"


@dataclass(frozen=True)
class LeftOut:
    """The figures of one window, or of all records that are released once.

    Args:
        figures: a row of the table of figures, as JSON has it.
        published: what the histogram says of itself.
        keys: how many are released, or more.
    """

    figures: Mapping[str, Any]
    published: Published
    keys: int = 0

    def share(self, name: str) -> Share | None:
        """Return what is left out, of all that is there; None where it is not present."""
        missing = self.number(f"{name}_left_out")
        present = self.number(name)
        return None if missing is None or present is None else Share(missing, present, of_sum=True)

    def ratio(self, name: str, *bases: str) -> Share | None:
        """Return one figure as a share of others that it is a part of, added up."""
        part = self.number(name)
        totals = [total for base in bases if (total := self.number(base))]
        if part is None or len(totals) < len(bases):
            return None
        base = sum(value for value, _ in totals), math.hypot(*(stderr for _, stderr in totals))
        return Share(part, base)

    def shortfall(self) -> float:
        """Return the most that pairs left out are of pairs that count; infinite where nothing is known of them."""
        missing = self.number("pairs_left_out")
        counted = self.number("pairs")
        if missing is None or counted is None:
            return math.inf
        return max(0.0, missing[0] + Z95 * missing[1]) / max(1.0, counted[0] - Z95 * counted[1])

    def number(self, name: str) -> Figure | None:
        """Return a figure and its standard error; None where it is not counted."""
        if name not in self.figures:
            return None
        return self.figures[name], self.figures[f"{name}_{STDERR}"]

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

    def sentences(self) -> list[str]:
        """Return what the figures say; nothing where no limit can leave a record out."""
        if not has_limits(self.published):
            return []
        value, stderr = self.number("units") or (0.0, 1.0)
        if self.published.once and value < Z95 * stderr:
            return [FEW_IN_ALL.format(max(1, math.ceil(value + Z95 * stderr)), self.units)]
        texts = self._of_units(), self._of_pairs(), self._of_rows(), self._of_bounds()
        can_lack = self.share("rows") or self.keys > self.max_keys
        return [text for text in texts if text] or [FEW.format(self.units)] * bool(can_lack)

    def _of_units(self) -> str:
        active = self.ratio("units_over", "units")
        if active and self.share("rows"):
            return active.sentence(RECORDS.format(self.units))
        keys = ", ".join(map(printable, self.published.names(Role.KEY)))
        predicate = KEYS.format(self.units, self.max_keys, keys)
        return self._of_keys(active.sentence(predicate)) if active and keys else ""

    def _of_pairs(self) -> str:
        pairs = self.share("pairs")
        functions = [measure.function for measure in self.published.measures]
        is_counted = AggregateFunction.COUNT_DISTINCT_UNIT in functions or not self.share("rows")
        remark = COUNTED.format(BEYOND * self.max_keys)
        return self._of_keys(pairs.sentence(PAIRS, remark)) if pairs and is_counted else ""

    def _of_keys(self, text: str) -> str:
        """Return a sentence on keys, unless nobody can have more of them than may count."""
        return "" if text.startswith("Fewer") and self.keys <= self.max_keys else text

    def _of_rows(self) -> str:
        rows = self.share("rows")
        return rows.sentence(ROWS, COUNTED.format(BEYOND * self.max_rows)) if rows else ""

    def _of_bounds(self) -> str:
        """Say how many of the values, of the sums of a unit in a group, or of both are clamped."""
        kinds = {measure.per_group for measure in self.published.measures if measure.bounds}
        sums = ("pairs", SUMS) if self.published.names(Role.KEY) else ("units", SUMS_OF_UNITS)
        chosen = [("rows", VALUES)] * (False in kinds) + [sums] * (True in kinds)
        clamped = self.ratio("values_clamped", *(figure for figure, _ in chosen))
        words = " and ".join(phrase for _, phrase in chosen)
        return clamped.sentence(CLAMPED.format(words, self._bounds())) if clamped else ""

    def _bounds(self) -> str:
        ends = {pair for measure in self.published.measures for pair in measure.ranges}
        return "{:g} or {:g}".format(*ends.pop()) if len(ends) == 1 else "a bound"


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
            return LeftOut(
                figures,
                rows.description,
                len(rows.frame) if start is None else (rows.frame[START] == start).sum(),
            )
    return None


def of_shown_windows(rows: PublicRows) -> list[dict[str, Any]]:
    """Return the figures of the windows of some rows, as JSON has them."""
    if not rows.description.windows:
        return rows.left_out
    starts = {start.to_pydatetime() for start in rows.frame[START].unique()}
    return [each for each in rows.left_out if datetime.fromisoformat(each[START]) in starts]


def estimates(rows: PublicRows) -> tuple[str, ...]:
    """Return what the limits left out of the newest window of some rows that has figures; nothing where none has."""
    rows = rows.newest
    if not rows.description.windows:
        left_out = of_window(rows)
        return tuple(left_out.sentences()) if left_out else ()
    starts = sorted(rows.frame[START].unique(), reverse=True)
    for start in starts:
        if left_out := of_window(rows, start.to_pydatetime()):
            place = f"Window {start:{TIME}}: " if len(starts) > 1 else ""
            return tuple(
                place * (not number) + text for number, text in enumerate(left_out.sentences())
            )
    return ()
