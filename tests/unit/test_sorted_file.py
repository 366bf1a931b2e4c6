"""Data files: the same rows give the same bytes, statistics and readers leave out no row that is there, an era has a file of its own."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from dpsql.files import place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.sorted_file import sorted_file, statistics
from dpsql.streaming.released import ReleasedRows, sweep
from dpsql.udfs import task_files
from dpsql.udfs.keys import encode
from dpsql.udfs.task_files import ContributionFiles, ContributionRows, ReleasedFiles

SCHEMA = pa.schema(
    [
        *(
            ("window_start", pa.timestamp("us", "UTC")),
            ("trigger", pa.int32()),
            ("page", pa.string()),
            ("day", pa.date32()),
        ),
        *(
            ("views", pa.int64()),
            ("views_stderr", pa.float64()),
            ("price", pa.decimal128(20, 2)),
            ("new", pa.bool_()),
        ),
        ("raw", pa.binary()),
    ]
)
YEAR_10000_US = 253_402_300_800_000_000
YEAR_0_US = -62_135_856_000_000_000
"""Where the week of 0001-01-01 begins, the time that some systems write for none."""


def rows(first_us: int, count: int = 3) -> pa.Table:
    columns = {
        "window_start": [first_us + 400 * i for i in range(count)],
        "trigger": [1] * count,
        "page": [None, "b", "c" * 40][:count],
    }
    columns |= {
        "price": [Decimal("123456789012345678.10"), None, Decimal("-0.01")][:count],
        "new": [True, None, False][:count],
    }
    columns |= {"raw": [b"\xff", None, b""][:count]}
    columns |= {
        "day": [1] * count,
        "views": [-5, 0, 7][:count],
        "views_stderr": [None, 1.5, 2.5][:count],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def table(path: Path) -> Path:
    DeltaTable.create(str(path), Schema.from_arrow(SCHEMA))
    return path


def test_equal_rows_in_any_chunks_are_equal_bytes(tmp_path: Path) -> None:
    whole = rows(1_000)
    written = [
        sorted_file(tmp_path, given)
        for given in (whole, pa.concat_tables([whole.slice(0, 1), whole.slice(1)]))
    ]
    assert len({(tmp_path / file["path"]).read_bytes() for file in written}) == 1
    assert pq.read_table(tmp_path / written[0]["path"]).equals(whole)
    assert pq.read_metadata(tmp_path / written[0]["path"]).num_row_groups == 1


def test_the_commit_says_nothing_but_the_rows(tmp_path: Path) -> None:
    path = table(tmp_path)
    delta_tables.append_files(path, [sorted_file(path, rows(1_000))], {"run/triggers": 7})
    info, add, mark = map(
        json.loads, (tmp_path / "_delta_log/00000000000000000001.json").read_text().splitlines()
    )
    assert set(info["commitInfo"]) == {
        "timestamp",
        "operation",
        "operationParameters",
        "engineInfo",
        "clientVersion",
    }
    assert (add["add"]["size"], add["add"]["tags"]) == (
        (tmp_path / add["add"]["path"]).stat().st_size,
        None,
    )
    assert mark == {"txn": {"appId": "run/triggers", "version": 7}}


@pytest.mark.parametrize("first_us", [1_000, 1_500, -1_500, YEAR_0_US, YEAR_10000_US - 2_000])
def test_readers_find_every_row_by_its_time(tmp_path: Path, first_us: int) -> None:
    """Statistics have milliseconds. Catches: bounds that are too narrow, and columns without any."""
    path = table(tmp_path)
    delta_tables.append_files(path, [sorted_file(path, rows(first_us))], {"a": 1})
    for i in range(3):
        at = pa.scalar(first_us + 400 * i, pa.timestamp("us", "UTC"))
        assert read_rows(path, None, pc.field("window_start") == at).num_rows == 1
    conditions = [
        pc.field("page") == "b",
        pc.field("page") == "c" * 40,
        pc.field("page").is_null(),
        pc.field("views") == 7,
    ]
    conditions += [
        pc.field("views_stderr") == 1.5,
        pc.field("price") == Decimal("123456789012345678.10"),
        pc.field("raw") == b"\xff",
    ]
    conditions += [pc.field("new"), pc.field("day") == pa.scalar(date(1970, 1, 2))]
    assert [read_rows(path, None, condition).num_rows for condition in conditions] == [1] * 8 + [3]
    if first_us == 1_500:
        actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()[0]
        assert (
            actions["num_records"],
            actions["min.views"],
            actions["max.views"],
            actions["null_count.views"],
        ) == (3, -5, 7, 0)
        assert [actions[f"{end}.window_start"].microsecond for end in ("min", "max")] == [
            1_000,
            3_000,
        ]


def test_bounds_are_never_too_narrow(tmp_path: Path) -> None:
    """Texts that are none, infinite numbers, and times after the year 9999."""
    odd = {"t": pa.StringArray.from_buffers(2, *pa.array([b"\x80", b"\xff"]).buffers()[1:])}
    odd |= {
        "x": pa.array([float("-inf"), float("inf")]),
        "at": pa.array([0, YEAR_10000_US], pa.timestamp("us", "UTC")),
    }
    odd |= {"none": pa.array([None, None], pa.string())}
    found = statistics(pa.table(odd))
    assert found["minValues"] == {
        "t": "",
        "x": -1.7976931348623157e308,
        "at": "1970-01-01T00:00:00.000Z",
    }
    assert found["maxValues"] == {
        "t": "\U0010ffff",
        "x": 1.7976931348623157e308,
        "at": "9999-12-31T23:59:59.999Z",
    }
    assert found["nullCount"] == {"t": 0, "x": 0, "at": 0, "none": 2}


KEYS = [0, 1, -1, (1 << 63) - 1, -(1 << 63)]


def test_contributions_go_into_one_file_per_era(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "window": [-130, -64, 0, 63, 64],
            "key": KEYS,
            "key_bytes": [b"k"] * 5,
            "bucket": pa.array([1] * 5, pa.int32()),
        }
    )
    first = [("kind", pa.int32()), ("bucket", pa.int32()), ("batch", pa.int64())]
    schema = pa.schema([*first, *rows.schema.remove(3), ("closed_us", pa.int64())])
    files = ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(rows, bucket=3, batch=7)
    assert [(f["partition"], f["rows"]) for f in files] == [
        ({"era": e}, n) for e, n in (("-3", 1), ("-1", 1), ("0", 2), ("1", 1))
    ]
    written = [pq.read_table(tmp_path / f["path"], partitioning=None) for f in files]
    assert all(
        t.schema.remove_metadata() == schema and set(t["batch"].to_pylist()) == {7} for t in written
    )
    assert [key for t in written for key in t["key"].to_pylist()] == KEYS
    assert all((tmp_path / f["path"]).stat().st_size == f["bytes"] for f in files)


@pytest.mark.parametrize("buckets", [1, 3, 32, 33, 1000])
def test_a_bucket_reads_its_rows_and_no_others(tmp_path: Path, buckets: int) -> None:
    keys = np.random.default_rng(1).integers(0, 1 << 62, 2000)
    keys = keys[
        keys % buckets % 7 != 3
    ]  # some buckets have no rows, the first and the last ones have
    takes = pa.schema([("window", pa.int64()), ("key", pa.int64())])
    columns = [pa.field("kind", pa.int32()), pa.field("bucket", pa.int32()), *takes]
    keys = keys[np.argsort(keys % 5)]
    rows = pa.table(
        {"window": keys % 5, "key": keys, "bucket": pa.array(keys % buckets, pa.int32())}
    )
    files = ContributionFiles(str(tmp_path), pa.schema(columns), "window", 0, 3).write(rows, 0, 0)
    names = [file["path"] for file in files]
    assert len(names) == 2
    assert all(
        pq.ParquetFile(tmp_path / name).num_row_groups <= task_files.MOST_ROW_GROUPS
        for name in names
    )
    reader = ContributionRows(str(tmp_path), takes, buckets)
    for bucket in range(buckets):
        own = reader.read(names, bucket)["key"].to_numpy()
        assert sorted(own) == sorted(keys[keys % buckets == bucket])


def test_no_rows_no_files(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("kind", pa.int32()),
            ("bucket", pa.int32()),
            ("window", pa.int64()),
            ("batch", pa.int64()),
        ]
    )
    assert (
        ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(schema.empty_table(), 0, 0)
        == []
    )
    assert not list(tmp_path.iterdir())


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    path = tmp_path / "a lake, 100% näive" / "rows"
    for part in range(3):
        rows = pa.table({"part": [part] * 4, "value": [part * 10 + i for i in range(4)]})
        write_deltalake(path, rows, partition_by=["part"], mode="append")
    return path


def test_columns_and_conditions(parts: Path) -> None:
    assert sorted(read_rows(parts)["value"].to_pylist()) == [
        0,
        1,
        2,
        3,
        10,
        11,
        12,
        13,
        20,
        21,
        22,
        23,
    ]
    assert read_rows(parts, ["value"], pc.field("part") == 1).to_pydict() == {
        "value": [10, 11, 12, 13]
    }
    assert read_rows(place(f"file://{parts}".replace("%", "%25")), ["part"]).num_rows == 12
    with pytest.raises(TableNotFoundError):
        read_rows(parts / "not-there")


def test_no_python_object_reads_the_files(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that still holds one at the interpreter's end aborts the process, now and then: no test of the abort itself is certain."""

    def refused(*given: object) -> None:
        raise AssertionError("deltalake's file system in Python")

    monkeypatch.setattr(DeltaStorageHandler, "from_table", refused)
    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", refused)
    assert read_rows(parts).num_rows == 12


