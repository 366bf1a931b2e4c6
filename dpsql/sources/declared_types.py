"""Types of columns and those that are declared for them: what may lose a value is told by the types alone, whatever the values are.

A refusal that depended on a value would tell of a record. Types are named as Spark names them, like `bigint` or `decimal(20,0)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
UNSIGNED_64 = "decimal(20,0)"
"""What Spark makes of an unsigned whole number of 64 bits."""
MAX_KEY_SCALE = 6
"""Digits after the point of a DECIMAL that is a key."""


_NEVER_EMPTY = ("boolean", "string", "binary", "timestamp", "float")
"""Types in which Spark does not read a column without one."""

_SCALARS = {*BITS, "boolean", "float", "double", "string", "binary", "date", "timestamp"}
_WIDENED = {
    ("float", "double"),
    ("tinyint", "double"),
    ("smallint", "double"),
    ("int", "double"),
    ("date", "timestamp"),
    ("binary", "string"),
}


def no_key(name: str, kind: str) -> str:
    """Say of a column that its type cannot be a key or a privacy unit, and what to do; digits that a float has lost come back by no cast."""
    remedy = "cast it to STRING, BIGINT, BOOLEAN, BINARY, DATE, TIMESTAMP"
    if _name(kind) in ("float", "double"):
        remedy = "ids have lost digits in it, so read them as BIGINT or STRING at their source (in pandas as 'Int64'); cast measured values to BIGINT"
    return f"column `{name}` has type {kind}, which cannot be a key or a privacy unit: {remedy} or DECIMAL with a scale of at most {MAX_KEY_SCALE}"


def fits(have: str, declared: str) -> bool:
    """Tell whether every value of one type is a value of the other; of types that no expression touches nothing is asked."""
    have = _name(have)
    declared = _name(declared)
    if have in (declared, "void") or not (declared in _SCALARS or _digits(declared)):
        return True
    if have in BITS and declared in BITS:
        return BITS[have] < BITS[declared]
    have_digits = _digits(have)
    declared_digits = _digits(declared)
    if have_digits and declared_digits:
        return all(own <= other for own, other in zip(have_digits, declared_digits, strict=True))
    return (have, declared) in _WIDENED


def spark_lacks(have: str, declared: str, place: str) -> str | None:
    """Say of a column of a Parquet file that Spark does not read it as declared, though its values fit; None: it does, or they do not fit.

    Args:
        have: its type; `void` has no values, `fixed` values of one length, `half` numbers of 16 bits, `uint64` has no signs.
        declared: the declared type.
        place: file and column.
    """
    declared = _name(declared)
    if have == "void" and (declared in _NEVER_EMPTY or _digits(declared)):
        return f"{place} has no type, since all its values are NULL, and Spark cannot read it as {declared.upper()}: write it with a type"
    if have == "fixed" and declared == "string":
        return f"{place} has values of one length, which Spark cannot read as STRING: declare it as BINARY"
    if have == "uint64" and declared != UNSIGNED_64 and fits(UNSIGNED_64, declared):
        return f"{place} has unsigned numbers, which Spark cannot read as {declared.upper()}: declare it as {UNSIGNED_64.upper()}"
    if have == "half" and declared in ("float", "double"):
        return f"{place} has numbers of 16 bits, which Spark cannot read: write it as a column of 32 bits"
    if (have, declared) == ("date", "timestamp"):
        return f"{place} has type DATE, which Spark cannot read as TIMESTAMP: declare it as DATE"
    return None


def loses_numbers(have: str, declared: str) -> bool:
    """Tell whether whole numbers of a column may not fit its declared type, or numbers are declared whole that are not."""
    have = _name(have)
    declared = _name(declared)
    if have in BITS and declared in BITS:
        return BITS[have] > BITS[declared]
    if declared in BITS:
        return have in ("float", "double") or have.startswith("decimal")
    if have == "bigint":
        return declared in ("float", "double")
    return have == UNSIGNED_64 and not fits(have, declared)


def mismatch_text(column: str, have: str, source: str, declared: str) -> str:
    """Say that a column does not fit, and what to declare where numbers would be lost."""
    type_name = _name(have).upper()
    advice = f": declare `{column} {type_name}`" if loses_numbers(have, declared) else ""
    return f"column `{column}` has type {type_name}, but source `{source}` declares {_name(declared).upper()}{advice}"


_QUOTED = r"`(?:[^`]|``)*`|'[^']*'|\"[^\"]*\""
_TYPE = r"\b({})\b(?!\s*:|\s+(?!not\b|comment\b|default\b)\w)"
"""A word that is a type: one that another word or a colon follows is the name of a column."""

_REFUSED_TYPES = {
    r"(?:char|character|varchar)(?=\s*\()": "declare STRING, which holds texts of any length",
    "variant|time": "declare STRING where files have texts, or leave the column out",
}


def refused_type(schema: str) -> str | None:
    """Tell which columns of a Spark DDL string no engine reads alike, or which name stands twice, case aside; None where nothing does."""
    for word, remedy in _REFUSED_TYPES.items():
        if match := type_word(word, without_quoted(schema)):
            return f"type {match.upper()} is not supported: {remedy}"
    names = list(_column_names(schema))
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is None:
        return None
    return f"several columns are named `{doubled}`, case aside: give each a name of its own"


def without_quoted(schema: str) -> str:
    """Return a DDL string with a letter for each quoted name or text."""
    return re.sub(_QUOTED, "x", schema)


def type_word(pattern: str, schema: str) -> str | None:
    """Return the first type that a pattern names in a DDL string without quoted names."""
    match = re.search(f"(?i){_TYPE.format(pattern)}", schema)
    return match[1] if match else None


def _column_names(schema: str) -> Iterator[str]:
    """Yield the names of the columns, in lower case."""
    depth = 0
    is_name = True
    for part in re.findall(rf"{_QUOTED}|\w+|[<>(),]", schema):
        depth += (part in "<(") - (part in ">)")
        if is_name:
            yield part.strip("`").replace("``", "`").lower()
        is_name = part == "," and depth == 0


def _name(kind: str) -> str:
    return kind.lower().replace(" ", "").replace("timestamp_ntz", "timestamp")


def _digits(kind: str) -> tuple[int, int] | None:
    """Return how many digits a decimal has before and after the point."""
    sizes = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(sizes[1]) - int(sizes[2]), int(sizes[2])) if sizes else None
