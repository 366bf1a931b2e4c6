"""A DuckDB connection that computes as Spark does: UTC, and the macros and functions that the allow-list calls.

Texts of a common shape stay inside DuckDB; the rest goes value by value to `dpsql.local.spark_text`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import duckdb
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from dpsql.local import spark_text
from dpsql.local.lines import mend
from dpsql.local.spark_text import rewritten
from dpsql.scratch import scratch

_BLANK = "(chr(0) || " + " || ".join(f"chr({code})" for code in (*range(1, 33), 127)) + ")"

# Values are computed in a type that cannot overflow and then cut to their bits, as Java's integers wrap around.
_WRAPS = tuple(
    f"dpsql_wrap_{bits}(x) AS CAST(xor(x & {2**bits - 1}::{wide}, {2 ** (bits - 1)}::{wide}) - {2 ** (bits - 1)}::{wide} AS {narrow})"
    for bits, wide, narrow in (
        (8, "BIGINT", "TINYINT"),
        (16, "BIGINT", "SMALLINT"),
        (32, "BIGINT", "INTEGER"),
        (64, "HUGEINT", "BIGINT"),
    )
)

MACROS = (
    *_WRAPS,
    # Java's double to long: NaN is 0, what is too large becomes the largest. 2^63 - 1024 is the last double below 2^63.
    "dpsql_to_long(x) AS CASE WHEN x IS NULL THEN NULL WHEN isnan(x) THEN 0 WHEN x >= 9223372036854775807::DOUBLE THEN 9223372036854775807 "
    "ELSE CAST(greatest(least(x, 9223372036854774784::DOUBLE), (-9223372036854775808)::DOUBLE) AS BIGINT) END",
    "dpsql_to_int(x) AS CAST(CASE WHEN x > 2147483647 THEN 2147483647 WHEN x < -2147483648 THEN -2147483648 ELSE x END AS INTEGER)",
    "dpsql_sign(x) AS CASE WHEN isnan(x) OR x = 0 THEN x WHEN x > 0 THEN 1::DOUBLE WHEN x < 0 THEN (-1)::DOUBLE END",
    # Spark rounds a decimal text, which has no negative zero
    "dpsql_round(x) AS CASE WHEN abs(x) < 0.5::DOUBLE THEN 0::DOUBLE ELSE round(x) END",
    "dpsql_start(s, p) AS CASE WHEN p > 0 THEN p - 1 WHEN p < 0 THEN length(s) + p ELSE 0 END",
    "dpsql_slice(s, first, past) AS substr(s, greatest(first, 0) + 1, greatest(past - greatest(first, 0), 0))",
    "dpsql_substring(s, p, n) AS dpsql_slice(s, dpsql_start(s, p), dpsql_start(s, p) + greatest(n, 0))",
    "dpsql_right(s, n) AS dpsql_slice(s, length(s) - greatest(n, 0), length(s))",
    "dpsql_blank() AS " + _BLANK,
    "dpsql_trimmed(s) AS trim(s, dpsql_blank())",
    # '1.5' is 1 and '.' is 0; a lone sign is no number
    "dpsql_whole(t) AS CASE WHEN NOT regexp_full_match(t, '[+-]?[0-9]*([.][0-9]*)?') OR t IN ('', '+', '-') THEN NULL "
    "ELSE regexp_replace(regexp_replace(t, '[.].*$', ''), '^([+-]?)0*([0-9]*)$', '\\1' || '0' || '\\2') END",
    "dpsql_whole_text(s) AS dpsql_whole(dpsql_trimmed(s))",
    "dpsql_truth(t) AS CASE WHEN t IN ('t', 'true', 'y', 'yes', '1') THEN TRUE WHEN t IN ('f', 'false', 'n', 'no', '0') THEN FALSE END",
    "dpsql_to_boolean(s) AS dpsql_truth(lower(dpsql_trimmed(s)))",
    "dpsql_lower(s) AS CASE WHEN strlen(s) = length(s) THEN lower(s) ELSE dpsql_py_lower(s) END",
    "dpsql_upper(s) AS CASE WHEN strlen(s) = length(s) THEN upper(s) ELSE dpsql_py_upper(s) END",
    "dpsql_to_double(s) AS CASE WHEN regexp_full_match(s, '[+-]?[0-9]{1,30}([.][0-9]{1,30})?') THEN CAST(s AS DOUBLE) "
    "ELSE dpsql_py_double(s) END",
    "dpsql_csv_double(s) AS CASE WHEN regexp_full_match(s, '[+-]?[0-9]{1,30}([.][0-9]{1,30})?') THEN CAST(s AS DOUBLE) "
    "WHEN s = 'Inf' THEN 'inf'::DOUBLE WHEN s = '-Inf' THEN '-inf'::DOUBLE ELSE dpsql_py_java_double(s) END",
    "dpsql_mended(line) AS CASE WHEN json_valid(line) AND json_type(line) = 'OBJECT' "
    "AND NOT regexp_matches(line, ',[[:space:]]*[}\\]]') "
    "AND list_unique(json_keys(line)) = len(json_keys(line)) THEN line ELSE dpsql_py_mend(line) END",
    "dpsql_to_date(s) AS CASE WHEN regexp_full_match(s, '[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}') THEN TRY_CAST(s AS DATE) "
    "ELSE TRY(DATE '1970-01-01' + dpsql_py_date(s)) END",
    "dpsql_to_timestamp(s) AS CASE WHEN regexp_full_match(s, '[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    "([.][0-9]{1,6})?Z?') THEN TRY_CAST(rtrim(s, 'Z') AS TIMESTAMP) ELSE TRY(make_timestamp(dpsql_py_timestamp(s))) END",
    "dpsql_seconds(t) AS (epoch_us(t) - ((epoch_us(t) % 1000000) + 1000000) % 1000000) // 1000000",
    "dpsql_date_text(d) AS CASE WHEN d BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN CAST(d AS VARCHAR) "
    "ELSE dpsql_py_date_text(CAST(d - DATE '1970-01-01' AS BIGINT)) END",
    "dpsql_timestamp_text(t) AS CASE WHEN t BETWEEN TIMESTAMP '0001-01-01' AND TIMESTAMP '9999-12-31' THEN CAST(t AS VARCHAR) "
    "ELSE dpsql_py_timestamp_text(epoch_us(t)) END",
)

SETTINGS = (
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",  # a table name must never mean a Python variable
    "autoinstall_known_extensions = false",
)

PYTHON_FUNCTIONS: tuple[tuple[str, Callable[..., object], str, str], ...] = (
    ("dpsql_py_lower", spark_text.lower, "VARCHAR", "VARCHAR"),
    ("dpsql_py_upper", spark_text.upper, "VARCHAR", "VARCHAR"),
    ("dpsql_py_double", spark_text.to_double, "VARCHAR", "DOUBLE"),
    ("dpsql_py_java_double", spark_text.java_double, "VARCHAR", "DOUBLE"),
    ("dpsql_py_mend", mend, "VARCHAR", "VARCHAR"),
    ("dpsql_py_rewritten", rewritten, "VARCHAR VARCHAR", "VARCHAR"),
    ("dpsql_py_date", spark_text.to_date, "VARCHAR", "INTEGER"),
    ("dpsql_py_timestamp", spark_text.to_timestamp, "VARCHAR", "BIGINT"),
    ("dpsql_py_date_text", spark_text.date_text, "BIGINT", "VARCHAR"),
    ("dpsql_py_timestamp_text", spark_text.timestamp_text, "BIGINT", "VARCHAR"),
)
_ARROW = {
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
}


def connect() -> duckdb.DuckDBPyConnection:
    """Return a fresh in-memory database with everything that the allow-list needs."""
    connection = duckdb.connect()
    # What does not fit into memory are records. Left alone, DuckDB puts them into the current directory, open to everybody.
    connection.execute("SET temp_directory = ?", [str(scratch() / f"duckdb-{uuid4().hex}")])
    for setting in SETTINGS:
        connection.execute(f"SET {setting}")
    with suppress(
        duckdb.InvalidInputException
    ):  # in a notebook without ipywidgets there is no bar, and DuckDB refuses to turn it off
        connection.execute("SET enable_progress_bar = false")
    for name, function, arguments, result in PYTHON_FUNCTIONS:
        columnar = _columnar(function, arguments.count(" ") + 1, _ARROW[result])
        connection.create_function(
            name, columnar, list(arguments.split()), result, type=ARROW, null_handling=SPECIAL
        )
    for macro in MACROS:
        connection.execute(f"CREATE MACRO {macro}")
    return connection


def _columnar(
    function: Callable[..., object], arguments: int, result: pa.DataType
) -> Callable[..., pa.Array]:
    def apply(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if None in row else function(*row) for row in rows], type=result)

    def apply_one(column: pa.Array) -> pa.Array:  # DuckDB looks at the signature
        return apply(column)

    def apply_two(first: pa.Array, second: pa.Array) -> pa.Array:
        return apply(first, second)

    return apply_one if arguments == 1 else apply_two
