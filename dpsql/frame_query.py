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
from dpsql.errors import ConfigError, DataError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.feeder import run_local
from dpsql.local.frames import arrow_table, column_names, words_of
from dpsql.parsed_query import Reading
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source, Sources
from dpsql.sql.parse import stream_named
from dpsql.times import EPOCH
from dpsql.view.plain_table import PlainRows

MOST = 1_000_000
"""Users and keys that records may have unless more are declared. Counting them would not be private."""


@dataclass(frozen=True, repr=False)
class Answer(PlainRows):
    """The released rows of a query; shown with a 95% error on every value.

    Args:
        rows: one per released window, trigger and key: `window_start, window_end, trigger, trigger_time`, keys, aggregates, their stderr.
        query: the compiled query, to explain.
    """

    query: Query

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
    time: str,
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
        time: the column of event times.
        secret: makes the noise; or its file, which is made on first use. Keep it: whoever has it can take the noise away.
        tables: files of public tables that the query joins or takes its groups from, by the names that it gives them.
        start: when the records were known to begin, for queries without a key or over public groups: the data must not tell.
        until: windows are released up to then (default: now); such queries need it.
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
    names = column_names(records)
    for column in (*units, time):
        if column.lower() not in map(str.lower, names):
            raise DataError(f"the records have no column `{column}`; they have {', '.join(names)}")
    words = words_of(sql)
    table = arrow_table(records, words and words | {column.lower() for column in (*units, time)})
    source = Source(
        name=name,
        format="parquet",
        schema=_schema(table),
        event_time=time.lower(),
        privacy_unit=tuple(column.lower() for column in units),
        max_users=max_users,
        max_keys=max_keys,
        start_us=None if start is None else _moment(start, "start"),
    )
    compiled = compile_query(
        sql, Sources((source, *(_public(name, file) for name, file in (tables or {}).items())))
    )
    if until is None and (compiled.parsed.public_groups is not None or not compiled.parsed.keys):
        raise ConfigError(
            "this query releases windows whether there are records or not; say until when, like until='2026-02-01': the data must not tell"
        )
    secret = secret if isinstance(secret, Secret) else Secret.load(secret)
    until_us = None if until is None else _moment(until, "until")
    return Answer(run_local(compiled, table, secret, until_us=until_us, ledger=ledger), compiled)


def _schema(table: pa.Table) -> str:
    """Return the columns that expressions may touch, as Spark DDL."""
    names = {field.name: spark_type(field.type).name for field in table.schema}
    types = {field.name: str(spark_type(field.type)) for field in table.schema}
    return ", ".join(
        f"`{name.replace('`', '``')}` {'STRING' if names[name] == 'void' else kind}"
        for name, kind in types.items()
        if names[name] != "other"
    )


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
