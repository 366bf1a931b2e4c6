"""ParsedQuery: what the analyst asked for, with every default of the dialect filled in. A plain frozen value.

All durations are integers in microseconds (`_us`). All SQL fragments are normalised Spark SQL: identifiers lower case,
one canonical spelling, no comments; so equal questions have equal values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AggregateFunction(StrEnum):
    """The aggregates of the dialect."""

    COUNT_ROWS = "COUNT(*)"
    COUNT = "COUNT"
    COUNT_DISTINCT_UNIT = "COUNT(DISTINCT)"
    SUM = "SUM"
    AVG = "AVG"


class ContributionPeriod(StrEnum):
    """When a user's allowance (C, c, G) renews."""

    WINDOW = "WINDOW"
    STREAM = "STREAM"


class GroupSelection(StrEnum):
    """How the keys that appear are chosen."""

    THRESHOLD = "THRESHOLD"
    PUBLIC_GROUPS = "PUBLIC_GROUPS"


class ReleaseRule(StrEnum):
    """When a selected key is released again."""

    EVERY_TRIGGER = "EVERY_TRIGGER"
    RESELECT = "RESELECT"


class CounterName(StrEnum):
    """The continual counting mechanisms."""

    BLT = "BLT"
    SQRT = "SQRT"
    HONAKER = "HONAKER"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate column: `argument` is Spark SQL (None for COUNT(*) and COUNT(DISTINCT unit)); `bounds` clamp each row."""

    alias: str
    function: AggregateFunction
    argument: str | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Key:
    """One GROUP BY column besides the window: its output name and its Spark SQL expression."""

    name: str
    expression: str


@dataclass(frozen=True)
class WindowSpec:
    """`window(event_time, size, slide, offset)`: `event_time` is a column name (Spark SQL)."""

    event_time: str
    size_us: int
    slide_us: int
    offset_us: int


@dataclass(frozen=True)
class ParsedQuery:
    """One accepted query.

    `from_sql` is everything from the word FROM on, up to GROUP BY: `FROM visits`, or
    `FROM (SELECT ... FROM visits WHERE ...) AS t JOIN pages ON ... WHERE ...`; an engine puts its own select list before it.
    `stream` is the one streaming source it reads; `static_sources` are the public tables it joins.
    `columns_in_order` is the order of the output columns as written: key names and aggregate aliases.
    """

    epsilon: float
    delta: float
    privacy_unit: tuple[str, ...]
    max_rows_contributed: int
    max_rows_per_group: int
    max_groups_contributed: int
    contribution_period: ContributionPeriod
    window: WindowSpec
    trigger_interval_us: int
    allowed_lateness_us: int
    max_ahead_us: int
    min_privacy_units_per_group: int
    group_selection_strategy: GroupSelection
    public_groups: str | None
    group_selection_share: float | None
    release: ReleaseRule
    counter: CounterName
    selection_weight_decay: float
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]
    from_sql: str
    stream: str
    static_sources: tuple[str, ...]
    columns_in_order: tuple[str, ...]
