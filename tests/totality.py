"""Every expression of the dialect over extreme values: what the tests run a part of, and `benchmarks/totality.py` all of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.errors import DataError
from dpsql.sql.allowed import FUNCTIONS, Signature

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CRITICAL = {
    "date_format(to_date(s), 'yyyy-MM')": ("s",),
    "hour(date(s))": ("s",),
    "date_trunc('MONTH', CAST(s AS DATE))": ("s",),
    "to_date(s) < ts": ("s", "ts"),
    "months_between(date(s), ts)": ("s", "ts"),
    "date_trunc('YEAR', to_timestamp(s))": ("s",),
    "to_utc_timestamp(s, 'Europe/Berlin')": ("s",),
    "from_utc_timestamp(s, 'Asia/Tokyo')": ("s",),
    "date_trunc('DAY', CAST(l AS TIMESTAMP))": ("l",),
    "date_format(date_add(DATE '2000-01-01', i), 'yyyy')": ("i",),
    "hour(date_from_unix_date(i))": ("i",),
    "ifnull(to_date(s), ts)": ("s", "ts"),
    "equal_null(to_date(s), ts)": ("s", "ts"),
    "coalesce(to_date(s), ts)": ("s", "ts"),
    "CASE WHEN i > 1 THEN to_date(s) ELSE ts END": ("i", "s", "ts"),
}
"""Accepted expressions that ended a job of Spark at one record before there were guards, and the columns that they read."""

INT = 2**31
LONG = 2**63
FIRST_US = -62_135_596_800_000_000
LAST_US = 253_402_300_799_999_999
POWERS = [0, 1, -1, 2, -2, 3, 7, -7, 9, 10, 12, 13, 31, 32, 33, 59, 60, 61, 63, 64, 65, 99, 100, -100, 127, -127, -128, 17, 23, 24, 25,
    28, 29, 30,
    53, 54, 5, -5, 126, -126, 77]  # fmt: skip
SHORTS = [*POWERS, 128, 255, 366, 1000, 1582, 9999, 10_000, 32_766, 32_767, -32_767, -32_768]
INTS = [
    *SHORTS,
    719_162,
    -719_162,
    -719_163,
    2_932_896,
    2_932_897,
    106_751_991,
    106_751_992,
    -106_751_991,
    INT - 2,
    INT - 1,
    1 - INT,
    -INT,
]
LONGS = [*INTS, INT, -INT - 1, 253_402_300_799, 253_402_300_800, -62_135_596_801, FIRST_US, FIRST_US - 1, LAST_US, LAST_US + 1,
    9_223_372_036_854, 9_223_372_036_855, 9_223_372_036_854_775, 9_223_372_036_854_776, 2**53 + 1, LONG // 2, LONG - 2, LONG - 1,
    1 - LONG, -LONG]  # fmt: skip
DOUBLES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 0.1, -0.1, 2.0, 10.0, 5e-324, -5e-324, 1e-320, 2.3e-308, 1e-10, 1e10, 1e15, 1e16,
    1e17, 1e18,
    9.2e18, 1e19, -1e19, 1e38, 3.4e38, 3.5e38, -3.5e38, 1e100, 1e300, -1e300, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**31,
    -(2.0**31) - 1,
    2.0**53 + 2, 2.0**63, -(2.0**63), 709.0, 710.0, 171.0, float("inf"), -float("inf"), float("nan")]  # fmt: skip
TEXTS = ["", " ", "\t\n", "a", "A", "abc", "ß", "İ", "ΑΣ", "ﬁ", "e\u0301", "日本語", "🎉", "a🎉b", "\x00", "\x7f", "\ufeff", "\u202e", "%",
    "_", "a\\b", "\\", "'",
    '"', "$1", "${x}", "(", "[", "*", "a,b,,c", ",", "x" * 300, "ab" * 6_000, "," * 12_000, "[" * 5_000, '{"a":' * 2_000, "NaN",
    "-Infinity", "1e400",
    "0x1p3", "1.5", "-0", "9" * 40, "9" * 400, "2147483648", "-9223372036854775809", "true", "null", "+300000-01-01", "-290308-12-22",
    "294247-01-10 04:00:00", "294247-01-10 04:00:54.775807", "-290308-12-21 19:59:05.224192", "+5881580-07-11", "+5881580-07-12",
    "-5877641-06-23",
    "0000-01-01", "0001-01-01", "0001-01-01 00:00:00", "9999-12-31", "9999-12-31 23:59:59.999999", "10000-01-01",
    "+10000-01-01 00:00:00", "1582-10-10",
    "2024-02-29", "2023-02-29", "2024-02-29T12:34:56.123456789Z", "2024-02-29 12:34:56+18:00", "2024-02-29 12:34:56 Europe/Paris",
    "9999-12-31 23:59:59 -18:00",
    "0001-01-01 00:00:00+18:00", "2024-13-45", "24:00:00", "http://a:b@h:99999/p?q=%zz#f", "http://[::1", "%zz%", "a%2", "{}", "[]",
    '{"a":1,"a":2}', '{"a":1e999}',
    '{"d":"+300000-01-01","t":"+300000-01-01"}', "<a>", "P1Y", "-1 days", "ff", "fff", "zz"]  # fmt: skip
BYTES = [b"", b"\x00", b"\xff", b"\xff\xfe", b"a", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x8e", b"\x80" * 8, b"x" * 300,
    bytes(range(256)), b"9" * 400, b"+300000-01-01",
    b"\x7f\xff\xff\xff", b"2024-02-29", b"true", *(bytes([n, 255 - n]) for n in range(0, 250, 10))]  # fmt: skip
DAYS = [0, 1, -1, -719_162, -719_161, 2_932_896, 2_932_895, -141_427, -141_428, 19_782, 59, 60, 11_016, 10_957, -719_163, 2_932_897,
    INT - 1, -INT,
    *range(-700_000, 2_900_000, 120_000)]  # fmt: skip
TIMES = [0, 1, -1, 999_999, -500_000, FIRST_US, FIRST_US + 1, FIRST_US + 86_399_999_999, LAST_US, LAST_US - 1, LAST_US - 86_399_999_999,
    FIRST_US - 1,
    LAST_US + 1, LONG - 1, -LONG, 1_709_210_096_123_456, 1_711_850_400_000_000, -12_219_292_800_000_000, *range(-60 * 10**15,
    250 * 10**15, 11 * 10**15)]  # fmt: skip
DECIMALS = [Decimal(n) for n in ("0", "0.1", "-0.1", "0.5", "-0.5", "1", "-1", "1.5", "2.5", "-2.5", "9.99", "10", "-10", "99.99", "127",
    "128", "-129", "32768",
    "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "99999999999999999999",
    "-99999999999999999999", "0.000000000000000001", "-0.000000000000000001", "12345.678", "1e19", "-1e19", "3.3", "6.6", "7", "13",
    "25", "61", "100", "366",
    "1000", "9999", "10000")]  # fmt: skip
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "s": (pa.string(), TEXTS),
    "w": (pa.binary(), BYTES),
    "y": (pa.int8(), POWERS),
    "h": (pa.int16(), SHORTS),
    "i": (pa.int32(), INTS),
    "l": (pa.int64(), LONGS),
    "d": (pa.float64(), DOUBLES),
    "f": (pa.float32(), DOUBLES),
    "c": (pa.decimal128(38, 18), DECIMALS),
    "b": (pa.bool_(), [True, False]),
    "day": (pa.date32(), DAYS),
    "ts": (pa.timestamp("us", tz="UTC"), TIMES),
    "bare": (pa.timestamp("us"), TIMES),
    "texts": (
        pa.list_(pa.string()),
        [
            [],
            [None],
            *([text] for text in TEXTS[:20]),
            *([text, None, text] for text in TEXTS[40:60]),
            ["x"] * 12_000,
        ],
    ),
    "ints": (
        pa.list_(pa.int32()),
        [[], [None], *([n, None, -1] for n in INTS[-30:]), *([n] * 3 for n in INTS[:10])],
    ),
    "days": (pa.list_(pa.date32()), [[], [None], *([n, None] for n in DAYS)]),
    "pairs": (pa.map_(pa.string(), pa.string()), [[], *([(text, text)] for text in TEXTS[:45])]),
    "part": (
        pa.struct([("x", pa.date32()), ("y", pa.string())]),
        [{"x": n, "y": text} for n, text in zip(DAYS, TEXTS, strict=False)],
    ),
}
"""Columns of every type with their extreme values; NULL is added to each."""

PLAIN = tuple(name for name in VALUES if name not in ("texts", "ints", "days", "pairs", "part"))
NESTED = ("texts", "ints", "days", "pairs", "part")
PATTERNS = ["'b+'", "'(\\\\d+)-(\\\\w*)'", "'^.*a.*$'", "',' ", "'([^,]*)'"]
FORMATS = ["'yyyy-MM-dd'", "'G yyyyy D HH:mm:ss.SSSSSS VV XXX'"]
UNITS = [
    "'YEAR'",
    "'QUARTER'",
    "'MONTH'",
    "'WEEK'",
    "'DAY'",
    "'HOUR'",
    "'MICROSECOND'",
    "'nonsense'",
]
ZONES = ["'Europe/Berlin'", "'Asia/Tokyo'", "'America/Los_Angeles'", "'+17:59'", "'-17:59'"]
PARTS = ["'YEAR'", "'YEAROFWEEK'", "'WEEK'", "'DOY'", "'SECONDS'", "'DAYOFWEEK_ISO'"]
COUNTS = ["1", "0", "-1", "37"]
LITERALS: dict[str, dict[int, list[str]]] = {
    "concat_ws": {0: ["'-'"]},
    **{name: {1: [*COUNTS, "2147483647", "-2147483648"]} for name in ("left", "right")},
    **{name: {1: ["5", "0", "-1", "10000"], 2: ["'xy'", "''"]} for name in ("lpad", "rpad")},
    "regexp_extract": {1: [PATTERNS[1]], 2: ["0", "1", "2"]},
    "regexp_like": {1: PATTERNS},
    "regexp_replace": {1: PATTERNS, 2: ["'-'", "'\\\\\\\\'", "'$'", "'$x'"]},
    "split": {1: PATTERNS, 2: ["-1", "3"]},
    "repeat": {1: ["0", "-1", "3", "1000"]},
    "space": {0: ["0", "-5", "10000"]},
    "replace": {2: ["'xyz'", "''"]},
    "substring_index": {1: ["','", "''"], 2: ["1", "-2", "2147483647", "-2147483648"]},
    "parse_url": {1: ["'HOST'", "'QUERY'", "'nonsense'"], 2: ["'q'"]},
    "get_json_object": {1: ["'$.a'", "'$[*]'", "'$..'"]},
    "conv": {1: ["10", "36", "-36", "0"], 2: ["16", "-10", "37"]},
    "sha2": {1: ["256", "0", "7"]},
    **{name: {1: ["0", "-5", "5", "2147483647", "-2147483648"]} for name in ("bround", "round")},
    **{name: {1: ["0", "-5", "5", "38"]} for name in ("ceil", "ceiling", "floor")},
    **{name: {1: FORMATS} for name in ("date_format", "from_unixtime", "to_date", "to_timestamp", "to_unix_timestamp",
    "try_to_timestamp", "unix_timestamp")},
    "date_part": {0: PARTS},
    "datepart": {0: PARTS},
    "date_trunc": {0: UNITS},
    "from_utc_timestamp": {1: ZONES},
    "to_utc_timestamp": {1: ZONES},
    "months_between": {2: ["true", "false"]},
    "next_day": {1: ["'MO'", "'nonsense'"]},
    "trunc": {1: UNITS[:5]},
    "array_join": {1: ["','"], 2: ["'none'"]},
    "from_json": {1: ["'a INT, d DATE, t TIMESTAMP_NTZ'", "'ARRAY<DATE>'", "'MAP<STRING, TIMESTAMP_NTZ>'"]},
    "named_struct": {0: ["'x'"]},
    "sort_array": {1: ["true", "false"]},
}  # fmt: skip
"""Literals for the arguments that must be literals; every function that wants one has an entry."""

TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10, 2)", "DECIMAL(38, 38)", "BOOLEAN", "STRING", "BINARY",
    "DATE", "TIMESTAMP",
    "TIMESTAMP_NTZ", "ARRAY<DATE>", "ARRAY<TIMESTAMP>", "ARRAY<INT>")  # fmt: skip
BINARY_OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "%",
    "DIV",
    "&",
    "|",
    "^",
    "||",
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "<=>",
    "AND",
    "OR",
)
OF_ONE = (
    *(f"CAST({{0}} AS {kind})" for kind in TYPES),
    *(f"TRY_CAST({{0}} AS {kind})" for kind in TYPES[-6:]),
    "-{0}", "~{0}", "NOT {0}", "{0} IS NULL", "{0} IS NOT NULL", "{0} IS TRUE", "{0} LIKE '%a%'", "{0} LIKE 'a%b%c_'", "{0} ILIKE '%A%'",
    "{0} RLIKE 'b+'",
    "{0} IN (1, 2)", "{0} IN ('a', '2024-02-29')", "{0} IN (DATE '2024-02-29', NULL)", "{0} BETWEEN 1 AND 2",
    "{0} BETWEEN DATE '0001-01-01' AND TIMESTAMP '9999-12-31'",
    "{0}[0]", "{0}['a']", "{0}.x", "{0}.y", "EXTRACT(YEAR FROM {0})", "EXTRACT(SECOND FROM {0})", "CASE {0} WHEN 1 THEN 'a' ELSE 'b' END",
    "CASE WHEN b THEN {0} END", "try_add({0}, INTERVAL 1 MONTH)", "try_subtract({0}, INTERVAL 100 YEARS)", "try_add({0}, INTERVAL 1 HOUR)",
    "hour({0}[0])", "hour({0}.x)", "{0} + 2147483647", "{0} - 2147483647", "hour(DATE '+300000-01-01') + {0}",
    "if(b, hour(DATE '+300000-01-01'), {0})",
)  # fmt: skip
OF_TWO = (
    *(f"{{0}} {operator} {{1}}" for operator in BINARY_OPERATORS),
    "{0} IN ({1}, NULL)", "{0} BETWEEN {1} AND {1}", "CASE WHEN b THEN {0} ELSE {1} END", "CASE {0} WHEN {1} THEN 1 END", "{0}[{1}]",
    "array({0}, {1})",
)  # fmt: skip


def of_one_argument(columns: Sequence[str] = tuple(VALUES)) -> list[str]:
    """Casts, operators and functions of one column (and literals) each."""
    made = [form.format(column) for form in OF_ONE for column in columns]
    return made + [
        call
        for name, signature in FUNCTIONS.items()
        for call in _calls(name, signature, 1, [(c,) for c in columns])
    ]


def of_two_arguments(columns: Sequence[str] = PLAIN) -> list[str]:
    """The same of two columns; those of the second table have a `2` behind their names."""
    pairs = [(first, second + "2") for first in columns for second in columns]
    made = [form.format(*pair) for form in OF_TWO for pair in pairs]
    return made + [
        call for name, signature in FUNCTIONS.items() for call in _calls(name, signature, 2, pairs)
    ]


def of_more_arguments(columns: Sequence[str] = PLAIN, each: int = 40, seed: int = 1) -> list[str]:
    """Functions of three and four columns, for types drawn at random."""
    rng = random.Random(seed)
    drawn = [
        [
            (rng.choice(columns), *(rng.choice(columns) + "2" for _ in range(n - 1)))
            for _ in range(each)
        ]
        for n in (3, 4)
    ]
    return [
        c
        for name, signature in FUNCTIONS.items()
        for n, some in zip((3, 4), drawn, strict=True)
        for c in _calls(name, signature, n, some)
    ]


def _calls(
    name: str, signature: Signature, columns: int, choices: Iterable[tuple[str, ...]]
) -> Iterator[str]:
    """Calls of a function with that many columns among its arguments, and literals where it wants them."""
    most = (
        signature.min_arguments + 4 if signature.max_arguments is None else signature.max_arguments
    )
    for count in range(signature.min_arguments, most + 1):
        literal = [
            place
            for place in range(count)
            if place in signature.constant or (name == "named_struct" and place % 2 == 0)
        ]
        if count - len(literal) != columns:
            continue
        for given in choices:
            yield from _filled(name, count, literal, given)


def _filled(name: str, count: int, literal: Sequence[int], given: tuple[str, ...]) -> Iterator[str]:
    for chosen in itertools.product(*(LITERALS[name].get(place, ["'z'"]) for place in literal)):
        literals = iter(chosen)
        columns = iter(given)
        yield f"{name}({', '.join(next(literals) if place in literal else next(columns) for place in range(count))})"


def write(folder: Path) -> Path:
    """The table of extreme values as a Parquet file: every value of every column at least once, and NULL."""
    rows = max(len(values) for _, values in VALUES.values()) + 1
    columns = {
        name: pa.array(list(itertools.islice(itertools.cycle([None, *values]), rows)), kind)
        for name, (kind, values) in VALUES.items()
    }
    path = folder / "extremes.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def views(session: SparkSession, path: Path) -> None:
    """`one`: the table as a source is read; `two`: each of its rows beside each, columns of the second with a `2` behind their names."""
    from dpsql.streaming.sources import within_calendar

    one = within_calendar(session.read.parquet(str(path))).cache()
    one.createOrReplaceTempView("one")
    one.crossJoin(one.toDF(*(f"{name}2" for name in one.columns))).createOrReplaceTempView("two")


Guard = Callable[["SparkSession", "DataFrame"], "DataFrame"]


def accepted(session: SparkSession, expressions: Iterable[str], view: str) -> list[str]:
    """Those whose types fit, as Spark's analysis says before it reads a row, and that are not refused by the guards."""
    from dpsql.streaming.totality import guarded

    fitting = []
    for expression in expressions:
        try:
            frame = session.sql(f"SELECT {expression} AS c FROM {view}")
        except (
            Exception
        ):  # it has several kinds for types that do not fit, some of them internal errors
            continue
        try:
            guarded(session, frame)
        except DataError:
            continue
        fitting.append(expression)
    return fitting


