"""The setting with the least expected error: line searches over one option after the other, from several starts.

Searched are the options that cost no privacy and change no meaning: C, c and G. More epsilon and fewer triggers always help, so they are shown
(`around`) and left to the analyst.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dpsql.compiled import parse_query
from dpsql.sql.parse import edit_options
from dpsql.tuning.workbench import GROUPS, PER_GROUP, ROWS, Setting, Workbench

STEPS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
    8192,
    16384,
    65536,
    262144,
)
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
PARTS = (1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 288)
BETTER = 1e-3
"""A change worth less than this share of the error is not made."""

EPSILON = "epsilon"
INTERVAL = "trigger_interval_us"

MOST_RECORDS = 50_000
"""A line search looks at no more records: it asks for hundreds of settings, of which other users say nearly the same."""

Told = Callable[[int, float], None]
"""Called with the number of settings measured so far and the least cost."""


def search(bench: Workbench, told: Told | None = None) -> Setting:
    """Return the best setting that line searches find; as written where nothing is better.

    Args:
        bench: the query and the sample.
        told: progress.
    """
    bench, whole = bench.of_fewer(MOST_RECORDS), bench
    tried: dict[Setting, float] = {}

    def cost(setting: Setting) -> float:
        if setting not in tried:
            tried[setting] = bench.cost(setting)
            if told:
                told(len(tried), min(tried.values()))
        return tried[setting]

    for start in _starts(bench):
        here = start
        while True:
            before = cost(here)
            for name in _searched(bench):
                for candidate in line(bench, here, name):
                    if cost(candidate) < cost(here) * (1 - BETTER):
                        here = candidate
            if not cost(here) < before * (1 - BETTER):
                break
    best = min(tried, key=lambda setting: tried[setting])
    return best if whole.cost(best) < whole.cost(whole.written) * (1 - BETTER) else whole.written


def line(bench: Workbench, here: Setting, name: str) -> list[Setting]:
    """Return the settings that differ from one in a single option, and in what has to follow: c and G are at most C, C at most G c."""
    most = bench.longest
    longest = most[name]
    if not bench.query.parsed.keys:  # one key: all records of a user are records of it
        values = steps_up_to(longest, STEPS)
        return [
            dataclasses.replace(
                here,
                max_rows_contributed=value,
                max_rows_per_group=value,
                max_groups_contributed=min(bench.written.max_groups_contributed, value),
            )
            for value in values
        ]
    out = [_with(here, name, value) for value in steps_up_to(longest, STEPS)]
    if name != ROWS:
        # also with C / (G c) as it is: C alone would be in the way
        full = here.max_rows_contributed / (here.max_rows_per_group * here.max_groups_contributed)
        for value in steps_up_to(longest, STEPS):
            moved = dataclasses.replace(here, **{name: value})
            rows = max(value, round(full * moved.max_rows_per_group * moved.max_groups_contributed))
            out.append(
                _with(
                    dataclasses.replace(moved, max_rows_contributed=min(rows, most[ROWS])),
                    name,
                    min(value, most[ROWS]),
                )
            )
    return list(dict.fromkeys(out))


def around(bench: Workbench, here: Setting) -> Iterator[tuple[str, list[Setting]]]:
    """For every option the settings that differ from one in this option alone: what `dpsql tune` shows."""
    for name in _searched(bench):
        yield name, _near(here, name, line(bench, here, name), 7)
    epsilons = [
        dataclasses.replace(here, epsilon=min(here.epsilon * factor, 20.0)) for factor in EPSILONS
    ]
    yield EPSILON, list(dict.fromkeys(epsilons))
    slide = bench.query.parsed.windows.slide_us
    intervals = sorted(
        {slide // part for part in PARTS if slide % part == 0} | {here.trigger_interval_us}
    )
    longer = bench.query.parsed.windows.size_us + bench.query.parsed.allowed_lateness_us
    possible = [us for us in intervals if -(-longer // us) <= 2000]
    yield (
        INTERVAL,
        _near(
            here,
            INTERVAL,
            [dataclasses.replace(here, trigger_interval_us=us) for us in possible],
            7,
        ),
    )


def _searched(bench: Workbench) -> tuple[str, ...]:
    """Return the options that mean something for this query."""
    return (GROUPS, PER_GROUP, ROWS) if bench.query.parsed.keys else (ROWS,)


def edited(bench: Workbench, setting: Setting) -> str:
    """Return the query's text with this setting; only the options that change are touched."""
    query = bench.query
    text = bench.query.text
    changes = dict[str, str]()
    for _ in range(
        2
    ):  # c and G that are not written follow C: the second time they are written out
        written = Setting.of(parse_query(text, query.sources))
        for name in (ROWS, PER_GROUP, GROUPS, EPSILON):
            if getattr(written, name) != getattr(setting, name):
                changes[name] = (
                    f"{getattr(setting, name):g}"
                    if name == EPSILON
                    else str(getattr(setting, name))
                )
        text = edit_options(query.text, query.sources, changes)
    if parse_query(text, query.sources) != bench.parsed(setting):
        raise AssertionError("the edited text is another query than the one that was measured")
    return text


def _starts(bench: Workbench) -> Iterator[Setting]:
    written = bench.written
    yield written
    most = bench.longest
    if not bench.query.parsed.keys:
        return
    for per_group, groups in ((1, 4), (2, 16), (8, 2)):
        per_group = min(per_group, most[PER_GROUP])
        groups = min(groups, most[GROUPS])
        yield dataclasses.replace(
            written,
            max_rows_contributed=per_group * groups,
            max_rows_per_group=per_group,
            max_groups_contributed=groups,
        )


def steps_up_to(most: int, steps: Iterable[int]) -> tuple[int, ...]:
    """Return the steps below `most`, and `most`."""
    return (*(step for step in steps if step < most), most)


def _with(here: Setting, name: str, value: int) -> Setting:
    changed = dataclasses.replace(here, **{name: value})
    if name == ROWS:
        return dataclasses.replace(
            changed,
            max_rows_per_group=min(here.max_rows_per_group, value),
            max_groups_contributed=min(here.max_groups_contributed, value),
        )
    rows = max(changed.max_rows_contributed, value)
    return dataclasses.replace(
        changed,
        max_rows_contributed=min(rows, changed.max_rows_per_group * changed.max_groups_contributed),
    )


def _near(here: Setting, name: str, settings: list[Setting], most: int) -> list[Setting]:
    """At most so many settings by the option's value, those next to the present one."""
    by_value: dict[Any, Setting] = {}
    for setting in settings:
        by_value.setdefault(getattr(setting, name), setting)
    by_value[getattr(here, name)] = here
    values = sorted(by_value)
    at = values.index(getattr(here, name))
    start = max(0, min(at - most // 2, len(values) - most))
    return [by_value[value] for value in values[start : start + most]]
