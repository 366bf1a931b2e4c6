"""What files say of themselves on Spark: headers of CSV in every file, and types of numbers before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.sources.config import Source
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import check_there, static
from tests.streaming.conftest import DAY, START

SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"
CSV: dict[str, Any] = {"format": "csv", "schema": SCHEMA, "options": (("header", "true"),)}


def lines(header: str, first: int) -> str:
    return header + "".join(
        f"u{user},p,2023-12-09 12:00:00,1.5\n" for user in range(first, first + 100)
    )


def test_a_file_with_another_header_is_refused_and_can_be_mended(case: Any, tmp_path: Path) -> None:
    """Catches: a header that is thrown away unread, so that another column is protected; a record quoted in the message."""
    folder = tmp_path / "visits"
    folder.mkdir()
    (folder / "a.csv").write_text(
        lines("\n\ufeffUSER_ID,page,ts,seconds\n".replace("\n\ufeff", "\ufeff"), 0)
    )
    one = case(**CSV)
    assert one.go(START + 2 * DAY).records == 100
    for header in ("page,user_id,ts,seconds\n", "user_id,page,ts\n", ""):
        (folder / "b.csv").write_text(lines(header, 100))
        with pytest.raises(
            DataError,
            match=r"^file 'b\.csv' of source 'visits': its first line is no header .* in their order",
        ) as caught:
            one.go(START + 3 * DAY)
        assert "u100" not in str(caught.value)
    (folder / "b.csv").write_text(lines("user_id,page,ts,seconds\n", 100))
    assert one.go(START + 3 * DAY).records == 100


def test_the_first_file_is_looked_at_before_anything_is_spent(
    spark: SparkSession, tmp_path: Path
) -> None:
    """For what only Spark can reach. Catches: a refusal after the ledger line is written."""
    session = run_session(spark, 1)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/a.csv").write_text(
        "page,user_id,ts,seconds\nsecret,u,2023-12-09 12:00:00,1.5\n"
    )
    source = Source("visits", path=str(tmp_path / "csv"), **CSV)
    with pytest.raises(DataError, match="its first line is no header"):
        check_there(session, [source])
    with pytest.raises(
        Exception, match="FAILED_READ_FILE"
    ):  # a public table has its own columns, too
        static(session, source).count()
    (tmp_path / "csv/a.csv").write_text(
        "user_id,page,ts,seconds\nu,secret,2023-12-09 12:00:00,1.5\n"
    )
    check_there(session, [source])
    (tmp_path / "csv/a.csv").write_text("user_id,page,ts,seconds\n" + "," * 30_000 + "\nx,\n")
    check_there(session, [source])  # no record refuses
    for name, kind, declared, have in (
        ("u", pa.uint64(), "BIGINT", "DECIMAL(20,0)"),
        ("i", pa.int64(), "INT", "BIGINT"),
    ):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"n": pa.array([1], kind)}), tmp_path / name / "a.parquet")
        with pytest.raises(
            DataError, match=f"a.parquet: column `n` has type .* declares {declared}: declare `n "
        ) as caught:
            check_there(
                session, [Source("visits", "parquet", str(tmp_path / name), schema=f"n {declared}")]
            )
        advised = str(caught.value).split("declare `n ")[1].removesuffix("`")
        assert advised == have
        read = Source("visits", "parquet", str(tmp_path / name), schema=f"n {advised}")
        check_there(session, [read])
        assert [int(row.n) for row in static(session, read).collect()] == [1]
