"""Random pairs of a query and its data: keys of every type beside NULL, every aggregate, every kind of window, files out of order."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.sources.config import Source, Sources
from tests.plain.reading import EPOCH, Column, Key, Question, Record

MINUTE = 60_000_000
TIME = pa.timestamp("us", tz="UTC")
LONG = "x" * 4096

KEY_TYPES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "flag": ("BOOLEAN", pa.bool_(), [True, False]),
    "tiny": ("TINYINT", pa.int8(), [-128, 0, 127, 5]),
    "small": ("SMALLINT", pa.int16(), [-32768, 0, 7, 32767]),
    "number": ("INT", pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    "big": ("BIGINT", pa.int64(), [2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    "page": ("STRING", pa.string(), ["", "a", "é\U0001f600", "NULL", LONG]),
    "raw": ("BINARY", pa.binary(), [b"", b"\xff\x00", b"a", b"NULL"]),
    "day": (
        "DATE",
        pa.date32(),
        [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    ),
    "moment": (
        "TIMESTAMP",
        TIME,
        [
            EPOCH - timedelta(microseconds=1),
            EPOCH,
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        ],
    ),
    "price": (
        "DECIMAL(12,2)",
        pa.decimal128(12, 2),
        [Decimal("-0.05"), Decimal("0.00"), Decimal("1.50"), Decimal("9999999999.99")],
    ),
}
"""Column -> Spark type, Arrow type, values that many have."""

RARE: dict[str, list[Any]] = {"page": ["rare", LONG + "x"], "raw": [b"rare", LONG.encode() + b"x"]}
RARE |= {key: [77] for key in ("tiny", "small", "big")}
"""Values that very few have; two of them are longer than a key may be."""

ARGUMENTS: dict[str, tuple[str, pa.DataType]] = {
    "x": ("DOUBLE", pa.float64()),
    "n": ("INT", pa.int32()),
}
ARGUMENTS |= {"m": ("DECIMAL(8,3)", pa.decimal128(8, 3)), "s": ("STRING", pa.string())}
OTHERS: dict[str, tuple[str, pa.DataType]] = {
    "user_id": ("STRING", pa.string()),
    "device": ("INT", pa.int32()),
    "ts": ("TIMESTAMP", TIME),
}
ARROW = {name: kind for name, (_, kind, *_) in {**OTHERS, **ARGUMENTS, **KEY_TYPES}.items()}
SPARK = {name: kind for name, (kind, *_) in {**OTHERS, **ARGUMENTS, **KEY_TYPES}.items()}


@dataclass(frozen=True)
class File:
    """A file of the stream: its name says nothing about its age."""

    name: str
    age: int
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Pair:
    """A query, its data, and what both mean.

    Args:
        seed: makes all of it.
        question: what the query means.
        options: of the clause, as text.
        files: of each catch-up.
        until: the time of each catch-up.
        per_batch: files in a micro-batch.
    """

    seed: int
    question: Question
    options: str
    files: tuple[tuple[File, ...], ...]
    until: tuple[int, ...]
    per_batch: int | None

    @cached_property
    def sql(self) -> str:
        q = self.question
        listed = [*q.keys, *(f"{_call(column)} AS {column.alias}" for column in q.columns)]
        window = f"window(ts, '{_length(q.size)}', '{_length(q.slide)}', '{_length(q.offset)}')"
        grouped = ", ".join([window, *q.keys])
        return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({self.options}) {', '.join(listed)} FROM records GROUP BY {grouped}"

    def compile(self, folder: Path) -> dpsql.Query:
        options = () if self.per_batch is None else (("maxFilesPerTrigger", str(self.per_batch)),)
        schema = ", ".join(f"{name} {kind}" for name, kind in SPARK.items())
        given: dict[str, Any] = {
            "options": options,
            "event_time": "ts",
            "privacy_unit": self.question.unit,
        }
        given |= {"start_us": self.question.start}
        given |= {
            "max_ahead_us": self.question.max_ahead,
            "max_users": 100_000,
            "max_keys": 100_000,
        }
        stream = Source("records", "parquet", str(folder / "records"), schema=schema, **given)
        listed = Source("listed", "parquet", str(folder / "listed.parquet"), static=True)
        return dpsql.compile(self.sql, Sources((stream, listed)))

    def write(self, folder: Path, step: int) -> list[Path]:
        (folder / "records").mkdir(parents=True, exist_ok=True)
        keys = sorted(self.question.listed or (), key=repr)
        kinds = [pa.field(name, ARROW[name]) for name in self.question.keys]
        if kinds:
            columns = [
                pa.array([key[i] for key in keys], field.type) for i, field in enumerate(kinds)
            ]
            pq.write_table(pa.table(columns, schema=pa.schema(kinds)), folder / "listed.parquet")
        paths = []
        for file in self.files[step]:
            paths.append(folder / "records" / file.name)
            pq.write_table(table_of(file.records), paths[-1])
            os.utime(paths[-1], (1_700_000_000 + file.age, 1_700_000_000 + file.age))
        return paths

    def batches(self, step: int) -> list[list[Record]]:
        """The records of one catch-up as they come: the oldest file first."""
        files = sorted(self.files[step], key=lambda file: file.age)
        size = self.per_batch or 64
        return [
            [record for file in files[i : i + size] for record in file.records]
            for i in range(0, len(files), size)
        ]


def table_of(records: Sequence[Record]) -> pa.Table:
    return pa.table(
        {name: pa.array([record[name] for record in records], kind) for name, kind in ARROW.items()}
    )


def make(seed: int) -> Pair:
    rng = random.Random(seed)
    year = rng.choice([2024, 2024, 2024, 1965, 2090])  # past, before 1970, future
    base = (datetime(year, 3, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    question, options = _question(rng, base)
    middle, end = (
        base + rng.randint(low * question.size, high * question.size)
        for low, high in ((0, 3), (3, 6))
    )
    until = rng.choice([(end,), (end,), (middle,), (middle, end)])
    return Pair(
        seed, question, options, _files(rng, question, base, until), until, rng.choice([None, 1, 2])
    )


def _question(rng: random.Random, base: int) -> tuple[Question, str]:
    interval = rng.choice([10, 15, 60]) * MINUTE
    slide = interval * rng.choice([1, 2, 3])
    size = slide * rng.choice([1, 1, 2, 3]) if rng.random() < 0.85 else slide * 2 + interval // 2
    offset = rng.choice([0, 0, 7, -11, 95]) * MINUTE
    offset = offset if abs(offset) < slide else 0
    lateness = rng.choice([0, 0, interval, interval * 3 // 2])
    max_ahead = rng.choice([interval, interval, 30 * MINUTE])
    rows = rng.randint(1, 6)
    per_key = rng.choice([rows, rng.randint(1, rows)])
    for_ever = rng.random() < 0.35
    kind = rng.choice(["threshold"] * 6 + ["rounds", "rounds", "listed", "listed", "keyless"])
    keys = tuple(rng.sample(list(KEY_TYPES), rng.choice([1, 1, 2]))) if kind != "keyless" else ()
    usual = (
        rows if keys or for_ever else min(rows, 2 if size > slide else 1)
    )  # G where it is not given
    per_unit = rng.choice([usual, rng.randint(1, rows)])
    unit = ("user_id", "device") if rng.random() < 0.2 else ("user_id",)
    columns = _columns(rng, unit)
    least = rng.choice([1, 1, 5, 40]) if kind in ("threshold", "rounds") else 1
    decay = 0.0 if kind == "rounds" else 0.5
    start = base + rng.randint(-2 * size, size // 2) if kind in ("listed", "keyless") else None
    listed = (
        frozenset(_listed_keys(rng, keys))
        if kind == "listed"
        else frozenset([()])
        if kind == "keyless"
        else None
    )
    question = Question(
        unit, "ts", keys, columns, size, slide, offset, interval, lateness, max_ahead,
        rows, per_key, per_unit, for_ever, least, kind == "rounds", decay, listed, start,
    )  # fmt: skip
    words = [
        "epsilon = 20",
        "delta = 9e-6",
        f"privacy_unit_column = ({', '.join(unit)})",
        f"max_rows_contributed = {rows}",
    ]
    words += [f"max_rows_per_group = {per_key}"] * (per_key < rows) + [
        f"max_groups_contributed = {per_unit}"
    ] * (per_unit != usual)
    words += [f"trigger_interval = '{_length(interval)}'"]
    words += [f"allowed_lateness = '{_length(lateness)}'"] * (lateness > 0)
    words += ["contribution_period = STREAM"] * for_ever
    words += ["mechanism = PAPER"] * (kind == "rounds")
    if kind in ("threshold", "rounds"):
        words += [f"min_privacy_units_per_group = {least}"]
    if kind == "listed":
        words += [f"public_groups = (SELECT {', '.join(keys)} FROM listed)"]
    return question, ", ".join(words)


def _columns(rng: random.Random, unit: tuple[str, ...]) -> tuple[Column, ...]:
    kinds = ["COUNT(*)", "COUNT", "SUM", "AVG"] + ["COUNT(DISTINCT)"] * (len(unit) == 1)
    columns = []
    for i, kind in enumerate(rng.sample(kinds, rng.randint(1, 3))):
        argument = {"COUNT(*)": "", "COUNT(DISTINCT)": "", "COUNT": rng.choice("xnms")}.get(
            kind, rng.choice("xnm")
        )
        low, high = (
            rng.choice([(0.0, 60.0), (-10.0, 10.0), (5.0, 6.0), (-3.5, -1.0)])
            if kind in ("SUM", "AVG")
            else (0.0, 0.0)
        )
        columns.append(Column(f"c{i}", kind, argument, low, high))
    return tuple(columns)


def _popular(rng: random.Random, keys: Sequence[str]) -> list[Key]:
    """Keys that many have; in each column NULL is one."""
    if not keys:
        return [()]
    pools = [
        [
            None,
            *rng.sample(
                KEY_TYPES[name][2], 2 if len(keys) > 1 else min(3, len(KEY_TYPES[name][2]))
            ),
        ]
        for name in keys
    ]
    every = (
        [(a,) for a in pools[0]] if len(keys) == 1 else [(a, b) for a in pools[0] for b in pools[1]]
    )
    return every if len(every) <= 4 else [(None, None), *rng.sample(every[1:], 4)]


def _files(
    rng: random.Random, q: Question, base: int, until: Sequence[int]
) -> tuple[tuple[File, ...], ...]:
    popular = _popular(rng, q.keys)
    rare = [tuple(rng.choice(RARE.get(name, [None])) for name in q.keys) for _ in range(3)]
    if q.listed is not None and q.keys:
        popular = [*popular[:2], *rng.sample(sorted(q.listed, key=repr), 2)]
    records: list[Record] = []
    for user in range(rng.randint(200, 400)):
        taken: set[int] = set()
        for _ in range(rng.randint(1, q.rows + 3)):
            when = base + rng.randrange(3 * q.size)
            device = rng.randrange(2)
            key = rng.choice(popular) if rng.random() < 0.98 or not q.keys else rng.choice(rare)
            if when not in taken:
                taken.add(when)
                records.append(
                    _record(rng, f"u{user}", device, when, dict(zip(q.keys, key, strict=True)))
                )
    rng.shuffle(records)
    steps: list[list[Record]] = [[] for _ in until]
    for record in records:
        # what is read in the first catch-up is older on the whole; a part of the older records comes late
        early = (
            record["ts"] is None or (record["ts"] - EPOCH) // timedelta(microseconds=1) < until[0]
        )
        steps[0 if len(until) == 1 or (early and rng.random() < 0.7) else 1].append(record)
    return tuple(_cut(rng, step, number) for number, step in enumerate(steps))


def _cut(rng: random.Random, records: list[Record], step: int) -> tuple[File, ...]:
    """Some files, in order of time or not, of ages and names that have nothing to do with it."""
    count = rng.randint(1, 4)
    if rng.random() < 0.5:
        records = sorted(records, key=lambda record: record["ts"] or EPOCH)
    size = -(-len(records) // count) or 1
    parts = [tuple(records[i : i + size]) for i in range(0, max(len(records), 1), size)]
    names, ages = (rng.sample(range(100), len(parts)) for _ in range(2))
    return tuple(
        File(f"{name:02}-{step}.parquet", 1000 * step + age, part)
        for name, age, part in zip(names, ages, parts, strict=True)
    )


def _record(rng: random.Random, user: str, device: int, when: int, key: Record) -> Record:
    if rng.random() < 0.01:
        when = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(
            microseconds=1
        ) - rng.randrange(10**6)
    return {
        "user_id": None if rng.random() < 0.01 else LONG + user if rng.random() < 0.002 else user,
        "device": None if rng.random() < 0.01 else device,
        "ts": None if rng.random() < 0.01 else EPOCH + timedelta(microseconds=when),
        "x": rng.choice(
            [
                None,
                float("nan"),
                float("inf"),
                float("-inf"),
                0.0,
                rng.gauss(5, 20),
                rng.uniform(0, 10),
                rng.uniform(0, 10),
            ]
        ),
        "n": rng.choice([None, 0, 1, rng.randint(-100, 100), 2**31 - 1]),
        "m": rng.choice([None, Decimal("0.001"), Decimal(rng.randint(-20_000, 60_000)) / 1000]),
        "s": rng.choice([None, "", "text"]),
        **{name: rng.choice([None, *values]) for name, (_, _, values) in KEY_TYPES.items()},
        **key,
    }


def _listed_keys(rng: random.Random, keys: Sequence[str]) -> list[Key]:
    """Public keys: some that many have, NULL, and one that no record has."""
    found = _popular(rng, keys)
    return [
        *rng.sample(found, min(3, len(found))),
        tuple(rng.choice(KEY_TYPES[name][2]) for name in keys),
    ]


def _call(column: Column) -> str:
    if column.function in ("SUM", "AVG"):
        return f"{column.function}({column.argument}, contribution_bounds_per_row => ({column.low}, {column.high}))"
    return {"COUNT": f"COUNT({column.argument})", "COUNT(DISTINCT)": "COUNT(DISTINCT user_id)"}.get(
        column.function, column.function
    )


def _length(us: int) -> str:
    return f"{us // 1_000_000} seconds"
