"""Questions about records that are at hand: what is read of them, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dpsql.compiled import Query, compile_query
from dpsql.errors import ConfigError, DataError, InputError, LakeError, QueryError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.frames import misfit, with_advice
from dpsql.local.object_columns import ODD
from dpsql.local.spark_types import STRING, Columns, SparkType
from dpsql.parsed_query import Reading
from dpsql.published.cubes import newest_tables
from dpsql.published.public_rows import PublicRows
from dpsql.published.reader_frames import reader_frame
from dpsql.published.sketches import PublishedSketch, ReleasedCells
from dpsql.sources.config import Source, Sources
from dpsql.sources.time_units import TEXT, UNITS, has_unit, wrong_unit
from dpsql.times import EPOCH, microseconds
from dpsql.view.plain_table import PlainRows
from dpsql.view.reading import as_read
from dpsql.view.table import in_order

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.view.charts import Chart

TIMESTAMP = SparkType("timestamp")
_OF_TIMES: Mapping[str | None, str] = {None: "timestamp", TEXT: "string"}
"""Types of event times that are all NULL, by their unit; whole numbers in all others."""

MOST = 1_000_000
"""Users and keys that records may have unless more are declared. Counting them would not be private."""


class PrivacyLoss(NamedTuple):
    """An epsilon and a delta."""

    epsilon: float
    delta: float


@dataclass(frozen=True, repr=False)
class Answer(PlainRows):
    """The released rows of a query; shown with a 95% error on every value.

    Neither its text nor its HTML has exact numbers, for notebooks are passed on with their outputs.

    Args:
        all_rows: one per released window, trigger and key: times, keys, aggregates, their stderr. `.rows` are those that are shown.
        query: the compiled query, to explain.
        dropped: records that do not count, by reason: exact, so for whoever holds the records alone.
        cells: of a list or a COUNT_SKETCH; None of other queries.
    """

    query: Query
    dropped: Mapping[str, int]
    cells: ReleasedCells | None = None

    @property
    def rows(self) -> pd.DataFrame:
        """The rows that are shown: of each window the newest trigger, as HAVING, ORDER BY and LIMIT say."""
        released = PublicRows.of_frame(self.all_rows)
        if not released.frame.empty:
            released = in_order(as_read(released.newest, self.reading))
        return reader_frame(released).reset_index(drop=True)

    @property
    def reading(self) -> Reading:
        """The reading that the query asks for, its private condition included."""
        return self.query.reading

    @property
    def left_out(self) -> pd.DataFrame:
        """The figures of what the limits left out, a row per finished window, each with its stderr; no row where the query has none."""
        import pandas as pd  # slow to import

        return pd.DataFrame(PublicRows.of_frame(self.all_rows).left_out)

    @property
    def spent(self) -> PrivacyLoss:
        """The epsilon and delta that this answer promises, and so costs, per unit and contribution period."""
        return PrivacyLoss(self.query.plan.epsilon, self.query.plan.delta)

    def explain(self) -> str:
        """Return what is promised, and how noisy each column is."""
        return self.query.explain()

    @property
    def sketch(self) -> PublishedSketch:
        """The first sketch of the newest finished window: `.estimate(values)`, `.top(candidates, k)`, `.noise_sd`."""
        return self.sketch_of()

    def sketch_of(self, window: str | None = None, alias: str | None = None) -> PublishedSketch:
        """Return a sketch; arguments as of `dpsql.sketch`.

        Raises:
            LakeError: the query has no such sketch or window.
        """
        if self.cells is None:
            raise LakeError("the query has no sketch: SELECT COUNT_SKETCH(...) or APPROX_TOP_COUNT")
        return self.cells.sketch(None if window is None else microseconds(window), alias)

    def ask(self, sql: str, max_error: float | str | None = None) -> pd.DataFrame:
        """Answer a question about the tables of a CUBE, for no budget, as `dpsql ask` does.

        Args:
            sql: like `SELECT page, SUM(views) FROM visits WHERE hour < 8 GROUP BY page`.
            max_error: rows, or a share like `5%`: an answer that is further off is refused.

        Returns:
            A row for each cell of GROUP BY: its keys, the value, `stderr`, and `low, high`, the 95% interval.

        Raises:
            QueryError: what is wrong with the question.
            LakeError: the query has no CUBE, ROLLUP or GROUPING SETS.
            DataError: no table covers the question well enough.
        """
        from dpsql.published.questions import answer_frame  # slow to import

        released = pa.Table.from_pandas(self.all_rows, preserve_index=False)
        return answer_frame(newest_tables(released, self.query.published), sql, max_error)

    def plot(self) -> Chart:
        """Draw the largest keys of the first aggregate with their 95% errors."""
        from dpsql.view.charts import bars  # slow to import

        return bars(self.all_rows, self.query.parsed.aggregates[0].alias)


def release_time(query: Query, until: str | date | None) -> int | None:
    """Return up to when windows are released; None: those that have begun by now are.

    Raises:
        ConfigError: `until` is missing, or means nothing in a one-time release.
    """
    until_us = query.until_us(None if until is None else moment(until, "until"))
    is_listed = query.parsed.public_groups is not None or not query.parsed.keys
    if until_us is None and is_listed:
        raise ConfigError(
            "this query releases windows whether there are records or not; say until when, like until='2026-02-01': the data must not tell"
        )
    return until_us


def schema_of(
    table: pa.Table, time: str | None, time_unit: str | None, declared: Columns = ()
) -> str:
    """Return the columns of records as Spark DDL; a declared type goes before a column's own.

    Raises:
        ConfigError: there is no such unit.
        DataError: the event time has another type.
    """
    if time_unit not in (*UNITS, None):
        raise ConfigError(f"time_unit={time_unit!r}: write one of {', '.join(UNITS)}")
    columns = []
    types = {name.lower(): kind for name, kind in declared}
    for field in table.drop_columns([ODD] if ODD in table.column_names else []).schema:
        is_time = field.name.lower() == time
        kind = types.get(field.name.lower()) or spark_type(field.type)
        if kind.name == "void":
            kind = SparkType(_OF_TIMES.get(time_unit, "bigint") if is_time else "string")
        if kind.name == "other" and not is_time:
            continue
        if is_time and time_unit and not has_unit(kind.name, time_unit):
            raise DataError(wrong_unit(field.name, str(kind), time_unit))
        if is_time and not time_unit and kind.name not in ("timestamp", "date"):
            raise DataError(_no_time(field, kind))
        quoted = field.name.replace("`", "``")
        columns.append(f"`{quoted}` {kind}")
    return ", ".join(columns)


def compiled(sql: str, sources: Sources, table: pa.Table) -> Query:
    """Return a query with its plan; a column that no expression may touch is named with its type."""
    try:
        return compile_query(sql, sources)
    except QueryError as problem:
        raise _of_odd_column(problem, table) from None


def _of_odd_column(problem: QueryError, table: pa.Table) -> InputError:
    """Return what to say of a query that names a column which no expression may touch."""
    for field in table.schema:
        is_named = f"no column `{field.name}`".lower() in str(problem).lower()
        if is_named and spark_type(field.type).name == "other":
            return DataError(misfit(field, STRING))
    return with_advice(problem, table.schema)


def _no_time(field: pa.Field, kind: SparkType) -> str:
    if has_unit(kind.name, "milliseconds"):
        return f"column `{field.name}` of the records has type {kind}, not TIMESTAMP: say what it counts since 1970, like time_unit='milliseconds'"
    return misfit(field, TIMESTAMP)


def public_table(name: str, file: str | Path) -> Source:
    """Return a file of a public table."""
    path = Path(file).expanduser().absolute()
    return Source(
        name=name.lower(),
        format=path.suffix.removeprefix(".") or "parquet",
        path=str(path),
        static=True,
    )


def moment(value: str | date, name: str) -> int:
    """Return microseconds since 1970; a time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ConfigError(
            f"{name}={value!r}: write a date or a time, like '2026-01-31' or '2026-01-31 12:00'"
        ) from None
    moment = (
        moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
    )
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(
        microseconds=1
    )
