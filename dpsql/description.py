"""What a public table says of itself: one property of the table, written by whoever writes its rows, and asked by everyone who reads them.

It holds nothing but what a plan and the text of its query say: no types (the schema has them), no text of the query, no run, no count.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from dpsql.parsed_query import (
    AVERAGED,
    DEVIATIONS,
    REGRESSIONS,
    SAMPLES,
    AggregateFunction,
    Reading,
)
from dpsql.record import parse

PROPERTY = "dpsql.table"
"""The name of the description in a Delta table, in the schema of an Arrow table, and in the `attrs` of a pandas frame."""

VERSION = 2
CELLS_ENDING = "sketch"
LEFT_OUT_ENDING = "left_out"
"""The tables beside the public table of a query: of cells, `NAME.sketch`, and of what the limits left out, `NAME.left_out`."""
LEFT_OUT_ATTRIBUTE = "dpsql.left_out"
"""Where a frame of pandas has the rows of `NAME.left_out`, as JSON text. (A frame there would end `concat`, `merge` and `to_parquet`.)"""
START = "window_start"
END = "window_end"
DUE = "trigger_time"
GROUPING_ID = "grouping_id"
NOTE = "dpsql_note"
"""The column of readers that says why a value is NULL, or how little it says; NULL where there is nothing to say."""
STDERR = "stderr"
RANK_STDERR = "rank_stderr"
SMOOTHED = "smoothed"
MEASURED = "measured"
"""Endings of the names of the columns beside an aggregate. Whoever writes or names such a column takes them from here."""
ADDITIVE = (AggregateFunction.COUNT_ROWS, AggregateFunction.COUNT, AggregateFunction.SUM)


class Rows(StrEnum):
    """The kind of one row: a group; a release of lists; a row of cells; a cell of one of several
    tables; a cell of a fitted table; figures of what the limits left out."""

    HISTOGRAM = "HISTOGRAM"
    LISTS = "LISTS"
    CELLS = "CELLS"
    CUBE = "CUBE"
    SYNTHETIC = "SYNTHETIC"
    LEFT_OUT = "LEFT_OUT"


class Role(StrEnum):
    """The role of a column: when; the group; which keys a row of a CUBE has; a number; the standard
    error of it, or of the ranks of quantiles; more of it (a better guess, how much was measured);
    an array of the largest."""

    TIME = "TIME"
    KEY = "KEY"
    SET = "SET"
    VALUE = "VALUE"
    STDERR = "STDERR"
    RANK_STDERR = "RANK_STDERR"
    BESIDE = "BESIDE"
    LIST = "LIST"


@dataclass(frozen=True)
class Column:
    """A column: `of` is the alias that it belongs to; of a LIST `values` are the names of the parts of a value."""

    name: str
    role: Role
    of: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measure:
    """An aggregate: `additive` if it may be summed over groups, of either sign; what values are clamped to; the step that values are multiples of."""

    alias: str
    function: AggregateFunction
    additive: bool
    bounds: tuple[float, ...] | None
    grid: float | None
    per_group: bool = False

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The bounds of each value that it is of, in pairs."""
        ends = self.bounds or ()
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    @property
    def within(self) -> tuple[float, float] | None:
        """The range of its values: an average its bounds, a deviation 0 and half their width, a
        variance the square of that, of a sample of two twice it; a correlation -1 to 1, a covariance
        half of both widths; others none."""
        if self.bounds is None or self.function not in AVERAGED:
            return None
        if self.function is AggregateFunction.CORR:
            return -1.0, 1.0
        if self.function in REGRESSIONS:
            return None
        if self.function is AggregateFunction.AVG:
            return self.ranges[0]
        halves = [(high - low) / 2 for low, high in self.ranges]
        if self.function is AggregateFunction.COVAR_POP:
            largest = math.prod(halves)
            return -largest, largest
        largest = halves[0] ** 2 * (2 if self.function in SAMPLES else 1)
        return 0.0, largest**0.5 if self.function in DEVIATIONS else largest


@dataclass(frozen=True)
class Windows:
    """Windows of a table, in microseconds; `triggers`: releases of a window."""

    size_us: int
    slide_us: int
    offset_us: int
    lateness_us: int
    triggers: int


@dataclass(frozen=True)
class NoiseKind:
    """`counter`; `horizon`: triggers that share its noise, none if they do not end; `predicted`: what was not measured may be predicted."""

    counter: str
    horizon: int | None
    predicted: bool = False


@dataclass(frozen=True)
class Sets:
    """The sets of a CUBE: its keys, how many values each has, and the tables that are measured, by
    their grouping_id.

    `closing`: the keys whose cells close, by place. A table with all of them has no row of a cell that is open:
    the cell has no record yet.
    """

    keys: tuple[str, ...]
    sizes: tuple[int, ...]
    measured: tuple[int, ...]
    closing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SketchShape:
    """One or several sketches that count the same; `dpsql.udfs.sketch.release` says how their cells are released.

    Args:
        depth, width, signed: of every sketch.
        hash_scheme: `dpsql.udfs.sketch.hashing.SCHEME`.
        aliases: of the sketches, in order of their rows.
        counts: of each, whether it counts records; else it adds up a weight.
        grids: value of one step of their cells.
        sd: of their cells' noise by trigger, in value units.
        stderr: of an estimate's noise, per standard deviation of a cell's.
        by_window: every window has a hash key of its own, published with its last cells.
        missed: the largest share of a value's records that a row leaves out.
        value: path and Spark type of each part of a value, so that whoever asks can encode one; a plan does not know them.
    """

    depth: int
    width: int
    signed: bool
    hash_scheme: str
    aliases: tuple[str, ...]
    counts: tuple[bool, ...]
    grids: tuple[float, ...]
    sd: tuple[tuple[float, ...], ...]
    stderr: float
    by_window: bool
    missed: float
    value: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Fit:
    """The origin of a fitted table: the query and the column that it is fitted to, and how many
    rows are drawn (none: every cell has one)."""

    of: str
    column: str
    drawn: int | None


