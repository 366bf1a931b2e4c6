"""`dpsql.query`: a private answer about records that are at hand, in three lines of Python.

No file is written but a ledger line beside the secret: like `dpsql try`, each call spends its (epsilon, delta) on the people of the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsql.compiled import Query, compile_query
from dpsql.errors import ConfigError, DataError, InputError, QueryError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.feeder import run_frame
from dpsql.local.frames import arrow_table, check_columns, misfit, words_of
from dpsql.local.spark_types import STRING, SparkType
from dpsql.parsed_query import Reading
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import shown_frame
from dpsql.sources.config import Source, Sources
from dpsql.sources.time_units import TEXT, UNITS, has_unit, wrong_unit
from dpsql.sql.parse import stream_named
from dpsql.times import EPOCH
from dpsql.view.plain_table import PlainRows

TIMESTAMP = SparkType("timestamp")
_OF_TIMES: Mapping[str | None, str] = {None: "timestamp", TEXT: "string"}
"""Types of event times that are all NULL, by their unit; whole numbers in all others."""

MOST = 1_000_000
"""Users and keys that records may have unless more are declared. Counting them would not be private."""


@dataclass(frozen=True, repr=False)
class Answer(PlainRows):
    """The released rows of a query; shown with a 95% error on every value.

    Args:
        rows: one per released window, trigger and key: `window_start, window_end, trigger, trigger_time`, keys, aggregates, their stderr.
        query: the compiled query, to explain.
        dropped: records that do not count, by reason: exact, so for whoever holds the records alone.
    """

    query: Query
    dropped: Mapping[str, int]

    @property
    def reading(self) -> Reading:
        """The reading that the query asks for, its private condition included."""
        return self.query.reading

    def explain(self) -> str:
        """Return what is promised, and how noisy each column is."""
        return self.query.explain()


def query(
    sql: str,
    records: Any,
    *,
    unit: str | Sequence[str] = (),
    time: str | None = None,
    time_unit: str | None = None,
    secret: Secret | str | Path,
    tables: Mapping[str, str | Path] | None = None,
    start: str | date | None = None,
    until: str | date | None = None,
    max_users: int = MOST,
    max_keys: int = MOST,
    ledger: Ledger | None = None,
) -> Answer:
    """Run one query over records in memory, with fresh noise and a ledger line under the name that FROM gives them.

    Args:
        sql: one SELECT WITH DIFFERENTIAL_PRIVACY statement; FROM names the records as you like.
        records: a frame of pandas or polars, an Arrow table, a DuckDB relation, a Spark DataFrame that is no stream, or whatever speaks Arrow.
        unit: the column or columns that name one person, or whatever is protected; may be left out at `privacy_level = EVENT`.
        time: the column of event times; a one-time release needs none.
        time_unit: what they count since 1970 where they are numbers (`seconds`, `milliseconds`, `microseconds`, `nanoseconds`), or `text`.
        secret: makes the noise; or its file, which is made on first use. Keep it: whoever has it can take the noise away.
        tables: files of public tables that the query joins or takes its groups from, by the names that it gives them.
        start: when the records were known to begin, for queries without a key or over public groups: the data must not tell.
        until: windows are released up to then (default: those that have begun by now, whole); such queries need it.
        max_users, max_keys: public upper bounds of how many there are.
        ledger: gets the line (default: the one beside the secret).

    Returns:
        The answer; `.rows` is the DataFrame.

    Raises:
        QueryError: all that is wrong with the SQL.
        ConfigError: the query needs `unit`, `start` or `until`.
        DataError: the records are no table, or lack a column.
        BudgetError: the ledger's cap would be exceeded.
    """
    name = stream_named(sql)
    units = (unit,) if isinstance(unit, str) else tuple(unit)
    named_columns = (*units, *([time] if time else []))
    check_columns(records, named_columns)
    words = words_of(sql)
    table = arrow_table(records, words and words | set(map(str.lower, named_columns)))
    source = Source(
        name=name,
        format="parquet",
        schema=_schema(table, time and time.lower(), time_unit),
        event_time=time and time.lower(),
        event_time_unit=time_unit,
        privacy_unit=tuple(column.lower() for column in units),
        max_users=max_users,
        max_keys=max_keys,
        start_us=None if start is None else _moment(start, "start"),
    )
    static_sources = (_public(name, file) for name, file in (tables or {}).items())
    compiled = _compiled(sql, Sources((source, *static_sources)), table)
    until_us = _until_us(compiled, until)
    secret = secret if isinstance(secret, Secret) else Secret.load(secret)
    result = run_frame(compiled, table, secret, until_us=until_us, ledger=ledger)
    return Answer(shown_frame(result.histogram, compiled.published), compiled, result.drops)


def _until_us(query: Query, until: str | date | None) -> int | None:
    """Return up to when windows are released; None: those that have begun by now are.

    Raises:
        ConfigError: `until` is missing, or means nothing in a one-time release.
    """
    until_us = query.until_us(None if until is None else _moment(until, "until"))
    is_listed = query.parsed.public_groups is not None or not query.parsed.keys
    if until_us is None and is_listed:
        raise ConfigError(
            "this query releases windows whether there are records or not; say until when, like until='2026-02-01': the data must not tell"
        )
    return until_us


def _schema(table: pa.Table, time: str | None, time_unit: str | None) -> str:
    """Return the columns of records as Spark DDL.

    Raises:
        ConfigError: there is no such unit.
        DataError: the event time has another type.
    """
    if time_unit not in (*UNITS, None):
        raise ConfigError(f"time_unit={time_unit!r}: write one of {', '.join(UNITS)}")
    columns = []
    for field in table.schema:
        is_time = field.name.lower() == time
        kind = spark_type(field.type)
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


def _compiled(sql: str, sources: Sources, table: pa.Table) -> Query:
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
    return problem


def _no_time(field: pa.Field, kind: SparkType) -> str:
    if has_unit(kind.name, "milliseconds"):
        return f"column `{field.name}` of the records has type {kind}, not TIMESTAMP: say what it counts since 1970, like time_unit='milliseconds'"
    return misfit(field, TIMESTAMP)


def _public(name: str, file: str | Path) -> Source:
    """Return a file of a public table."""
    path = Path(file).expanduser().absolute()
    return Source(
        name=name.lower(),
        format=path.suffix.removeprefix(".") or "parquet",
        path=str(path),
        static=True,
    )


def _moment(value: str | date, name: str) -> int:
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
