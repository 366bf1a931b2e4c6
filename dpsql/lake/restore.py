"""`dpsql restore`: make lost checkpoints, listings and state anew, without changing what was or will be published.

Query 1 goes on from the newest micro-batch whose rows are stored, or from an earlier one as long as no tick covers what would be read
again: over released triggers it is never run twice. Query 2 is a pure function of `contributions`: it may go back to any point and comes
to the same rows again, which are then left out. A restored query has a new generation, in the paths of its files and in the names of its
transaction marks; nothing of the old one is touched. Writing `engine.json` is the last step and the only one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deltalake import DeltaTable

from dpsql.errors import LakeError
from dpsql.files import place
from dpsql.lake import delta_tables, preflight, remedies, torn_commits, unreadable
from dpsql.lake.catch_up import FILE as CATCH_UP_FILE
from dpsql.lake.catch_up import VERSION as CATCH_UP_VERSION
from dpsql.lake.catch_up import CatchUp, forget_interrupted, read_catch_up
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, Part, started_queries, write_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import tick_mark
from dpsql.lake.release_plans import kept_plan, position
from dpsql.lake.rescale import recut
from dpsql.lake.restore_points import NOTHING, Point, Tables, tables_of
from dpsql.lake.running import exclusive
from dpsql.lake.runs import Lake, read_run
from dpsql.lake.savepoints import Savepoint, read_savepoint
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.record import DamagedRecord, read_if_whole
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import ADMISSION, OPERATORS, RELEASE, Clock, StateFile, closed_us


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Args:
        listed: operators whose newest state was listed again.
        batches: operator -> micro-batch that it goes on from (-1: from the beginning).
        buckets: of users and of keys.
        mended: what else was made anew, a sentence each.
    """

    listed: tuple[str, ...]
    batches: dict[str, int]
    buckets: tuple[int, int]
    mended: tuple[str, ...] = ()


def restore(
    lake: Lake,
    name: str,
    buckets: tuple[int, int] | None = None,
    savepoint: str | None = None,
    checkpoints: bool = False,
) -> Restored:
    """Make what is lost of a run anew, so that it can go on under its run id.

    Args:
        lake, name: of the run; it must not be running.
        buckets: cut users and keys into so many buckets; None keeps the numbers.
        savepoint: go back to this one; None takes the newest point that is whole.
        checkpoints: take Spark's checkpoints for lost, even where they look whole.

    Raises:
        LakeError: the run has never been started, or going on would run query 1 again over released triggers: then nothing was changed.
    """
    run = read_run(lake, name)
    with exclusive(lake.private(name)):
        tables = tables_of(lake, run)
        if tables is None:
            raise LakeError(f"query {name!r} has not been started yet: there is nothing to restore")
        with unreadable.reading(tables.folder, tables.private | tables.public):
            return _restore_stopped(tables, buckets, savepoint, checkpoints)


def _restore_stopped(
    tables: Tables, buckets: tuple[int, int] | None, savepoint: str | None, checkpoints: bool
) -> Restored:
    for part, path in {**tables.private, **tables.public}.items():
        if not delta_tables.exists(path):
            raise LakeError(
                f"the table {part} at {path} is lost: `dpsql restore` cannot recreate it; {remedies.unrepairable(tables.folder)}"
            )
    mended = _mend_logs(tables)
    if problem := preflight.lost_contributions(
        tables.engine, tables.contributions, tables.manifest(RELEASE)
    ):
        raise LakeError(
            f"{problem}: `dpsql restore` cannot recreate it; {remedies.unrepairable(tables.folder)}"
        )
    saved = None if savepoint is None else read_savepoint(tables.folder, savepoint)
    listed = tuple(operator for operator in OPERATORS if _list_again(tables, operator))
    anew = saved or checkpoints or (buckets and buckets != tables.engine.buckets)
    operators = (
        set(OPERATORS)
        if anew
        else {operator for operator in OPERATORS if _damaged(tables, operator)}
    )
    has_damaged_catch_up = _catch_up_is_damaged(tables)
    admitted = tables.engine.checkpoint(ADMISSION)
    if has_damaged_catch_up and admitted.newest_batch != admitted.newest_commit:
        # It would be repeated with another time, and perhaps with other static tables, over files that are listed.
        operators.add(ADMISSION)
    restored = Restored(listed, {}, tables.engine.buckets)
    if operators:
        restored = _restore(tables, operators, buckets or tables.engine.buckets, saved, listed)
    if has_damaged_catch_up:
        mended = (*mended, _forget_catch_up(tables))
    return replace(restored, mended=mended)


