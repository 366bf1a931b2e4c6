"""The intake where one event is protected: records become exact sums per pane and bin. It knows no privacy unit and keeps no state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from udfs.columns import Bool, Float, Int, run_starts, run_sums, sort_order
from udfs.sliding.panes import Panes

REASONS = ("early", "future", "late", "unlisted")
"""Why a record counts nowhere, in the order of asking: it lies before the first pane, is later than the clock allows, its pane is closed, or
its key is not listed."""


@dataclass(frozen=True)
class Contribution:
    """What one record adds to one measured sum.

    Args:
        rule: `rows` (1), `valid` (1 where the argument is not NULL) or `sum` (the argument minus the centre, in steps of the grid, clamped).
        argument: position of the argument, a0, a1, ..; -1: none.
        grid: a power of two.
        lower, upper: clamp, in steps of the grid.
        centre: what is subtracted first.
    """

    rule: str
    argument: int = -1
    grid: float = 1.0
    lower: int = 0
    upper: int = 1
    centre: float = 0.0

    def of(self, records: pa.Table) -> Int:
        """One integer per record."""
        if self.rule == "rows":
            return np.ones(records.num_rows, np.int64)
        x: Float = records.column(f"a{self.argument}").to_numpy()
        null = np.isnan(x)
        if self.rule == "valid":
            return (~null).astype(np.int64)
        with np.errstate(over="ignore"):  # a warning would tell of a value; infinity is clamped like any other
            scaled = np.clip(np.rint((np.where(null, 0.0, x) - self.centre) / self.grid), self.lower, self.upper)
        return np.where(null, 0, scaled.astype(np.int64))


@dataclass(frozen=True)
class Intake:
    """Concrete numbers of the step: the panes, the ids of the listed keys in ascending order, and what is summed."""

    panes: Panes
    keys: tuple[int, ...]
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class TakenIn:
    """`sums`: `pane, key, v0, ..`, sorted by (pane, key); `left_out`: records by reason."""

    sums: pa.Table
    left_out: dict[str, int]


def take_in(records: pa.Table, closed_us: int, latest_us: int, p: Intake) -> TakenIn:
    """Sum the records of one micro-batch.

    Args:
        records: `ts`, `key`, `a0`, ..; any order.
        closed_us: the clock; panes that it has closed take nothing more.
        latest_us: records with later event times are left out.
        p: the plan's numbers.

    Returns:
        TakenIn; a record is in one pane or in none.
    """
    ts, key = records.column("ts").to_numpy(), records.column("key").to_numpy()
    listed = np.array(p.keys, np.int64)
    at = np.minimum(np.searchsorted(listed, key), max(len(listed) - 1, 0))
    unlisted = listed[at] != key if len(listed) else np.ones(len(key), bool)
    early, future = ts < p.panes.first_us, ts > latest_us
    late = ~p.panes.accepts(ts, closed_us)
    left_out: dict[str, int] = {}
    kept: Bool = np.ones(len(ts), bool)
    for reason, why in zip(REASONS, (early, future, late, unlisted), strict=True):
        left_out[reason] = int((kept & why).sum())
        kept &= ~why
    taken = records.filter(pa.array(kept))
    pane, key = p.panes.number(ts[kept]), key[kept]
    order = sort_order(pane, key)
    starts = run_starts(pane[order], key[order])
    columns = {"pane": pane[order][starts], "key": key[order][starts]}
    for j, each in enumerate(p.contributions):
        columns[f"v{j}"] = run_sums(each.of(taken)[order], starts)
    return TakenIn(pa.table(columns), left_out)
