"""The intake where one record is protected: it has no state, and counts equal values before it sketches them.

Of a window and a trigger every value is hashed once, whatever number of records brings it: cells are sums, so this changes no bit of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_starts, sort_order
from dpsql.udfs.intake.contribution_bounding import open_copies
from dpsql.udfs.sketch.hashing import Field, distinct_digests
from dpsql.udfs.sketch.intake import IntakeParameters, in_time
from dpsql.udfs.sketch.partial import SCHEMA, cell_rows, key_rows
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables

FEW = 4
"""Values per record from which on the values of a piece are sorted, in the place of counted by number."""


@dataclass(frozen=True)
class EventIntake(Intake):
    """Records to partial sketches and candidate keys."""

    parameters: IntakeParameters
    arguments: int
    integers: ClassVar[tuple[str, ...]] = ("ts",)

    @property
    def gives(self) -> pa.Schema:
        """Partial sketches and candidate keys."""
        return SCHEMA

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """`noise_key` is the root of the run's hash keys (`hashing.hash_key`)."""
        p = self.parameters
        rows, drops = in_time(rows, now, p)
        values, value, names = distinct_digests(rows.column("key_bytes"))
        record, window, trigger = _places(rows.column("ts").to_numpy(), now, p)
        added = [None if each.rule == "rows" else each.of(rows) for each in p.contributions]
        cells = []
        brought = []
        fields = dict[int, Field]()
        for low, high, at in _pieces(window, trigger):
            here = slice(low, high) if record is None else record[low:high]
            present, sums = _summed(
                value[here], len(values), [None if each is None else each[here] for each in added]
            )
            hashed_under = at[0] if p.unknown_keys else 0
            if hashed_under not in fields:
                fields[hashed_under] = p.shape.fields(p.hash_key(noise_key, at[0]), values)
            for row in range(p.shape.depth):
                there = fields[hashed_under][row][present]
                cells += [
                    (*at, number * p.shape.depth + row, p.shape.sums(there, each))
                    for number, each in enumerate(sums)
                ]
            brought.append((at, present))
        out = [cell_rows(cells)]
        if p.unknown_keys and brought:
            out.append(_brought(brought, values, names))
        done = pa.concat_tables(out).combine_chunks()
        return Stepped({}, done, {"drops": {reason: n for reason, n in drops.items() if n}})


def _places(ts: Int, now: Clock, p: IntakeParameters) -> tuple[Int | None, Int, Int]:
    """Every (record, window, trigger) that is open, in order of window and trigger; None for the records where all are, in their own order."""
    if len(ts) and p.grid.windows_per_record == 1:
        _, first, at = open_copies(np.array([ts.min(), ts.max()]), now, p)
        if len(at) == 2 and first[0] == first[1] and at[0] == at[1]:
            return (
                None,
                np.full(len(ts), first[0]),
                np.full(len(ts), at[0]),
            )  # one window, one trigger, as in most micro-batches
    record, window, trigger = open_copies(ts, now, p)
    order = sort_order(window, trigger)
    return record[order], window[order], trigger[order]


def _pieces(window: Int, trigger: Int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Where each (window, trigger) begins and ends."""
    starts = np.flatnonzero(run_starts(window, trigger))
    for low, high in zip(starts.tolist(), np.append(starts, len(window))[1:].tolist(), strict=True):
        yield low, high, (int(window[low]), int(trigger[low]))


def _summed(value: Int, values: int, added: list[Int | None]) -> tuple[Int, list[Int]]:
    """The values that are there, and per sketch what their records add."""
    if values > FEW * len(value):
        present, value = np.unique(value, return_inverse=True)
    else:
        present = np.arange(values)
    counts = np.bincount(value, minlength=len(present))
    sums = [counts if each is None else np.zeros(len(present), np.int64) for each in added]
    for total, each in zip(sums, added, strict=True):
        if each is not None:
            np.add.at(total, value, each)
    there = np.flatnonzero(counts)
    return present[there], [each[there] for each in sums]


def _brought(brought: list[tuple[tuple[int, int], Int]], values: Int, names: pa.Array) -> pa.Table:
    """Every (window, value) once, with its earliest trigger: pieces come in order."""
    value = np.concatenate([present for _, present in brought])
    window, trigger = (
        np.concatenate([np.full(len(present), at[i]) for at, present in brought]) for i in (0, 1)
    )
    order = sort_order(window, *values[value].T, trigger)
    head = order[run_starts(window[order], value[order])]
    return key_rows(
        window[head], trigger[head], values[value[head]], names.take(pa.array(value[head]))
    )
