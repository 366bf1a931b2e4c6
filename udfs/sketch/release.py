"""The release of sketches with its state, as a stage: every window that there can be has its noisy cells at every trigger, records or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Float, Int, int_fields, read_columns
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.sketch import reading
from dpsql.udfs.sketch.hashing import DIGEST
from dpsql.udfs.sketch.partial import KEY, SCHEMA, add_cells
from dpsql.udfs.sketch.reading import Read, ReadParameters, pack, read_release
from dpsql.udfs.stage import BATCH, CLOSED, RELEASE, Release, State, Stepped, Tables, Tick, replay
from dpsql.udfs.state_table import StateTable

# What a bucket remembers of the rows of sketches that it has: cells of open windows, whose
# number depends on no record.

TABLES = {
    "cells": StateTable(("window", "row"), "window"),
    "pending": StateTable(("window", "trigger", "row"), "window", order="any"),
    "keys": StateTable(("window", "trigger", *DIGEST), "window", order="any"),
}
"""cells: one row per open window and row of a sketch: `window, row, v` (sums of closed triggers), `path` (noise). pending:
partial sketches of triggers that have not closed. keys: candidates of such triggers."""

PENDING = pa.schema([*int_fields(("window", "trigger", "form", "row")), ("payload", pa.binary())])
KEYS = pa.schema([*int_fields(("window", "trigger", *DIGEST)), ("key_bytes", pa.binary())])


@dataclass(frozen=True)
class SketchState(State):
    """State tables of one bucket (`TABLES`)."""

    cells: pa.Table
    pending: pa.Table
    keys: pa.Table


@dataclass(frozen=True)
class SketchCells:
    """The rows of one window as arrays that may be changed: (rows, width) integers, and (rows, width, numbers) of noise."""

    row: Int
    v: Int
    path: npt.NDArray[np.float64]


def new_cells(rows: Int, width: int, numbers: int) -> SketchCells:
    """Return the cells of a window that begins."""
    return SketchCells(
        rows, np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width, numbers))
    )


def empty_state(width: int, numbers: int) -> SketchState:
    """Return the state in which no window is open, and nothing is closed."""
    return SketchState(
        cells_table({}, width, numbers, NO_CLOCK), PENDING.empty_table(), KEYS.empty_table()
    )


def cells_table(
    windows: dict[int, SketchCells], width: int, numbers: int, closed_us: int
) -> pa.Table:
    """Return all open windows, in order."""
    no_cells = new_cells(np.zeros(0, np.int64), width, numbers)
    parts = [no_cells, *(windows[window] for window in sorted(windows))]
    columns: dict[str, Any] = {
        "window": np.repeat(
            np.array(sorted(windows), np.int64),
            [len(windows[window].row) for window in sorted(windows)],
        ),
        "row": np.concatenate([cells.row for cells in parts]),
    }
    for name, size in (("v", width), ("path", width * numbers)):
        flat = np.concatenate([getattr(cells, name).reshape(-1) for cells in parts])
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), size)
    return pa.table(columns).replace_schema_metadata({CLOSED: str(closed_us)})


def windows_of(cells: pa.Table, width: int, numbers: int) -> dict[int, SketchCells]:
    """Return the windows of a table; copies."""
    window, row = read_columns(cells, ("window", "row"))
    lists = {}
    for name, size in (("v", width), ("path", width * numbers)):
        lists[name] = np.array(cells[name].combine_chunks().flatten().to_numpy()).reshape(
            len(row), size
        )
    windows = {}
    for start in np.unique(window).tolist():
        is_in_window = window == start
        paths = lists["path"][is_in_window].reshape(-1, width, numbers)
        windows[start] = SketchCells(row[is_in_window].copy(), lists["v"][is_in_window], paths)
    return windows


def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return rows of the intake as (pending, keys)."""
    is_key = rows["form"].to_numpy() == KEY
    cells = rows.filter(~is_key)
    keys = rows.filter(is_key)
    return cells.select(PENDING.names), keys.select([*KEYS.names[:-1], "payload"]).rename_columns(
        KEYS.names
    )


