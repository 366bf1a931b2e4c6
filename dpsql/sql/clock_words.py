"""Texts that Spark turns into other times every day: `now`, `today`, and times without a date, which get today's."""

from __future__ import annotations

import re

NO_DATE = "^(?:T|[^0-9]*[0-9]{1,2}:)"
"""How a text begins that Spark takes for a time without a date, in Java's expressions and Python's; no text with a date begins so."""

_WORDS = re.compile(r"(?:epoch|now|today|tomorrow|yesterday)(?:\s.*)?", re.IGNORECASE | re.DOTALL)
"""Words that Spark knows in literals, with a time zone after them or none. (`epoch` is one of them, though it stands still.)"""

_BLANK = "".join(map(chr, range(33))) + "\x7f"


def reads_the_clock(text: str, kind: str) -> bool:
    """Tell whether a literal is another value tomorrow, as a DATE or TIMESTAMP.

    Args:
        text: the literal.
        kind: the type, as Spark spells it in lower case.
    """
    if kind not in ("date", "timestamp", "timestamp_ntz", "timestamp_ltz"):
        return False
    return _WORDS.fullmatch(text.strip(_BLANK)) is not None or (
        kind not in ("date", "timestamp_ntz") and re.match(NO_DATE, text) is not None
    )
