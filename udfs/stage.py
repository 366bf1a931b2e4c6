"""A stage: what one operator does with one bucket in one micro-batch, whatever the mechanism and whatever the engine.

Every run has two. The intake works on buckets of units, the release on buckets of cells; both are pure steps over a bucket's state, which
is a few sorted tables. `run_bucket` is all that an engine calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import int_fields, is_sorted, read_columns
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.state_table import StateTable

ADMISSION = "admission"
RELEASE = "release"
OPERATORS = (ADMISSION, RELEASE)
"""Names of query 1 and query 2; in the paths of state and checkpoints, and in transaction marks."""

ROW = 0
TICK = 1
"""Kinds of rows between the queries: contributions, and ticks."""

NO_RECORD = ("malformed", "null_event_time", "null_privacy_unit", "key_too_long")
"""Reasons why an engine makes no record, by the codes 1..4 of the column `drop`."""
OUTSIDE = "outside_the_domain"
"""Reason of an intake of cells: a value is none of those that are declared."""

BEGIN = 1
END = -1
"""Kinds of images of a change feed: a row of its table begins, or ends."""
ORDERED = 2
"""Factor of the kind of an image that ends come before begins at its place of the feed: an update's, and each of Delta's."""
NO_SEQUENCE = -(1 << 62)
"""Mark of an image that does not say where it stands among those of its row."""

CLOSED = b"closed_us"
"""In the metadata of a table: the time up to which the bucket has closed the grid."""

LEFT_OUT = pa.field("left_out", pa.binary())
"""Column of released rows: figures of what the limits left out, little-endian integers, in a row that has no group; empty in every other row."""

BATCH = pa.field("batch", pa.int64())
"""Column of the micro-batch that contributions came in."""

Tables = dict[str, pa.Table]
"""The state of one bucket, by name."""


@dataclass(frozen=True)
class Clock:
    """Time that the intake knows: grid points <= closed_us are closed, event times > latest_us are dropped.

    Where `is_last` no micro-batch follows: nobody asks for the state again, and a stage may leave it as it was.
    """

    closed_us: int = NO_CLOCK
    latest_us: int = 1 << 62
    is_last: bool = False


@dataclass(frozen=True)
class Tick:
    """Time that the release knows: after the rows of arrival batches <= batch, every grid point <= closed_us closes."""

    batch: int
    closed_us: int


@dataclass(frozen=True)
class Stepped:
    """New state, the rows that go on, and what was counted on the way: plain values for the report, no record's."""

    state: Tables
    rows: pa.Table
    counted: dict[str, Any]


Now = TypeVar("Now")
Now_contra = TypeVar("Now_contra", contravariant=True)


class Stage(Protocol[Now_contra]):
    """One operator of a mechanism: frozen, picklable, pure; no budget, no secret. Its "now" is a Clock, or the ticks of the micro-batch."""

    @property
    def operator(self) -> str:
        """Name of the query: ADMISSION or RELEASE."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Tables of its state; none for a stage that remembers nothing."""

    @property
    def takes(self) -> pa.Schema:
        """Columns of the rows that come in."""

    @property
    def gives(self) -> pa.Schema:
        """Columns of the rows that go on."""

    def empty(self) -> Tables:
        """Return the state of a bucket that has seen nothing."""

    def for_bucket(self, bucket: int, buckets: int) -> Self:
        """Return the stage with what it knows beforehand of one bucket only."""

    def step(self, state: Tables, rows: pa.Table, timing: Now_contra, noise_key: bytes) -> Stepped:
        """Run the stage over the rows of a micro-batch. Pure: the same arguments give the same result, in any order of rows.

        Args:
            state: of the bucket.
            rows: columns `takes`, any order; no NULL.
            timing: what is known of time.
            noise_key: 32 bytes, the run's; for the intake, which draws no noise, those of `dpsql.udfs.noise.randomness.intake_key`.
        """


class Intake:
    """Common part of intakes: they know nothing of a bucket beforehand, and those without tables remember nothing.

    `arguments` is how many argument columns a record has, `integers` which numbers besides. Where `is_numbered`, columns of ids may be
    numbered, and units may be cut into parts that the stage steps over one after the other, if nothing follows.
    """

    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, StateTable]] = {}
    integers: ClassVar[tuple[str, ...]] = ("user", "ts", "key")
    is_numbered: ClassVar[bool] = False
    arguments: int

    @property
    def takes(self) -> pa.Schema:
        """Columns of records (docs/architecture.md)."""
        values = [(f"a{i}", pa.float64()) for i in range(self.arguments)]
        return pa.schema(
            [("drop", pa.int8()), *int_fields(self.integers), ("key_bytes", pa.binary()), *values]
        )

    def empty(self) -> Tables:
        """Return the state in which no unit has used anything."""
        return {}

    def for_bucket(self, bucket: int, buckets: int) -> Self:
        """Return the stage itself, which knows nothing of one bucket."""
        return self


class Release:
    """Common part of releases: of the plan's numbers a bucket has its part."""

    operator: ClassVar[str] = RELEASE
    parameters: Any

    @property
    def gives(self) -> pa.Schema:
        """Columns of released rows."""
        return cast(pa.Schema, self.parameters.gives)

    def for_bucket(self, bucket: int, buckets: int) -> Self:
        """Return the stage with what is listed of one bucket only."""
        return replace(self, parameters=self.parameters.for_bucket(bucket, buckets))  # type: ignore[type-var]


def counted_drops(drops: Mapping[str, int]) -> dict[str, Any]:
    """Return what an intake counted: how many records were dropped, by reason."""
    return {"drops": {reason: n for reason, n in drops.items() if n}}


