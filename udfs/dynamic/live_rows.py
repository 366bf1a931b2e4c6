"""What a bucket of units remembers of a table whose rows end: every live row, where each unit is or was present, and its slots.

Three sorted tables. Only the units of a micro-batch are looked at, the rows of all others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from udfs.columns import Int, sort_order
from udfs.dynamic.versions import Presence, Version
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


def opened(state: Tables, users: Int) -> dict[int, tuple[Live, Presences]]:
    """What is known of some units, as values that may be changed."""
    units: dict[int, tuple[Live, Presences]] = {user: ({}, {}) for user in users.tolist()}
    for user, row, _, key, key_bytes, slot, begin, seq, *values in _rows_of(state["live"], users):
        units[user][0].setdefault(row, []).append(Version(key, key_bytes, slot, begin, seq, tuple(values)))
    for user, key, *used in _rows_of(state["presences"], users):
        units[user][1][key] = Presence(*used)
    for user, key, _, free_from in _rows_of(state["slots"], users):
        units[user][1][key].free_from.append(free_from)
    return units


def closed(state: Tables, units: dict[int, tuple[Live, Presences]]) -> Tables:
    """The tables with what is known of these units now."""
    users = np.array(list(units), np.int64)
    given: dict[str, Iterable[Any]] = {
        "live": (
            (user, row, copy, v.key, v.key_bytes, v.slot, v.begin, v.seq, *v.values)
            for user, (live, _) in units.items()
            for row, copies in live.items()
            for copy, v in enumerate(copies)
        ),
        "presences": (
            (user, key, *(getattr(presence, name) for name in PRESENCE))
            for user, (_, presences) in units.items()
            for key, presence in presences.items()
        ),
        "slots": (
            (user, key, slot, free_from)
            for user, (_, presences) in units.items()
            for key, presence in presences.items()
            for slot, free_from in enumerate(presence.free_from)
        ),
    }
    return {name: _sorted(name, state[name].filter(pa.array(~_among(state[name], users))), given[name]) for name in TABLES}


def _among(table: pa.Table, users: Int) -> np.ndarray:
    return np.isin(table.column("user").to_numpy(), users)


def _rows_of(table: pa.Table, users: Int) -> Iterator[tuple[Any, ...]]:
    theirs = table.filter(pa.array(_among(table, users)))
    return zip(*(column.to_pylist() for column in theirs.columns), strict=True)


def _sorted(name: str, others: pa.Table, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or list(repeat((), others.num_columns))
    mine = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, others.schema.types, strict=True)], schema=others.schema
    )
    whole = pa.concat_tables([others, mine]).combine_chunks()
    return whole.take(pa.array(sort_order(*(whole.column(by).to_numpy() for by in TABLES[name].sorted_by)))).combine_chunks()
