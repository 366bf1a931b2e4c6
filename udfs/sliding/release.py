"""The release step of one key bucket with its state: exact sums wait for their pane to close, and are measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Int, int_fields, match, read_columns, run_sums, sort_runs
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.measure.output_columns import OutputColumn, combine
from dpsql.udfs.sliding.intake import pane_sums
from dpsql.udfs.sliding.panes import Bins, Measurement, PaneCells, Panes, Window, new_bins
from dpsql.udfs.stage import BATCH, CLOSED, Release, Released, State, Stepped, Tables, Tick, replay
from dpsql.udfs.state_table import StateTable

# What a key bucket remembers of its bins: numbers of fixed size each, for ever, and the exact
# sums of panes that are still open.

TABLES = {"bins": StateTable(("key",), "key"), "pending": StateTable(("pane", "key"), "key")}


@dataclass(frozen=True)
class SlidingState(State):
    """Two tables of plain columns.

    bins: one row per listed key, sorted by `key`: `key, key_bytes`, then the numbers of each measurement j as `name_j`, lists of fixed length
        where they are several. Schema metadata: the closed time.
    pending: `pane, key, v0, ..`: exact sums of open panes, sorted by (pane, key).
    """

    bins: pa.Table
    pending: pa.Table


def first_state(
    keys: tuple[int, ...], key_bytes: tuple[bytes, ...], measurements: tuple[Measurement, ...]
) -> SlidingState:
    """Return the state of a bucket before its first pane: its listed keys."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    bins = pa.table(
        {
            "key": pa.array([keys[i] for i in order], pa.int64()),
            "key_bytes": pa.array([key_bytes[i] for i in order], pa.binary()),
        }
    )
    ints = ("pane", "key", *(f"v{j}" for j in range(len(measurements))))
    return SlidingState(
        with_numbers(bins, [new_bins(m.columns, len(keys)) for m in measurements], NO_CLOCK),
        pa.schema(int_fields(ints)).empty_table(),
    )


def with_numbers(bins: pa.Table, numbers: list[Bins], closed_us: int) -> pa.Table:
    """Return keys and the numbers of all measurements as one table."""
    columns = {name: bins[name] for name in ("key", "key_bytes")}
    for j, bin_numbers in enumerate(numbers):
        for name, values in bin_numbers.items():
            flat = pa.array(values.reshape(-1))
            columns[f"{name}_{j}"] = (
                pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
                if values.ndim == 2
                else flat
            )
    return pa.table(columns).replace_schema_metadata(
        None if closed_us == NO_CLOCK else {CLOSED: str(closed_us)}
    )


def numbers_of(bins: pa.Table, columns: Mapping[str, tuple[type, int]], j: int) -> Bins:
    """Return the numbers of measurement j as arrays of their own."""
    numbers = {}
    for name, (_, width) in columns.items():
        column = bins[f"{name}_{j}"].combine_chunks()
        values = column.flatten().to_numpy().reshape(-1, width) if width else column.to_numpy()
        numbers[name] = np.array(values)
    return numbers


# The release step of one key bucket: exact sums wait for their pane to close; then the pane is
# measured once, for every bin.

# Nothing depends on how rows are cut into micro-batches or buckets: a tick closes panes in
# order, and every pane asks the same noise cells
# whatever came before it. The state does not grow with time.


@dataclass(frozen=True)
class SlidingParameters:
    """Concrete numbers of the step; it holds no secret.

    Args:
        panes: when panes begin and close.
        measurements: one per noisy sum; number j is mechanism j + 1 of the noise.
        bits: log2 of the units of a step, for each of them: a pane's sum is rounded when the pane closes, once and whatever was cut how.
        columns: what is shown.
        keys, key_bytes: the listed keys, hashes and encodings.
    """

    panes: Panes
    measurements: tuple[Measurement, ...]
    bits: tuple[int, ...]
    columns: tuple[OutputColumn, ...]
    keys: tuple[int, ...]
    key_bytes: tuple[bytes, ...]

    def for_bucket(self, bucket: int, buckets: int) -> SlidingParameters:
        """Return the parameters with the keys of one bucket only."""
        places = [i for i, key in enumerate(self.keys) if key % buckets == bucket]
        return replace(
            self,
            keys=tuple(self.keys[i] for i in places),
            key_bytes=tuple(self.key_bytes[i] for i in places),
        )


def release_windows(
    state: SlidingState | None,
    rows: pa.Table,
    ticks: Sequence[Tick],
    p: SlidingParameters,
    noise_key: bytes,
) -> Released[SlidingState]:
    """Add exact sums and close what the ticks close, in order of arrival batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: `window, key, v0, .., batch`, `window` being the start of a pane; any order. Rows of closed panes count nowhere: a pane is
            measured once.
        ticks: the bucket's ticks in this micro-batch; any order.
        p: the plan's numbers, for this bucket.
        noise_key: 32 bytes, the run's.

    Returns:
        Rows `window, trigger, key_bytes`, then per output column i its value `c{i}` and standard error `s{i}`, and where there are such,
        `smoothed{i}` and `measured{i}`; a pure function of its arguments.

    Raises:
        ValueError: the state lacks a listed key, or has another one.
    """
    state = _with_listed(state, p)
    close = partial(_closed, p=p, noise_key=noise_key)
    return replay(
        state, _numbered(rows, p), ticks, partial(_add_rows, p=p), close, _no_rows(p).schema
    )


def _add_rows(state: SlidingState, rows: pa.Table, p: SlidingParameters) -> SlidingState:
    return replace(state, pending=_add_sums(state.pending, rows, p.panes.closed(state.closed_us)))