# The release: every window that there can be has its noisy cells published at every trigger,
# records or not.

# Cells are integers; noise is drawn once per cell and trigger, at the cell's owner, rounded to
# the grid and then added. A published cell is a
# function of (window, row, column, trigger, exact sum): not of buckets, cuts or order.

CELLS = 0
"""Kind of a released row that has cells; `partial.KEY` is the other."""


@dataclass(frozen=True)
class SketchReleaseParameters:
    """Concrete numbers; no secret.

    Args:
        grid: windows and triggers.
        first_window_us: the first window that there is; every later one is published.
        depth, width: of a sketch.
        noise: of each sketch, by trigger.
        bucket, buckets: whole windows are here, those whose start is `bucket` modulo `buckets`.
    """

    grid: Grid
    first_window_us: int
    depth: int
    width: int
    noise: tuple[PerturbationParameters, ...]
    bucket: int = 0
    buckets: int = 1

    @property
    def rows(self) -> Int:
        """Numbers of the rows of all sketches: j * depth + i is row i of sketch j."""
        return np.arange(len(self.noise) * self.depth)

    def for_bucket(self, bucket: int, buckets: int) -> SketchReleaseParameters:
        """Return the parameters with the windows of one bucket."""
        return replace(self, bucket=bucket, buckets=buckets)

    @property
    def numbers(self) -> int:
        """Numbers of noise state per cell."""
        return max(each.counter.width for each in self.noise)


