"""ParsedQuery: what the analyst asked for, with every default of the dialect filled in. A plain frozen value.

All durations are integers in microseconds (`_us`). All SQL fragments are normalised Spark SQL: identifiers lower case,
one canonical spelling, no comments; so equal questions have equal values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from dpsql.times import UNITS_US

Asked_co = TypeVar("Asked_co", covariant=True)


class AggregateFunction(StrEnum):
    """The aggregates of the dialect."""

    COUNT_ROWS = "COUNT(*)"
    COUNT = "COUNT"
    COUNT_DISTINCT_UNIT = "COUNT(DISTINCT)"
    SUM = "SUM"
    AVG = "AVG"
    APPROX_QUANTILES = "APPROX_QUANTILES"
    VAR_POP = "VAR_POP"
    VAR_SAMP = "VAR_SAMP"
    STDDEV_POP = "STDDEV_POP"
    STDDEV_SAMP = "STDDEV_SAMP"
    COVAR_POP = "COVAR_POP"
    CORR = "CORR"
    REGR_SLOPE = "REGR_SLOPE"
    REGR_INTERCEPT = "REGR_INTERCEPT"
    APPROX_TOP_COUNT = "APPROX_TOP_COUNT"
    APPROX_TOP_SUM = "APPROX_TOP_SUM"
    COUNT_SKETCH = "COUNT_SKETCH"


SKETCHES = (
    AggregateFunction.APPROX_TOP_COUNT,
    AggregateFunction.APPROX_TOP_SUM,
    AggregateFunction.COUNT_SKETCH,
)
"""Aggregates that are about the values of an expression, which no GROUP BY names (docs/privacy/sketch.md)."""


VARIANCES = (AggregateFunction.VAR_POP, AggregateFunction.VAR_SAMP)
DEVIATIONS = (AggregateFunction.STDDEV_POP, AggregateFunction.STDDEV_SAMP)
SPREADS = (*VARIANCES, *DEVIATIONS)
"""How far values lie apart."""
SAMPLES = (AggregateFunction.VAR_SAMP, AggregateFunction.STDDEV_SAMP)
"""Aggregates of a sample: the sum of squares is divided by one less than there are values."""

REGRESSIONS = (AggregateFunction.REGR_SLOPE, AggregateFunction.REGR_INTERCEPT)
PAIRED = (AggregateFunction.COVAR_POP, AggregateFunction.CORR, *REGRESSIONS)
"""Aggregates of two values of a record: y, then x."""

AVERAGED = (AggregateFunction.AVG, *SPREADS, *PAIRED)
"""Aggregates that do not grow with the number of records; where there is no value there is nothing."""

BOUNDED = (AggregateFunction.SUM, *AVERAGED)
"""Aggregates of values, which need `contribution_bounds_per_row`; all are DOUBLE."""


class PrivacyLevel(StrEnum):
    """The difference of neighbouring streams: all that one unit does in one contribution period, or
    one row."""

    USER = "USER"
    EVENT = "EVENT"


class ContributionPeriod(StrEnum):
    """When a user's allowance (C, c, G) renews: with every window, never, or after a duration, where rows end."""

    WINDOW = "WINDOW"
    STREAM = "STREAM"
    DURATION = "DURATION"


class Basis(StrEnum):
    """Whose mechanism: ours, which has no word, or the one that the paper on this kind of query printed."""

    PAPER = "PAPER"


