"""Explain the plan of marginals: what is promised, which tables are measured, how far off answers are. From the plan alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpsql.description import GROUPING_ID
from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.plan import MarginalsPlan, MeasuredSum
from dpsql.mechanisms.marginals.planner import BITS, ORDERS, energies_of
from dpsql.mechanisms.protocol import BOUNDS, bounds_told
from dpsql.parsed_query import Aggregate
from dpsql.parts.words import (
    aggregate_text,
    bounding,
    clamp,
    clamps,
    counter_said,
    divisor_text,
    growing,
    live_runs,
    main,
    of_several,
    page,
    promise,
    promise_to_rows,
    promised,
    schedule,
    stages,
    triggers,
)
from dpsql.sources.config import Source
from dpsql.text import Z95, in_short, number, percent
from dpsql.times import duration, timestamp
from dpsql.udfs.marginals.cells import Keys
from dpsql.udfs.marginals.estimates import LeastSquares

SHOWN = 40
"""So many tables are listed in words."""


def typical_error(plan: MarginalsPlan, measured: MeasuredSum, keys: int, trigger: int) -> float:
    """Return the root of the mean variance over the default predicates of so many keys; infinite
    where some of them are not covered."""
    marginals = plan.marginals
    model = LeastSquares(
        marginals.sizes, marginals.tables, plan.noisy_tables(measured).variances(trigger)
    )
    total = 0.0
    for part, energy in energies_of(plan.query.asked.domains, keys).items():
        if energy > 0:
            total += energy / model.precision[part] if part in model.precision else math.inf
    return math.sqrt(total)


def facts(plan: MarginalsPlan, source: Source) -> dict[str, Any]:
    """Return the plan's public numbers under stable names (`dpsql explain --json`)."""
    choices = plan.query.asked
    names = [key.name for key in plan.query.keys]
    return {
        **promised(plan, account(plan, source)),
        "periods": [],
        "start": timestamp(plan.start_us),
        "max_triggers": choices.max_triggers,
        **dict(zip(BOUNDS, bounds_told(plan.query), strict=True)),
        "query_identity": plan.identity,
        "cells": plan.marginals.first[-1],
        "domains": {name: domain.size for name, domain in zip(names, choices.domains, strict=True)},
        "tables": [
            {
                "keys": [names[key] for key in table.keys],
                GROUPING_ID: table.grouping_id,
                "share": table.share / 2**BITS,
                "cells": cells,
            }
            for table, cells in zip(plan.tables, plan.marginals.cells, strict=True)
        ],
        "columns": [_column_facts(plan, aggregate, parts) for aggregate, parts in plan.columns],
    }


def _column_facts(
    plan: MarginalsPlan, aggregate: Aggregate, parts: Sequence[MeasuredSum]
) -> dict[str, Any]:
    return {
        "alias": aggregate.alias,
        "aggregate": str(aggregate.function),
        **clamp(aggregate),
        "sigmas": list(main(parts).sigmas),
        "answers": [
            {"keys": keys, "stderr": _errors_by_trigger(plan, measured, keys)}
            for measured in parts
            for keys in (_orders(plan) if len(parts) == 1 else ())
        ],
        "parts": [
            {
                "of": {"sum": "sum", "squares": "squares"}.get(measured.rule, "count"),
                "sigmas": list(measured.sigmas),
            }
            for measured in parts
        ]
        if len(parts) > 1
        else None,
    }


def _errors_by_trigger(
    plan: MarginalsPlan, measured: MeasuredSum, keys: int
) -> list[dict[str, Any]]:
    return [
        {"trigger": trigger, "stderr": _finite(typical_error(plan, measured, keys, trigger))}
        for trigger in triggers(plan.query)
    ]


def explain(plan: MarginalsPlan, source: Source) -> str:
    """Return the whole explanation as plain text."""
    promised = _promise(plan, source)
    when = growing(plan.query, plan.start_us)
    about = (
        _short(plan),
        promised,
        live_runs(schedule(plan.query, plan.start_us)),
        when,
        _bounds(plan, source),
    )
    return page(plan, *about, _tables(plan), _answers(plan), _budget(plan), _stages(plan))


def missing(plan: MarginalsPlan) -> tuple[str, dict[str, Any]]:
    """Return why a row may be missing."""
    names = ", ".join(key.name for key in plan.query.keys)
    text = (
        "Why is my key missing?\n"
        f"  Every cell of every measured table is released at every trigger, with or without records. A value of ({names}) that is not\n"
        "  in its declared domain is in no cell: its records are dropped, and counted for the operator as outside_the_domain.\n"
        "  A set of keys that is not measured has no rows: dpsql ask answers for it from the tables that are.\n"
    )
    return text, {"keys": "domains"}


