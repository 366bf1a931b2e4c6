"""Before anything starts: do the checkpoints, the lake and the source still belong together?

A fresh checkpoint on an old lake would be the worst of all: batch numbers begin again at 0, Delta skips every commit as "done already",
and the state files of the real run are overwritten in the meantime. So everything is compared here, and nothing is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake import clock_guard, delta_tables, remedies, torn_commits
from dpsql.lake.engine_file import (
    FILE,
    Engine,
    Layout,
    Part,
    read_engine,
    started_queries,
    write_engine,
)
from dpsql.lake.manifest import Manifest
from dpsql.lake.read_files import ReadFiles, readable
from dpsql.lake.release_plans import next_version
from dpsql.udfs.bucket_state import BucketFiles, UnknownStateVersion
from dpsql.udfs.stage import ADMISSION, OPERATORS, RELEASE


def open_engine(
    folder: Place, buckets: tuple[int, int] | None, default: tuple[int, int], tables: Layout
) -> Engine:
    """Return the engine settings of a run, fixed at its first start.

    Args:
        folder: the run's private folder.
        buckets: asked for by the user; None takes what the run has, or `default` for a new one.
        default: numbers of buckets of a new run.
        tables: operator -> the tables of its state.

    Raises:
        LakeError: the run has other bucket counts, or the file is lost or damaged.
    """
    engine = read_engine(folder, tables)
    if engine is None:
        if any(
            (folder / name).exists() for name in ("checkpoints", "state", "files", "contributions")
        ):
            raise LakeError(
                f"{folder / FILE} is lost, but the run has been started before; {remedies.unrepairable(folder)}"
            )
        engine = Engine(
            folder, buckets or default, {operator: Part() for operator in OPERATORS}, tables=tables
        )
        write_engine(engine, {})
    if buckets is not None and buckets != engine.buckets:
        users, keys = buckets
        change = (
            f"`{remedies.command(folder)} --buckets {users}`"
            if users == keys
            else f"`{remedies.command(folder)} --buckets N`"
        )
        raise LakeError(
            f"the state of this run is cut into {engine.buckets} buckets (users, keys), not {buckets}; "
            f"leave the numbers away, or cut it again with {change}"
        )
    return engine


def check(
    engine: Engine,
    tables: Mapping[str, Place],
    marks: Mapping[str, Sequence[int | None]],
    manifests: Mapping[str, Manifest],
) -> None:
    """Refuse a lake whose parts do not belong together.

    Args:
        engine: of the run.
        tables: the Delta tables of the run that must be there once it has begun, by name.
        marks: operator -> newest micro-batches that the tables have of it, the manifest's first.
        manifests: operator -> its listed state files.

    Raises:
        LakeError: a checkpoint is lost, foreign or older than the lake; a table is lost or has lost its newest version; a state file is
            lost, damaged or of another release; the micro-batch at hand would read a file again. The message names the command that repairs it.
            Or the clock of this machine is not that of the lake.
    """
    clock_guard.check_store(engine.folder)
    for name, path in tables.items():
        if started_queries(engine.folder) and not delta_tables.exists(path):
            raise LakeError(
                f"the table {name} at {path} is lost, but the run has been started before; {remedies.unrepairable(engine.folder)}"
            )
    if "contributions" in tables and (
        problem := lost_contributions(engine, tables["contributions"], manifests[RELEASE])
    ):
        raise LakeError(f"{problem}; {remedies.unrepairable(engine.folder)}")
    for operator in OPERATORS:
        if problem := loss(
            engine,
            operator,
            marks[operator],
            manifests[operator],
            reads_bytes=isinstance(engine.folder, Path),
        ):
            raise LakeError(f"{problem}; {remedies.repairable(engine.folder)}")


def loss(
    engine: Engine,
    operator: str,
    marks: Sequence[int | None],
    manifest: Manifest,
    reads_bytes: bool = True,
) -> str | None:
    """Return what a query has lost of all that a restore can make anew, in words; None if all of it is there."""
    problem = lost_checkpoint(engine, operator, marks) or lost_listing(
        engine, operator, marks, manifest
    )
    problem = (
        problem
        or lost_rows(engine, operator, marks, manifest)
        or lost_state(engine, operator, manifest, reads_bytes)
    )
    return problem or read_twice(engine, operator, manifest)


def check_logs(engine: Engine, tables: Mapping[str, Place]) -> None:
    """Refuse a run with a table whose log cannot be read.

    Raises:
        LakeError: names the file, and the command that repairs the run.
    """
    for name, path in tables.items():
        if delta_tables.exists(path) and (problem := damaged_log(engine.folder, name, path)):
            raise LakeError(problem)


def check_beside(folder: Place, public: Mapping[str, Place], application: str) -> None:
    """Refuse a run with a public table that has lost ticks which the histogram has; it gets each tick last.

    Args:
        folder: private.
        public: the public tables, `histogram` among them.
        application: what marks their ticks.
    """
    published = delta_tables.mark(public["histogram"], application)
    for name, path in public.items():
        if (delta_tables.mark(path, application) or 0) < (published or 0):
            raise LakeError(
                f"the table {name} at {path} lacks ticks that the histogram has; {remedies.unrepairable(folder)}"
            )


def damaged_log(folder: Place, name: str, path: Place, mending: bool = False) -> str | None:
    """Return what is wrong with the log of a table, and what to do about it; `mending` leaves out what a restore makes anew."""
    if torn_commit := torn_commits.torn(path):
        return (
            None
            if mending
            else f"{torn_commit.path}, the newest commit of the table {name}, is damaged; {remedies.repairable(folder)}"
        )
    if not torn_commits.unreadable(path):
        return None
    complaint = (
        f"an earlier commit or a checkpoint of the table {name} in {path}/_delta_log is damaged"
    )
    if path.parent != folder:  # public: no run can publish there
        return f"{complaint}; nothing was touched. Put it back as it was, or start a new run under another --name"
    return f"{complaint}: `dpsql restore` cannot recreate it; {remedies.unrepairable(folder)}"


def lost_checkpoint(engine: Engine, operator: str, marks: Sequence[int | None]) -> str | None:
    """Return what is wrong with the checkpoint of an operator's query."""
    checkpoint = engine.checkpoint(operator)
    started_id = started_queries(engine.folder).get(operator)
    checkpoint_id = checkpoint.query_id
    if started_id is not None and checkpoint_id is None:
        return f"the checkpoint {checkpoint.path} is lost"
    if started_id is not None and checkpoint_id != started_id:
        return f"the checkpoint {checkpoint.path} belongs to another run"
    if damaged := checkpoint.damaged():
        return f"{damaged}, which Spark needs to go on, is damaged"
    listed = max((mark for mark in marks if mark is not None), default=None)
    planned = checkpoint.newest_batch
    if listed is not None and (planned is None or planned < listed):
        return (
            f"the checkpoint {checkpoint.path} ends at micro-batch {planned}, but the lake has rows of micro-batch {listed}: "
            "it is lost, older or foreign"
        )
    return None