@dataclass(frozen=True)
class CellRelease(Release):
    """Partial sketches, candidate keys and ticks to noisy cells, and to keys whose first trigger has closed.

    Released: `kind, window, trigger, row`, and its cells in `payload` (int64), or a key's digest and bytes.
    """

    parameters: SketchReleaseParameters
    tables: ClassVar[Mapping[str, StateTable]] = TABLES

    @property
    def takes(self) -> pa.Schema:
        """Columns of the intake, with the micro-batch that they came in."""
        return SCHEMA.append(BATCH)

    @property
    def gives(self) -> pa.Schema:
        """Columns of noisy cells and candidate keys."""
        ints = ("window", "trigger", "row", *DIGEST)
        return pa.schema([("kind", pa.int8()), *int_fields(ints), ("payload", pa.binary())])

    def empty(self) -> Tables:
        """Return the state in which nothing is closed."""
        return empty_state(self.parameters.width, self.parameters.numbers).tables()

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Add rows and close what the ticks close, in order of arrival batch."""
        return replay(
            SketchState(**state),
            rows,
            ticks,
            _add_rows,
            partial(self._closed, noise_key=noise_key),
            self.gives,
        ).stepped()

    def _closed(
        self, state: SketchState, closed_us: int, noise_key: bytes
    ) -> tuple[SketchState, list[pa.Table]]:
        p = self.parameters
        keys = state.keys
        cells, pending, published = _close(
            state.cells, state.pending, state.closed_us, closed_us, p, noise_key
        )
        is_due = keys["trigger"].to_numpy() <= p.grid.closed_triggers(
            keys["window"].to_numpy(), closed_us
        )
        released = [self._cells(published), self._keys(keys.filter(is_due))]
        pending_keys = keys.filter(~is_due).combine_chunks()
        return SketchState(cells, pending, pending_keys), released

    def _cells(self, published: list[tuple[int, int, int, bytes]]) -> pa.Table:
        ints = np.array([row[:-1] for row in published], np.int64).reshape(-1, 3).T
        zeros = [np.zeros(len(published), np.int64)] * len(DIGEST)
        payload = pa.array([row[-1] for row in published], pa.binary())
        return pa.table(
            [np.full(len(published), CELLS, np.int8), *ints, *zeros, payload], schema=self.gives
        )

    def _keys(self, keys: pa.Table) -> pa.Table:
        kind = np.full(keys.num_rows, KEY, np.int8)
        row = np.zeros(keys.num_rows, np.int64)
        return pa.table(
            [kind, keys["window"], keys["trigger"], row, *keys.columns[2:]], schema=self.gives
        )


def _add_rows(state: SketchState, rows: pa.Table) -> SketchState:
    if not rows.num_rows:
        return state
    both = zip((state.pending, state.keys), split(rows), strict=True)
    return SketchState(state.cells, *(pa.concat_tables(tables).combine_chunks() for tables in both))


def _close(
    cells: pa.Table,
    pending: pa.Table,
    before_us: int,
    now_us: int,
    p: SketchReleaseParameters,
    noise_key: bytes,
) -> tuple[pa.Table, pa.Table, list[Any]]:
    """Close every trigger up to now_us: (cells, what stays pending, published rows)."""
    windows = windows_of(cells, p.width, p.numbers)
    grid = p.grid
    published = list[Any]()
    for start in _new_windows(before_us, now_us, p):
        windows[start] = new_cells(p.rows, p.width, p.numbers)
    window, trigger = read_columns(pending, ("window", "trigger"))
    is_due = trigger <= grid.closed_triggers(window, now_us)
    for start in sorted(windows):
        low, high = (
            int(grid.closed_triggers(np.array([start]), time)[0]) for time in (before_us, now_us)
        )
        due = pending.filter(is_due & (window == start))
        for number in range(low + 1, high + 1):
            _add(windows[start], due, number)
            published += _published(windows[start], start, number, p, noise_key)
        if high == grid.horizon:
            del windows[start]
    still_pending = pending.filter(~is_due).combine_chunks()
    return cells_table(windows, p.width, p.numbers, now_us), still_pending, published


def _new_windows(before_us: int, now_us: int, p: SketchReleaseParameters) -> list[int]:
    """Return windows of this bucket whose first trigger this tick closes."""
    starts = p.grid.windows_opening(before_us, now_us, p.first_window_us).tolist()
    return [start for start in starts if start % p.buckets == p.bucket]


def _add(cells: SketchCells, pending: pa.Table, trigger: int) -> None:
    """Add the sums of one trigger to their cells."""
    positions = np.flatnonzero(pending["trigger"].to_numpy() == trigger)
    rows = np.searchsorted(cells.row, pending["row"].to_numpy()[positions])
    forms = pending["form"].to_numpy()
    payloads = pending["payload"]
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        add_cells(cells.v[row], int(forms[position]), payloads[position].as_py())


def _published(
    cells: SketchCells, window: int, trigger: int, p: SketchReleaseParameters, noise_key: bytes
) -> list[Any]:
    """Return all cells at one trigger, each row by itself."""
    sketches = []
    for number, noise in enumerate(p.noise):
        rows = slice(number * p.depth, (number + 1) * p.depth)
        sketches.append(_noisy(cells.v[rows], cells.path[rows], window, trigger, noise, noise_key))
    return [
        (window, trigger, row, values.astype("<i8").tobytes())
        for row, values in enumerate(np.concatenate(sketches))
    ]


def _noisy(
    sums: Int, paths: Float, window: int, trigger: int, q: PerturbationParameters, noise_key: bytes
) -> Int:
    """Return one trigger of the cells of one sketch: the next step of their paths, rounded, and added to their sums."""
    numbers = q.counter.width
    cell = np.arange(sums.size)
    tag = randomness.tags(noise_key, np.full(len(cell), window, np.int64), cell)

    def draw(number: int) -> Float:
        return randomness.normals(noise_key, tag, q.mechanism, 0, trigger, number)

    path = trust(q.counter).advance(paths[:, :, :numbers].reshape(-1, numbers), draw, trigger)
    paths[:, :, :numbers] = path.reshape(*sums.shape, numbers)
    redraw = Redraw(noise_key, tag, cell, q.mechanism, 0, q.counter)
    return noisy(sums.reshape(-1), path[:, 0], trigger, q, redraw).reshape(sums.shape)


# The release as a stage: noisy cells, then what is read from them. One row per window and
# trigger, whatever was counted.

# A bucket has whole windows, so that lists need no other place where the rows of buckets meet:
# state, retries, restores and other numbers of
# buckets are those of every stage.

SKETCH = pa.schema([("cells", pa.binary()), ("hash_key", pa.binary())])
"""Columns of a released row: the cells that it publishes, row after row of all sketches; no cells where it publishes none."""


@dataclass(frozen=True)
class SketchRelease:
    """Partial sketches, candidates and ticks to lists and published cells.

    Released, once per (window, trigger): a packed list `c0, c1, ..` of each sketch (`dpsql.udfs.sketch.reading`), and SKETCH.
    """

    release: CellRelease
    reads: ReadParameters
    operator: ClassVar[str] = RELEASE
    tables: ClassVar[Mapping[str, StateTable]] = TABLES | reading.TABLES

    @property
    def takes(self) -> pa.Schema:
        """Columns of the intake, with the micro-batch that they came in."""
        return self.release.takes

    @property
    def gives(self) -> pa.Schema:
        """Columns of lists and cells."""
        lists = [pa.field(f"c{i}", pa.binary()) for i in range(len(self.reads.sketches))]
        return pa.schema(
            [
                ("window", pa.int64()),
                ("trigger", pa.int64()),
                ("key_bytes", pa.binary()),
                *lists,
                *SKETCH,
            ]
        )

    def empty(self) -> Tables:
        """Return the state in which nothing is closed or released."""
        return self.release.empty() | reading.empty_state()

    def for_bucket(self, bucket: int, buckets: int) -> SketchRelease:
        """Return the stage with the windows of one bucket."""
        return replace(self, release=self.release.for_bucket(bucket, buckets))

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Close what the ticks close, and read it."""
        released = self.release.step(
            {name: state[name] for name in self.release.tables}, rows, ticks, noise_key
        )
        public = read_release(
            {name: state[name] for name in reading.TABLES},
            released.rows,
            self.reads,
            intake_key(noise_key),
        )
        return Stepped(
            released.state | public.state, self._rows(released.rows, public), released.counted
        )

    def _rows(self, released: pa.Table, public: Read) -> pa.Table:
        is_first = (released["kind"].to_numpy() == CELLS) & (released["row"].to_numpy() == 0)
        pairs = released.filter(is_first).select(["window", "trigger"])
        pairs = pairs.sort_by([("window", "ascending"), ("trigger", "ascending")])
        lists = _by_pair(public.lists)
        cells = _by_pair(public.sketches)
        no_list = public.lists.slice(0, 0)
        no_cells = public.sketches.slice(0, 0)
        rows = []
        for pair in zip(*(column.to_pylist() for column in pairs.columns), strict=True):
            listed = lists.get(pair, no_list)
            sketch = listed["sketch"].to_numpy()
            packed = [pack(listed.filter(sketch == j)) for j in range(len(self.reads.sketches))]
            rows.append((*pair, b"", *packed, *_packed_cells(cells.get(pair, no_cells))))
        return (
            pa.table([list(column) for column in zip(*rows, strict=True)], schema=self.gives)
            if rows
            else self.gives.empty_table()
        )


def _by_pair(rows: pa.Table) -> dict[tuple[int, int], pa.Table]:
    """Return the rows of each (window, trigger), in their order."""
    window, trigger = read_columns(rows, ("window", "trigger"))
    pairs = sorted(set(zip(window.tolist(), trigger.tolist(), strict=True)))
    return {(w, t): rows.filter((window == w) & (trigger == t)) for w, t in pairs}


def _packed_cells(rows: pa.Table) -> tuple[bytes, bytes]:
    if not rows.num_rows:
        return b"", b""
    rows = rows.take(np.argsort(rows["row"].to_numpy(), kind="stable"))
    return b"".join(rows["cells"].to_pylist()), rows["hash_key"][0].as_py()
