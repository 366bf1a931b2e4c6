"""Delta tables from the driver without a Spark job: transaction marks, and small appends that carry them.

A mark (application, version) is written in the same commit as its rows, so asking for it tells whether those rows are there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.types import StructType

from dpsql.places import place

DRIVER_ROWS = 100_000
"""Up to so many rows are written by the driver itself: that takes milliseconds, an append by Spark takes a CPU-second however small."""

ROWS_PER_FILE = 1_000_000


def exists(path: str) -> bool:
    """True if a Delta table is there."""
    return (place(path) / "_delta_log").is_dir() and DeltaTable.is_deltatable(path)


def create(path: str, schema: StructType, partition_by: list[str] | None = None) -> None:
    """Make an empty table unless it is there."""
    if not exists(path):
        # Old commits are what a restored or verifying reader starts from: they are not cleaned up behind our back.
        settings: dict[str, str | None] = {"delta.enableExpiredLogCleanup": "false"}
        DeltaTable.create(path, Schema.from_json(schema.json()), mode="ignore", partition_by=partition_by, configuration=settings)


def mark(path: str, application: str) -> int | None:
    """The newest version that an application has committed to a table; None if it never did or there is no table."""
    return DeltaTable(path).transaction_version(application) if exists(path) else None


def committed(table: DeltaTable, application: str, version: int) -> bool:
    """Whether the rows that go with a mark are there."""
    newest = table.transaction_version(application)
    return newest is not None and newest >= version


def append(path: str, rows: pa.Table, marks: Mapping[str, int]) -> bool:
    """Append a few rows under transaction marks, in one commit.

    Returns:
        False if the first mark is there already: then nothing was written.
    """
    table = DeltaTable(path)
    if committed(table, *next(iter(marks.items()))):
        return False
    properties = CommitProperties(app_transactions=[Transaction(name, number) for name, number in marks.items()])
    write_deltalake(table, rows, mode="append", commit_properties=properties)
    return True


def append_files(path: str, files: Sequence[Mapping[str, Any]], application: str, version: int) -> None:
    """Append files that are in the table's folder already, under a transaction mark, in one commit; doing it again changes nothing.

    Args:
        path, application, version: the table and the mark.
        files: of each its `path` below the table, `bytes`, `rows`, and `partition`: name -> value as text.
    """
    table = DeltaTable(path)
    if committed(table, application, version):
        return
    now = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        AddAction(file["path"], file["bytes"], file["partition"], now, True, json.dumps({"numRecords": file["rows"]})) for file in files
    ]
    properties = CommitProperties(app_transactions=[Transaction(application, version)])
    partition_by = list(files[0]["partition"]) if files else []
    table.create_write_transaction(actions, "append", table.schema(), partition_by, commit_properties=properties)


def append_frame(frame: DataFrame, rows: int, path: str, application: str, version: int, order: Sequence[str]) -> None:
    """Append a frame under a transaction mark, in one commit; doing it again changes nothing.

    Args:
        frame: columns of the table, and perhaps others to sort by.
        rows: how many there are.
        path, application, version: the table and the mark.
        order: columns to sort by.
    """
    names = [field.name for field in DeltaTable(path).schema().fields]
    if rows <= DRIVER_ROWS:
        table = frame.toArrow().sort_by([(name, "ascending") for name in order])
        append(path, table.select(names), {application: version})
        return
    files = -(-rows // ROWS_PER_FILE)
    # In one file a sort within the partition is a sort of all, without Spark's sampling job.
    frame = frame.orderBy(*order) if files > 1 else frame.coalesce(1).sortWithinPartitions(*order)
    writer: DataFrameWriter = frame.select(*names).write.format("delta").mode("append")
    writer.option("txnAppId", application).option("txnVersion", version).save(path)
