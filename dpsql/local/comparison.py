"""`dpsql try --compare`: the exact histogram without bounds, and how far the private one is from it. For data that one may look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpsql.compiled import Query
from dpsql.description import DUE, END, START, STDERR, Measure
from dpsql.errors import InputError
from dpsql.local.connection import connect
from dpsql.local.spark_types import SparkType, arrow_types
from dpsql.parsed_query import AVERAGED, SPREADS, Aggregate, AggregateFunction, Paired, Quantiles
from dpsql.published.public_rows import frame_of
from dpsql.published.rows import typed_keys
from dpsql.text import Z95
from dpsql.udfs.columns import plain_rows

MEAN = 0.7978845608028654
"""Mean distance of a standard normal from 0."""

SIDES = "dpsql_sides"
"""A column: `left_only` where a key is not released."""

NORMALS = np.array([NormalDist().inv_cdf((i + 0.5) / 200) for i in range(200)])
"""A standard normal in steps of equal probability."""


def check_comparable(query: Query) -> None:
    """Refuse a query whose exact histogram is not computed; before anything is spent on it.

    Raises:
        InputError: why there is none.
    """
    if query.shape.sketch is not None:
        raise InputError(
            "true values next to released ones are not supported for sketches: `dpsql try` without --compare"
        )
    if not query.parsed.privacy_unit:
        raise InputError(
            "true values next to released ones are not supported for queries that protect rows: `dpsql try` without --compare"
        )
    if any(isinstance(aggregate, Quantiles) for aggregate in query.parsed.aggregates):
        raise InputError(
            "true values next to released ones are not supported for APPROX_QUANTILES: leave them out"
        )
    is_of_windows = query.parsed.window is not None or query.parsed.once
    if not is_of_windows or query.published.sets is not None:
        raise InputError(
            "true values next to released ones are not supported for running totals and CUBE: `dpsql try` without --compare"
        )


class Truth:
    """Collects the records of a run as they pass, and compares at the end.

    A window counts up to its last trigger that is closed at `until_us`; later records are left out on both sides.
    """

    def __init__(self, query: Query, until_us: int) -> None:
        check_comparable(query)
        plan = query.plan
        shape = query.shape
        self._published = query.published
        self._plan = plan
        self._until_us = until_us
        self._grid = shape.schedule.grid
        self._arguments = tuple(argument.text for argument in shape.arguments)
        self._connection = connect()
        arguments = "".join(f", a{i} DOUBLE" for i in range(len(self._arguments)))
        self._connection.execute(
            f"CREATE TABLE seen (win BIGINT, key BIGINT, key_bytes BLOB, usr BIGINT{arguments})"
        )

    def watch(self, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pass the batches on and keep their records."""
        for rows in batches:
            self._add(rows)
            yield rows

    def compare(
        self, released: pa.Table, drops: Mapping[str, int], key_types: Sequence[SparkType]
    ) -> dict[str, Any]:
        """Return the exact histogram and the errors.

        Returns:
            `true_histogram` (a DataFrame), `windows`, `keys` (groups with a record), `keys_kept` (released at their window's last
            closed trigger), `dropped` (records by reason), `columns`: alias -> `l_inf, l_1, l_2`, where a key that is not released
            counts as 0 (as nothing at all in an average), and so does a negative release of what cannot be negative, `compared` (a
            DataFrame: the histogram's columns, missing keys included, `<alias>_true`, SIDES) and `made_of`: alias -> see `_made_of`.
        """
        truth = self._true_histogram(key_types)
        if self._published.once:
            released = released.append_column(START, _epochs(released.num_rows))
        starts = released.column(START).cast(pa.int64()).to_numpy()
        is_last = released.column("trigger").to_numpy() == self._grid.closed_triggers(
            starts, self._until_us
        )
        last = frame_of(released.filter(pa.array(is_last)), self._published)
        names = [START, *(key.name for key in self._plan.query.keys)]
        paired_rows = truth.merge(last, on=names, how="outer", suffixes=("_true", "_private"))
        errors = {
            aggregate.alias: _errors(paired_rows, aggregate)
            for aggregate in self._plan.query.aggregates
        }
        windows = int(truth[START].nunique())
        return {
            "true_histogram": truth,
            "windows": windows,
            "keys": len(truth),
            "keys_kept": len(last),
            "dropped": dict(drops),
            "columns": errors,
            "compared": self._compared(truth, last, names),
            "made_of": {
                measure.alias: _made_of(paired_rows, measure)
                for measure in self._published.measures
            },
        }

    def _compared(self, truth: pd.DataFrame, last: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        """Return private and true values key by key; counts stay whole numbers, though keys are missing on either side."""
        aliases = [aggregate.alias for aggregate in self._plan.query.aggregates]
        private = last[
            [*names, *(name for alias in aliases for name in (alias, f"{alias}_{STDERR}"))]
        ]
        integer_types = {
            alias: object for alias in aliases if pd.api.types.is_integer_dtype(truth[alias])
        }
        true = truth.astype(integer_types).rename(
            columns={alias: f"{alias}_true" for alias in aliases}
        )
        paired_rows = true.merge(
            private.astype(integer_types), on=names, how="outer", indicator=SIDES
        )
        for aggregate in self._plan.query.aggregates:
            if aggregate.function not in AVERAGED:
                true_column = f"{aggregate.alias}_true"
                paired_rows[true_column] = paired_rows[true_column].where(
                    paired_rows[true_column].notna(), 0
                )
        start = np.asarray(
            paired_rows[START].astype("datetime64[us, UTC]").astype("int64"), np.int64
        )
        triggers = self._grid.closed_triggers(start, self._until_us)
        times = {END: start + self._grid.window_us, DUE: start + triggers * self._grid.trigger_us}
        paired_rows.attrs = last.attrs  # a merge loses them
        compared = paired_rows.assign(
            trigger=triggers,
            **{
                name: pd.Series(us, paired_rows.index).astype("datetime64[us, UTC]")
                for name, us in times.items()
            },
        )
        return compared.drop(columns=[START, END]) if self._published.once else compared

    def _add(self, rows: pa.Table) -> None:
        rows = plain_rows(rows.filter(pa.array(rows.column("drop").to_numpy() == 0)))
        ts = rows.column("ts").to_numpy()
        unit = "user" if "user" in rows.column_names else "key"
        newest = self._grid.latest_window(ts)
        for older in range(self._grid.windows_per_record):
            start = newest - older * self._grid.slide_us
            is_due = self._grid.own_trigger(ts, start) <= self._grid.closed_triggers(
                start, self._until_us
            )
            is_in_window = is_due & (ts - start < self._grid.window_us)
            columns = {
                "win": pa.array(start),
                "key": rows.column("key"),
                "key_bytes": rows.column("key_bytes"),
                "usr": rows.column(unit),
            }
            columns |= {f"a{i}": rows.column(f"a{i}") for i in range(len(self._arguments))}
            self._connection.register("part", pa.table(columns).filter(pa.array(is_in_window)))
            self._connection.execute("INSERT INTO seen SELECT * FROM part")
            self._connection.unregister("part")

    def groups(self) -> pa.Table:
        """Return `win, key, key_bytes` of every group with a record, in order, and its exact values c0, c1, ..."""
        values = [
            f"{self._aggregate(aggregate)} AS c{i}"
            for i, aggregate in enumerate(self._plan.query.aggregates)
        ]
        text = f"SELECT win, key, any_value(key_bytes) AS key_bytes, {', '.join(values)} FROM seen GROUP BY win, key ORDER BY win, key_bytes"
        return self._connection.sql(text).to_arrow_table()

    def _true_histogram(self, key_types: Sequence[SparkType]) -> pd.DataFrame:
        groups = self.groups()
        columns: dict[str, Any] = {START: groups.column("win").cast(pa.timestamp("us", tz="UTC"))}
        columns |= typed_keys(
            self._plan.query,
            groups.column("key_bytes"),
            arrow_types(key_types, len(self._plan.query.keys)),
        )
        columns |= {
            aggregate.alias: groups.column(f"c{i}")
            for i, aggregate in enumerate(self._plan.query.aggregates)
        }
        return frame_of(pa.table(columns), self._published)

    def _aggregate(self, aggregate: Aggregate) -> str:
        if aggregate.function is AggregateFunction.COUNT_ROWS:
            return "count(*)"
        if aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
            return "count(DISTINCT usr)"
        a = f"a{self._arguments.index(aggregate.argument or '')}"
        if aggregate.function is AggregateFunction.COUNT:
            return f"count(*) FILTER (NOT isnan({a}))"
        finite = _finite(a, aggregate.bounds)
        if isinstance(aggregate, Paired):
            x = f"a{self._arguments.index(aggregate.x)}"
            pair = f"{aggregate.function}({finite}, {_finite(x, aggregate.x_bounds)})"
            return f"nullif({pair} FILTER (NOT isnan({a}) AND NOT isnan({x})), 'nan'::DOUBLE)"
        if aggregate.function in SPREADS:
            return f"{aggregate.function}({finite}) FILTER (NOT isnan({a}))"
        mean = "avg" if aggregate.function is AggregateFunction.AVG else "sum"
        return f"coalesce({mean}({finite}) FILTER (NOT isnan({a})), 0)"


def _finite(column: str, bounds: tuple[float, float] | None) -> str:
    """Return DuckDB text for a value with a bound in the place of what is infinite."""
    low, high = bounds or (0.0, 0.0)
    infinite = f"CASE WHEN {column} > 0 THEN {high}::DOUBLE ELSE {low}::DOUBLE END"
    return f"CASE WHEN isinf({column}) THEN {infinite} ELSE {column} END"


def _epochs(rows: int) -> pa.Array:
    """Return where the one window of a one-time release begins, row by row."""
    return pa.array(np.zeros(rows, np.int64)).cast(pa.timestamp("us", tz="UTC"))


def _errors(paired_rows: pd.DataFrame, aggregate: Aggregate) -> dict[str, float]:
    alias = aggregate.alias
    low = -np.inf if isinstance(aggregate, Paired) else (aggregate.bounds or (0.0, 0.0))[0]
    if aggregate.function in AVERAGED:
        paired_rows = paired_rows[
            paired_rows[f"{alias}_private"].notna() & paired_rows[f"{alias}_true"].notna()
        ]
    private = _values(paired_rows, f"{alias}_private")
    true = _values(paired_rows, f"{alias}_true")
    if low >= 0:
        private = np.maximum(private, 0.0)
    error = np.abs(private - true)
    return {
        "l_inf": float(error.max(initial=0.0)),
        "l_1": float(error.sum()),
        "l_2": float(np.sqrt((error**2).sum())),
    }


def _made_of(paired_rows: pd.DataFrame, measure: Measure) -> dict[str, float]:
    """Return what the difference of private and true values is made of.

    Returns:
        Of a count or sum, as shares of all that is truly there: `missing` (in keys that are not released), `bounds` (taken by the contribution
        bounds from released keys, as far as the noise lets one see: 95% of it is `bounds_error`), `noise` (expected, over released keys).
        Of an average, over released keys, `typical`, the median distance, and `noise`, what the median would be by noise alone, which
        cannot bring an average beyond its bounds. Nothing without data.
    """
    alias = measure.alias
    released = paired_rows[paired_rows[f"{alias}_private"].notna()]
    if measure.function in AVERAGED:
        return _distances(released, measure)
    true, private, stderr = (
        _values(released, f"{alias}{end}") for end in ("_true", "_private", f"_{STDERR}")
    )
    total = float(np.abs(_values(paired_rows, f"{alias}_true")).sum())
    if not total:
        return {}
    released_total = float(np.abs(true).sum())
    return {
        "missing": 1 - released_total / total,
        "bounds": float((true - private).sum()) / total,
        "bounds_error": float(Z95 * np.sqrt((stderr**2).sum())) / total,
        "noise": float(MEAN * stderr.sum()) / total,
    }


def _distances(released: pd.DataFrame, measure: Measure) -> dict[str, float]:
    """Return the median distance of averages from the truth, and what it would be by noise alone; nothing without data."""
    alias = measure.alias
    measured = released[released[f"{alias}_true"].notna() & released[f"{alias}_{STDERR}"].notna()]
    if measured.empty:
        return {}
    true, private, stderr = (
        _values(measured, f"{alias}{end}")[:, None] for end in ("_true", "_private", f"_{STDERR}")
    )
    low, high = measure.within or (-1e300, 1e300)
    # Where all is possible, the value is the middle; a farther end is longer than most errors
    share = np.minimum(2 * Z95 * stderr / (high - low), 1.0) ** 2
    to_middle = (low + high) / 2 - true.clip(low, high)
    offsets = np.where(share > 0.998, to_middle, np.sqrt(1 - share**2) * stderr * NORMALS)
    return {
        "typical": float(np.median(np.abs(private - true))),
        "noise": float(np.median(np.abs(offsets))),
    }


def _values(paired_rows: pd.DataFrame, column: str) -> np.ndarray:
    return paired_rows[column].to_numpy(dtype=float, na_value=0.0)
