"""Files and frames: what is read, what is malformed, and what is refused without showing a value."""

import gzip
import os
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import ConfigError, DataError
from dpsql.local import lines
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader, micro_batches, source_files
from dpsql.sources.change_feed import FeedForm
from dpsql.sources.config import Source

SCHEMA = "name STRING, n INT, x DOUBLE, ok BOOLEAN, day DATE, ts TIMESTAMP"


def load(
    path: Path, schema: str | None = SCHEMA, **settings: object
) -> tuple[list[tuple[object, ...]], int]:
    connection = connect()
    source = Source("visits", **{"format": "parquet", "schema": schema, **settings})  # type: ignore[arg-type]
    rows: list[tuple[object, ...]] = []
    malformed = 0
    for chunk in InputReader(connection, source).files([path]):
        columns = ", ".join(
            f'epoch_us("{name}")' if kind.name == "timestamp" else f'"{name}"'
            for name, kind in chunk.table.columns
        )
        rows += connection.sql(f'SELECT {columns} FROM "{chunk.table.view}"').fetchall()
        malformed += chunk.malformed
    return rows, malformed


def text(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="")
    return path


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"name": "a", "n": 1, "x": 1.5, "ok": true, "day": "2024-02-29", "ts": "2024-02-29T12:00:00Z"}',
        '{"name": null, "x": 2, "extra": [1]}',
        '{"name": 12, "n": -0}',
        '{"name": "é\\n\\u00e9", "x": "NaN", "ts": 1}',
        "",
        "   ",
        "{}",
    ]
    rows, malformed = load(text(tmp_path / "a.json", "\r\n".join(lines)))
    assert malformed == 0
    assert [row[:3] for row in rows[:3]] == [("a", 1, 1.5), (None, None, 2.0), ("12", 0, None)]
    assert (
        rows[0][3] is True
        and str(rows[0][4]) == "2024-02-29"
        and rows[0][5] == 1_709_208_000_000_000
    )
    assert rows[3][0] == "é\né" and rows[3][5] == 1_000_000 and rows[4] == (None,) * 6


def test_seconds_beyond_the_years_are_no_malformed_lines(tmp_path: Path) -> None:
    """As on Spark, which makes NULL of them as of all times there (`within_calendar`)."""
    lines = "\n".join(
        f'{{"ts": {n}}}' for n in (253402300799, 253402300800, 9223372036854, -9223372036854)
    )
    rows, malformed = load(text(tmp_path / "a.json", lines))
    assert malformed == 0
    assert [row[5] for row in rows] == [253402300799000000, None, None, None]


MALFORMED_JSON = r"""
{|no json|[1]|5|"text"|{"n": 1.5}|{"n": "1"}|{"n": 2147483648}|{"ok": 1}|{"ok": "true"}|{"x": "abc"}|{"day": "2023-02-29"}|{"ts": "soon"}|
{"ts": 9223372036855}|{"ts": -9223372036855}|{"ts": 99999999999999999999}|{"ts": 1.5}|{"x": true}|{"n": {}}|
{"name": "a"|�|{"n": 1e2}|{"day": 5}|{"x": ""}|{"ts": true}
"""
MALFORMED_CSV = "a,1|a,1,1,true,2024-01-01,2024-01-01,more|a,x,1,true,,|a,1.5,,,,|a,,abc,,,|a,,,maybe,,|a,,,,2023-02-29,|a,,,,,soon"


@pytest.mark.parametrize("line", MALFORMED_JSON.replace("\n", "").split("|"))
def test_malformed_json_lines_are_counted_and_left_out(tmp_path: Path, line: str) -> None:
    rows, malformed = load(text(tmp_path / "a.jsonl", f'{{"n": 1}}\n{line}\n{{"n": 2}}\n'))
    assert [row[1] for row in rows] == [1, 2] and malformed == 1


def test_json_keeps_the_letter_case_of_its_names(tmp_path: Path) -> None:
    rows, malformed = load(
        text(tmp_path / "a.json", '{"userId": "a", "userid": "b"}'), schema="userId STRING"
    )
    assert (rows, malformed) == ([("a",)], 0)


