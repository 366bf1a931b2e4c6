"""What a bucket of units remembers of a table whose rows end: every live row, where each unit is or was present, and its slots.

Three sorted tables. Only what the images of a micro-batch name is looked at, everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from udfs.columns import Int, find, run_starts, sort_order
from udfs.dynamic.versions import Presence, Used, Version
from udfs.stage import Tables
from udfs.state_table import Table

TABLES = {
    "live": Table(("user", "row", "copy"), "user"),
    "presences": Table(("user", "key"), "user"),
    "slots": Table(("user", "key", "slot"), "user"),
}
PRESENCE = ("rows", "live", "spells", "rank", "until")

Live = dict[int, list[Version]]
Presences = dict[int, Presence]


def schemas(values: int) -> dict[str, pa.Schema]:
    """live: a row of the table (`row`, and which of its equal copies), the key and increments that it began with, the trigger and place in the
    feed of that, and its slot. presences: what a unit has used of a key, as in `udfs.dynamic.versions.Presence`. slots: when each is free.
    """
    int64 = pa.int64()
    live = [("user", int64), ("row", int64), ("copy", pa.int32()), ("key", int64), ("key_bytes", pa.binary()), ("slot", pa.int32())]
    live += [("begin", int64), ("seq", int64), *((f"v{j}", int64) for j in range(values))]
    presences = [("user", int64), ("key", int64), *((name, int64 if name == "until" else pa.int32()) for name in PRESENCE)]
    slots = [("user", int64), ("key", int64), ("slot", pa.int32()), ("free_from", int64)]
    return {"live": pa.schema(live), "presences": pa.schema(presences), "slots": pa.schema(slots)}


def empty_state(values: int) -> Tables:
    """The state of a bucket that has seen nothing."""
    return {name: schema.empty_table() for name, schema in schemas(values).items()}


@dataclass(frozen=True)
class Opened:
    """What a micro-batch can change, as values that may be changed; what of the state it is; what each unit has used in all."""

    units: dict[int, tuple[Live, Presences, Used]]
    at: dict[str, Int]


def opened(state: Tables, user: Int, row: Int, key: Int) -> Opened:
    """The rows that images name, and their units in the keys that they or these rows name."""
    columns = {name: [state[name].column(by).to_numpy() for by in TABLES[name].sorted_by] for name in TABLES}
    at = {"live": _found(_distinct(user, row), columns["live"][:2])}
    theirs = [state["live"].column(name).to_numpy()[at["live"]] for name in ("user", "key")]
    pairs = _distinct(*(np.concatenate(both) for both in zip((user, key), theirs, strict=True)))
    at |= {name: _found(pairs, columns[name][:2]) for name in ("presences", "slots")}
    units = _used(state["presences"], np.unique(user))
    for unit, named, _, its_key, key_bytes, slot, begin, seq, *values in _rows_of(state["live"], at["live"]):
        units[unit][0].setdefault(named, []).append(Version(its_key, key_bytes, slot, begin, seq, tuple(values)))
    for unit, its_key, *used in _rows_of(state["presences"], at["presences"]):
        units[unit][1][its_key] = Presence(*used)
    for unit, its_key, _, free_from in _rows_of(state["slots"], at["slots"]):
        units[unit][1][its_key].free_from.append(free_from)
    return Opened(units, at)


def closed(state: Tables, known: Opened) -> Tables:
    """The tables with what is known now."""
    given: dict[str, Iterable[Any]] = {
        "live": (
            (user, row, copy, v.key, v.key_bytes, v.slot, v.begin, v.seq, *v.values)
            for user, (live, _, _) in known.units.items()
            for row, copies in live.items()
            for copy, v in enumerate(copies)
        ),
        "presences": (
            (user, key, presence.rows, presence.live, presence.spells, presence.rank, presence.until)
            for user, (_, presences, _) in known.units.items()
            for key, presence in presences.items()
        ),
        "slots": (
            (user, key, slot, free_from)
            for user, (_, presences, _) in known.units.items()
            for key, presence in presences.items()
            for slot, free_from in enumerate(presence.free_from)
        ),
    }
    return {name: _sorted(name, _without(state[name], known.at[name]), given[name]) for name in TABLES}


def _used(presences: pa.Table, users: Int) -> dict[int, tuple[Live, Presences, Used]]:
    """Of each unit, over all keys: versions that have counted, keys, spells."""
    low, high = find([users], [presences.column("user").to_numpy()])
    total = {name: np.concatenate([[0], np.cumsum(presences.column(name).to_numpy(), dtype=np.int64)]) for name in ("rows", "spells")}
    sums = [(total[name][high] - total[name][low]).tolist() for name in ("rows", "spells")]
    return {user: ({}, {}, Used(*used)) for user, *used in zip(users.tolist(), sums[0], (high - low).tolist(), sums[1], strict=True)}


def _distinct(*columns: Int) -> list[Int]:
    order = sort_order(*columns)
    ordered = [column[order] for column in columns]
    starts = run_starts(*ordered)
    return [column[starts] for column in ordered]


def _found(wanted: list[Int], table: list[Int]) -> Int:
    """Where a sorted table has the rows of which these are the first columns; ascending."""
    low, high = find(wanted, table)
    size = high - low
    return np.repeat(low - (np.cumsum(size) - size), size) + np.arange(size.sum())


def _without(table: pa.Table, at: Int) -> pa.Table:
    kept = np.ones(table.num_rows, bool)
    kept[at] = False
    return table.filter(pa.array(kept))


def _rows_of(table: pa.Table, at: Int) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.take(pa.array(at)).columns), strict=True)


def _sorted(name: str, others: pa.Table, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or list(repeat((), others.num_columns))
    mine = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, others.schema.types, strict=True)], schema=others.schema
    )
    whole = pa.concat_tables([others, mine]).combine_chunks()
    return whole.take(pa.array(sort_order(*(whole.column(by).to_numpy() for by in TABLES[name].sorted_by)))).combine_chunks()
