"""Failures in our words: Spark's, and damaged files that are noticed before they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from dpsql.errors import DataError, DpsqlError, LakeError, Unreachable
from dpsql.lake import preflight, remedies
from dpsql.lake.engine_file import Engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.release_plans import ReleasePlans
from dpsql.udfs.bucket_state import DamagedState
from dpsql.udfs.release_plan import ReleasePlan

# Spark's failures in our words: what happened and where, never a value of a record and never a
# traceback.

# Spark's own messages quote rows, plans and Python tracebacks, so no text of theirs is passed
# on: only the error condition, names of
# classes and columns, and the name of a file.

FILE_CONDITIONS = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE",
    "MALFORMED_RECORD",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
)
QUOTED_IN_REASONS = {
    "UNRESOLVED_COLUMN": ("objectName", "proposal"),
    "UNRESOLVED_ROUTINE": ("routineName",),
    "AMBIGUOUS_REFERENCE": ("name",),
    "TABLE_OR_VIEW_NOT_FOUND": ("relationName",),
    "DATATYPE_MISMATCH": ("inputSql", "inputType", "requiredType"),
}
"""Error conditions of the analyser whose parameters are names and types only."""


GONE = (
    "Spark's own process is gone: ended by a signal that went to all processes of the job, or for lack of memory. What is published stays; the same "
    "command continues from there"
)
LOST = (ConnectionError, Py4JNetworkError)
"""What calls to a JVM raise that is no longer there."""

OTHER_HEADER = "_LEGACY_ERROR_TEMP_3241"
"""What Spark says of a CSV file whose header names other columns; it quotes the line."""

CHANGED_ROWS = ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE")
"""Conditions of Delta for a commit that changes or deletes rows."""

RENAMED_COLUMNS = "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE"
"""Conditions of Delta, by how they begin, for a commit that renames or drops columns."""

DAMAGED_CONDITIONS = ("CANNOT_LOAD_STATE_STORE", "STATE_STORE", "INVALID_CHECKPOINT")
DAMAGED_CLASSES = (
    "ChecksumException",
    "EOFException",
    "IllegalStateException",
    "JsonParseException",
    "JsonEOFException",
    "ParserUtil$ParseException",
)
"""What Spark says of a checkpoint that it cannot read."""


def reason_of(problem: PySparkException) -> str:
    """Return a sentence for an error of Spark's analyser."""
    condition = problem.getCondition() or ""
    parameters: dict[str, str] = problem.getMessageParameters() or {}
    name = condition.split(".")[0]
    if name == "UNRESOLVED_COLUMN":
        proposals = parameters.get("proposal")
        return f"no column {parameters.get('objectName', '?')}" + (
            f"; there are {proposals}" if proposals else ""
        )
    details = [
        f"{key} {parameters[key]}" for key in QUOTED_IN_REASONS.get(name, ()) if key in parameters
    ]
    return f"Spark refuses it ({', '.join([condition or type(problem).__name__, *details])})"


def kind_of(problem: BaseException) -> str:
    """Return the class of what was the cause, in Java or here."""
    return [type(problem).__name__, *(name.split(".")[-1] for *_, name in _causes(problem))][-1]


