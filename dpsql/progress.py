"""Progress of a call over many records: a line on stderr that moves in a terminal and in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

MANY = 1_000_000
"""Records that take long enough to say so."""

WIDTH = 24


def progress_line(records: int) -> Callable[[float], None]:
    """Return a function that shows which share of a call over so many records is done; the whole clears the line."""
    is_shown = records >= MANY and (sys.stderr.isatty() or "ipykernel" in sys.modules)

    def show(share: float) -> None:
        if not is_shown:
            return
        line = f"[{'#' * int(WIDTH * share):{WIDTH}}] {share:4.0%} of {records:,} records"
        print(f"\r{line if share < 1 else ' ' * len(line)}\r", end="", file=sys.stderr, flush=True)

    return show
