"""What people read in sentences and tables: amounts, shares, addresses; and the first lines of an explanation."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping

WIDTH = 112
Z95 = 1.959963984540054
"""Standard normal quantile of 97.5%: half of a 95% interval, in standard errors."""


def number(value: float) -> str:
    """Format a number: three significant digits, with thousands separators where they help."""
    if value == 0:
        return "0"
    if math.isinf(value):
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


def in_short(lines: Mapping[str, str]) -> str:
    """Return the head of an explanation: a few words, and what is to be said under each."""
    wrapped = [
        textwrap.wrap(f"{name + ':':<12}{text}", WIDTH, subsequent_indent=" " * 12)
        for name, text in lines.items()
    ]
    return "\n".join(["In short", *("  " + line for one in wrapped for line in one)])
