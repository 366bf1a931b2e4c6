"""What following a change feed costs, beside the intake of a table that only grows: both intakes, in turn, over the same changes.

    python benchmarks/papers/dynamic.py [live rows] [micro-batches] [changes of each] [buckets]      CPU of a change, bytes of state
    python benchmarks/papers/dynamic.py --quiet                                                      a trigger without changes, 100,000 shown keys
    python benchmarks/papers/dynamic.py --ended                                                      places of rows that have ended: bytes, CPU

Feed: a table of 100,000 rows of 50,000 units in 1,000 keys. Each micro-batch updates or deletes rows and inserts as many again, so that the
number of live rows stays the same. C = 8, c = 2: slots are kept. A change is an image of the feed, and a record of the table that only grows.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from dpsql.mechanisms.dynamic.planner import make_plan  # noqa: E402
from dpsql.mechanisms.dynamic.stages import stages  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.columns import Int, mix  # noqa: E402
from dpsql.udfs.keys import PublicGroups  # noqa: E402
from dpsql.udfs.stage import Clock, Stage, Tables, Tick, run_bucket  # noqa: E402
from tests.mechanisms.dynamic import plans  # noqa: E402

SEED = 20220903
UNITS_PER_ROW = 2
KEYS = 1_000


def feed(live: int, batches: int, changes: int) -> Iterator[pa.Table]:
    """First the whole table, then so many images in each micro-batch: a third updates, a third deletes, a third inserts."""
    chance = np.random.default_rng(SEED)
    row = np.arange(live)
    key = chance.integers(0, KEYS, live)
    yield _images(row, key, np.ones(live, np.int64), 0)
    following = live
    for batch in range(1, batches + 1):
        part = changes // 4
        there = chance.choice(live, 2 * part, replace=False)
        ends = row[there], key[there]
        key[there] = chance.integers(0, KEYS, 2 * part)
        row[there[part:]] = following + np.arange(part)
        following += part
        begins = row[there], key[there]
        kinds = np.repeat([-1, 1], 2 * part)
        yield _images(
            *(np.concatenate(both) for both in zip(ends, begins, strict=True)), kinds, batch
        )


def _images(row: Int, key: Int, kind: Int, batch: int) -> pa.Table:
    """Records as both intakes take them. A unit has two rows at a time, whatever their numbers."""
    unit = row % 100_000 // UNITS_PER_ROW
    names = pa.array([b"key %d" % number for number in range(KEYS)], pa.binary())
    hashes = mix(np.arange(KEYS)).view(np.int64)
    table = {
        "drop": pa.array(np.zeros(len(row)), pa.int8()),
        "user": mix(unit).view(np.int64),
        "row": mix(row, np.full(len(row), 7)).view(np.int64),
        "seq": np.full(len(row), batch),
        "ts": np.full(len(row), plans.START + batch * plans.HOUR),
        "key": hashes[key],
        "kind": pa.array(kind, pa.int8()),
        "key_bytes": names.take(pa.array(key)),
    }
    return pa.table(table | {"a0": np.asarray(row % 100, np.float64)})


def intakes() -> tuple[Stage[Clock], Stage[Clock]]:
    """Of a change feed, and of a table that only grows, for one query."""
    bounds = {"max_rows_contributed": 8, "max_rows_per_group": 2, "max_groups_contributed": 8}
    of_changes = make_plan(plans.query(feed=plans.FEED, **bounds), plans.source())
    growing = make_plan(plans.query(**bounds), plans.source())
    return stages(of_changes)[0], stages(growing)[0]


def measure(live: int, batches: int, changes: int, buckets: int) -> None:
    """CPU and state, told for every tenth of the micro-batches."""
    pair = intakes()
    states: list[list[Tables]] = [[stage.empty() for _ in range(buckets)] for stage in pair]
    spent: list[list[float]] = [[], []]
    for batch, images in enumerate(feed(live, batches, changes)):
        unit = images["user"].to_numpy().view(np.uint64) % np.uint64(buckets)
        parts = [images.filter(pa.array(unit == bucket)) for bucket in range(buckets)]
        clock = Clock(
            plans.START + (batch - 1) * plans.HOUR, plans.START + (batch + 1) * plans.HOUR
        )
        for which, stage in enumerate(pair):
            given = [part.select(stage.takes.names) for part in parts]
            begun = time.process_time()
            for bucket, part in enumerate(given):
                states[which][bucket] = stage.step(states[which][bucket], part, clock, b"").state
            if batch:
                spent[which].append((time.process_time() - begun) / images.num_rows * 1e6)
        if batch % max(batches // 10, 1) == 0:
            told = {name: sum(state[name].num_rows for state in states[0]) for name in states[0][0]}
            size = sum(state["live"].nbytes for state in states[0])
            us = [
                statistics.median(times[-max(batches // 10, 1) :]) if times else 0.0
                for times in spent
            ]
            ratio = us[0] / us[1] if us[1] else 0.0
            print(
                f"{batch * changes:>10,} changes: {us[0]:.2f} us, growing {us[1]:.2f} us, ratio {ratio:.2f}; live {size:,} bytes; {told}",
                flush=True,
            )


def quiet(keys: int, triggers: int) -> None:
    """Seconds of CPU of one trigger at which nothing changes."""
    plan = make_plan(plans.query(feed=plans.FEED), plans.source())
    names = tuple(b"key %d" % number for number in range(keys))
    hashes = mix(np.arange(keys)).view(np.int64)
    release = stages(
        replace(plan, selection=None), PublicGroups(tuple(hashes.tolist()), names, plans.START)
    )[1]
    state = release.empty()
    for trigger in range(1, triggers + 1):
        begun = time.process_time()
        done = release.step(
            state,
            release.takes.empty_table(),
            [Tick(trigger, plans.START + trigger * plans.HOUR)],
            b"k" * 32,
        )
        state = done.state
        print(
            f"trigger {trigger}: {done.rows.num_rows:,} rows, {time.process_time() - begun:.2f} s"
        )


def ended(counts: Sequence[int], changes: int) -> None:
    """Bytes of the places of rows that have ended, and CPU of a micro-batch that a bucket with them follows: load, step, store."""
    stage, _ = intakes()
    for count in counts:
        clock = Clock(plans.START, plans.START + plans.HOUR)
        rows = np.arange(count + 10 * changes)
        key = rows % KEYS
        with tempfile.TemporaryDirectory() as folder:
            store = BucketFiles(folder, "admission", 1, 1, tuple(stage.tables))
            sequence = 0
            spent = []
            for start, end in pairwise([0, *range(count, count + 6 * changes, changes)]):
                part = np.tile(rows[start:end], 2)
                images = _images(part, key[part], np.repeat([1, -1], end - start), 0)
                columns = dict(zip(images.column_names, images.columns, strict=True))
                columns["seq"] = pa.array(100 * part + np.repeat([1, 2], end - start))
                columns["ts"] = pa.array(plans.START + 1_000 * part)
                images = pa.table(columns).select(stage.takes.names)
                begun = time.process_time()
                report, _ = run_bucket(stage, store, 0, sequence, images, clock)
                spent.append(time.process_time() - begun)
                sequence = report.sequence
            size = Path(store.folder(0), f"{sequence:06d}.ended.parquet").stat().st_size
            stored = store.load(0, sequence)["ended"].num_rows
        print(
            f"{stored:>9,} ended rows: {size / 1e6:.1f} MB, {statistics.median(spent[1:]):.2f} s for {2 * changes:,} images",
            flush=True,
        )


def main() -> None:
    """By the first argument."""
    if sys.argv[1:2] == ["--quiet"]:
        quiet(100_000, 4)
    elif sys.argv[1:2] == ["--ended"]:
        ended((0, 100_000, 1_000_000), 5_000)
    else:
        measure(
            *(
                int(given)
                for given in (sys.argv[1:] + ["100000", "100", "100000", "4"][len(sys.argv) - 1 :])
            )
        )


if __name__ == "__main__":
    main()
