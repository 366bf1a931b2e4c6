"""What people read in sentences and tables, and its layout: amounts, shares, numbers of things, addresses."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence

WIDTH = 112

Z95 = 1.959963984540054
"""Standard normal quantile of 97.5%: half of a 95% interval, in standard errors."""


def number(value: float | None) -> str:
    """Format a number: three significant digits, with thousands separators where they help; None
    is unlimited."""
    if value == 0:
        return "0"
    if value is None or math.isinf(value):
        return "unlimited"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if abs(value) < 1e9 and digits < 7 else f"{value:.3g}"


def percent(share: float) -> str:
    """Format a share: three significant digits and never 0% of something: `70%`, `99.9%`, `0.025%`."""
    return f"{100 * share:.3g}%"


def without_credentials(address: str | None) -> str:
    """Return a path or address as it may be printed: `user:password@` and `?key=...` are left out."""
    return re.sub(
        r"//[^@]*:[^@]*@|\?[^/]*=.*",
        lambda found: "//" if found[0].endswith("@") else "",
        str(address),
    )


def plural(count: int, noun: str) -> str:
    """Format a number of things: `1 period`, `2,880 periods`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def wrapped(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines of at most 120 characters; rows of a table stay whole."""
    for line in lines:
        yield from [line] if "  " in line else textwrap.wrap(line, WIDTH, subsequent_indent="  ")


def aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """Yield the lines of a table; `sides`: of each column, `<` or `>`."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()
