"""Lines of text: none touches another, and files are read as the programs that write them mean them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.first_look import check_files
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from tests.sweeps import some, sweep

SCHEMA = "u STRING, ts TIMESTAMP, k STRING, v DOUBLE"
DIALECTS: dict[str, dict[str, str]] = {
    "plain": {},
    "backslash": {"escape": "\\"},
    "semicolon": {"sep": ";", "quote": "'"},
    "tab": {"delimiter": "\\t", "nullValue": "NA"},
    "without quotes": {"quote": "", "sep": "|"},
}


def source(kind: str = "csv", schema: str = SCHEMA, **options: str) -> Source:
    return Source("visits", kind, schema=schema, options=tuple(options.items()))


CONNECTION = cache(connect)


def read(path: Path, of: Source) -> tuple[list[tuple[object, ...]], int]:
    connection = CONNECTION()
    chunk = InputReader(connection, of).all_files([path])
    columns = ", ".join(
        f'CAST("{name}" AS VARCHAR)' if kind.name == "timestamp" else f'"{name}"'
        for name, kind in chunk.table.columns
    )
    return connection.sql(f'SELECT {columns} FROM "{chunk.table.view}"').fetchall(), chunk.malformed


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


GOOD = 12
ODD_CSV = [
    b'x,2024-03-01 00:10:00,"a,1.5',
    b"x,2024-03-01 00:10:00,a,1.5\\",
    b'"',
    b'"""',
    b',"',
    b"'",
    b";'x",
    b'x"y"z,"',
    b"\\",
    b'"\\',
    b"\xff\xfe",
    b"caf\xe9,,,",
    b"\x00",
    b"," * 100_000,
    b'"' * 100_001,
    b"x" * (1 << 20),
    b'"' + b"x" * (1 << 20),
    b"\xef\xbb\xbf",
    b"x\t\t\t\t",
]
ODD_JSON = [
    rb'{"u":"x","ts":"2024-03-01T00:10:00","k":"a","note":"\ud83d"}',
    rb'{"u":"\ud83d"}',
    rb'{"\ud83d":1,"u":1,"u":"\ude00"}',
    rb'{"u":{"a":"\ud83d"},"k":[1,"\udfff"]}',
    b'{"u":7,"z":' + b"9" * 4301 + b"}",
    b'{"u":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"z":' + b"[" * 3000 + b"]" * 3000 + b',"u":1.50}',
    b'{"u":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b',"u":2}',
    b'[{"u":"x"}, null]',
    b'[{"u":"x"}, {"u":"y"}]',
    b"{",
    b'"',
    b'{"u":"',
    b'{"u":1e400,"v":1e400} x',
    b'{"u":"a\x00b"}',
    rb'{"u":"\u0000","k":0.1e-7}',
    b"\xff",
    b'{"u":"\xe9"}',
    b"\xef\xbb\xbf{}",
    b"\\",
]


def good_lines(kind: str, **options: str) -> list[bytes]:
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    rows = [(f"u{i}", "2024-03-01 00:30:00", "abc"[i % 3], "1.5") for i in range(GOOD)]
    if kind == "csv":
        return [separator.join(row).encode() for row in rows]
    return [json.dumps({"u": u, "ts": ts, "k": k, "v": 1.5}).encode() for u, ts, k, _ in rows]


