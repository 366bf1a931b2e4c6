"""Every expression of the allow-list over edge values, on Spark and on DuckDB: same type, same values, bit for bit."""

import datetime as dt
import itertools
import math
import random
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.local.allowed import EXTRACTED, FUNCTIONS
from dpsql.local.connection import connect
from dpsql.local.from_clause import read_from
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source

SCHEMA = (
    "s STRING, t STRING, n STRING, i INT, j INT, l BIGINT, m BIGINT, h SMALLINT, y TINYINT, d DOUBLE, e DOUBLE, f FLOAT, "
    "b BOOLEAN, p BOOLEAN, c DECIMAL(10, 2), g DECIMAL(6, 3), day DATE, other DATE, ts TIMESTAMP, w BINARY"
)
INT32 = 2**31
INT64 = 2**63
TEXTS = ["", " ", "a", "A", "abc", "  ab c ", "ab\tc\n", "\u00a0x\u3000", "é", "É", "ß", "ẞ", "İ", "ı", "ΟΔΟΣ", "ΑΣ.", "Σ", "ﬁ", "ǅ",
    "🎉a🎉", "e\u0301", "日本語テキスト",
         "100%", "a_b", "a\\b", "a%b", "'q'", '"', "a/b/c", "/", "NULL", "nan", "x" * 300, "\x00", "\x7f"]  # fmt: skip
NUMBERS_AS_TEXT = ["", " ", "0", "-0", "+5", "5", " 5 ", "\t5\n", "1.5", "-1.5", ".5", "5.", ".", "+", "-", "+.", "1e3", "1E-3", "1e",
    "0x10", "0x1p3", "1_000", "1,000", "١", "NaN",
                   "nan", "+NaN", "inf", "Infinity", "-inf", "-Infinity", "INF", "1d", "1.5f", "1L", "1dd", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "127", "128", "32768",
                   "9223372036854775807", "9223372036854775808", "-9223372036854775808", "00000000000000000000000000000001", "1e400",
    "-1e400", "1e-400", "4.9e-324", "0.1", "123456789.123456789",
                   "true", "TRUE", "t", "y", "Yes", "no", "f", "F", "0", "1", "n", " true ", "on", "2024-02-29", "2023-02-29",
    "2024-2-9", "2024", "2024-02", "2024-02-29T", "2024-02-29 x",
                   "2024-02-29T12:34:56", "2024-02-29 12:34:56.789", "2024-02-29 12:34:56.123456789", "2024-02-29 12:34:56Z",
    "2024-02-29 12:34:56+01:00", "2024-02-29 12:34:56 +1:00",
                   "2024-02-29 12:34:56 Europe/Paris", "2024-02-29 12:34:56PST", "2024-02-29 12", "2024-02-29 12:34",
    "2024-02-29 1:2:3", "2024-02-29 24:00:00", "2024-02-29 23:59:60", "0000-01-01",
                   "0001-01-01", "-0001-01-01", "10000-01-01", "+12345-06-07", "999999-01-01", "99999999-01-01", "2024-13-01",
    "2024-00-01", "2024-02-29 12:34:56.", "12:34:56x", "2024-02-29 12:34:56 UTC",
                   "2024-02-29 12:34:56GMT+3", "2024-03-31 02:30:00 Europe/Paris", "2024-10-27 02:30:00 Europe/Paris",
    "2024-02-29 12:34:56+0130", "2024-02-29 12:34:56+19:00", "2024-02-29 12:34:56 Nowhere",
    "+300000-01-01", "-290308-12-22", "294247-01-10 04:00:00", "+5881580-07-12", "9999-12-31", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
    "9999-12-31 23:59:59 -18:00", "0001-01-01 00:00:00+18:00", "0001-01-01 00:00:00", "0000-12-31 23:59:59.999999"]  # fmt: skip
