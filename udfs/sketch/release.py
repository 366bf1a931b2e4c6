"""The release: every window that there can be has its noisy cells published at every trigger, records or not.

Cells are integers; noise is drawn once per cell and trigger, at the cell's owner, rounded to the grid and then added. A published cell is a
function of (window, row, column, trigger, exact sum): not of buckets, cuts or order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.grid import Grid
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy
from dpsql.udfs.sketch.hashing import DIGEST
from dpsql.udfs.sketch.partial import KEY, SCHEMA, add_cells
from dpsql.udfs.sketch.state import (
    TABLES,
    Cells,
    SketchState,
    cells_table,
    empty_state,
    new_cells,
    opened,
    split,
)
from dpsql.udfs.stage import Release, Stepped, Tables, Tick, replay
from dpsql.udfs.state_table import Table

CELLS = 0
"""Kind of a released row that has cells; `partial.KEY` is the other."""


@dataclass(frozen=True)
class ReleaseParameters:
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
        """Of all sketches: number j * depth + i is row i of sketch j."""
        return np.arange(len(self.noise) * self.depth)

    def for_bucket(self, bucket: int, buckets: int) -> ReleaseParameters:
        """The same, with the windows of one bucket."""
        return replace(self, bucket=bucket, buckets=buckets)

    @property
    def numbers(self) -> int:
        """Of noise state per cell."""
        return max(each.counter.width for each in self.noise)


@dataclass(frozen=True)
class ReleaseStage(Release):
    """Partial sketches, candidate keys and ticks to noisy cells, and to keys whose first trigger has closed.

    Released: `kind, window, trigger, row`, and its cells in `payload` (int64), or a key's digest and bytes.
    """

    parameters: ReleaseParameters
    tables: ClassVar[Mapping[str, Table]] = TABLES

    @property
    def takes(self) -> pa.Schema:
        """What the intake gives, with the micro-batch that it came in."""
        return SCHEMA.append(pa.field("batch", pa.int64()))

    @property
    def gives(self) -> pa.Schema:
        """Noisy cells and candidate keys."""
        ints = ("window", "trigger", "row", *DIGEST)
        return pa.schema(
            [("kind", pa.int8()), *((name, pa.int64()) for name in ints), ("payload", pa.binary())]
        )

    def empty(self) -> Tables:
        """Nothing is closed."""
        return empty_state(self.parameters.width, self.parameters.numbers).tables()

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """Add rows and close what the ticks close, in order of arrival batch."""
        return replay(
            SketchState(**state),
            rows,
            now,
            _added,
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
        is_due = keys.column("trigger").to_numpy() <= p.grid.closed_triggers(
            keys.column("window").to_numpy(), closed_us
        )
        out = [self._cells(published), self._keys(keys.filter(pa.array(is_due)))]
        return SketchState(cells, pending, keys.filter(pa.array(~is_due)).combine_chunks()), out

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
            [kind, keys.column("window"), keys.column("trigger"), row, *keys.columns[2:]],
            schema=self.gives,
        )


def _added(state: SketchState, rows: pa.Table) -> SketchState:
    if not rows.num_rows:
        return state
    both = zip((state.pending, state.keys), split(rows), strict=True)
    return SketchState(state.cells, *(pa.concat_tables(tables).combine_chunks() for tables in both))


def _close(
    cells: pa.Table,
    pending: pa.Table,
    before_us: int,
    now_us: int,
    p: ReleaseParameters,
    noise_key: bytes,
) -> tuple[pa.Table, pa.Table, list[Any]]:
    """Close every trigger up to now_us: (cells, what stays pending, published rows)."""
    windows = opened(cells, p.width, p.numbers)
    grid = p.grid
    published = list[Any]()
    for start in _begun(before_us, now_us, p):
        windows[start] = new_cells(p.rows, p.width, p.numbers)
    window = pending.column("window").to_numpy()
    trigger = pending.column("trigger").to_numpy()
    is_due = trigger <= grid.closed_triggers(window, now_us)
    for start in sorted(windows):
        before, now = (
            int(grid.closed_triggers(np.array([start]), time)[0]) for time in (before_us, now_us)
        )
        mine = pending.filter(pa.array(is_due & (window == start)))
        for number in range(before + 1, now + 1):
            _add(windows[start], mine, number)
            published += _published(windows[start], start, number, p, noise_key)
        if now == grid.horizon:
            del windows[start]
    rest = pending.filter(pa.array(~is_due)).combine_chunks()
    return cells_table(windows, p.width, p.numbers, now_us), rest, published


def _begun(before_us: int, now_us: int, p: ReleaseParameters) -> list[int]:
    """Windows of this bucket whose first trigger this tick closes."""
    grid = p.grid
    last, opened_at = (
        int(grid.latest_window(np.array([time - grid.trigger_us]))[0])
        for time in (now_us, before_us)
    )
    begun = range(max(p.first_window_us, opened_at + grid.slide_us), last + 1, grid.slide_us)
    return [start for start in begun if start % p.buckets == p.bucket]


def _add(cells: Cells, pending: pa.Table, trigger: int) -> None:
    """The sums of one trigger enter their cells."""
    at = np.flatnonzero(pending.column("trigger").to_numpy() == trigger)
    place = np.searchsorted(cells.row, pending.column("row").to_numpy()[at])
    forms = pending.column("form").to_numpy()
    payloads = pending.column("payload")
    for each, row in zip(at.tolist(), place.tolist(), strict=True):
        add_cells(cells.v[row], int(forms[each]), payloads[each].as_py())


def _published(
    cells: Cells, window: int, trigger: int, p: ReleaseParameters, noise_key: bytes
) -> list[Any]:
    """All cells at one trigger, each row by itself."""
    shown = []
    for number, noise in enumerate(p.noise):
        mine = slice(number * p.depth, (number + 1) * p.depth)
        shown.append(_noisy(cells.v[mine], cells.path[mine], window, trigger, noise, noise_key))
    return [
        (window, trigger, row, values.astype("<i8").tobytes())
        for row, values in enumerate(np.concatenate(shown))
    ]


def _noisy(
    exact: Int, paths: Float, window: int, trigger: int, q: PerturbationParameters, noise_key: bytes
) -> Int:
    """One trigger of the cells of one sketch: the next step of their paths, rounded, and added to their sums."""
    numbers = q.counter.width
    cell = np.arange(exact.size)
    tag = randomness.tags(noise_key, np.full(len(cell), window, np.int64), cell)

    def draw(number: int) -> Float:
        return randomness.normals(noise_key, tag, q.mechanism, 0, trigger, number)

    path = trust(q.counter).advance(paths[:, :, :numbers].reshape(-1, numbers), draw, trigger)
    paths[:, :, :numbers] = path.reshape(*exact.shape, numbers)
    again = Redraw(noise_key, tag, cell, q.mechanism, 0, q.counter)
    return noisy(exact.reshape(-1), path[:, 0], trigger, q, again).reshape(exact.shape)
