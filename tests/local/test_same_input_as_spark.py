"""The same files on both engines: the same lines are malformed, the others have the same values, and the records are the same bytes."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.lines import Dialect, json_select
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import OTHER_BATCH_FILES, InputReader, micro_batches, source_files
from dpsql.local.spark_types import parse_ddl
from dpsql.sources.config import Source
from dpsql.streaming.formats import CORRUPT
from dpsql.streaming.rows import listed_keys, records
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import BATCH_FILES, _parsed, _stored, stream, within_calendar
from dpsql.udfs.keys import encode
from tests.local.conftest import CLAUSE, Compile, visits
from tests.local.test_lines import DIALECTS
from tests.local.test_record_reader import KEYS
from tests.local.test_sources import MALFORMED_CSV, MALFORMED_JSON, SCHEMA, load
from tests.sweeps import sweep

JSON_LINES = r"""
{"name": "a", "n": 1, "x": 1.5, "ok": true, "day": "2024-02-29", "ts": "2024-02-29T12:00:00Z"}
{"name": null, "n": null, "x": null, "ok": null, "day": null, "ts": null}
{"x": 2, "extra": {"deep": [1, 2]}}
{"name": 12}
{"name": true}
{"name": {"a": 1}}
{"name": [1, "b"]}
{"name": "é\n\u00e9 \"q\" \\"}
{"name": ""}
{"n": -0}
{"n": 2147483647}
{"n": -2147483648}
{"x": "NaN"}
{"x": "Infinity"}
{"x": "-INF"}
{"x": NaN}
{"x": -Infinity}
{"x": 1e400}
{"x": -0.0}
{"x": 12345678901234567890}
{"ok": false}
{"day": "2024-2-9"}
{"day": "2024"}
{"ts": "2024-02-29"}
{"ts": "2024-02-29 12:00:00.123456+01:00"}
{"ts": "2024-02-29 25:00:00"}
{"ts": 1709208000}
{"ts": -1}
{"ts": 1.5}
  {"n": 3}
{"n": 4} trailing
{"n": 5,}
{n: 6}
{"n": 7
{"name": 1.50, "n": 1}
{"name": {"a" : [1,  2]}, "n": 2}
{"name": "x, }", "n": 3}
{"name": ",]"}
{"n": 1, "n": 2}
{"name": 1, "name": 2.0}
{"n": 01}
{"x": +1}
{"x": .5}
{"x": 1.}
{"name": "\q"}
{"name": "\ud83d\ude00"}
[{"n": 1}, {"n": 2}]
[1]
[{"n": 1}, 5]
[{"n": 1}
{"name": "a"} {"name": "b"}
{"name" : "spaced" , "n" : 1 }
{"N": 1}
{"name": tru}
{"n": 1.0}
{"ok": "false"}
{"ts": "2024-02-29T12:00:00.123456789Z"}
"""
CSV_LINES = """
a,1,1.5,true,2024-02-29,2024-02-29 12:00:00
,,,,,
"",,,,,
"b,c",-2,1e3,FALSE,2024-2-9,2024-02-29T12:00:00Z
"a""b",+3,-Inf,,,
x y , 4,,,,
é,,NaN,,,
a, ,,,,
a,,Infinity,,,
a,,1d,,,
a,,.5,True,,
a,2147483648,,,,
a,,,,2024,2024-02
a,-0,-0.0,,,
a,,,,,1709208000
a,,,yes,,
a,,nan,,,
"""


Outcome = tuple[list[tuple[object, ...]], int]


def on_spark(spark: SparkSession, kind: str, path: Path) -> list[Outcome]:
    """By line: the row, or that it is malformed."""
    session = run_session(spark, 1)
    source = Source("lines", kind, str(path), schema=SCHEMA)
    frame = _parsed(_stored(session, source, source.path), source)
    table = frame.coalesce(1).toArrow()
    times = table.column("ts").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    table = table.set_column(table.column_names.index("ts"), "ts", times)
    outcomes: list[Outcome] = []
    for row in table.to_pylist():
        is_malformed = row.pop(CORRUPT) is not None
        outcomes.append(([], 1) if is_malformed else ([tuple(row.values())], 0))
    return outcomes


@pytest.mark.parametrize(
    ("kind", "lines", "malformed"),
    [("json", JSON_LINES, MALFORMED_JSON), ("csv", CSV_LINES, MALFORMED_CSV)],
)
def test_text_files(
    spark: SparkSession, tmp_path: Path, kind: str, lines: str, malformed: str
) -> None:
    """Read at once on Spark and singly here. Catches: a line with other values than on Spark, or one that is malformed there and read here."""
    every = [
        line
        for line in lines.strip("\n").split("\n") + malformed.replace("\n", "").split("|")
        if line
    ]
    path = tmp_path / f"all.{kind}"
    path.write_text("\n".join(every), encoding="utf-8")
    there = on_spark(spark, kind, path)
    one = tmp_path / f"one.{kind}"
    here = [load(one) for line in every if one.write_text(f"{line}\n", encoding="utf-8")]
    assert {
        line: (theirs, ours)
        for line, theirs, ours in zip(every, there, here, strict=True)
        if repr(theirs) != repr(ours)
    } == {}
    assert sum(malformed for _, malformed in there) > 5


COMPUTED = ("lower(concat(page, user_id))", "CAST(hour(ts) AS STRING)")
OF_EACH_TYPE = tuple(f"k{number}" for number in range(len(KEYS)))


@pytest.mark.parametrize(
    ("keys", "unit"), [(COMPUTED, ("user_id",)), (OF_EACH_TYPE, ("user_id", "page"))]
)
def test_records_are_the_same_bytes(
    spark: SparkSession,
    compile_on: Compile,
    tmp_path: Path,
    keys: tuple[str, ...],
    unit: tuple[str, ...],
) -> None:
    """Ids, keys, times, arguments, and what is left out. What they are is held against a plain reference by `test_record_reader.py`."""
    table = visits(500)
    times = np.asarray(table["ts"].cast(pa.int64())).copy()
    times[:4] = 2**63 - 1, -(2**63) + 1, 0, -1
    columns = {
        "user_id": pa.array(
            [None, "", "é", "x" * 4092, "x" * 4093, "x" * 4096, "x" * 4097, "a", "ab", "😀"] * 50
        ),
        "page": pa.array(
            [None, "", "/ä", "p" * 5000, "p", "p" * 4, "", "bc", "c"] * 55 + ["\0"] * 5
        ),
        "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
        "seconds": pa.array([None, float("nan"), float("inf"), -0.0, 1e300] * 100),
    }
    columns |= {
        f"k{number}": pa.array((values * 167)[:500], kind)
        for number, (kind, values, _) in enumerate(KEYS.values())
    }
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet")
    clause = CLAUSE.replace("= user_id", f"= ({', '.join(unit)})")
    names = [f"named{number}" for number in range(len(keys))]
    listed = ", ".join(f"{key} AS {name}" for key, name in zip(keys, names, strict=True))
    numbers = (
        "COUNT(seconds) AS timed, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"
    )
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY {clause} {listed}, {numbers} FROM visits GROUP BY window(ts, '1 day'), {', '.join(names)}"
    query = compile_on(text, schema=None, unit=unit)
    session = run_session(spark, 1)
    session.read.parquet(str(tmp_path / "visits.parquet")).createOrReplaceTempView("visits")
    there = records(session, query.plan, b"s" * 16, 4).frame
    assert all(row.bucket == row.user % 4 for row in there.select("bucket", "user").collect())
    here = pa.concat_tables(
        RowReader(query.plan, query.sources, b"s" * 16, {}).files([tmp_path / "visits.parquet"])
    )
    kept = here.filter(pa.compute.equal(here.column("drop"), 0)).drop_columns(["drop"])
    assert sorted(map(repr, kept.to_pylist())) == sorted(
        map(repr, there.drop("bucket").toArrow().select(kept.column_names).to_pylist())
    )
    assert 100 < kept.num_rows < here.num_rows


REFUSED = [
    ("1.5D", "TIMESTAMP'2024-01-01'"),
    ("array('a')", "TIMESTAMP'2024-01-01'"),
    ("1.0000001BD", "TIMESTAMP'2024-01-01'"),
]
REFUSED += [("NULL", "TIMESTAMP'2024-01-01'"), ("'k'", "'2024-01-01'"), ("'k'", "1704067200L")]
EDGES = {
    "DATE'1899-12-31'": [-2_209_075_200_000_000],
    "TIMESTAMP_NTZ'1970-01-01 00:00:01'": [1_000_000],
    "date_from_unix_date(2147483647)": [],
}
EDGES |= {
    f"timestamp_micros({sign}{(1 << 61) + out}L)": [] if out else [int(f"{sign}{1 << 61}")]
    for sign in ("", "-")
    for out in (0, 1)
}


def on_spark_alone(spark: SparkSession, compile_on: Compile, key: str, time: str) -> list[int]:
    session = run_session(spark, 1)
    session.sql(
        f"SELECT 'u' AS user_id, 1.0D AS seconds, {key} AS page, {time} AS ts"
    ).createOrReplaceTempView("visits")
    return (
        records(session, compile_on(schema=None).plan, b"s" * 16, 4)
        .frame.toArrow()["ts"]
        .to_pylist()
    )


@pytest.mark.parametrize(("key", "time"), REFUSED)
def test_other_types_are_refused_on_spark_too(
    spark: SparkSession, compile_on: Compile, key: str, time: str
) -> None:
    with pytest.raises(
        DataError,
        match=r"cast it to STRING|event time `ts` has type .* not TIMESTAMP or DATE: write `event_time: ",
    ):
        on_spark_alone(spark, compile_on, key, time)


def test_event_times_at_the_edges_on_spark(spark: SparkSession, compile_on: Compile) -> None:
    assert {time: on_spark_alone(spark, compile_on, "'k'", time) for time in EDGES} == EDGES


@pytest.mark.parametrize("pattern", ["", "*.parquet"])
def test_files_come_in_the_same_order_and_cuts(
    spark: SparkSession, tmp_path: Path, pattern: str
) -> None:
    """Spark's log of what it has read against what `try` reads: ages, ties, times that differ by less than a millisecond, sub-folders.
    Catches: another order or another listing in a later release of Spark."""
    ages = {
        "q": 0,
        "w": 0,
        "e": 0,
        "r": 0,
        "a_newest": 9,
        "z_oldest": -9,
        "b": 0.7,
        "k": 0.3,
        "plain/sub": 5,
    }
    folder = tmp_path / "data"
    for name, age in ages.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [1]}), path)
        os.utime(path, ns=(1_700_000_000_000_000_000 + int(age * 10**6),) * 2)
    source = Source(
        "visits", "parquet", str(folder / pattern), options=(("maxFilesPerTrigger", "3"),)
    )
    frame = stream(spark, source)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    logs = sorted(
        (tmp_path / "checkpoint" / "sources" / "0").glob("[0-9]"), key=lambda path: int(path.name)
    )
    there = [
        [json.loads(line)["path"].rsplit("/", 1)[1] for line in log.read_text().splitlines()[1:]]
        for log in logs
    ]
    assert there == [
        [Path(file).name for file in batch]
        for batch in micro_batches(source, source_files(source, {}))
    ]
    assert sum(map(len, there)) == 8
    assert OTHER_BATCH_FILES == BATCH_FILES


def test_a_key_of_every_length_that_is_allowed(
    spark: SparkSession, compile_on: Compile, tmp_path: Path
) -> None:
    """Listed keys of 4,095 and 4,096 bytes are public groups on both engines, one of 4,097 is none."""
    keys = ["x" * length for length in (4095, 4096, 4097)]
    pq.write_table(
        pa.table({"page": keys, "topic": keys, "rank": pa.array([1, 2, 3], pa.int32())}),
        tmp_path / "pages",
    )
    options = "epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8"
    query = compile_on(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}, public_groups = (SELECT page FROM pages)) page, COUNT(*) AS n "
        "FROM visits GROUP BY window(ts, '1 day'), page",
        start_us=0,
    )
    here = RowReader(query.plan, query.sources, b"s" * 16, {}).public_groups(query.source)
    session = run_session(spark, 1)
    session.read.parquet(str(tmp_path / "pages")).createOrReplaceTempView("pages")
    assert here is not None
    assert (
        sorted(listed_keys(session, query.plan))
        == sorted(here.key_bytes)
        == sorted(encode([key.encode()]) for key in keys[:2])
    )


PARQUET: list[tuple[str, pa.Array]] = [
    ("TINYINT", pa.array([-128, None, 127], pa.int8())),
    ("BIGINT", pa.array([-128, None, 127], pa.int8())),
    ("DOUBLE", pa.array([-(2**31), None, 2**31 - 1], pa.int32())),
    ("SMALLINT", pa.array([0, None, 255], pa.uint8())),
    ("INT", pa.array([0, None, 2**16 - 1], pa.uint16())),
    ("BIGINT", pa.array([0, None, 2**32 - 1], pa.uint32())),
    ("DECIMAL(20, 0)", pa.array([0, None, 2**64 - 1], pa.uint64())),
    ("DOUBLE", pa.array([float("-inf"), None, 1.5], pa.float32())),
    ("DECIMAL(7, 2)", pa.array([-1, None, 1], pa.decimal128(5, 2))),
    ("STRING", pa.array(["é", None, ""]).dictionary_encode()),
    ("STRING", pa.array(["a\0", None, "\U0001f600"], pa.large_string())),
    ("BINARY", pa.array([b"\xff", None, b""])),
    ("BINARY", pa.array([b"0123456789abcdef", None, bytes(16)], pa.uuid())),
    ("TIMESTAMP", pa.array([-1, None, 253402300799999999], pa.timestamp("us", "UTC"))),
    ("TIMESTAMP", pa.array([-62135596800001, None, -1], pa.timestamp("ms"))),
    ("TIMESTAMP", pa.array([-(2**62), None, 2**62], pa.timestamp("us"))),
    ("DATE", pa.array([-719163, None, 2932897], pa.int32()).view(pa.date32())),
    ("DATE", pa.array([-86400000, None, 86400000], pa.date64())),
    ("BIGINT", pa.array([-1, None, 1], pa.duration("us"))),
    ("INT", pa.nulls(3)),
    ("BIGINT", None),
]
"""Columns as Arrow writes them into Parquet, with the type that they are declared as; None: the file lacks it."""


def test_columns_of_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a type or a value that one engine reads in another way."""
    columns = {f"c{i}": column for i, (_, column) in enumerate(PARQUET) if column is not None}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    schema = ", ".join(f"c{i} {declared}" for i, (declared, _) in enumerate(PARQUET))
    frame = run_session(spark, 1).read.schema(schema).parquet(str(tmp_path))
    expected = within_calendar(frame).toArrow()
    source = Source("visits", "parquet", schema=schema)
    connection = connect()
    (chunk,) = InputReader(connection, source).files([tmp_path / "a.parquet"])
    found = connection.sql(f'FROM "{chunk.table.view}"').to_arrow_table()
    for name, wanted in zip(found.column_names, expected.columns, strict=True):
        kind = pa.timestamp("us") if pa.types.is_timestamp(wanted.type) else wanted.type
        assert found[name].cast(kind).equals(wanted.cast(kind)), (name, PARQUET[int(name[1:])])


LETTERS = '"""\\\\,,;;\'\'\t\t| aé\x01'
OF_LINES = 2000


def random_lines(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    texts = ("".join(rng.choices(LETTERS, k=rng.randrange(1, 14))) for _ in range(count))
    return [text for text in texts if text.strip("".join(map(chr, range(33))))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_random_lines_of_csv(spark: SparkSession, tmp_path: Path, dialect: str) -> None:
    """Each line has the values of Spark, or is malformed. Catches: quotes that a parser takes for another thing than Spark does."""
    source = Source(
        "lines",
        "csv",
        str(tmp_path / "a.csv"),
        schema="a STRING, b STRING, c STRING",
        options=tuple(DIALECTS[dialect].items()),
    )
    lines = random_lines(len(dialect), sweep(OF_LINES, 30_000))
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    there = _stored(run_session(spark, 1), source, source.path).coalesce(1).toArrow().to_pylist()
    reading = Dialect(source)
    wrong = []
    malformed = 0
    for line, row in zip(lines, there, strict=True):
        is_malformed = row.pop(CORRUPT) is not None
        table = reading.table(pa.array([f"{line}\n"]), 3)
        values = [None if v == reading.null else v for c in table.columns for v in c.to_pylist()]
        malformed += not values and not is_malformed
        if values and (is_malformed or values != list(row.values())):
            wrong.append((line, values, row))
    assert wrong == []
    assert malformed < len(lines) / 5


VALUES = r"""1|-0|1.50|1e2|1e400|-0.0|12345678901234567890123|true|null|NaN|-INF|"a"|""|"1"|"é"|"\u0000"|"\ud83d"|"\ud83d\ude00"|"a\tb"|"\q"|
{}|[]|{"a": 1.50, "b":[1, 2]}|[1e10, "\ud83d"]|[{"n": 1}]|"2024-02-29"|"2024-02-29T12:00:00Z"|1709208000|01|.5|+1|tru|'a'|{"n":1|0.1e-7|1.0E5"""


def random_objects(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    values = VALUES.replace("\n", "").split("|")
    names = ["name", "n", "x", "ok", "day", "ts", "more", "\\ud83d"]
    lines = []
    for _ in range(count):
        chosen = rng.sample(names, rng.randrange(4))
        fields = [f'"{name}": {rng.choice(values)}' for name in chosen]
        line = "{" + rng.choice([",", ", ", " ,"]).join(fields) + "}"
        if rng.random() < 0.3:
            place = rng.randrange(len(line))
            letters = rng.choice(["", ",", "]", '"', "\\", " ", "}", "\x01", "[", "x"])
            line = line[:place] + letters + line[place + rng.randrange(2) :]
        lines.append(line)
    return [line for line in lines if line.strip()]


def test_random_lines_of_json(spark: SparkSession, tmp_path: Path) -> None:
    """Each line has the values of `from_json`, or is malformed. Catches: a parser that takes what Spark's refuses, and another value."""
    lines = random_objects(1, sweep(OF_LINES, 30_000))
    path = tmp_path / "a.json"
    path.write_text("\n".join(lines), encoding="utf-8")
    there = on_spark(spark, "json", path)
    connection = connect()
    connection.register("dpsql_raw", pa.table({"line": lines, "place": range(len(lines))}))
    select = json_select(parse_ddl(SCHEMA, "schema"), ("place",))
    rows = connection.sql(
        f"SELECT * REPLACE (epoch_us(ts) AS ts) FROM ({select}) ORDER BY place"
    ).fetchall()
    here = [([tuple(row)], 0) if misfit is None else ([], 1) for misfit, *row, _ in rows]
    wrong = [
        (line, ours, theirs)
        for line, ours, theirs in zip(lines, here, there, strict=True)
        if not ours[1] and repr(ours) != repr(theirs)
    ]
    assert wrong == []
    lost = sum(ours[1] and not theirs[1] for ours, theirs in zip(here, there, strict=True))
    assert lost < len(lines) / 20
