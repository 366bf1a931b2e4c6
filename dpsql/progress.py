"""Progress of a call over many records: a line on stderr of a terminal, or a text in a notebook; nothing elsewhere.

What is kept of a notebook says nothing of the records: the text is replaced, ends empty, and is there for few records, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

MANY = 1_000_000
"""Records that take long enough to say so in a terminal."""

WIDTH = 24


def progress_line(records: int) -> Callable[[float], None]:
    """Return a function that shows which share of a call over so many records is done; the whole clears the line."""
    if _is_in_a_notebook():
        return _notebook_text()
    is_shown = records >= MANY and sys.stderr.isatty()

    def show(share: float) -> None:
        if is_shown:
            line = _bar(share) or " " * len(_bar(0))
            print(f"\r{line}\r", end="", file=sys.stderr, flush=True)

    return show


def show_note(text: str) -> None:
    """Print a sentence on stderr; in a notebook, which shows stderr as if something were wrong, on stdout."""
    with suppress(OSError, ValueError):  # a result that is paid for does not depend on it
        print(text, file=sys.stdout if _is_in_a_notebook() else sys.stderr)


def _is_in_a_notebook() -> bool:
    """Whether a kernel runs this process; a program may import the kernel's package without one."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _notebook_text() -> Callable[[float], None]:
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda share: handle.update({"text/plain": _bar(share)}, raw=True)


def _bar(share: float) -> str:
    return f"[{'#' * int(WIDTH * share):{WIDTH}}] {share:4.0%}" if share < 1 else ""
