"""The release of what the limits left out of a window: noisy sums over its units, once, at its last trigger.

Guarantee (docs/privacy/histogram.md, theorem 31): a unit adds to a figure no more than its bound, to which sigma is calibrated, in one window.
Every window has its noise, records or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, int_fields, match, read_columns, run_sums, sort_runs
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake.left_out import BEFORE_TRIGGERS, FIGURES_KEY
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy
from dpsql.udfs.noise.randomness import normals, tags
from dpsql.udfs.stage import LEFT_OUT
from dpsql.udfs.state_table import StateTable

TABLES = {"figures": StateTable(("window", "figure"), "key")}
ONCE = 1
"""The one step of a figure's noise."""


@dataclass(frozen=True)
class FigureNoise:
    """The figures of a plan.

    Args:
        numbers: of each, among `dpsql.udfs.intake.left_out.FIGURES`.
        noise: of each; of one step.
        every_window_from: windows without records have released rows, too, those that start at this time or later; None: they have none.
        once: all records are in the first of these windows, and no other one is told.
        no_key: what stands for the key of a row that has figures: NULL in every column.
    """

    numbers: tuple[int, ...]
    noise: tuple[PerturbationParameters, ...]
    every_window_from: int | None = None
    once: bool = False
    no_key: bytes = b""

    def for_bucket(self, bucket: int, buckets: int) -> FigureNoise:
        """Return what one bucket knows beforehand: all figures are in one."""
        if bucket == FIGURES_KEY % buckets:
            return self
        return replace(self, every_window_from=None)


def no_figures() -> pa.Table:
    """Return the state in which nothing was left out: the amount of each window's figures; `key` says which bucket has them."""
    return pa.schema(int_fields(("window", "figure", "key", "amount"))).empty_table()


def with_figures(figures: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the state with what contributions add, and the contributions that are of groups."""
    is_figure = rows["trigger"].to_numpy() == BEFORE_TRIGGERS
    if not is_figure.any():
        return figures, rows
    new = rows.filter(is_figure)
    window = np.concatenate([figures["window"].to_numpy(), new["window"].to_numpy()])
    figure = np.concatenate([figures["figure"].to_numpy(), _numbers(new["key_bytes"])])
    amount = np.concatenate([figures["amount"].to_numpy(), new["users"].to_numpy()])
    order, starts = sort_runs(window, figure)
    heads = order[starts]
    columns = {"window": window[heads], "figure": figure[heads]}
    columns["key"] = np.full(len(heads), FIGURES_KEY)
    columns["amount"] = run_sums(amount[order], starts)
    return pa.table(columns), rows.filter(~is_figure)


def _numbers(key_bytes: pa.ChunkedArray) -> Int:
    return np.frombuffer(b"".join(key_bytes.to_pylist()), np.uint8).astype(np.int64)


def close_figures(
    figures: pa.Table,
    closed_before_us: int,
    closed_us: int,
    grid: Grid,
    p: FigureNoise,
    gives: pa.Schema,
    noise_key: bytes,
) -> tuple[pa.Table, pa.Table]:
    """Return the state of open windows, and a row in columns `gives` for each window whose last trigger has closed."""
    windows = np.unique(figures["window"].to_numpy())
    ended = windows[grid.closed_triggers(windows, closed_us) == grid.horizon]
    first = p.every_window_from
    if first is not None:
        later_us = grid.trigger_us * (grid.horizon - 1)
        times = closed_before_us - later_us, closed_us - later_us
        opening = grid.windows_opening(*times, first)
        ended = np.union1d(ended, opening[opening == first] if p.once else opening)
    if not len(ended):
        return figures, gives.empty_table()
    tag = tags(noise_key, ended, np.full(len(ended), FIGURES_KEY))
    amounts = np.stack(
        [
            _noisy(_amounts(figures, ended, number), tag, noise, noise_key)
            for number, noise in zip(p.numbers, p.noise, strict=True)
        ],
        axis=1,
    )
    is_open = ~np.isin(figures["window"].to_numpy(), ended)
    return figures.filter(is_open).combine_chunks(), _released(
        ended, amounts, grid, p.no_key, gives
    )


def _amounts(figures: pa.Table, windows: Int, number: int) -> Int:
    """Return one figure of some windows; 0 where nothing was counted."""
    figure = np.full(len(windows), number)
    place = match([windows, figure], read_columns(figures, ("window", "figure")))
    return np.where(place < 0, 0, np.append(figures["amount"].to_numpy(), 0)[place])


def _noisy(sums: Int, tag: np.ndarray, p: PerturbationParameters, noise_key: bytes) -> Int:
    cells = np.arange(len(sums))
    redraw = Redraw(noise_key, tag, cells, p.mechanism, 0, p.counter)
    path = trust(p.counter).advance(
        np.zeros((len(sums), p.width)),
        lambda number: normals(noise_key, tag, p.mechanism, 0, ONCE, number),
        ONCE,
    )
    return noisy(sums, path[:, 0], ONCE, p, redraw)


def _released(windows: Int, amounts: Int, grid: Grid, no_key: bytes, gives: pa.Schema) -> pa.Table:
    """Return rows that have no group."""
    rows = len(windows)
    empty = {pa.binary(): b"", pa.float64(): 0.0}
    columns = {
        field.name: pa.repeat(pa.scalar(empty.get(field.type, 0), field.type), rows)
        for field in gives
    }
    columns["key_bytes"] = pa.repeat(pa.scalar(no_key), rows)
    columns["window"] = pa.array(windows)
    columns["trigger"] = pa.array(np.full(rows, grid.horizon))
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(8 * amounts.shape[1])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(amounts.astype("<i8").tobytes())]
    columns[LEFT_OUT.name] = pa.Array.from_buffers(pa.binary(), rows, buffers)
    return pa.table(columns, gives)


def without_figures(rows: pa.Table) -> pa.Table:
    """Mark released rows as rows of groups, which have no figures."""
    return rows.append_column(LEFT_OUT, pa.repeat(pa.scalar(b""), rows.num_rows))
