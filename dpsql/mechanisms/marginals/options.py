"""The options that a query of grouping sets may write."""

from __future__ import annotations

from dpsql.mechanisms.marginals.asked import Asked
from dpsql.mechanisms.marginals.grouping import cube
from dpsql.sources.domains import Domain
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.items import GroupingSets
from dpsql.udfs.marginals.cells import Keys

MOST_KEYS = 16
GROUPING_KEYS = 3

OPTIONS: tuple[Option, ...] = (
    *(option for option in options.USUAL if option is not options.PUBLIC_GROUPS),
    options.MAX_TRIGGERS,
)


def domains_of(draft: Draft) -> tuple[Domain | None, ...]:
    """What the source declares for each key; None: nothing."""
    declared = dict(draft.stream.domains) if draft.stream else {}
    return tuple(declared.get(item.name or "") for item in draft.keys)


def sets_of(draft: Draft, written: GroupingSets) -> tuple[Keys, ...]:
    """The tables that may be measured, as places of keys in the select list."""
    place = {id(item): at for at, item in enumerate(draft.keys)}
    if written.word == "CUBE":
        return cube([domain.size for domain in domains_of(draft) if domain], GROUPING_KEYS)
    return tuple(tuple(sorted(place[id(entry.key)] for entry in each)) for each in written.sets())


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    if draft.grouping_sets is None:
        raise AssertionError("a query without grouping sets came to marginals")
    return Asked(
        **bounds_of(draft),
        domains=tuple(domain for domain in domains_of(draft) if domain),
        grouping_sets=sets_of(draft, draft.grouping_sets),
        max_triggers=draft.value("max_triggers"),
    )
