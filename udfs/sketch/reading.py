"""What becomes public: lists of the largest keys, and the sketches; pure, and after all noise.

A key that no record of another unit brought must not appear, and no budget is spent on that: every key that was brought so far in its window
is held against the floor test at every trigger, also without new records. What passed once stays public. While keys are unknown the hash
key of a window is secret, and its cells are published when it closes, with the key, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Int, insert, places, run_starts, sort_order
from dpsql.udfs.columns import find as find_rows
from dpsql.udfs.sketch.estimates import estimate, interval, joint
from dpsql.udfs.sketch.floor import passes
from dpsql.udfs.sketch.hashing import DIGEST, Field, Shape, hash_key
from dpsql.udfs.sketch.partial import KEY
from dpsql.udfs.sketch.refresh import Schedule
from dpsql.udfs.stage import Tables
from dpsql.udfs.state_table import Table

TABLES = {"newest": Table(("window", "row"), "window"), "brought": Table(("window", *DIGEST), "window")}
"""newest: the newest published ones of open windows. brought: keys of open windows, since when they are there, and at which
trigger they passed (0: they have not)."""

STATISTICAL = 0.01
"""Of listed keys with nothing in them, one in a hundred lists shows one; no privacy depends on it."""

LISTS = pa.schema(
    [(name, pa.int64()) for name in ("window", "trigger", "sketch", "rank")]
    + [("key_bytes", pa.binary()), ("value", pa.float64()), ("stderr", pa.float64()), ("low", pa.float64()), ("high", pa.float64())]
)
SKETCHES = pa.schema(
    [(name, pa.int64()) for name in ("window", "trigger", "row", "first_column", "stride")]
    + [("cells", pa.binary()), ("hash_key", pa.binary())]
)


@dataclass(frozen=True)
class Shown:
    """One sketch as it is read.

    Args:
        number: how many keys its list has; 0: no list.
        grid: value of one step of a cell.
        whole: values are integers.
        sd: of a cell's noise by refresh number, in steps of the grid.
        stderr: of an estimate's noise, per standard deviation of a cell's.
    """

    number: int
    grid: float
    whole: bool
    sd: tuple[float, ...]
    stderr: float


@dataclass(frozen=True)
class Listed:
    """Keys that are named beforehand: digests (n, 4) as tuples, and encodings."""

    digests: tuple[tuple[int, int, int, int], ...]
    key_bytes: tuple[bytes, ...]


@dataclass(frozen=True)
class ReadParameters:
    """Concrete numbers; no secret. `beta`: of the floor test at each trigger, where keys are unknown; else None, with `listed` or without.
    `missed`: of `estimates.interval`."""

    shape: Shape
    schedule: Schedule
    sketches: tuple[Shown, ...]
    beta: float | None
    listed: Listed | None
    missed: float


@dataclass(frozen=True)
class Read:
    """New state, rows of the public table, and of the public table of sketches."""

    state: Tables
    lists: pa.Table
    sketches: pa.Table


def empty_state(p: ReadParameters) -> Tables:
    """Nothing has been released."""
    brought = {name: np.zeros(0, np.int64) for name in ("window", *DIGEST)}
    return {
        "newest": _cells_table({}, p),
        "brought": pa.table(
            brought | {"key_bytes": pa.array([], pa.binary()), "since": np.zeros(0, np.int64), "passed_at": np.zeros(0, np.int64)}
        ),
    }


def read(state: Tables, released: pa.Table, p: ReadParameters, root: bytes) -> Read:
    """Read what was released at some ticks.

    Args:
        state: of earlier ticks.
        released: rows of `ReleaseStage`, any order: with a (window, trigger), all of its cells.
        p: the plan's numbers.
        root: of the run's hash keys.
    """
    kind = released.column("kind").to_numpy()
    published = released.filter(pa.array(kind != KEY))
    brought = _with(state["brought"], released.filter(pa.array(kind == KEY)))
    window, trigger = published.column("window").to_numpy(), published.column("trigger").to_numpy()
    cells = _opened(state["newest"], p)
    order = sort_order(window, trigger, published.column("row").to_numpy())
    published = published.take(pa.array(order)).combine_chunks()
    starts = np.flatnonzero(run_starts(window[order], trigger[order])).tolist()
    passed_at, lists, sketches = brought.column("passed_at").to_numpy().copy(), [LISTS.empty_table()], [SKETCHES.empty_table()]
    since = brought.column("since").to_numpy()
    for low, high in zip(starts, [*starts, len(order)][1:], strict=True):
        rows = published.slice(low, high - low)
        start, number = int(window[order[low]]), int(trigger[order[low]])
        mine = cells.setdefault(start, np.zeros((len(p.sketches), p.shape.depth, p.shape.width), np.int64))
        _take(mine, rows, p)
        key = hash_key(root, None if p.beta is None else start)
        last = number == p.schedule.triggers
        if p.beta is None:
            sketches.append(_sketch_rows(rows, key))
            shown, names = _listed(mine, key, number, p)
        else:
            here = np.flatnonzero((brought.column("window").to_numpy() == start) & (since <= number))
            fields = p.shape.fields(key, _digests(brought, here))
            fresh = np.flatnonzero(passed_at[here] == 0)
            passed_at[here[fresh[_tested(mine, fields[:, fresh], number, p, p.beta)]]] = number
            public = np.flatnonzero(passed_at[here] > 0)
            shown, names = fields[:, public], brought.column("key_bytes").take(pa.array(here[public]))
            if last:
                sketches.append(_whole(mine, start, number, key))
        lists += [_list(mine[j], shown, names, start, number, j, p) for j, each in enumerate(p.sketches) if each.number]
        if last:
            del cells[start]
    open_ = np.isin(brought.column("window").to_numpy(), [*cells])
    columns = {name: brought.column(name) for name in brought.column_names} | {"passed_at": passed_at}
    after = {"newest": _cells_table(cells, p), "brought": pa.table(columns).filter(pa.array(open_)).combine_chunks()}
    return Read(after, pa.concat_tables(lists).combine_chunks(), pa.concat_tables(sketches).combine_chunks())


def _with(brought: pa.Table, keys: pa.Table) -> pa.Table:
    """The keys of open windows, each once, with its first trigger: keys that come later come with later ones."""
    by = ("window", *DIGEST)
    new = [keys.column(name).to_numpy() for name in by]
    order = sort_order(*new, keys.column("trigger").to_numpy())
    head = order[run_starts(*(column[order] for column in new))]
    old = [brought.column(name).to_numpy() for name in by]
    low, high = find_rows([column[head] for column in new], old)
    fresh, where = head[low == high], places(low[low == high])
    columns: dict[str, Any] = {name: insert(o, n[fresh], where) for name, o, n in zip(by, old, new, strict=True)}
    both = pa.chunked_array([*brought.column("key_bytes").chunks, *keys.column("payload").take(pa.array(fresh)).chunks], pa.binary())
    columns["key_bytes"] = both.take(pa.array(insert(np.arange(len(old[0])), len(old[0]) + np.arange(len(fresh)), where))).combine_chunks()
    new_ones = {"since": keys.column("trigger").to_numpy()[fresh], "passed_at": np.zeros(len(fresh), np.int64)}
    return pa.table(columns | {name: insert(brought.column(name).to_numpy(), values, where) for name, values in new_ones.items()})


def _take(cells: Int, rows: pa.Table, p: ReadParameters) -> None:
    """Put the columns that one trigger published in their place."""
    ints = zip(*(rows.column(name).to_pylist() for name in ("row", "first_column", "stride", "payload")), strict=True)
    for row, first, stride, payload in ints:
        cells[row // p.shape.depth, row % p.shape.depth, first::stride] = np.frombuffer(payload, "<i8")


def _tested(cells: Int, fields: Field, trigger: int, p: ReadParameters, beta: float) -> Int:
    """Which keys pass in any of the sketches."""
    found = np.zeros(fields.shape[1], bool)
    for sketch, each in zip(cells, p.sketches, strict=True):
        found |= passes(sketch, p.shape.read(sketch, fields), _sd(each, p, trigger), beta)
    return found


def _sd(shown: Shown, p: ReadParameters, trigger: int) -> float:
    """Of the noisiest cell at a trigger."""
    counts = {p.schedule.count(block, trigger) for block in range(p.schedule.cycle)}
    return max(shown.sd[max(count, 1) - 1] for count in counts)


def _listed(cells: Int, key: bytes, trigger: int, p: ReadParameters) -> tuple[Field, pa.Array]:
    """The named keys that stand out of the noise in some sketch."""
    if p.listed is None or not p.listed.digests:
        return np.zeros((p.shape.depth, 0), np.uint32), pa.array([], pa.binary())
    fields = p.shape.fields(key, np.array(p.listed.digests, np.int64))
    if not p.shape.signed:
        return fields, pa.array(p.listed.key_bytes, pa.binary())
    found = np.flatnonzero(_tested(cells, fields, trigger, p, STATISTICAL / fields.shape[1]))
    return fields[:, found], pa.array(p.listed.key_bytes, pa.binary()).take(pa.array(found))


def _list(cells: Int, fields: Field, names: pa.Array, window: int, trigger: int, j: int, p: ReadParameters) -> pa.Table:
    """The largest estimates, then by value."""
    shown = p.sketches[j]
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    found = joint(p.shape, cells, fields) if p.shape.signed else estimate(p.shape, p.shape.read(cells, fields)).astype(np.float64)
    if shown.whole:
        found = np.rint(found)
    by_name = np.empty(len(names), np.int64)
    by_name[pc.sort_indices(names).to_numpy()] = np.arange(len(names))
    best = np.lexsort((by_name, -found))[: shown.number]
    size, value = len(best), found[best]
    low, high = interval(p.shape, cells, value, p.missed)
    if shown.whole:
        low, high = np.floor(low), np.ceil(high)
    stderr = _sd(shown, p, trigger) * shown.stderr
    columns = [np.full(size, window), np.full(size, trigger), np.full(size, j), np.arange(1, size + 1), names.take(pa.array(best))]
    numbers = (value, np.full(size, stderr), low, high)
    return pa.table([*columns, *(each * shown.grid for each in numbers)], schema=LISTS)


def _sketch_rows(rows: pa.Table, key: bytes) -> pa.Table:
    names = SKETCHES.names[:5]
    return pa.table([*(rows.column(name) for name in names), rows.column("payload"), pa.array([key] * rows.num_rows)], schema=SKETCHES)


def _whole(cells: Int, window: int, trigger: int, key: bytes) -> pa.Table:
    """All columns of a window that closes."""
    flat = cells.reshape(-1, cells.shape[-1])
    size = len(flat)
    ints = (np.full(size, window), np.full(size, trigger), np.arange(size), np.zeros(size, np.int64), np.ones(size, np.int64))
    return pa.table([*ints, pa.array([row.astype("<i8").tobytes() for row in flat]), pa.array([key] * size)], schema=SKETCHES)


def _digests(table: pa.Table, at: Int) -> Int:
    return np.stack([table.column(name).to_numpy()[at] for name in DIGEST], axis=1)


def _opened(table: pa.Table, p: ReadParameters) -> dict[int, Int]:
    window = table.column("window").to_numpy()
    flat = np.array(table.column("cells").combine_chunks().flatten().to_numpy()).reshape(len(window), p.shape.width)
    return {each: flat[window == each].reshape(-1, p.shape.depth, p.shape.width) for each in np.unique(window).tolist()}


def _cells_table(cells: Mapping[int, Int], p: ReadParameters) -> pa.Table:
    rows = len(p.sketches) * p.shape.depth
    flat = np.concatenate([np.zeros((0, p.shape.width), np.int64), *(cells[w].reshape(-1, p.shape.width) for w in sorted(cells))])
    window = np.repeat(np.array(sorted(cells), np.int64), rows)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), p.shape.width)
    return pa.table({"window": window, "row": np.tile(np.arange(rows), len(cells)), "cells": lists})