def test_lines_are_whole_however_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsql.local.lines.CHUNK_BYTES", 7)
    lines = [f'{{"name": "é{i}", "n": {i}}}' for i in range(40)]
    rows, malformed = load(text(tmp_path / "a.json", "\n".join(lines)))
    assert [row[:2] for row in rows] == [(f"é{i}", i) for i in range(40)] and malformed == 0


def test_compressed_json(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        file.write('{"n": 1}\n{"n": 2}')
    assert [row[1] for row in load(tmp_path / "a.json.gz")[0]] == [1, 2]


def test_csv(tmp_path: Path) -> None:
    lines = [
        "a,1,1.5,true,2024-02-29,2024-02-29 12:00:00",
        '"b,c",-2,1e3,FALSE,,',
        ",,NaN,,,",
        '"a""b",+3,-Inf,,,',
        "",
    ]
    rows, malformed = load(text(tmp_path / "a.csv", "\n".join(lines)))
    assert malformed == 0
    rows.sort(key=lambda row: str(row[1]))
    assert [row[:4] for row in rows[:2]] == [("b,c", -2, 1000.0, False), ("a", 1, 1.5, True)]
    assert (
        rows[1][5] == 1_709_208_000_000_000
        and rows[3][:2] == (None, None)
        and rows[2][:3] == ('a"b', 3, float("-inf"))
    )


def test_csv_with_a_header_and_other_separators(tmp_path: Path) -> None:
    path = text(tmp_path / "data.txt", "name;n\n'x;y';1\n")
    options = (("header", "true"), ("quote", "'"), ("sep", ";"))
    assert load(path, schema="name STRING, n INT", format="csv", options=options) == (
        [("x;y", 1)],
        0,
    )


@pytest.mark.parametrize("line", MALFORMED_CSV.split("|"))
def test_malformed_csv_lines_are_counted_and_left_out(tmp_path: Path, line: str) -> None:
    rows, malformed = load(text(tmp_path / "a.csv", f"x,1,,,,\n{line}\ny,2,,,,\n"))
    assert [row[:2] for row in rows] == [("x", 1), ("y", 2)] and malformed == 1


@pytest.mark.parametrize("name", ["a.json", "a.csv", "empty.jsonl"])
def test_an_empty_text_file_has_no_rows(tmp_path: Path, name: str) -> None:
    assert load(text(tmp_path / name, "")) == ([], 0)


def test_parquet_with_and_without_a_declared_schema(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"Name": ["a"], "n": pa.array([1], pa.int16()), "more": [[1]]}),
        tmp_path / "a.parquet",
    )
    assert load(tmp_path / "a.parquet", schema="n BIGINT, name STRING") == ([(1, "a")], 0)
    assert load(tmp_path / "a.parquet", schema=None) == ([("a", 1, True)], 0)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            "name STRING, other STRING",
            "column `other` of source `visits` is missing; it has n, name",
        ),
        ("name INT", "column `name` has type STRING, but source `visits` declares INT"),
        (
            "n SMALLINT",
            "column `n` has type BIGINT, but source `visits` declares SMALLINT: declare `n BIGINT`",
        ),
        (
            "n DOUBLE",
            "column `n` has type BIGINT, but source `visits` declares DOUBLE: declare `n BIGINT`",
        ),
    ],
)
def test_columns_that_do_not_fit_the_schema(tmp_path: Path, schema: str, words: str) -> None:
    pq.write_table(pa.table({"name": ["secret value"], "n": [1]}), tmp_path / "a.parquet")
    source = Source("visits", "parquet", schema=schema)
    with pytest.raises(DataError, match=words) as caught:
        InputReader(connect(), source).check([tmp_path / "a.parquet"])
    assert "secret" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(text(tmp_path / "torn.parquet", "PAR1 secret"), schema=None)
    with pytest.raises(DataError, match="format text is read on Spark only"):
        load(text(tmp_path / "a.txt", "x"), format="text")
    with pytest.raises(ConfigError, match=r"needs `schema`.* at sources\.visits"):
        load(text(tmp_path / "a.json", "{}"), schema=None)


