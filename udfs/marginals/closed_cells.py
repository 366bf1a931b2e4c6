"""Cells of a clock that will not change any more: each is released once, and estimates join them with the counters.

A clock is some keys whose values together number disjoint intervals of event time. A bucket closes at the first trigger at or after its end and the
lateness; what comes later is dropped from every table, so that all tables are of the same rows. Which bucket closes when depends on the clock alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from udfs.columns import Bool, Int
from udfs.marginals.cells import Keys, Marginals
from udfs.marginals.least_squares import NOT_COVERED, Estimate, LeastSquares, Product


@dataclass(frozen=True)
class ClockKeys:
    """Which keys are the clock, and when its buckets begin and end.

    Args:
        keys: their places, ascending.
        begins_us, ends_us: of each bucket, in the order of the keys' values; no two buckets share a moment.
        lateness_us: how long after its end a bucket still takes rows.
        start_us, trigger_us: trigger i is at start_us + i * trigger_us.
    """

    keys: Keys
    begins_us: tuple[int, ...]
    ends_us: tuple[int, ...]
    lateness_us: int
    start_us: int
    trigger_us: int

    def __post_init__(self) -> None:
        spans = sorted(zip(self.begins_us, self.ends_us, strict=True))
        if any(end <= begin for begin, end in spans) or any(after < end for (_, end), (after, _) in pairwise(spans)):
            raise ValueError("buckets of a clock are intervals that do not overlap: one that came round again would be shown twice")

    def closes_at(self) -> Int:
        """The trigger at which each bucket closes."""
        return -((self.start_us - np.array(self.ends_us) - self.lateness_us) // self.trigger_us)

    def closed(self, trigger: int) -> Bool:
        """Which buckets have closed at a trigger."""
        return np.maximum(self.closes_at(), 1) <= trigger

    def begun(self, trigger: int) -> Bool:
        """Which buckets can have a row in the tables of a trigger."""
        return np.array(self.begins_us) < self.start_us + trigger * self.trigger_us

    def in_time(self, buckets: Int, trigger: Int) -> Bool:
        """Whether rows of these buckets that would join the sums at these triggers still may; others are dropped from every table."""
        return trigger <= np.maximum(self.closes_at(), 1)[buckets]


@dataclass(frozen=True)
class ClosedCells:
    """What is known of the noise at one trigger where cells close; public.

    Args:
        marginals: the tables; those that contain all clock keys are released bucket by bucket.
        variances: of one cell of each table; of a closed cell where it is released once.
        clock: its keys.
        closed, begun: per bucket.
    """

    marginals: Marginals
    variances: tuple[float, ...]
    clock: Keys
    closed: Bool
    begun: Bool

    def estimate(self, predicate: Product, released: Sequence[np.ndarray]) -> Estimate:
        """The estimate of least variance among those of the page; cells that are not closed are not read."""
        return min((way for way in self._ways(predicate, released)), key=lambda way: way.stderr, default=NOT_COVERED)

    def _ways(self, predicate: Product, released: Sequence[np.ndarray]) -> Iterator[Estimate]:
        once = [t for t, keys in enumerate(self.marginals.tables) if {*self.clock} <= {*keys}]
        others = [t for t in range(len(released)) if t not in once]
        rest = {key: weights for key, weights in predicate.items() if key not in self.clock}
        on_clock = self._on_clock(predicate)
        open_ = on_clock[self.begun & ~self.closed]
        if np.array_equal(self.closed, self.begun) and len(self.clock) == 1 and self.closed.any():
            yield self._over_closed(range(len(released)), rest, on_clock, released)
        counters = LeastSquares(self.marginals.sizes, *self._some(others))
        counted = [released[t] for t in others]
        yield counters.estimate(predicate, counted)
        if np.all(open_ == 1):
            both = counters.estimate(rest, counted), self._over_closed(once, rest, on_clock - 1, released)
            yield Estimate(both[0].value + both[1].value, float(np.hypot(both[0].stderr, both[1].stderr)))
        if not open_.any():
            yield self._over_closed(once, rest, on_clock, released)

    def _over_closed(self, which: Sequence[int], rest: Product, on_clock: np.ndarray, released: Sequence[np.ndarray]) -> Estimate:
        """Least squares over the closed buckets as one key, the last one."""
        keys = [key for key in range(len(self.marginals.sizes)) if key not in self.clock]
        place, bucket = {key: at for at, key in enumerate(keys)}, len(keys)
        weights = on_clock[self.closed]
        if not weights.any():
            return Estimate(0.0, 0.0)
        tables, arrays = [], []
        for t in which:
            mine, table = self.marginals.tables[t], released[t]
            plain = tuple(place[key] for key in mine if key not in self.clock)
            if {*self.clock} <= {*mine}:
                axes = [mine.index(key) for key in self.clock]
                last = np.moveaxis(table, axes, range(-len(axes), 0))
                table = last.reshape(*last.shape[: -len(axes)], -1)[..., self.closed]
                plain = (*plain, bucket)
            tables.append(plain)
            arrays.append(table)
        sizes = (*(self.marginals.sizes[key] for key in keys), len(weights))
        fit = LeastSquares(sizes, tuple(tables), tuple(self.variances[t] for t in which))
        return fit.estimate({place[key]: given for key, given in rest.items()} | {bucket: weights}, arrays)

    def _some(self, which: Sequence[int]) -> tuple[tuple[Keys, ...], tuple[float, ...]]:
        return tuple(self.marginals.tables[t] for t in which), tuple(self.variances[t] for t in which)

    def _on_clock(self, predicate: Product) -> np.ndarray:
        """The predicate's weight of each bucket."""
        out = np.ones(1)
        for key in self.clock:
            out = np.multiply.outer(out, predicate.get(key, np.ones(self.marginals.sizes[key]))).ravel()
        return out
