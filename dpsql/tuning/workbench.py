"""One query and one sample, measured under many settings. Sums are cached by bounds: a budget or a threshold changes none of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.compiled import Query
from dpsql.errors import ConfigError
from dpsql.mechanisms import registry
from dpsql.mechanisms.histogram.asked import ReleaseRule
from dpsql.mechanisms.histogram.plan import ColumnPlan, PerturbationPlan, PrivacyPlan
from dpsql.mechanisms.histogram.planner import unnamed_plan
from dpsql.mechanisms.histogram.stages import stderr
from dpsql.parsed_query import AVERAGED, DEVIATIONS, SPREADS, Aggregate, AggregateFunction, ParsedQuery, changed
from dpsql.parts.output_columns import SAMPLES
from dpsql.tuning.bounding import Admitted, Arrangement, Bounds
from dpsql.tuning.expected import Outcome, selected, thinned, unit_paths
from dpsql.tuning.sample import Sample
from dpsql.udfs.columns import Float, Int
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.measure.spread import Moments
from dpsql.udfs.noise.counters import counter


@dataclass(frozen=True)
class Setting:
    """What tuning looks at, under the names of the options."""

    max_rows_contributed: int
    max_rows_per_group: int
    max_groups_contributed: int
    epsilon: float
    trigger_interval_us: int

    @classmethod
    def of(cls, query: ParsedQuery) -> Setting:
        """The setting that a query has."""
        given = vars(query) | vars(query.asked)
        return cls(**{field.name: given[field.name] for field in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Measurement:
    """What a setting does to the sample, counted as the whole stream (`scale`), at each window's last trigger.

    Args:
        setting: the setting.
        horizon: triggers per window.
        kept: share of the records that the bounds admit. dropped: records of the sample over each bound.
        keys: groups with a record. keys_kept: how many of them are expected to be released.
        columns: alias -> `l_1, l_2, l_inf` (expected; of l_inf the median), `true` and `true_l_2` (norms of the truth), `stderr`.
        cost: what the search makes small: the error in shares of the truth, the mean of the columns that count; or the share of
            the keys that are missing.
    """

    setting: Setting
    horizon: int
    kept: float
    dropped: Mapping[str, int]
    keys: int
    keys_kept: float
    columns: Mapping[str, Mapping[str, float]]
    cost: float


@dataclass(frozen=True)
class _Sums:
    """What one set of bounds leaves: values per perturbation and cell, and each user's first copy in each of its cells."""

    admitted: Admitted
    values: tuple[Float, ...]
    cell: Int
    rank: Int
    record: Int
    start: Int


def check_tunable(query: Query) -> None:
    """Refuse a query whose settings cannot be measured here; no sample has to be read for that.

    Raises:
        ConfigError: another mechanism's query, `mechanism = PAPER`, or `carry_windows` above 1.
    """
    if query.parsed.mechanism != PrivacyPlan.mechanism:
        takes = registry.named(PrivacyPlan.mechanism).takes
        raise ConfigError(f"tune measures {takes}; what another setting does to {query.mechanism.takes}, `dpsql try` shows")
    if query.parsed.asked.release is ReleaseRule.RESELECT:
        raise ConfigError("tuning measures our mechanism, which is more accurate than the paper's: leave mechanism out")
    if query.parsed.asked.carry_windows > 1:
        raise ConfigError("tuning looks at each window by itself: write carry_windows = 1, or leave the option out")


