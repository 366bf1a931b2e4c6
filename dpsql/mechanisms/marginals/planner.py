"""The planner of marginals: ParsedQuery and the source's declaration -> MarginalsPlan, with every number concrete."""

from __future__ import annotations

import dataclasses
import math

from dpsql.description import ADDITIVE
from dpsql.errors import ConfigError
from dpsql.mechanisms.identity import identity_of
from dpsql.mechanisms.marginals.asked import Asked
from dpsql.mechanisms.marginals.grouping import MAX_CELLS
from dpsql.mechanisms.marginals.plan import MarginalsPlan, MeasuredSum, MeasuredTable
from dpsql.mechanisms.marginals.shares import BITS, shares
from dpsql.mechanisms.marginals.workload import default_energies
from dpsql.parsed_query import AVERAGED, ParsedQuery
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import check_noise, increments_of, of_width, sums_of
from dpsql.parts.words import document, norm_of, reach_of
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.marginals.cells import Keys, Marginals
from dpsql.udfs.marginals.least_squares import parts

PLAN_VERSION = 3
"""Changes when the same query would get other noise; part of the query's identity."""
MAX_PLACES = 2**62
"""A record's places in all domains are one 64-bit number."""


def make_plan(query: ParsedQuery[Asked], source: Source) -> MarginalsPlan:
    """Plan the marginals of one growing table.

    Args:
        query: what is asked.
        source: the declaration of the stream it reads.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) on all that one privacy unit ever does.

    Raises:
        ConfigError: the source declares no start, there are too many cells, or a number does not fit.
    """
    asked = query.asked
    if source.start_us is None:
        raise ConfigError(
            f"all cells are released from the declared start on: add a line like `start: 2026-01-01` at sources.{source.name}"
        )
    if math.prod(domain.size for domain in asked.domains) > MAX_PLACES:
        raise ConfigError(
            "the grouped keys have more than 2^62 combinations of values: group by fewer keys, or give them smaller domains"
        )
    delta_hash = hash_charge(query, source, source.max_users, 0)  # cells have numbers and no hashes
    delta_noise = (query.delta - delta_hash) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    arguments = tuple(dict.fromkeys(a.argument for a in query.aggregates if a.argument is not None))
    plan = MarginalsPlan(
        query=query,
        start_us=source.start_us,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_hash=delta_hash,
        mu=mu,
        tables=(),
        sums=(),
        arguments=arguments,
        identity="",
    )
    plan = dataclasses.replace(plan, tables=_tables(plan))
    cells = plan.marginals.first[-1]
    if cells > MAX_CELLS:
        raise ConfigError(
            f"all measured marginals together have {cells:,} cells, more than {MAX_CELLS:,}: name GROUPING SETS with fewer"
        )
    plan = dataclasses.replace(plan, sums=_sums(plan, source))
    return dataclasses.replace(plan, identity=identity(plan))


def identity(plan: MarginalsPlan) -> str:
    """The query's."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def _shift(asked: Asked, keys: Keys) -> float:
    """How far one unit moves a table with rows of height 1: of N rows M at most are in one cell (docs/privacy/marginals.md, theorem 25)."""
    rows = asked.max_rows_contributed
    per_group = asked.max_rows_per_group
    groups = asked.max_groups_contributed
    finest = math.prod(domain.size for key, domain in enumerate(asked.domains) if key not in keys)
    return math.sqrt(min(rows, per_group * min(groups, finest)) * min(rows, per_group * groups))


def _tables(plan: MarginalsPlan) -> tuple[MeasuredTable, ...]:
    asked = plan.query.asked
    sizes = tuple(domain.size for domain in asked.domains)
    # What no set can tell does not count: GROUPING SETS say what may be asked.
    told = {part for keys in asked.grouping_sets for part in parts(keys)}
    energies = {
        part: energy for part, energy in default_energies(asked.domains).items() if part in told
    }
    costs = {
        keys: (_shift(asked, keys) / asked.max_rows_contributed) ** 2
        for keys in asked.grouping_sets
    }
    found = shares(sizes, asked.grouping_sets, energies, costs)
    marginals = Marginals(sizes, tuple(found))
    return tuple(
        MeasuredTable(keys=keys, grouping_id=marginals.grouping_id(t), share=share)
        for t, (keys, share) in enumerate(found.items())
    )


def _sums(plan: MarginalsPlan, source: Source) -> tuple[MeasuredSum, ...]:
    query = plan.query
    asked = plan.query.asked
    norm = norm_of(plan.counter)
    base = math.sqrt(
        plan.mu**2 / sum(sums_of(aggregate.function) for aggregate in query.aggregates)
    )
    out: list[MeasuredSum] = []
    for aggregate in query.aggregates:
        if aggregate.function not in (*ADDITIVE, *AVERAGED):
            raise ConfigError(
                f"{aggregate.function} is not made of sums over rows, so marginals cannot have it"
            )
        for added in increments_of(
            aggregate, plan.arguments, of_width(source, asked.max_rows_contributed)
        ):
            sigmas = tuple(
                round_up(
                    _shift(asked, table.keys)
                    * added.largest
                    * norm
                    / (base * math.sqrt(table.share / 2**BITS))
                    * (1 + 1e-12)
                )
                for table in plan.tables
            )
            check_noise(aggregate.alias, max(sigmas), added.grid, reach_of(plan.counter))
            out.append(MeasuredSum(**vars(added), mechanism=len(out) + 1, sigmas=sigmas))
    return tuple(out)
