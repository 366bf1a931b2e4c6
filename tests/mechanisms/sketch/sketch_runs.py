"""Sketch queries over streams of records, by the product's own steps: any cut, any number of buckets."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.mechanisms.sketch.plan import SketchChoices, SketchLimits, SketchPlan, Wanted
from dpsql.mechanisms.sketch.stages import intake, reading, release
from dpsql.parsed_query import ContributionPeriod, ParsedQuery, PrivacyLevel, WindowSpec
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.sketch.hashing import digest
from dpsql.udfs.sketch.reading import ListedKeys, Read, empty_state, read_release
from dpsql.udfs.stage import Clock, Tables, Tick, check_state
from tests.property.plans import COMMON, DAY, HOUR, parsed

START = 20_000 * DAY
ROOT = hashlib.sha256(b"root").digest()
COUNT = Wanted("top", 5)
ONLY_ASKED = Wanted("cells", 0)


def noise_key(seed: int = 1) -> bytes:
    return hashlib.sha256(b"sketch %d" % seed).digest()


def query(**changes: Any) -> ParsedQuery[SketchChoices]:
    """APPROX_TOP_COUNT of a page, one day in hours, C = 4, c = 1, 5 x 64; any field can be changed."""
    fields: dict[str, Any] = {
        "level": PrivacyLevel.USER,
        "value": "page",
        "wanted": (COUNT,),
        "depth": 5,
        "width": 64,
    }
    fields |= {
        "bounds": SketchLimits(4, 1, 4),
        "epsilon": 2.0,
        "delta": 1e-6,
        "contribution_period": ContributionPeriod.WINDOW,
    }
    fields |= {
        "window": WindowSpec(DAY, DAY, 0),
        "trigger_interval_us": 4 * HOUR,
        "keys": (),
        "aggregates": (),
    }
    fields |= {"columns_in_order": ("top",)}
    return parsed(COMMON | fields | changes, "sketch", SketchChoices)


def event(**changes: Any) -> ParsedQuery[SketchChoices]:
    """The same where one record is protected."""
    return query(level=PrivacyLevel.EVENT, bounds=None, **changes)


def public(**changes: Any) -> ParsedQuery[SketchChoices]:
    """With listed values, or none."""
    return query(public_groups="SELECT page FROM pages", **changes)


def records(
    users: Sequence[int],
    ts: Sequence[int],
    keys: Sequence[bytes],
    values: Sequence[float] | None = None,
) -> pa.Table:
    columns = {
        "drop": pa.array(np.zeros(len(ts), np.int8)),
        "user": pa.array(users, pa.int64()),
        "ts": pa.array(ts, pa.int64()),
    }
    columns |= {"key_bytes": pa.array(keys, pa.binary())}
    return pa.table(
        columns | ({"a0": pa.array(values, pa.float64())} if values is not None else {})
    )


def listed(keys: Sequence[bytes]) -> ListedKeys:
    numbers = [tuple(np.frombuffer(digest(key), "<i8").tolist()) for key in keys]
    return ListedKeys(tuple(numbers), tuple(keys))  # type: ignore[arg-type]


class Run:
    """One run: micro-batches of records, then ticks; buckets of the intake, of the release, and everything read once."""

    def __init__(
        self,
        plan: SketchPlan,
        seed: int = 1,
        buckets: tuple[int, int] = (1, 1),
        keys: Sequence[bytes] = (),
    ) -> None:
        self.plan = plan
        self.key = noise_key(seed)
        self.buckets = buckets
        self.stages = intake(plan, START), release(plan, START)
        self.p = reading(plan, listed(keys) if keys else None)
        self.state: list[dict[int, Tables]] = [
            {b: stage.empty() for b in range(n)}
            for stage, n in zip(self.stages, buckets, strict=True)
        ]
        self.read: Read = Read(empty_state(), *[pa.table({})] * 2)
        self.waiting: list[pa.Table] = []
        self.released: list[pa.Table] = []
        self.batch = 0
        self.closed = NO_CLOCK

    def feed(self, rows: pa.Table, latest_us: int = 1 << 60) -> None:
        rows = rows.select([name for name in self.stages[0].takes.names])
        by = (
            rows.column("user" if "user" in rows.column_names else "ts").to_numpy()
            % self.buckets[0]
        )
        for bucket in range(self.buckets[0]):
            some = rows.filter(pa.array(by == bucket))
            done = self.stages[0].step(
                self.state[0][bucket], some, Clock(self.closed, latest_us), ROOT
            )
            check_state(self.stages[0], done.state)
            self.state[0][bucket] = done.state
            self.waiting.append(
                done.rows.append_column("batch", pa.array(np.full(done.rows.num_rows, self.batch)))
            )
        self.batch += 1

    def tick(self, closed_us: int) -> pa.Table:
        """Close the grid; the lists that are published."""
        rows = pa.concat_tables(self.waiting or [self.stages[1].takes.empty_table()])
        by = rows.column("key").to_numpy() % self.buckets[1]
        out = []
        for bucket in range(self.buckets[1]):
            stage = self.stages[1].for_bucket(bucket, self.buckets[1])
            done = stage.step(
                self.state[1][bucket],
                rows.filter(pa.array(by == bucket)),
                [Tick(self.batch, closed_us)],
                self.key,
            )
            check_state(stage, done.state)
            self.state[1][bucket] = done.state
            out.append(done.rows)
        self.waiting = []
        self.closed = closed_us
        self.released.append(pa.concat_tables(out).combine_chunks())
        self.read = read_release(self.read.state, self.released[-1], self.p, ROOT)
        return self.read.lists


def cells_of(released: pa.Table, plan: SketchPlan, trigger: int, window: int = START) -> np.ndarray:
    """(rows, width): the published cells of a trigger; 0 where there are none."""
    asked = plan.query.asked
    out = np.zeros((asked.depth * len(plan.cells), asked.width), np.int64)
    for row in released.to_pylist():
        if row["kind"] == 0 and row["window"] == window and row["trigger"] == trigger:
            out[row["row"]] = np.frombuffer(row["payload"], "<i8")
    return out
