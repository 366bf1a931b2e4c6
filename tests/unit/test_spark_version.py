"""Another Spark than the tested one is refused in one line."""

from importlib.metadata import version

import pytest

from dpsql.errors import ConfigError
from dpsql.spark_home import TESTED_SPARK, check_version
from dpsql.streaming.session import RUN


def test_another_minor_is_refused_and_can_be_tried() -> None:
    for found in ("4.2.0", "4.2.7", "4.2.1-SNAPSHOT"):
        check_version(found, accepted=False)
    for found in ("4.1.1", "4.3.0", "4.20.0", "5.2.0", "3.5.8"):
        with pytest.raises(ConfigError, match=rf"this is Spark {found}, and dpsql was tested with 4\.2 alone: .*--untested-spark") as told:
            check_version(found, accepted=False)
        assert told.value.exit_code == 2 and "\n" not in str(told.value)
        check_version(found, accepted=True)


def test_the_tested_spark_is_the_one_that_is_pinned() -> None:
    assert version("pyspark").startswith(f"{TESTED_SPARK}.")


def test_two_compacted_logs_of_files_are_always_kept() -> None:
    """With one alone Spark derives another interval from it, takes it back when there are two, and then misses a log: the run would not
    start. Found by kills of a live run that kept fewer micro-batches than an interval: `49.compact doesn't exist`."""
    kept, interval = (int(RUN[f"spark.sql.streaming.{name}"]) for name in ("minBatchesToRetain", "fileSource.log.compactInterval"))
    assert interval <= kept