class State:
    """The tables of one bucket as fields of a frozen value; None: it does without."""

    def tables(self) -> Tables:
        """Return the tables by name, as they are stored."""
        return {name: table for name, table in vars(self).items() if table is not None}

    @property
    def closed_us(self) -> int:
        """The time up to which the grid is closed."""
        return closed_us(self.tables())


Replayed = TypeVar("Replayed", bound=State)


@dataclass(frozen=True)
class Released(Generic[Replayed]):
    """New state and released rows."""

    state: Replayed
    rows: pa.Table

    def stepped(self) -> Stepped:
        """Return what a stage gives back; counted: `closed_us`, up to when the grid is closed now."""
        return Stepped(self.state.tables(), self.rows, {"closed_us": self.state.closed_us})


def replay(
    state: Replayed,
    rows: pa.Table,
    ticks: Sequence[Tick],
    add: Callable[[Replayed, pa.Table], Replayed],
    close: Callable[[Replayed, int], tuple[Replayed, list[pa.Table]]],
    gives: pa.Schema,
) -> Released[Replayed]:
    """Add rows and close what ticks close, in order of arrival batch.

    Args:
        state: of the bucket.
        rows: contributions with their arrival `batch`; any order.
        ticks: of this micro-batch; any order.
        add: puts rows to a state.
        close: closes a state up to a time that it has not closed, and releases.
        gives: columns of released rows.
    """
    released_rows = [gives.empty_table()]
    batch = rows["batch"].to_numpy()
    is_added = np.zeros(rows.num_rows, bool)
    for tick in sorted(ticks, key=lambda t: (t.batch, t.closed_us)):
        is_due = ~is_added & (batch <= tick.batch)
        state = add(state, rows.filter(is_due))
        is_added |= is_due
        if tick.closed_us > state.closed_us:
            state, released = close(state, tick.closed_us)
            released_rows += released
    return Released(
        add(state, rows.filter(~is_added)), pa.concat_tables(released_rows).combine_chunks()
    )


class StateStore(Protocol):
    """Where versions of state are: files in a lake (`BucketFiles`), or memory."""

    @property
    def buckets(self) -> int:
        """Number of buckets of the operator."""

    def load(self, bucket: int, sequence: int) -> Tables:
        """Return the tables of one version."""

    def store(self, bucket: int, sequence: int, tables: Tables) -> tuple[int, dict[str, str]]:
        """Store one version; returns its bytes, and the digest of each table's file."""


@dataclass(frozen=True)
class StateFile:
    """Report of a stage about one bucket in one micro-batch; `bytes` is 0 when nothing changed and nothing was written."""

    bucket: int
    sequence: int
    bytes: int
    counted: dict[str, Any]

    def counting(self, **more: Any) -> StateFile:
        """Return the report with more counted."""
        return replace(self, counted={**self.counted, **more})


def run_bucket(
    stage: Stage[Now],
    store: StateStore,
    bucket: int,
    sequence: int,
    rows: pa.Table,
    timing: Now,
    noise_key: bytes = b"",
) -> tuple[StateFile, pa.Table]:
    """Load, check, step, compare, store, report.

    Args:
        stage: what to do.
        store: where the state is.
        bucket: whose state it is.
        sequence: version of its state; 0: none yet.
        rows, timing, noise_key: for the step.

    Returns:
        The report, with the version that is newest now, and the rows that go on.

    Raises:
        ValueError: the state is not what a step of this stage left.
    """
    old_state = store.load(bucket, sequence) if sequence else stage.empty()
    if sequence:
        check_state(stage, old_state)
    stepped = stage.for_bucket(bucket, store.buckets).step(old_state, rows, timing, noise_key)
    size = 0
    digests = dict[str, str]()
    if not _same(old_state, stepped.state):
        sequence += 1
        size, digests = store.store(bucket, sequence, stepped.state)
    return StateFile(bucket, sequence, size, {**stepped.counted, "sha256": digests}), stepped.rows


def check_state(stage: Stage[Any], state: Tables) -> None:
    """Refuse state that a step cannot have left: in an unsorted table it would not find what is there, and make it anew, with the same noise.

    Raises:
        ValueError: says which table.
    """
    empty = stage.empty()
    if tuple(state) != tuple(empty):
        raise ValueError(f"state of {stage.operator} is made of {tuple(empty)}, not {tuple(state)}")
    for name, layout in stage.tables.items():
        table = state[name]
        if (
            table.column_names != empty[name].column_names
            or table.schema.types != empty[name].schema.types
        ):
            raise ValueError(f"the table {name!r} of the state has other columns")
        if any(column.null_count for column in table.columns):
            raise ValueError(f"the table {name!r} of the state has a NULL")
        sort_columns = read_columns(table, layout.sorted_by)
        if layout.order != "any" and not is_sorted(
            sort_columns, distinct=layout.order == "distinct"
        ):
            raise ValueError(f"the table {name!r} of the state is not sorted")


def closed_us(state: Tables) -> int:
    """Return the time up to which a bucket has closed the grid; NO_CLOCK if it has not."""
    return max(
        (int((table.schema.metadata or {}).get(CLOSED, NO_CLOCK)) for table in state.values()),
        default=NO_CLOCK,
    )


def _same(a: Tables, b: Tables) -> bool:
    # Not by `check_metadata`: Parquet gives the elements of lists another name.
    return all(
        table.equals(b[name]) and (table.schema.metadata or {}) == (b[name].schema.metadata or {})
        for name, table in a.items()
    )