def test_a_damaged_page_is_no_traceback(tmp_path: Path) -> None:
    from dpsql.compiled import compile_query
    from dpsql.local.record_reader import RowReader
    from dpsql.sources.config import Sources
    from tests.local.conftest import SQL, visits

    path = tmp_path / "visits.parquet"
    pq.write_table(visits(), path)
    content = bytearray(path.read_bytes())
    content[100:4000] = bytes(3900)
    path.write_bytes(content)
    query = compile_query(
        SQL,
        Sources(
            (
                Source(
                    "visits",
                    "parquet",
                    str(path),
                    event_time="ts",
                    privacy_unit=("user_id",),
                    max_users=1000,
                    max_keys=1000,
                ),
            )
        ),
    )
    with pytest.raises(DataError, match="not a readable Parquet file"):
        list(RowReader(query.plan, query.sources, b"0" * 16, {}).files([path]))


def test_frames_of_pandas(tmp_path: Path) -> None:
    connection = connect()
    frame = pd.DataFrame(
        {"name": ["a", None], "n": [1, None], "ts": pd.to_datetime(["2024-02-29 12:00", None])}
    )
    frame["n"] = frame["n"].astype("Int32")
    chunk = InputReader(
        connection, Source("visits", "parquet", schema="name STRING, n INT, ts TIMESTAMP")
    ).frame(frame)
    rows = connection.sql(f'SELECT name, n, epoch_us(ts) FROM "{chunk.table.view}"').fetchall()
    assert rows == [("a", 1, 1_709_208_000_000_000), (None, None, None)]
    mixed = pd.DataFrame({"mixed": [1, "secret", b"x"]})
    chunk = InputReader(connection, Source("visits", "parquet")).frame(mixed)
    assert connection.sql(f'FROM "{chunk.table.view}"').fetchall() == [("1",), ("secret",)]
    assert chunk.malformed == 1
    with pytest.raises(DataError, match="the records are no table"):
        InputReader(connection, Source("visits", "parquet")).frame(1)


def test_which_files_a_source_has(tmp_path: Path) -> None:
    for name in (
        "b.parquet",
        "a.parquet",
        "_tmp/c.parquet",
        ".hidden",
        "sub/d.parquet",
        "day=1/e.parquet",
        "days/day=1/f.parquet",
    ):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    source = Source("visits", "parquet", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"its files are in day=\.\.\./ and no such folder"):
        source_files(source, {})
    names = ["a.parquet", "b.parquet", "day=1/e.parquet", "days/day=1/f.parquet"]
    days = Source("visits", "parquet", str(tmp_path / "data" / "days"))
    assert list(map(os.fspath, source_files(days, {}))) == [str(tmp_path / "data" / names[3])]
    (tmp_path / "data" / names[2]).rename(tmp_path / "data" / "sub" / "e.parquet")
    names[2:] = []  # plain sub-folders are not read, as on Spark
    assert sorted(source_files(source, {})) == [tmp_path / "data" / name for name in names]
    everything = Source(
        "visits", "parquet", str(tmp_path / "data"), options=(("recursiveFileLookup", "true"),)
    )
    assert sorted(source_files(everything, {})) == [
        tmp_path / "data" / name
        for name in (*names, "days/day=1/f.parquet", "sub/d.parquet", "sub/e.parquet")
    ]
    with pytest.raises(DataError, match="all files are in sub-folders"):
        source_files(Source("visits", "parquet", str(tmp_path)), {})
    assert source_files(source, {"visits": [tmp_path / "data" / "b.parquet"]}) == [
        tmp_path / "data" / "b.parquet"
    ]
    assert source_files(Source("visits", "parquet", str(tmp_path / "data" / "*.parquet")), {}) == [
        tmp_path / "data" / name for name in names[:2]
    ]
    with pytest.raises(DataError, match="no such file or folder"):
        source_files(Source("visits", "parquet", str(tmp_path / "none")), {})
    with pytest.raises(DataError, match="add --input visits=FILE"):
        source_files(Source("visits", "kafka"), {})
    with pytest.raises(DataError, match="is at s3://"):
        source_files(Source("visits", "parquet", "s3://bucket/x"), {})