class CounterName(StrEnum):
    """The continual counting mechanisms; PANES and WINDOW_SQRT are of sliding windows for ever (docs/privacy/sliding.md)."""

    BLT = "BLT"
    HONAKER = "HONAKER"
    PANES = "PANES"
    WINDOW_SQRT = "WINDOW_SQRT"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate column: `argument` is Spark SQL (None for COUNT(*) and COUNT(DISTINCT unit)); `bounds` clamp each row."""

    alias: str
    function: AggregateFunction
    argument: str | None = None
    bounds: tuple[float, float] | None = None

    @property
    def clamps(self) -> tuple[float, ...] | None:
        """Lower and upper bound of each value."""
        return self.bounds

    @property
    def expressions(self) -> tuple[str | None, ...]:
        """The values that it reads, as Spark SQL."""
        return (self.argument,)


@dataclass(frozen=True)
class PerGroup(Aggregate):
    """COUNT or SUM, where `bounds` hold what the rows of one unit add to one group, those above zero and those below each for themselves."""


@dataclass(frozen=True)
class Paired(Aggregate):
    """An aggregate of y, which is `argument` with its `bounds`, and of x; a record counts where it has both."""

    x: str = ""
    x_bounds: tuple[float, float] = (0.0, 0.0)

    @property
    def clamps(self) -> tuple[float, ...] | None:
        """Lower and upper bound of y, then of x."""
        return (*(self.bounds or ()), *self.x_bounds)

    @property
    def expressions(self) -> tuple[str | None, ...]:
        """First y, then x, as Spark SQL."""
        return self.argument, self.x


@dataclass(frozen=True)
class Quantiles(Aggregate):
    """APPROX_QUANTILES(argument, parts): `parts` + 1 values, from the lower bound to the upper one, with equally many rows between them."""

    parts: int = 0


@dataclass(frozen=True)
class Percentile(Quantiles):
    """PERCENTILE_CONT(argument, element / parts): one of the quantiles between the bounds."""

    element: int = 1


@dataclass(frozen=True)
class Key:
    """A name that records are counted by: one GROUP BY column besides the window, or a part of what
    a sketch counts (`top.value`); with its Spark SQL."""

    name: str
    expression: str


@dataclass(frozen=True)
class WindowSpec:
    """`window(event_time, size, slide, offset)`, without the event time."""

    size_us: int
    slide_us: int
    offset_us: int


ONE_TIME = "TIMESTAMP '1970-01-01 00:00:00'"
"""The event time of every record in a one-time release."""

ONE_WINDOW = WindowSpec(UNITS_US["day"], UNITS_US["day"], 0)
"""The window that has all of them. Its end is the only trigger."""


@dataclass(frozen=True)
class Reading:
    """How released rows are shown: HAVING, ORDER BY and LIMIT of the query, over the names of its columns. No plan knows of it.

    `private`: the condition names a key or a text, so it may name a person: it is not told to who has not the run's folder.
    """

    condition: str | None = None
    order: tuple[str, ...] = ()
    limit: int | None = None
    private: bool = False


AS_RELEASED = Reading()
"""All rows, as they are."""


@dataclass(frozen=True, kw_only=True)
class ParsedQuery(Generic[Asked_co]):
    """One accepted query: what every query says, and what it asks of its mechanism.

    `mechanism` names the one that takes it, `asked` is for that one. `event_time` is a column name (Spark SQL), or `ONE_TIME`; `window` is None where
    a table is released as it is. `from_sql` is everything from the word FROM on, up to GROUP BY: `FROM visits`, or
    `FROM (SELECT ... FROM visits WHERE ...) AS t JOIN pages ON ... WHERE ...`; an engine puts its own select list before it.
    `privacy_unit` are the columns that name a unit, none where one row is protected, whosever it is; its contribution period is then STREAM.
    `stream` is the one streaming source it reads; `static_sources` are the public tables it joins; `public_groups` is the text that lists
    them. `columns_in_order` is the order of the output columns as written: key names and aggregate aliases.
    """

    mechanism: str
    epsilon: float
    delta: float
    privacy_unit: tuple[str, ...]
    contribution_period: ContributionPeriod
    event_time: str
    window: WindowSpec | None
    trigger_interval_us: int
    allowed_lateness_us: int
    max_ahead_us: int
    public_groups: str | None
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]
    from_sql: str
    stream: str
    static_sources: tuple[str, ...]
    columns_in_order: tuple[str, ...]
    asked: Asked_co

    @property
    def output_keys(self) -> tuple[Key, ...]:
        """The keys that are columns of the public table."""
        return tuple(key for key in self.keys if key.name in self.columns_in_order)

    @property
    def protects(self) -> PrivacyLevel:
        """The difference of neighbouring streams."""
        return PrivacyLevel.USER if self.privacy_unit else PrivacyLevel.EVENT

    @property
    def selects(self) -> bool:
        """Whether keys are found in the records: there are some, and no list has them."""
        return bool(self.keys) and self.public_groups is None

    @property
    def once(self) -> bool:
        """Whether all records are released together, one time."""
        return self.event_time == ONE_TIME

    @property
    def windows(self) -> WindowSpec:
        """The windows of a query that has them, or the only one of a one-time release."""
        window = ONE_WINDOW if self.once else self.window
        if window is None:
            raise AssertionError("a query without a window came to who takes windows only")
        return window


def arguments_of(query: ParsedQuery[Any]) -> tuple[str, ...]:
    """Return the different expressions that aggregates read, in order."""
    expressions = [
        expression
        for aggregate in query.aggregates
        for expression in aggregate.expressions
        if expression is not None
    ]
    return tuple(dict.fromkeys(expressions))


def changed(query: ParsedQuery[Any], **changes: Any) -> ParsedQuery[Any]:
    """Return the query with other fields, wherever they are."""
    asked = {
        name: value for name, value in changes.items() if name in query.asked.__dataclass_fields__
    }
    rest = {name: value for name, value in changes.items() if name not in asked}
    return replace(query, **rest, asked=replace(query.asked, **asked))
