"""What of one unit counts, and which options a query leaves to their defaults, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The contribution limits of a unit in one period, by the options that set them; None: no such
    limit.

    Args:
        max_users, max_keys: declared for the source.
        pairs: of window and key.
        defaults: options that the query does not write; None: it does.
        left_out: figures that tell what the limits leave out.
    """

    max_rows_contributed: int | None
    max_rows_per_group: int | None
    max_groups_contributed: int | None
    max_users: int
    max_keys: int | None = None
    max_spells_contributed: int | None = None
    pairs: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[Any] | None = None


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


def further(limits: Limits, key: str, once: bool = False) -> str:
    """Say what becomes of further records; nothing where all count."""
    if limits.max_rows_contributed is None and not key:
        return ""
    chosen = " Which of a unit's rows count is up to a keyed hash." if once else ""
    return f"{chosen} Further records are dropped; the error bars do not show that."
