"""What the processes of a session use, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def processes(session: int) -> dict[str, tuple[int, float]]:
    """Kind -> (resident kB, CPU seconds) of a session's processes: the Python driver, the JVM, Spark's Python workers.

    The CPU of children that have ended is their parent's.
    """
    found: dict[str, tuple[int, float]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
            head = text[text.index("(") + 1 : text.rindex(")")]
            rest = text[text.rindex(")") + 2 :].split()
            if int(rest[3]) != session:
                continue
            kind = (
                "jvm"
                if head == "java"
                else "driver"
                if status.parent.name == str(session)
                else "workers"
            )
            pages = int((status.parent / "statm").read_text().split()[1])
        except (OSError, ValueError):
            continue
        before = found.get(kind, (0, 0.0))
        ticks = sum(int(count) for count in rest[11:15])
        found[kind] = (
            before[0] + pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            before[1] + ticks / os.sysconf("SC_CLK_TCK"),
        )
    return found