NO_SESSION: Any = None


def released_rows(seed: int, size: int = 300) -> pa.Table:
    generator = np.random.default_rng(seed)
    pairs = np.sort(generator.integers(0, 12, size))
    keys = [
        encode([b"k%d" % key, None if key % 3 else b""]) for key in generator.integers(0, 9, size)
    ]
    return pa.table(
        {
            "window": pa.array(pairs // 3 * 100 - 100),
            "trigger": pa.array(pairs % 3 + 1),
            "key_bytes": pa.array(keys, pa.binary()),
            "c0": pa.array(generator.integers(0, 99, size)),
            "s0": pa.array(generator.random(size)),
        }
    )


@pytest.mark.parametrize("group_bytes", [1, 2_000, 16 << 20])
def test_the_rows_of_some_triggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    """Row groups of a row each, some, one. Catches: a trigger that goes over two row groups and loses rows."""
    monkeypatch.setattr(task_files, "GROUP_BYTES", group_bytes)
    given = [released_rows(seed, 60 if group_bytes == 1 else 300) for seed in range(3)]
    folder = ReleasedFiles(str(tmp_path / "released"), 2)
    names = tuple(folder.write(part, bucket) for bucket, part in enumerate(given))
    assert (pq.ParquetFile(tmp_path / "released" / names[0]).num_row_groups > 1) == (
        group_bytes < 10_000
    )
    released = ReleasedRows(NO_SESSION, tmp_path / "released", names)
    whole = pa.concat_tables(given)
    columns = given[0].column_names
    assert released.table().select(columns).equals(whole)
    assert {"k0", "k1"} <= set(released.table().column_names)
    everything = whole.to_pylist()
    for pairs in (
        {(-100, 1)},
        {(-100, 1), (200, 3), (0, 2)},
        {(7, 7)},
        {(row["window"], row["trigger"]) for row in everything},
    ):
        wanted = [row for row in everything if (row["window"], row["trigger"]) in pairs]
        assert released.table(pairs).select(columns).to_pylist() == wanted
    released.remove()
    released.remove()  # a start that died in between has removed some
    assert not list((tmp_path / "released").iterdir())


def test_what_an_earlier_start_has_left_is_removed(tmp_path: Path) -> None:
    sweep(tmp_path / "none")
    ReleasedFiles(str(tmp_path / "released"), 2).write(released_rows(0), 7)
    (tmp_path / "released" / "theirs").mkdir()
    sweep(tmp_path / "released")
    assert [left.name for left in (tmp_path / "released").iterdir()] == ["theirs"]
