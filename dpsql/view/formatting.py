"""How values are written for people: on a terminal, in charts and on the page of `dpsql view`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from dpsql.description import Column, Published, Role
from dpsql.published.words import AT_END, TOO_FEW, null_of
from dpsql.text import Z95

UNITS = ((1_000_000_000, " bn"), (1_000_000, " M"), (1, ""))
MOST_DECIMALS = 6
TIME = "%Y-%m-%d %H:%M"
"""UTC."""


def printable(value: Any) -> str:
    """A key as text: control characters are shown, not obeyed."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )


def absent(value: Any) -> bool:
    """NULL, NaN or NaT; the last two differ from themselves."""
    return value is None or bool(value != value)


def key_text(row: Mapping[Any, Any], name: str, published: Published) -> str:
    """A row's key; `all` where the row is not grouped by it. (Keys with domains, of which such tables are, have no NULL of their own.)"""
    if absent(row[name]):
        return "all" if published.sets else "NULL"
    return printable(row[name])


def measured(
    value: Any, stderr: float, null: tuple[str, str] = ("NULL", "not measured")
) -> tuple[str, bool]:
    """`1,203 ± 76`, to the second significant digit of its 95% error, and whether the value is smaller than that error. A value without an error
    was not measured: it is `1,203, predicted`, and passes for no more. `null`: what is said of either (`dpsql.published.words.null_of`).

    >>> measured(0.03124, 0.00021)[0], measured(521_887.3, 9_684)[0], measured(26_213_456, 3_776_000)[0]
    ('0.03124 ± 0.00041', '522,000 ± 19,000', '26.2 M ± 7.4 M')
    """
    if absent(value):
        return null[0], True
    if absent(stderr):
        return f"{value:,.6g}, {null[1]}", True
    error = Z95 * stderr
    whole = isinstance(value, Integral)
    return f"{amount(value, error, whole)} ± {amount(error, error, whole)}", bool(
        abs(value) < error * (1 - 1e-9)
    )


def marked(value: Any, stderr: float, null: tuple[str, str]) -> str:
    """As `measured`, with a `?` before what is smaller than its own error; a NULL and a prediction have none."""
    text, small = measured(value, stderr, null)
    return f"? {text}" if small and not absent(value) and not absent(stderr) else text


def quantiles_text(values: Any, rank_stderr: float, null: str) -> str:
    """`0, 12.5, 60; ranks ± 0.041`: quantiles, and 95% of what their ranks are off, as a share of all rows; `null`: what is said of a NULL."""
    if absent(values) or absent(rank_stderr):
        return null
    off = f"± {Z95 * rank_stderr:.2g}" if Z95 * rank_stderr < 1 else "unknown"
    return f"{', '.join(f'{value:,.4g}' for value in values)}; ranks {off}"


def text_of(row: Mapping[Any, Any], column: Column, published: Published) -> str:
    """What a row has in a column, with its error; a real number beside a value has the digits of that error, for it is no better."""
    value = row[column.name]
    of = column.of or ""
    if column.role is not Role.VALUE:
        whole = isinstance(row[of], Integral)
        return (
            str(value)
            if isinstance(value, Integral | str)
            else amount(value, Z95 * row[published.stderr(of)], whole)
        )
    if ranks := published.of(of, Role.RANK_STDERR):
        early = published.windows is not None and row["trigger"] < published.windows.triggers
        return quantiles_text(value, row[ranks[0]], AT_END if early else TOO_FEW)
    if of in published.fitted:
        return f"{value:,.6g}"
    error = row[published.stderr(of)]
    return (
        TOO_FEW
        if says_nothing(of, error, published)
        else marked(value, error, null_of(of, published))
    )


def says_nothing(alias: str, stderr: float, published: Published) -> bool:
    """Whether the 95% interval of an average or a spread is all that its bounds allow: a value in its middle would be read as one."""
    within = next((each.within for each in published.measures if each.alias == alias), None)
    return within is not None and 2 * Z95 * stderr > 0.999 * (within[1] - within[0])


def amount(value: float, error: float, whole: bool = False) -> str:
    """A number to the second significant digit of its error; from an error of 100,000 on in millions.

    Args:
        value: the number.
        error: of 95%.
        whole: it is a count, which has no decimals, however small its error.
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:,.6g}"
    decimals = 1 - math.floor(math.log10(error))
    if whole:
        decimals = min(decimals, 0)
    if decimals > MOST_DECIMALS:
        return f"{value:.2g}"
    size, name = next((size, name) for size, name in UNITS if error >= size / 10 or size == 1)
    return f"{(round(float(value), decimals) + 0.0) / size:,.{max(0, decimals + round(math.log10(size)))}f}{name}"
