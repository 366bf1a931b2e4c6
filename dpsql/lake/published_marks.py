"""Up to which trigger a run has published, by the transaction marks of its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsql.files import Place
from dpsql.lake.marks import triggers_mark


@dataclass(frozen=True)
class PublishedMarks:
    """How far a histogram is, by the transaction marks of its commits.

    Args:
        triggers: grid points of triggers up to the newest tick with rows, counted from 1970: public, unlike a number of micro-batches, which
            tells how many private files there are. None before the first commit.
    """

    triggers: int | None

    def have(self, detail: Mapping[str, Any]) -> bool:
        """Tell whether the rows of a listed micro-batch of the release query are in the histogram."""
        return not detail.get("rows") or (
            self.triggers is not None and int(detail["mark"]) <= self.triggers
        )

    def newest_batch(self, listed: Mapping[int, Mapping[str, Any]]) -> int | None:
        """Return the newest micro-batch with rows in the histogram; where the list ends before, the one after its end."""
        marks = [int(detail["mark"]) for detail in listed.values() if "mark" in detail]
        if self.triggers is not None and self.triggers > max(marks, default=self.triggers - 1):
            return max(listed, default=-1) + 1
        return max(
            (batch for batch, detail in listed.items() if detail.get("rows") and self.have(detail)),
            default=None,
        )


def published_marks(histogram: Place, run_id: str, generation: int) -> PublishedMarks:
    """Return the marks of a run in a histogram, of one generation of the release query."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(histogram)):
        return PublishedMarks(None)
    return PublishedMarks(
        DeltaTable(str(histogram)).transaction_version(triggers_mark(run_id, generation))
    )
