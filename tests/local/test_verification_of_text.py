"""What `verify` needs of Spark for files that Spark alone reads, and what it leaves behind (nothing)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.errors import ConfigError
from dpsql.jobs.verify import spark_reader
from dpsql.streaming.typed_rows import TypedRows
from tests.local.test_files_of_other_programs import SCHEMA, SQL, quoted_csv


def test_what_spark_has_read_is_not_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a copy of the records that others may read, or that grows with the run."""
    (tmp_path / "in").mkdir()
    block = {
        "path": str(tmp_path / "in"),
        "schema": SCHEMA,
        "event_time": "ts",
        "privacy_unit": "u",
    }
    source = dpsql.load_sources({"d": block | quoted_csv(tmp_path / "in")})["d"]
    typed = TypedRows(spark)
    first = typed(source, [tmp_path / "in" / "a.csv.gz"])
    folder = first[0].parent.parent
    assert folder.stat().st_mode & 0o077 == 0
    assert typed(source, []) == [] and not folder.exists()


def test_verify_of_text_without_java_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a traceback on a machine that has no Java; Spark that starts for Parquet."""
    block = {"path": "in", "schema": SCHEMA, "event_time": "ts", "privacy_unit": "u"}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    text, typed = (
        dpsql.compile(SQL.format("k"), dpsql.load_sources({"d": block | {"format": form}}))
        for form in ("csv", "parquet")
    )
    with pytest.raises(
        ConfigError, match=r"verify of a run over CSV lets Spark read its files.*install a JRE 17"
    ):
        spark_reader(text)
    assert spark_reader(typed) is None
