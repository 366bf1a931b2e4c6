"""Change feeds as messages in files, and which rows the real reader and the real intake hold to be there, without noise."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsql.compiled import Query, compile_query
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import micro_batches, source_files
from dpsql.mechanisms import registry
from dpsql.privacy.secret import Secret
from dpsql.sources.change_feed import FeedForm
from dpsql.sources.config import Source, Sources
from dpsql.udfs.columns import plain_rows
from dpsql.udfs.keys import HEADER
from dpsql.udfs.stage import Clock, Tables

START = 1_709_251_200_000_000
SCHEMA = "id BIGINT, owner STRING, cur STRING, bal DOUBLE"
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
  epsilon = 20, delta = 9e-6, privacy_unit_column = owner, max_rows_contributed = 2, trigger_interval = '1 day', max_triggers = 3)
  cur, COUNT(*) AS n FROM w GROUP BY cur"""
DEBEZIUM: dict[str, Any] = {
    "format": "json",
    "schema": SCHEMA,
    "change_feed": FeedForm.DEBEZIUM,
    "primary_key": ("id",),
    "sequence_by": "source.lsn",
    "privacy_unit": ("owner",),
    "start_us": START,
    "max_users": 10_000,
    "max_keys": 1_000,
    "options": (("maxFilesPerTrigger", "1"),),
}
Row = dict[str, Any]


def row(i: int, **changes: Any) -> Row:
    """One of 300 rows, 100 a key."""
    return {"id": i, "owner": f"o{i}", "cur": "abc"[i % 3], "bal": 1.5, **changes}


def message(op: str, before: Row | None, after: Row | None, lsn: Any, **source: Any) -> Row:
    """A message as the connector of PostgreSQL writes it, or another one with other fields in `source`."""
    return {
        "before": before,
        "after": after,
        "op": op,
        "source": {"lsn": lsn, "ts_ms": START // 1000, **source},
    }


def write_files(folder: Path, files: Sequence[Sequence[Any]]) -> None:
    """Write the messages of each file, which are read in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files):
        file = folder / f"{number:03d}.json"
        file.write_text(
            "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        )
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def feed_query(folder: Path, sql: str = SQL, **changes: Any) -> Query:
    """Compile a query over the files of a folder."""
    return compile_query(sql, Sources((Source("w", path=str(folder), **DEBEZIUM | changes),)))


def contents(query: Query) -> tuple[dict[str, int], Counter[str]]:
    """Return how many rows of each key count once all is read, by the first aggregate, and what was dropped."""
    return followed(query)[1:]


def followed(query: Query) -> tuple[Tables, dict[str, int], Counter[str]]:
    """Return the intake's state with what `contents` returns."""
    secret = Secret(b"s" * 32, Path("secret"))
    reader = RowReader(query.plan, query.sources, secret.salt("0" * 32), {})
    files = micro_batches(query.source, source_files(query.source, {}))
    return follow(query, map(reader.batch_rows, files))


def follow(
    query: Query, batches: Iterable[pa.Table]
) -> tuple[Tables, dict[str, int], Counter[str]]:
    """Return what the real intake makes of the rows of micro-batches, as `followed` does."""
    intake, _ = registry.mechanism_named(query.plan.mechanism).stages(query.plan, query.facts(None))
    state = intake.empty()
    found = Counter[str]()
    drops = Counter[str]()
    for rows in batches:
        done = intake.step(state, plain_rows(rows), Clock(), bytes(32))
        state = done.state
        drops.update(done.counted["drops"])
        for counted in done.rows.to_pylist():
            found[counted["key_bytes"][HEADER:].decode()] += counted["v0"]
    return state, dict(+found), drops
