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


def search(bench: Workbench, report: Told | None = None) -> Setting:
    """Return the best setting that line searches find; as written where nothing is better.

    Args:
        bench: the query and the sample.
        report: progress.
    """
    bench, full_bench = bench.of_fewer(MOST_RECORDS), bench
    tried: dict[Setting, float] = {}

    def cost(setting: Setting) -> float:
        if setting not in tried:
            tried[setting] = bench.cost(setting)
            if report:
                report(len(tried), min(tried.values()))
        return tried[setting]

    for start in _starts(bench):
        current = start
        while True:
            previous_cost = cost(current)
            for name in _searched(bench):
                for candidate in line(bench, current, name):
                    if cost(candidate) < cost(current) * (1 - BETTER):
                        current = candidate
            if not cost(current) < previous_cost * (1 - BETTER):
                break
    best = min(tried, key=lambda setting: tried[setting])
    return (
        best
        if full_bench.cost(best) < full_bench.cost(full_bench.written) * (1 - BETTER)
        else full_bench.written
    )


def line(bench: Workbench, current: Setting, name: str) -> list[Setting]:
    """Return the settings that differ from one in a single option, and in what has to follow: c and G are at most C, C at most G c."""
    limits = bench.longest
    longest = limits[name]
    if not bench.query.parsed.keys:  # one key: all records of a user are records of it
        values = steps_up_to(longest, STEPS)
        return [
            dataclasses.replace(
                current,
                max_rows_contributed=value,
                max_rows_per_group=value,
                max_groups_contributed=min(bench.written.max_groups_contributed, value),
            )
            for value in values
        ]
    settings = [_with(current, name, value) for value in steps_up_to(longest, STEPS)]
    if name != ROWS:
        # also with C / (G c) as it is: C alone would be in the way
        full = current.max_rows_contributed / (
            current.max_rows_per_group * current.max_groups_contributed
        )
        for value in steps_up_to(longest, STEPS):
            changed = dataclasses.replace(current, **{name: value})
            rows = max(
                value, round(full * changed.max_rows_per_group * changed.max_groups_contributed)
            )
            settings.append(
                _with(
                    dataclasses.replace(changed, max_rows_contributed=min(rows, limits[ROWS])),
                    name,
                    min(value, limits[ROWS]),
                )
            )
    return list(dict.fromkeys(settings))


def around(bench: Workbench, current: Setting) -> Iterator[tuple[str, list[Setting]]]:
    """Yield for every option the settings that differ from one in this option alone: what `dpsql
    tune` shows."""
    for name in _searched(bench):
        yield name, _near(current, name, line(bench, current, name), 7)
    epsilons = [
        dataclasses.replace(current, epsilon=min(current.epsilon * factor, 20.0))
        for factor in EPSILONS
    ]
    yield EPSILON, list(dict.fromkeys(epsilons))
    slide = bench.query.parsed.windows.slide_us
    intervals = sorted(
        {slide // part for part in PARTS if slide % part == 0} | {current.trigger_interval_us}
    )
    longer = bench.query.parsed.windows.size_us + bench.query.parsed.allowed_lateness_us
    possible = [us for us in intervals if -(-longer // us) <= 2000]
    yield (
        INTERVAL,
        _near(
            current,
            INTERVAL,
            [dataclasses.replace(current, trigger_interval_us=us) for us in possible],
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
        current = Setting.of_query(parse_query(text, query.sources))
        for name in (ROWS, PER_GROUP, GROUPS, EPSILON):
            if getattr(current, name) != getattr(setting, name):
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
    first = bench.written
    yield first
    limits = bench.longest
    if not bench.query.parsed.keys:
        return
    for per_group, groups in ((1, 4), (2, 16), (8, 2)):
        per_group = min(per_group, limits[PER_GROUP])
        groups = min(groups, limits[GROUPS])
        yield dataclasses.replace(
            first,
            max_rows_contributed=per_group * groups,
            max_rows_per_group=per_group,
            max_groups_contributed=groups,
        )


def steps_up_to(largest: int, steps: Iterable[int]) -> tuple[int, ...]:
    """Return the steps below `largest`, and `largest`."""
    return (*(step for step in steps if step < largest), largest)


def _with(current: Setting, name: str, value: int) -> Setting:
    changed = dataclasses.replace(current, **{name: value})
    if name == ROWS:
        return dataclasses.replace(
            changed,
            max_rows_per_group=min(current.max_rows_per_group, value),
            max_groups_contributed=min(current.max_groups_contributed, value),
        )
    rows = max(changed.max_rows_contributed, value)
    return dataclasses.replace(
        changed,
        max_rows_contributed=min(rows, changed.max_rows_per_group * changed.max_groups_contributed),
    )


def _near(current: Setting, name: str, settings: list[Setting], limit: int) -> list[Setting]:
    """Choose at most so many settings by the option's value, those next to the present one."""
    by_value: dict[Any, Setting] = {}
    for setting in settings:
        by_value.setdefault(getattr(setting, name), setting)
    by_value[getattr(current, name)] = current
    values = sorted(by_value)
    position = values.index(getattr(current, name))
    start = max(0, min(position - limit // 2, len(values) - limit))
    return [by_value[value] for value in values[start : start + limit]]