def _closed(
    state: SlidingState, closed_us: int, p: SlidingParameters, noise_key: bytes
) -> tuple[SlidingState, list[pa.Table]]:
    """Close every pane up to closed_us."""
    numbers = [numbers_of(state.bins, m.columns, j) for j, m in enumerate(p.measurements)]
    key = state.bins["key"].to_numpy()
    names = state.bins["key_bytes"].combine_chunks()
    pending = state.pending
    pane = pending["pane"].to_numpy()
    until = p.panes.closed(closed_us)
    released = []
    for number in range(p.panes.closed(state.closed_us), until):
        windows = _close(
            numbers,
            _pane_sums(pending, pane, number, key, len(p.measurements)),
            number,
            key,
            p,
            noise_key,
        )
        if number >= p.panes.count - 1:
            released.append(_window_rows(windows, number, names, p))
    return SlidingState(
        with_numbers(state.bins, numbers, closed_us), pending.filter(pane >= until).combine_chunks()
    ), released


def _with_listed(state: SlidingState | None, p: SlidingParameters) -> SlidingState:
    """Return the state with a bin for every listed key; before the first tick it may lack some, of which nothing has been measured."""
    first = first_state(p.keys, p.key_bytes, p.measurements)
    if state is None:
        return first
    if state.closed_us == NO_CLOCK:
        return SlidingState(first.bins, state.pending)
    if not np.array_equal(state.bins["key"].to_numpy(), first.bins["key"].to_numpy()):
        raise ValueError("the bins of the state are not the listed keys")
    return state


def _numbered(rows: pa.Table, p: SlidingParameters) -> pa.Table:
    """Replace the start of each pane by its number."""
    return rows.set_column(
        rows.column_names.index("window"),
        "pane",
        pa.array(p.panes.number(rows["window"].to_numpy())),
    )


def _add_sums(pending: pa.Table, rows: pa.Table, closed: int) -> pa.Table:
    """Add new sums to the pending ones, one row per (pane, key)."""
    open_rows = rows.filter(rows["pane"].to_numpy() >= closed)
    if not open_rows.num_rows:
        return pending
    sums = pa.concat_tables([pending, open_rows.select(pending.column_names)])
    pane, key = read_columns(sums, ("pane", "key"))
    order, starts = sort_runs(pane, key)
    columns = {"pane": pane[order][starts], "key": key[order][starts]}
    return pa.table(
        columns | {n: run_sums(sums[n].to_numpy()[order], starts) for n in pending.column_names[2:]}
    )


def _pane_sums(pending: pa.Table, pane: Int, number: int, key: Int, count: int) -> list[Int]:
    """Return the exact sums of one pane for every bin, per measurement."""
    low, high = np.searchsorted(pane, (number, number + 1))
    bins = match([pending["key"].to_numpy()[low:high]], [key])
    measured_sums = []
    for j in range(count):
        sums = np.zeros(len(key), np.int64)
        sums[bins[bins >= 0]] = pending[f"v{j}"].to_numpy()[low:high][bins >= 0]
        measured_sums.append(sums)
    return measured_sums


def _close(
    numbers: list[Bins],
    sums: list[Int],
    number: int,
    key: Int,
    p: SlidingParameters,
    noise_key: bytes,
) -> list[Window]:
    start = p.panes.start(number)
    slide = p.panes.slide_us
    cells = [PaneCells(noise_key, key, start, slide, j, bits) for j, bits in enumerate(p.bits, 1)]
    return [
        m.close(numbers[j], cells[j].rounded(sums[j]), number, cells[j])
        for j, m in enumerate(p.measurements)
    ]


def _window_rows(
    windows: list[Window], number: int, names: pa.Array, p: SlidingParameters
) -> pa.Table:
    """Return the rows of one window, by key bytes: their order says nothing about hashes."""
    order = pc.sort_indices(names).to_numpy()
    window = p.panes.start(number) + p.panes.slide_us - p.panes.window_us
    size = len(names)
    table = {
        "window": np.full(size, window),
        "trigger": np.ones(size, np.int64),
        "key_bytes": names.take(order),
    }
    values = [each.value[order] for each in windows]
    for i, column in enumerate(p.columns):
        parts = column.perturbations
        errors = [
            windows[j].stderr[order] * grid for j, grid in zip(parts, column.grids, strict=True)
        ]
        table[f"c{i}"], table[f"s{i}"] = combine(column, values, errors)
        first = windows[parts[0]]
        if first.smoothed is not None:
            table[f"smoothed{i}"] = first.smoothed[order] * column.grids[0]
        if first.measured is not None:
            table[f"measured{i}"] = first.measured[order]
    return pa.table(table)


def _no_rows(p: SlidingParameters) -> pa.Table:
    """Return what a window without bins shows."""
    no_bins = np.zeros(0, np.int64)
    numbers = [new_bins(m.columns, 0) for m in p.measurements]
    windows = _close(numbers, [no_bins] * len(numbers), 0, no_bins, p, bytes(32))
    return _window_rows(windows, 0, pa.array([], pa.binary()), p)


@dataclass(frozen=True)
class PaneRelease(Release):
    """Exact sums and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: SlidingParameters
    tables: ClassVar[Mapping[str, StateTable]] = TABLES

    @property
    def takes(self) -> pa.Schema:
        """Columns of sums, with the micro-batch that they came in."""
        return pane_sums(len(self.parameters.measurements)).append(BATCH)

    @cached_property
    def gives(self) -> pa.Schema:
        """Columns of released rows."""
        return _no_rows(self.parameters).schema

    def empty(self) -> Tables:
        """Return the state in which nothing is closed, and no key is there yet."""
        return first_state((), (), self.parameters.measurements).tables()

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Add sums and close ticks by `release_windows`."""
        return release_windows(
            SlidingState(**state), rows, ticks, self.parameters, noise_key
        ).stepped()
