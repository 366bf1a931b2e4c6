"""How values are written for people: on a terminal, in charts and on the page of `dpsql view`."""

from __future__ import annotations

from typing import Any

Z95 = 1.959963984540054


def printable(value: Any) -> str:
    """A key as text: control characters are shown, not obeyed."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def absent(value: Any) -> bool:
    """NULL, NaN or NaT; the last two differ from themselves."""
    return value is None or bool(value != value)


def measured(value: Any, stderr: float) -> tuple[str, bool]:
    """`1,203 ± 76`, with as many digits as the error deserves, and whether the value is smaller than that 95% error."""
    if absent(value):
        return "NULL", True
    error = Z95 * stderr
    digits = 0 if isinstance(value, int) else max(0, min(6, 2 - len(str(int(max(error, 1.0))))))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}", abs(value) < error
