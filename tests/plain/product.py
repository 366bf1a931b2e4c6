"""What the product publishes of a pair, on the local engine and on Spark, with the noise or without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa

import dpsql
from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake
from dpsql.local.feeder import LATEST_US, Feeder, published_table, try_query
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import micro_batches
from dpsql.mechanisms.histogram.stages import stages
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import Clock
from tests.plain.pairs import Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = Secret(bytes(range(32)))
RUN_ID = "5a" * 16


@dataclass(frozen=True)
class Published:
    """A histogram, and the records that were dropped by reason."""

    rows: pa.Table
    drops: dict[str, int]


def tried(pair: Pair, query: dpsql.Query, folder: Path) -> Published:
    """By `dpsql try`; with two catch-ups by the same feeder, as `dpsql verify` does."""
    files = [pair.write(folder, step) for step in range(len(pair.until))]
    if len(files) == 1:
        found = try_query(query, {}, run_id=RUN_ID, secret=SECRET, until_us=pair.until[0])
        return Published(pa.Table.from_pandas(found.histogram, preserve_index=False), found.drops)
    reader = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {})
    feeder = Feeder(
        stages(query.plan, reader.public_groups(query.source)),
        SECRET.noise_key(RUN_ID, query.plan.identity),
        (3, 2),
    )
    released = []
    closed = NO_CLOCK
    for paths, until in zip(files, pair.until, strict=True):
        clock = Clock(closed, latest(pair, until))
        for batch in micro_batches(query.source, paths):
            feeder.micro_batch(reader.batch_rows(batch), clock)
        released += feeder.tick(until)
        closed = until
    return Published(published_table(query.plan, released, reader.key_types), feeder.drops)


def ran(pair: Pair, query: dpsql.Query, folder: Path, spark: SparkSession) -> Published:
    """By `dpsql run --until-caught-up` on Spark, once per catch-up."""
    from dpsql.streaming.job import run

    lake = Lake(folder / "lake")
    named = run_of("q", RUN_ID, query, SECRET, "")
    lake.private("q").mkdir(parents=True, mode=0o700)
    drops: dict[str, int] = {}
    for step, until in enumerate(pair.until):
        pair.write(folder, step)
        summary = run(
            spark, query, named, lake, SECRET, until_caught_up=True, until_us=until, buckets=(1, 1)
        )
        for reason, count in summary.dropped.items():
            drops[reason] = drops.get(reason, 0) + count
    return Published(read_histogram(lake, "q"), drops)


def latest(pair: Pair, until: int) -> int:
    """Records later than this are too far ahead."""
    return min(max(time.time_ns() // 1000, until) + pair.question.max_ahead, LATEST_US)


@contextmanager
def no_noise() -> Iterator[None]:
    """Words whose normal is nearest to zero: every noise path is 0."""
    with _words(2**64 - 1):
        yield


@contextmanager
def loud_noise() -> Iterator[None]:
    """Words whose normal is largest, about 9: at a window's first trigger the noise alone is above every threshold."""
    with _words(2**63):
        yield


def _words(word: int) -> Any:
    def words(_key: bytes, tag: np.ndarray, *_cell: object) -> np.ndarray:
        return np.full((len(tag), 2), word, np.uint64)

    return mock.patch("dpsql.udfs.noise.randomness.words", words)
