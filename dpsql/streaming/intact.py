"""Damaged files: noticed before they are used, and told by name with the command that works."""

from __future__ import annotations

from pyspark.sql import DataFrame

from dpsql.errors import DpsqlError, LakeError
from dpsql.lake import preflight, remedies
from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.streaming.failures import translate, worker_error
from dpsql.streaming.microbatches import Sink
from udfs.bucket_state import DamagedFile

DAMAGED = (DamagedFile.__name__, FileNotFoundError.__name__)


def checking(sink: Sink, contributions: Contributions, checkpoint: Checkpoint, start: str | None) -> Sink:
    """The sink of query 2, which first looks whether the contributions that it is about to use are those that were written.

    Args:
        sink: of query 2.
        contributions: the table that it reads.
        checkpoint: of query 2.
        start: where it began, as Spark's offset; None: at the first commit.
    """

    def check(frame: DataFrame, batch: int) -> None:
        before = next(iter(checkpoint.position(batch - 1)["offsets"]), start)
        try:
            contributions.check(before, checkpoint.position(batch)["offsets"][0])
        except FileNotFoundError:
            raise LakeError(f"a file of {contributions.path} is lost; {remedies.unrepairable(checkpoint.path.parent.parent)}") from None
        except DamagedFile as problem:
            raise LakeError(f"{problem}; {remedies.unrepairable(checkpoint.path.parent.parent)}") from None
        sink(frame, batch)

    return check


def failure(problem: BaseException, source: str, engine: Engine, operator: str, manifest: Manifest) -> DpsqlError:
    """The error to raise for a failed query: if a worker met a damaged state file, which."""
    in_worker = None if isinstance(problem, DpsqlError) else worker_error(problem)
    damaged = preflight.lost_state(engine, operator, manifest) if in_worker and in_worker.split()[0] in DAMAGED else None
    if damaged:
        return LakeError(f"{damaged}; {remedies.repairable(engine.folder)}")
    file = None if in_worker or isinstance(problem, DpsqlError) else engine.checkpoint(operator).damaged()
    if file is not None:
        return LakeError(f"{file}, which Spark needs to go on, is damaged; {remedies.repairable(engine.folder)}")
    return translate(problem, source, f"the {operator} query", f"{remedies.command(engine.folder)} --checkpoints")
