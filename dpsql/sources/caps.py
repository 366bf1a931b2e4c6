"""Caps: the most that all runs on one ledger may spend on one protected unit, at each privacy level, as `sources.yaml` declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
        place: where it is declared, in words.
    """

    epsilon: float
    delta: float
    period_us: int
    protects: PrivacyLevel = PrivacyLevel.USER
    place: str = field(default="its source", compare=False)


def read_caps(
    document: YamlDocument, key_path: tuple[str, ...], duration: Callable[[str], int]
) -> dict[PrivacyLevel, Cap]:
    """Return the caps at a path: one mapping, which is USER's unless it says otherwise, or a list of them, one per level.

    Raises:
        ConfigError: with the line of what is wrong.
    """
    value = document.value
    for key in key_path:
        value = value[key]
    if not isinstance(value, list):
        cap = _cap(document, key_path, duration)
        return {cap.protects: cap}
    caps: dict[PrivacyLevel, Cap] = {}
    for i in range(len(value)):
        cap = _cap(document, (*key_path, str(i)), duration)
        if cap.protects in caps:
            raise document.error(
                f"two caps of level {cap.protects}: a ledger has one cap per level",
                (*key_path, str(i)),
            )
        caps[cap.protects] = cap
    if not caps:
        raise document.error("no cap is declared: write one, or `cap: none`", key_path)
    return caps


def _cap(document: YamlDocument, key_path: tuple[str, ...], duration: Callable[[str], int]) -> Cap:
    block = document.block(key_path, CAP_KEYS)
    level = block.text("privacy_level").upper() or PrivacyLevel.USER
    if level not in list(PrivacyLevel):
        raise block.wrong("privacy_level", " or ".join(PrivacyLevel))
    event = level == PrivacyLevel.EVENT
    if event and "period" in block.settings:
        raise document.error(
            "a cap of level EVENT bounds one row, whenever it is: it has no `period`",
            (*key_path, "period"),
        )
    period_us = 0
    if not event:
        period = block.text("period", required="like `period: 30 days`")
        try:
            period_us = duration(period)
        except ValueError as problem:
            raise document.error(str(problem), (*key_path, "period")) from None
    no_delta = (
        event and block.settings.get("delta") in (0, "0") and block.settings["delta"] is not False
    )
    cap = Cap(
        block.positive("epsilon"),
        0.0 if no_delta else block.positive("delta"),
        period_us,
        PrivacyLevel(level),
        ".".join(key_path) if len(key_path) > 1 else "cap= in dpsql.session",
    )
    if cap.delta >= 1:
        raise document.error("`delta` must be below 1", (*key_path, "delta"))
    return cap
