"""What a program meets: a session of its own, tables of the catalog, and a histogram that any reader of Delta can read."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.description import NOTE
from dpsql.errors import ConfigError, DataError
from dpsql.lake.delta_rows import read_rows
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.streaming import internals
from tests.streaming.conftest import DAY, START


def test_a_table_of_the_catalog_is_a_source(spark: SparkSession, case: Any, visits: Any) -> None:
    """The same rows as from records at hand, bit for bit; and what has no files is refused before anything is made."""
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    try:
        spark.createDataFrame(visits().to_pandas()).repartition(1).sortWithinPartitions(
            "ts"
        ).write.format("delta").saveAsTable("shop.visits")
        spark.sql("CREATE OR REPLACE TEMP VIEW seen AS SELECT * FROM shop.visits")
        table = case(format="table", path=None, table="shop.visits")
        assert table.go().records == 720
        assert table.histogram() == table.of_local_engine(visits()) != []
        for name, says in (
            ("shop.visit", "the catalog of this Spark session has no table shop.visit"),
            ("seen", "no files of its own"),
        ):
            with pytest.raises(DataError, match=says):
                case(format="table", path=None, table=name).go()
    finally:
        spark.sql("DROP DATABASE shop CASCADE")


def test_a_program_starts_it_in_its_own_session_and_others_read_it(
    spark: SparkSession, case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    write(visits())
    query = case().query
    path = tmp_path / "keys" / "secret"
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        secret = Secret.load(path)
        until = {"until_caught_up": True, "until_us": START + 30 * DAY}
        handle = dpsql.start(
            spark, query, str(tmp_path / "mine"), "views", secret, Ledger.beside(path), **until
        )
        summary = handle.wait()
    finally:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3", (
            "the caller's settings are the caller's"
        )
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert summary is not None and summary.records == 720 and not handle.running
    folder = tmp_path / "mine" / "public" / "views"
    latest = dpsql.latest(str(tmp_path / "mine"), "views")
    whole = read_rows(folder).to_pandas()
    assert len(whole) == spark.read.format("delta").load(str(folder)).count() == summary.rows > 0
    sums = {
        round(float(frame["total"].sum()), 6)
        for frame in (whole, spark.read.format("delta").load(str(folder)).toPandas())
    }
    data = read_rows(folder)
    sums |= {round(duckdb.sql("SELECT sum(total) FROM data").fetchall()[0][0], 6)}
    assert len(sums) == 1
    assert {*latest.columns} == {*whole.columns, NOTE} and len(latest) < len(whole)
    assert data.column_names == whole.columns.tolist()


def test_a_session_without_delta_is_refused_before_anything_is_spent(
    spark: SparkSession, case: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(internals, "DELTA_EXTENSION", "io.delta.sql.NoSuchExtension")
    path = tmp_path / "keys" / "secret"
    with pytest.raises(ConfigError, match="this Spark session has no Delta: start it with"):
        dpsql.start(
            spark,
            case().query,
            str(tmp_path / "mine"),
            "views",
            Secret.load(path),
            Ledger.beside(path),
        )
    assert not Ledger.beside(path).lines() and not (tmp_path / "mine").exists()
