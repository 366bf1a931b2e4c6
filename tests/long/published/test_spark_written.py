"""Every reader of a published table beside every kind of query, where Spark wrote the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.published.test_readers import KINDS
from tests.published.test_spark_written import *  # noqa: F403 the same tests, of more kinds
from tests.published.test_spark_written import KINDS as SHORT
from tests.published.test_spark_written import spark_wrote

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dpsql.compiled import Query


@pytest.fixture(scope="module", params=[kind for kind in KINDS if kind not in SHORT])
def made(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Query, Path]:
    """Of all kinds that the short test leaves out."""
    return spark_wrote(spark, request.param, tmp_path_factory.mktemp("reader"))
