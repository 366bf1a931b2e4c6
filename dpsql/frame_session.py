"""`dpsql.session`: records at hand, their people and a budget, to ask several questions of.

Nothing is split beforehand. What was spent is in the ledger beside the secret, which survives the process, and a `cap` is the budget.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.compiled import Query, compile_query
from dpsql.errors import ConfigError
from dpsql.frame_query import MOST, Answer, compiled, moment, public_table, release_time, schema_of
from dpsql.local.feeder import run_frame
from dpsql.local.frames import (
    MISTAKE,
    arrow_table,
    at_hand,
    check_columns,
    without_values,
    words_of,
)
from dpsql.local.frames import public_table as public_frame
from dpsql.local.record_reader import declared_columns, row_columns
from dpsql.local.spark_types import Columns
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.budget import Budget, CapState, Total, budget_of, spent_text
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret, default_secret_path
from dpsql.progress import show_note
from dpsql.published.public_rows import frame_of
from dpsql.sources.caps import Cap, read_caps
from dpsql.sources.config import Source, Sources
from dpsql.sources.domains import read_domains
from dpsql.sources.policy import Policy, read_bounds
from dpsql.sources.yaml_file import YamlDocument
from dpsql.sql.parse import stream_named, with_options
from dpsql.times import parse_duration

NUMBERS = ("epsilon", "delta", "max_groups_contributed", "max_rows_per_group")
"""Options that may be given beside the text; all of them are numbers."""


@dataclass(frozen=True)
class PublicTables:
    """Files of public tables by name; those that were frames are in a folder of their own, which goes with this value."""

    files: Mapping[str, str | Path]
    folder: TemporaryDirectory[str]

    @staticmethod
    def from_frames(tables: Mapping[str, Any]) -> PublicTables:
        """Write the tables that are frames into files."""
        folder = TemporaryDirectory(prefix="dpsql-")
        files: dict[str, str | Path] = {}
        for name, table in tables.items():
            files[name] = (
                table if isinstance(table, str | Path) else Path(folder.name, f"{name}.parquet")
            )
            if not isinstance(table, str | Path):
                pq.write_table(public_frame(table), files[name])
        return PublicTables(files, folder)


@dataclass(frozen=True, repr=False)
class Session:
    """Records, whose they are, and what may be spent on them; made by `dpsql.session`.

    Args:
        records: as they were given.
        declared: types of their columns that were given.
        source: whose they are; its name and schema are of each query.
        tables: public tables, by name.
        secret, ledger: make the noise, and know what was spent.
    """

    records: Any
    declared: Columns
    source: Source
    secret: Secret
    ledger: Ledger
    tables: PublicTables

    @without_values(MISTAKE)
    def plan(self, sql: str, **options: float | None) -> Query:
        """Return the plan of a query: nothing is read of the records but names and types of columns, and nothing is spent.

        Args:
            sql: one SELECT; FROM names the records as you like, or a table of `tables`.
            options: `epsilon`, `delta`, `max_groups_contributed`, `max_rows_per_group`, put into the text; with `epsilon` a plain SELECT is private.

        Raises:
            QueryError: all that is wrong with the SQL.
        """
        return self._planned(sql, options)[0]

    @without_values(MISTAKE)
    def query(
        self,
        sql: str,
        *,
        until: str | date | None = None,
        run_id: str | None = None,
        **options: float | None,
    ) -> Answer:
        """Answer a query with fresh noise, and a ledger line.

        Args:
            sql, options: as of `plan`.
            until: windows are released up to then (default: those that have begun by now).
            run_id: 32 hexadecimal digits, to have the same answer again; a fresh one unless given.

        Raises:
            QueryError: all that is wrong with the SQL.
            DataError: the records are no table, or lack a column.
            BudgetError: the cap would be exceeded.
        """
        query, table = self._planned(sql, options)
        until_us = release_time(query, until)
        result = run_frame(query, table, self.secret, run_id, until_us=until_us, ledger=self.ledger)
        show_note(spent_text(self._budget(query), "cap= in dpsql.session"))
        rows = frame_of(result.histogram, query.published, result.left_out)
        return Answer(rows, query, result.drops, result.cells)

    @property
    def spent(self) -> Total:
        """The epsilon and delta of all runs on these people over any 30 days in a row (UTC), as `dpsql budget` says."""
        budget = self._budget()
        return budget.totals[-1] if budget.lines else Total(30, 0.0, 0.0)

    @property
    def left(self) -> CapState | None:
        """The cap, what is spent of it, and what one more run may ask for; None where there is no cap."""
        return self._budget().cap

    def __repr__(self) -> str:
        unit = ", ".join(self.source.privacy_unit) or "one row"
        return f"<Session on {self.source.ledger}: one {unit} is protected; .query(sql, epsilon=1)>"

    def _budget(self, query: Query | None = None) -> Budget:
        of_rows = not self.source.privacy_unit or (self.source.event_cap and not self.source.cap)
        level = PrivacyLevel.EVENT if of_rows else PrivacyLevel.USER
        level = level if query is None else query.protects
        return budget_of(self.ledger.lines(), self.source, level)

    def _planned(self, sql: str, options: Mapping[str, float | None]) -> tuple[Query, pa.Table]:
        """Return a query with its plan, and the columns that it names."""
        text = with_options(sql, _numbers(options))
        source = replace(self.source, name=stream_named(text))
        static = [public_table(name, file) for name, file in self.tables.files.items()]
        named_columns = (*source.privacy_unit, *filter(None, [source.event_time]))
        frame = self.records
        if isinstance(frame, list):
            query = compile_query(text, Sources((source, *static)))
            frame = row_columns(query, frame, self.declared)
        check_columns(frame, (*named_columns, *dict(self.declared)))
        words = words_of(text).union(named_columns)
        table = arrow_table(frame, words, source.privacy_unit, self.declared)
        schema = schema_of(table, source.event_time, source.event_time_unit, self.declared)
        sources = Sources((replace(source, schema=schema), *static))
        return compiled(text, sources, table), table


def _numbers(options: Mapping[str, float | None]) -> dict[str, str]:
    """Return options as they are written in OPTIONS.

    Raises:
        ConfigError: one is no number: a text could bring options of its own.
    """
    for name, value in options.items():
        if name not in NUMBERS:
            raise ConfigError(f"{name}=: write it in OPTIONS; arguments are {', '.join(NUMBERS)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{name}= is no number")
    return {name: repr(value) for name, value in options.items() if value is not None}


@without_values(MISTAKE)
def session(
    records: Any,
    *,
    unit: str | Sequence[str] = (),
    time: str | None = None,
    time_unit: str | None = None,
    name: str = "records",
    cap: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    domains: Mapping[str, Mapping[str, Any]] | None = None,
    tables: Mapping[str, Any] | None = None,
    secret: Secret | str | Path | None = None,
    ledger: Ledger | None = None,
    start: str | date | None = None,
    max_users: int = MOST,
    max_keys: int = MOST,
    schema: str | None = None,
) -> Session:
    """Open a session on records in memory; nothing is spent yet.

    Args:
        records: a frame of pandas or polars, an Arrow table, a DuckDB relation, a Spark DataFrame that is no stream, whatever speaks
            Arrow, a dict of columns or a list of rows.
        unit: the column or columns that name one person, or whatever is protected; may be left out at `privacy_level = EVENT`.
        time: the column of event times; a one-time release needs none.
        time_unit: what they count since 1970 where they are numbers (`seconds`, `milliseconds`, `microseconds`, `nanoseconds`), or `text`.
        name: of the people. All records of one name and secret add up, whoever is in them; another name says that these are other people.
        cap: the budget, like `{"epsilon": 3, "delta": 1e-6, "period": "7 days"}`.
        bounds: of values, by column, like `{"stars": [0, 5]}`: those of aggregates without bounds.
        domains: all values of keys, like `{"status": {"values": [200, 404]}}`, for CUBE.
        tables: public tables that queries join or take their groups from, as frames or files, by the names that they give them.
        secret: makes the noise; or its file (default: that of the command line), which is made on first use. Whoever has it can take the noise away.
        ledger: gets the lines (default: the one beside the secret).
        start: when the records were known to begin, for queries that release windows whether there are records or not.
        max_users, max_keys: public upper bounds of how many there are.
        schema: types of columns, like `amount DECIMAL(12, 2), day DATE`: those of Python objects have none of their own.

    Raises:
        ConfigError: an argument is not what it should be.
    """
    arguments = {"cap": cap, "bounds": bounds, "domains": domains}
    document = YamlDocument(None, {key: value for key, value in arguments.items() if value}, {})
    caps: dict[PrivacyLevel, Cap] = read_caps(document, ("cap",), parse_duration) if cap else {}
    source = Source(
        name=name,
        format="parquet",
        of_frame=True,
        event_time=time and time.lower(),
        event_time_unit=time_unit,
        privacy_unit=tuple(each.lower() for each in ((unit,) if isinstance(unit, str) else unit)),
        ledger=name,
        cap=caps.get(PrivacyLevel.USER),
        event_cap=caps.get(PrivacyLevel.EVENT),
        policy=Policy(bounds=read_bounds(document, ("bounds",)) if bounds else ()),
        domains=read_domains(document, ("domains",)) if domains else (),
        max_users=max_users,
        max_keys=max_keys,
        start_us=None if start is None else moment(start, "start"),
    )
    declared = declared_columns(schema)
    own_secret = secret if isinstance(secret, Secret) else _loaded(secret)
    return Session(
        at_hand(records),
        declared,
        source,
        own_secret,
        (ledger or Ledger.beside_secret(own_secret)).sealed_by(own_secret),
        PublicTables.from_frames(tables or {}),
    )


def _loaded(file: str | Path | None) -> Secret:
    """Return the secret of a file; of a new one say that nothing is known to be spent."""
    path = Path(file) if file is not None else default_secret_path(os.environ)
    is_new = not os.path.lexists(path)
    secret = Secret.load(path)
    if is_new:
        show_note(f"created secret {path} and a new ledger: nothing spent so far")
    return secret


def query(
    sql: str,
    records: Any,
    *,
    until: str | date | None = None,
    run_id: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    max_groups_contributed: int | None = None,
    max_rows_per_group: int | None = None,
    **settings: Any,
) -> Answer:
    """Answer one question about records in memory, with fresh noise and a ledger line.

    Args:
        sql: one SELECT; with `epsilon` a plain one is private. FROM names the records as you like.
        records, settings: as of `dpsql.session`, `unit` above all.
        until, run_id: as of `Session.query`.
        epsilon, delta, max_groups_contributed, max_rows_per_group: options that the text does not have.

    Returns:
        The answer; `.rows` is the DataFrame that is shown.

    Raises:
        QueryError: all that is wrong with the SQL.
        ConfigError: the query needs `unit`, `start` or `until`.
        DataError: the records are no table, or lack a column.
        BudgetError: the cap would be exceeded.
    """
    return session(records, **settings).query(
        sql,
        until=until,
        run_id=run_id,
        epsilon=epsilon,
        delta=delta,
        max_groups_contributed=max_groups_contributed,
        max_rows_per_group=max_rows_per_group,
    )