class Workbench:
    """A query, a sample and its scale.

    Args:
        query: from `dpsql.compile`; a query that selects keys in rounds is refused.
        sample: from `read_sample`.
        scale: the stream's users for each user of the sample. Every group is taken to be `scale` times as large: a sample cannot
            show keys that nobody in it has.
        column: the alias whose error counts; all columns, equally, unless given.
        goal: `l_1` or `l_2`, the norm of the error that counts; `keys`: how many appear.

    Raises:
        ConfigError: as `check_tunable`; no such column.
    """

    def __init__(self, query: Query, sample: Sample, scale: float = 1.0, column: str | None = None, goal: str = "l_1") -> None:
        check_tunable(query)
        aliases = [each.aggregate.alias for each in query.plan.columns]
        if column is not None and column not in aliases:
            raise ConfigError(f"no column {column!r}: the query's aggregates are {', '.join(aliases)}")
        self.query, self.sample, self.scale, self.goal = query, sample, scale, goal
        # An average's errors are no shares of a whole: they say little beside those of counts.
        sizes = tuple(each.aggregate.alias for each in query.plan.columns if each.aggregate.function not in AVERAGED)
        self.counted = (column,) if column is not None else sizes or tuple(aliases)
        self.written = Setting.of(query.parsed)
        self.arrangement = Arrangement(sample, query.plan)
        self._true = {each.aggregate.alias: self._truth(each) for each in query.plan.columns}
        self._seen = np.unique(self.arrangement.cell)
        self._values = {p.mechanism: self._increments(p) for p in query.plan.perturbations}
        self._sums = lru_cache(maxsize=8)(self._add_up)
        self._measured = lru_cache(maxsize=None)(self._measure)

    def parsed(self, setting: Setting) -> ParsedQuery:
        """The query with this setting; a default `max_ahead` follows the trigger interval."""
        query, changes = self.query.parsed, dataclasses.asdict(setting)
        ahead = setting.trigger_interval_us if query.max_ahead_us == query.trigger_interval_us else query.max_ahead_us
        return changed(query, max_ahead_us=ahead, **changes)

    def plan(self, setting: Setting) -> PrivacyPlan:
        """The plan of this setting.

        Raises:
            ConfigError: the planner refuses it, because delta is too small or the noise too large.
        """
        return unnamed_plan(self.parsed(setting), self.query.source)

    def measure(self, setting: Setting) -> Measurement:
        """Expected errors of one setting, l_inf included."""
        return self._measured(setting, True)

    def cost(self, setting: Setting) -> float:
        """`Measurement.cost`; infinite for a setting that the planner refuses."""
        try:
            return self._measured(setting, False).cost
        except ConfigError:
            return float("inf")

    def clamped(self) -> dict[str, dict[str, float]]:
        """Alias -> share of the values that the bounds per row clamp, and how much of the sum of |values| that takes away."""
        out = {}
        for column in self.query.plan.columns:
            if column.aggregate.bounds is not None:
                x = self._finite(column.aggregate)
                x = x[~np.isnan(x)]
                lost = np.abs(x - np.clip(x, *column.aggregate.bounds))
                whole = np.abs(x).sum()
                out[column.aggregate.alias] = {
                    "clamped": float((lost > 0).mean()) if len(x) else 0.0,
                    "lost": float(lost.sum() / whole) if whole else 0.0,
                }
        return out

    def _measure(self, setting: Setting, largest: bool) -> Measurement:
        plan = self.plan(setting)
        sums = self._sums(Bounds(setting.max_rows_contributed, setting.max_rows_per_group, setting.max_groups_contributed), plan.max_groups)
        released = self._released(plan, sums)
        columns = {}
        for column in plan.columns:
            alias = column.aggregate.alias
            outcome = self._outcome(column, sums, released)
            columns[alias] = {
                "l_1": float(outcome.absolute().sum()),
                "l_2": float(np.sqrt(outcome.squared().sum())),
                "true": float(np.abs(outcome.true).sum()),
                "true_l_2": float(np.sqrt((outcome.true**2).sum())),
                "stderr": stderr(column.perturbations[0])[-1],
            }
            if largest:
                columns[alias]["l_inf"] = outcome.largest()
        kept = sums.admitted.records / len(self.sample.ts)
        keys_kept = float(released[self._seen].sum())
        cost = self._cost(columns, keys_kept)
        return Measurement(setting, plan.horizon, kept, sums.admitted.dropped, len(self._seen), keys_kept, columns, cost)

    def _cost(self, columns: Mapping[str, Mapping[str, float]], keys_kept: float) -> float:
        if self.goal == "keys":
            return 1 - keys_kept / len(self._seen)
        whole = {"l_1": "true", "l_2": "true_l_2"}[self.goal]
        return float(np.mean([columns[alias][self.goal] / max(columns[alias][whole], 1e-300) for alias in self.counted]))

    def _add_up(self, bounds: Bounds, max_groups: int) -> _Sums:
        a = self.arrangement
        admitted = a.admit(bounds, max_groups)
        copies, record = admitted.copies, a.record[admitted.copies]
        cell = a.cell[copies]
        values = tuple(
            _per_cell(cell, admitted.new if p.rule == "users" else self._values[p.mechanism][record], a.cells)
            for p in self.query.plan.perturbations
        )
        firsts = copies[admitted.first]
        return _Sums(admitted, values, a.cell[firsts], admitted.rank[admitted.first], a.record[firsts], a.start[firsts])

    def _released(self, plan: PrivacyPlan, sums: _Sums) -> Float:
        """Probability that each cell has been released by its last trigger."""
        selection, a = plan.selection, self.arrangement
        if selection is None:
            return np.ones(a.cells)
        triggers = thinned(plan.horizon)
        own = np.searchsorted(triggers, (a.ts[sums.record] - sums.start) // plan.query.trigger_interval_us + 1)
        place, shape = sums.cell * len(triggers) + own, (a.cells, len(triggers))
        weights = np.array((0, *selection.weights)) * WEIGHT_UNIT * self.scale
        weight = np.bincount(place, weights[sums.rank], a.cells * len(triggers)).reshape(shape).cumsum(axis=1)
        users = np.bincount(place, minlength=a.cells * len(triggers)).reshape(shape).cumsum(axis=1)
        tested = users * self.scale >= plan.min_counted
        tau, sd = np.array(selection.thresholds)[triggers - 1] * WEIGHT_UNIT, np.array(selection.sd)[triggers - 1]
        paths = _paths(selection.counter, plan.horizon) * selection.sigma
        return selected(weight, tau, sd, paths, tested & (users > 0))

    def _outcome(self, column: ColumnPlan, sums: _Sums, released: Float) -> Outcome:
        true, first = self._true[column.aggregate.alias], column.perturbations[0]
        total, error = sums.values[first.mechanism - 1] * self.scale, stderr(first)[-1]
        low, high = column.aggregate.bounds or (0.0, 0.0)
        if column.aggregate.function in SPREADS:
            return self._spread(column, true, sums, released)
        if column.aggregate.function is not AggregateFunction.AVG:
            return Outcome(true * self.scale, total, error, released, low >= 0)
        second = column.perturbations[1]
        count = np.maximum(sums.values[second.mechanism - 1] * self.scale, 1.0)
        mean = total / count
        spread = np.sqrt(error**2 + (mean * stderr(second)[-1]) ** 2) / count
        return Outcome(true, first.centre + mean, spread, released, low >= 0, high - low)

    def _spread(self, column: ColumnPlan, true: Float, sums: _Sums, released: Float) -> Outcome:
        parts = column.perturbations
        total, squares, count = (sums.values[p.mechanism - 1] * self.scale for p in parts)
        errors = [stderr(p)[-1] for p in parts]
        low, high = column.aggregate.bounds or (0.0, 0.0)
        largest, least = ((high - low) / 2) ** 2, 2.0 if column.aggregate.function in SAMPLES else 1.0
        count = np.maximum(count, least)
        moments = Moments(total, errors[0], squares, errors[1], count, errors[2], parts[1].upper * parts[1].grid, largest)
        deviation = column.aggregate.function in DEVIATIONS
        value, error = (moments.deviation if deviation else moments.variance)(column.aggregate.function in SAMPLES)
        return Outcome(true, value, error, released, True, math.sqrt(largest) if deviation else largest)

    def _increments(self, p: PerturbationPlan) -> Float:
        """One record's increment, as the engine makes it, in value units; per record of the arrangement."""
        if p.rule in ("rows", "users"):
            return np.ones(len(self.arrangement.ts))
        x = self.sample.arguments[p.argument][self.arrangement.order]
        if p.rule == "valid":
            return (~np.isnan(x)).astype(float)
        with np.errstate(over="ignore"):
            centred = np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) - p.centre
            scaled = np.rint(centred * centred / p.grid) - p.upper if p.rule == "squares" else np.rint(centred / p.grid)
            scaled = np.clip(scaled, p.lower, p.upper)
        return np.where(np.isnan(x), 0.0, scaled * p.grid)

    def _finite(self, aggregate: Aggregate) -> Float:
        """The argument with infinities clamped, NaN where NULL; per record of the arrangement."""
        x = self.sample.arguments[self.query.plan.arguments.index(aggregate.argument or "")][self.arrangement.order]
        return np.where(np.isinf(x), np.clip(x, *(aggregate.bounds or (0.0, 0.0))), x)

    def _truth(self, column: ColumnPlan) -> Float:
        """The exact value of every cell, without bounds."""
        a, aggregate = self.arrangement, column.aggregate
        if aggregate.function is AggregateFunction.COUNT_ROWS:
            return np.bincount(a.cell, minlength=a.cells).astype(float)
        if aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
            return a.users_of_cell.astype(float)
        x = self._finite(aggregate)[a.record]
        there = ~np.isnan(x)
        count = np.bincount(a.cell[there], minlength=a.cells).astype(float)
        if aggregate.function is AggregateFunction.COUNT:
            return count
        total = _per_cell(a.cell[there], x[there], a.cells)
        mean = total / np.maximum(count, 1.0)
        if aggregate.function in SPREADS:
            away = _per_cell(a.cell[there], (x[there] - mean[a.cell[there]]) ** 2, a.cells)
            variance = away / np.maximum(count - (aggregate.function in SAMPLES), 1.0)
            return np.sqrt(variance) if aggregate.function in DEVIATIONS else variance
        return mean if aggregate.function is AggregateFunction.AVG else total


def _per_cell(cell: Int, values: np.ndarray, cells: int) -> Float:
    return np.bincount(cell, values, cells).astype(np.float64)


@lru_cache(maxsize=64)
def _paths(name: str, horizon: int) -> Float:
    return unit_paths(counter(name, horizon), thinned(horizon))
