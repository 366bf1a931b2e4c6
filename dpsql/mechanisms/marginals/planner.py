"""The planner of marginals: which tables are measured, and how mu^2 is shared among them for a workload of ranges and sets."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dpsql.description import ADDITIVE
from dpsql.errors import ConfigError
from dpsql.mechanisms.marginals.closing import CUTS, closing_triggers
from dpsql.mechanisms.marginals.plan import (
    MAX_CELLS,
    ChangingCubeChoices,
    CubeChoices,
    MarginalsPlan,
    MeasuredSum,
    MeasuredTable,
    SessionCubeChoices,
)
from dpsql.mechanisms.protocol import identity_of
from dpsql.parsed_query import AVERAGED, ONE_WINDOW, AggregateFunction, ParsedQuery, arguments_of
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import check_noise, count_sums, increments_of, of_width, places_of
from dpsql.parts.sensitivities import TableBounds, measure_sensitivity, row_sensitivity
from dpsql.parts.whole_table import document, grid, most_periods, norm_of, reach_of, triggers
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from dpsql.udfs.contributions import Increment
from dpsql.udfs.marginals.cells import Keys, MeasuredTables, closes
from dpsql.udfs.marginals.estimates import parts
from dpsql.udfs.marginals.release import ClosingKeys
from dpsql.udfs.noise.paths import standard_deviation

# How mu^2 is shared among tables: the mean variance over a workload is made small. Input and
# result are public.

BITS = 20
"""Shares are multiples of 2^-20."""
ROUNDS = 4000
STILL = 1e-9
LEAST_OF_WHOLE = 0.005
"""A table of all keys with a smaller share is not measured: it has most of the cells."""


def shares(
    sizes: Sequence[int],
    tables: Sequence[Keys],
    energies: Mapping[Keys, float],
    costs: Mapping[Keys, float],
) -> dict[Keys, int]:
    """Return the share of each table that gets one, in units of 2^-20; together at most 1.

    Args:
        sizes: number of values of every key.
        tables: that may be measured.
        energies: mean of |P_B f|^2 over the workload, per B.
        costs: of each table, what one unit can move of it, to the square; any unit.

    Raises:
        ConfigError: some part of the workload is in no table.
    """
    rounded = _rounded(sizes, tables, energies, costs)
    all_keys = tuple(range(len(sizes)))
    if (
        len(rounded) > 1
        and rounded.get(all_keys, 1 << BITS) < LEAST_OF_WHOLE * 2**BITS
        and _covered(rounded.keys() - {all_keys}, energies)
    ):
        rounded = _rounded(sizes, [keys for keys in tables if keys != all_keys], energies, costs)
    return rounded


def _rounded(
    sizes: Sequence[int],
    tables: Sequence[Keys],
    energies: Mapping[Keys, float],
    costs: Mapping[Keys, float],
) -> dict[Keys, int]:
    if not _covered(tables, energies):
        raise ConfigError(
            "no marginal has all the keys that questions may name together: name GROUPING SETS with more keys, or a `workload`"
        )
    workload_parts = [part for part in energies if energies[part] > 0]
    energy = np.array([energies[part] for part in workload_parts])
    outside = np.array(
        [
            math.prod(n for key, n in enumerate(sizes) if key not in keys) / costs[keys]
            for keys in tables
        ]
    )
    covered_share = (
        np.array([[{*part} <= {*keys} for keys in tables] for part in workload_parts]) * outside
    )
    p = np.full(len(tables), 1 / len(tables))
    # With the square root each round lowers the sum of energy / lambda (Yu 2010, arXiv 0911.0108); no library's last digits are in it.
    for _ in range(ROUNDS):
        precision = (covered_share * p).sum(axis=1)
        gain = (covered_share * (energy / precision**2)[:, None]).sum(axis=0)
        previous = p
        p = p * np.sqrt(gain)
        p = p / p.sum()
        if np.abs(p - previous).max() < STILL:
            break
    rounded = {
        keys: math.floor(share * 2**BITS) for keys, share in zip(tables, p.tolist(), strict=True)
    }
    return {keys: share for keys, share in rounded.items() if share}


def _covered(tables: Collection[Keys], energies: Mapping[Keys, float]) -> bool:
    return all(
        any({*part} <= {*keys} for keys in tables)
        for part, energy in energies.items()
        if energy > 0
    )


# The predicates for which shares are made: ranges and sets over one to three keys, as energies,
# in closed form. Public, and nothing is drawn.

ORDERS = (0.2, 0.5, 0.3)
"""How many keys a predicate names: one, two, three."""


def default_energies(domains: Sequence[Domain]) -> dict[Keys, float]:
    """Return the mean of |P_B f|^2 over the default workload, for every B with any."""
    out: dict[Keys, float] = {}
    for size, weight in enumerate(ORDERS, start=1):
        for part, energy in energies_of(domains, min(size, len(domains))).items():
            out[part] = out.get(part, 0.0) + weight * energy
    return out


def energies_of(domains: Sequence[Domain], size: int) -> dict[Keys, float]:
    """Return the energies of predicates that name so many keys, each set of them alike.

    An ordered key has a range between two values, each drawn from all; another key one value, or half of all values. A predicate is a product over
    independent parts, so means multiply.
    """
    moments = [_moments(domain) for domain in domains]
    key_sets = [*itertools.combinations(range(len(domains)), size)]
    energies: dict[Keys, float] = {}
    for keys in key_sets:
        base = math.prod(
            domain.size for key, domain in enumerate(domains) if key not in keys
        ) / len(key_sets)
        for part in parts(keys):
            energies[part] = energies.get(part, 0.0) + base * math.prod(
                moments[key][key in part] for key in keys
            )
    return energies


def _moments(domain: Domain) -> tuple[float, float]:
    """Return the mean of (sum f)^2 / n, and of |f|^2 less that."""
    n = domain.size
    if domain.ordered:
        lengths = {1: 1 / n} | {length: 2 * (n - length + 1) / n**2 for length in range(2, n + 1)}
    else:
        half = max(1, n // 2)
        lengths = {1: 1.0} if half == 1 else {1: 0.5, half: 0.5}
    mean = math.fsum(share * length**2 for length, share in lengths.items()) / n
    return mean, math.fsum(share * length for length, share in lengths.items()) - mean


# The planner of marginals: ParsedQuery and the source's declaration -> MarginalsPlan, with every
# number concrete.

PLAN_VERSION = 4
"""Changes when the same query would get other noise; part of the query's identity."""
MAX_PLACES = 2**62
"""A record's places in all domains are one 64-bit number."""