INTS = [0, 1, -1, 2, 3, -3, 7, 10, 100, 32767, 32768, INT32 - 1, -INT32]
LONGS = [0, 1, -1, 2, -7, 1000, INT32, -INT32 - 1, 2**53 + 1, 10**12, INT64 - 1, -INT64]
DOUBLES = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999999999999994, 0.1, 1e-320, 5e-324, 1e300, -1e300, 2.0**31,
    -(2.0**31) - 1, 2.0**53 + 2, 2.0**63, -(2.0**63), 9.2e18, 1e19, 4503599627370497.5,
           math.inf, -math.inf, math.nan, 3.0, -3.0]  # fmt: skip
DAYS = [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2023, 12, 31), dt.date(2016, 1, 1), dt.date(1900, 3,
    1), dt.date(1582, 10, 10), dt.date(1, 1, 1), dt.date(9999, 12, 31),
        dt.date(2000, 2, 29), dt.date(2024, 12, 30)]  # fmt: skip
TIMES = [0, -1, 1, 999_999, -500_000, 1_709_210_096_123_456, 1_442_018_855_776_000, 1_709_251_199_999_999, -2_208_988_800_000_000,
    -62_135_596_800_000_000, 253_402_300_799_999_999,
         -12_219_292_800_000_000, 951_827_696_000_000, 1_711_850_400_000_000]  # fmt: skip
DECIMALS = [
    "0.00",
    "0.50",
    "-0.50",
    "1.25",
    "-1.25",
    "99999999.99",
    "-99999999.99",
    "3.00",
    "100.10",
]
SMALL_DECIMALS = ["0.000", "0.125", "-0.125", "999.999", "-999.999", "2.000"]
VALUES = {
    "s": TEXTS, "t": [*TEXTS, "b"], "n": NUMBERS_AS_TEXT, "i": INTS, "j": [*INTS, 5], "l": LONGS, "m": [*LONGS, 5], "h": [0, 1, -1, 7,
    32767, -32768], "y": [0, 1, -1, 5, 127, -128],
    "d": DOUBLES, "e": [*DOUBLES, 7.25], "f": [0.0, -0.0, 0.5, -2.5, 1e30, 3.4e38, math.inf, math.nan, 16777216.0], "b": [True,
    False], "p": [True, False, True],
    "c": [Decimal(x) for x in DECIMALS], "g": [Decimal(x) for x in SMALL_DECIMALS], "day": DAYS, "other": [*DAYS, dt.date(1999, 1,
    1)], "ts": TIMES, "w": [b"", b"a", b"\xff\x00"],
}  # fmt: skip
ARROW = {"s": pa.string(), "t": pa.string(), "n": pa.string(), "i": pa.int32(), "j": pa.int32(), "l": pa.int64(), "m": pa.int64(),
    "h": pa.int16(), "y": pa.int8(), "d": pa.float64(), "e": pa.float64(),
         "f": pa.float32(), "b": pa.bool_(), "p": pa.bool_(), "c": pa.decimal128(10, 2), "g": pa.decimal128(6, 3), "day": pa.date32(),
    "other": pa.date32(), "ts": pa.timestamp("us", tz="UTC"),
         "w": pa.binary()}  # fmt: skip

