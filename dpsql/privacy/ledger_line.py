"""A line of the budget ledger: what one run may spend on one privacy unit, as a value and as JSON.

Lines of version 2 say what several contribution periods cost (`dpsql.privacy.cost`). Those of version 3 say besides what a floor test costs several
events, those of version 4 how periods fail whose rows meet; they are written where there is such a thing, so that a line without is not read as one
that has it. A line of another version stops all spending: it may have spent more than could be read from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dpsql import record
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, total, touched, touched_in_days
from dpsql.privacy.origin import UNKNOWN, Origin
from dpsql.sources.config import Cap

SCHEMA_VERSION = 2
WITH_FLOOR = 3
WITH_FAILURES = 4


class UnknownLineVersion(ValueError):
    """A line of another release of dpsql."""


@dataclass(frozen=True)
class Line:
    """The cost that one run may put on one privacy unit in one contribution period.

    Args:
        ledger, source, unit: whose budget: the ledger's name, the source's name, the privacy unit's columns.
        cost: of one contribution period, and of several.
        period: `WINDOW`, `STREAM` or `DURATION`; when the allowance renews.
        size_us, offset_us: the contribution period's grid, in microseconds (of no meaning for `STREAM`).
        declared_epsilon, declared_delta: what the query asks for, for one contribution period.
        query_identity, run_id: which plan, which run.
        kind: `run`, `try`, `compare` (a try that showed exact values) or `local` (`dpsql.run_local`).
        created: UTC time, ISO 8601.
        origin: whose data, under which cap.
    """

    ledger: str
    source: str
    unit: tuple[str, ...]
    cost: Cost = field(repr=False)  # its pure epsilon of 0 reads as if nothing were spent
    period: str
    size_us: int
    offset_us: int
    declared_epsilon: float
    declared_delta: float
    query_identity: str
    run_id: str
    kind: str
    created: str
    origin: Origin = UNKNOWN

    def charges(self, period_us: int) -> int:
        """Return how many contribution periods of this run one period of `period_us` can touch, at most."""
        if self.period == ContributionPeriod.STREAM or self.cost.protects is PrivacyLevel.EVENT:
            return 1  # of one row there is one
        return touched(period_us, self.size_us, self.offset_us)

    def charges_in_days(self, days: int) -> int:
        """Return how many contribution periods of this run any so many days (UTC) in a row can touch, at most."""
        if self.period == ContributionPeriod.STREAM or self.cost.protects is PrivacyLevel.EVENT:
            return 1
        return touched_in_days(days, self.size_us, self.offset_us)

    def cost_within(self, period_us: int) -> Cost:
        """Return what the run costs a unit that takes part during one period of `period_us`."""
        return self.cost.periods(self.charges(period_us))


def cost_in_period(lines: Iterable[Line], cap: Cap) -> Cost:
    """Return what one protected unit pays in one period of the cap; the lines are of its level."""
    return total((line.cost_within(cap.period_us) for line in lines), cap.protects)


def document(line: Line) -> dict[str, Any]:
    """Return a line as JSON."""
    return {**asdict(line), "cost": line.cost.document(), "version": _version(line.cost)}


def _version(cost: Cost) -> int:
    """Return the version of the lines that have such a cost."""
    if cost.failures:
        return WITH_FAILURES
    return WITH_FLOOR if cost.floor else SCHEMA_VERSION


def line_from(content: Mapping[str, Any]) -> Line:
    """Return a line that `document` wrote.

    Raises:
        UnknownLineVersion: another release wrote it.
        ValueError, TypeError, KeyError: it is damaged: a wrong number must not make a budget look larger.
    """
    version = content["version"]
    fields = {name: value for name, value in content.items() if name != "version"}
    if version not in (SCHEMA_VERSION, WITH_FLOOR, WITH_FAILURES):
        reads = f"this one reads versions {SCHEMA_VERSION} to {WITH_FAILURES}"
        raise UnknownLineVersion(
            f"version {version!r} was written by another release of dpsql; {reads}. Nothing else is spent"
        )
    if "origin" not in fields:
        raise ValueError("no origin")
    line: Line = record.parse(fields, Line)
    if version != _version(line.cost):
        raise ValueError("a floor belongs to version 3, and listed failures to version 4")
    if line.size_us <= 0 or min(line.declared_epsilon, line.declared_delta) < 0:
        raise ValueError("an amount below 0")
    overlaps = {
        ContributionPeriod.STREAM: (Overlap.STREAM,),
        ContributionPeriod.WINDOW: (Overlap.NONE, Overlap.WINDOWS),
        ContributionPeriod.DURATION: (Overlap.TOGETHER,),
    }
    if line.cost.overlap not in (
        (Overlap.EVENTS,)
        if line.cost.protects is PrivacyLevel.EVENT
        else overlaps[ContributionPeriod(line.period)]
    ):
        raise ValueError
    return line