def make_plan(query: ParsedQuery[CubeChoices], source: Source) -> MarginalsPlan:
    """Plan the marginals of one table, whose rows stay or end.

    Args:
        query: what is asked.
        source: the declaration of the stream it reads.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) on all that one privacy unit ever does.

    Raises:
        ConfigError: the source declares no start, there are too many cells, or a number does not fit.
    """
    choices = query.asked
    start_us = ONE_WINDOW.offset_us if query.once else source.start_us
    if start_us is None:
        raise ConfigError(
            f"all cells are released from the declared start on: {source.declared('start', '2026-01-01')}"
        )
    if isinstance(choices, SessionCubeChoices) and not any(
        each.function is AggregateFunction.COUNT_ROWS for each in query.aggregates
    ):
        raise ConfigError(
            f"{source.place('session_share')} pays for answers of COUNT(*), which this query lacks: select it, or remove session_share"
        )
    if math.prod(domain.size for domain in choices.domains) > MAX_PLACES:
        raise ConfigError(
            "the grouped keys have more than 2^62 combinations of values: group by fewer keys, or give them smaller domains"
        )
    delta_hash = hash_charge(query, source, source.max_users, 0)  # cells have numbers and no hashes
    delta_noise = (query.delta - delta_hash) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    arguments = arguments_of(query)
    plan = MarginalsPlan(
        query=query,
        start_us=start_us,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_hash=delta_hash,
        mu=mu,
        closing=_closing(query, start_us),
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


def _closing(query: ParsedQuery[CubeChoices], start_us: int) -> ClosingKeys | None:
    """Return the fewest keys whose values together have records of one trigger alone, the first of them."""
    choices = query.asked
    if query.once or choices.max_triggers is None or isinstance(choices, SessionCubeChoices):
        return None
    grid_of_table = grid(query, start_us)
    sizes = range(1, len(choices.cuts) + 1)
    for cut_keys in itertools.chain.from_iterable(
        itertools.combinations(choices.cuts, size) for size in sizes
    ):
        cuts = [(CUTS[function], choices.domains[key]) for key, function in cut_keys]
        triggers = closing_triggers(cuts, grid_of_table)
        if triggers is not None:
            return ClosingKeys(tuple(key for key, _ in cut_keys), triggers)
    return None


def identity(plan: MarginalsPlan) -> str:
    """Return the SHA-256 that identifies a plan."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def _bounds(choices: CubeChoices, keys: Keys) -> TableBounds:
    """Return what one unit may add to a table: of its rows M at most are in one cell, at one time if they end (docs/privacy/marginals.md, theorems 25
    and 35)."""
    rows = choices.max_rows_contributed
    per_group = choices.max_rows_per_group
    groups = choices.max_groups_contributed
    finest = math.prod(domain.size for key, domain in enumerate(choices.domains) if key not in keys)
    in_a_cell = min(rows, per_group * min(groups, finest))
    ends = isinstance(choices, ChangingCubeChoices)
    return TableBounds(rows if ends else min(rows, per_group * groups), in_a_cell, groups, ends)


def _tables(plan: MarginalsPlan) -> tuple[MeasuredTable, ...]:
    choices = plan.query.asked
    sizes = tuple(domain.size for domain in choices.domains)
    # What no set can tell does not count: GROUPING SETS say what may be asked.
    known_parts = {part for keys in choices.grouping_sets for part in parts(keys)}
    energies = {
        part: energy
        for part, energy in default_energies(choices.domains).items()
        if part in known_parts
    }
    moving = norm_of(plan.counter) * standard_deviation(plan.counter, triggers(plan.query)[-1])
    costs = {
        keys: (row_sensitivity(_bounds(choices, keys), 0.0, 1.0) / choices.max_rows_contributed)
        ** 2
        / (moving**2 if closes(plan.closing_keys, keys) else 1.0)
        for keys in choices.grouping_sets
    }
    table_shares = shares(sizes, choices.grouping_sets, energies, costs)
    marginals = MeasuredTables(sizes, tuple(table_shares))
    return tuple(
        MeasuredTable(keys=keys, grouping_id=marginals.grouping_id(t), share=share)
        for t, (keys, share) in enumerate(table_shares.items())
    )


def _norm(plan: MarginalsPlan, keys: Keys) -> float:
    """Return the largest column norm of what is measured of a cell: a closed one is measured once."""
    return 1.0 if closes(plan.closing_keys, keys) else norm_of(plan.counter)


def _sensitivity(increment: Increment, sums: int, bounds: TableBounds) -> float:
    """Return how far one unit moves one of the `sums` of an aggregate in a table, as a multiple of the counter's column norm."""
    lower = increment.lower * increment.grid
    upper = increment.upper * increment.grid
    return measure_sensitivity(bounds, sums, lower, upper)


def _sums(plan: MarginalsPlan, source: Source) -> tuple[MeasuredSum, ...]:
    query = plan.query
    choices = plan.query.asked
    norms = [_norm(plan, table.keys) for table in plan.tables]
    base = math.sqrt((1 - plan.session_share) * plan.mu**2 / count_sums(query.aggregates))
    sums: list[MeasuredSum] = []
    for aggregate, places in zip(query.aggregates, places_of(query.aggregates), strict=True):
        if aggregate.function not in (*ADDITIVE, *AVERAGED):
            raise ConfigError(
                f"{aggregate.function} is not made of sums over rows, so marginals cannot have it"
            )
        clamp = of_width(source, choices.max_rows_contributed * most_periods(plan))
        increments = increments_of(aggregate, plan.arguments, clamp)
        for place, increment in zip(places, increments, strict=True):
            if place < len(sums):
                continue  # another aggregate's
            sigmas = tuple(
                round_up(
                    _sensitivity(increment, len(places), _bounds(choices, table.keys))
                    * norm
                    / (base * math.sqrt(table.share / 2**BITS))
                    * (1 + 1e-12)
                )
                for table, norm in zip(plan.tables, norms, strict=True)
            )
            check_noise(aggregate.alias, max(sigmas), increment.grid, reach_of(plan.counter))
            sums.append(MeasuredSum(**vars(increment), noise_stream=len(sums) + 1, sigmas=sigmas))
    return tuple(sums)
