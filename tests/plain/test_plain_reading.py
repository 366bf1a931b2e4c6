"""Random pairs of a query and data: the product publishes what the plain reading says, in every cell, with the noise and without it."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.local.record_reader import RowReader
from tests.matrix.same_rows import same_records, spark_records
from tests.plain import product
from tests.plain.pairs import ARROW, TIME, Pair, make
from tests.plain.product import Published
from tests.plain.reading import Column, Group, Reading, microseconds
from tests.sweeps import sweep

SEEDS = range(sweep(20, 60))
"""`tests/long/plain` goes on to 200, and publishes those of ON_SPARK on Spark."""

AT_ONCE = 10
ON_SPARK = range(20)
STDERRS = 6


def read(pair: Pair) -> Reading:
    reading = Reading(pair.question)
    for step, until in enumerate(pair.until):
        for batch in pair.batches(step):
            reading.micro_batch(batch, product.latest(pair, until))
        reading.tick(until)
    return reading


def differences(
    pair: Pair, query: dpsql.Query, reading: Reading, published: Published, stderrs: float
) -> Iterator[str]:
    """Everything in which what was published, `stderrs` standard deviations of noise apart, is not what the reading says."""
    yield from _types(pair, published.rows)
    drops = {reason: count for reason, count in published.drops.items() if count}
    if drops != dict(reading.drops):
        yield f"drops {drops}, {dict(reading.drops)} expected"
    rows = _cells(pair, published.rows)
    if len(rows) != published.rows.num_rows:
        yield "a cell twice"
    due = reading.due()
    for group, trigger in rows:
        if trigger not in due.get(group, ()):
            yield f"a row that nothing brings: {group}, trigger {trigger}"
    for group, triggers in due.items():
        yield from _appearance(query, reading, group, triggers, rows, stderrs)
        for trigger in triggers:
            if (group, trigger) in rows:
                yield from _values(
                    pair, query, reading, group, trigger, rows[group, trigger], stderrs
                )


Cell = tuple[Group, int]


def _cells(pair: Pair, table: pa.Table) -> dict[Cell, dict[str, Any]]:
    q = pair.question
    found = {}
    for row in table.to_pylist():
        start = microseconds(row["window_start"])
        assert microseconds(row["window_end"]) == start + q.size
        assert microseconds(row["trigger_time"]) == start + row["trigger"] * q.interval
        found[(start, tuple(row[name] for name in q.keys)), row["trigger"]] = row
    return found


def _types(pair: Pair, table: pa.Table) -> Iterator[str]:
    expected = {
        "window_start": TIME,
        "window_end": TIME,
        "trigger": pa.int32(),
        "trigger_time": TIME,
    }
    expected |= {name: ARROW[name] for name in pair.question.keys}
    for column in pair.question.columns:
        expected[column.alias] = pa.float64() if column.function in ("SUM", "AVG") else pa.int64()
        expected[f"{column.alias}_stderr"] = pa.float64()
    found = {field.name: field.type for field in table.schema}
    if list(found.items()) != list(expected.items()):
        yield f"columns {found}, {expected} expected"


def _appearance(
    query: dpsql.Query,
    reading: Reading,
    group: Group,
    triggers: list[int],
    rows: dict[Cell, Any],
    stderrs: float,
) -> Iterator[str]:
    """Where the margin is wide, noise decides nothing; without noise it never does."""
    selection = query.plan.selection
    thresholds = selection.thresholds if selection else ()
    slack = [stderrs * sd * 2**20 for sd in selection.sd] if selection else []
    for trigger, shown in reading.shown(group, triggers, thresholds, slack).items():
        if shown is not None and shown is not ((group, trigger) in rows):
            yield f"{group}, trigger {trigger}: {'missing' if shown else 'should not appear'}"


def _values(
    pair: Pair,
    query: dpsql.Query,
    reading: Reading,
    group: Group,
    trigger: int,
    row: dict[str, Any],
    stderrs: float,
) -> Iterator[str]:
    for column, plan in zip(pair.question.columns, query.plan.columns, strict=True):
        value = row[column.alias]
        stderr = row[f"{column.alias}_stderr"]
        exact = reading.exact(group, trigger, column)
        allowed = stderrs * (stderr or 0.0)
        step = (
            column.high - column.low
        ) / 2**20  # values of sums are rounded to steps of at most so much
        if column.function == "SUM":
            allowed += step * (1 + len(reading.groups.get(group, ())))
        if column.function == "AVG":
            known = reading.exact(group, trigger, Column("", "COUNT", column.argument)) or 0
            sd = plan.perturbations[1].sd[trigger - 1]
            least = known - stderrs * sd
            if least < max(
                1.0, stderrs * sd
            ):  # an average of few is anything between its bounds, or NULL
                if (value is None) != (stderr is None) or not column.low <= (
                    column.low if value is None else value
                ) <= column.high:
                    yield f"{group}, trigger {trigger}, {column.alias}: {value} +- {stderr} of {known} values"
                continue
            allowed = allowed * known / least + step  # the interval is that of 1.96 errors
        if exact is None or value is None or not abs(value - exact) <= allowed + 1e-9 * abs(exact):
            yield f"{group}, trigger {trigger}, {column.alias} {column.function}: {value} +- {stderr}, {exact} expected"


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_the_local_engine_publishes_what_the_plain_reading_says(tmp_path: Path, first: int) -> None:
    """Ten pairs each."""
    wrong = [
        what
        for seed in range(first, first + AT_ONCE)
        for what in wrong_locally(seed, tmp_path / str(seed))
    ]
    assert not wrong, "\n".join(wrong[:20])


def wrong_locally(seed: int, folder: Path) -> Iterator[str]:
    """With the noise within 6 stderr; without it, to the last unit, and every first trigger; with noise that would show any key, none of
    fewer units than m."""
    pair = make(seed)
    query = pair.compile(folder)
    reading = read(pair)
    yield from (
        f"{seed}: {what}"
        for what in differences(pair, query, reading, product.tried(pair, query, folder), STDERRS)
    )
    with (
        product.no_noise(),
        mock.patch("dpsql.udfs.measure.output_columns.Z95", 1e-9),
    ):  # no average says nothing then
        exact = product.tried(pair, query, folder)
    yield from (
        f"{seed}, without noise: {what}" for what in differences(pair, query, reading, exact, 0)
    )
    if pair.question.least_units > 1:
        with product.loud_noise():
            loud = product.tried(pair, query, folder)
        yield from (
            f"{seed}, with loud noise: {what}"
            for what in differences(pair, query, reading, loud, math.inf)
        )


@pytest.mark.parametrize("seed", ON_SPARK[:: sweep(4, 2)])
def test_spark_reads_the_same(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """FROM of every micro-batch, and the listed keys; the steps after it are the same code on both engines."""
    pair = make(seed)
    query = pair.compile(tmp_path)
    salt = product.SECRET.salt(product.RUN_ID)
    for step in range(len(pair.until)):
        paths = pair.write(tmp_path, step)
        reader = RowReader(query.plan, query.sources, salt, {})
        assert same_records(reader.batch_rows(paths), spark_records(spark, query, paths, salt))