@pytest.mark.parametrize(
    ("kind", "dialect"), [*(("csv", dialect) for dialect in DIALECTS), ("json", "plain")]
)
@pytest.mark.parametrize("place", some([GOOD // 2, 0, GOOD], 3))
def test_no_bytes_take_good_lines_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dialect: str, place: int
) -> None:
    """Catches: an open quote handed to a parser of files, a text that raises, a line that is cut where a block ends."""
    options = DIALECTS[dialect]
    good = good_lines(kind, **options)
    rng = random.Random(place)
    blobs = [bytes(rng.choices(range(256), k=30)) for _ in range(sweep(5, 100))]
    odd = ODD_CSV if kind == "csv" else ODD_JSON
    for number, bytes_ in enumerate([*odd, *blobs, b"\r\n".join(odd)]):
        monkeypatch.setattr("dpsql.local.lines.CHUNK_BYTES", 300 if number % 3 else 64)
        if len(bytes_) > 100_000:
            monkeypatch.setattr("dpsql.local.lines.CHUNK_BYTES", 16 << 20)
        path = write(tmp_path / f"a.{kind}", b"\n".join([*good[:place], bytes_, *good[place:]]))
        rows, _ = read(path, source(kind, **options))
        units = [
            str(row[0]) for row in rows if row[1:] == ("2024-03-01 00:30:00", f"{row[2]}", 1.5)
        ]
        assert sorted(units) == sorted(f"u{i}" for i in range(GOOD)), bytes_[:100]


def test_a_line_is_whole_where_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: half of a CRLF taken for a blank line, and a line too long that swallows the next."""
    monkeypatch.setattr("dpsql.local.lines.LONGEST_LINE", 40)
    for size in range(1, sweep(6, 60)):
        monkeypatch.setattr("dpsql.local.lines.CHUNK_BYTES", size)
        for end in ("\n", "\r\n", "\r"):
            content = end.join(["a,1", "x" * 39, '"b,c",2', "y" * 100, "", "é,3"])
            rows, malformed = read(
                write(tmp_path / "a.csv", content), source(schema="u STRING, n INT")
            )
            assert sorted(rows) == [("a", 1), ("b,c", 2), ("é", 3)] and malformed == 2, (size, end)


TEXTS = [
    "",
    "a",
    "a,b",
    'say "hi"',
    '"',
    '""',
    "\\",
    "a\\",
    '\\"',
    "C:\\a",
    " x ",
    "é;'",
    "NA",
    "\t",
]


@pytest.mark.parametrize("escape", ['"', "\\"])
def test_what_python_writes_is_read_alike(tmp_path: Path, escape: str) -> None:
    """Catches: an escape that is not undone, or one that is undone twice."""
    rows = [(a, b, "end") for a in TEXTS for b in TEXTS]
    buffer = io.StringIO()
    doubled = escape == '"'
    csv.writer(
        buffer, doublequote=doubled, escapechar=None if doubled else escape, quoting=csv.QUOTE_ALL
    ).writerows(rows)
    path = write(tmp_path / "a.csv", buffer.getvalue())
    found, malformed = read(path, source(schema="a STRING, b STRING, c STRING", escape=escape))
    assert malformed == 0
    expected = [tuple(text or None for text in row) for row in rows]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


FRAME = pd.DataFrame(
    {
        "u": ["a", 'say "hi"', "a,b", "C:\\a", "é"],
        "ts": pd.to_datetime(["2024-02-29 12:00:00"] * 5),
        "k": ["x", None, "y", "z", "'"],
        "v": [1.5, 2.0, None, -1.0, 1e9],
    }
)
ROWS = [
    ("a", "x", 1.5),
    ('say "hi"', None, 2.0),
    ("a,b", "y", None),
    ("C:\\a", "z", -1.0),
    ("é", "'", 1e9),
]
BY_HAND = '''u,ts,k,v
a,2024-02-29 12:00:00,x,1.5
"say ""hi""",2024-02-29 12:00:00,,2
"a,b",2024-02-29 12:00:00,y,
C:\\a,2024-02-29 12:00:00,z,-1
é,2024-02-29 12:00:00,',1000000000
'''


JSON_FILE = FRAME.to_json(orient="records", lines=True, date_format="iso", force_ascii=False)
FILES: dict[str, tuple[str, dict[str, str]]] = {
    "pandas": (FRAME.to_csv(index=False), {}),
    "pandas, gzip": (FRAME.to_csv(index=False), {}),
    "pandas on Windows": (FRAME.to_csv(index=False, lineterminator="\r\n"), {}),
    "Excel": (f"\ufeff{BY_HAND}".replace("\n", "\r\n"), {}),
    "Excel in Europe": (f"\ufeff{FRAME.to_csv(index=False, sep=';')}", {"sep": ";"}),
    "psql COPY": (BY_HAND, {}),
    "psql COPY with NULL": (
        BY_HAND.replace(",,", ",NA,").replace("y,\n", "y,NA\n"),
        {"nullValue": "NA"},
    ),
    "Databricks": (BY_HAND.replace('""', '\\"'), {"escape": "\\"}),
    "pandas, JSON": (JSON_FILE, {}),
    "jq -c": (FRAME.assign(ts="2024-02-29 12:00:00").to_json(orient="records", lines=True), {}),
    "JSON, gzip": (JSON_FILE, {}),
    "PowerShell, JSON": (f"\ufeff{JSON_FILE}".replace("\n", "\r\n"), {}),
}
"""By program: what it writes, and the options of the source."""


@pytest.mark.parametrize("program", FILES)
def test_files_of_other_programs_are_read(tmp_path: Path, program: str) -> None:
    """Catches: doubled quotes, a byte order mark, CR and LF, or another program's NULL, that make records malformed."""
    content, options = FILES[program]
    kind = "json" if content.lstrip("\ufeff").startswith("{") else "csv"
    path = tmp_path / f"visits.{kind}{'.gz' if 'gzip' in program else ''}"
    options = {"header": "true", **options} if kind == "csv" else options
    rows, malformed = read(write(path, content), source(kind, **options))
    assert malformed == 0
    expected = [(u, "2024-02-29 12:00:00", k, v) for u, k, v in ROWS]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))


def test_a_file_that_duckdb_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    duckdb.from_df(FRAME).write_csv(str(path), header=True)
    assert read(path, source(header="true"))[1] == 0


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE"])
@pytest.mark.parametrize(("kind", "name"), [("csv", "a.csv"), ("json", "a.json.gz")])
def test_other_encodings_are_told_by_their_mark(
    tmp_path: Path, kind: str, name: str, encoding: str
) -> None:
    """As PowerShell writes. Catches: a file whose lines are all malformed, without a hint before anything is spent."""
    content = "\ufeff" + (BY_HAND if kind == "csv" else JSON_FILE)
    path = write(tmp_path / name, content.encode(encoding))
    for options in ({}, {"header": "true"} if kind == "csv" else {}):
        declared = replace(source(kind, **options), path=str(path))
        reader = InputReader(CONNECTION(), declared)
        for look in (reader.check, reader.all_files, lambda _, of=declared: check_files(of)):
            with pytest.raises(
                DataError, match=f"mark says {encoding}, .* `iconv -f {encoding} -t"
            ):
                look([path])
    assert read(write(path, content), source(kind, **options))[1] == 0


def test_half_a_mark_refuses_nothing(tmp_path: Path) -> None:
    """Catches: a record that refuses a file by its bytes."""
    for start in (b"\xff\xfe", b"\xff\xfea", b"\xfe\xff\x00\x00", b"\xff\xfe\x00\x00"):
        path = write(tmp_path / "a.csv", start + b"\nb,1\n")
        assert read(path, source(schema="u STRING, n INT"))[0] == [("b", 1)]


REFUSED = [
    ("csv", "timestampFormat", "dd/MM/yyyy"),
    ("csv", "encoding", "ISO-8859-1"),
    ("csv", "sep", "||"),
    ("csv", "sep", "§"),
    ("csv", "sep", '"'),
    ("csv", "escape", "^"),
    ("json", "timestampFormat", "yyyy-dd-MM"),
]


@pytest.mark.parametrize(("kind", "option", "value"), REFUSED)
def test_options_of_spark_are_refused_by_name(
    tmp_path: Path, kind: str, option: str, value: str
) -> None:
    """Catches: an option that is not read, and not refused."""
    path = write(tmp_path / f"a.{kind}", "")
    reader = InputReader(connect(), source(kind, **{option: value}))
    words = f"source `visits`: `{option}` of {kind} runs on Spark: `dpsql run --until-caught-up`"
    for look in (reader.check, reader.all_files):
        with pytest.raises(DataError) as caught:
            look([path])
        assert str(caught.value) == words


@pytest.mark.parametrize(
    ("option", "value"),
    [("maxFilesPerTrigger", "2"), ("multiLine", "false"), ("mode", "PERMISSIVE")],
)  # fmt: skip
def test_options_that_change_nothing_are_accepted(tmp_path: Path, option: str, value: str) -> None:
    for kind in ("csv", "json"):
        path = write(tmp_path / f"a.{kind}", "")
        InputReader(connect(), source(kind, **{option: value})).check([path])
