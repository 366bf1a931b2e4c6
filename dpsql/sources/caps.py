"""Caps: the most that all runs on one ledger may spend on one protected unit, at each privacy level, as `sources.yaml` declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpsql.parsed_query import PrivacyLevel
from dpsql.sources.yaml_file import YamlDocument

NO_CAP = "none"
"""`cap: none` says that a cap is left away on purpose."""
CAP_KEYS = ("privacy_level", "epsilon", "delta", "period")


@dataclass(frozen=True)
class Cap:
    """The bound of one level.

    Args:
        epsilon, delta: on everything a privacy unit does within one period; for EVENT on one row, and then delta may be 0: a person
            with k rows may pay k times epsilon, which no cap of USER bounds.
        period_us: length of the period, in microseconds; periods are counted from 1970-01-01 UTC. 0 for EVENT, which has none.
        protects: the level; costs of one level never count against a cap of the other.
    """

    epsilon: float
    delta: float
    period_us: int
    protects: PrivacyLevel = PrivacyLevel.USER


def read_caps(
    document: YamlDocument, at: tuple[str, ...], duration: Callable[[str], int]
) -> dict[PrivacyLevel, Cap]:
    """Return the caps at a path: one mapping, which is USER's unless it says otherwise, or a list of them, one per level.

    Raises:
        ConfigError: with the line of what is wrong.
    """
    value = document.value
    for key in at:
        value = value[key]
    if not isinstance(value, list):
        cap = _cap(document, at, duration)
        return {cap.protects: cap}
    found: dict[PrivacyLevel, Cap] = {}
    for i in range(len(value)):
        cap = _cap(document, (*at, str(i)), duration)
        if cap.protects in found:
            raise document.error(
                f"two caps of level {cap.protects}: a ledger has one cap per level", (*at, str(i))
            )
        found[cap.protects] = cap
    if not found:
        raise document.error("no cap is declared: write one, or `cap: none`", at)
    return found


def _cap(document: YamlDocument, at: tuple[str, ...], duration: Callable[[str], int]) -> Cap:
    read = document.block(at, CAP_KEYS)
    level = read.text("privacy_level").upper() or PrivacyLevel.USER
    if level not in list(PrivacyLevel):
        raise read.wrong("privacy_level", " or ".join(PrivacyLevel))
    event = level == PrivacyLevel.EVENT
    if event and "period" in read.given:
        raise document.error(
            "a cap of level EVENT bounds one row, whenever it is: it has no `period`",
            (*at, "period"),
        )
    period_us = 0
    if not event:
        try:
            period_us = duration(read.text("period", required="like `period: 30 days`"))
        except ValueError as problem:
            raise document.error(str(problem), (*at, "period")) from None
    no_delta = event and read.given.get("delta") in (0, "0") and read.given["delta"] is not False
    cap = Cap(
        read.positive("epsilon"),
        0.0 if no_delta else read.positive("delta"),
        period_us,
        PrivacyLevel(level),
    )
    if cap.delta >= 1:
        raise document.error("`delta` must be below 1", (*at, "delta"))
    return cap
