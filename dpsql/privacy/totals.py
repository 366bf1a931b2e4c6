"""Exact totals of records, and who is told of them: the rule behind the table in docs/privacy/index.md, "Who sees which number".

They are counted of what WHERE leaves. So where a predicate names a person or a key, a total is an exact answer about that one, outside every
budget: it belongs into files of the operator's alone (mode 0600), and anywhere else only if the records may be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsql.sources.config import Source

FIELDS = frozenset({"records", "records_per_second", "dropped", "drops", "malformed"})
"""What events, reports and results call them."""


def may_be_told(source: Source, compared: bool = False) -> bool:
    """Tell whether the totals of a source may be where others read: on stdout, stderr, in JSON.

    Args:
        source: the stream.
        compared: exact values are shown anyway, of data that one may look at.
    """
    return source.public or compared


def without_totals(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is left of an event, a report or a summary for others to read."""
    return {name: value for name, value in document.items() if name not in FIELDS}
