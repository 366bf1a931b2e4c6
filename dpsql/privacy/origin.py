"""What a ledger line is about, whatever `sources.yaml` calls it: where its records were, which cap was declared, which ledger made its noise.

Names in `sources.yaml` are easily changed, and a budget must not be lost by that. So a new line is held against the lines that are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpsql.config import Cap, Source
from dpsql.privacy.protected import places

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Origin:
    """Of one run.

    Args:
        ledger_id: of the ledger that the run began with; it is in its noise. Empty for runs of earlier releases.
        reads: places of its records (`dpsql.privacy.protected`); empty in lines of earlier releases.
        cap: the declared cap, as epsilon, delta and microseconds; empty where `cap: none` said that there is none; None where nothing did.
        apart_from: ledgers that were declared to have budgets of their own, though their sources read the same.
    """

    ledger_id: str = ""
    reads: tuple[str, ...] = ()
    cap: tuple[float, ...] | None = None
    apart_from: tuple[str, ...] = ()


UNKNOWN = Origin()
"""In lines of earlier releases."""


def origin_of(source: Source, ledger_id: str, files: Iterable[Path] = ()) -> Origin:
    """Of a run on a source.

    Args:
        source: as declared.
        ledger_id: of the run.
        files: what is read in the source's name instead of its own path.
    """
    return Origin(ledger_id, places(source, files), declared_cap(source), source.apart_from)


def declared_cap(source: Source) -> tuple[float, ...] | None:
    """A source's cap as lines have it."""
    if source.cap is None:
        return () if source.uncapped else None
    return (source.cap.epsilon, source.cap.delta, source.cap.period_us)


def cap_in_words(cap: tuple[float, ...] | None) -> str:
    """As one would write it in `sources.yaml`."""
    if not cap:
        return "none" if cap == () else "no cap"
    return f"{{epsilon: {cap[0]:g}, delta: {cap[1]:g}, period: {cap[2] / DAY_US:g} days}}"


def origin_from(given: Mapping[str, Any]) -> Origin:
    """An origin from the JSON of a line.

    Raises:
        ValueError, TypeError, KeyError: it is damaged.
    """
    if set(given) != {field.name for field in fields(Origin)}:
        raise ValueError
    cap = None if given["cap"] is None else tuple(given["cap"])
    texts = (given["ledger_id"], *given["reads"], *given["apart_from"])
    if not all(isinstance(text, str) for text in texts) or not all(" " in place for place in given["reads"]):
        raise ValueError
    if cap and not all(math.isfinite(amount) and amount > 0 for amount in vars(Cap(*cap)).values()):
        raise ValueError
    return Origin(given["ledger_id"], tuple(given["reads"]), cap, tuple(given["apart_from"]))
