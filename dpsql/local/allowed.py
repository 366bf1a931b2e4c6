"""The allow-list: every Spark expression that DuckDB evaluates identically, as data. Nothing else runs on the local engine.

Each line says which argument kinds are accepted, the Spark type of the result, and how the same value is written in DuckDB. Every line is
tested on both engines over a table of edge values (`tests/local/test_same_as_spark.py`); a line whose results differ is taken out.

Argument kinds: a Spark type name; `integer` (TINYINT to BIGINT); `real` (FLOAT or DOUBLE, handed over as DOUBLE); `any`; `unit`, a part
of a date; `filled`, text that is not empty. A trailing `!` wants a literal. A result `same` is the first argument's type. Names starting
with `dpsql_` are macros and functions of `dpsql.local.connection`.
"""

from __future__ import annotations


def _of_day(duckdb: str) -> dict[str, str]:
    """Return a part of a date, of DATE and TIMESTAMP alike."""
    return {"date -> int": f"CAST({duckdb} AS INTEGER)", **_of_time(duckdb)}


def _of_time(duckdb: str) -> dict[str, str]:
    return {"timestamp -> int": f"CAST({duckdb} AS INTEGER)"}


FUNCTIONS: dict[str, dict[str, str]] = {
    # strings
    "lower": {"string -> string": "dpsql_lower({0})"},
    "upper": {"string -> string": "dpsql_upper({0})"},
    "length": {
        "string -> int": "CAST(length({0}) AS INTEGER)",
        "binary -> int": "CAST(octet_length({0}) AS INTEGER)",
    },
    "octet_length": {"string -> int": "CAST(strlen({0}) AS INTEGER)"},
    "trim": {"string -> string": "trim({0}, ' ')"},
    "ltrim": {"string -> string": "ltrim({0}, ' ')"},
    "rtrim": {"string -> string": "rtrim({0}, ' ')"},
    "substring": {
        "string integer! integer! -> string": "dpsql_substring({0}, {1}, {2})",
        "string integer! -> string": "dpsql_substring({0}, {1}, 2147483647)",
    },
    "left": {"string integer! -> string": "dpsql_substring({0}, 1, {1})"},
    "right": {"string integer! -> string": "dpsql_right({0}, {1})"},
    "replace": {"string string! string! -> string": "replace({0}, {1}, {2})"},
    "startswith": {"string string -> boolean": "starts_with({0}, {1})"},
    "endswith": {"string string -> boolean": "ends_with({0}, {1})"},
    "contains": {"string string -> boolean": "contains({0}, {1})"},
    "instr": {"string string -> int": "CAST(instr({0}, {1}) AS INTEGER)"},
    "lpad": {
        "string integer! filled! -> string": "lpad({0}, CAST(greatest({1}, 0) AS INTEGER), {2})"
    },
    "rpad": {
        "string integer! filled! -> string": "rpad({0}, CAST(greatest({1}, 0) AS INTEGER), {2})"
    },
    # numbers
    "abs": {
        "integer -> same": "dpsql_wrap_{bits}(abs({0}::{wide}))",
        "double -> double": "abs({0})",
    },
    "sign": {"real -> double": "dpsql_sign({0})"},
    "sqrt": {"real -> double": "CASE WHEN {0} < 0 THEN 'nan'::DOUBLE ELSE sqrt({0}) END"},
    "floor": {"integer -> bigint": "{0}::BIGINT", "real -> bigint": "dpsql_to_long(floor({0}))"},
    "ceil": {"integer -> bigint": "{0}::BIGINT", "real -> bigint": "dpsql_to_long(ceil({0}))"},
    "round": {"integer -> same": "{0}", "double -> double": "dpsql_round({0})"},
    "isnan": {"real -> boolean": "coalesce(isnan({0}), FALSE)"},
    # dates and times, all of UTC
    "year": _of_day("year({0})"),
    "quarter": _of_day("quarter({0})"),
    "month": _of_day("month({0})"),
    "day": _of_day("day({0})"),
    "dayofweek": _of_day("dayofweek({0}) + 1"),
    "weekday": _of_day("(dayofweek({0}) + 6) % 7"),
    "dayofyear": _of_day("dayofyear({0})"),
    "weekofyear": _of_day("weekofyear({0})"),
    "hour": _of_time("hour({0})"),
    "minute": _of_time("minute({0})"),
    "second": _of_time("second({0})"),
    "to_date": {
        "date -> date": "{0}",
        "timestamp -> date": "CAST({0} AS DATE)",
        "string -> date": "dpsql_to_date({0})",
    },
    "datediff": {"date date -> int": "CAST({0} - {1} AS INTEGER)"},
    "date_trunc": {"unit! timestamp -> timestamp": "TRY(date_trunc({0}, {1}))"},
    "trunc": {"date unit! -> date": "TRY(CAST(date_trunc({1}, {0}) AS DATE))"},
    # NULL
    "isnull": {"any -> boolean": "({0} IS NULL)"},
    "isnotnull": {"any -> boolean": "({0} IS NOT NULL)"},
}
"""Function -> its accepted forms: argument kinds and result type -> DuckDB text with {0}, {1}, ... for the arguments."""

