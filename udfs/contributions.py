"""Contributions: what the intake tells the release, and the integers that a record adds to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Bool, Float, Int, int_fields

WEIGHT_UNIT = 2.0**-20
"""Weights and thresholds are integers in this unit."""

FINE = 2**31
"""How many parts the larger of two bounds per group has, in which is counted how much of them a unit has used."""
PER_GROUP = "_per_group"
Side = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Partner:
    """The other value of a record that has two: where it is NULL, the record adds nothing.

    Args:
        argument: its number.
        centre, half_width: of a `product`: the middle of its bounds, and half of their width.
        own_half_width: half of the width of the bounds of the first value.
    """

    argument: int
    centre: float = 0.0
    half_width: float = 0.0
    own_half_width: float = 0.0


@dataclass(frozen=True)
class Increment:
    """How one record becomes the integer increment of one perturbation.

    rule: `rows` (1), `valid` (1 where the argument is not NULL), `users` (1 at the user's first record in the group, of all periods),
    `sum` (argument minus centre, rounded to the grid, clamped to lower..upper; NULL adds 0), `squares` (that squared, rounded, less upper,
    clamped: a square lies between 0 and twice upper) or `leaf` (like a sum's, but rounded up: the number of the leaf of width `grid` in
    which it is, 0 of NULL; `dpsql.udfs.intake.leaf_counts` counts by it) or `product` (of argument and partner, each less its centre and clamped
    to its half width; rounded, then clamped). `rows`, `valid` and `sum` may end in `_per_group`: then lower..upper
    bound what one unit's records add up to in a group (`dpsql.udfs.intake.group_sums`), and a record has its number in parts of the larger.
    """

    rule: str
    argument: int = -1
    grid: float = 1.0
    lower: int = 0
    upper: int = 1
    centre: float = 0.0
    partner: Partner | None = None

    @property
    def largest(self) -> float:
        """The most that one record adds, in value units and absolute."""
        return max(abs(self.lower), abs(self.upper)) * self.grid

    @property
    def per_group(self) -> bool:
        """Whether the bounds are of a unit's sum in a group."""
        return self.rule.endswith(PER_GROUP)

    @property
    def parts_of_unit(self) -> int:
        """How many parts a unit of the grid has."""
        return max(FINE // max(-self.lower, self.upper), 1)

    @property
    def parts_of_half(self) -> int:
        """How many parts half a unit has, at least."""
        return (self.parts_of_unit + 1) // 2

    def side_beyond(self, rows: pa.Table) -> Side:
        """Return 1 where a record's value is above the bounds, by half a step or more, -1 where it is below, else 0; squares go with their values."""
        rule = self.rule.removesuffix(PER_GROUP)
        if rule not in ("sum", "leaf"):
            return np.zeros(rows.num_rows, np.int8)
        x: Float = rows[f"a{self.argument}"].to_numpy()
        lowest = 0 if rule == "leaf" else self.lower
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.rint((x - self.centre) / self.grid)
            side = (steps > self.upper).astype(np.int8) - (steps < lowest)
        return np.where(self._is_null(rows), np.int8(0), side)

    def in_units(self, parts: Int) -> Int:
        """Round parts to units, half of one up; parts are not negative."""
        return (2 * parts + self.parts_of_unit) // (2 * self.parts_of_unit)

    def _is_null(self, rows: pa.Table) -> Bool:
        """Tell which records lack the value, or that of the partner."""
        is_null = np.isnan(rows[f"a{self.argument}"].to_numpy())
        if self.partner is not None:
            is_null |= np.isnan(rows[f"a{self.partner.argument}"].to_numpy())
        return is_null

    def _products(self, centred: Float, rows: pa.Table, is_null: Bool) -> Float:
        """Multiply centred values by their partners'; each is clamped first."""
        assert self.partner is not None
        own = self.partner.own_half_width
        half_width = self.partner.half_width
        partners = np.where(is_null, 0.0, rows[f"a{self.partner.argument}"].to_numpy())
        other = np.clip(partners - self.partner.centre, -half_width, half_width)
        return np.clip(centred, -own, own) * other

    def increments(self, rows: pa.Table) -> Int:
        """Return one integer per record."""
        rule = self.rule.removesuffix(PER_GROUP)
        parts = self.parts_of_unit if self.per_group else 1
        if rule in ("rows", "users"):
            return np.full(rows.num_rows, parts, np.int64)
        x: Float = rows[f"a{self.argument}"].to_numpy()
        is_null = self._is_null(rows)
        if rule == "valid":
            return (~is_null).astype(np.int64) * parts
        with np.errstate(
            over="ignore"
        ):  # a warning would tell of a value; infinity is clamped like any other
            centred = np.where(is_null, 0.0, x) - self.centre
            if self.rule == "product":
                centred = self._products(centred, rows, is_null)
            if self.per_group:
                clamped = np.clip(centred / self.grid, self.lower, self.upper)
                return np.rint(clamped * parts).astype(np.int64)
            rounded = np.ceil if self.rule == "leaf" else np.rint
            scaled = (
                np.rint(centred * centred / self.grid) - self.upper
                if self.rule == "squares"
                else rounded(centred / self.grid)
            )
            scaled = np.clip(scaled, self.lower, self.upper)
        return np.where(is_null, 0, scaled.astype(np.int64))


def contributions(
    values: int, by_user: bool = False, by_level: bool = False, by_leaf: bool = False
) -> pa.Schema:
    """Return what the intake tells the release: sums of so many increments, per user where rounds of selection want that, per level of an interval tree,
    per leaf of quantiles."""
    ints = ["window", "trigger", "key", *(["user"] if by_user else [])]
    sums = [
        "weight",
        "users",
        *(f"v{j}" for j in range(values)),
        *(["level"] if by_level else []),
        *(["leaf"] if by_leaf else []),
    ]
    return pa.schema([*int_fields(ints), ("key_bytes", pa.binary()), *int_fields(sums)])