def _additive(plan: MarginalsPlan) -> list[tuple[Aggregate, MeasuredSum]]:
    """Return the aggregates that are one sum each."""
    return [(aggregate, parts[0]) for aggregate, parts in plan.columns if len(parts) == 1]


def _orders(plan: MarginalsPlan) -> range:
    return range(1, min(len(ORDERS), len(plan.query.keys)) + 1)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(plan: MarginalsPlan) -> str:
    query = plan.query
    choices = plan.query.asked
    unit = ", ".join(plan.query.privacy_unit)
    last = triggers(plan.query)[-1]
    errors = [
        (aggregate.alias, Z95 * typical_error(plan, measured, 1, last))
        for aggregate, measured in _additive(plan)
    ]
    noise = ", ".join(
        f"{alias} {f'± {number(error)}' if math.isfinite(error) else 'not covered'}"
        for alias, error in errors
    )
    noise = (
        f"{noise} in an answer about one key at trigger {last:,}, 95%."
        if errors
        else "every cell says its own."
    )
    until = "for ever" if choices.max_triggers is None else f"{choices.max_triggers:,} times"
    of_unit = {
        "Left out": f"records of one {unit} that count: at most {choices.max_rows_contributed:,} for ever. Further ones are dropped, and no error bar "
        "says so."
    }
    protected = (
        f"everything that one {unit} does for ever"
        if unit
        else f"one row of {query.stream}, not one person"
    )
    return in_short(
        {
            "Protected": f"{protected}: epsilon {plan.epsilon:g}, delta {plan.delta:g}.",
            "Adds up to": "that is all this run costs, with every answer that is read from it.",
            "When": f"the whole table, every {duration(query.trigger_interval_us)}, {until}.",
            "Keys": f"all {plan.marginals.first[-1]:,} cells of {len(plan.tables)} tables over {', '.join(key.name for key in query.keys)}.",
            "Noise": noise,
        }
        | (of_unit if unit else {})
    )


def _promise(plan: MarginalsPlan, source: Source) -> str:
    if not plan.query.privacy_unit:
        return promise_to_rows(plan.query, account(plan, source))
    return promise(plan.query, "records")


def _bounds(plan: MarginalsPlan, source: Source) -> str:
    choices = plan.query.asked
    of_units = bool(plan.query.privacy_unit)
    bounds = [
        "What each unit may contribute",
        f"  C = {choices.max_rows_contributed} records for ever, c = {choices.max_rows_per_group} of them in one cell of all keys,",
        f"  G = {choices.max_groups_contributed} such cells; the earliest count, the rest are dropped (and counted for the operator).",
    ]
    lines = [
        *(
            bounds
            if of_units
            else ["What each event may contribute", "  One row, to one cell of each table."]
        ),
        "  Records with a value outside a declared domain are dropped before they are counted.",
        *clamps(plan.query.aggregates),
        *(
            [f"  Declared for {source.name}: at most {source.max_users:,} units."]
            if of_units
            else []
        ),
    ]
    return "\n".join(lines)


def _tables(plan: MarginalsPlan) -> str:
    choices = plan.query.asked
    names = [key.name for key in plan.query.keys]
    declared = ", ".join(
        f"{name} {domain.size:,}" for name, domain in zip(names, choices.domains, strict=True)
    )
    errors = [
        [
            f"± {number(error)}{divisor_text(aggregate)} ({aggregate.alias})"
            for error in _errors(plan, main(parts))
        ]
        for aggregate, parts in plan.columns
    ]
    error_texts = [", ".join(of_table) for of_table in zip(*errors, strict=True)]
    width = max(32, *map(len, error_texts))
    lines = [
        "What is measured",
        f"  Values of each key: {declared}. Released at every trigger: all {plan.marginals.first[-1]:,} cells, records or not.",
        f"  {'share of mu^2':>13}  {'cells':>11}  {'95% of one cell at trigger ' + f'{triggers(plan.query)[-1]:,}':<{width}}  keys",
    ]
    for table, cells, error in [*zip(plan.tables, plan.marginals.cells, error_texts, strict=True)][
        :SHOWN
    ]:
        lines.append(
            f"  {percent(table.share / 2**BITS):>13}  {cells:>11,}  {error:<{width}}  {_keys_text(plan, table.keys)}"
        )
    if len(plan.tables) > SHOWN:
        lines.append(f"  and {len(plan.tables) - SHOWN:,} more (dpsql explain --json lists all)")
    unmeasured = [keys for keys in choices.grouping_sets if keys not in plan.marginals.tables]
    if unmeasured:
        names_text = ", ".join(_keys_text(plan, keys) for keys in unmeasured[:SHOWN]) + (
            ", ..." if len(unmeasured) > SHOWN else ""
        )
        lines.append(f"  Not measured, because the others tell as much: {names_text}.")
    for aggregate, parts in plan.columns:
        counts = _errors(plan, parts[-1])
        lines += of_several(aggregate, f"± {number(min(counts))} to {number(max(counts))}")
    return "\n".join(lines)


