"""What row-local expressions may be made of, as data: functions, kinds of nodes, and families that are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

# Functions of Spark that row-local expressions may call, and families that are refused by name,
# as data.

# A function is on the list when its result is a function of its arguments alone. That no value
# of an argument makes it fail (a failure would
# show that such a record exists) does not hold by choosing functions: many fail on dates that
# Spark's own casts make. It holds because of the
# guards that `dpsql.streaming.totality` puts around all of them: what fails is NULL, what leaves
# the years 1 to 9999 is NULL. What a guard
# cannot catch, too much time or memory, is kept in bounds here: patterns, formats and lengths
# must be literals, and `literals` looks at them.
# Signatures: `x` any expression, `c` a literal, `?` after an optional argument, `*` after one
# that repeats (also zero times).


@dataclass(frozen=True)
class Signature:
    """How many arguments a function takes, and which of them (from 0) must be literals."""

    min_arguments: int
    max_arguments: int | None
    constant: frozenset[int]


@dataclass(frozen=True)
class Family:
    """Functions refused for one reason; the message names the function with `{name}`."""

    name: str
    functions: frozenset[str]
    message: str
    hint: str


_STRINGS = """
ascii x; bit_length x; btrim xx?; char x; char_length x; character_length x; chr x; concat x*; concat_ws cx*; contains xx;
endswith xx; initcap x; instr xx; lcase x; left xc; len x; length x; levenshtein xx; locate xxx?; lower x; lpad xcc?;
ltrim xx?; octet_length x; position xxx?; regexp_extract xcc?; regexp_like xc; regexp_replace xcc; repeat xc; replace xxc?;
reverse x; right xc; rpad xcc?; rtrim xx?; soundex x; space c; split xcc?; startswith xx; substr xxx?; substring xxx?;
substring_index xcc; translate xxx; trim x; ucase x; upper x; url_encode x; try_url_decode x; parse_url xcc?;
get_json_object xc; hex x; unhex x; base64 x; bin x; conv xcc; md5 x; sha x; sha1 x; sha2 xc; crc32 x; hash xx*; xxhash64 xx*
"""
_NUMBERS = """
abs x; acos x; acosh x; asin x; asinh x; atan x; atan2 xx; atanh x; bit_count x; bround xc?; cbrt x; ceil xc?; ceiling xc?;
cos x; cosh x; cot x; csc x; degrees x; e; exp x; expm1 x; factorial x; floor xc?; greatest xx*; hypot xx; least xx*; ln x;
log xx?; log10 x; log1p x; log2 x; mod xx; nanvl xx; negative x; pi; pmod xx; positive x; pow xx; power xx; radians x; rint x;
round xc?; sec x; shiftleft xx; shiftright xx; shiftrightunsigned xx; sign x; signum x; sin x; sinh x; sqrt x; tan x; tanh x;
try_add xx; try_divide xx; try_multiply xx; try_subtract xx; width_bucket xxxx
"""
_CONDITIONS = """
coalesce xx*; equal_null xx; if xxx; ifnull xx; isnan x; isnotnull x; isnull x; nullif xx; nullifzero x; nvl xx; nvl2 xxx;
zeroifnull x
"""
_TIMES = """
date x; date_add xx; date_diff xx; date_format xc; date_from_unix_date x; date_part cx; date_sub xx; date_trunc cx;
datediff xx; datepart cx; day x; dayname x; dayofmonth x; dayofweek x; dayofyear x; from_unixtime xc?; from_utc_timestamp xc;
hour x; last_day x; make_date xxx; minute x; month x; monthname x; months_between xxc?; next_day xc; quarter x; second x;
timestamp x; to_date xc?; to_timestamp xc?; to_unix_timestamp xc?; to_utc_timestamp xc; trunc xc; try_to_timestamp xc?;
unix_date x; unix_micros x; unix_millis x; unix_seconds x; unix_timestamp xc?; weekday x; weekofyear x; year x
"""
_CASTS_AND_NESTED = """
bigint x; binary x; boolean x; decimal x; double x; float x; int x; smallint x; string x; tinyint x; array x*;
array_contains xx; array_distinct x; array_join xcc?; array_max x; array_min x; array_position xx; array_size x;
cardinality x; get xx; json_array_length x; from_json xc; map_contains_key xx; map_keys x; map_values x; named_struct cx*;
size x; sort_array xc?; struct x*; to_json x
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _signature(letters: str) -> Signature:
    plain = letters.replace("?", "").replace("*", "")
    least = len(plain) - letters.count("?") - letters.count("*")
    return Signature(
        least,
        None if "*" in letters else len(plain),
        frozenset(i for i, letter in enumerate(plain) if letter == "c"),
    )


