"""The release as a stage: noisy cells, then what is read from them. One row per window and trigger, whatever was counted.

A bucket has whole windows, so that lists need no other place where the rows of buckets meet: state, retries, restores and other numbers of
buckets are those of every stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.sketch import reading, state
from dpsql.udfs.sketch.lists import pack
from dpsql.udfs.sketch.reading import Read, ReadParameters, read
from dpsql.udfs.sketch.release import CELLS, ReleaseStage
from dpsql.udfs.stage import RELEASE, Stepped, Tables, Tick
from dpsql.udfs.state_table import Table

SKETCH = pa.schema([("cells", pa.binary()), ("hash_key", pa.binary())])
"""Of a released row: the cells that it publishes, row after row of all sketches; no cells where it publishes none."""


@dataclass(frozen=True)
class SketchRelease:
    """Partial sketches, candidates and ticks to lists and published cells.

    Released, once per (window, trigger): a packed list `c0, c1, ..` of each sketch (`dpsql.udfs.sketch.lists`), and SKETCH.
    """

    release: ReleaseStage
    reads: ReadParameters
    operator: ClassVar[str] = RELEASE
    tables: ClassVar[Mapping[str, Table]] = state.TABLES | reading.TABLES

    @property
    def takes(self) -> pa.Schema:
        """What the intake gives, with the micro-batch that it came in."""
        return self.release.takes

    @property
    def gives(self) -> pa.Schema:
        """Lists and cells."""
        lists = [pa.field(f"c{i}", pa.binary()) for i in range(len(self.reads.sketches))]
        return pa.schema(
            [
                ("window", pa.int64()),
                ("trigger", pa.int64()),
                ("key_bytes", pa.binary()),
                *lists,
                *SKETCH,
            ]
        )

    def empty(self) -> Tables:
        """Nothing is closed, nothing has been released."""
        return self.release.empty() | reading.empty_state()

    def for_bucket(self, bucket: int, buckets: int) -> SketchRelease:
        """With the windows of one bucket."""
        return replace(self, release=self.release.for_bucket(bucket, buckets))

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """Close what the ticks close, and read it."""
        done = self.release.step(
            {name: state[name] for name in self.release.tables}, rows, now, noise_key
        )
        shown = read(
            {name: state[name] for name in reading.TABLES},
            done.rows,
            self.reads,
            intake_key(noise_key),
        )
        return Stepped(done.state | shown.state, self._rows(done.rows, shown), done.counted)

    def _rows(self, released: pa.Table, shown: Read) -> pa.Table:
        is_first = (released.column("kind").to_numpy() == CELLS) & (
            released.column("row").to_numpy() == 0
        )
        pairs = released.filter(pa.array(is_first)).select(["window", "trigger"])
        pairs = pairs.sort_by([("window", "ascending"), ("trigger", "ascending")])
        lists = _by_pair(shown.lists)
        cells = _by_pair(shown.sketches)
        nothing = shown.lists.slice(0, 0)
        none = shown.sketches.slice(0, 0)
        out = []
        for pair in zip(*(column.to_pylist() for column in pairs.columns), strict=True):
            mine = lists.get(pair, nothing)
            each = [
                mine.filter(pa.array(mine.column("sketch").to_numpy() == j))
                for j in range(len(self.reads.sketches))
            ]
            out.append((*pair, b"", *map(pack, each), *_published(cells.get(pair, none))))
        return (
            pa.table([list(column) for column in zip(*out, strict=True)], schema=self.gives)
            if out
            else self.gives.empty_table()
        )


def _by_pair(rows: pa.Table) -> dict[tuple[int, int], pa.Table]:
    """The rows of each (window, trigger), in their order."""
    window = rows.column("window").to_numpy()
    trigger = rows.column("trigger").to_numpy()
    pairs = sorted(set(zip(window.tolist(), trigger.tolist(), strict=True)))
    return {(w, t): rows.filter(pa.array((window == w) & (trigger == t))) for w, t in pairs}


def _published(rows: pa.Table) -> tuple[bytes, bytes]:
    if not rows.num_rows:
        return b"", b""
    rows = rows.take(pa.array(np.argsort(rows.column("row").to_numpy(), kind="stable")))
    return b"".join(rows.column("cells").to_pylist()), rows.column("hash_key")[0].as_py()
