"""Ids that are no UTF-8: readers put U+FFFD in place of their bytes, so several units would be one, and one unit's leaving would move others."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.errors import DataError
from dpsql.local.record_reader import MALFORMED, RowReader
from tests.local.conftest import Compile

SALT = b"s" * 16
SQL = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1) page, COUNT(*) AS n FROM visits GROUP BY page"
SCHEMA = "user_id STRING, page STRING"
IDS = st.binary(min_size=1, max_size=3) | st.sampled_from([b"\x80", b"\x81", "\ufffd".encode()])
IDS |= st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=3).map(
    str.encode
)


def parquet(path: Path, ids: list[bytes]) -> None:
    table = pa.table({"user_id": pa.array(ids, pa.binary()), "page": ["a"] * len(ids)})
    pq.write_table(table, path)


def lines(path: Path, ids: list[bytes]) -> None:
    path.write_bytes(b"".join(b'{"user_id": "%s", "page": "a"}\n' % id_ for id_ in ids))


def fields(path: Path, ids: list[bytes]) -> None:
    path.write_bytes(b"".join(b"%s,a\n" % id_ for id_ in ids))


WRITERS: dict[str, Callable[[Path, list[bytes]], None]] = {
    "parquet": parquet,
    "json": lines,
    "csv": fields,
}
PLAIN = set(range(32, 127)) - set(b'"\\,') | set(range(128, 256))
"""Bytes that stand for themselves in text files."""


def rows_of(query: Query, path: Path) -> pa.Table:
    return pa.concat_tables(RowReader(query.plan, query.sources, SALT, {}).files([path]))


def is_plain(id_: bytes) -> bool:
    """Whether an id stands for itself in a text file, also where it is the first there: a mark of the byte order would not."""
    return set(id_) <= PLAIN and bool(id_.strip()) and not id_.startswith(codecs.BOM_UTF8)


def is_whole(id_: bytes) -> bool:
    return "\ufffd" not in id_.decode("utf-8", "replace")


@pytest.mark.parametrize("form", WRITERS)
@settings(
    suppress_health_check=list(HealthCheck),
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=30,
)
@given(drawn=st.lists(IDS, min_size=1, max_size=9, unique=True))
@example(drawn=[codecs.BOM_UTF8])
@example(drawn=[b"\x80", b"\x81", b"a", "\ufffd".encode()])
def test_two_ids_are_never_one(
    drawn: list[bytes], form: str, compile_on: Compile, tmp_path: Path
) -> None:
    """Catches: units that become one since a reader replaces their bytes; a unit whose leaving moves the records of another."""
    ids = [id_ for id_ in drawn if form == "parquet" or is_plain(id_)]
    if not ids:
        return
    query = compile_on(SQL, SCHEMA, format=form, event_time=None)
    path = tmp_path / f"a.{form}"
    WRITERS[form](path, ids)
    rows = rows_of(query, path)
    dropped = rows["drop"].to_pylist()
    assert dropped.count(MALFORMED) == sum(not is_whole(id_) for id_ in ids)
    users = [user for user, drop in zip(rows["user"].to_pylist(), dropped, strict=True) if not drop]
    assert len(set(users)) == len(users) == sum(map(is_whole, ids))


def test_ids_of_one_length_are_binary(compile_on: Compile, tmp_path: Path) -> None:
    """Catches: UUIDs of a Parquet file as texts, of which bytes are lost."""
    path = tmp_path / "a.parquet"
    raw = pa.array([bytes(range(16)), b"\xff" * 16], pa.binary(16))
    pq.write_table(pa.table({"user_id": raw, "page": ["a", "b"]}), path)
    for column in (raw, raw.cast(pa.uuid())):
        pq.write_table(pa.table({"user_id": column, "page": ["a", "b"]}), path)
        query = compile_on(SQL, "user_id BINARY, page STRING", event_time=None)
        assert rows_of(query, path)["drop"].to_pylist() == [0, 0]
        with pytest.raises(DataError, match=r"`user_id` has values of one length, .* as BINARY"):
            rows_of(compile_on(SQL, SCHEMA, event_time=None), path)


@pytest.mark.parametrize("form", WRITERS)
def test_spark_leaves_out_the_same_ids(
    spark: SparkSession, form: str, compile_on: Compile, tmp_path: Path
) -> None:
    """Catches: an id that is malformed on one engine only, or in another order of reasons."""
    from dpsql.streaming.rows import records
    from dpsql.streaming.session import run_session

    ids = [b"a", b"\x80", b"\x81", "\ufffd".encode(), b"\xe9\xe8", "\u00e9".encode(), b"x" * 5000]
    ids += [b"\x80" + b"x" * 5000, b"b"]
    query = compile_on(SQL, SCHEMA, format=form, event_time=None)
    path = tmp_path / f"a.{form}"
    WRITERS[form](path, ids)
    session = run_session(spark, 1)
    session.read.format(form).schema(SCHEMA).load(str(path)).createOrReplaceTempView("visits")
    there = records(session, query.plan, SALT, 4).frame.toArrow()["user"].to_pylist()
    rows = rows_of(query, path)
    assert rows["drop"].to_pylist().count(MALFORMED) == 4
    here = [row["user"] for row in rows.to_pylist() if not row["drop"]]
    assert len(here) == 3 and sorted(here) == sorted(there)
