"""What `sources.yaml` may not change behind a ledger's back: its name, and its cap. Each refusal says what to write."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpsql.errors import BudgetError
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.ledger_line import Line
from dpsql.privacy.origin import cap_in_words
from dpsql.sources.config import Cap, Source
from dpsql.sources.places import overlap


def check_line(before: Sequence[Line], line: Line) -> None:
    """Refuse a line that reads what another ledger has paid for (two budgets that do not know of each other), or whose cap is gone.

    Raises:
        BudgetError: says what to write, and how to say that it is meant.
    """
    if not line.origin.reads:
        return
    apart = {
        frozenset((each.ledger, name))
        for each in (*before, line)
        for name in each.origin.apart_from
    }
    for other in before:
        if other.ledger == line.ledger or frozenset((other.ledger, line.ledger)) in apart:
            continue
        # Of a line that says nothing of places the source's name is all that there is.
        if overlap(line.origin.reads, other.origin.reads) or (
            not other.origin.reads and other.source == line.source
        ):
            raise BudgetError(
                f"source {line.source!r} would spend on ledger {line.ledger!r}, but reads what {other.source!r} has spent on ledger "
                f"{other.ledger!r}: two budgets for the same people. Write `ledger: {other.ledger}` at sources.{line.source}.ledger to share "
                f"it; or, if they are to be apart on purpose, `apart_from: {other.ledger}` at sources.{line.source}.apart_from, which the "
                "ledger keeps"
            )
    same = [other for other in before if other.cost.protects is line.cost.protects]
    check_cap(same, line.ledger, line.source, line.origin.cap)
    if line.origin.cap:
        _check_unit([other for other in same if other.ledger == line.ledger], line)


def _check_unit(before: Sequence[Line], line: Line) -> None:
    """Refuse a second unit of the same records under one cap, which bounds what the first one's runs cost."""
    first = next((other for other in before if _of_same_records(line, other)), None)
    if first is None or not protects_other_unit(line, first):
        return
    mine = ", ".join(line.unit)
    own_ledger = re.sub("[^A-Za-z0-9_-]", "_", f"{line.ledger}_by_{'_'.join(line.unit)}")
    raise BudgetError(
        f"source {line.source!r} protects {mine}, but the cap of ledger {line.ledger!r} is of {', '.join(first.unit)}: one of these may have "
        f"many {mine}, and would pay for each. Write `privacy_unit: {_as_yaml(first.unit)}` at sources.{line.source}.privacy_unit; or give it a "
        f"budget of its own on purpose: `ledger: {own_ledger}` and `apart_from: {line.ledger}` at sources.{line.source}"
    )


def protects_other_unit(line: Line, other: Line) -> bool:
    """Whether two runs over the same records protect units of different columns.

    Where the records are different, sources that share a ledger say by that that their columns name the same people.
    """
    users = line.cost.protects is other.cost.protects is PrivacyLevel.USER
    return users and set(line.unit) != set(other.unit) and _of_same_records(line, other)


def _of_same_records(line: Line, other: Line) -> bool:
    return line.source == other.source or overlap(line.origin.reads, other.origin.reads)


def _as_yaml(columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else f"[{', '.join(columns)}]"


def cap_for(source: Source, level: PrivacyLevel) -> Cap | None:
    """The cap that a run of one level has to keep.

    Raises:
        BudgetError: the source caps the other level only, so nothing would limit this one.
    """
    cap = source.cap_of(level)
    other = next((each for each in (source.cap, source.event_cap) if each is not None), None)
    if cap is None and other is not None:
        what, kept = ("rows", "units") if level is PrivacyLevel.EVENT else ("units", "rows")
        example = (
            "{privacy_level: EVENT, epsilon: 1, delta: 0}"
            if level is PrivacyLevel.EVENT
            else "{epsilon: 20, delta: 1e-6, period: 7 days}"
        )
        raise BudgetError(
            f"the cap of source {source.name!r} protects {kept} ({other.protects}), and this query protects {what} ({level}): "
            f"add a cap of its level to the list at sources.{source.name}.cap, like `{example}`"
        )
    return cap


def check_cap(
    before: Sequence[Line], ledger: str, source: str, cap: tuple[float, ...] | None
) -> None:
    """Refuse a cap that is gone without a word.

    Args:
        before: the ledger's lines of one privacy level.
        ledger, source: names.
        cap: as declared now (`dpsql.privacy.origin.declared_cap`).

    Raises:
        BudgetError: says how to put it back, and how to say that it is meant.
    """
    known = next(
        (
            line.origin.cap
            for line in reversed(before)
            if line.ledger == ledger and line.origin.reads
        ),
        None,
    )
    if known and cap is None:
        raise BudgetError(
            f"ledger {ledger!r} has had a cap, and source {source!r} declares none any more: write "
            f"`cap: {cap_in_words(known)}` at sources.{source}.cap; or `cap: none`, if it is to have none, which the ledger keeps"
        )


def remarks(lines: Sequence[Line]) -> tuple[str, ...]:
    """What was declared on purpose, or changed, in the lines of one ledger name."""
    said: list[str] = []
    cap: tuple[float, ...] | None = None
    for line in lines:
        if not line.origin.reads:
            continue
        if cap and line.origin.cap != cap:
            said.append(
                f"the cap was {cap_in_words(cap)} until {line.created[:10]}, then {cap_in_words(line.origin.cap)}"
            )
        cap = line.origin.cap
    for other in dict.fromkeys(name for line in lines for name in line.origin.apart_from):
        said.append(
            f"by declaration apart from ledger {other}, which has a budget of its own for the same records"
        )
    return tuple(said)
