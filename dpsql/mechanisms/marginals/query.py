"""The options of a query of grouping sets, how they are read, and what it may not say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from dpsql.description import GROUPING_ID
from dpsql.errors import Problem
from dpsql.mechanisms.marginals.closing import CUTS
from dpsql.mechanisms.marginals.plan import (
    MAX_CELLS,
    ChangingCubeChoices,
    CubeChoices,
    SessionCubeChoices,
    cube,
)
from dpsql.parsed_query import AggregateFunction
from dpsql.sources.change_feed import feed_of
from dpsql.sources.domains import Domain
from dpsql.sql import clause_rules, event_rules, options, time_rules
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.items import LISTS, GroupingSets, is_named, time_function
from dpsql.sql.relations import value_type
from dpsql.sql.select_rules import TEXT_TYPES, WHOLE_TYPES
from dpsql.sql.text import problem
from dpsql.sql.values import bare, is_column
from dpsql.udfs.marginals.cells import Keys

# The options that a query of grouping sets may write.

MOST_KEYS = 16
GROUPING_KEYS = 3

OPTIONS: tuple[Option, ...] = (
    *(option for option in options.USUAL if option is not options.PUBLIC_GROUPS),
    options.MAX_TRIGGERS,
)


def domains_of(draft: Draft) -> tuple[Domain | None, ...]:
    """Return what the source declares for each key; None: nothing."""
    declared = dict(draft.stream.domains) if draft.stream else {}
    return tuple(declared.get(item.name or "") for item in draft.keys)


def sets_of(draft: Draft, grouping: GroupingSets) -> tuple[Keys, ...]:
    """Return the tables that may be measured, as places of keys in the select list."""
    place = {id(item): index for index, item in enumerate(draft.keys)}
    if grouping.word == "CUBE":
        return cube([domain.size for domain in domains_of(draft) if domain], GROUPING_KEYS)
    return tuple(
        tuple(sorted(place[id(entry.key)] for entry in entries)) for entries in grouping.sets()
    )


def read_choices(draft: Draft) -> CubeChoices:
    """Return what an accepted query asks, every default filled in."""
    if draft.grouping_sets is None:
        raise AssertionError("a query without grouping sets came to marginals")
    settings = bounds_of(draft) | {
        "domains": tuple(domain for domain in domains_of(draft) if domain),
        "grouping_sets": sets_of(draft, draft.grouping_sets),
        "max_triggers": 1 if draft.once else draft.value("max_triggers"),
    }
    if feed := feed_of(draft.stream):
        return ChangingCubeChoices(**settings, feed=feed, period_us=time_rules.period_of(draft))
    settings["cuts"] = tuple(cuts_of(draft))
    if draft.stream and draft.stream.session_share:
        return SessionCubeChoices(**settings, session_share=draft.stream.session_share)
    return CubeChoices(**settings)


def cuts_of(draft: Draft) -> Iterator[tuple[int, str]]:
    """Yield the keys that are cuts of the event time, like `hour(ts)`, and the name of the function."""
    inner = {
        projection.alias_or_name.lower(): bare(projection.unalias())
        for scope in draft.scopes
        if not scope.outer
        for projection in scope.select.expressions
    }
    event_time = inner.get(draft.time_column)
    if event_time is not None and not is_named(event_time, draft.time_column):
        return  # another column has its name
    for place, item in enumerate(draft.keys):
        node = bare(item.root)
        node = inner.get(node.name.lower(), node) if is_column(node) else node
        if (function := time_function(node, draft.time_column)) in CUTS:
            yield place, function


# What a query of grouping sets may not say, besides what no query may.


def plain_keys(draft: Draft) -> Iterator[Problem]:  # noqa: C901
    """Reject an entry that is no key of the select list, a key that is no entry, and a key twice in
    a set."""
    grouping = draft.grouping_sets
    if grouping is None:
        return
    if not grouping.entries:
        yield problem(
            grouping.span,
            f"{grouping.word} names no key",
            "name keys with declared domains, like CUBE(url, status)",
        )
    for entry in grouping.entries:
        if isinstance(entry.root, LISTS):
            message = f"An entry of {grouping.word} is one key here, no list of keys"
            yield problem(
                entry.span, message, "write each set of keys as one of GROUPING SETS ((a, b), (a))"
            )
        elif entry.key is None:
            yield problem(
                entry.span,
                "This key of GROUP BY is not in the select list",
                f"add {entry.sql} to the select list",
            )
    if len(draft.keys) > MOST_KEYS:
        yield problem(
            grouping.span,
            f"{grouping.word} has {len(draft.keys)} keys, and at most {MOST_KEYS} are accepted",
            "name fewer keys",
        )
    nested = any(entry.key is None for entry in grouping.entries)
    for item in () if nested else draft.keys:
        if not any(entry.key is item for entry in grouping.entries):
            yield problem(
                item.span,
                "This is neither an aggregate nor in GROUP BY",
                f"add it to {grouping.word}, or leave it out",
            )
    for entries in grouping.lists:
        for entry in entries:
            if entry.key is not None and [peer.key for peer in entries].index(
                entry.key
            ) < entries.index(entry):
                yield problem(entry.span, "This key is in the set already", "leave it out")
    counts = Counter[frozenset[int]]()
    for entries in grouping.lists:
        keys = frozenset(id(entry.key) for entry in entries)
        counts[keys] += 1
        if counts[keys] > 1:
            yield problem(
                entries[0].span if entries else grouping.span,
                "This set of keys already exists",
                "leave it out",
            )


def domains_declared(draft: Draft) -> Iterator[Problem]:
    """Reject a key without a domain of its type: all cells are released, records or not."""
    if draft.stream is None or len(draft.keys) > MOST_KEYS:
        return
    for item, domain in zip(draft.keys, domains_of(draft), strict=True):
        kind = value_type(draft.scope, item.root)
        if domain is None:
            place = draft.stream.place("domains")
            hint = f"declare the domain of `{item.name}` at {place}: `values` or `range`"
            yield problem(
                item.span,
                f"All values of a key of {_word(draft)} must be declared, and those of `{item.name}` are not",
                hint,
            )
        elif kind is not None and kind.this not in (WHOLE_TYPES if domain.whole else TEXT_TYPES):
            type_words, cast = ("whole numbers", "BIGINT") if domain.whole else ("texts", "STRING")
            message = f"The domain of `{item.name}` has {type_words}, and the key is {kind.sql(dialect='spark')}"
            yield problem(
                item.span,
                message,
                f"cast it: CAST({item.sql} AS {cast}) AS {item.name} in a sub-query of FROM",
            )


def few_cells(draft: Draft) -> Iterator[Problem]:
    """Reject sets with more cells than a trigger may release; the table of all keys is measured
    only where it fits."""
    grouping = draft.grouping_sets
    domains = domains_of(draft)
    sizes = [domain.size for domain in domains if domain]
    has_all_keys = grouping is not None and all(entry.key is not None for entry in grouping.entries)
    if grouping is None or not has_all_keys or len(sizes) < len(domains) or len(sizes) > MOST_KEYS:
        return
    all_keys = tuple(range(len(sizes)))
    sets = [
        keys for keys in sets_of(draft, grouping) if keys != all_keys or grouping.word != "CUBE"
    ]
    cells = sum(math.prod(sizes[key] for key in keys) for keys in sets)
    if cells > MAX_CELLS:
        hint = "name GROUPING SETS" if grouping.word == "CUBE" else "name sets of fewer keys"
        message = f"All sets together have {cells:,} cells, and each is released at every trigger: at most {MAX_CELLS:,} are accepted"
        yield problem(grouping.span, message, hint)


def of_rows(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates that are not of rows: only their sums in a set are the sums of the cells of
    a larger one."""
    for call in draft.calls:
        if call.function is AggregateFunction.COUNT_DISTINCT_UNIT and not event_rules.event(draft):
            hint = f"use {' '.join(f'GROUP BY {item.name}' for item in draft.keys[:1]) or 'one GROUP BY'} in a query of its own"
            yield problem(
                call.item.span,
                f"COUNT(DISTINCT) is not linear, so {_word(draft)} cannot have it",
                hint,
            )


