"""Explain the plan of marginals: from the plan alone, no data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpsql.allowance import Limits
from dpsql.explanation import ExplainedColumn, Explanation, Keys, Notes, ReleasedTable, gaussian
from dpsql.mechanisms.explanations import (
    HANDED_ON,
    budget,
    changing,
    column,
    divisor,
    growing,
    main,
    protects,
    statistics_of,
    times,
    versions,
)
from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.plan import MarginalsPlan, MeasuredSum
from dpsql.mechanisms.marginals.planner import BITS, ORDERS, energies_of
from dpsql.mechanisms.protocol import bounds_told
from dpsql.parsed_query import Aggregate
from dpsql.parts.whole_table import schedule, triggers
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from dpsql.text import percent, plural
from dpsql.udfs.marginals.cells import Keys as KeyPlaces
from dpsql.udfs.marginals.cells import closes
from dpsql.udfs.marginals.estimates import LeastSquares
from dpsql.udfs.marginals.release import CLOSED_CELL

FAR = 2.0
"""Quotient of the standard errors of a row and of the best estimate of it, above which a text says where that is."""

SHOWN = 40
"""The largest number of unmeasured tables that a text names."""


def typical_error(plan: MarginalsPlan, measured: MeasuredSum, keys: int, trigger: int) -> float:
    """Return the root of the mean variance over the default predicates of so many keys; infinite
    where some of them are not covered."""
    domains = _domains_at(plan, trigger)
    sizes = tuple(domain.size for domain in domains)
    model = LeastSquares(
        sizes, plan.marginals.tables, plan.noisy_tables(measured).variances(trigger)
    )
    total = 0.0
    for part, energy in energies_of(domains, keys).items():
        if energy > 0:
            total += energy / model.precision[part] if part in model.precision else math.inf
    return math.sqrt(total)


def _domains_at(plan: MarginalsPlan, trigger: int) -> tuple[Domain, ...]:
    """Return the values that keys have in the rows of a trigger: of one that is in no counters those of closed cells."""
    domains = list(plan.query.asked.domains)
    closing = plan.closing
    if closing is None:
        return tuple(domains)
    counter_keys = {
        key for keys in plan.marginals.tables if not closes(closing.keys, keys) for key in keys
    }
    shape = [domains[key].size for key in closing.keys]
    closed = (np.array(closing.triggers) > 0) & (np.array(closing.triggers) <= trigger)
    places = np.nonzero(closed.reshape(shape))
    for key, closed_places in zip(closing.keys, places, strict=True):
        if key not in counter_keys:
            values = domains[key].values
            domains[key] = replace(
                domains[key], values=tuple(values[place] for place in np.unique(closed_places))
            )
    return tuple(domains)


def explanation(plan: MarginalsPlan, source: Source) -> Explanation:
    """Return all that is said of a plan."""
    query = plan.query
    return Explanation(
        protects=protects(plan, account(plan, source)),
        when=times(query, schedule(query, plan.start_us), query.asked.max_triggers),
        limits=Limits(
            *bounds_told(query),
            max_users=source.max_users,
            no_figures="a record of a CUBE counts in cells of many tables",
        ),
        keys=Keys(
            how="public",
            names=tuple(key.name for key in query.keys),
            cells=plan.marginals.first[-1],
            tables=tuple(_tables(plan)),
        ),
        columns=tuple(_column(plan, aggregate, parts) for aggregate, parts in plan.columns),
        budget=budget(plan, None if plan.session_share else len(plan.sums)),
        identity=plan.identity,
        notes=Notes(
            protects=(HANDED_ON,) if plan.changes else (),
            when=changing(query) if plan.changes else growing(query, plan.closing is not None),
            limits=(
                *(versions(query) if plan.changes else ()),
                "A cell has one value of each key column. Records with a value outside a declared domain are dropped before they are counted.",
            ),
            keys=tuple(_key_notes(plan)),
            columns=tuple(_answer_notes(plan)),
            budget=(
                "Measured tables share the budget so that answers about one to three key columns are best on average. Cells have numbers and do not collide.",
                *_session_notes(plan),
            ),
        ),
    )


def _tables(plan: MarginalsPlan) -> Iterator[ReleasedTable]:
    trigger = triggers(plan.query)[-1]
    variances = {
        part.noise_stream: plan.noisy_tables(part).variances(trigger) for part in plan.sums
    }
    for place, (table, cells) in enumerate(zip(plan.tables, plan.marginals.cells, strict=True)):
        errors = [
            gaussian(
                trigger,
                statistic,
                math.sqrt(variances[part.noise_stream][place]),
                divisor(aggregate) if part is main(parts) else "",
                aggregate.alias,
            )
            for aggregate, parts in plan.columns
            for statistic, part in zip(statistics_of(aggregate, parts), parts, strict=True)
        ]
        yield ReleasedTable(
            names=tuple(plan.query.keys[key].name for key in table.keys),
            grouping_id=table.grouping_id,
            cells=cells,
            share=table.share / 2**BITS,
            errors=tuple(errors),
        )


def _column(
    plan: MarginalsPlan, aggregate: Aggregate, parts: Sequence[MeasuredSum]
) -> ExplainedColumn:
    """Return a column with the errors of answers about one key and several; of quotients there are
    none, as cells do not add up."""
    orders = range(1, min(len(ORDERS), len(plan.query.keys)) + 1) if len(parts) == 1 else ()
    errors = [
        gaussian(
            trigger,
            "value",
            typical_error(plan, parts[0], keys, trigger),
            scope=f"questions on {plural(keys, 'column')}",
        )
        for keys in orders
        for trigger in triggers(plan.query)
    ]
    return column(aggregate, errors)


def _session_notes(plan: MarginalsPlan) -> Iterator[str]:
    """Say what paid answers have, and what that takes from free ones."""
    if share := plan.session_share:
        longer = 1 / math.sqrt(1 - share) - 1
        number_share = (1 - share) / len(plan.sums)
        numbers = f"{percent(number_share)} for each noisy number of a group ({len(plan.sums)})"
        yield f"Shares of the budget: {percent(share)} for paid answers (`dpsql ask --pay`), {numbers}."
        yield f"What session_share keeps for paid answers makes all other error bars {percent(longer)} longer."
        if plan.query.asked.cuts:
            yield "With paid answers no cell closes: cells of past times are measured at every trigger."


def _key_notes(plan: MarginalsPlan) -> Iterator[str]:
    choices = plan.query.asked
    names = [key.name for key in plan.query.keys]
    sizes = zip(names, choices.domains, strict=True)
    declared = ", ".join(f"{name} {domain.size:,}" for name, domain in sizes)
    yield f"Number of values: {declared}. NULL stands for a key that a row is not grouped by."
    if plan.closing:
        yield (
            f"Cells of {_closing_names(plan)} close: each is measured once, at the trigger that has all its records, and is told from then on. "
            f"Records that come later are dropped from all tables, and counted as {CLOSED_CELL}."
        )
    measured = plan.marginals.tables
    unmeasured = [keys for keys in choices.grouping_sets if keys not in measured][:SHOWN]
    if unmeasured:
        texts = map(partial(_names, plan), unmeasured)
        yield f"Not measured, because the others tell as much: {', '.join(texts)}."
    if blurred := list(_blurred(plan)):
        listed = ", ".join(map(partial(_names, plan), blurred))
        yield f"`dpsql ask` tells the cells of {listed} from all tables, with less than half the noise of their own rows."


def _closing_names(plan: MarginalsPlan) -> str:
    return " and ".join(plan.query.keys[key].name for key in plan.closing_keys)


def _blurred(plan: MarginalsPlan) -> Iterator[KeyPlaces]:
    """Yield the tables of whose cells all tables together tell far more than their own rows."""
    marginals = plan.marginals
    variances = plan.noisy_tables(plan.sums[0]).variances(triggers(plan.query)[-1])
    model = LeastSquares(marginals.sizes, marginals.tables, variances)
    for keys, variance in zip(marginals.tables, variances, strict=True):
        cell = {key: np.eye(1, marginals.sizes[key])[0] for key in keys}
        if FAR * math.sqrt(model.variance(cell)) < math.sqrt(variance):
            yield keys


def _names(plan: MarginalsPlan, keys: KeyPlaces) -> str:
    return f"({', '.join(plan.query.keys[key].name for key in keys)})"


def _answer_notes(plan: MarginalsPlan) -> Iterator[str]:
    if quotients := [aggregate.alias for aggregate, parts in plan.columns if len(parts) > 1]:
        yield f"There are no answers about {', '.join(quotients)}: cells do not add up. For answers also select SUM and COUNT."
    yield (
        "`dpsql ask` answers questions about ranges and sets of values, at no further cost. Each answer has its own exact standard "
        "error, if the question was chosen without looking at that release: the largest of many cells has the largest noise, too."
    )


def missing(plan: MarginalsPlan) -> tuple[str, dict[str, Any]]:
    """Return why a row may be missing."""
    names = ", ".join(key.name for key in plan.query.keys)
    often = "" if plan.query.once else " at every trigger"
    closing = plan.closing and (
        f"  Cells of {_closing_names(plan)} are released from the trigger on at which they close; a value that is not over yet has no row.\n"
    )
    text = (
        "Why is my key missing?\n"
        f"  Every cell of every measured table is released{often}, with or without records. A value of ({names}) that is not\n"
        "  in its declared domain is in no cell: its records are dropped, and counted for the operator as outside_the_domain.\n"
        "  A set of keys that is not measured has no rows: dpsql ask answers for it from the tables that are.\n"
    ) + (closing or "")
    return text, {"keys": "domains"}
