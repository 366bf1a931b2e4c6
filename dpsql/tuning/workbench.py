"""One query and one sample, measured under many settings: the intake of the query's own plan bounds the sample, and what its release would
make of that is expected from the plan's numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.compiled import Query
from dpsql.errors import ConfigError
from dpsql.local.comparison import Truth
from dpsql.mechanisms import registry
from dpsql.mechanisms.histogram.plan import PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import unnamed_plan
from dpsql.mechanisms.histogram.stages import stages
from dpsql.parsed_query import (
    AVERAGED,
    SPREADS,
    Aggregate,
    ContributionPeriod,
    Paired,
    ParsedQuery,
    PerGroup,
    changed,
)
from dpsql.text import Z95
from dpsql.tuning.expected import Outcome, selected, thinned, unit_paths
from dpsql.tuning.sample import Sample
from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
from dpsql.udfs.intake.left_out import BEFORE_TRIGGERS
from dpsql.udfs.measure.output_columns import OutputColumn, combine
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.stage import Clock

ROWS = "max_rows_contributed"
PER_GROUP = "max_rows_per_group"
GROUPS = "max_groups_contributed"
AFTER_ALL_US = 1 << 60
"""All windows of a sample are over by then."""


@dataclass(frozen=True)
class Setting:
    """The options that tuning looks at, under their names."""

    max_rows_contributed: int
    max_rows_per_group: int
    max_groups_contributed: int
    epsilon: float
    trigger_interval_us: int

    @classmethod
    def of_query(cls, query: ParsedQuery) -> Setting:
        """Return the setting that a query has."""
        values = vars(query) | vars(query.asked)
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Measured:
    """The effect of a setting on the sample, counted as the whole stream (`scale`), at each
    window's last trigger.

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


