"""What becomes public: lists of the largest keys, and the sketches; pure, and after all noise.

A key that no record of another unit brought must not appear, and no budget is spent on that: every key that was brought so far in its window
is held against the floor test at every trigger, also without new records. What passed once stays public. While keys are unknown the hash
key of a window is secret, and its cells are published when it closes, with the key, and not before.
"""

from __future__ import annotations

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
from dpsql.udfs.stage import Tables
from dpsql.udfs.state_table import Table

TABLES = {"brought": Table(("window", *DIGEST), "window")}
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
class Shown:
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
class Listed:
    """Keys that are named beforehand: digests (n, 4) as tuples, and encodings."""

    digests: tuple[tuple[int, int, int, int], ...]
    key_bytes: tuple[bytes, ...]


@dataclass(frozen=True)
class ReadParameters:
    """Concrete numbers; no secret. `triggers`: of a window. `beta`: of the floor test at each trigger, where keys are unknown; else None, with
    `listed` or without. `missed`: of `estimates.interval`."""

    shape: Shape
    triggers: int
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
    """The keys of open windows, each once, with its first trigger: keys that come later come with later ones."""
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
    """Which keys pass in any of the sketches."""
    found = np.zeros(fields.shape[1], bool)
    for sketch, each in zip(cells, p.sketches, strict=True):
        found |= passes(sketch, p.shape.read(sketch, fields), each.sd[trigger - 1], beta)
    return found


def _listed(cells: Int, key: bytes, trigger: int, p: ReadParameters) -> tuple[Field, pa.Array]:
    """The named keys that stand out of the noise in some sketch."""
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
    """The largest estimates, then by value."""
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
