"""What becomes public of a sketch: the floor test, lists of the largest keys, and how a list travels as bytes; pure, and after all noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import (
    Bool,
    Float,
    Int,
    insert,
    int_fields,
    places,
    read_columns,
    run_starts,
    sort_order,
)
from dpsql.udfs.columns import find as find_rows
from dpsql.udfs.sketch.estimates import estimate, interval, joint
from dpsql.udfs.sketch.hashing import DIGEST, CellShape, Field, hash_key
from dpsql.udfs.sketch.partial import KEY
from dpsql.udfs.stage import Tables
from dpsql.udfs.state_table import StateTable

# A list of the largest values as bytes: it travels as one value of one released row, so a window
# without a listed value has a row too.

NUMBERS = ("value", "stderr", "low", "high")


def pack(rows: pa.Table) -> bytes:
    """Return rows with `key_bytes` and NUMBERS, in their order: how many, the numbers column by column, lengths, names."""
    names = rows["key_bytes"].to_pylist()
    numbers = b"".join(rows[name].to_numpy().astype("<f8").tobytes() for name in NUMBERS)
    return _ints([len(names)]) + numbers + _ints([len(name) for name in names]) + b"".join(names)


def unpack(lists: list[bytes]) -> tuple[Int, pa.Table]:
    """Return how long each list is, and all of their rows."""
    sizes = []
    parts = [
        pa.schema(
            [("key_bytes", pa.binary()), *((name, pa.float64()) for name in NUMBERS)]
        ).empty_table()
    ]
    for packed in lists:
        size = int(np.frombuffer(packed, "<i8", 1)[0])
        numbers = np.frombuffer(packed, "<f8", len(NUMBERS) * size, 8).reshape(len(NUMBERS), size)
        position = 8 + numbers.nbytes
        ends = position + 8 * size + np.cumsum(np.frombuffer(packed, "<i8", size, position))
        starts = [position + 8 * size, *ends[:-1].tolist()] if size else []
        names = [packed[low:high] for low, high in zip(starts, ends.tolist(), strict=True)]
        sizes.append(size)
        parts.append(pa.table([pa.array(names, pa.binary()), *numbers], schema=parts[0].schema))
    return np.array(sizes, np.int64), pa.concat_tables(parts).combine_chunks()


def _ints(values: list[int]) -> bytes:
    return np.array(values, "<i8").tobytes()


# The floor test: is a key's score too high for a key that no record has? Decided from the
# published cells alone, whatever the data.

# A key that no record has sees sign * cell at a uniformly random column and sign in every row,
# rows independent of each other and of the cells. So
# the law of its score given the cells is known exactly: nothing is assumed of the data, and no
# budget is spent.

#     s_B(x) = sum over rows of clip(sign * cell, -B, B), in bins of B / 128 or of one step, rounded down; its null law is rounded up

# and x passes if, for some scale B, the null tail at s_B(x) is at most beta / (number of
# scales). A threshold of so many standard deviations
# of the noise would not do: cells that hold heavy keys are as far from 0, and a fresh key that
# meets them would pass.

MOST_BINS = 128
"""Bins on each side of 0, at most."""
FIRST = 3
"""The first scale, in standard deviations of the noise; further ones double."""
ROUNDING = 1 + 1e-9
"""What tails are multiplied by: all terms are positive, so float64 is off by less than 10^-11 of them."""


def passes(cells: Int, scores: Int, sd: float, beta: float) -> Bool:
    """Return which keys pass.

    Args:
        cells: (depth, width), signed, in steps of the grid.
        scores: (depth, keys): sign * cell of each key in each row.
        sd: standard deviation of a cell's noise; it chooses scales and has no influence on the probability.
        beta: probability with which a key that no record has may pass, at most.
    """
    has_passed = np.zeros(scores.shape[1], bool)
    tried = scales(cells, sd)
    for scale in tried:
        smallest_score = threshold(null_law(cells, scale), beta / len(tried))
        has_passed |= np.sum(scale.bins(scores), axis=0) >= smallest_score
    return has_passed


@dataclass(frozen=True)
class Scale:
    """B = step * half, in steps of the grid: `half` bins on each side of 0, `step` wide."""

    step: int
    half: int

    def bins(self, values: Int) -> Int:
        """Return the bin of each clipped value, 0 to 2 * half, rounded down."""
        return (
            np.clip(values, -self.step * self.half, self.step * self.half) // self.step + self.half
        )

    def bins_above(self, values: Int) -> Int:
        """Return the bin of each clipped value, rounded up."""
        return 2 * self.half - self.bins(-values)


def scales(cells: Int, sd: float) -> list[Scale]:
    """Return B = sd * 3, 6, 12, .. up to twice the largest cell, rounded up so that bins are whole steps; the first in any case."""
    largest = int(np.max(np.abs(cells), initial=0))
    scales_ = list[Scale]()
    factor = FIRST
    while not scales_ or factor * sd < 2 * largest:
        reach = max(int(np.ceil(factor * sd)), 1)
        step = -(-reach // MOST_BINS)
        scales_.append(Scale(step, -(-reach // step)))
        factor *= 2
    return scales_


def null_law(cells: Int, scale: Scale) -> Float:
    """Return P(score of a fresh key = k) for k = 0 .. 2 * half * depth; never too small in the tail."""
    law = np.ones(1)
    for row in cells:
        size = 2 * scale.half + 1
        bins = np.bincount(scale.bins_above(row), minlength=size) + np.bincount(
            scale.bins_above(-row), minlength=size
        )
        convolved = np.zeros(len(law) + size - 1)
        for k in np.flatnonzero(
            bins
        ).tolist():  # in this order on every machine: no library's convolution
            convolved[k : k + len(law)] += law * (bins[k] / (2 * len(row)))
        law = convolved
    return law


def threshold(law: Float, beta: float) -> int:
    """Return the smallest score whose tail is at most beta; beyond the law's end if there is none."""
    tail = np.cumsum(law[::-1])[::-1] * ROUNDING
    return int(np.count_nonzero(tail > beta))