OF_TEXT = """
lower({0}); upper({0}); lcase({0}); ucase({0}); length({0}); char_length({0}); character_length({0}); len({0}); octet_length({0});
trim({0}); ltrim({0}); rtrim({0});
substring({0}, 1, 2); substring({0}, 0, 2); substring({0}, -2, 1); substring({0}, -5, 3); substring({0}, 2); substring({0}, -1);
substr({0}, 3, 100); substring({0}, 2, 0); substring({0}, 2, -1);
substring({0}, -2147483648, 2147483647); substring({0}, 2147483647, 2147483647); left({0}, 2); left({0}, 0); left({0}, -1);
right({0}, 2); right({0}, 0); right({0}, -1); right({0}, 1000);
replace({0}, 'a', 'bb'); replace({0}, '', 'x'); replace({0}, 'b', ''); lpad({0}, 5, '*'); lpad({0}, 0, '*'); lpad({0}, -1, '*');
rpad({0}, 5, 'xy');
{0} LIKE 'a%'; {0} LIKE '%b%'; {0} LIKE '_'; {0} LIKE '__'; {0} LIKE 'a\\\\_b'; {0} LIKE '100\\\\%'; {0} LIKE ''; {0} NOT LIKE '%c';
{0} LIKE 'a\\\\\\\\b'; {0} LIKE '%\n'; {0} LIKE '🎉_🎉';
{0} IN ('a', 'A', ''); {0} NOT IN ('a', NULL); {0} = 'é'; {0} <> ''; {0} < 'b'; {0} BETWEEN 'A' AND 'a'; {0} IS NULL; {0} IS NOT NULL;
isnull({0}); isnotnull({0});
concat({0}, '-', t); {0} || t; concat({0}); {0} = t; {0} <=> t; {0} < t; {0} >= t; startswith({0}, t); endswith({0}, t);
contains({0}, t); instr({0}, t); instr({0}, ''); startswith({0}, ''); contains({0}, 'a');
coalesce({0}, t, 'none'); nvl({0}, 'x'); ifnull({0}, 'x'); nvl2({0}, 'y', t); nullif({0}, 'a'); nullif({0}, t); if({0} = 'a', 1, 2);
if({0} = 'a', {0}, NULL); CASE {0} WHEN 'a' THEN 1 WHEN 'b' THEN 2 END;
CASE WHEN {0} = 'a' THEN 'first' WHEN {0} > t THEN 'second' ELSE t END; greatest({0}, t); least({0}, t, 'm'); equal_null({0}, t);
lower(trim(substring({0}, 2, 3)))
"""
OF_NUMBER_TEXT = (
    "; ".join(
        f"CAST(n AS {kind})"
        for kind in (
            "TINYINT",
            "SMALLINT",
            "INT",
            "BIGINT",
            "DOUBLE",
            "BOOLEAN",
            "DATE",
            "TIMESTAMP",
        )
    )
    + "; int(n); bigint(n); double(n); boolean(n); date(n); timestamp(n); to_date(n)"
)
OF_INTEGER = """
{0} + {1}; {0} - {1}; {0} * {1}; {0} / {1}; {0} % {1}; {0} DIV {1}; -{0}; abs({0}); {0} + 1; {0} * 2; {0} - 1.5; {0} * 0.25; {0} + 1e0;
{0} / 2; {0} / 0; {0} % 0; {0} % -1; {0} DIV -1; {0} / 2.5e0; {0} % 2.5e0;
{0} = {1}; {0} <> {1}; {0} < {1}; {0} <= {1}; {0} > {1}; {0} >= {1}; {0} <=> {1}; {0} = 1; {0} > 1.5; {0} < 0.5e0; {0} IN (1, 2, 3);
{0} NOT IN (1, NULL); {0} BETWEEN -1 AND 10; {0} = d; {0} > d; {0} <= d;
CAST({0} AS TINYINT); CAST({0} AS SMALLINT); CAST({0} AS INT); CAST({0} AS BIGINT); CAST({0} AS DOUBLE); CAST({0} AS STRING);
CAST({0} AS BOOLEAN); string({0}); smallint({0}); tinyint({0});
coalesce({0}, {1}, 0); coalesce({0}, d); nullif({0}, {1}); nullif({0}, 0); greatest({0}, {1}); least({0}, {1}, 0); greatest({0}, d);
least({0}, d, 0); if({0} > 0, {0}, {1}); if(b, {0}, d); floor({0}); ceil({0}); round({0});
CASE WHEN {0} < 0 THEN 'low' WHEN {0} < 10 THEN 'mid' ELSE 'high' END; CASE {0} WHEN 1 THEN 'one' ELSE 'more' END; concat('x', {0});
{0} || '/' || {1}; {0} IS NULL; nvl2({0}, 1, 0); {0} + d; {0} * d; {0} + c; {0} = c; {0} * g
"""
OF_DOUBLE = """
{0} + {1}; {0} - {1}; {0} * {1}; {0} / {1}; {0} % {1}; -{0}; abs({0}); {0} + 1; {0} * 0.5; {0} / 3; {0} / 0; {0} % 2; {0} % 0;
{0} % -1.5e0; {0} = {1}; {0} <> {1}; {0} < {1}; {0} <= {1}; {0} > {1}; {0} >= {1}; {0} <=> {1};
{0} = 0; {0} > 0.5; {0} IN (0, 1, 2.5); {0} BETWEEN 0 AND 1; {0} NOT BETWEEN -1 AND 1; isnan({0}); {0} IS NULL; floor({0}); ceil({0});
ceiling({0}); round({0}); sign({0}); signum({0}); sqrt({0});
CAST({0} AS INT); CAST({0} AS BIGINT); CAST({0} AS BOOLEAN); int({0}); coalesce({0}, {1}, 0); nullif({0}, {1}); nullif({0}, 0);
greatest({0}, {1}); least({0}, {1}); greatest({0}, {1}, 0); if({0} > {1}, {0}, {1});
floor({0} / 10) * 10; floor({0}) % 7; CASE WHEN isnan({0}) THEN 'none' WHEN {0} < 0 THEN 'neg' ELSE 'pos' END; {0} > c; {0} + g; {0} * c
"""
OF_FLOAT = "f IS NULL; isnan(f); CAST(f AS DOUBLE); floor(f); ceil(f); sign(f); sqrt(f); f = f; f > d; f <=> d; coalesce(f, d); f + d"
OF_BOOLEAN = """
b AND p; b OR p; NOT b; b = p; b <> p; b <=> p; b IS TRUE; b IS NOT TRUE; b IS FALSE; b IS NOT FALSE; b IS NULL; CAST(b AS INT);
CAST(b AS BIGINT); CAST(b AS TINYINT); CAST(b AS DOUBLE); CAST(b AS STRING); if(b, 1, 0);
if(b, 1, NULL); if(b, 1, 2.5); CASE WHEN b THEN 1 END; coalesce(b, p); nullif(b, p); b AND NULL; b OR NULL; NULL AND b;
(b OR p) AND NOT (b AND p); b < p; greatest(b, p); int(b); b = true; b IN (true, NULL)
"""
OF_DECIMAL = """
c + g; c - g; c * g; -c; c = g; c < g; c > 1; c > 0.5; c = 0.5e0; c <= l; c BETWEEN 0 AND 100; c IN (0.5, 3); CAST(c AS DOUBLE);
coalesce(c, g); coalesce(c, 0); if(b, c, g); if(b, c, 0.125); nullif(c, 3); greatest(c, g); least(c, g, 1); c * 2; c + 1; c - 0.01;
c * 1.1; c IS NULL; c + i; c * i; c - l; c * h; c <=> g; if(b, c, d)
"""
OF_DAY = """
year({0}); quarter({0}); month({0}); day({0}); dayofmonth({0}); dayofweek({0}); weekday({0}); dayofyear({0}); weekofyear({0});
to_date({0}); CAST({0} AS DATE); CAST({0} AS STRING); CAST({0} AS TIMESTAMP); string({0}); date({0});
{0} = day; {0} < other; {0} >= DATE '2016-01-01'; {0} > '2016-01-01'; {0} BETWEEN '1970-01-01' AND '2024-02-29';
{0} <= TIMESTAMP '2024-02-29 00:00:00'; {0} IN (DATE '2024-02-29', DATE '1970-01-01'); {0} IS NULL; coalesce({0}, day);
greatest({0}, other); {0} <=> day; nullif({0}, DATE '1970-01-01'); concat({0}, '!'); if(b, {0}, day)
"""
OF_DATE = """datediff(day, other); date_diff(day, other); datediff(other, day); trunc(day, 'MM'); trunc(day, 'month'); trunc(day, 'YEAR');
trunc(day, 'quarter'); trunc(day, 'week'); trunc(other, 'yy')"""
OF_TIME = (
    """hour(ts); minute(ts); second(ts); CAST(ts AS BIGINT); bigint(ts); ts >= TIMESTAMP '2015-09-12 00:47:35.776';
ts >= '2015-09-12';
ts < '2024-02-29 12:34:56.5'; ts = '2015-09-12T00:47:35.776Z';
ts BETWEEN '1970-01-01' AND '2024-02-29T23:59:59'; hour(ts) * 60 + minute(ts); datediff(CAST(ts AS DATE), day);
concat(CAST(year(ts) AS STRING), '-', quarter(ts)); """
    + "; ".join(f"EXTRACT({part} FROM ts)" for part in EXTRACTED)
    + "; "
    + "; ".join(
        f"date_trunc('{unit}', ts)"
        for unit in (
            "YEAR",
            "yyyy",
            "QUARTER",
            "MONTH",
            "mm",
            "WEEK",
            "DAY",
            "dd",
            "HOUR",
            "MINUTE",
            "second",
        )
    )
)
OF_BYTES = "length(w); w IS NULL; w = w; coalesce(w, w)"
LITERALS = r"""
1; -1; 2147483647; -2147483648; 2147483648; -9223372036854775808; 1.5; -0.25; .5; 10.; 1e3; 1.5E-3; 'x'; 'it\'s'; 'a\nb'; 'a\\b'; 'é🎉';
r'a\b'; true; NULL; 5L; 5S; 5Y; 1.5D; DATE '2024-02-29'; TIMESTAMP '2024-02-29 12:34:56.789'; 1 + 1; 7 / 2; 7 DIV 2; 7 % 3; 0.1 + 0.2;
2147483647 + 1; 1.5 * 1.5; 100 * 0.01; 'a' = 'a'; 1 = 1.0; NULL = 1; NULL IS NULL; -(-2147483648); 1 / 0
"""


