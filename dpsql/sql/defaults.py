"""The defaults of a query: options and bounds that its text does not have, and that decide about noise or limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsql.sources.config import Source
from dpsql.sql import options
from dpsql.sql.aggregates import bounds_of_value
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import event
from dpsql.sql.parse import QueryReader, options_of, read_draft
from dpsql.sql.values import is_column

_DECIDING = (options.DELTA, options.MAX_GROUPS_CONTRIBUTED, options.MAX_ROWS_PER_GROUP)


def defaults_of(
    text: str, sources: Mapping[str, Source], readers: Sequence[QueryReader]
) -> Mapping[str, Any]:
    """Return the defaults of an accepted query that decide about noise or limits, by option; None: it is written, or means nothing.

    Of a policy there are `epsilon`, `bounds` by column, and `of_policy`, the names of those that it says.
    """
    draft = read_draft(text, sources, options_of(readers))
    defaults: dict[str, Any] = {
        option.name: draft.value(option.name) if _is_default(draft, option) else None
        for option in _DECIDING
    }
    policy = options.policy_of(draft)
    if not draft.entry(options.EPSILON.name):
        defaults[options.EPSILON.name] = draft.value(options.EPSILON.name)
    bounds = {
        value.name.lower(): bounds_of_value(call, draft.stream, place)
        for call in draft.calls
        for place, value in enumerate(call.positional[: 2 if call.of_pairs else 1])
        if not call.bounds_arguments and is_column(value)
    }
    known_bounds = {column: pair for column, pair in bounds.items() if pair}
    limits = {"epsilon": policy.max_epsilon_per_query, "delta": policy.delta_per_query}
    limits |= {option.name: getattr(policy, option.name, None) for option in options.BOUNDS}
    of_policy = [name for name, value in limits.items() if value and defaults.get(name) == value]
    of_policy += [column for column in known_bounds if policy.bounds_of(column)]
    if known_bounds:
        defaults["bounds"] = known_bounds
    return defaults | ({"of_policy": of_policy} if of_policy else {})


def _is_default(draft: Draft, option: Option) -> bool:
    """Tell whether an option has a value that follows from nothing that is written."""
    if draft.entry(option.name):
        return False
    if option is options.DELTA:
        return True
    if draft.entry(options.MAX_ROWS_CONTRIBUTED.name) or event(draft):
        return False
    if draft.value(option.name) in (None, math.inf):
        return False
    is_number_of_keys = option is options.MAX_GROUPS_CONTRIBUTED
    return not (is_number_of_keys and draft.keyless and not draft.sketches)
