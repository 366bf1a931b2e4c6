"""What becomes public of a sketch: the floor test, lists of the largest keys, and how a list travels as bytes; pure, and after all noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Bool, Float, Int, insert, places, run_starts, sort_order
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
    names = rows.column("key_bytes").to_pylist()
    numbers = b"".join(rows.column(name).to_numpy().astype("<f8").tobytes() for name in NUMBERS)
    return _ints([len(names)]) + numbers + _ints([len(name) for name in names]) + b"".join(names)


def unpack(lists: list[bytes]) -> tuple[Int, pa.Table]:
    """Return how long each list is, and all of their rows."""
    sizes = []
    parts = [
        pa.schema(
            [("key_bytes", pa.binary()), *((name, pa.float64()) for name in NUMBERS)]
        ).empty_table()
    ]
    for given in lists:
        size = int(np.frombuffer(given, "<i8", 1)[0])
        numbers = np.frombuffer(given, "<f8", len(NUMBERS) * size, 8).reshape(len(NUMBERS), size)
        at = 8 + numbers.nbytes
        ends = at + 8 * size + np.cumsum(np.frombuffer(given, "<i8", size, at))
        starts = [at + 8 * size, *ends[:-1].tolist()] if size else []
        names = [given[low:high] for low, high in zip(starts, ends.tolist(), strict=True)]
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
"""On each side of 0."""
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
    found = np.zeros(scores.shape[1], bool)
    tried = scales(cells, sd)
    for scale in tried:
        least = threshold(null_law(cells, scale), beta / len(tried))
        found |= np.sum(scale.bins(scores), axis=0) >= least
    return found


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
        """The same, rounded up."""
        return 2 * self.half - self.bins(-values)


def scales(cells: Int, sd: float) -> list[Scale]:
    """B = sd * 3, 6, 12, .. up to twice the largest cell, rounded up so that bins are whole steps; the first in any case."""
    largest = int(np.max(np.abs(cells), initial=0))
    out = list[Scale]()
    factor = FIRST
    while not out or factor * sd < 2 * largest:
        reach = max(int(np.ceil(factor * sd)), 1)
        step = -(-reach // MOST_BINS)
        out.append(Scale(step, -(-reach // step)))
        factor *= 2
    return out


def null_law(cells: Int, scale: Scale) -> Float:
    """P(score of a fresh key = k) for k = 0 .. 2 * half * depth; never too small in the tail."""
    law = np.ones(1)
    for row in cells:
        size = 2 * scale.half + 1
        bins = np.bincount(scale.bins_above(row), minlength=size) + np.bincount(
            scale.bins_above(-row), minlength=size
        )
        out = np.zeros(len(law) + size - 1)
        for k in np.flatnonzero(
            bins
        ).tolist():  # in this order on every machine: no library's convolution
            out[k : k + len(law)] += law * (bins[k] / (2 * len(row)))
        law = out
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
"""Of listed keys with nothing in them, one in a hundred lists shows one; no privacy depends on it."""

LISTS = pa.schema(
    [(name, pa.int64()) for name in ("window", "trigger", "sketch", "rank")]
    + [
        ("key_bytes", pa.binary()),
        ("value", pa.float64()),
        ("stderr", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)
SKETCHES = pa.schema(
    [(name, pa.int64()) for name in ("window", "trigger", "row")]
    + [("cells", pa.binary()), ("hash_key", pa.binary())]
)


@dataclass(frozen=True)
class ShownCells:
    """One sketch as it is read.

    Args:
        number: how many keys its list has; 0: no list.
        grid: value of one step of a cell.
        whole: values are integers.
        sd: of a cell's noise by trigger, in steps of the grid.
        stderr: of an estimate's noise, per standard deviation of a cell's.
    """

    number: int
    grid: float
    whole: bool
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
    """Nothing has been released."""
    brought = {name: np.zeros(0, np.int64) for name in ("window", *DIGEST)}
    return {
        "brought": pa.table(
            brought
            | {
                "key_bytes": pa.array([], pa.binary()),
                "since": np.zeros(0, np.int64),
                "passed_at": np.zeros(0, np.int64),
            }
        )
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
    window = published.column("window").to_numpy()
    trigger = published.column("trigger").to_numpy()
    order = sort_order(window, trigger, published.column("row").to_numpy())
    published = published.take(pa.array(order)).combine_chunks()
    starts = np.flatnonzero(run_starts(window[order], trigger[order])).tolist()
    passed_at = brought.column("passed_at").to_numpy().copy()
    lists = [LISTS.empty_table()]
    sketches = [SKETCHES.empty_table()]
    since = brought.column("since").to_numpy()
    over = list[int]()
    for low, high in zip(starts, [*starts, len(order)][1:], strict=True):
        rows = published.slice(low, high - low)
        start = int(window[order[low]])
        number = int(trigger[order[low]])
        mine = np.frombuffer(b"".join(rows.column("payload").to_pylist()), "<i8").reshape(
            -1, p.shape.depth, p.shape.width
        )
        key = hash_key(root, None if p.beta is None else start)
        if number == p.triggers:
            over.append(start)
        if p.beta is None or number == p.triggers:
            sketches.append(_sketch_rows(rows, key))
        if p.beta is None:
            shown, names = _listed(mine, key, number, p)
        else:
            here = np.flatnonzero(
                (brought.column("window").to_numpy() == start) & (since <= number)
            )
            fields = p.shape.fields(
                key, np.stack([brought.column(name).to_numpy()[here] for name in DIGEST], axis=1)
            )
            fresh = np.flatnonzero(passed_at[here] == 0)
            passed_at[here[fresh[_tested(mine, fields[:, fresh], number, p, p.beta)]]] = number
            public = np.flatnonzero(passed_at[here] > 0)
            shown = fields[:, public]
            names = brought.column("key_bytes").take(pa.array(here[public]))
        lists += [
            _list(mine[j], shown, names, start, number, j, p)
            for j, each in enumerate(p.sketches)
            if each.number
        ]
    is_open = ~np.isin(brought.column("window").to_numpy(), over)
    columns = {name: brought.column(name) for name in brought.column_names} | {
        "passed_at": passed_at
    }
    after = {"brought": pa.table(columns).filter(pa.array(is_open)).combine_chunks()}
    return Read(
        after, pa.concat_tables(lists).combine_chunks(), pa.concat_tables(sketches).combine_chunks()
    )


def _with(brought: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the keys of open windows, each once, with its first trigger: keys that come later come with later ones."""
    by = ("window", *DIGEST)
    new = [keys.column(name).to_numpy() for name in by]
    order = sort_order(*new, keys.column("trigger").to_numpy())
    head = order[run_starts(*(column[order] for column in new))]
    old = [brought.column(name).to_numpy() for name in by]
    low, high = find_rows([column[head] for column in new], old)
    fresh = head[low == high]
    where = places(low[low == high])
    columns: dict[str, Any] = {
        name: insert(o, n[fresh], where) for name, o, n in zip(by, old, new, strict=True)
    }
    both = pa.chunked_array(
        [*brought.column("key_bytes").chunks, *keys.column("payload").take(pa.array(fresh)).chunks],
        pa.binary(),
    )
    columns["key_bytes"] = both.take(
        pa.array(insert(np.arange(len(old[0])), len(old[0]) + np.arange(len(fresh)), where))
    ).combine_chunks()
    new_ones = {
        "since": keys.column("trigger").to_numpy()[fresh],
        "passed_at": np.zeros(len(fresh), np.int64),
    }
    return pa.table(
        columns
        | {
            name: insert(brought.column(name).to_numpy(), values, where)
            for name, values in new_ones.items()
        }
    )


