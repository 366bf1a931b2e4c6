"""What a mechanism is: one value per mechanism, which the rest of dpsql asks; and what identifies a plan."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from dpsql.description import (
    CELLS_ENDING,
    LEFT_OUT_ENDING,
    RANK_STDERR,
    STDERR,
    NoiseKind,
    Role,
    Rows,
    Sets,
    SketchShape,
)
from dpsql.explanation import Explanation
from dpsql.parsed_query import (
    BOUNDED,
    Aggregate,
    ContributionPeriod,
    ParsedQuery,
    Percentile,
    Quantiles,
)
from dpsql.privacy.cost import Cost
from dpsql.schedule import Schedule
from dpsql.sources.change_feed import Feed
from dpsql.sources.config import Source

# What a mechanism is: one value per mechanism, which the rest of dpsql asks. Nothing else knows
# mechanisms apart.

# `compile_query` (`dpsql.compiled`) goes through it in order: claims, read, plan, account.
# Engines and the lake ask for shape and stages, people for
# the explanation. How to add one: CONTRIBUTING.md.

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsql.parts.left_out import FigurePlan
    from dpsql.sql.draft import Draft, Option
    from dpsql.sql.parse import Rule
    from dpsql.udfs.keys import PublicGroups
    from dpsql.udfs.stage import Clock, Stage, Tick
    from dpsql.udfs.state_table import StateTable


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The part that every plan has, whatever mechanism made it; every number that shapes bounding
    or noise is in it.

    Args:
        query: what was asked.
        epsilon, delta: what is promised.
        mu: the Gaussian-DP parameter of all noise together; 0 where noise is discrete Laplace.
        arguments: distinct argument expressions of the aggregates (Spark SQL), in order: record columns a0, a1, ...
        identity: the digest of all of it: the same query under other noise has another.
    """

    mechanism: ClassVar[str]

    query: ParsedQuery[Any]
    epsilon: float
    delta: float
    mu: float
    arguments: tuple[str, ...]
    identity: str

    @property
    def period(self) -> tuple[int, int] | None:
        """Length and offset of the contribution periods, in microseconds; None: one is for ever."""
        if self.query.contribution_period is not ContributionPeriod.WINDOW:
            return None
        return self.query.windows.size_us, self.query.windows.offset_us


@dataclass(frozen=True)
class Argument:
    """A column a0, a1, ... of the records: what is added up, as Spark SQL.

    Args:
        text: the expression.
        presence_only: the column says whether there is a value (1.0) or none (NaN), and no value.
    """

    text: str
    presence_only: bool = False


@dataclass(frozen=True)
class PublicColumn:
    """A column of the public table besides times and keys.

    Args:
        aggregate: the alias in the select list that it belongs to; its columns follow each other.
        name: as published.
        kind: `INT`, `BIGINT` or `DOUBLE`; in a DOUBLE, NaN stands for NULL. `TOP_COUNT` or `TOP_SUM`: a packed list (`dpsql.udfs.sketch.reading`), as
            ARRAY<STRUCT<value, count BIGINT or sum DOUBLE, stderr DOUBLE, low, high>>. `DOUBLES`: ARRAY<DOUBLE>, NULL where the first is NaN.
        source: the column of the released rows that it shows; of DOUBLES the columns `source_0`, `source_1`, ...
        role: what it is to a reader.
        size: of DOUBLES: how many.
    """

    aggregate: str
    name: str
    kind: str
    source: str
    role: Role
    size: int = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """All columns of the released rows that it is made of."""
        return (
            tuple(f"{self.source}_{i}" for i in range(self.size)) if self.size else (self.source,)
        )


BOUNDS = ("max_rows_contributed", "max_rows_per_group", "max_groups_contributed")


def bounds_told(query: ParsedQuery[Any]) -> tuple[int | None, int | None, int | None]:
    """Return C, c and G of a unit; None where one row is protected, and of what is not counted."""
    bounds = [getattr(query.asked, name) if query.privacy_unit else None for name in BOUNDS]
    max_rows, max_per_group, groups = (None if bound == math.inf else bound for bound in bounds)
    return max_rows, max_per_group, groups