def _errors(plan: MarginalsPlan, measured: MeasuredSum) -> list[float]:
    """Return 95% of one cell of each table, at the last trigger that is told of."""
    return [
        Z95 * math.sqrt(variance)
        for variance in plan.noisy_tables(measured).variances(triggers(plan.query)[-1])
    ]


def _keys_text(plan: MarginalsPlan, keys: Keys) -> str:
    return f"({', '.join(plan.query.keys[key].name for key in keys)})"


def _answers(plan: MarginalsPlan) -> str:
    heads = "".join(f"{f'trigger {trigger:,}':>17}" for trigger in triggers(plan.query))
    width = max(6, *(len(aggregate.alias) for aggregate in plan.query.aggregates))
    lines = [
        "How far off free answers are (dpsql ask, over ranges and sets of values; 95% are this close to the bounded truth)",
        f"  {'column':<{width}}  {'aggregate':<15}{'keys':>5}{heads}",
    ]
    for aggregate, measured in _additive(plan):
        for keys in _orders(plan):
            errors = [
                Z95 * typical_error(plan, measured, keys, trigger)
                for trigger in triggers(plan.query)
            ]
            cells = "".join(
                f"{f'± {number(e)}' if math.isfinite(e) else 'not covered':>17}" for e in errors
            )
            lines.append(
                f"  {aggregate.alias:<{width}}  {aggregate_text(aggregate):<15}{keys:>5}{cells}"
            )
    last = triggers(plan.query)[-1]
    for first in [measured for _, measured in _additive(plan) if measured.rule != "sum"][:1]:
        rows_needed = [
            (keys, 100 * Z95 * typical_error(plan, first, keys, last)) for keys in _orders(plan)
        ]
        sizes = ", ".join(
            f"{keys} {'key' if keys == 1 else 'keys'}: {number(n)}" for keys, n in rows_needed
        )
        lines.append(f"  Rows in the table at trigger {last:,} of which that is 1%: {sizes}.")
    if quotients := [aggregate.alias for aggregate, parts in plan.columns if len(parts) > 1]:
        lines.append(
            f"  There is none about {', '.join(quotients)}: cells do not add up. For answers select SUM and COUNT beside."
        )
    lines += [
        "  Each answer comes with its own exact standard error, of a question that was chosen without looking at that release:",
        "  who picks the largest of many cells picks its noise, too.",
        "  Not in these numbers: what the bounds above drop or clamp.",
    ]
    return "\n".join(lines)


def _budget(plan: MarginalsPlan) -> str:
    ids = f" + {plan.delta_hash:.2g} for id collisions" if plan.delta_hash else ""
    share_text = (
        f"1/{len(plan.sums)} for each noisy number, shared" if len(plan.sums) > 1 else "Shared"
    )
    return "\n".join(
        [
            "How the budget is spent",
            f"  All noise is Gaussian and accounted for together: mu = {plan.mu:.4f}, the most noise-saving way to ({plan.epsilon:g}, {plan.delta_noise:.3g}).",
            f"  {share_text} among measured tables so that answers over one to three keys are best on average.",
            f"  delta = {plan.delta_noise:.3g} for the noise{ids}. Cells have numbers and do not collide.",
        ]
    )


def _stages(plan: MarginalsPlan) -> str:
    query = plan.query
    return stages(
        query,
        f"{bounding(query)}; each record in one cell of each of {len(plan.tables)} tables",
        f"perturbation of {', '.join(aggregate.alias for aggregate in query.aggregates)}: counter {counter_said(query)}",
        f"table, appended once per trigger; NULL stands for a key that a row is not grouped by, {GROUPING_ID} says which",
    )
