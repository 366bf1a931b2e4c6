"""More random pairs of a query and data than `make test` has, on the local engine, and some of them published by Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dpsql.local.verification import count_differences
from tests.plain import product
from tests.plain.pairs import make
from tests.plain.test_plain_reading import (
    AT_ONCE,
    ON_SPARK,
    SEEDS,
    STDERRS,
    differences,
    read,
    wrong_locally,
)

MORE = range(SEEDS.stop, 200)


@pytest.mark.parametrize("first", MORE[::AT_ONCE])
def test_the_local_engine_publishes_what_the_plain_reading_says(tmp_path: Path, first: int) -> None:
    wrong = [
        what
        for seed in range(first, first + AT_ONCE)
        for what in wrong_locally(seed, tmp_path / str(seed))
    ]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("seed", ON_SPARK)
def test_spark_publishes_the_same(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The same rows bit for bit as the local engine, the same types and drops, and so what the plain reading says."""
    pair = make(seed)
    query = pair.compile(tmp_path)
    there = product.ran(pair, query, tmp_path, spark)
    wrong = list(differences(pair, query, read(pair), there, STDERRS))
    here = product.tried(pair, query, tmp_path)
    wrong += [f"{count_differences(there.rows, here.rows)} rows differ"] * (
        count_differences(there.rows, here.rows) > 0
    )
    wrong += ["other drops"] * (
        there.drops != {reason: count for reason, count in here.drops.items() if count}
    )
    assert not wrong, "\n".join(wrong[:20])