@dataclass(frozen=True, kw_only=True)
class Protects:
    """The guarantee of one run: whom, in which period, how much of theirs is in the table (C, c,
    G), and how many noisy sums a group has.

    `period_us`: how long contribution limits last before they renew; None: for ever. `units_needed`:
    units that bring a key to its threshold at a window's last trigger (where triggers do not end: at the first); none: keys are
    listed. `rows_end`: rows of the table that is counted can go.
    """

    level: str
    units: tuple[str, ...]
    period_us: int | None
    max_rows: int | None
    max_rows_per_group: int | None
    max_groups: int | None
    sums: int
    units_needed: int | None
    rows_end: bool
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Published:
    """The description.

    `once`: all rows were released together, one time; readers leave `hidden` out. `neighbours`: endings of the tables next to it, with what
    their rows are; `sketch`: what readers of cells must know.
    """

    rows: Rows
    trigger_us: int
    columns: tuple[Column, ...]
    windows: Windows | None = None
    measures: tuple[Measure, ...] = ()
    noise: NoiseKind | None = None
    reading: Reading = field(default_factory=Reading)
    sets: Sets | None = None
    protects: tuple[Protects, ...] = ()
    neighbours: tuple[tuple[str, Rows], ...] = ()
    sketch: SketchShape | None = None
    fit: Fit | None = None
    once: bool = False

    def text(self) -> str:
        """Write the description as the property has it: canonical JSON; equal descriptions have
        equal texts."""
        content = {"version": VERSION} | asdict(self)
        if not self.once:
            del content["once"]  # as tables have it that are older
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the Delta table."""
        return {PROPERTY: self.text()}

    def merged_with(self, older: Published, first: bool) -> Published:
        """Return the description of a table that had another before; `first`: the run has not written into it yet."""
        return replace(
            self, protects=(*older.protects, *self.protects) if first else older.protects
        )

    @property
    def keys(self) -> list[str]:
        """The columns that name a row besides its window and trigger; of a CUBE also which keys it has."""
        return self.names(Role.KEY, Role.SET)

    @property
    def hidden(self) -> list[str]:
        """The columns that say nothing: times of a one-time release."""
        return self.names(Role.TIME) if self.once else []

    @property
    def release(self) -> list[str]:
        """The columns that tell one release from another."""
        if self.once:
            return []
        return [START, "trigger"] if self.windows else ["trigger"]

    @property
    def display_columns(self) -> list[Column]:
        """The columns that a table for people has, besides times and keys: errors are said with their values, lists in tables of their own."""
        elsewhere = (Role.TIME, Role.KEY, Role.SET, Role.STDERR, Role.RANK_STDERR, Role.LIST)
        return [column for column in self.columns if column.role not in elsewhere]

    @property
    def amounts(self) -> list[str]:
        """The aggregates whose values have a standard error: all but quantiles."""
        return [alias for alias in self.names(Role.VALUE) if self.columns_of(alias, Role.STDERR)]

    @property
    def quantiles(self) -> list[str]:
        """The aggregates that are arrays, of which the ranks have a standard error."""
        return [
            alias for alias in self.names(Role.VALUE) if self.columns_of(alias, Role.RANK_STDERR)
        ]

    @property
    def fitted(self) -> list[str]:
        """The aggregates that are numbers without an error."""
        return [
            alias
            for alias in self.names(Role.VALUE)
            if not self.columns_of(alias, Role.STDERR, Role.RANK_STDERR)
        ]

    @property
    def lists(self) -> list[str]:
        """The columns that are lists of the largest values."""
        return self.names(Role.LIST)

    @property
    def selects(self) -> bool:
        """Whether a key that records have may be missing: it was not found, or is not shown."""
        return any(
            run.units_needed is not None for run in self.protects
        ) or self.reading != Reading(order=self.reading.order)

    @property
    def predicts(self) -> bool:
        """Whether values may be predictions, which have no standard error."""
        return self.noise is not None and self.noise.predicted

    def stderr(self, alias: str) -> str:
        """Return the column of its standard error."""
        return self.columns_of(alias, Role.STDERR)[0]

    def extra_columns(self, alias: str) -> dict[str, Column]:
        """Return the columns that say more of an aggregate, by their endings."""
        return {
            column.name.removeprefix(f"{alias}_"): column
            for column in self.display_columns
            if column.of == alias and column.role is not Role.VALUE
        }

    def names(self, *roles: Role) -> list[str]:
        """Return the columns of some roles, in order."""
        return [column.name for column in self.columns if column.role in roles]

    def columns_of(self, alias: str, *roles: Role) -> list[str]:
        """Return the columns of an aggregate with some roles, in order."""
        return [
            column.name for column in self.columns if column.of == alias and column.role in roles
        ]


def parse_description(text: str) -> Published | None:
    """Parse the text of a description; None of another version, or of a commit between two releases, which has other fields."""
    mapping = json.loads(text)
    if mapping.pop("version", None) != VERSION:
        return None
    try:
        description: Published = parse(mapping, Published)
    except ValueError:
        return None
    return description
