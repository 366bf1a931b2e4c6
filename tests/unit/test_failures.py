"""Which message a failure of Spark, or of a step, gets: only one that is true, quotes no record, and ends with a command where there is one."""

import traceback
from collections.abc import Iterator
from typing import Any, Self

import pandas as pd
import pytest
from py4j.protocol import Py4JNetworkError

from dpsql.errors import DataError, DpsqlError
from dpsql.streaming.failures import GONE, _python_kind, stopping, translate
from dpsql.udfs.worker import StepError, without_values

COMMAND = "dpsql restore demo --lake lake --checkpoints"


class Java:
    def __init__(self, name: str, condition: str = "", cause: Self | None = None) -> None:
        self._name = name
        self._condition = condition
        self._cause = cause

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self._name

    def getCondition(self) -> str:
        return self._condition

    def getMessageParameters(self) -> dict[str, str]:
        return {"path": "/data/part-7.parquet"}

    def getCause(self) -> Self | None:
        return self._cause


class Failed(Exception):
    def __init__(self, origin: Java) -> None:
        super().__init__("a value of a record")
        self._origin = origin


DAMAGED = rf"^the admission query failed in Spark \(\w+\): its checkpoint may be damaged\. Nothing was published .*\. Run: {COMMAND}$"


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        (
            Java("x.StreamingQueryException", "", Java("org.apache.hadoop.fs.ChecksumException")),
            DAMAGED,
        ),
        (Java("java.lang.IllegalStateException"), DAMAGED),
        (
            Java(
                "x.SparkException",
                "CANNOT_LOAD_STATE_STORE.X",
                Java("java.io.FileNotFoundException"),
            ),
            DAMAGED,
        ),
        # A file of the source is no checkpoint.
        (
            Java("x.SparkException", "FAILED_READ_FILE.X", Java("java.io.EOFException")),
            r"^file 'part-7.parquet' of source 'visits' cannot be",
        ),
        (
            Java("x.Exception", "", Java("x.Delta", "DELTA_SOURCE_IGNORE_DELETE")),
            r"^source 'visits': a commit has .*skipChangeCommits: true",
        ),
        (
            Java("x.Exception", "", Java("x.Delta", "DELTA_SOURCE_TABLE_IGNORE_CHANGES")),
            r"declare `change_feed: DELTA` in a new run$",
        ),
        (
            Java(
                "x.Exception",
                "STREAM_FAILED",
                Java("x.Delta", "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG"),
            ),
            r"^source 'visits': a commit renames or drops columns, .* begin a new run, .*`startingVersion`",
        ),
        (
            Java(
                "x.SparkException",
                "FAILED_READ_FILE.X",
                Java("x.IllegalArgument", "_LEGACY_ERROR_TEMP_3241"),
            ),
            r"^file 'part-7.parquet' of source 'visits': its first line is no header with the declared columns in their order",
        ),
        (Java("java.io.FileNotFoundException"), r"^a file of source 'visits' has vanished"),
        (
            Java("x.SparkException", "SOMETHING"),
            rf"\(SOMETHING\); nothing was published .*\. Start again; if that fails alike, run: {COMMAND}$",
        ),
    ],
)
def test_every_message_is_true_of_its_failure(origin: Java, says: str) -> None:
    problem = translate(Failed(origin), "visits", "the admission query", COMMAND)
    with pytest.raises(type(problem), match=says):
        raise problem
    assert "starting again goes on" not in str(problem)
    assert "a value of a record" not in str(problem)


def test_without_a_query_there_is_no_checkpoint_to_mend() -> None:
    assert str(
        translate(Failed(Java("java.lang.IllegalStateException")), "visits", "reading it")
    ) == ("reading it failed in Spark (IllegalStateException); nothing was read")


class Ended:
    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    "problem",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
    ],
)
def test_a_jvm_that_is_gone_is_no_internal_error(problem: Exception) -> None:
    """SIGTERM to the whole group ends the JVM, too. Catches: `internal error (ConnectionRefusedError)`, advice to mend a checkpoint that is whole."""
    assert (
        str(translate(problem, "visits", "the release query", "dpsql restore q --checkpoints"))
        == GONE
    )
    with pytest.raises(DpsqlError, match="Spark's own process is gone"), stopping(Ended()):
        raise problem


def test_what_was_said_before_spark_was_gone_stays_said() -> None:
    """Catches: the failure of stop() in the place of the reason; a failure after all went well."""
    with pytest.raises(DataError, match="the reason"), stopping(Ended()):
        raise DataError("the reason")
    with stopping(Ended()):
        pass


def failing(key: tuple[int], frames: list[pd.DataFrame], state: object) -> Iterator[pd.DataFrame]:
    yield frames[0]
    raise ValueError(f"cannot convert {frames[0]['user'][0]!r}")


def test_an_error_of_a_step_quotes_no_record() -> None:
    rows = without_values(failing)((1,), [pd.DataFrame({"user": ["planted-user"]})], None)
    assert next(rows)["user"][0] == "planted-user"
    with pytest.raises(StepError) as told:
        next(rows)
    text = "".join(traceback.format_exception(told.value))
    assert "planted-user" not in text
    assert _python_kind(text) == "ValueError"
    with pytest.raises(ValueError, match="planted-user"):  # without it, it would
        list(failing((1,), [pd.DataFrame({"user": ["planted-user"]})], None))
