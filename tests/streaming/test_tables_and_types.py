"""Delta tables and columns of Arrow as other programs leave them: Spark has the rows and values that the local engine has."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dpsql.errors import DataError
from dpsql.local.first_look import check_files
from dpsql.sources.config import Source
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import static, stream, with_valid_texts, within_calendar
from tests.local.test_arrow_columns import CASES
from tests.local.test_delta_files import TABLES
from tests.local.test_folders import in_lower_case, local_rows
from tests.sweeps import some

SOME_TABLES = some(TABLES, 3, TABLES[1])
"""Plain, with deleted rows, with a dropped column, with a renamed folder, with odd texts; or all of them."""


def as_texts(number: int, frame: DataFrame, schema: str) -> DataFrame:
    """Return the number of a table beside the texts of each row."""
    names = [part.split()[0] for part in schema.split(", ")]
    texts = ", ".join(f"CAST({name} AS STRING)" for name in names)
    return frame.selectExpr(f"{number} AS number", f"array({texts}) AS texts")


def by_table(rows: pa.Table) -> list[set[tuple[Any, ...]]]:
    found: list[set[tuple[Any, ...]]] = [set() for _ in SOME_TABLES]
    for row in rows.to_pylist():
        found[row["number"]].add(tuple(row["texts"]))
    return found


def test_rows_of_delta_tables_are_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Streams and static tables. Catches: deleted rows that count, columns by their names in the files, on either engine."""
    session = run_session(spark, 1)
    streams = []
    tables = []
    expected = []
    for number, (write, schema, rows) in enumerate(SOME_TABLES):
        path = tmp_path / "my tables" / str(number)
        path.mkdir(parents=True)
        write(path)
        source = Source("visits", "delta", str(path), schema=schema)
        frame = with_valid_texts(within_calendar(stream(session, source)), source)
        streams.append(as_texts(number, frame, schema))
        tables.append(static(session, Source("t", "delta", str(path), static=True)))
        expected.append({tuple(v if v is None else str(v) for v in row) for row in rows})
    query = reduce(DataFrame.unionAll, streams).writeStream.format("memory").queryName("tables")
    query.trigger(availableNow=True).start().awaitTermination()
    assert by_table(session.table("tables").toArrow()) == expected
    lines = [as_texts(number, table, SOME_TABLES[number][1]) for number, table in enumerate(tables)]
    assert by_table(reduce(DataFrame.unionAll, lines).toArrow()) == expected
    for table in tables:
        table.unpersist()


REFUSED = {
    ("uint64", "DECIMAL(25, 5)"),
    ("halffloat", "FLOAT"),
    ("extension<arrow.uuid>", "STRING"),
    ("date32[day]", "TIMESTAMP"),
    ("null", "DECIMAL(20, 0)"),
    ("null", "TIMESTAMP"),
}
"""Types that Spark does not read as declared; before anything is spent this is told."""

NOT_IN_PARQUET = ("timestamp[s]", "TIMESTAMP")


def test_values_of_arrow_types_are_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a rest that is cut off where the other engine rounds down; large numbers that are NULL; a type that no check names."""
    folder = tmp_path / "in"
    folder.mkdir()
    columns = {}
    kinds = {}
    refused = set()
    for number, (column, declared, _) in enumerate(CASES):
        name = f"c{number}"
        padded = pa.concat_arrays([column, pa.nulls(10 - len(column), column.type)])
        try:
            pq.write_table(pa.table({name: padded}), folder / "a.parquet")
            check_files(Source("d", "parquet", str(folder), schema=f"{name} {declared}"))
        except (pa.ArrowException, DataError) as problem:
            if isinstance(problem, DataError):
                refused.add((str(column.type), declared))
            else:
                assert (str(column.type), declared) == NOT_IN_PARQUET
        else:
            columns[name] = padded
            kinds[name] = declared
    assert refused == REFUSED
    pq.write_table(pa.table(columns), folder / "a.parquet")
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    source = Source("d", "parquet", str(folder), schema=schema, static=True)
    frame = static(run_session(spark, 1), source)
    assert in_lower_case(frame.toArrow().to_pylist()) == in_lower_case(local_rows(source))
    frame.unpersist()
