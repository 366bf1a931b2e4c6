"""What a mechanism is: one value per mechanism, which the rest of dpsql asks. Nothing else knows mechanisms apart.

`compile_query` (`dpsql.compiled`) goes through it in order: claims, read, plan, account. Engines ask for stages, `show`, `verify` and the
lake for columns and what was finished, people for the explanation. How to add one: CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from dpsql.config import Source
from dpsql.parsed_query import ParsedQuery
from dpsql.privacy.cost import Cost

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsql.sql.draft import Draft, Option
    from dpsql.sql.rules import Rule
    from udfs.histogram.release import PublicGroups
    from udfs.stage import Clock, Stage, Tick


class Plan(Protocol):
    """What every plan says, whatever mechanism made it. It is frozen, and every number that shapes bounding or noise is in it."""

    mechanism: ClassVar[str]

    @property
    def query(self) -> ParsedQuery[Any]:
        """What was asked."""

    @property
    def epsilon(self) -> float:
        """What is promised."""

    @property
    def delta(self) -> float:
        """What is promised."""

    @property
    def identity(self) -> str:
        """The digest of all of it: the same query under other noise has another."""


@dataclass(frozen=True)
class OutputColumn:
    """A column of the public table besides window, trigger and keys.

    Args:
        name: as published.
        kind: `BIGINT` or `DOUBLE`.
        nullable: NaN stands for NULL in it.
        source: the column of the released rows that it shows.
    """

    name: str
    kind: str
    nullable: bool
    source: str


@dataclass(frozen=True)
class RunFacts:
    """What a run knows that its plan does not.

    Args:
        public: the listed groups, where keys are not selected.
        first_window_us: windows that start earlier belong to an earlier run.
    """

    public: PublicGroups | None = None
    first_window_us: int | None = None


Asked = TypeVar("Asked")
Planned = TypeVar("Planned", bound=Plan)


class Mechanism(Protocol[Asked, Planned]):
    """One mechanism; `registry.MECHANISMS` has all of them.

    `name` is that of its folders in `dpsql/mechanisms`, `udfs`, `tests/mechanisms`, and of its page in `docs/privacy`; `takes` says in words which
    queries are its own; `options` are all that these may write, `rules` judge them and what else is its own.
    """

    name: str
    takes: str
    theorems: tuple[str, ...]
    options: tuple[Option, ...]
    rules: tuple[Rule, ...]

    def claims(self, draft: Draft) -> bool:
        """Whether a query is this mechanism's; every accepted query is exactly one's."""

    def read(self, draft: Draft) -> Asked:
        """What is asked of it besides what every query says (`ParsedQuery.asked`); frozen, every default filled in."""

    def plan(self, query: ParsedQuery[Asked], source: Source) -> Planned:
        """Every number.

        Raises:
            ConfigError: the source's declaration does not allow the query.
        """

    def account(self, plan: Planned, source: Source) -> Cost:
        """What a finished plan costs one protected unit, from definitions: its module knows neither the planner nor how it calibrates.

        Raises:
            AccountingError: the plan says less than it costs.
        """

    def document(self, plan: Planned) -> Mapping[str, Any]:
        """The plan as JSON values: what its identity digests, and what run.json keeps."""

    def explain(self, plan: Planned, source: Source) -> str:
        """The promise, the noise and the keys in plain sentences."""

    def facts(self, plan: Planned, source: Source) -> dict[str, Any]:
        """The same under stable names."""

    def columns(self, plan: Planned) -> tuple[OutputColumn, ...]:
        """The public table, in the order of the select list, keys left out."""

    def missing(self, plan: Planned) -> tuple[str, dict[str, Any]]:
        """Why a key may be missing, in sentences and under stable names."""

    def stages(self, plan: Planned, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
        """The two pure steps with their numbers, intake by unit and release by cell; no budget and no secret."""

    def finish(self, plan: Planned, released: Sequence[pa.Table]) -> Mapping[str, pa.Table]:
        """The public tables by suffix ("" is the histogram) from what all buckets release: pure, after all noise; `verify` repeats it."""
