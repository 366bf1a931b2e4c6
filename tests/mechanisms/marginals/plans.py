"""Queries for marginals, made without the parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dpsql.description import Protects
from dpsql.mechanisms.marginals.plan import (
    ChangingCubeChoices,
    CubeChoices,
    SessionCubeChoices,
    cube,
)
from dpsql.parsed_query import ContributionPeriod, Key, ParsedQuery
from dpsql.published.cubes import PublishedMarginals, tables_in
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from tests.described import described
from tests.property import plans
from tests.property.plans import COUNT

START = 1_442_016_000_000_000
"""2015-09-12."""


def numbered(size: int, ordered: bool) -> Domain:
    """The values 0, 1, ..."""
    return Domain(tuple(map(str, range(size))), ordered, whole=True)


DOMAINS = (numbered(5, False), numbered(4, True), numbered(3, True))


def source(**changes: Any) -> Source:
    """The stream `visits`, from START on."""
    return plans.source(**({"start_us": START} | changes))


def query(**changes: Any) -> ParsedQuery[CubeChoices]:
    """All marginals of up to two of three keys and the whole table, hourly, C = 1, 24 triggers; any field can be changed. With a `feed` its rows end,
    and with `period_us` a unit's allowance renews; with a `session_share` answers can be paid."""
    domains = changes.get("domains", DOMAINS)
    names = [f"k{i}" for i in range(len(domains))]
    rows = changes.get("max_rows_contributed", 1)
    fields: dict[str, Any] = {
        "max_rows_contributed": rows,
        "max_rows_per_group": rows,
        "max_groups_contributed": rows,
        "domains": domains,
        "grouping_sets": cube([domain.size for domain in domains], 2),
        "max_triggers": 24,
        "epsilon": 1.0,
        "delta": 1e-6,
        "contribution_period": ContributionPeriod.STREAM,
        "window": None,
        "keys": tuple(Key(name, name) for name in names),
        "aggregates": (COUNT,),
        "columns_in_order": (*names, "views"),
    }
    kind = ChangingCubeChoices if "feed" in changes else CubeChoices
    kind = SessionCubeChoices if "session_share" in changes else kind
    if changes.get("period_us"):
        fields["contribution_period"] = ContributionPeriod.DURATION
    return plans.parsed(plans.COMMON | fields | changes, "marginals", kind)


def published_tables(
    keys: Mapping[str, list[int]], trigger: int, columns: Mapping[str, Any]
) -> PublishedMarginals:
    """Tables of one trigger that are not read from rows."""
    names = [*keys, *(each for name in columns for each in (name, f"{name}_stderr"))]
    return PublishedMarginals(keys, trigger, 0, columns, tuple(columns), described(names))


def published_rows(rows: pa.Table) -> PublishedMarginals:
    """Rows of one trigger of a table that was made up: it says so, and that each unit has one record in it."""
    run = Protects(
        level="USER",
        units=("user_id",),
        period_us=None,
        max_rows=1,
        max_rows_per_group=None,
        max_groups=None,
        sums=1,
        units_needed=None,
        rows_end=False,
        epsilon=1.0,
        delta=1e-6,
    )
    return tables_in(rows, replace(described(rows.column_names), protects=(run,)))