def test_files_come_in_order_of_modification_so_many_at_a_time(tmp_path: Path) -> None:
    """As on Spark: milliseconds count; within one, the order given. Catches: by name, one file at a time, and finer times."""
    ages = {"c": 0, "b": 1, "e": 1, "a": 2, "d": 1}
    files = [tmp_path / name for name in "abcde"]
    for file in files:
        file.touch()
        when = (
            1_700_000_000_000_000_000
            + ages[file.name] * 1_000_000
            + 100_000 * (5 - ord(file.name) % 5)
        )
        os.utime(file, ns=(when, when))

    def cut(**options: str) -> list[str]:
        source = Source("visits", "parquet", str(tmp_path), options=tuple(options.items()))
        return ["".join(file.name for file in batch) for batch in micro_batches(source, files)]

    assert cut() == ["cbdea"]
    assert cut(maxFilesPerTrigger="2") == ["cb", "de", "a"]
    assert cut(MAXFILESPERTRIGGER="1") == ["c", "b", "d", "e", "a"]
    assert [len(batch) for batch in micro_batches(Source("visits", "parquet"), files * 20)] == [
        64,
        36,
    ]


def test_a_delta_table_has_the_files_of_its_newest_version(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    table = tmp_path / "delta"
    write_deltalake(str(table), pa.table({"n": [1]}))
    write_deltalake(str(table), pa.table({"n": [2]}), mode="overwrite")
    source = Source("visits", "delta", str(table))
    assert [pq.read_table(file).column("n").to_pylist() for file in source_files(source, {})] == [
        [2]
    ]
    assert [
        pq.read_table(file).column("n").to_pylist() for file in source_files(source, {}, version=0)
    ] == [[1]]


HASHES = pa.array([2**63 - 2 + i for i in range(4)], pa.uint64())
WHOLE = [
    (HASHES, "BIGINT", "declare `n DECIMAL(20,0)`"),
    (HASHES, "STRING", "declare `n DECIMAL(20,0)`"),
    (HASHES.dictionary_encode(), "BIGINT", "declare `n DECIMAL(20,0)`"),
    (pa.array([1], pa.int64()), "INT", "declare `n BIGINT`"),
    (pa.array([1], pa.uint32()), "INT", "declare `n BIGINT`"),
    (pa.array([1], pa.int16()), "TINYINT", "declare `n SMALLINT`"),
    (pa.array([1], pa.int64()), "DOUBLE", "declare `n BIGINT`"),
    (pa.array([1.0]), "BIGINT", "declare `n DOUBLE`"),
    (pa.array([10**19], pa.decimal128(20, 0)), "BIGINT", "declare `n DECIMAL(20,0)`"),
]
"""Numbers whose type their declaration cannot hold, though it holds most of these values."""


@pytest.mark.parametrize(("numbers", "declared", "says"), WHOLE, ids=str)
def test_numbers_are_refused_by_their_types_alone(
    tmp_path: Path, numbers: pa.Array, declared: str, says: str
) -> None:
    """Catches: half of the people lost, since their ids do not fit; and what is advised must work."""
    table = pa.table({"n": numbers})
    pq.write_table(table, tmp_path / "a.parquet")
    advised = says.rsplit("`n ", maxsplit=1)[-1].removesuffix("`")
    for given in (table, table.to_pandas(types_mapper=pd.ArrowDtype), None):
        reader = InputReader(connect(), Source("visits", "parquet", schema=f"n {declared}"))
        with pytest.raises(DataError, match=re.escape(says)):
            reader.frame(given) if given is not None else reader.all_files([tmp_path / "a.parquet"])
        connection = connect()
        reader = InputReader(connection, Source("visits", "parquet", schema=f"n {advised}"))
        view = (
            reader.frame(given) if given is not None else reader.all_files([tmp_path / "a.parquet"])
        ).table.view
        assert [int(n) for (n,) in connection.sql(f'SELECT n FROM "{view}"').fetchall()] == [
            int(n) for n in numbers.to_pylist()
        ]


@pytest.mark.parametrize(
    ("values", "declared", "call"),
    [
        ([1.0, None], "INT", "frame['n'].astype('Int32')"),
        ([1, 2], "DOUBLE", "frame['n'].astype('float64')"),
    ],
)
def test_a_frame_is_told_the_call_that_helps(values: list[float], declared: str, call: str) -> None:
    frame = pd.DataFrame({"n": values})
    source = Source("visits", "parquet", schema=f"n {declared}")
    with pytest.raises(DataError, match=re.escape(f"like {call}")):
        InputReader(connect(), source).frame(frame)
    frame["n"] = eval(call)
    InputReader(connect(), source).frame(frame)


def test_a_pattern_chooses_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.json", "b.csv", "c.parquet"):
        (tmp_path / name).touch()
    chosen = Source("visits", "json", str(tmp_path), (("pathGlobFilter", "*.{json,csv}"),))
    assert sorted(path.name for path in source_files(chosen, {})) == ["a.json", "b.csv"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("*/*/*.json", ["2024/01/a.json", "2024/02/b.json", "2025/01/c.json"]),
        ("2024/*/a.json", ["2024/01/a.json"]),
        ("{2024,2026}/0?", ["2024/01/a.json", "2024/02/b.json"]),
        ("202[^4]/01/*", ["2025/01/c.json"]),
        ("202[45]/01", ["2024/01/a.json", "2025/01/c.json"]),
    ],
)
def test_every_part_of_a_path_may_be_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, chosen: list[str]
) -> None:
    """As exports by day lie in folders. Catches: no file, for which a release is paid all the same."""
    for name in ("2024/01/a.json", "2024/02/b.json", "2024/.x/h.json", "2025/01/c.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):
        files = source_files(Source("visits", "json", str(folder / pattern)), {})
        assert [Path(file).resolve() for file in files] == [tmp_path / name for name in chosen]


@pytest.mark.parametrize("pattern", ["*/*.json", "none/*.json", "{a,b}"])
def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(DataError, match="no file or folder matches this pattern"):
        source_files(Source("visits", "json", str(tmp_path / pattern)), {})


def test_a_change_feed_is_given_as_files(tmp_path: Path) -> None:
    """Catches: the data files of a Delta table read as if each were an image."""
    feed = Source(
        name="accounts",
        format="delta",
        path=str(tmp_path),
        change_feed=FeedForm.DELTA,
        privacy_unit=("owner",),
    )
    with pytest.raises(
        DataError,
        match="export what changed as Parquet, with the columns _change_type, _commit_version, _commit_timestamp",
    ):
        source_files(feed, {})
    assert source_files(feed, {"accounts": [Path(__file__)]}) == [Path(__file__)]


def test_texts_of_messages_are_what_spark_makes_of_them(tmp_path: Path) -> None:
    """`from_json` writes numbers anew. Catches: 1.50 on one engine and 1.5 on the other, two keys of one."""
    path = text(
        tmp_path / "a.json",
        '{"name": 1.50}\n{"name": 1e2}\n{"name": 7}\n{"name": "1.50"}\n{"name": true}\n{"name": {"a": 2.0e1}}\n{}\n',
    )
    topic = {"format": "kafka", "value_format": "json", "options": (("subscribe", "visits"),)}
    messages, malformed = load(path, "name STRING", **topic)
    assert malformed == 0
    assert [name for (name,) in messages] == [
        "1.5",
        "100.0",
        "7",
        "1.50",
        "true",
        '{"a":20.0}',
        None,
    ]
    assert load(path, "name STRING", format="json") == (messages, 0)


def test_no_failure_quotes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: DuckDB's own words, which quote what it could not read, in a message or as its cause."""
    monkeypatch.setitem(lines.JSON_VALUES, "double", "CAST({0} AS INTEGER)")  # type: ignore[arg-type]
    words = r"^the input of `visits` cannot be read \(\w+Exception\)$"
    with pytest.raises(DataError, match=words) as caught:
        load(text(tmp_path / "a.json", '{"x": "secret"}'))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