# What becomes public: lists of the largest keys, and the sketches; pure, and after all noise.

# A key that no record of another unit brought must not appear, and no budget is spent on that:
# every key that was brought so far in its window
# is held against the floor test at every trigger, also without new records. What passed once
# stays public. While keys are unknown the hash
# key of a window is secret, and its cells are published when it closes, with the key, and not
# before.

TABLES = {"brought": StateTable(("window", *DIGEST), "window")}
"""Keys of open windows, since when they are there, and at which trigger they passed (0: they have not)."""

STATISTICAL = 0.01
"""Share of lists that show a listed key with nothing in it; no privacy depends on it."""

LISTS = pa.schema(
    [
        *int_fields(("window", "trigger", "sketch", "rank")),
        ("key_bytes", pa.binary()),
        ("value", pa.float64()),
        ("stderr", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)
SKETCHES = pa.schema(
    [*int_fields(("window", "trigger", "row")), ("cells", pa.binary()), ("hash_key", pa.binary())]
)


@dataclass(frozen=True)
class ShownCells:
    """One sketch as it is read.

    Args:
        list_length: how many keys its list has; 0: no list.
        grid: value of one step of a cell.
        is_integer: values are integers.
        sd: of a cell's noise by trigger, in steps of the grid.
        stderr: of an estimate's noise, per standard deviation of a cell's.
    """

    list_length: int
    grid: float
    is_integer: bool
    sd: tuple[float, ...]
    stderr: float


@dataclass(frozen=True)
class ListedKeys:
    """Keys that are named beforehand: digests (n, 4) as tuples, and encodings."""

    digests: tuple[tuple[int, int, int, int], ...]
    key_bytes: tuple[bytes, ...]


@dataclass(frozen=True)
class ReadParameters:
    """Concrete numbers; no secret. `triggers`: of a window. `beta`: of the floor test at each trigger, where keys are unknown; else None, with
    `listed` or without. `missed`: of `estimates.interval`."""

    shape: CellShape
    triggers: int
    sketches: tuple[ShownCells, ...]
    beta: float | None
    listed: ListedKeys | None
    missed: float


@dataclass(frozen=True)
class Read:
    """New state, rows of the public table, and of the public table of sketches."""

    state: Tables
    lists: pa.Table
    sketches: pa.Table


def empty_state() -> Tables:
    """Return the state in which nothing has been released."""
    digests = int_fields(("window", *DIGEST))
    times = int_fields(("since", "passed_at"))
    return {"brought": pa.schema([*digests, ("key_bytes", pa.binary()), *times]).empty_table()}


def read_release(state: Tables, released: pa.Table, p: ReadParameters, root: bytes) -> Read:
    """Read lists and sketches off the cells that were released at some triggers.

    Args:
        state: `TABLES`, after earlier triggers.
        released: rows of `CellRelease` in any order; with a (window, trigger) all of its cells.
        p: the plan's numbers.
        root: what the hash keys of the run's sketches are derived from.
    """
    is_candidate = released["kind"].to_numpy() == KEY
    candidates = _add_candidates(state["brought"], released.filter(is_candidate))
    passed_at = candidates["passed_at"].to_numpy()
    lists = [LISTS.empty_table()]
    sketches = [SKETCHES.empty_table()]
    closed_windows = list[int]()
    cell_rows = released.filter(~is_candidate)
    for window, trigger, rows in _by_window_and_trigger(cell_rows):
        payload = b"".join(rows["payload"].to_pylist())
        cells = np.frombuffer(payload, "<i8").reshape(-1, p.shape.depth, p.shape.width)
        sketch_key = hash_key(root, None if p.beta is None else window)
        is_last = trigger == p.triggers
        if is_last:
            closed_windows.append(window)
        if p.beta is None or is_last:
            sketches.append(_sketch_rows(rows, sketch_key))
        if p.beta is None:
            fields, key_bytes = _listed_keys(cells, sketch_key, trigger, p)
        else:
            passed_at, fields, key_bytes = _test_candidates(
                candidates, passed_at, cells, sketch_key, window, trigger, p, p.beta
            )
        lists += [
            _list_rows(cells[j], fields, key_bytes, window, trigger, j, p)
            for j, sketch in enumerate(p.sketches)
            if sketch.list_length
        ]
    columns = {name: candidates[name] for name in candidates.column_names}
    is_open = ~np.isin(candidates["window"].to_numpy(), closed_windows)
    open_candidates = pa.table(columns | {"passed_at": passed_at}).filter(is_open)
    return Read(
        {"brought": open_candidates.combine_chunks()},
        pa.concat_tables(lists).combine_chunks(),
        pa.concat_tables(sketches).combine_chunks(),
    )


def _test_candidates(
    candidates: pa.Table,
    passed_at: Int,
    cells: Int,
    sketch_key: bytes,
    window: int,
    trigger: int,
    p: ReadParameters,
    beta: float,
) -> tuple[Int, Field, pa.Array]:
    """Test the candidates of a window that have not passed yet.

    Returns:
        The trigger at which each candidate has passed (0: it has not), then the fields and the bytes of those of this
        window that have.
    """
    in_window = candidates["window"].to_numpy() == window
    has_come = candidates["since"].to_numpy() <= trigger
    window_rows = np.flatnonzero(in_window & has_come)
    fields = p.shape.fields(sketch_key, _digests(candidates, window_rows))
    untested = np.flatnonzero(passed_at[window_rows] == 0)
    passes_now = _pass_in_a_sketch(cells, fields[:, untested], trigger, p, beta)
    passed_at = passed_at.copy()
    passed_at[window_rows[untested[passes_now]]] = trigger
    has_passed = passed_at[window_rows] > 0
    key_bytes = candidates["key_bytes"].take(window_rows[has_passed])
    return passed_at, fields[:, has_passed], key_bytes


def _by_window_and_trigger(published: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield each (window, trigger) with its rows of cells, in order."""
    columns = read_columns(published, ("window", "trigger", "row"))
    order = sort_order(*columns)
    window = columns[0][order]
    trigger = columns[1][order]
    published = published.take(order).combine_chunks()
    starts = np.flatnonzero(run_starts(window, trigger)).tolist()
    for low, high in zip(starts, [*starts, len(order)][1:], strict=True):
        yield int(window[low]), int(trigger[low]), published.slice(low, high - low)


def _digests(candidates: pa.Table, positions: Int) -> Int:
    return np.stack([candidates[name].to_numpy()[positions] for name in DIGEST], axis=1)


def _add_candidates(candidates: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the keys of open windows, each once, with its first trigger: keys that come later come with later ones."""
    names = ("window", *DIGEST)
    new = read_columns(keys, names)
    order = sort_order(*new, keys["trigger"].to_numpy())
    head = order[run_starts(*(column[order] for column in new))]
    stored = read_columns(candidates, names)
    low, high = find_rows([column[head] for column in new], stored)
    is_new = low == high
    head = head[is_new]
    positions = places(low[is_new])
    columns: dict[str, Any] = {
        name: insert(stored_column, new_column[head], positions)
        for name, stored_column, new_column in zip(names, stored, new, strict=True)
    }
    key_bytes = pa.chunked_array(
        [*candidates["key_bytes"].chunks, *keys["payload"].take(head).chunks], pa.binary()
    )
    size = candidates.num_rows
    rows = insert(np.arange(size), size + np.arange(len(head)), positions)
    columns["key_bytes"] = key_bytes.take(rows).combine_chunks()
    since = keys["trigger"].to_numpy()[head]
    columns["since"] = insert(candidates["since"].to_numpy(), since, positions)
    columns["passed_at"] = insert(
        candidates["passed_at"].to_numpy(), np.zeros(len(head), np.int64), positions
    )
    return pa.table(columns)


def _pass_in_a_sketch(
    cells: Int, fields: Field, trigger: int, p: ReadParameters, beta: float
) -> Int:
    """Tell which keys pass in any of the sketches."""
    has_passed = np.zeros(fields.shape[1], bool)
    for sketch, sketch_parameters in zip(cells, p.sketches, strict=True):
        has_passed |= passes(
            sketch, p.shape.scores(sketch, fields), sketch_parameters.sd[trigger - 1], beta
        )
    return has_passed


def _listed_keys(cells: Int, key: bytes, trigger: int, p: ReadParameters) -> tuple[Field, pa.Array]:
    """Return the named keys that stand out of the noise in some sketch."""
    if p.listed is None or not p.listed.digests:
        return np.zeros((p.shape.depth, 0), np.uint32), pa.array([], pa.binary())
    fields = p.shape.fields(key, np.array(p.listed.digests, np.int64))
    if not p.shape.signed:
        return fields, pa.array(p.listed.key_bytes, pa.binary())
    passed = np.flatnonzero(
        _pass_in_a_sketch(cells, fields, trigger, p, STATISTICAL / fields.shape[1])
    )
    return fields[:, passed], pa.array(p.listed.key_bytes, pa.binary()).take(passed)


def _list_rows(
    cells: Int, fields: Field, names: pa.Array, window: int, trigger: int, j: int, p: ReadParameters
) -> pa.Table:
    """Return the largest estimates, then by value."""
    list_parameters = p.sketches[j]
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    estimates = (
        joint(p.shape, cells, fields)
        if p.shape.signed
        else estimate(p.shape, p.shape.scores(cells, fields)).astype(np.float64)
    )
    if list_parameters.is_integer:
        estimates = np.rint(estimates)
    by_name = np.empty(len(names), np.int64)
    by_name[pc.sort_indices(names).to_numpy()] = np.arange(len(names))
    best = np.lexsort((by_name, -estimates))[: list_parameters.list_length]
    size = len(best)
    value = estimates[best]
    low, high = interval(p.shape, cells, value, p.missed)
    if list_parameters.is_integer:
        low = np.floor(low)
        high = np.ceil(high)
    stderr = list_parameters.sd[trigger - 1] * list_parameters.stderr
    columns = [np.full(size, number) for number in (window, trigger, j)]
    columns += [np.arange(1, size + 1), names.take(best)]
    numbers = (value, np.full(size, stderr), low, high)
    return pa.table(
        [*columns, *(number_column * list_parameters.grid for number_column in numbers)],
        schema=LISTS,
    )


def _sketch_rows(rows: pa.Table, key: bytes) -> pa.Table:
    columns = [rows[name] for name in ("window", "trigger", "row", "payload")]
    return pa.table([*columns, pa.array([key] * rows.num_rows)], schema=SKETCHES)