def lost_listing(
    engine: Engine, operator: str, marks: Sequence[int | None], manifest: Manifest
) -> str | None:
    """Return what the manifest lacks: it is written before the rows, and knows every state file of a finished micro-batch."""
    listed, *row_marks = (-1 if mark is None else mark for mark in marks)
    checkpoint = engine.checkpoint(operator)
    committed, planned = (
        -1 if batch is None else batch
        for batch in (checkpoint.newest_commit, checkpoint.newest_batch)
    )
    # A micro-batch that Spark has not finished is done again, and then listed again.
    if listed < max(row_marks) <= committed:
        return f"the manifest {manifest.path} has lost micro-batch {max(row_marks)} of the {operator} query"
    if committed == planned:
        files = state_files(engine, operator)
        pointers = manifest.pointers()
        newer = [
            bucket
            for bucket in range(files.buckets)
            if files.newest(bucket) > pointers.get(bucket, 0)
        ]
        if newer:
            return f"the manifest {manifest.path} has lost the newest state of {len(newer)} buckets of the {operator} query"
    return None


def lost_rows(
    engine: Engine, operator: str, marks: Sequence[int | None], manifest: Manifest
) -> str | None:
    """Return the table of an operator's rows lacks those of a micro-batch that Spark has finished."""
    committed = engine.checkpoint(operator).newest_commit
    first = engine.parts[operator].first
    stored = max((mark for mark in marks[1:] if mark is not None), default=-1)
    for batch, detail, _ in manifest.history():
        if batch <= max(stored, first - 1):
            return None
        if committed is not None and batch <= committed and detail.get("rows"):
            return f"the table of the {operator} query's rows has lost those of micro-batch {batch}"
    return None