def value_and_error(aggregate: Aggregate, i: int) -> tuple[PublicColumn, PublicColumn]:
    """Return the two columns of the i-th aggregate."""
    alias = aggregate.alias
    if isinstance(aggregate, Quantiles):
        error = PublicColumn(alias, f"{alias}_{RANK_STDERR}", "DOUBLE", f"s{i}", Role.RANK_STDERR)
        if isinstance(aggregate, Percentile):
            source = f"c{i}_{aggregate.element}"
            return PublicColumn(alias, alias, "DOUBLE", source, Role.VALUE), error
        return PublicColumn(
            alias, alias, "DOUBLES", f"c{i}", Role.VALUE, aggregate.parts + 1
        ), error
    kind = "DOUBLE" if aggregate.function in BOUNDED else "BIGINT"
    error = PublicColumn(alias, f"{alias}_{STDERR}", "DOUBLE", f"s{i}", Role.STDERR)
    return PublicColumn(alias, alias, kind, f"c{i}", Role.VALUE), error


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The part of a table's description that only the mechanism knows (`dpsql.description`).

    Args:
        noise: its counter.
        bounds: C, c and G; None where there is none.
        sums: noisy sums of a group.
        units_needed: by a key; None: keys are listed.
        grids: of an alias: the step that its values are multiples of.
        sets: of a CUBE.
    """

    noise: NoiseKind
    bounds: tuple[int | None, int | None, int | None]
    sums: int
    units_needed: int | None = None
    grids: Mapping[str, float] = field(default_factory=dict)
    sets: Sets | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The facts that engines and the lake know of a plan. It comes from the plan alone: nothing of
    it may change between two starts of a run.

    The public table has `window_start, window_end, trigger INT, trigger_time`, or `trigger BIGINT, trigger_time` where there are no windows; then
    keys and columns in the order of the select list.

    Args:
        schedule: when triggers are due.
        arguments: the columns a0, a1, ... of the records.
        listed: keys are not selected: `RunFacts.public` has those that are released.
        carries: windows prove keys together, those from the source's declared start on.
        contributions: what the intake gives; its first column is an int64.
        state: operator -> the tables of its state.
        columns: of the public table.
        facts: what the public table says of itself.
        drops: why a record may be dropped, in the order in which that is told.
        forgets_us: windows that begin so long after a record do not depend on it; None: everything later does.
        sketch: of the second public table, which has cells; None: there is none.
        left_out: figures of what the limits leave out; where there are some they have a public table of their own.
        feed: the stream is one of changes, whose images are records with `row`, `seq` and `kind`.
    """

    schedule: Schedule
    arguments: tuple[Argument, ...]
    listed: bool
    contributions: pa.Schema
    state: Mapping[str, Mapping[str, StateTable]]
    columns: tuple[PublicColumn, ...]
    facts: TableFacts
    drops: tuple[str, ...]
    forgets_us: int | None
    sketch: SketchShape | None = None
    feed: Feed | None = None
    carries: bool = False
    left_out: tuple[FigurePlan, ...] = ()

    @property
    def neighbours(self) -> tuple[tuple[str, Rows], ...]:
        """Endings of the names of the public tables beside the histogram, with what their rows are."""
        cells = ((CELLS_ENDING, Rows.CELLS),) if self.sketch else ()
        return (*cells, *(((LEFT_OUT_ENDING, Rows.LEFT_OUT),) if self.left_out else ()))

    def columns_of(self, alias: str) -> tuple[PublicColumn, ...]:
        """Return the columns of one aggregate."""
        return tuple(column for column in self.columns if column.aggregate == alias)


@dataclass(frozen=True)
class RunFacts:
    """The facts that a run knows and its plan does not; fixed at its first start.

    Args:
        public: the listed groups, where keys are not selected.
        first_window_us: windows that start earlier belong to an earlier run, or do not exist.
    """

    public: PublicGroups | None = None
    first_window_us: int | None = None


Asked = TypeVar("Asked")
Planned = TypeVar("Planned", bound=Plan)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(Generic[Asked, Planned]):
    """One mechanism as a value of functions; `registry.MECHANISMS` has all of them.

    Args:
        name: that of its folders in `dpsql/mechanisms`, `udfs`, `tests/mechanisms`, and of its page in `docs/privacy`.
        takes: which queries are its own, in words.
        options: all that its queries may write.
        rules: those that judge its queries.
        claims: tells whether a query is its own; every accepted query is exactly one's.
        read: returns what is asked of it besides what every query says (`ParsedQuery.asked`); frozen, every default filled in.
        plan: returns a plan with every number; raises ConfigError where the source's declaration does not allow the query.
        account: returns what a finished plan costs one protected unit, from definitions: its module knows neither the planner nor how it calibrates.
            Raises AccountingError where the plan says less than it costs.
        document: returns the plan as JSON values: what its identity digests, and what run.json keeps.
        explanation: returns the guarantee, the noise and the keys of a plan.
        missing: returns why a key may be missing, in sentences and under stable names.
        shape: returns what engines know of a plan.
        stages: returns the two pure steps with their numbers, intake and release; no budget and no secret. The intake takes the records' `drop, ts,
            key, key_bytes`, `user` unless the query has no privacy unit, the arguments, and of a change feed `row, seq, kind`; it is cut into
            buckets by user; where there is none by key, or, where it has no state, in any way. Its contributions have a `key`, by which the release
            is cut into buckets. The release gives `window, trigger, key_bytes` and the sources of the columns, each (window, trigger) once and for
            ever.
    """

    name: str
    takes: str
    options: tuple[Option, ...]
    rules: tuple[Rule, ...]
    claims: Callable[[Draft], bool]
    read: Callable[[Draft], Asked]
    plan: Callable[[ParsedQuery[Asked], Source], Planned]
    account: Callable[[Planned, Source], Cost]
    document: Callable[[Planned], Mapping[str, Any]]
    explanation: Callable[[Planned, Source], Explanation]
    missing: Callable[[Planned], tuple[str, dict[str, Any]]]
    shape: Callable[[Planned], Shape]
    stages: Callable[[Planned, RunFacts], tuple[Stage[Clock], Stage[Sequence[Tick]]]]


# The identity of a plan: what a run, its noise and its ledger line are bound to.


def identity_of(version: int, document: Mapping[str, Any]) -> str:
    """Return the SHA-256 over a whole plan, every default filled in; hexadecimal.

    Args:
        version: of the mechanism's plans.
        document: the plan as JSON values, with no identity.
    """
    digested = {"version": version, "plan": document}
    return hashlib.sha256(
        json.dumps(digested, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
