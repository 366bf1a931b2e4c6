"""Headers of CSV files, and types of numbers in Parquet files: compared with what is declared before anything is spent."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.first_look import check_files
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source

SCHEMA = "person STRING, ts TIMESTAMP, shop STRING"
LINE = "secret,2024-02-29 12:00:00,a\n"
LACKS = r"is no header with the declared columns \(person, ts, shop\): {} is not in it\. Write the names of its header into `schema`"


def source(path: Path, schema: str = SCHEMA, **options: str) -> Source:
    return Source(
        "visits", "csv", str(path), schema=schema, options=(("header", "true"), *options.items())
    )


def write(path: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def people(path: Path, schema: str = SCHEMA, **options: str) -> list[str]:
    connection = connect()
    chunk = InputReader(connection, source(path, schema, **options)).all_files([path])
    assert chunk.malformed == 0
    return [
        person
        for (person,) in connection.sql(f'SELECT person FROM "{chunk.table.view}"').fetchall()
    ]


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ("person,ts,shop\n", {}),
        ("Person,TS,SHOP\r\n", {}),
        ('"person","ts","shop"\n', {}),
        ("\ufeffperson,ts,shop\n", {}),
        ("\n  \n\r\nperson,ts,shop\n", {}),
        ("'person',ts,shop\n", {"quote": "'"}),
    ],
)
def test_headers_that_name_the_declared_columns(
    tmp_path: Path, header: str, options: dict[str, str]
) -> None:
    """Catches: the first record taken for the header, or the header for a record."""
    for name in ("a.csv", "a.csv.gz"):
        assert people(write(tmp_path / name, header + LINE * 2), **options) == ["secret", "secret"]
        check_files(source(tmp_path / name, **options))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "shop,person,ts\n",
            "its header says shop, person, ts, but source `visits` declares person, ts, shop: write "
            "`schema: shop STRING, person STRING, ts TIMESTAMP`",
        ),
        (
            "person,ts,shop,till\n",
            "write `schema: person STRING, ts TIMESTAMP, shop STRING, till STRING`",
        ),
        (
            "person,ts,person,shop\n",
            "its header says person, ts, person, shop, .*: give each column of the file a name of its own",
        ),
        (
            ",person,ts,shop\n",
            "its header says , person, ts, shop, .*: give each column of the file a name of its own",
        ),
        ("person,ts\n", LACKS.format("shop")),
        ("user, ts,shop\n", LACKS.format("person, ts")),
        (LINE, LACKS.format("person, ts, shop")),
        ("person;ts;shop\n", LACKS.format("person, ts, shop")),
        ('"person,ts,shop\n', LACKS.format("person, ts, shop")),
        ("x" * 2_000_000, LACKS.format("person, ts, shop")),
        (b"\xff\xfe\x00\n", LACKS.format("person, ts, shop")),
    ],
)
def test_other_headers_are_refused_without_a_value(
    tmp_path: Path, content: str | bytes, says: str
) -> None:
    """Catches: another column protected and people published as keys; a record in the message."""
    good = write(tmp_path / "a.csv", "person,ts,shop\n" + LINE)
    bad = write(tmp_path / "b.csv.gz", content)
    for look in (
        lambda: check_files(source(tmp_path)),
        lambda: InputReader(connect(), source(tmp_path)).check([good, bad]),
        lambda: InputReader(connect(), source(tmp_path)).all_files([good, bad]),
        lambda: InputReader(connect(), source(tmp_path)).all_files([bad]),
    ):
        with pytest.raises(DataError, match=rf"b\.csv\.gz: .*{says}") as caught:
            look()
        assert "secret" not in str(caught.value) and "xxx" not in str(caught.value)


@pytest.mark.parametrize("till", ["till", "till number", "2", "Größe", "a`b"])
def test_the_advised_schema_works(tmp_path: Path, till: str) -> None:
    path = write(tmp_path / "a.csv", f"{till},shop,person,ts\nt,a,secret,2024-02-29 12:00:00\n")
    with pytest.raises(DataError) as caught:
        people(path)
    advised = str(caught.value).split("write `schema: ")[1].removesuffix("`")
    assert people(path, yaml.safe_load(f"schema: {advised}")["schema"]) == ["secret"]


@pytest.mark.parametrize("content", ["", "\n\n", "person,ts,shop", "person,ts,shop\n"])
def test_files_without_records_have_none(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.csv", content)
    assert people(path) == []
    check_files(source(path))


def test_columns_of_folders_are_in_no_header(tmp_path: Path) -> None:
    """As on Spark: `shop=a` is the column, and the file has the others."""
    (tmp_path / "shop=a").mkdir()
    write(tmp_path / "shop=a" / "a.csv", "person,ts\nsecret,2024-02-29 12:00:00\n")
    check_files(source(tmp_path))
    with pytest.raises(DataError, match="shop is not in it"):
        check_files(source(tmp_path, recursiveFileLookup="true"))


def test_types_of_numbers_are_looked_at_in_every_file(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        pq.write_table(pa.table({"n": pa.array([1], kind)}), tmp_path / f"{name}.parquet")
    declared = Source("visits", "parquet", str(tmp_path), schema="n INT")
    with pytest.raises(
        DataError,
        match=r"b\.parquet: column `n` has type BIGINT, but source `visits` declares INT: declare `n BIGINT`",
    ):
        check_files(declared)
    check_files(Source("visits", "parquet", str(tmp_path), schema="n BIGINT"))


@pytest.mark.parametrize("path", ["s3a://bucket/visits", "/data/*/a.csv", "hdfs://host/visits"])
def test_what_spark_alone_can_look_at_is_left_to_it(path: str) -> None:
    check_files(Source("visits", "csv", path, schema=SCHEMA, options=(("header", "true"),)))
    check_files(Source("visits", "csv", path, schema=SCHEMA))


@pytest.mark.parametrize("column", ["privacy_unit", "event_time"])
def test_a_unit_that_no_parquet_file_has_is_refused_before_anything_is_spent(
    tmp_path: Path, column: str
) -> None:
    """Catches: a typing error in sources.yaml by which no record counts, and a run that spends for nothing."""
    pq.write_table(pa.table({"who": ["a"], "ts": [0]}), tmp_path / "a.parquet")
    columns = {"privacy_unit": ("who",), "event_time": "ts"}
    declared = Source("v", "parquet", str(tmp_path), schema="who STRING, ts BIGINT", **columns)
    check_files(declared)
    typed = {"privacy_unit": ("whoo",), "event_time": "tss"}[column]
    wrong = replace(
        declared, schema="who STRING, whoo STRING, ts BIGINT, tss BIGINT", **{column: typed}
    )
    with pytest.raises(DataError, match="is missing; it has ts, who"):
        check_files(wrong)
