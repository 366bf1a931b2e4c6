"""What of one unit counts, and which options a query leaves to their defaults, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsql.text import number


@dataclass(frozen=True)
class FigureBar:
    """The error of a figure of what the limits leave out.

    Args:
        name: of the figure.
        bound: what one unit adds in one period, at most.
        stderr: standard error.
        half_width: of the 95% interval.
    """

    name: str
    bound: int
    stderr: float
    half_width: float


@dataclass(frozen=True)
class Limits:
    """The contribution limits of a unit in one period, by the options that set them; None: no such
    limit.

    Args:
        max_users, max_keys: declared for the source.
        pairs: of window and key.
        defaults: options that the query does not write; None: it does.
        left_out: figures of what the limits leave out.
        no_figures: why there are none.
    """

    max_rows_contributed: int | None
    max_rows_per_group: int | None
    max_groups_contributed: int | None
    max_users: int
    max_keys: int | None = None
    max_spells_contributed: int | None = None
    pairs: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[FigureBar] = ()
    no_figures: str = ""


def defaults_text(limits: Limits, key: str) -> str:
    """Return `delta = 1e-09 (10,000,000 units); at most 8 values of page, 2 rows each (max_groups_contributed, max_rows_per_group).` and their like.

    Args:
        limits: of the query, with its defaults.
        key: the names of the keys; empty without one.
    """
    defaults = limits.defaults
    of_policy = defaults.get("of_policy", ())
    epsilon = defaults.get("epsilon")
    delta = defaults.get("delta")
    parts = [] if epsilon is None else [f"epsilon = {epsilon:g} (policy)"]
    if delta is not None:
        origin = "policy" if "delta" in of_policy else f"{limits.max_users:,} units"
        parts.append(f"delta = {delta:g} ({origin})")
    rows = defaults.get("max_rows_per_group")
    groups = defaults.get("max_groups_contributed")
    row_word = "row" if rows == 1 else "rows"
    if groups and key:
        per_key = f", {rows:,} {row_word} each" if rows else ""
        options = "max_groups_contributed" + (", max_rows_per_group" if rows else "")
        parts.append(f"at most {groups:,} values of {key}{per_key} ({options})")
    elif rows:
        place = f" with one {key}" if key else ""
        parts.append(f"at most {rows:,} {row_word} of a unit{place} (max_rows_per_group)")
    for column, (low, high) in defaults.get("bounds", {}).items():
        origin = "policy" if column in of_policy else "domain"
        parts.append(f"bounds of {column} {low:,.10g} to {high:,.10g} ({origin})")
    return "; ".join(parts) + "." if parts else ""


def allowance(limits: Limits, unit: Sequence[str], span: str, key: str) -> str:
    """Say how many records of a unit count in a time; without a key those of one key are all."""
    count = f"of one {', '.join(unit)} count {span}".rstrip()
    rows = limits.max_rows_contributed
    per_key = limits.max_rows_per_group or 0
    keys = limits.max_groups_contributed or 0
    if rows is None and not key:
        return f"all records {count}"
    if rows is None:
        return f"at most G = {keys:,} values of {key}, with any number of records, {count}"
    if not key:
        return f"at most {min(rows, per_key):,} records {count}"
    more = f", c = {per_key:,} with one {key}" if per_key < rows else ""
    more += f", G = {keys:,} values of {key}" if keys < rows else ""
    return f"at most C = {rows:,} records {count}{more}"


def allowance_sentences(
    limits: Limits, count: str, key: str, once: bool, is_long: bool
) -> Iterator[str]:
    """Yield how many records of a unit count (`count`), and what becomes of further ones; `is_long`: for the whole stream."""
    yield f"{count[0].upper()}{count[1:]}."
    if not further(limits, key):
        return
    long = " for good" if is_long else ""
    rare = ", which favours rare keys" if _favours_rare_keys(limits, key) else ""
    yield f"{_choice(once)}{rare}; the operator sees how many are dropped{long}."


def further(limits: Limits, key: str, once: bool = False) -> str:
    """Say what becomes of further records; nothing where all count."""
    if limits.max_rows_contributed is None and not key:
        return ""
    return f" {_choice(once)}. Further records are dropped; the error bars do not show that."


def _favours_rare_keys(limits: Limits, key: str) -> bool:
    """Tell whether a unit's rare keys are likelier to count than its frequent ones, record by record."""
    rows = limits.max_rows_contributed
    per_key = (limits.max_rows_per_group, limits.max_groups_contributed)
    return bool(key) and any(rows is None or (most or rows) < rows for most in per_key)


def _choice(once: bool) -> str:
    return "Records that count are drawn by lot" if once else "Earliest first, equal times by lot"


def estimate_text(limits: Limits, key: str, once: bool) -> str:
    """Say what is estimated of what the limits leave out, with its error; nothing where nothing is."""
    names = {
        "units": "units",
        "pairs_left_out": f"left-out values of {key}",
        "rows_left_out": "left-out records",
        "values_clamped": "clamped values",
    }
    bars = [
        f"{names[each.name]} ± {number(each.half_width)}"
        for each in limits.left_out
        if each.name in names
    ]
    if not bars:
        return ""
    subject = "the release" if once else "each window"
    return (
        f"{subject} comes with a private estimate of what the limits left out: {', '.join(bars)}."
    )
