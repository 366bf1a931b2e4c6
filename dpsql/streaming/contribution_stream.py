"""Contributions and ticks as query 2 reads them."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession

from dpsql.lake.contributions import Contributions
from udfs.stage import ROW, TICK


def stream(session: SparkSession, table: Contributions, position: str | None = None) -> DataFrame:
    """All rows and ticks from the first commit on, or from where a restored query 2 goes on, in order of commits, without `era`.

    Without `startingVersion` a fresh query would read the newest snapshot first, in order of files; old eras may be deleted.
    """
    start = "0" if position is None else str(json.loads(position)["reservoirVersion"])
    reader = session.readStream.format("delta").option("startingVersion", start).option("ignoreDeletes", "true")
    rows = reader.load(str(table.path)).drop("era")
    for first, last in table.void:
        rows = rows.where(f"kind <> {ROW} OR batch < {first} OR batch > {last}")
    if table.relabelled:
        # A tick is there once for each of the buckets of its time, and is due in each of today's.
        buckets = f"CASE WHEN kind = {TICK} THEN sequence(0, {table.key_buckets - 1}) ELSE array(cast(pmod(key, {table.key_buckets}L) AS INT)) END"
        names = [f"explode({buckets}) AS bucket" if name == "bucket" else name for name in rows.columns]
        rows = rows.where(f"kind <> {TICK} OR bucket = 0").selectExpr(*names)
    return rows