def _mend_logs(tables: Tables) -> tuple[str, ...]:
    """Put aside, or write again, the newest commits that cannot be read."""
    sentences = []
    for part, path in {
        "files": tables.folder / "files",
        **tables.public,
        "contributions": tables.contributions,
    }.items():
        if problem := preflight.damaged_log(tables.folder, part, path, mending=True):
            raise LakeError(problem)
        if torn_commit := torn_commits.torn(path):
            if torn_commits.unreadable(path, torn_commit.version - 1):
                raise LakeError(
                    f"{torn_commit.path} is damaged, and what was before it is gone: {remedies.unrepairable(tables.folder)}"
                )
            if part in tables.other_public:
                _check_beside(tables, part, torn_commit)
            sentences.append(
                _mend_contributions(tables, torn_commit)
                if part == "contributions"
                else _put_aside(tables, part, torn_commit)
            )
    return tuple(sentences)


def _check_beside(tables: Tables, part: str, torn_commit: torn_commits.Torn) -> None:
    """Refuse to lose a tick that the histogram has: it goes there last, counts as published, and what the other table has lost would not come again."""
    mark_before = DeltaTable(
        str(torn_commit.table), version=torn_commit.version - 1
    ).transaction_version(tables.published_mark)
    if (tables.published().triggers or 0) > (mark_before or 0):
        complaint = f"{torn_commit.path} is damaged, and the public table has the tick whose rows the table {part} has lost"
        raise LakeError(f"{complaint}: {remedies.unrepairable(tables.folder)}")


def _put_aside(tables: Tables, part: str, torn_commit: torn_commits.Torn) -> str:
    torn_commit.put_aside(tables.folder, part)
    return f"{part}: its newest commit was damaged; it is kept in {tables.folder / torn_commits.FOLDER}"


def _mend_contributions(tables: Tables, torn_commit: torn_commits.Torn) -> str:
    """Repair the newest commit. Query 2 may have read it: then it must be there, and be the same."""
    release_listing = tables.manifest(RELEASE)
    closed = [int(detail["closed_us"]) for detail in release_listing.batches().values()]
    catch_up = read_if_whole(tables.folder / CATCH_UP_FILE, CatchUp, CATCH_UP_VERSION)
    ticks = {} if catch_up is None else {catch_up.until_us: catch_up.number}
    manifest = tables.manifest(ADMISSION)
    actions = torn_commits.rewritten(
        torn_commit, tables.run_id, manifest, ticks, max(closed, default=None)
    )
    if actions is not None:
        torn_commit.replace(tables.folder, "contributions", actions)
        return "contributions: its newest commit was damaged, and is written again from the files that it had added"
    next_read = preflight.release_position(tables.engine, release_listing)
    if torn_commit.has_checkpoint or (next_read is not None and next_read > torn_commit.version):
        raise LakeError(
            f"{torn_commit.path} is damaged, query 2 has read it, and it cannot be told which files it had added: "
            f"{remedies.unrepairable(tables.folder)}"
        )
    return _put_aside(tables, "contributions", torn_commit)


def _catch_up_is_damaged(tables: Tables) -> bool:
    try:
        read_catch_up(tables.folder)
    except DamagedRecord:
        return True
    return False


def _forget_catch_up(tables: Tables) -> str:
    number = delta_tables.mark(tables.contributions, tick_mark(tables.run_id))
    closed_us = tables.closed_us
    forget_interrupted(
        tables.folder, 0 if number is None else number, NO_CLOCK if closed_us is None else closed_us
    )
    return f"{CATCH_UP_FILE}: recreated from the ticks; if a catch-up was interrupted, start it again with its --until"


def _restore(
    tables: Tables,
    operators: set[str],
    buckets: tuple[int, int],
    saved: Savepoint | None,
    listed: tuple[str, ...],
) -> Restored:
    engine = tables.engine
    points = {}
    void = tables.engine.void
    replay_from = None
    if ADMISSION in operators:
        point = saved.facts.points[ADMISSION] if saved else _admission_point(tables)
        if saved:
            _check_savepoint(tables, saved)
        newest = tables.newest_number(ADMISSION)
        reread = tables.files_read(newest).keys() - tables.files_read(point.batch).keys()
        if problem := preflight.missing_files("the source", reread):
            raise LakeError(
                f"{problem}: micro-batches after {point.batch} are read again. Put them back, then restore again"
            )
        if newest > point.batch:
            void = (*void, (point.batch + 1, newest))
        if tables.rows_mark(ADMISSION) > point.batch:
            # Contributions that are void now: query 2 must not have seen them.
            replay_from = _rows_after(tables, point)
            operators = operators | {RELEASE}
        points[ADMISSION] = point
    if RELEASE in operators:
        points[RELEASE] = (
            _saved_release_point(tables, saved, replay_from)
            if saved
            else _release_point(tables, replay_from)
        )
    for operator, point in points.items():
        if not point.resumable:
            raise LakeError(
                f"the {operator} query cannot go on after micro-batch {point.batch}: its source cannot be entered there. "
                f"{remedies.unrepairable(tables.folder)}"
            )
    parts = {
        operator: _rebuild(tables, operator, point, buckets, saved)
        for operator, point in points.items()
    }
    if ADMISSION in parts:
        point = points[ADMISSION]
        _skip_files(engine, parts[ADMISSION], tables.files_read(point.batch), point)
    queries = {
        operator: query
        for operator, query in started_queries(engine.folder).items()
        if operator not in parts
    }
    relabelled = engine.relabelled or buckets[1] != engine.buckets[1]
    write_engine(
        replace(
            engine,
            buckets=buckets,
            parts={**engine.parts, **parts},
            void=void,
            relabelled=relabelled,
        ),
        queries,
    )
    return Restored(listed, {operator: point.batch for operator, point in points.items()}, buckets)


