"""Whole numbers and the types that are declared for them: what may lose a value is told by the types alone, whatever the values are.

A refusal that depended on a value would tell of a record. Types are named as Spark names them, like `bigint` or `decimal(20,0)`.
"""

from __future__ import annotations

import re

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
UNSIGNED_64 = "decimal(20,0)"
"""What Spark makes of an unsigned whole number of 64 bits."""


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
    if have == UNSIGNED_64:
        decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", declared)
        return decimal is None or int(decimal[1]) - int(decimal[2]) < 20
    return False


def mismatch_text(column: str, have: str, source: str, declared: str) -> str:
    """Say that a column does not fit, and what to declare."""
    type_name = _name(have).upper()
    return f"column `{column}` has type {type_name}, but source `{source}` declares {_name(declared).upper()}: declare `{column} {type_name}`"


def _name(kind: str) -> str:
    return kind.lower().replace(" ", "")
