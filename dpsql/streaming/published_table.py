"""The public table: final columns, one sorted append per tick that releases rows, and every (window, trigger) written once.

Anybody may read it, its log and its files' names and numbers included: all of that is a function of released rows and ticks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from dpsql.description import PROPERTY, Published, parse_description
from dpsql.errors import DataError, LakeError, ReleaseConflict
from dpsql.files import ObjectPath, Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.sorted_file import sorted_file
from dpsql.mechanisms.protocol import PublicColumn, Shape
from dpsql.parsed_query import ParsedQuery
from dpsql.published import words
from dpsql.published.rows import published_rows
from dpsql.streaming.released import Pair, ReleasedRows
from dpsql.udfs.stage import LEFT_OUT

KINDS = {
    "INT": T.IntegerType(),
    "BIGINT": T.LongType(),
    "DOUBLE": T.DoubleType(),
    "DOUBLES": T.ArrayType(T.DoubleType()),
}
DRIVER_ROWS = ROWS_PER_FILE = 1_000_000
"""Up to so many rows of a tick are in the driver at a time, which writes them without a job of Spark's."""


@dataclass(frozen=True)
class PublishedTable:
    """The public histogram of one run.

    Args:
        path: the Delta table.
        application: marks the appends of this run and generation (`dpsql.lake.marks.triggers_mark`).
        query: what was asked.
        shape: of the plan.
        key_types: Spark types of the key columns, in the order of `query.keys`.
        published: what the table says of itself.
        described: marks that it speaks of this run (`dpsql.lake.marks.described_mark`).
    """

    path: Place
    application: str
    query: ParsedQuery
    shape: Shape
    key_types: tuple[T.DataType, ...]
    published: Published
    described: str

    @property
    def schema(self) -> T.StructType:
        """The columns of the public table.

        Raises:
            DataError: two columns would have one name.
        """
        kinds = {key.name: kind for key, kind in zip(self.query.keys, self.key_types, strict=True)}
        windows = self.shape.schedule.windows
        fields = [
            T.StructField(name, T.TimestampType())
            for name in ("window_start", "window_end")
            if windows
        ]
        fields.append(T.StructField("trigger", T.IntegerType() if windows else T.LongType()))
        fields.append(T.StructField("trigger_time", T.TimestampType()))
        for name in self.query.columns_in_order:
            if name in kinds:
                fields.append(T.StructField(name, kinds[name]))
            else:
                fields += [
                    T.StructField(column.name, self.kind_of(column))
                    for column in self.shape.columns_of(name)
                ]
        names = [field.name.lower() for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"two columns of the histogram would be called {twice[0]!r}: give the key or the aggregate another alias"
            )
        return T.StructType(fields)

    def kind_of(self, column: PublicColumn) -> T.DataType:
        """Return the type of a column that is no key."""
        return KINDS[column.kind]

    @property
    def paths(self) -> tuple[Place, ...]:
        """All public tables of the run."""
        return (self.path,)

    def create(self) -> None:
        """Make the empty table unless it is there; one that is there says what it is now."""
        self._make(self.path, Schema.from_json(self.schema.json()), self.published)
        self.open_to_readers()

    def _make(self, path: Place, schema: Schema, published: Published) -> None:
        mark = {self.described: 1}
        delta_tables.create(
            path,
            schema,
            properties=published.properties,
            marks=mark,
            description=words.table_description(published),
            comments=dict(words.columns(published)),
        )
        table = DeltaTable(str(path))
        first = table.transaction_version(self.described) is None
        older_text = table.metadata().configuration.get(PROPERTY)
        if older_text is None or (older_description := parse_description(older_text)) is None:
            raise LakeError(
                f"{path}: an earlier dpsql made this table: run the query under another name"
            )
        table_types = [(field.name, field.type) for field in table.schema().fields]
        new_types = [(field.name, field.type) for field in schema.fields]
        if retyped := [name for name, kind in new_types if (name, kind) not in table_types]:
            raise LakeError(
                f"{path}: {', '.join(retyped)} would have another type than in the rows of an earlier run: run the query under another name"
            )
        if (
            description := published.merged_with(older_description, first)
        ) != older_description or first:
            delta_tables.set_properties(path, description.properties, mark)
            text = words.table_description(description)
            if text != table.metadata().description:
                delta_tables.describe(path, text)

    def trigger_time(self, pair: Pair) -> int:
        """Return when a trigger is due, in microseconds."""
        return self.shape.schedule.due_us(*pair)

    def triggers(self, closed_us: int) -> int:
        """Return the transaction number of a tick: grid points of triggers from 1970 up to its time."""
        return self.shape.schedule.points(closed_us)

    def check(
        self, released: ReleasedRows, pairs: Collection[Pair], closed_before_us: int, newest_us: int
    ) -> set[Pair]:
        """Return which of the triggers about to be published are published already, just so.

        Args:
            released: the rows of a micro-batch.
            pairs: every (window, trigger) in `released`.
            closed_before_us: every trigger up to here was published by an earlier micro-batch, perhaps without rows.
            newest_us: no published trigger is later than this.

        Raises:
            ReleaseConflict: one of them was published with other rows.
        """
        if all(self.trigger_time(pair) > max(newest_us, closed_before_us) for pair in pairs):
            return set()
        published_pairs = self._published(pairs) & set(pairs)
        if any(
            self.trigger_time(pair) <= closed_before_us for pair in set(pairs) - published_pairs
        ):
            raise ReleaseConflict(
                "a trigger that was published without rows would now get rows; nothing was written"
            )
        if published_pairs and not self.same(released, published_pairs):
            raise ReleaseConflict(
                f"{len(published_pairs)} published triggers would be published again with other rows: the stored input, the state or the secret is "
                "not the one they were made from; nothing was written"
            )
        return published_pairs

    def publish(
        self, released: ReleasedRows, closed_us: int, due: Mapping[Pair, int], has_all: bool
    ) -> None:
        """Append the rows that a tick releases in one commit, sorted by window, trigger and key; doing it again changes nothing.

        Args:
            released: the rows of a micro-batch.
            closed_us: time of the tick.
            due: the triggers to write, with their number of rows.
            has_all: `released` has no others.
        """
        mark = {self.application: self.triggers(closed_us)}
        if sum(due.values()) <= DRIVER_ROWS:
            table = self.public(released.table(None if has_all else due))
            if delta_tables.committed(delta_tables.newest(self.path), *next(iter(mark.items()))):
                return
            files = [sorted_file(self.path, table)] if table.num_rows else []
            self.open_to_readers(delta_tables.append_files(self.path, files, mark))
            return
        frame = self._published_form(released.frame())
        if not has_all:
            frame = frame.join(self.pair_frame(frame, due), self._pair, "left_semi")
        append_frame(frame, self.path, mark, [*self._pair, "dpsql_key"])
        self.open_to_readers()

    def public(self, rows: pa.Table) -> pa.Table:
        """Return the public form of released rows, in order."""
        types = [to_arrow_type(kind, timezone="UTC") for kind in self.key_types]
        return published_rows(
            self.query, self.shape.schedule, self.shape.columns, rows, types
        ).select(self.schema.names)

    def _published_form(self, released: DataFrame) -> DataFrame:
        """Return keys decoded to their types, times as TIMESTAMP, NaN as NULL; `dpsql_key` keeps the key's bytes for sorting."""
        query = self.query
        if self.shape.left_out:
            released = released.where(f"length({LEFT_OUT.name}) = 0")
        grid = self.shape.schedule.grid
        windows = self.shape.schedule.windows
        decoded = {
            key.name: _decoded(f"k{i}", kind)
            for i, (key, kind) in enumerate(zip(query.keys, self.key_types, strict=True))
        }
        columns = (
            [
                "timestamp_micros(window) AS window_start",
                f"timestamp_micros(window + {grid.window_us}L) AS window_end",
            ]
            if windows
            else []
        )
        columns.append("cast(trigger AS INT) AS trigger" if windows else "trigger")
        columns.append(f"timestamp_micros(window + trigger * {grid.trigger_us}L) AS trigger_time")
        for name in query.columns_in_order:
            if name in decoded:
                columns.append(f"{decoded[name]} AS `{name}`")
            else:
                columns += [
                    f"{_value(column)} AS `{column.name}`" for column in self.shape.columns_of(name)
                ]
        return released.selectExpr(*columns, "key_bytes AS dpsql_key")

    def same(self, released: ReleasedRows, pairs: Collection[Pair]) -> bool:
        """Tell whether the published rows of these triggers are exactly those that are released."""
        rows = self._published_form(released.frame())
        pair_frame = self.pair_frame(rows, pairs)
        names = self.schema.names
        published = rows.sparkSession.read.format("delta").load(str(self.path))
        # Bounds as literals: by file statistics Delta reads a few windows instead of years.
        first, last = (
            f"timestamp_micros({limit(map(self.trigger_time, pairs))}L)" for limit in (min, max)
        )
        published = published.where(f"trigger_time BETWEEN {first} AND {last}")
        new = rows.join(pair_frame, self._pair, "left_semi").select(*names)
        old = published.join(pair_frame, self._pair, "left_semi").select(*names)
        return new.exceptAll(old).isEmpty() and old.exceptAll(new).isEmpty()

    def newest_trigger_us(self) -> int:
        """Return an upper bound of all published trigger times, from file statistics: of all files, so it is for a start."""
        files = pa.table(DeltaTable(str(self.path)).get_add_actions(flatten=True))
        if not files.num_rows:
            return -(1 << 62)
        newest = files["max.trigger_time"] if "max.trigger_time" in files.column_names else None
        if newest is None or newest.null_count:
            return 1 << 62
        # Statistics are cut to milliseconds.
        return int(pc.max(newest.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py()) + 1000

    def _published(self, pairs: Iterable[Pair]) -> set[Pair]:
        times = pa.array(sorted(set(map(self.trigger_time, pairs))), pa.timestamp("us", "UTC"))
        matching_rows = (
            read_rows(
                self.path, [*self._pair, "trigger_time"], pc.field("trigger_time").isin(times)
            )
            .group_by(self._pair)
            .aggregate([])
        )
        triggers = matching_rows["trigger"].to_pylist()
        if not self.shape.schedule.windows:
            return {(self.shape.schedule.grid.offset_us, trigger) for trigger in triggers}
        return set(
            zip(matching_rows["window_start"].cast(pa.int64()).to_pylist(), triggers, strict=True)
        )

    @property
    def _pair(self) -> list[str]:
        """The columns that tell a trigger."""
        return ["window_start", "trigger"] if self.shape.schedule.windows else ["trigger"]

    def pair_frame(self, rows: DataFrame, pairs: Iterable[Pair]) -> DataFrame:
        """Return the triggers, as the columns of the public table tell them."""
        frame = rows.sparkSession.createDataFrame(sorted(pairs), "window BIGINT, trigger BIGINT")
        return F.broadcast(
            frame.selectExpr("timestamp_micros(window) AS window_start", "trigger").select(
                *self._pair
            )
        )

    def open_to_readers(self, paths: Iterable[str] | None = None) -> None:
        """Let everybody read these files of the table, or all, whatever the umask of this process and of the JVM. (Who may read a bucket, its
        policy says.)"""
        open_files(self.path, paths)


def open_files(table: Place, paths: Iterable[str] | None = None) -> None:
    """Let everybody read these files of a table, or all."""
    if isinstance(table, ObjectPath):
        return
    for path, mode_bits in (
        _everything(table) if paths is None else ((path, 0o644) for path in paths)
    ):
        mode = os.stat(path).st_mode & 0o777
        if mode & mode_bits != mode_bits:
            os.chmod(path, mode | mode_bits)


def append_frame(
    frame: DataFrame, path: Place, mark: Mapping[str, int], order: Sequence[str]
) -> None:
    """Append a frame of many rows under a transaction mark, in one commit; doing it again changes nothing.

    Who sees the table learns nothing but the rows: files are in their order and as many as their number says, and so is the rest of the
    commit. (A sort by Spark makes files by a sample.)

    Args:
        frame: columns of the table, and perhaps others to sort by.
        path, mark: the table and the mark.
        order: columns to sort by.
    """
    names = [field.name for field in DeltaTable(str(path)).schema().fields]
    application, version = next(iter(mark.items()))
    version_before = DeltaTable(str(path)).version()
    writer: DataFrameWriter = (
        frame.coalesce(1)
        .sortWithinPartitions(*order)
        .select(*names)
        .write.format("delta")
        .mode("append")
    )
    writer.option("maxRecordsPerFile", ROWS_PER_FILE).option("txnAppId", application).option(
        "txnVersion", version
    ).save(str(path))
    delta_tables.settle(path, version_before)


def _everything(table: Path) -> Iterator[tuple[str, int]]:
    """Yield all folders and files of a table, with what everybody may do: a look at each, and there is one per trigger."""
    for folder, _, names in os.walk(table):
        yield folder, 0o755
        yield from ((os.path.join(folder, name), 0o644) for name in names)


def _value(column: PublicColumn) -> str:
    """Return Spark SQL for a released value; a DOUBLE, and an array of them, is NULL where the step says NaN (an average of too few)."""
    if column.kind == "DOUBLES":
        first = column.sources[0]  # a NaN is NULL once Spark has had it from pandas
        return f"CASE WHEN {first} IS NOT NULL AND NOT isnan({first}) THEN array({', '.join(column.sources)}) END"
    name = column.source
    return (
        f"CASE WHEN NOT isnan({name}) THEN {name} END"
        if column.kind == "DOUBLE"
        else f"cast({name} AS {column.kind})"
    )


def _decoded(column: str, kind: T.DataType) -> str:
    """Return Spark SQL from the value bytes of a key column to its type."""
    text = f"cast({column} AS STRING)"
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StringType):
        return text
    if isinstance(kind, T.DateType):
        return f"date_from_unix_date(cast({text} AS INT))"
    if isinstance(kind, T.TimestampType):
        return f"timestamp_micros(cast({text} AS BIGINT))"
    return f"cast({text} AS {kind.simpleString()})"
