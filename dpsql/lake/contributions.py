"""The private table `contributions`: what query 1 admitted, and the ticks; the only way from users to keys.

Rows come in one commit per micro-batch of query 1, ticks in a commit of their own after the rows they cover. It is partitioned by `era`
(`dpsql.schedule`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import check_files
from dpsql.lake.marks import closed_mark, forgotten_mark, rows_mark, tick_mark, ticked_mark
from dpsql.schedule import ERA, Schedule
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.release_plan import ReleasePlan
from dpsql.udfs.stage import ADMISSION, TICK, StateFile, Tick
from dpsql.udfs.task_files import ContributionFiles, ContributionRows

TICK_ERA = NO_CLOCK
"""Era of all ticks: no window is there, so deleting old eras never deletes a tick."""
WRITTEN = "dpsql.written"
"""Entry of a commit of rows, as JSON: the micro-batch, and for each bucket of keys its number and that of its rows."""


@dataclass(frozen=True)
class Contributions:
    """The table of one run.

    Args:
        path: the Delta table.
        run_id: of the run.
        schedule: of its triggers.
        rows: columns of contributions as the intake makes them; in ticks the first one has the latest accepted event time.
        generation: of query 1's state.
        key_buckets: how many buckets query 2 has; every tick is written once for each.
        void: micro-batches (first, last) whose rows do not count: a restored query 1 has read them again.
        relabelled: some rows and ticks carry buckets of another number of buckets.
    """

    path: Place
    run_id: str
    schedule: Schedule
    rows: pa.Schema
    generation: int
    key_buckets: int
    void: tuple[tuple[int, int], ...] = ()
    relabelled: bool = False

    @property
    def schema(self) -> pa.Schema:
        """All columns, in order."""
        first_columns = [
            ("era", pa.int64()),
            ("kind", pa.int32()),
            ("bucket", pa.int32()),
            ("batch", pa.int64()),
        ]
        return pa.schema([*first_columns, *self.rows, ("closed_us", pa.int64())])

    def create(self) -> None:
        """Make the table unless it is there."""
        delta_tables.create(self.path, Schema.from_arrow(self.schema), ["era"])

    @property
    def newest_batch(self) -> int | None:
        """The newest micro-batch of this generation of query 1 whose rows are here; None before the first."""
        return delta_tables.mark(self.path, self._rows)

    @property
    def version(self) -> int:
        """The newest version of the table."""
        return delta_tables.newest(self.path).version()

    @property
    def closed_us(self) -> int:
        """The time up to which ticks have closed the grid; NO_CLOCK before the first."""
        closed = delta_tables.mark(self.path, self._closed)
        return NO_CLOCK if closed is None else closed

    @property
    def newest_tick(self) -> int:
        """Number of the newest catch-up that has ticked; 0 if none has."""
        return delta_tables.mark(self.path, tick_mark(self.run_id)) or 0

    @property
    def files(self) -> ContributionFiles:
        """The facts that workers of query 1 need to write rows."""
        eras = self.schedule.eras
        return ContributionFiles(
            str(self.path), self.schema.remove(0), eras.column, eras.first, ERA * eras.step
        )

    def append(
        self, files: Sequence[Mapping[str, Any]], batch: int, bucket_rows: Sequence[Sequence[int]]
    ) -> None:
        """Add the rows of a micro-batch, in files that workers have written; adding them again changes nothing.

        Args:
            files: as `delta_tables.append_files` takes them.
            batch: of query 1.
            bucket_rows: each bucket of keys with its number of rows, as counted before they were written.
        """
        info = written_info(batch, bucket_rows)
        delta_tables.append_files(self.path, files, {self._rows: batch}, info)

    def plan(self, after_version: int, upto: int, max_files: int | None = None) -> ReleasePlan:
        """Return what query 2 reads in the commits after a version and up to another.

        Args:
            after_version, upto: versions of the table.
            max_files: the plan ends before the commit with which it would have more files, but has one commit at least; None: it has all.

        Raises:
            FileNotFoundError: a commit is gone.
        """
        files = list[str]()
        ticks = list[Tick]()
        rows_written = list[tuple[int, int, int]]()
        last = after_version
        for version in range(after_version + 1, upto + 1):
            commit = delta_tables.commit_of(self.path, version)
            rows = [name for name in commit.files if not name.startswith(f"era={TICK_ERA}/")]
            if max_files is not None and files and len(files) + len(rows) > max_files:
                break
            files += rows
            if rows:
                entry = json.loads(commit.info[WRITTEN])
                rows_written += [
                    (entry["batch"], bucket, many) for bucket, many in entry["buckets"]
                ]
            if self._closed in commit.marks:
                ticks.append(Tick(commit.marks[self._ticked] - 1, commit.marks[self._closed]))
            last = version
        return ReleasePlan(after_version, last, tuple(files), tuple(ticks), tuple(rows_written))

    def check_read(self, plan: ReleasePlan, rows_read: Iterable[tuple[int, int, int]]) -> None:
        """Refuse to go on where query 2 has not read the rows that query 1 has written, each once.

        Args:
            plan: what was to be read.
            rows_read: how many rows of which micro-batch of query 1 each bucket of keys has read, as (batch, bucket, rows).

        Raises:
            LakeError: says of which micro-batch.
        """
        differences = Counter[tuple[int, int]]()
        for sign, entries in ((1, plan.rows_written), (-1, rows_read)):
            for batch, bucket, rows in entries:
                if not any(first <= batch <= last for first, last in self.void):
                    # Of rows in buckets of another number only the sum over all buckets is known
                    differences[batch, 0 if self.relabelled else bucket] += sign * rows
        wrong = sorted({batch for (batch, _), rows in differences.items() if rows})
        if wrong:
            raise LakeError(
                f"{self.path}: query 2 has not read the rows of micro-batch {wrong[0]} of query 1 as they were written, each once, so nothing is "
                "published. This is a fault of dpsql: keep the lake and report it"
            )

    def check(self, plan: ReleasePlan) -> None:
        """Refuse a damaged file among those of the commits of a plan: those with ticks too, which `verify` reads.

        Raises:
            FileNotFoundError, DamagedState: a file is gone or damaged.
        """
        check_files(self.path, delta_tables.added_files(self.path, plan.after + 1, plan.upto))

    def rows_for(self, takes: pa.Schema) -> ContributionRows:
        """Return what the workers of query 2 need to know to read rows, in these columns."""
        return ContributionRows(str(self.path), takes, self.key_buckets, self.void, self.relabelled)

    def tick(self, number: int, batch: int, closed_us: int, latest_us: int) -> bool:
        """Close the grid up to a time for all rows of micro-batches <= batch, once per catch-up.

        Returns:
            False if no row and no grid point lies between the last tick and this one: then nothing is written and nothing is due.
        """
        if self.newest_tick < number:
            ticked = delta_tables.mark(self.path, self._ticked)
            newest = newest_rows(self.path, self.run_id, self.generation)
            rows = newest is not None and (ticked is None or newest >= ticked)
            # Rows alone are reason enough: ticks also tell which micro-batches were read under which clock.
            if not (self.schedule.crossed(self.closed_us, closed_us) or rows):
                return False
            self._write_ticks(
                batch,
                closed_us,
                latest_us,
                {tick_mark(self.run_id): number, self._closed: closed_us},
            )
        return True

    def tick_by_clock(self, batch: int, closed_us: int, latest_us: int) -> int:
        """Tick in a live run, where time is what keeps ticks apart: one that is not later than the last changes nothing.

        Returns:
            The table's version.
        """
        self._write_ticks(batch, closed_us, latest_us, {self._closed: closed_us})
        return delta_tables.newest(self.path).version()

    def forget(self, before_us: int) -> int:
        """Delete the rows of all eras that were over at a time; the table is left without their files.

        Returns:
            How many eras went.
        """
        table = DeltaTable(str(self.path))
        last = self.schedule.eras.newest_expired(before_us)
        old = {int(entry["era"]) for entry in table.partitions()} - {TICK_ERA}
        old = {era for era in old if era <= last}
        if old:
            # A condition on the partition alone: whole files are removed and none is written anew, which query 2 could not bear.
            delta_tables.delete(
                self.path,
                f"era > {TICK_ERA} AND era <= {last}",
                {forgotten_mark(self.run_id): last},
            )
            # In full: files that a failed task left behind hold records as well. No micro-batch is at work here.
            delta_tables.vacuum(self.path, 0)
        return len(old)

    def clear_away(self) -> None:
        """Remove files that no commit has named: a failed task left them, and they hold records. Nobody may be at work, query 2 has read all."""
        delta_tables.vacuum(self.path, 0)

    def _write_ticks(
        self, batch: int, closed_us: int, latest_us: int, marks: dict[str, int]
    ) -> None:
        neutral = {field.name: b"" if field.type == pa.binary() else 0 for field in self.schema}
        tick = {
            "era": TICK_ERA,
            "kind": TICK,
            "batch": batch,
            "closed_us": closed_us,
            self.rows.names[0]: latest_us,
        }
        ticks = [neutral | tick | {"bucket": bucket} for bucket in range(self.key_buckets)]
        file = self.files.write_era(
            pa.Table.from_pylist(ticks, self.schema).drop_columns(["era"]), TICK_ERA, 0
        )
        delta_tables.append_files(self.path, [file], {**marks, self._ticked: batch + 1})

    @property
    def _rows(self) -> str:
        return rows_mark(self.run_id, ADMISSION, self.generation)

    @property
    def _ticked(self) -> str:
        return ticked_mark(self.run_id)

    @property
    def _closed(self) -> str:
        return closed_mark(self.run_id)


def sum_by_bucket(files: Sequence[StateFile]) -> list[tuple[int, int]]:
    """Return each bucket of keys with the number of rows that the tasks of a micro-batch have written for it."""
    rows = Counter[int]()
    for file in files:
        rows.update(dict(file.counted["rows"]))
    return sorted(rows.items())


def written_info(batch: int, bucket_rows: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return what a commit of rows says of itself; arguments as of `Contributions.append`."""
    entry = {"batch": batch, "buckets": [list(pair) for pair in bucket_rows]}
    return {WRITTEN: json.dumps(entry, separators=(",", ":"))}


def check_ticks(path: Place) -> None:
    """Refuse a damaged file of ticks; every tick, of all times, is in one partition.

    Raises:
        FileNotFoundError, DamagedState: a file is gone or damaged.
    """
    names = [name for name in DeltaTable(str(path)).file_uris() if f"/era={TICK_ERA}/" in name]
    check_files(path, [f"era={TICK_ERA}/{name.rpartition('/')[2]}" for name in names])


def latest_column(path: Place) -> str:
    """Return where ticks have the latest accepted event time."""
    own = ("era", "kind", "bucket", "batch", "closed_us")
    return str(
        next(field.name for field in DeltaTable(str(path)).schema().fields if field.name not in own)
    )


def newest_rows(path: Place, run_id: str, generation: int) -> int | None:
    """Return the newest micro-batch of query 1, of any generation up to this one, whose rows are in the table."""
    marks = (
        delta_tables.mark(path, rows_mark(run_id, ADMISSION, number))
        for number in range(1, generation + 1)
    )
    return max((mark for mark in marks if mark is not None), default=None)