def translate(problem: BaseException, source: str, step: str, remedy: str = "") -> DpsqlError:  # noqa: C901
    """Return the error to raise for a failed streaming query.

    Args:
        problem: what pyspark raised.
        source: name of the stream, for the message.
        step: what the query was doing.
        remedy: the command that makes Spark's checkpoints anew; empty where no query was at work.
    """
    if isinstance(problem, DpsqlError):
        return problem
    if isinstance(problem, LOST):
        return DpsqlError(GONE)
    causes = list(_causes(problem))
    innermost = causes[-1] if causes else ("", {}, type(problem).__name__)
    summary = f"{step} failed in Spark ({innermost[0] or innermost[2].split('.')[-1]})"
    damaged = DpsqlError(
        f"{summary}: its checkpoint may be damaged. Nothing was published from this micro-batch. Run: {remedy}"
    )
    # First: the file that is not found, or ends too early, may be one of Spark's state.
    if remedy and any(condition.startswith(DAMAGED_CONDITIONS) for condition, _, _ in causes):
        return damaged
    is_header = any(condition == OTHER_HEADER for condition, _, _ in causes)
    for condition, parameters, name in causes:
        if condition.startswith(FILE_CONDITIONS) and is_header:
            return DataError(
                f"file{_file_name(parameters)} of source {source!r}: its first line is no header with the declared columns in their order. "
                "Nothing of its micro-batch was used: write the declared columns into the file and start again, or write `schema` in the order "
                "of the header in a new run"
            )
        if condition.startswith(FILE_CONDITIONS):
            return _file_error(condition, parameters, source)
        if condition.startswith("KAFKA_DATA_LOSS") or name.endswith("OffsetOutOfRangeException"):
            return DataError(
                f"source {source!r}: the broker no longer has messages that this run has not read: they have expired, or the topic was "
                "recreated. A run belongs to its input, and a gap would be missing in silence: start a new run with another --name, and let the "
                "topic keep messages for longer than a run may stand still"
            )
        if table_problem := _table_problem(condition):
            return DataError(f"source {source!r}: {table_problem}")
        if name.startswith("org.apache.kafka.common.errors") and name.endswith("TimeoutException"):
            return Unreachable(
                f"source {source!r}: no Kafka broker answers; is `kafka.bootstrap.servers` right, and may this machine reach it?"
            )
        if name.endswith("FileNotFoundException"):
            return DataError(
                f"a file of source {source!r} has vanished while it was read: put it back and start again"
            )
    if any(
        name.startswith("org.apache.kafka")
        and name.endswith(("AuthenticationException", "KafkaException"))
        for _, _, name in causes
    ):
        return DataError(
            f"source {source!r}: Kafka refuses the options: are login and password right, and is the file there that they are read from?"
        )
    if kind := worker_error(problem):
        return DpsqlError(
            f"{step} failed in a worker ({kind}); nothing was published from this micro-batch"
        )
    if not remedy:
        return DpsqlError(f"{summary}; nothing was read")
    if any(name.endswith(DAMAGED_CLASSES) for _, _, name in causes):
        return damaged
    return DpsqlError(
        f"{summary}; nothing was published from this micro-batch. Start again; if that fails alike, run: {remedy}"
    )


def _table_problem(condition: str) -> str | None:
    """Say of a commit of a Delta table that a stream cannot be read past it, and what goes on."""
    if condition in CHANGED_ROWS:
        return (
            "a commit has changed or deleted rows that this run may have counted; what is published cannot be taken "
            "back. To go on without what such commits add, write `options: {skipChangeCommits: true}`: a MERGE that also inserts is passed over "
            "whole. To count changes, declare `change_feed: DELTA` in a new run"
        )
    if condition.startswith(RENAMED_COLUMNS):
        return (
            "a commit renames or drops columns, and a stream cannot be read past that. What is published stays. To go on, "
            "begin a new run, with another --name: without `startingVersion` it begins with the table as it is, with that of the next commit "
            "after that one with what has changed since"
        )
    return None


@contextmanager
def stopping(spark: Any) -> Iterator[None]:
    """Stop Spark afterwards, if it has not ended before.

    Raises:
        DpsqlError: it has, and something asked it for more.
    """
    try:
        yield
    except LOST:
        raise DpsqlError(GONE) from None
    finally:
        with suppress(*LOST):
            spark.stop()


def unreadable_file(problem: BaseException) -> str | None:
    """Return the file at which Spark's reader has ended a query; None if it was something else."""
    for condition, parameters, _ in _causes(problem):
        if condition.startswith(FILE_CONDITIONS):
            return _path(parameters)
    return None


