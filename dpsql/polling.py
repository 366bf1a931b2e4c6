"""How often a live run looks at its source, and what its promise assumes of that."""

from __future__ import annotations

import math

from dpsql.errors import InputError
from dpsql.schedule import Schedule
from dpsql.times import show_duration

MILLISECOND = 1_000
SECOND = 1_000_000
SHORTEST_US = SECOND
LONGEST_US = 60 * SECOND
"""Of the default interval, where the grid of triggers allows it."""

LARGEST_DIVISOR = 60_000
ASSUMPTION = (
    "live, the promise assumes that every micro-batch takes less time than the polling interval"
)


def polling_interval(schedule: Schedule, asked_us: int | None = None) -> int:
    """At every multiple of it a live run looks at its source; triggers are due at such multiples only. Microseconds.

    Args:
        schedule: of the query.
        asked_us: what the operator asks for. None: about a tenth of the trigger interval, 1 second to 1 minute.

    Raises:
        InputError: it does not divide the trigger interval and the windows' offset, or is not in whole milliseconds, as Spark polls.
    """
    common = math.gcd(schedule.interval_us, schedule.offset_us)
    divisors = _divisors(common)
    if not divisors:
        raise InputError(
            "a live run looks at its source at whole milliseconds, and the triggers of this query are due between them: "
            "write a trigger_interval and a window offset of whole milliseconds, or run it with --until-caught-up"
        )
    if asked_us is None:
        wanted = min(max(schedule.interval_us // 10, SHORTEST_US), LONGEST_US)
        long_enough = [divisor for divisor in divisors if divisor >= SHORTEST_US]
        fitting = [divisor for divisor in long_enough if divisor <= wanted]
        return max(fitting) if fitting else min(long_enough, default=divisors[-1])
    if asked_us not in divisors:
        raise InputError(_refusal(schedule, asked_us, divisors))
    return asked_us


def _divisors(common_us: int) -> list[int]:
    """Ascending: whole milliseconds that divide a time, all that are short and all that are long."""
    if common_us % MILLISECOND:
        return []
    common = common_us // MILLISECOND
    short = [
        number for number in range(1, min(LARGEST_DIVISOR, common) + 1) if common % number == 0
    ]
    return sorted(
        {number * MILLISECOND for divisor in short for number in (divisor, common // divisor)}
    )


def _refusal(schedule: Schedule, asked_us: int, divisors: list[int]) -> str:
    near = [
        max((d for d in divisors if d < asked_us), default=None),
        min((d for d in divisors if d > asked_us), default=None),
    ]
    accepted = " or ".join(show_duration(divisor) for divisor in near if divisor is not None)
    offset = (
        f" and the windows' offset {show_duration(schedule.offset_us)}"
        if schedule.offset_us
        else ""
    )
    return (
        f"--interval {show_duration(asked_us)} does not divide trigger_interval {show_duration(schedule.interval_us)}{offset}: triggers would be "
        f"due between two polls. Write {accepted}, or leave it away ({show_duration(polling_interval(schedule))})"
    )