def _check_savepoint(tables: Tables, saved: Savepoint) -> None:
    """Refuse a savepoint after which a trigger was released, or whose micro-batches were read again under other numbers."""
    reread = [
        batch for batch in tables.numbers(ADMISSION) if batch > saved.facts.points[ADMISSION].batch
    ]
    if (saved.facts.ticked, saved.facts.closed_us) != (tables.ticked, tables.closed_us) or any(
        batch <= tables.ticked for batch in reread
    ):
        raise LakeError(
            f"savepoint {saved.label!r} is older than the last published trigger: going back would publish triggers twice. "
            f"Leave --to away to go on from the newest state, or begin a new run: {remedies.command(tables.folder)} --new-run"
        )
    if saved.facts.void != tables.engine.void:
        raise LakeError(
            f"savepoint {saved.label!r} was taken before the run was restored to an earlier state: leave --to away"
        )


def _saved_release_point(tables: Tables, saved: Savepoint, last_version: int | None) -> Point:
    point = saved.facts.points[RELEASE]
    deleted = point.version is not None and any(
        version >= point.version for version in tables.deletions()
    )
    if deleted or (
        last_version is not None and (point.version is None or point.version > last_version + 1)
    ):
        raise LakeError(
            f"savepoint {saved.label!r}: query 2 cannot go on from there any more; leave --to away"
        )
    return point


def _damaged(tables: Tables, operator: str) -> bool:
    return (
        preflight.loss(tables.engine, operator, tables.marks(operator), tables.manifest(operator))
        is not None
    )


def _list_again(tables: Tables, operator: str) -> bool:
    """List what checkpoint and state files have, where the manifest lost its newest version."""
    engine = tables.engine
    manifest = tables.manifest(operator)
    marks = tables.marks(operator)
    checkpoint = engine.checkpoint(operator)
    committed = checkpoint.newest_commit
    if preflight.lost_checkpoint(engine, operator, marks) or not preflight.lost_listing(
        engine, operator, marks, manifest
    ):
        return False
    if committed is None or committed != checkpoint.newest_batch:
        return False
    files = preflight.state_files(engine, operator)
    pointers = manifest.pointers()
    newest = {bucket: files.newest(bucket) for bucket in range(files.buckets)}
    changed = {
        bucket: sequence
        for bucket, sequence in newest.items()
        if sequence > pointers.get(bucket, 0)
    }
    detail: dict[str, Any]
    if operator == RELEASE:
        plan = kept_plan(engine.folder)
        if plan is None or plan.batch != committed:
            return False  # it goes back to what is listed
        closed = (
            closed_us(files.load(bucket, sequence))
            for bucket, sequence in newest.items()
            if sequence
        )
        detail = {**position(plan.upto), "closed_us": max(closed)}
        if (mark := tables.published().triggers) is not None:
            detail["mark"] = mark
    else:
        detail = checkpoint.position(
            committed, -1 if manifest.newest_batch is None else manifest.newest_batch
        )
        detail["clock"] = _clock(tables, committed)
    # `bytes` says that a file was written; its size is not worth a look.
    changed_files = [
        StateFile(bucket, sequence, 1, {"sha256": files.digests(bucket, sequence)})
        for bucket, sequence in changed.items()
    ]
    manifest.commit(committed, changed_files, {**detail, "rows": 0})
    return True


def _clock(tables: Tables, batch: int) -> dict[str, int]:
    """Return the clock of a finished micro-batch: the tick before it, and the latest event time that the tick after it accepts."""
    ticks = tables.ticks()
    closed = [closed_us for last, closed_us, _ in ticks if last < batch]
    latest = [latest_us for last, _, latest_us in ticks if last >= batch]
    return {
        "closed_us": max(closed, default=NO_CLOCK),
        "latest_us": min(latest, default=Clock().latest_us),
    }


