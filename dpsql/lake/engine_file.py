"""`engine.json`: what the first start of a run fixed, and what a restore changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql import record
from dpsql.files import Place
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.udfs.stage import OPERATORS
from dpsql.udfs.state_table import StateTable

FILE = "engine.json"
Layout = Mapping[str, Mapping[str, StateTable]]
VERSION = 5
"""Another one where Spark's own state is keyed otherwise, with which a bucket would not find its version, or query 2 reads otherwise."""


@dataclass(frozen=True)
class Part:
    """Where the query of one operator stands since it was last restored.

    Args:
        generation: 1 for a new run, larger after each restore; in the paths of state files and in transaction marks.
        first: number of its first micro-batch.
        pointers: bucket -> version of its state that Spark does not know yet.
        position: where to go on reading (Spark's offset as JSON), for sources that do not remember it themselves.
        closed_us: release: the time up to which triggers were published by earlier generations.
    """

    generation: int = 1
    first: int = 0
    pointers: dict[int, int] = field(default_factory=dict)
    position: str | None = None
    closed_us: int | None = None


@dataclass(frozen=True)
class EngineFacts:
    """The content of the file: an `Engine`, and Spark's id of each operator's query, of those that have been started."""

    buckets: tuple[int, int]
    parts: Mapping[str, Part]
    void: tuple[tuple[int, int], ...]
    relabelled: bool
    queries: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.parts) != set(OPERATORS):
            raise ValueError("a query without its place")


@dataclass(frozen=True)
class Engine:
    """The engine settings of a run.

    Args:
        folder: the run's private folder.
        buckets: of users and of keys.
        parts: by operator.
        void: micro-batches of query 1 (first, last) whose contributions do not count: they were read again after a restore.
        relabelled: contributions may carry buckets of an earlier number of buckets.
        tables: operator -> the tables of its state, as the run's mechanism has them.
    """

    folder: Place
    buckets: tuple[int, int]
    parts: Mapping[str, Part]
    void: tuple[tuple[int, int], ...] = ()
    relabelled: bool = False
    tables: Layout = field(default_factory=dict)

    def generation(self, operator: str) -> int:
        """Return the generation of one operator's state."""
        return self.parts[operator].generation

    def checkpoint(self, operator: str) -> Checkpoint:
        """Return Spark's folder of one operator's query; another one for each generation."""
        part = self.parts[operator]
        name = operator if part.generation == 1 else f"{operator}-g{part.generation}"
        return Checkpoint(self.folder / "checkpoints" / name, part.first)

    @property
    def state_root(self) -> str:
        """Folder of all state files."""
        return str(self.folder / "state")

    @property
    def has_begun(self) -> bool:
        """Whether a query of the run was ever started; a restore forgets which."""
        return bool(started_queries(self.folder)) or any(
            part.generation > 1 for part in self.parts.values()
        )

    def buckets_of(self, operator: str) -> int:
        """Return how many buckets an operator's state is cut into."""
        return self.buckets[OPERATORS.index(operator)]

    def remember_query(self, operator: str) -> None:
        """Record the id that Spark gave to an operator's query, once."""
        found = self.checkpoint(operator).query_id
        queries = started_queries(self.folder)
        if queries.get(operator) != found:
            write_engine(self, {**queries, operator: found})


def started_queries(folder: Place) -> dict[str, str | None]:
    """Return Spark's id of each operator's query, of those that have been started."""
    facts = _read_facts(folder)
    return dict(facts.queries) if facts else {}


def write_engine(engine: Engine, queries: Mapping[str, str | None]) -> None:
    """Keep the settings: a restore is done when this is."""
    facts = EngineFacts(engine.buckets, engine.parts, engine.void, engine.relabelled, queries)
    record.write(engine.folder / FILE, facts, VERSION)


def read_engine(folder: Place, tables: Layout) -> Engine | None:
    """Return the engine settings of a run, whose state is made of these tables; None before its first start.

    Raises:
        LakeError: the file is damaged.
    """
    facts = _read_facts(folder)
    return (
        None
        if facts is None
        else Engine(folder, facts.buckets, facts.parts, facts.void, facts.relabelled, tables)
    )


def _read_facts(folder: Place) -> EngineFacts | None:
    return record.load(folder / FILE, EngineFacts, VERSION)