def lost_contributions(engine: Engine, path: Place, listed: Manifest) -> str | None:
    """Tell that query 2 has read further than `contributions` goes, in words; None if it has not."""
    next_read = release_position(engine, listed) if delta_tables.exists(path) else None
    if next_read is None:
        return None
    newest = DeltaTable(str(path)).version()
    if next_read > newest + 1:
        return f"the table contributions at {path} has lost versions after {newest} that were read already"
    return None


def release_position(engine: Engine, listed: Manifest) -> int | None:
    """Return the version of `contributions` that query 2 reads next; None if it has read nothing that was published."""
    newest = listed.newest_batch
    return (
        None
        if newest is None
        else next_version(listed.batches(newest)[newest], engine.parts[RELEASE].position)
    )


def lost_state(
    engine: Engine, operator: str, manifest: Manifest, reads_bytes: bool = True
) -> str | None:
    """Return the first newest state file that is not as it was listed, and why; `whole` looks at all bytes, else the footers must do."""
    files = state_files(engine, operator)
    pointers = manifest.pointers()
    digests = manifest.digests(pointers) if reads_bytes else {}
    for bucket, sequence in pointers.items():
        try:
            files.check(bucket, sequence, reads_bytes, digests.get(bucket, {}))
        except FileNotFoundError:
            return f"version {sequence} of the state in {files.folder(bucket)} is lost"
        except UnknownStateVersion as problem:
            # Not repairable: nothing is lost, but only another release can read it.
            raise LakeError(
                f"{problem}; nothing was touched. Go on with the release that wrote it, or a newer one"
            ) from None
        except OSError:
            return f"version {sequence} of the state in {files.folder(bucket)} is damaged"
    return None


def read_twice(engine: Engine, operator: str, manifest: Manifest) -> str | None:
    """Return a file in the micro-batch that query 1 would do next, which an earlier one has read: Spark planned it when it had forgotten the path."""
    checkpoint = engine.checkpoint(operator)
    planned = checkpoint.newest_batch
    committed = checkpoint.newest_commit
    if operator != ADMISSION or planned is None or planned == committed:
        return None
    return ReadFiles(manifest.path, engine.void, "").repeated_file(
        checkpoint.position(planned).get("files", []), planned
    )


def state_files(engine: Engine, operator: str) -> BucketFiles:
    """Return the state files of an operator's current generation."""
    return BucketFiles(
        engine.state_root,
        operator,
        engine.buckets_of(operator),
        engine.generation(operator),
        tuple(engine.tables[operator]),
    )


def missing_files(source: str, uris: Iterable[str]) -> str | None:
    """Return which of these files a source no longer has, in words; those that are not on this machine are not looked for."""
    names = [
        path for path in map(readable, uris) if path.startswith("/") and not Path(path).exists()
    ]
    if not names:
        return None
    return f"{source} no longer has {len(names)} of the files that this run needs (one is {Path(min(names)).name!r})"
