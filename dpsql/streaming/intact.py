"""Damaged files: noticed before they are used, and told by name with the command that works."""

from __future__ import annotations

from dpsql.errors import DpsqlError, LakeError
from dpsql.lake import preflight, remedies
from dpsql.lake.engine_file import Engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.release_plans import ReleasePlans
from dpsql.streaming.failures import translate, worker_error
from dpsql.udfs.bucket_state import DamagedFile
from dpsql.udfs.release_plan import ReleasePlan

DAMAGED = (DamagedFile.__name__, FileNotFoundError.__name__)


def plan_of(plans: ReleasePlans, batch: int) -> ReleasePlan:
    """What a micro-batch of query 2 reads, whose files are those that were written.

    Raises:
        LakeError: one of them is lost or damaged.
    """
    contributions = plans.contributions
    try:
        plan = plans.of(batch)
        contributions.check(plan)
    except FileNotFoundError:
        raise LakeError(
            f"a file of {contributions.path} is lost; {remedies.unrepairable(contributions.path.parent)}"
        ) from None
    except DamagedFile as problem:
        raise LakeError(f"{problem}; {remedies.unrepairable(contributions.path.parent)}") from None
    return plan


def failure(
    problem: BaseException, source: str, engine: Engine, operator: str, manifest: Manifest
) -> DpsqlError:
    """The error to raise for a failed query: if a worker met a damaged state file, which."""
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