def check_tunable(query: Query) -> None:
    """Refuse a query whose settings cannot be measured here; no sample has to be read for that.

    Raises:
        ConfigError: another mechanism's query, a one-time release, `mechanism = PAPER`, an aggregate of two values, `carry_windows` above 1, or
            records that are not counted.
    """
    if query.parsed.mechanism != PrivacyPlan.mechanism or query.parsed.once:
        takes = registry.mechanism_named(PrivacyPlan.mechanism).takes
        queries = "a one-time release" if query.parsed.once else query.mechanism.takes
        raise ConfigError(
            f"tune measures {takes}; what another setting does to {queries}, `dpsql try` shows"
        )
    if query.parsed.asked.release is ReleaseRule.RESELECT:
        raise ConfigError(
            "tuning measures our mechanism, which is more accurate than the paper's: leave mechanism out"
        )
    if pairs := [each for each in query.parsed.aggregates if isinstance(each, Paired)]:
        raise ConfigError(
            f"tuning measures no {pairs[0].function}: leave {pairs[0].alias} out, and tune AVG of its values"
        )
    if query.parsed.asked.carry_windows > 1:
        raise ConfigError(
            "tuning looks at each window by itself: write carry_windows = 1, or leave the option out"
        )
    if query.parsed.asked.max_rows_contributed == math.inf:
        raise ConfigError(
            "tuning looks for three limits, and this query has max_groups_contributed alone: write max_rows_contributed"
        )


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

    def __init__(
        self,
        query: Query,
        sample: Sample,
        scale: float = 1.0,
        column: str | None = None,
        goal: str = "l_1",
    ) -> None:
        check_tunable(query)
        self._aggregates = [each.aggregate for each in query.plan.columns]
        aliases = [aggregate.alias for aggregate in self._aggregates]
        if column is not None and column not in aliases:
            raise ConfigError(
                f"no column {column!r}: the query's aggregates are {', '.join(aliases)}"
            )
        self.query = query
        self.sample = sample
        self.scale = scale
        self.goal = goal
        self._column = column
        # An average's errors are no shares of a whole: they say little beside those of counts.
        sizes = tuple(
            aggregate.alias for aggregate in self._aggregates if aggregate.function not in AVERAGED
        )
        self.counted = (column,) if column is not None else sizes or tuple(aliases)
        self.written = Setting.of_query(query.parsed)
        self._true, self._seen = self._truth()
        self._measured = lru_cache(maxsize=None)(self._measure)

    def of_fewer(self, records: int) -> Workbench:
        """Return the bench for a share of the users, with about so many records at most; they stand
        for all."""
        rows = self.sample.rows
        user = rows["user"].to_numpy()
        users = np.unique(user)  # ids are hashes: any range of them is a random share
        chosen = users[: -(-len(users) * records // rows.num_rows)]
        if len(chosen) == len(users):
            return self
        sample = dataclasses.replace(
            self.sample, rows=rows.filter(user <= chosen[-1]).combine_chunks()
        )
        return Workbench(
            self.query, sample, self.scale * len(users) / len(chosen), self._column, self.goal
        )

    def parsed(self, setting: Setting) -> ParsedQuery:
        """Return the query with this setting; a default `max_ahead` follows the trigger interval."""
        query = self.query.parsed
        changes = dataclasses.asdict(setting)
        ahead = (
            setting.trigger_interval_us
            if query.max_ahead_us == query.trigger_interval_us
            else query.max_ahead_us
        )
        return changed(query, max_ahead_us=ahead, **changes)

    def plan(self, setting: Setting) -> PrivacyPlan:
        """Return the plan of this setting.

        Raises:
            ConfigError: the planner refuses it, because delta is too small or the noise too large.
        """
        return unnamed_plan(self.parsed(setting), self.query.source)

    def measure(self, setting: Setting) -> Measured:
        """Measure the expected errors of one setting, l_inf included."""
        return self._measured(setting, True)

    def cost(self, setting: Setting) -> float:
        """Return the cost of a setting; infinite for one that the planner refuses."""
        try:
            return self._measured(setting, False).cost
        except ConfigError:
            return float("inf")

    def clamped(self) -> dict[str, dict[str, float]]:
        """Return, by alias, the share of the values that the bounds per row clamp, and how much of
        the sum of |values| that takes away."""
        shares = {}
        for aggregate in self._aggregates:
            if aggregate.bounds is not None and not isinstance(aggregate, PerGroup):
                x = self.sample.rows[
                    f"a{self.query.plan.arguments.index(aggregate.argument or '')}"
                ].to_numpy()
                x = x[np.isfinite(x)]
                excess = np.abs(x - np.clip(x, *aggregate.bounds))
                total = np.abs(x).sum()
                shares[aggregate.alias] = {
                    "clamped": float((excess > 0).mean()) if len(x) else 0.0,
                    "lost": float(excess.sum() / total) if total else 0.0,
                }
        return shares

    @cached_property
    def longest(self) -> dict[str, int]:
        """Bounds that drop nothing of this sample, by option."""
        rows = self.sample.rows
        plan = self.query.plan
        ts = rows["ts"].to_numpy()
        renews = plan.query.contribution_period is ContributionPeriod.WINDOW
        period = (
            self.query.shape.schedule.grid.period(ts) if renews else np.zeros(len(ts), np.int64)
        )
        keys = (
            rows.select(["user", "key"])
            .append_column("period", pa.array(period))
            .group_by(["period", "user", "key"])
            .aggregate([([], "count_all")])
        )
        users = keys.group_by(["period", "user"]).aggregate(
            [("count_all", statistic) for statistic in ("sum", "max", "count")]
        )
        largest = (
            max(users[f"count_all_{statistic}"].to_pylist())
            for statistic in ("sum", "max", "count")
        )
        return dict(zip((ROWS, PER_GROUP, GROUPS), largest, strict=True))

    def _measure(self, setting: Setting, largest: bool) -> Measured:
        plan = self.plan(setting)
        rows = self.sample.rows
        intake, release = stages(plan, self.sample.public)
        bounded = intake.step(intake.empty(), rows, Clock(), bytes(32))
        contributions = bounded.rows.filter(pc.field("trigger") > BEFORE_TRIGGERS)
        group = self._true.index.get_indexer(
            pd.MultiIndex.from_arrays(
                [contributions[name].to_numpy() for name in ("window", "key")]
            )
        )
        released = self._released(plan, group, contributions)
        sums: list[Any] = [
            np.bincount(group, contributions[f"v{j}"].to_numpy(), len(self._true)) * self.scale
            for j in range(len(plan.perturbations))
        ]
        columns = {}
        for aggregate, column in zip(self._aggregates, release.parameters.columns, strict=True):
            outcome = self._outcome(aggregate, column, sums, released)
            norms = _norms(outcome) | {"stderr": column.stderr[0][-1]}
            columns[aggregate.alias] = norms | ({"l_inf": outcome.largest()} if largest else {})
        dropped = {reason: bounded.counted["drops"].get(reason, 0) for reason in DROP_REASONS[-4:]}
        kept_share = 1 - sum(dropped.values()) / rows.num_rows
        keys_kept = float(released[self._seen].sum())
        return Measured(
            setting,
            plan.horizon,
            kept_share,
            dropped,
            int(self._seen.sum()),
            keys_kept,
            columns,
            self._cost(columns, keys_kept),
        )

    def _outcome(
        self, aggregate: Aggregate, column: OutputColumn, sums: list[Any], released: Float
    ) -> Outcome:
        """Return what one aggregate comes to in every group; counts below 1 among `sums` become 1 where it divides by them."""
        low, high = column.bounds
        errors: list[Any] = [stderr[-1] for stderr in column.stderr]
        if aggregate.function in AVERAGED:
            sums[column.perturbations[-1]] = np.maximum(sums[column.perturbations[-1]], 1.0)
        value, stderr = combine(column, sums, errors)
        widest = {
            "avg": high - low,
            "variance": ((high - low) / 2) ** 2,
            "deviation": (high - low) / 2,
        }.get(column.kind, np.inf)
        # Where all is possible, the value is the middle, whatever the noise.
        stderr = stderr * np.sqrt(1.0 - np.minimum(2 * Z95 * stderr / widest, 0.99) ** 4)
        true = self._true[aggregate.alias].to_numpy() * (
            1.0 if aggregate.function in AVERAGED else self.scale
        )
        return Outcome(
            true,
            value.astype(float),
            stderr,
            released,
            low >= 0 or aggregate.function in SPREADS,
            widest,
        )

    def _cost(self, columns: Mapping[str, Mapping[str, float]], keys_kept: float) -> float:
        if self.goal == "keys":
            return 1 - keys_kept / self._seen.sum()
        norm_name = {"l_1": "true", "l_2": "true_l_2"}[self.goal]
        return float(
            np.mean(
                [
                    columns[alias][self.goal] / max(columns[alias][norm_name], 1e-300)
                    for alias in self.counted
                ]
            )
        )

    def _released(self, plan: PrivacyPlan, group: Int, contributions: pa.Table) -> Float:
        """Return the probability that each group has been released by its last trigger."""
        selection = plan.selection
        groups = len(self._true)
        if selection is None:
            return np.ones(groups)
        triggers = thinned(plan.horizon)
        place = group * len(triggers) + np.searchsorted(
            triggers, contributions["trigger"].to_numpy()
        )
        weight, users = (
            np.bincount(place, contributions[name].to_numpy(), groups * len(triggers))
            .reshape(groups, -1)
            .cumsum(axis=1)
            * self.scale
            for name in ("weight", "users")
        )
        tau = np.array(selection.thresholds)[triggers - 1] * WEIGHT_UNIT
        sd = np.array(selection.sd)[triggers - 1]
        paths = _paths(selection.counter, plan.horizon) * selection.sigma
        return selected(
            weight * WEIGHT_UNIT, tau, sd, paths, (users >= plan.min_counted) & (users > 0)
        )

    def _truth(self) -> tuple[pd.DataFrame, Bool]:
        """Return the exact values of every group by window and key, without bounds, and whether it has a record: a listed group may have none."""
        truth = Truth(self.query, AFTER_ALL_US)
        list(truth.watch([self.sample.rows]))
        groups = (
            truth.groups()
            .drop(["key_bytes"])
            .to_pandas()
            .set_index(["win", "key"])
            .fillna(0.0)
            .astype(float)
        )
        groups.columns = [aggregate.alias for aggregate in self._aggregates]
        public = self.sample.public
        if public is None:
            return groups, np.ones(len(groups), bool)
        groups = groups[groups.index.get_level_values("win") >= public.first_window_us]
        all_groups = pd.MultiIndex.from_product(
            [groups.index.get_level_values("win").unique(), public.keys]
        )
        return groups.reindex(all_groups, fill_value=0.0), all_groups.isin(groups.index)


@lru_cache(maxsize=64)
def _paths(name: str, horizon: int) -> Float:
    return unit_paths(counter(name, horizon), thinned(horizon))


def _norms(outcome: Outcome) -> dict[str, float]:
    """Return the expected norms of the error of a column, and those of the truth."""
    return {
        "l_1": float(outcome.absolute().sum()),
        "l_2": float(np.sqrt(outcome.squared().sum())),
        "true": float(np.abs(outcome.true).sum()),
        "true_l_2": float(np.sqrt((outcome.true**2).sum())),
    }