def own_names(draft: Draft) -> Iterator[Problem]:
    """Reject a name that a column of the public table has."""
    for item in draft.items:
        if item.name == GROUPING_ID:
            yield problem(
                item.alias_span,
                f"`{GROUPING_ID}` is a column of the public table already",
                "choose another alias",
            )


def no_session_of_changes(draft: Draft) -> Iterator[Problem]:
    """Reject paid answers about rows that end: their price would need a bound of its own."""
    if (
        draft.grouping_sets
        and feed_of(draft.stream)
        and draft.stream
        and draft.stream.session_share
    ):
        yield problem(
            draft.grouping_sets.span,
            f"session_share of {draft.stream.name} is not supported for a change feed",
            f"remove session_share at {draft.stream.place('session_share')}",
        )


def of_the_paper(draft: Draft) -> Iterator[Problem]:
    """Reject the paper's mechanism, which answers questions one by one, in a session of its own."""
    if draft.paper and (entry := draft.entry("mechanism")):
        yield problem(
            entry.name_span,
            f"The paper's mechanism for {_word(draft)} is not built",
            "leave mechanism out",
        )


def _word(draft: Draft) -> str:
    return draft.grouping_sets.word if draft.grouping_sets else "CUBE"


RULES = (
    *time_rules.TABLE_RULES,
    *time_rules.FEED_RULES,
    clause_rules.required_options,
    *event_rules.RULES,
    clause_rules.delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    plain_keys,
    domains_declared,
    few_cells,
    of_rows,
    own_names,
    no_session_of_changes,
    of_the_paper,
)
