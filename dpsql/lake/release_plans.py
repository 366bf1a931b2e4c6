"""Which commits of `contributions` a micro-batch of query 2 reads.

Everything that a micro-batch computes depends on its plan, so a repeated one must have the same. The plan of a micro-batch that is listed is the
listed one: it was listed with the state files, before anything was published. One that is not listed may have left tasks, which outlive their driver
and write their state files late: so its plan is kept before they are told it, and what they write is what is there. A plan begins where the newest
listed one before it ends; so every commit is in exactly one listed plan.

A position is written as Delta writes the offset of a stream, which a restore reads for any source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsql import record
from dpsql.files import Place
from dpsql.lake.contributions import Contributions
from dpsql.lake.manifest import Manifest
from dpsql.udfs.release_plan import ReleasePlan

MOST_FILES = 1_000
"""A plan ends before the commit with which it would have more files, unless that is its first: tasks are told their names."""

RECENT = 64
FILE = "plan.json"
"""In the private folder: the newest plan that tasks were told. With it a listing that is lost can be made anew."""
VERSION = 1


@dataclass(frozen=True)
class KeptPlan:
    """Which micro-batch reads up to which version of `contributions`."""

    batch: int
    upto: int


def kept_plan(folder: Place) -> KeptPlan | None:
    """Return the newest plan of a run; None before the first, or where the file is damaged: it is never needed but for a listing that is lost."""
    return record.read_if_whole(folder / FILE, KeptPlan, VERSION)


def position(upto: int) -> dict[str, list[str]]:
    """Return what a listing says of a plan that ends with a version of `contributions`."""
    return {
        "offsets": [
            json.dumps({"reservoirVersion": upto + 1, "index": -1, "isStartingVersion": False})
        ]
    }


def next_version(detail: Mapping[str, Any], start: str | None) -> int:
    """Return the version of `contributions` after a listed plan.

    Args:
        detail: of the listing.
        start: where the query began, as a listing says it; None: with the first commit.
    """
    offset = next(iter(detail.get("offsets", [])), start)
    return 0 if offset is None else int(json.loads(offset)["reservoirVersion"])


@dataclass
class ReleasePlans:
    """The plans of one start.

    Args:
        contributions: the table.
        listed: the state files of query 2.
        start: where it began, as a listing says it.
    """

    contributions: Contributions
    listed: Manifest
    start: str | None
    _next: dict[int, int] = field(init=False)
    _kept: KeptPlan | None = field(init=False)

    def __post_init__(self) -> None:
        self._kept = kept_plan(self.contributions.path.parent)
        self._next = {
            batch: next_version(detail, self.start)
            for batch, detail in self.listed.batches().items()
        }

    def plan_for(self, batch: int) -> ReleasePlan:
        """Return the plan of a micro-batch.

        Raises:
            FileNotFoundError: a commit is gone.
        """
        earlier_batches = [listed for listed in self._next if listed < batch]
        first = (
            self._next[max(earlier_batches)] if earlier_batches else next_version({}, self.start)
        )
        newest = self.contributions.version
        told_plan = self._kept
        if batch in self._next:
            return self.contributions.plan(first - 1, self._next[batch] - 1)
        if told_plan is not None and told_plan.batch == batch and first <= told_plan.upto <= newest:
            return self.contributions.plan(first - 1, told_plan.upto)
        return self.contributions.plan(first - 1, newest, MOST_FILES)

    def keep(self, batch: int, plan: ReleasePlan) -> None:
        """Keep the plan that a micro-batch's tasks are about to be told, before it is listed: if it is done again, then with the same."""
        self._kept = KeptPlan(batch, plan.upto)
        record.write(self.contributions.path.parent / FILE, self._kept, VERSION)

    def list(self, batch: int, plan: ReleasePlan) -> None:
        """Note that a micro-batch is listed with its plan."""
        # Micro-batches come in order: the newest two are enough, also when one is repeated.
        self._next = dict(sorted({**self._next, batch: plan.upto + 1}.items())[-2:])


def read_and_noted(listed: Manifest, newest_commit: int | None, start: str | None) -> int | None:
    """Return the version of `contributions` below which all are read, and no micro-batch that read them will be repeated; None if nothing is read.

    Args:
        listed: the state files of query 2.
        newest_commit: the newest micro-batch that Spark has finished.
        start: where query 2 began, as a listing says it.
    """
    if newest_commit is None:
        return None if start is None else next_version({}, start)
    # Not all of them: there are as many as the run is old, and few that are not listed.
    committed = {
        batch: detail
        for batch, detail in listed.batches(since=newest_commit - RECENT).items()
        if batch <= newest_commit
    }
    committed = committed or {
        batch: detail for batch, detail in listed.batches().items() if batch <= newest_commit
    }
    if not committed:
        return None if start is None else next_version({}, start)
    return next_version(committed[max(committed)], start)