def _table(*texts: str) -> dict[str, Signature]:
    entries = [entry.split() for text in texts for entry in text.split(";") if entry.strip()]
    return {entry[0]: _signature(entry[1] if len(entry) > 1 else "") for entry in entries}


FUNCTIONS: Mapping[str, Signature] = _table(
    _STRINGS, _NUMBERS, _CONDITIONS, _TIMES, _CASTS_AND_NESTED
)

EXTRACTED = _words(
    """year quarter month week day dayofweek dow doy hour minute second yearofweek dayofweek_iso dow_iso"""
)
"""Parts of a time that EXTRACT takes out."""

AGGREGATES = _words("""count sum avg mean min max min_by max_by count_if countif median mode percentile percentile_approx approx_percentile
            percentile_cont percentile_disc approx_count_distinct approx_top_k stddev std stddev_pop stddev_samp var_pop var_samp
            variance covar_pop covar_samp corr skewness kurtosis regr_slope regr_intercept regr_r2 regr_count
            regr_avgx regr_avgy regr_sxx regr_sxy regr_syy grouping__id collect_list collect_set array_agg listagg
            string_agg first first_value last last_value any any_value some every bool_and bool_or bit_and bit_or bit_xor product
            histogram_numeric count_min_sketch hll_sketch_agg bitmap_construct_agg grouping grouping_id try_sum try_avg anon_count
            approx_top_count approx_top_sum count_sketch
            anon_sum anon_avg anon_var_pop anon_stddev_pop anon_percentile_cont approx_quantiles approx_quantile quantile quantiles""")
CALL_WORDS = _words(
    "current_date current_time current_timestamp localtimestamp localtime user current_user session_user grouping__id"
)
"""Functions that Spark also reads without parentheses."""

FAMILIES: tuple[Family, ...] = (
    Family(
        "random",
        _words(
            "rand randn random randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id normal zipf"
        ),
        "`{name}` gives another value each time it runs, so a restart could not repeat the release",
        "leave it out; a fixed sample of the records can be taken with pmod(xxhash64(column), 100) < 10",
    ),
    Family(
        "clock",
        _words(
            "now current_date current_time current_timestamp curdate getdate localtimestamp localtime current_timezone"
        ),
        "`{name}` reads the clock, so a restart could not repeat the release",
        "write the date itself, for example DATE '2026-01-01', or use the event time column",
    ),
    Family(
        "surroundings",
        _words("""input_file_name input_file_block_start input_file_block_length current_user session_user user current_database
            current_schema current_catalog version"""),
        "`{name}` depends on where the query runs or on how the input is stored, not on the record",
        "leave it out, or put the value into the records as a column",
    ),
    Family(
        "failing",
        _words("raise_error assert_true"),
        "`{name}` would end the job for some records, and so tell that they exist",
        "filter the records with WHERE instead",
    ),
    Family(
        "fails on bad values",
        _words("""to_number to_binary url_decode parse_json element_at try_element_at map map_from_arrays map_from_entries str_to_map
            slice split_part sequence timestamp_seconds timestamp_millis unbase64 decode encode aes_decrypt add_months timestampadd
            dateadd make_timestamp make_interval from_csv from_xml schema_of_json regexp_extract_all regexp_substr to_char
            to_varchar date_bin"""),
        "`{name}` can fail on some values, and a failing job would tell that they exist",
        "use CAST, try_url_decode, column[i], get(column, i) or get_json_object, which give NULL instead",
    ),
    Family(
        "foreign code",
        _words("java_method reflect try_reflect transform http_request ai_query"),
        "`{name}` runs foreign code on the records",
        "leave it out: only built-in functions of Spark are accepted",
    ),
    Family(
        "generators",
        _words("explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple"),
        "`{name}` makes several rows of one and is not accepted",
        "LATERAL VIEW explode(...) is the one form that is planned",
    ),
    Family(
        "neighbours",
        _words("row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value"),
        "`{name}` looks at other rows: each row of FROM must come from one record alone",
        "leave it out; a user's records are bounded by max_rows_contributed",
    ),
    Family(
        "windows",
        _words("window session_window window_time tumble hop cumulate"),
        "`{name}` cannot stand here",
        "write window(event_time, '1 day') once, in GROUP BY",
    ),
    Family(
        "aggregates",
        AGGREGATES,
        "The aggregate `{name}` cannot stand here: each row of FROM, each key and each argument must come from one record alone",
        "aggregate in the outer SELECT list only",
    ),
)


