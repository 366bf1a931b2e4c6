"""What the stages of every mechanism must pass, on the local feeder: the released bits depend on records, clock and noise key alone. Each
function takes a mechanism's two stages and raises if they break it. `tests/unit/test_contract.py` holds the registry against them, and
planted stages that are broken."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.lake.rescale import recut
from dpsql.local.feeder import Feeder, MemoryState, Stages, split
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import PublicGroups, encode
from dpsql.udfs.sketch.partial import KEY, add_cells
from dpsql.udfs.stage import (
    BEGIN,
    END,
    OPERATORS,
    RELEASE,
    Clock,
    Stage,
    Tables,
    Tick,
    check_state,
    run_bucket,
)
from tests.sweeps import sweep

HOUR = 3_600_000_000
START = 19_700 * 24 * HOUR
TICKS = (START + 9 * HOUR, START + 48 * HOUR)
LATEST = START + 72 * HOUR
NOISE_KEY = bytes(range(32))
KEYS = 12
UNITS = 90
STREAMS = sweep(8, 20)
ALL_BUCKETS = 12
"""Units whose ids differ by multiples of it share a bucket, whether there are 1, 2, 3 or 4."""
GROUP = ("window", "trigger", "key", "user", "level", "leaf")


def records(stage: Stage[Any], seed: int, size: int, low_us: int, high_us: int) -> pa.Table:
    """Records in order of time, no two at the same: then a cut decides nothing (docs/privacy/index.md, theorem 8). Where the intake takes the
    images of a change feed, most begin rows, some end them."""
    arguments = sum(re.fullmatch(r"a\d+", name) is not None for name in stage.takes.names)
    chance = np.random.default_rng(seed)
    ids = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, UNITS + KEYS)
    key = np.minimum(chance.geometric(0.3, size) - 1, KEYS - 1)
    table: dict[str, Any] = {
        "drop": np.zeros(size, np.int8),
        "user": ids[chance.integers(0, UNITS, size)],
    }
    table["ts"] = np.sort(chance.choice(np.arange(low_us, high_us, 1_000_000), size, replace=False))
    table["key"] = ids[UNITS + key]
    table["key_bytes"] = pa.array([encode([b"key %d" % number]) for number in key], pa.binary())
    table |= {f"a{i}": chance.uniform(-5, 80, size) for i in range(arguments)}
    if "kind" in stage.takes.names:
        table |= {"row": chance.integers(0, 4, size), "seq": table["ts"]}
        table |= {"kind": np.where(chance.random(size) < 0.7, BEGIN, END).astype(np.int8)}
    return pa.table(table)


def listed() -> PublicGroups:
    """Half of the keys of `records`, and one that no record has."""
    ids = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, UNITS + KEYS)[UNITS:].tolist()
    keys = sorted(
        [
            *((ids[number], encode([b"key %d" % number])) for number in range(0, KEYS, 2)),
            (77, encode([b"key none"])),
        ]
    )
    return PublicGroups(tuple(key for key, _ in keys), tuple(name for _, name in keys), START)


@dataclass(frozen=True)
class Way:
    """How the same records are run: pieces, their inner order, numbers of buckets before and after the first tick, repetitions,
    micro-batches without a record."""

    pieces: int = 1
    shuffled: bool = False
    buckets: tuple[int, int] = (1, 1)
    then: tuple[int, int] | None = None
    retried: bool = False
    restarted: bool = False
    empty: bool = False


def run(
    stages: Stages,
    folder: Path,
    way: Way = Way(),
    extra: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> list[Any]:
    """The released rows of all ticks, sorted, as Python values that tell every bit."""
    stores = (
        _stores(stages, folder, way.buckets, 1)
        if way.retried
        else tuple(map(MemoryState, way.buckets))
    )
    feeder = Feeder(stages, NOISE_KEY, stores=stores)
    out = list[pa.Table]()
    closed = Clock().closed_us
    for number, until in enumerate(TICKS):
        if number and way.restarted:
            feeder = _again(stages, feeder, stores)
        if number and way.then:
            after = tuple(map(MemoryState, way.then))
            feeder = _rescaled(stages, feeder, stores, after)
            stores = after
        rows = extra(
            records(
                stages[0], number, 400, closed if number else START, min(until, START + 40 * HOUR)
            )
        )
        for piece in _pieces(rows, way):
            for _ in range(1 + way.retried):
                before = {
                    operator: dict(versions) for operator, versions in feeder.sequence.items()
                }
                batch = feeder.batch
                feeder.micro_batch(piece, Clock(closed, LATEST))
                if way.retried and _ == 0:
                    feeder.sequence = before
                    feeder.batch = batch
        out += feeder.tick(until)
        closed = until
    return _bits(pa.concat_tables(out))


@lru_cache(maxsize=1)
def plain(stages: Stages) -> list[Any]:
    """The released rows of records that come in one piece; the same for all parts of the contract."""
    return run(stages, Path())


def cut_order_and_buckets(stages: Stages, folder: Path) -> None:
    """Any cut into micro-batches, any order inside one, any number of buckets: the same bits."""
    _same(
        stages,
        folder,
        Way(pieces=5),
        Way(shuffled=True),
        Way(buckets=(3, 4)),
        Way(pieces=3, shuffled=True, buckets=(2, 7)),
    )


def rescale(stages: Stages, folder: Path) -> None:
    """Other numbers of buckets from one moment on: the same bits."""
    _same(
        stages, folder, Way(buckets=(4, 3), then=(3, 5)), Way(pieces=2, buckets=(1, 2), then=(2, 1))
    )


def retry_and_restart(stages: Stages, folder: Path) -> None:
    """Micro-batches that are done twice from the same state, and a new process between two ticks: the same bits."""
    _same(
        stages,
        folder,
        Way(pieces=3, buckets=(2, 2), retried=True),
        Way(buckets=(2, 2), restarted=True),
    )


def any_way(stages: Stages, folder: Path) -> None:
    """What the parts vary one by one, varied at once: the same bits."""
    _same(
        stages,
        folder,
        Way(pieces=3, shuffled=True, buckets=(2, 7), then=(3, 5), empty=True),
        Way(pieces=2, buckets=(2, 2), retried=True, restarted=True),
    )


def what_is_dropped_moves_nothing(stages: Stages, folder: Path) -> None:
    """Records that are none, or from the far future, and micro-batches without any: the same bits."""
    expected = plain(stages)

    def with_dropped(rows: pa.Table) -> pa.Table:
        none = rows.set_column(0, "drop", pa.array(np.arange(rows.num_rows, dtype=np.int8) % 4 + 1))
        ahead = rows.set_column(
            rows.column_names.index("ts"), "ts", pa.array(np.full(rows.num_rows, (1 << 61) - 1))
        )
        if "kind" in rows.column_names:  # an end is never dropped
            ahead = ahead.filter(pa.array(ahead["kind"].to_numpy() == BEGIN))
        return pa.concat_tables([none, rows, ahead])

    assert run(stages, folder / "more", extra=with_dropped) == expected
    assert run(stages, folder / "empty", Way(pieces=3, empty=True)) == expected


def strange_values_move_no_others(stages: Stages, folder: Path) -> None:
    """NaN, infinities, huge values, empty and long keys, the oldest times: nothing raises, and the keys of others keep their bits."""
    mine = np.arange(1, 9) * 1_000_003

    def with_strange(rows: pa.Table) -> pa.Table:
        size = len(mine)
        strange: dict[str, Any] = {"drop": np.zeros(size, np.int8), "user": -mine, "key": mine}
        strange["ts"] = [
            rows["ts"][0].as_py() + i if i % 2 else -(1 << 61) + i for i in range(size)
        ]
        strange["key_bytes"] = pa.array(
            [encode([[b"", None, b"\xff" * 4096, b"\0"][i % 4]]) for i in range(size)], pa.binary()
        )
        strange |= {
            name: np.full(size, BEGIN)
            for name in ("row", "seq", "kind")
            if name in rows.column_names
        }
        values = [np.nan, np.inf, -np.inf, 1.8e308, -1.8e308, 5e-324, -0.0, 0.0]
        more = pa.table(
            strange | {name: values for name in rows.column_names if re.fullmatch(r"a\d+", name)}
        )
        return pa.concat_tables([rows, more.select(rows.column_names).cast(rows.schema)])

    def others(released: list[Any]) -> list[Any]:
        return [row for row in released if b"key " in row[2]]

    expected = plain(stages)
    assert others(run(stages, folder / "more", Way(buckets=(3, 2)), with_strange)) == others(
        expected
    )


def damaged_state_is_refused(stages: Stages, folder: Path) -> None:
    """State whose rows are in another order, where that matters, or there twice, that lacks a column, has another type, or a NULL in it."""
    stores = _stores(stages, folder, (1, 1), 1)
    feeder = Feeder(stages, NOISE_KEY, stores=stores)
    feeder.micro_batch(records(stages[0], 1, 400, START, TICKS[0]), Clock(latest_us=LATEST))
    for stage, store in zip(stages, stores, strict=True):
        state = store.load(0, feeder.sequence[stage.operator][0]) if stage.tables else {}
        check_state(stage, state)
        given: tuple[Any, Any] = records(stages[0], 2, 400, *TICKS), Clock(latest_us=LATEST)
        if stage.operator == RELEASE:
            given = stage.takes.empty_table(), [Tick(0, TICKS[1])]
        for name, table in state.items():
            if stage.tables[name].order == "any":  # then it must not matter
                other = stage.step({**state, name: table[::-1]}, *given, NOISE_KEY)
                assert _each(other.rows) == _each(stage.step(state, *given, NOISE_KEY).rows)
            for damaged in _damaged(stage, name, table):
                try:
                    check_state(stage, {**state, name: damaged})
                except ValueError:
                    continue
                raise AssertionError(f"the {stage.operator} stage takes a damaged table {name!r}")


def units_add_up(stages: Stages, folder: Path) -> None:
    """What the intake takes of all units, over micro-batches with their clocks, is the sum of what
    it takes of each unit alone: no unit's record decides about another's. Where rows are protected
    every record is a unit."""
    intake = stages[0]
    chance = np.random.default_rng(1)
    for _ in range(STREAMS):
        stream = _stream(intake, chance)
        together = _taken(intake, stream, buckets=int(chance.integers(1, 5)))
        alone = Taken()
        for unit in _units(intake, stream):
            alone.add(_taken(intake, unit, buckets=1))
        assert together == alone, stream


@dataclass
class Taken:
    """What contributions say together: the sums of all cells and groups, from which trigger on a
    value is a candidate, and how many records were dropped and why."""

    sums: Counter[Any] = field(default_factory=Counter)
    candidates: dict[Any, int] = field(default_factory=dict)
    drops: Counter[str] = field(default_factory=Counter)

    def add_rows(self, contributions: pa.Table) -> None:
        for row in contributions.to_pylist():
            if row.get("form") == KEY:
                self._bring((row["window"], row["payload"]), row["trigger"])
            elif "form" in row:
                cells = np.zeros(1 << 13, np.int64)
                add_cells(cells, row["form"], row["payload"])
                cell = row["window"], row["trigger"], row["row"]
                self.sums.update({(*cell, int(at)): int(cells[at]) for at in np.flatnonzero(cells)})
            else:
                group = tuple(row.get(name) for name in GROUP)
                summed = [name for name in row if re.fullmatch(r"weight|users|v\d+", name)]
                self.sums.update({(*group, name): row[name] for name in summed})

    def add(self, other: "Taken") -> None:
        self.sums.update(other.sums)
        self.drops.update(other.drops)
        for value, trigger in other.candidates.items():
            self._bring(value, trigger)

    def _bring(self, value: Any, trigger: int) -> None:
        self.candidates[value] = min(trigger, self.candidates.get(value, trigger))


Stream = list[tuple[pa.Table, Clock]]
"""Micro-batches, each with its clock."""


def _stream(intake: Stage[Any], chance: np.random.Generator) -> Stream:
    """Few records of few units: in time, late, far ahead, dropped before; keys that share 32 bits."""
    size = int(chance.integers(2, 25))
    hours = chance.choice([4, 10, 60])
    batches = int(chance.integers(2, 4))
    ids = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, UNITS + KEYS)
    keys = np.array([*ids[UNITS : UNITS + 3], ids[UNITS] ^ 1])
    key = chance.integers(0, len(keys), size)
    some_dropped = chance.random() < 0.3
    drop = np.where(chance.random(size) < 0.1 * some_dropped, chance.integers(1, 5, size), 0)
    value = chance.uniform(-5, 80, size)
    value[chance.random(size) < 0.1] = np.nan
    table: dict[str, Any] = {
        "drop": drop.astype(np.int8),
        "user": ids[0] + ALL_BUCKETS * chance.integers(0, 4, size),
        "ts": START + chance.integers(-3 * 12, hours * 12, size) * HOUR // 12,
        "key": keys[key],
        "key_bytes": pa.array([encode([b"key %d" % number]) for number in key], pa.binary()),
        "row": chance.integers(0, 3, size),
        "seq": chance.permutation(size),
        "kind": np.where(chance.random(size) < 0.7, BEGIN, END).astype(np.int8),
    }
    table |= {name: value for name in intake.takes.names if re.fullmatch(r"a\d+", name)}
    rows = pa.table(table)
    batch = chance.integers(0, batches, size)
    hours_closed = np.sort(chance.integers(-20, 50, batches))
    closed = np.where(hours_closed < 0, NO_CLOCK, START + hours_closed * HOUR)
    latest = LATEST if chance.random() < 0.7 else START + 3 * HOUR
    return [
        (rows.filter(pa.array(batch == n)), Clock(int(closed[n]), latest)) for n in range(batches)
    ]


def _units(intake: Stage[Any], stream: Stream) -> Iterator[Stream]:
    """The stream of each unit alone."""
    if "user" not in intake.takes.names:
        for rows, clock in stream:
            yield from ([(rows.slice(n, 1), clock)] for n in range(rows.num_rows))
        return
    for unit in {unit for rows, _ in stream for unit in rows["user"].to_pylist()}:
        yield [(rows.filter(pc.equal(rows["user"], unit)), clock) for rows, clock in stream]


def _taken(intake: Stage[Any], stream: Stream, buckets: int) -> Taken:
    """What the intake takes of a stream. One without units has no state, and any part will do."""
    store = MemoryState(buckets)
    versions = dict.fromkeys(range(buckets), 0)
    taken = Taken()
    for rows, clock in stream:
        column = "user" if "user" in intake.takes.names else "seq"
        for bucket, part in split(rows, column, buckets):
            records_of_bucket = part.select(intake.takes.names)
            report, contributions = run_bucket(
                intake, store, bucket, versions[bucket], records_of_bucket, clock, NOISE_KEY
            )
            versions[bucket] = report.sequence
            taken.add_rows(contributions)
            taken.drops.update(report.counted["drops"])
    return taken


def the_stages_fit(stages: Stages, folder: Path) -> None:
    """What the intake gives the release takes, with the number of the micro-batch; steps give what they say."""
    assert stages[0].gives.append(pa.field("batch", pa.int64())) == stages[1].takes
    assert [stage.operator for stage in stages] == list(OPERATORS)
    for stage, now in zip(stages, (Clock(), ()), strict=True):
        done = stage.step(stage.empty(), stage.takes.empty_table(), now, NOISE_KEY)  # type: ignore[arg-type]
        assert done.rows.schema.remove_metadata() == stage.gives
        assert tuple(done.state) == tuple(stage.tables) == tuple(stage.empty())


CONTRACT = (
    the_stages_fit, cut_order_and_buckets, rescale, retry_and_restart, what_is_dropped_moves_nothing, strange_values_move_no_others,
    damaged_state_is_refused, units_add_up,
)  # fmt: skip

AT_ONCE = (
    the_stages_fit, any_way, strange_values_move_no_others, damaged_state_is_refused, units_add_up,
)  # fmt: skip
"""The contract in half the time, where nothing is wrong; each part by itself is in `make test-long`."""


def _same(stages: Stages, folder: Path, *ways: Way) -> None:
    expected = plain(stages)
    assert len(expected) > 10, "too few rows to tell anything"
    for number, way in enumerate(ways):
        assert run(stages, folder / str(number), way) == expected, way


def _damaged(stage: Stage[Any], name: str, table: pa.Table) -> Iterator[pa.Table]:
    order = stage.tables[name].order
    if table.num_rows > 1 and order != "any":
        yield table[::-1]
    if table.num_rows and order == "distinct":
        yield pa.concat_tables([table[:1], table])
    yield table.drop_columns([table.column_names[-1]])
    yield table.set_column(0, table.column_names[0], table.column(0).cast(pa.float64(), safe=False))
    if table.num_rows:
        column = pa.array([None, *table.column(0).to_pylist()[1:]], table.schema.types[0])
        yield table.set_column(0, table.column_names[0], column)


def _pieces(rows: pa.Table, way: Way) -> Iterator[pa.Table]:
    edges = np.linspace(0, rows.num_rows, way.pieces + 1).astype(int)
    for low, high in pairwise(edges):
        if way.empty:
            yield rows.slice(0, 0)
        piece = rows.slice(low, high - low)
        yield (
            piece.take(np.random.default_rng(7).permutation(piece.num_rows))
            if way.shuffled
            else piece
        )


def _stores(stages: Stages, folder: Path, buckets: tuple[int, int], generation: int) -> Any:
    return tuple(
        BucketFiles(str(folder), stage.operator, count, generation, tuple(stage.tables))
        for stage, count in zip(stages, buckets, strict=True)
    )


def _again(stages: Stages, feeder: Feeder, stores: Any) -> Feeder:
    again = Feeder(stages, NOISE_KEY, stores=stores)
    again.sequence = feeder.sequence
    again.batch = feeder.batch
    return again


def _rescaled(stages: Stages, feeder: Feeder, stores: Any, after: Any) -> Feeder:
    again = _again(stages, Feeder(stages, NOISE_KEY, stores=after), after)
    again.batch = feeder.batch
    for stage, old, new in zip(stages, stores, after, strict=True):
        versions = feeder.sequence[stage.operator]
        state: dict[int, Tables] = {
            bucket: old.load(bucket, version) for bucket, version in versions.items() if version
        }
        for bucket, tables in recut(state, new.buckets, stage.tables).items():
            new.store(bucket, 1, tables)
            again.sequence[stage.operator][bucket] = 1
    return again


def _bits(rows: pa.Table) -> list[Any]:
    """Rows in any order."""
    return sorted(_each(rows))


def _each(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows that are equal where all their bits are; NaN is one value."""
    return [
        tuple(value.hex() if isinstance(value, float) else value for value in row.values())
        for row in rows.to_pylist()
    ]