def failures(
    session: SparkSession, expressions: Sequence[str], view: str, guard: Guard, at_once: int = 40
) -> list[str]:
    """The expressions that end a job at some row, or give a DATE or TIMESTAMP outside the years 1 to 9999."""
    found = []
    for start in range(0, len(expressions), at_once):
        found += _failing(session, expressions[start : start + at_once], view, guard)
    return found


def _failing(session: SparkSession, some: Sequence[str], view: str, guard: Guard) -> list[str]:
    if _passes(session, some, view, guard):
        return []
    if len(some) == 1:
        return list(some)
    middle = len(some) // 2
    return _failing(session, some[:middle], view, guard) + _failing(
        session, some[middle:], view, guard
    )


def _passes(session: SparkSession, some: Sequence[str], view: str, guard: Guard) -> bool:
    from dpsql.streaming.sources import CALENDAR

    frame = guard(
        session,
        session.sql(
            f"SELECT {', '.join(f'{expression} AS c{i}' for i, expression in enumerate(some))} FROM {view}"
        ),
    )
    # One number of all columns, so that Spark computes every value and hands over one
    outside = [
        f"count_if(c{i} NOT BETWEEN {low} AND {high})"
        for i, (low, high) in _bounds(frame, CALENDAR)
    ]
    try:
        row = frame.selectExpr(*outside, *_computed(frame)).collect()[0]
    except Exception as problem:
        if "Py4J" in type(problem).__name__ and "java." not in str(problem):
            raise
        return False
    return not any(row[: len(outside)])


def _computed(frame: DataFrame) -> Iterator[str]:
    """What cannot be known without every value of a column; a count could, where a column is never NULL."""
    return (
        f"count(c{i})" if "map<" in kind else f"max(xxhash64(c{i}))"
        for i, (_, kind) in enumerate(frame.dtypes)
    )


def _bounds(frame: DataFrame, calendar: Any) -> Iterator[tuple[int, tuple[str, str]]]:
    return (
        (i, calendar[field.dataType.typeName()])
        for i, field in enumerate(frame.schema.fields)
        if field.dataType.typeName() in calendar
    )