def _admission_point(tables: Tables) -> Point:
    """Return the newest point of query 1 after which no tick covers anything that would be read again."""
    listed = tables.manifest(ADMISSION).batches()
    rows = tables.rows_mark(ADMISSION)
    for point in tables.points(ADMISSION):
        reread = [batch for batch in (*listed, rows) if batch > point.batch]
        if all(batch > tables.ticked for batch in reread) and point.resumable:
            return point
    if tables.ticked == NOTHING and tables.engine.generation(ADMISSION) == 1:
        return Point(NOTHING, {}, {})
    raise LakeError(
        "the state of query 1 is lost beyond repair: going back further would read records of published triggers again. "
        f"{remedies.unrepairable(tables.folder)}"
    )


def _rows_after(tables: Tables, point: Point) -> int:
    """Return a version of contributions before the first rows that are void now."""
    details = tables.manifest(ADMISSION).batches()
    later = [batch for batch in details if batch > point.batch]
    # Where it was listed again nobody knows it any more: then from the first on.
    return int((details[min(later)] if later else point.detail).get("contributions", 0))


def _release_point(tables: Tables, last_version: int | None) -> Point:
    """Return the newest point of query 2 that its table can be read on from, at or before a version of it."""
    deleted = tables.deletions()
    points = tables.points(RELEASE)
    engine = tables.engine
    has_listing = not preflight.lost_listing(
        engine, RELEASE, tables.marks(RELEASE), tables.manifest(RELEASE)
    )
    for number, point in enumerate([*points, Point(NOTHING, {}, {})]):
        if point.version is None or (last_version is not None and point.version > last_version + 1):
            continue
        # What was deleted since the newest listed one was read has been read by it.
        newest = has_listing and number == 0 and point.batch != NOTHING
        if newest or not [version for version in deleted if version >= point.version]:
            return point
    raise LakeError(
        "the state of query 2 is lost beyond repair: contributions that it needs were deleted after their retention. "
        f"{remedies.unrepairable(tables.folder)}"
    )


def _rebuild(
    tables: Tables, operator: str, point: Point, buckets: tuple[int, int], saved: Savepoint | None
) -> Part:
    """Write and list the state of a point as the first versions of a new generation."""
    engine = tables.engine
    tables_of = engine.tables[operator]
    old = preflight.state_files(engine, operator)
    count = buckets[OPERATORS.index(operator)]
    if saved:
        state = saved.load(operator, tables_of)
        old_count = saved.facts.buckets[OPERATORS.index(operator)]
    else:
        state = {bucket: old.load(bucket, sequence) for bucket, sequence in point.pointers.items()}
        old_count = old.buckets
    state = state if old_count == count else recut(state, count, tables_of)
    generation = max(_generations(tables, operator)) + 1
    files = BucketFiles(engine.state_root, operator, count, generation, tuple(tables_of))
    new_files = []
    for bucket, content in sorted(state.items()):
        size, digests = files.store(bucket, 1, content)
        new_files.append(StateFile(bucket, 1, size, {"sha256": digests}))
    if new_files:
        Manifest(tables.folder / "files", tables.run_id, operator, generation).commit(
            point.batch, new_files, point.detail
        )
    position = (
        point.position if point.position is None or "logOffset" not in point.position else None
    )
    closed_us = point.detail.get("closed_us")
    return Part(
        generation,
        tables.newest_number(operator) + 1,
        {file.bucket: 1 for file in new_files},
        position,
        closed_us,
    )


def _generations(tables: Tables, operator: str) -> set[int]:
    """Return every generation that left a trace, be it of a restore that was broken off."""
    listed = read_rows(tables.folder / "files", ["operator", "generation"]).to_pylist()
    root = place(tables.engine.state_root)
    folders = (
        [path for path in root.iterdir() if path.name.startswith(f"{operator}-")]
        if root.is_dir()
        else []
    )
    stored = (
        int(path.name[1:])
        for folder in folders
        for path in folder.iterdir()
        if path.name[1:].isdigit()
    )
    return {
        tables.engine.generation(operator),
        *stored,
        *(row["generation"] for row in listed if row["operator"] == operator),
    }


def _skip_files(engine: Engine, part: Part, files: Mapping[str, int], point: Point) -> None:
    lines = point.detail.get("offsets", [])
    source = next((i for i, line in enumerate(lines) if "logOffset" in line), None)
    if source is not None and files:
        checkpoint: Checkpoint = replace(
            engine, parts={**engine.parts, ADMISSION: part}
        ).checkpoint(ADMISSION)
        checkpoint.skip_files(files, source)