# Which node types a row-local expression may have, and what is said of some others, as data.

ALLOWED_NODES: frozenset[type[exp.Expr]] = frozenset(
    {
        exp.Add,
        exp.And,
        exp.Anonymous,
        exp.Between,
        exp.BitwiseAnd,
        exp.BitwiseNot,
        exp.BitwiseOr,
        exp.BitwiseXor,
        exp.Boolean,
        exp.Bracket,
        exp.Case,
        exp.Cast,
        exp.Column,
        exp.DPipe,
        exp.DataType,
        exp.DataTypeParam,
        exp.Div,
        exp.Dot,
        exp.EQ,
        exp.Escape,
        exp.Extract,
        exp.GT,
        exp.GTE,
        exp.HexString,
        exp.ILike,
        exp.Identifier,
        exp.If,
        exp.In,
        exp.IntDiv,
        exp.Is,
        exp.LT,
        exp.LTE,
        exp.Like,
        exp.Literal,
        exp.Mod,
        exp.Mul,
        exp.NEQ,
        exp.Neg,
        exp.Not,
        exp.Null,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Or,
        exp.Paren,
        exp.RawString,
        exp.RegexpLike,
        exp.Sub,
        exp.TryCast,
        exp.Var,
    }
)


@dataclass(frozen=True)
class Refusal:
    """Message and hint about a construct that is not accepted."""

    message: str
    hint: str


_SUBQUERY = Refusal(
    "Sub-queries inside expressions are not accepted", "sub-queries may stand in FROM only"
)
_OTHER_ROWS = "each row of FROM must come from one record alone"

REFUSED_NODES: Mapping[type[exp.Expr], Refusal] = {
    exp.Subquery: _SUBQUERY,
    exp.Exists: _SUBQUERY,
    exp.Window: Refusal(
        f"Window functions (OVER) are not accepted: {_OTHER_ROWS}",
        "leave it out; a user's records are bounded by max_rows_contributed",
    ),
    exp.Filter: Refusal(
        "FILTER is not accepted", "aggregate CASE WHEN condition THEN x END instead"
    ),
    exp.IgnoreNulls: Refusal(
        "IGNORE NULLS is not accepted", "leave it out: COUNT(x), SUM and AVG skip NULL anyway"
    ),
    exp.RespectNulls: Refusal(
        "RESPECT NULLS is not accepted", "leave it out: COUNT(x), SUM and AVG skip NULL"
    ),
    exp.Concat: Refusal(
        "Two string literals stand side by side",
        "write one literal; a quote inside a string is written \\'",
    ),
    exp.Interval: Refusal(
        "Adding an interval can fail on extreme times, and a failing job would tell that they exist",
        "write try_add(ts, INTERVAL 1 HOUR) or try_subtract(...), which give NULL instead",
    ),
    exp.Distinct: Refusal(
        "DISTINCT is not accepted here", "only COUNT(DISTINCT privacy unit) is accepted"
    ),
    exp.Star: Refusal("`*` cannot stand here", "name the columns"),
    exp.Lambda: Refusal("Functions with `->` are not accepted", "use plain functions"),
    exp.Kwarg: Refusal(
        "Named arguments are accepted in SUM and AVG only", "write the arguments without names"
    ),
    exp.Tuple: Refusal("A list in parentheses cannot stand here", "name one column or expression"),
}

