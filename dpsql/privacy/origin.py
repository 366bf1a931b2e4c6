"""What a ledger line is about, whatever `sources.yaml` calls it: where its records were, which cap was declared, which ledger made its noise.

Names in `sources.yaml` are easily changed, and a budget must not be lost by that. So a new line is held against the lines that are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsql.parsed_query import PrivacyLevel
from dpsql.sources.config import Source
from dpsql.sources.places import places

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Origin:
    """The records and the cap of one run.

    Args:
        ledger_id: of the ledger that the run began with; it is in its noise. Empty: of none.
        reads: places of its records (`dpsql.sources.places`); may be empty.
        cap: the declared cap of its level, as epsilon, delta and microseconds (0: one row);
             empty where `cap: none` said that there is none; None where nothing did.
        apart_from: ledgers that were declared to have budgets of their own, though their sources read the same.
    """

    ledger_id: str = ""
    reads: tuple[str, ...] = ()
    cap: tuple[float, ...] | None = None
    apart_from: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(" " in place for place in self.reads):
            raise ValueError("no place")
        if self.cap:
            epsilon, delta, period_us = (
                self.cap
            )  # one of level EVENT has no period, and may have no delta
            if epsilon <= 0 or min(delta, period_us) < 0 or (period_us > 0) > (delta > 0):
                raise ValueError("no cap")


UNKNOWN = Origin()
"""The origin of a line that says nothing of its records."""


def origin_of(
    source: Source,
    ledger_id: str,
    files: Iterable[Path] = (),
    level: PrivacyLevel = PrivacyLevel.USER,
) -> Origin:
    """Return the origin of a run on a source.

    Args:
        source: as declared.
        ledger_id: of the run.
        files: what is read in the source's name instead of its own path.
        level: of its promise.
    """
    # Nothing of a frame says where it came from: whose records they are, its caller says.
    reads = (f"frame {source.ledger}",) if source.of_frame else places(source, files)
    return Origin(ledger_id, reads, declared_cap(source, level), source.apart_from)


def declared_cap(
    source: Source, level: PrivacyLevel = PrivacyLevel.USER
) -> tuple[float, ...] | None:
    """Return a source's cap of one level as lines have it."""
    cap = source.cap_of(level)
    if cap is None:
        return () if source.uncapped else None
    return (cap.epsilon, cap.delta, cap.period_us)


def cap_in_words(cap: tuple[float, ...] | None) -> str:
    """Write a cap as one would in `sources.yaml`."""
    if not cap:
        return "none" if cap == () else "no cap"
    if cap[2] == 0:
        return f"{{privacy_level: EVENT, epsilon: {cap[0]:g}, delta: {cap[1]:g}}}"
    return f"{{epsilon: {cap[0]:g}, delta: {cap[1]:g}, period: {cap[2] / DAY_US:g} days}}"