SYNONYMS = {
    "lcase": "lower", "ucase": "upper", "char_length": "length", "character_length": "length", "len": "length", "substr": "substring",
    "ceiling": "ceil", "signum": "sign", "dayofmonth": "day", "date_diff": "datediff", "date": "to_date", "nvl": "coalesce",
    "ifnull": "coalesce", "equal_null": "<=>",
}  # fmt: skip

EXTRACTED = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear", "DAY": "day", "DOW": "dayofweek",
    "DAYOFWEEK": "dayofweek", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip
"""What EXTRACT takes out of a time, and the function that does the same."""

KINDS = {
    "lower": "Lower", "upper": "Upper", "trim": "StringTrim", "ltrim": "StringTrimLeft", "rtrim": "StringTrimRight", "left": "Left",
    "right": "Right", "substring": "Substring", "replace": "StringReplace", "lpad": "StringLPad", "rpad": "StringRPad",
}  # fmt: skip
"""What Spark calls the nodes of functions that make texts: `dpsql.sql.growth` says how long these may become."""

TRUNCATION_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
}  # fmt: skip
DAYS_ONLY = ("year", "quarter", "month", "week")
"""The units that Spark's `trunc` of a DATE takes."""

COMPARISONS = {
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "IS NOT DISTINCT FROM",
}

# (from, to) -> DuckDB text; {type} is the DuckDB name of the target. Integer to integer and decimals are written in expressions.py.
CASTS: dict[tuple[str, str], str] = {
    ("integer", "double"): "CAST({0} AS DOUBLE)",
    ("integer", "boolean"): "({0} <> 0)",
    ("integer", "string"): "CAST({0} AS VARCHAR)",
    ("float", "double"): "CAST({0} AS DOUBLE)",
    ("double", "boolean"): "({0} <> 0)",
    ("double", "int"): "dpsql_to_int(dpsql_to_long(trunc({0})))",
    ("double", "bigint"): "dpsql_to_long(trunc({0}))",
    ("boolean", "integer"): "CAST({0} AS {type})",
    ("boolean", "double"): "CAST(CAST({0} AS INTEGER) AS DOUBLE)",
    ("boolean", "string"): "CASE WHEN {0} THEN 'true' WHEN NOT {0} THEN 'false' END",
    ("date", "timestamp"): "TRY(CAST({0} AS TIMESTAMP))",
    ("date", "string"): "dpsql_date_text({0})",
    ("timestamp", "date"): "CAST({0} AS DATE)",
    ("timestamp", "bigint"): "dpsql_seconds({0})",
    ("timestamp", "string"): "dpsql_timestamp_text({0})",
    ("string", "integer"): "TRY_CAST(dpsql_whole_text({0}) AS {type})",
    ("string", "double"): "dpsql_to_double({0})",
    ("string", "boolean"): "dpsql_to_boolean({0})",
    ("string", "date"): "dpsql_to_date({0})",
    ("string", "timestamp"): "dpsql_to_timestamp({0})",
}

SPELLINGS = {
    "mod": "a % b", "locate": "instr(text, part)", "position": "instr(text, part)", "date_part": "hour(ts), month(ts), ...",
    "datepart": "hour(ts), month(ts), ...", "ILike": "lower(x) LIKE 'pattern'",
    "negative": "-x", "concat_ws": "a || ',' || b", "try_divide": "a / b", "btrim": "trim(x)",
}  # fmt: skip
"""What to write in the place of a function, or of a kind of node, that only Spark has."""
