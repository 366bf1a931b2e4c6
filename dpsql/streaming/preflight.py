"""Before anything starts: do the checkpoints, the lake and the source still belong together?

A fresh checkpoint on an old lake would be the worst of all: batch numbers begin again at 0, Delta skips every commit as "done already",
and the state files of the real run are overwritten in the meantime. So everything is compared here, and nothing is touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import DeltaTable

from dpsql.errors import LakeError
from dpsql.places import Place
from dpsql.streaming import admission, delta_log, release
from dpsql.streaming.engine import FILE, OPERATORS, Engine, Part, read_engine, started_queries, write_engine
from dpsql.streaming.manifest import Manifest
from udfs.bucket_state import BucketFiles, UnknownVersion

TABLES = {admission.OPERATOR: admission.TABLES, release.OPERATOR: release.TABLES}


def open_engine(folder: Place, buckets: tuple[int, int] | None, default: int) -> Engine:
    """The engine settings of a run, fixed at its first start.

    Args:
        folder: the run's private folder.
        buckets: asked for by the user; None takes what the run has, or `default` for a new one.
        default: number of buckets of a new run.

    Raises:
        LakeError: the run has other bucket counts, or the file is lost or damaged.
    """
    engine = read_engine(folder)
    if engine is None:
        if any((folder / name).exists() for name in ("checkpoints", "state", "files", "contributions")):
            raise LakeError(f"{folder / FILE} is lost, but the run has been started before; {unrepairable(folder)}")
        engine = Engine(folder, buckets or (default, default), {operator: Part() for operator in OPERATORS})
        write_engine(engine, {})
    if buckets is not None and buckets != engine.buckets:
        users, keys = buckets
        change = f"`{command(folder)} --buckets {users}`" if users == keys else f"`{command(folder)} --buckets N`"
        raise LakeError(
            f"the state of this run is cut into {engine.buckets} buckets (users, keys), not {buckets}; "
            f"leave the numbers away, or cut it anew with {change}"
        )
    return engine


def check(
    engine: Engine, tables: Mapping[str, Place], marks: Mapping[str, Sequence[int | None]], manifests: Mapping[str, Manifest]
) -> None:
    """Refuse a lake whose parts do not belong together.

    Args:
        engine: of the run.
        tables: the Delta tables of the run that must be there once it has begun, by name.
        marks: operator -> newest micro-batches that the tables have of it, the manifest's first.
        manifests: operator -> its listed state files.

    Raises:
        LakeError: a checkpoint is lost, foreign or older than the lake; a table is lost or has lost its newest version; a state file is
            lost, damaged or of another release. The message names the command that repairs it.
    """
    for name, path in tables.items():
        if started_queries(engine.folder) and not delta_log.exists(str(path)):
            raise LakeError(f"the table {name} at {path} is lost, but the run has been started before; {unrepairable(engine.folder)}")
    if "contributions" in tables and (problem := lost_contributions(engine, str(tables["contributions"]))):
        raise LakeError(f"{problem}; {unrepairable(engine.folder)}")
    for operator in OPERATORS:
        problem = lost_checkpoint(engine, operator, marks[operator]) or lost_listing(engine, operator, marks[operator], manifests[operator])
        problem = (
            problem
            or lost_rows(engine, operator, marks[operator], manifests[operator])
            or lost_state(engine, operator, manifests[operator])
        )
        if problem:
            raise LakeError(f"{problem}; {repairable(engine.folder)}")


def lost_checkpoint(engine: Engine, operator: str, marks: Sequence[int | None]) -> str | None:
    """What is wrong with the checkpoint of an operator's query."""
    checkpoint = engine.checkpoint(operator)
    known, found = started_queries(engine.folder).get(operator), checkpoint.query_id
    if known is not None and found is None:
        return f"the checkpoint {checkpoint.path} is lost"
    if known is not None and found != known:
        return f"the checkpoint {checkpoint.path} belongs to another run"
    listed = max((mark for mark in marks if mark is not None), default=None)
    planned = checkpoint.newest_batch
    if listed is not None and (planned is None or planned < listed):
        return (
            f"the checkpoint {checkpoint.path} ends at micro-batch {planned}, but the lake has rows of micro-batch {listed}: "
            "it is lost, older or foreign"
        )
    return None