def worker_error(problem: BaseException) -> str | None:
    """Return the class of what a stateful function raised in a worker; None if it was something else."""
    if not any(name.endswith("PythonException") for _, _, name in _causes(problem)):
        return None
    return _python_kind(str(problem))


def _path(parameters: dict[str, str]) -> str:
    return parameters.get("path") or parameters.get("filePath") or parameters.get("fileName") or ""


def _file_name(parameters: dict[str, str]) -> str:
    path = unquote(_path(parameters))
    return f" {PurePosixPath(path).name!r}" if path else ""


def _file_error(condition: str, parameters: dict[str, str], source: str) -> DataError:
    name = _file_name(parameters)
    if "MISMATCH" in condition or "column" in parameters:
        column = parameters.get("column") or parameters.get("columnName") or ""
        return DataError(
            f"file{name} of source {source!r}: column {column} has another type than declared ({condition})"
        )
    return DataError(
        f"file{name} of source {source!r} cannot be read ({condition}): it is damaged, in another format, or has other types than declared. "
        "Nothing of its micro-batch was used; put a readable file in its place and start again"
    )


def _causes(problem: BaseException) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield (error condition, parameters, class name) of a Java exception and of everything that caused it, outermost first."""
    java: Any = getattr(problem, "_origin", None) or getattr(problem, "java_exception", None)
    depth = 0
    while java is not None and depth < 20:
        name = str(java.getClass().getName())
        condition = ""
        parameters = {}
        try:
            condition = str(java.getCondition() or "")
            parameters = {
                str(key): str(value) for key, value in dict(java.getMessageParameters()).items()
            }
        except Exception:  # not every Java exception has a condition; py4j tells so by failing
            pass
        yield condition, parameters, name
        java = java.getCause()
        depth = depth + 1


def _python_kind(text: str) -> str:
    """Return the class of the innermost Python exception in Spark's text (its message may quote data and is left out)."""
    if step_errors := re.findall(r"\bStepError: (\w+(?: E[A-Z0-9]+)?)", text):
        return str(step_errors[-1])
    kinds = re.findall(
        r"^(?:\s*)([A-Za-z_][\w.]*(?:Error|Exception|Conflict|Interrupt))\b",
        text,
        flags=re.MULTILINE,
    )
    return kinds[-1].split(".")[-1] if kinds else "unknown error"


# Damaged files: noticed before they are used, and told by name with the command that works.

DAMAGED = (DamagedState.__name__, FileNotFoundError.__name__)


def plan_of(plans: ReleasePlans, batch: int) -> ReleasePlan:
    """Return what a micro-batch of query 2 reads, whose files are those that were written.

    Raises:
        LakeError: one of them is lost or damaged.
    """
    contributions = plans.contributions
    try:
        plan = plans.plan_for(batch)
        contributions.check(plan)
    except FileNotFoundError:
        raise LakeError(
            f"a file of {contributions.path} is lost; {remedies.unrepairable(contributions.path.parent)}"
        ) from None
    except DamagedState as problem:
        raise LakeError(f"{problem}; {remedies.unrepairable(contributions.path.parent)}") from None
    return plan


def failure(
    problem: BaseException, source: str, engine: Engine, operator: str, manifest: Manifest
) -> DpsqlError:
    """Return the error to raise for a failed query: if a worker met a damaged state file, which."""
    in_worker = None if isinstance(problem, DpsqlError) else worker_error(problem)
    damaged = (
        preflight.lost_state(engine, operator, manifest)
        if in_worker and in_worker.split()[0] in DAMAGED
        else None
    )
    if damaged:
        return LakeError(f"{damaged}; {remedies.repairable(engine.folder)}")
    file = (
        None
        if in_worker or isinstance(problem, DpsqlError)
        else engine.checkpoint(operator).damaged()
    )
    if file is not None:
        return LakeError(
            f"{file}, which Spark needs to go on, is damaged; {remedies.repairable(engine.folder)}"
        )
    return translate(
        problem, source, f"the {operator} query", f"{remedies.command(engine.folder)} --checkpoints"
    )