ROOMY_CALLS = frozenset({"try_add", "try_subtract"})
"""Calls inside which an interval is accepted."""

UNUSUAL_FORMS: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Cast: ("format", "action", "default"),
    exp.TryCast: ("format", "action", "default"),
    exp.Between: ("symmetric",),
    exp.In: ("unnest", "field", "is_global"),
}
"""Parts of accepted nodes that sqlglot reads and Spark does not."""

OUTER = "outer"
INNER = "inner"


@dataclass(frozen=True)
class Clause:
    """A clause of SELECT that is refused: its argument in the tree, the first words of it in the text, why, and whether the query means the same
    without it.
    """

    argument: str
    words: tuple[str, ...]
    message: str
    hint: str
    places: tuple[str, ...] = (OUTER, INNER)
    changes_nothing: bool = False


REFUSED_CLAUSES: tuple[Clause, ...] = (
    Clause(
        "distinct",
        ("DISTINCT",),
        "DISTINCT is not accepted",
        "leave it out: the groups of a query are distinct anyway",
        (OUTER,),
        True,
    ),
    Clause(
        "distinct",
        ("DISTINCT",),
        f"DISTINCT in FROM is not accepted: {_OTHER_ROWS}",
        "leave it out: max_rows_per_group = 1 counts a user once per key",
        (INNER,),
    ),
    Clause(
        "qualify", ("QUALIFY",), "QUALIFY is not accepted", "filter the histogram when reading it"
    ),
    Clause(
        "order",
        ("ORDER BY",),
        "ORDER BY in FROM is not accepted",
        "leave it out: the order of records changes nothing",
        (INNER,),
        True,
    ),
    Clause("sort", ("SORT BY",), "SORT BY is not accepted", "sort when reading the histogram"),
    Clause(
        "cluster",
        ("CLUSTER BY",),
        "CLUSTER BY is not accepted",
        "leave it out",
        changes_nothing=True,
    ),
    Clause(
        "distribute",
        ("DISTRIBUTE BY",),
        "DISTRIBUTE BY is not accepted",
        "leave it out",
        changes_nothing=True,
    ),
    Clause(
        "limit",
        ("LIMIT", "FETCH", "TOP"),
        f"LIMIT in FROM is not accepted: {_OTHER_ROWS}",
        "filter with WHERE",
        (INNER,),
    ),
    Clause("offset", ("OFFSET",), "OFFSET is not accepted", "cut the histogram when reading it"),
    Clause(
        "windows",
        ("WINDOW",),
        "A WINDOW clause is not accepted",
        "write window(event_time, '1 day') in GROUP BY",
    ),
    Clause(
        "with_",
        ("WITH",),
        "WITH is not accepted in FROM",
        "write it once, before the outer SELECT",
        (INNER,),
    ),
    Clause(
        "group",
        ("GROUP BY",),
        f"GROUP BY in FROM is not accepted: {_OTHER_ROWS}",
        "group in the outer query",
        (INNER,),
    ),
    Clause(
        "having",
        ("HAVING",),
        f"HAVING in FROM is not accepted: {_OTHER_ROWS}",
        "filter with WHERE",
        (INNER,),
    ),
    Clause(
        "hint",
        ("WITH",),
        "The differential-privacy clause stands in a sub-query",
        "write it once, in the outer SELECT",
        (INNER,),
    ),
)

ACCEPTED_CLAUSES = frozenset(
    {"expressions", "from_", "joins", "laterals", "where", "group", "hint"}
)
"""Arguments of a Select node that rules of their own look at."""

READING = frozenset({"having", "order", "limit"})
"""Clauses of the outer query that say how its rows are shown."""

ACCEPTED_TABLE_PARTS = frozenset({"this", "alias", "db", "catalog"})
"""Arguments of a Table or Subquery node that rules of their own look at."""