def _listed(text: str, *columns: str) -> list[str]:
    return [
        part.strip().format(*columns) if columns else part.strip()
        for part in text.split(";")
        if part.strip()
    ]


EXPRESSIONS = list(
    dict.fromkeys(
        itertools.chain(
            *(_listed(OF_TEXT, column) for column in ("s", "n")),
            _listed(OF_NUMBER_TEXT),
            *(_listed(OF_INTEGER, *pair) for pair in (("i", "j"), ("l", "m"), ("h", "y"), ("i", "l"))),
            *(_listed(OF_DOUBLE, *pair) for pair in (("d", "e"), ("d", "i"), ("d", "l")) ),
            *(_listed(text) for text in (OF_FLOAT, OF_BOOLEAN, OF_DECIMAL, OF_DATE, OF_TIME, OF_BYTES, LITERALS)),
            *(_listed(OF_DAY, column) for column in ("day", "ts")),
        )
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which every edge value and NULL of every column meets many of the others."""
    rng = random.Random(7)
    rows = 4 * max(len(values) for values in VALUES.values())
    columns = {}
    for name, values in VALUES.items():
        cycle = list(itertools.islice(itertools.cycle([None, *values]), rows))
        rng.shuffle(cycle)
        columns[name] = pa.array(cycle, ARROW[name])
    path = tmp_path_factory.mktemp("edges") / "edges.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def _bits(value: object) -> object:
    """Floats by their bits (all NaN alike), everything else as it is."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value).hex()
    return value


def _duckdb(path: Path, expressions: list[str]) -> tuple[list[str], pa.Table]:
    connection = connect()
    (chunk,) = InputReader(connection, Source("edges", "parquet", schema=SCHEMA)).files([path])
    scope = read_from("FROM edges", {"edges": chunk.table})
    values = [scope.value(expression) for expression in expressions]
    listed = ", ".join(f"{value.sql} AS c{i}" for i, value in enumerate(values))
    return [str(value.type).lower().replace(", ", ",") for value in values], connection.sql(
        f"SELECT {listed} {scope.sql}"
    ).to_arrow_table()


def test_every_expression_of_the_list_is_the_same_on_spark(
    spark: SparkSession, edges: Path
) -> None:
    from dpsql.streaming.session import run_session
    from dpsql.streaming.totality import guarded

    session = run_session(spark, 1)
    # Side by side in one query, greatest(d, i) and greatest(i, d) would be computed once, though one is -0.0 where the other is 0.0
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    session.read.parquet(str(edges)).coalesce(1).createOrReplaceTempView("edges")
    listed = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate(EXPRESSIONS))
    theirs = guarded(session, session.sql(f"SELECT {listed} FROM edges"))
    types = [field.dataType.simpleString() for field in theirs.schema.fields]
    our_types, ours = _duckdb(edges, EXPRESSIONS)
    found = theirs.toArrow()
    wrong = []
    for i, expression in enumerate(EXPRESSIONS):
        if types[i] != our_types[i]:
            wrong.append(f"{expression}: type {types[i]} on Spark, {our_types[i]} here")
        expected = [_bits(value) for value in _plain(found.column(i))]
        given = [_bits(value) for value in _plain(ours.column(i))]
        differ = [row for row, (a, b) in enumerate(zip(expected, given, strict=True)) if a != b]
        if differ:
            row = differ[0]
            wrong.append(
                f"{expression}: {len(differ)} differ, as row {row}: {expected[row]!r} on Spark, {given[row]!r} here"
            )
    assert not wrong, "\n".join(wrong)


def _plain(column: pa.ChunkedArray) -> list[object]:
    """Values as Python sees them; times as numbers, because Python's own do not reach far enough."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(
            pa.timestamp("us", tz="UTC") if column.type.tz else pa.timestamp("us")
        ).cast(pa.int64())
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    return column.to_pylist()


def test_case_of_every_letter_of_unicode(spark: SparkSession, tmp_path: Path) -> None:
    from dpsql.streaming.session import run_session

    letters = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]
    # Two letters that Python does not know as letters yet: alone they are right, but not as the neighbours of a final sigma
    known = [letter for letter in letters[:0x3000] if letter not in "\u1c89\u1c8a"]
    texts = (
        letters
        + [f"A{letter}" for letter in known]
        + [f"{letter}Σ{other}" for letter in "aΣ.\u0345 " for other in known]
    )
    pq.write_table(pa.table({"s": texts}), tmp_path / "letters.parquet")
    session = run_session(spark, 1)
    found = (
        session.read.parquet(str(tmp_path / "letters.parquet"))
        .coalesce(1)
        .selectExpr("lower(s)", "upper(s)")
        .toArrow()
    )
    connection = connect()
    connection.register("letters", pa.table({"s": texts}))
    ours = connection.sql("SELECT dpsql_lower(s), dpsql_upper(s) FROM letters").to_arrow_table()
    for i, name in enumerate(("lower", "upper")):
        differ = [
            text
            for text, a, b in zip(
                texts, found.column(i).to_pylist(), ours.column(i).to_pylist(), strict=True
            )
            if a != b
        ]
        assert not differ, (
            f"{name}: {len(differ)} differ: {[[hex(ord(letter)) for letter in text] for text in differ[:50]]}"
        )


def test_every_function_is_among_the_expressions() -> None:
    assert not [
        name
        for name in FUNCTIONS
        if not any(f"{name}(" in expression for expression in EXPRESSIONS)
    ]
