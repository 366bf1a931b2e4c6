"""Before anything starts: do the checkpoints, the lake and the source still belong together?

A fresh checkpoint on an old lake would be the worst of all: batch numbers begin again at 0, Delta skips every commit as "done already",
and the state files of the real run are overwritten in the meantime. So everything is compared here, and nothing is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from dpsql.errors import LakeError
from dpsql.places import Place
from dpsql.streaming import delta_log
from dpsql.streaming.catch_up import read_json, write_json
from dpsql.streaming.checkpoints import Checkpoint

FILE = "engine.json"
VERSION = 1
OPERATORS = ("admission", "release")


@dataclass(frozen=True)
class Engine:
    """What the first start of a run fixed.

    Args:
        folder: the run's private folder.
        generation: of all state.
        buckets: of users and of keys.
    """

    folder: Place
    generation: int
    buckets: tuple[int, int]

    def checkpoint(self, operator: str) -> Checkpoint:
        """Spark's folder of one operator's query."""
        return Checkpoint(self.folder / "checkpoints" / operator)

    @property
    def state_root(self) -> str:
        """Folder of all state files."""
        return str(self.folder / "state")

    def remember_query(self, operator: str) -> None:
        """Record the id that Spark gave to an operator's query, once."""
        given = read_json(self.folder / FILE, VERSION) or {}
        found = self.checkpoint(operator).query_id
        if given["queries"].get(operator) != found:
            write_json(self.folder / FILE, {"version": VERSION, **given, "queries": {**given["queries"], operator: found}})


def open_engine(folder: Place, buckets: tuple[int, int] | None, default: int) -> Engine:
    """The engine settings of a run, fixed at its first start.

    Args:
        folder: the run's private folder.
        buckets: asked for by the user; None takes what the run has, or `default` for a new one.
        default: number of buckets of a new run.

    Raises:
        LakeError: the run has other bucket counts, or the file is lost or damaged.
    """
    given = read_json(folder / FILE, VERSION)
    if given is None:
        if any((folder / name).exists() for name in ("checkpoints", "state", "files", "contributions")):
            raise LakeError(f"{folder / FILE} is lost, but the run has been started before; {_remedy()}")
        engine = Engine(folder, 1, buckets or (default, default))
        write_json(folder / FILE, {"version": VERSION, "generation": 1, "buckets": list(engine.buckets), "queries": {}})
        return engine
    try:
        engine = Engine(folder, int(given["generation"]), (int(given["buckets"][0]), int(given["buckets"][1])))
    except (KeyError, IndexError, TypeError, ValueError):
        raise LakeError(f"{folder / FILE}: damaged; put back the original file") from None
    if buckets is not None and buckets != engine.buckets:
        raise LakeError(f"the state of this run is cut into {engine.buckets} buckets (users, keys), not {buckets}; leave the numbers away")
    return engine


def check(engine: Engine, tables: Mapping[str, Place], marks: Mapping[str, Iterable[int | None]]) -> None:
    """Refuse a lake whose parts do not belong together.

    Args:
        engine: of the run.
        tables: the Delta tables of the run that must be there once it has begun, by name.
        marks: operator -> newest micro-batches that the tables have of it.

    Raises:
        LakeError: a checkpoint is lost, foreign or older than the lake; a table is lost.
    """
    given = read_json(engine.folder / FILE, VERSION) or {}
    started = dict(given.get("queries", {}))
    for operator in OPERATORS:
        checkpoint = engine.checkpoint(operator)
        known, found = started.get(operator), checkpoint.query_id
        if known is not None and found is None:
            raise LakeError(f"the checkpoint {checkpoint.path} is lost; {_remedy()}")
        if known is not None and found != known:
            raise LakeError(f"the checkpoint {checkpoint.path} belongs to another run; {_remedy()}")
        listed = max((mark for mark in marks[operator] if mark is not None), default=None)
        planned = checkpoint.newest_batch
        if listed is not None and (planned is None or planned < listed):
            raise LakeError(
                f"the checkpoint {checkpoint.path} ends at micro-batch {planned}, but the lake has rows of micro-batch {listed}: "
                f"it is lost, older or foreign; {_remedy()}"
            )
    for name, path in tables.items():
        if started and not delta_log.exists(str(path)):
            raise LakeError(f"the table {name} at {path} is lost, but the run has been started before; {_remedy()}")


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


def _remedy() -> str:
    return "nothing was touched. Put it back as it was, or see `dpsql restore`"