def _tested(cells: Int, fields: Field, trigger: int, p: ReadParameters, beta: float) -> Int:
    """Return which keys pass in any of the sketches."""
    found = np.zeros(fields.shape[1], bool)
    for sketch, each in zip(cells, p.sketches, strict=True):
        found |= passes(sketch, p.shape.read(sketch, fields), each.sd[trigger - 1], beta)
    return found


def _listed(cells: Int, key: bytes, trigger: int, p: ReadParameters) -> tuple[Field, pa.Array]:
    """Return the named keys that stand out of the noise in some sketch."""
    if p.listed is None or not p.listed.digests:
        return np.zeros((p.shape.depth, 0), np.uint32), pa.array([], pa.binary())
    fields = p.shape.fields(key, np.array(p.listed.digests, np.int64))
    if not p.shape.signed:
        return fields, pa.array(p.listed.key_bytes, pa.binary())
    found = np.flatnonzero(_tested(cells, fields, trigger, p, STATISTICAL / fields.shape[1]))
    return fields[:, found], pa.array(p.listed.key_bytes, pa.binary()).take(pa.array(found))


def _list(
    cells: Int, fields: Field, names: pa.Array, window: int, trigger: int, j: int, p: ReadParameters
) -> pa.Table:
    """Return the largest estimates, then by value."""
    shown = p.sketches[j]
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    found = (
        joint(p.shape, cells, fields)
        if p.shape.signed
        else estimate(p.shape, p.shape.read(cells, fields)).astype(np.float64)
    )
    if shown.whole:
        found = np.rint(found)
    by_name = np.empty(len(names), np.int64)
    by_name[pc.sort_indices(names).to_numpy()] = np.arange(len(names))
    best = np.lexsort((by_name, -found))[: shown.number]
    size = len(best)
    value = found[best]
    low, high = interval(p.shape, cells, value, p.missed)
    if shown.whole:
        low = np.floor(low)
        high = np.ceil(high)
    stderr = shown.sd[trigger - 1] * shown.stderr
    columns = [
        np.full(size, window),
        np.full(size, trigger),
        np.full(size, j),
        np.arange(1, size + 1),
        names.take(pa.array(best)),
    ]
    numbers = (value, np.full(size, stderr), low, high)
    return pa.table([*columns, *(each * shown.grid for each in numbers)], schema=LISTS)


def _sketch_rows(rows: pa.Table, key: bytes) -> pa.Table:
    columns = [rows.column(name) for name in ("window", "trigger", "row", "payload")]
    return pa.table([*columns, pa.array([key] * rows.num_rows)], schema=SKETCHES)