def lost_listing(engine: Engine, operator: str, marks: Sequence[int | None], manifest: Manifest) -> str | None:
    """What the manifest lacks: it is written before the rows, and knows every state file of a finished micro-batch."""
    listed, *others = (-1 if mark is None else mark for mark in marks)
    done, planned = (-1 if batch is None else batch for batch in _progress(engine, operator))
    # A micro-batch that Spark has not finished is done again, and then listed again.
    if listed < max(others) <= done:
        return f"the manifest {manifest.path} has lost micro-batch {max(others)} of the {operator} query"
    if done == planned:
        files, pointers = state_files(engine, operator), manifest.pointers()
        newer = [bucket for bucket in range(files.buckets) if files.newest(bucket) > pointers.get(bucket, 0)]
        if newer:
            return f"the manifest {manifest.path} has lost the newest state of {len(newer)} buckets of the {operator} query"
    return None


def lost_rows(engine: Engine, operator: str, marks: Sequence[int | None], manifest: Manifest) -> str | None:
    """The table of an operator's rows lacks those of a micro-batch that Spark has finished."""
    done, first = engine.checkpoint(operator).newest_commit, engine.parts[operator].first
    stored = max((mark for mark in marks[1:] if mark is not None), default=-1)
    for batch, detail, _ in manifest.history():
        if batch <= max(stored, first - 1):
            return None
        if done is not None and batch <= done and detail.get("rows"):
            return f"the table of the {operator} query's rows has lost those of micro-batch {batch}"
    return None


def lost_contributions(engine: Engine, path: str) -> str | None:
    """Query 2 has read further than `contributions` goes."""
    checkpoint = engine.checkpoint("release")
    planned = checkpoint.newest_batch
    if planned is None or not delta_log.exists(path):
        return None
    offsets = checkpoint.position(planned)["offsets"]
    newest = DeltaTable(path).version()
    if offsets and int(json.loads(offsets[0])["reservoirVersion"]) > newest + 1:
        return f"the table contributions at {path} has lost versions after {newest} that were read already"
    return None


def lost_state(engine: Engine, operator: str, manifest: Manifest) -> str | None:
    """The first newest state file that cannot be read, and why."""
    files = state_files(engine, operator)
    for bucket, sequence in manifest.pointers().items():
        try:
            files.check(bucket, sequence)
        except FileNotFoundError:
            return f"version {sequence} of the state in {files.folder(bucket)} is lost"
        except UnknownVersion as problem:
            # Not repairable: nothing is lost, but only another release can read it.
            raise LakeError(f"{problem}; nothing was touched. Go on with the release that wrote it, or a newer one") from None
        except (pa.ArrowException, OSError):
            return f"version {sequence} of the state in {files.folder(bucket)} is damaged"
    return None


def state_files(engine: Engine, operator: str) -> BucketFiles:
    """The state files of an operator's current generation."""
    return BucketFiles(engine.state_root, operator, engine.buckets_of(operator), engine.generation(operator), TABLES[operator])


def check_files(engine: Engine, source: str) -> None:
    """Refuse a source that no longer has the files which the run has read.

    Raises:
        LakeError: some local files are gone.
    """
    paths = [urlparse(path) for path in engine.checkpoint("admission").files()]
    gone = sorted(unquote(path.path) for path in paths if path.scheme in ("", "file") and not Path(unquote(path.path)).exists())
    if gone:
        raise LakeError(
            f"source {source!r} no longer has {len(gone)} of the files that this run has read (one is {Path(gone[0]).name!r}): "
            "a run belongs to its input. Put them back, or start a new run with another --name"
        )


def command(folder: Place) -> str:
    """The command that restores the run in a private folder."""
    return f"dpsql restore {folder.name} --lake {folder.parent.parent}"


def repairable(folder: Place) -> str:
    """What to do about pieces that can be made anew."""
    return f"nothing was touched. Put it back as it was, or run: {command(folder)}"


def unrepairable(folder: Place) -> str:
    """What to do about pieces that only a backup has."""
    return f"nothing was touched. Put it back as it was, or begin a new run: {command(folder)} --new-run"


def _progress(engine: Engine, operator: str) -> tuple[int | None, int | None]:
    checkpoint = engine.checkpoint(operator)
    return checkpoint.newest_commit, checkpoint.newest_batch
