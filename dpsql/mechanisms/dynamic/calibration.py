"""From bounds and budget to the numbers of a table that is released for ever: sensitivities, and thresholds over an endless sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.parts.key_selection import WEIGHT_BITS
from dpsql.privacy.curve import round_up
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.table.grid import LAST_STEP

SINGLE = 64
"""Triggers up to here have a threshold each."""
PER_OCTAVE = 32
"""Later ones share one with their neighbours: so many per doubling of the trigger number; less than 1% above the least up to trigger 2^23."""
HIDE_BELOW = 0.5
"""A key that has appeared is not shown while its noisy weight is below that share of its threshold."""


ROUNDING = 1e-5
"""How much more the sums of a measure may move together because each is rounded to a grid, relatively."""


@dataclass(frozen=True)
class TableBounds:
    """What one privacy unit may add to a table.

    Args:
        max_rows: C; with ends: row versions.
        max_rows_per_group: c: of these with one key, at the same time.
        max_groups: G: different keys.
        ends: rows may be deleted and changed; otherwise the table only grows.
        max_spells: S: times of presence, over all keys; with ends only.
    """

    max_rows: float
    max_rows_per_group: float
    max_groups: int
    ends: bool = False
    max_spells: int = 1

    @property
    def rows(self) -> float:
        """Rows that can count: a slot that is free again takes another version, so with ends G keys of c slots hold C in the course of time."""
        return (
            self.max_rows
            if self.ends
            else min(self.max_rows, self.max_groups * self.max_rows_per_group)
        )

    @property
    def counts(self) -> int:
        """Times that one unit can begin to count in key selection, or in COUNT(DISTINCT unit)."""
        return self.max_spells if self.ends else self.keys

    @property
    def keys(self) -> int:
        """Keys in which one unit can count."""
        return int(min(self.max_rows, self.max_groups))


def row_sensitivity(bounds: TableBounds, lower: float, upper: float) -> float:
    """Of a sum of values in [lower, upper] (a count: [0, 1]), as a multiple of the counter's column norm (docs/privacy/dynamic.md, theorem 16)."""
    per_group = bounds.max_rows_per_group
    if not bounds.ends:
        return math.sqrt(per_group * bounds.rows) * max(abs(lower), abs(upper))
    largest = math.hypot(lower, upper) if lower < 0 < upper else max(abs(lower), abs(upper))
    return math.sqrt(2 * per_group * bounds.rows) * largest


def measure_sensitivity(bounds: TableBounds, sums: int, lower: float, upper: float) -> float:
    """The same of one of the `sums` of an average or a spread, each with as much of mu^2 as the others.

    Where rows end their shifts are one vector (docs/privacy/lemma.md, a measure whose rows end), and signs cost nothing as long as the count has as
    much of mu^2 as the sum; of a spread 9 parts, as sum and squares have 8 each.
    """
    if not bounds.ends or sums == 1:
        return row_sensitivity(bounds, lower, upper)
    parts = 1 / sums if sums == 2 else (9 if lower == 0 else 8) / 25
    return row_sensitivity(bounds, 0.0, max(abs(lower), abs(upper))) * math.sqrt(
        (1 + ROUNDING) / (sums * parts)
    )


def presence_sensitivity(bounds: TableBounds, weights: Sequence[float]) -> float:
    """Of a sum to which a unit adds its i-th weight while it is present, likewise."""
    return math.sqrt((2 if bounds.ends else 1) * math.fsum(w * w for w in weights))


def blocks() -> tuple[int, ...]:
    """The first trigger of every block of triggers that share a threshold, up to the last step that a noise cell can have."""
    octaves = range(SINGLE.bit_length() - 1, LAST_STEP.bit_length())
    return (
        *range(1, SINGLE),
        *((1 << k) + j * (1 << k) // PER_OCTAVE for k in octaves for j in range(PER_OCTAVE)),
    )


def failure_probability(total: float, trigger: int) -> float:
    """beta_i = total (6 / pi^2) / ((k + 1)^2 2^k), k = floor(lg i): over all triggers without end they add up to `total`."""
    octave = trigger.bit_length() - 1
    return total * (6 / math.pi**2) / ((octave + 1) ** 2 * 2**octave)


def endless_thresholds(
    chosen: BltInf, sigma: float, largest_weight: int, min_units: int, failure: float
) -> tuple[int, ...]:
    """tau of every block: m w_1 + sd Phi^-1(1 - beta), sd at the block's last trigger, rounded up to multiples of 2^-20; in units of 2^-20.

    Args:
        chosen: counter of the selection path.
        sigma: of one of its steps.
        largest_weight: w_1, in units of 2^-20.
        min_units: m, exact units before the noisy test.
        failure: what all thresholds of one group may fail with, together.
    """
    from scipy.stats import norm  # slow to import

    first = blocks()
    quantiles: dict[int, float] = {}
    taus = []
    for begin, end in zip(first, [*first[1:], LAST_STEP + 1], strict=True):
        octave = begin.bit_length() - 1
        if octave not in quantiles:
            quantiles[octave] = round_up(
                float(norm.isf(failure_probability(failure, begin))) * (1 + 1e-12)
            )
        noise = sigma * math.sqrt(chosen.path_variance(end - 1)) * quantiles[octave] * (1 + 1e-12)
        taus.append(min_units * largest_weight + math.ceil(noise * 2.0**WEIGHT_BITS))
    return tuple(taus)


def shown_from(thresholds: Sequence[int]) -> tuple[int, ...]:
    """The noisy weight below which a key that has appeared is not shown, rounded up; in units of 2^-20."""
    return tuple(math.ceil(Fraction(HIDE_BELOW) * tau) for tau in thresholds)
