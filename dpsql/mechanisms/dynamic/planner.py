"""The planner of tables without windows: ParsedQuery and the source's declaration -> TablePlan, with every number concrete."""

from __future__ import annotations

import dataclasses
import math

from dpsql.errors import ConfigError
from dpsql.mechanisms.dynamic.asked import Asked, AskedOfChanges, AskedOfTree
from dpsql.mechanisms.dynamic.calibration import (
    TableBounds,
    blocks,
    endless_thresholds,
    measure_sensitivity,
    presence_sensitivity,
    row_sensitivity,
    shown_from,
)
from dpsql.mechanisms.dynamic.plan import ColumnPlan, NoisySum, SelectionPlan, TablePlan, TreePlan
from dpsql.mechanisms.identity import identity_of
from dpsql.parsed_query import ParsedQuery, PerGroup, Quantiles
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import BEYOND, check_noise, increments_of, of_width, quantile_sum
from dpsql.parts.key_selection import (
    SELECTION_DECAY,
    SELECTION_SHARE,
    THRESHOLD_DELTA_SHARE,
    failure_probabilities,
    selection_weights,
    thresholds,
)
from dpsql.parts.sums import per_group_sensitivity
from dpsql.parts.words import document, norm_of, reach_of
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.dynamic.interval_tree import MOST_ROUNDS
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import path_sd
from dpsql.udfs.table.grid import LAST_STEP

PLAN_VERSION = 2
"""Changes when the same query would get other noise; part of the query's identity."""

TREE_BETA = 1e-3
"""How often a node of an interval tree may end a round by noise alone; the paper leaves it open."""


def make_plan(query: ParsedQuery[Asked], source: Source) -> TablePlan:
    """Plan one query over a table.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) on all that one privacy unit ever does.

    Raises:
        ConfigError: the source declares no start, the id hash would cost over 10% of delta, or clamps or noise could overflow.
    """
    asked = query.asked
    if source.start_us is None:
        raise ConfigError(
            f"without a window triggers are counted from the stream's declared start: add a line like `start: 2026-01-01` at sources.{source.name}"
        )
    bounds = _bounds(asked)
    delta_hash = hash_charge(query, source, source.max_users, bounds.keys)
    rest = query.delta - delta_hash
    delta_threshold = rest * THRESHOLD_DELTA_SHARE if query.selects else 0.0
    delta_noise = (rest - delta_threshold) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    share = SELECTION_SHARE if query.selects else 0.0
    arguments = tuple(dict.fromkeys(a.argument for a in query.aggregates if a.argument is not None))
    plan = TablePlan(
        query=query,
        start_us=source.start_us,
        max_groups=bounds.keys,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_threshold=delta_threshold,
        delta_hash=delta_hash,
        mu=mu,
        selection=None,
        columns=(),
        arguments=arguments,
        identity="",
    )
    if isinstance(asked, AskedOfTree):
        plan = _tree(plan, source, asked)
        return dataclasses.replace(plan, identity=identity(plan))
    norm = norm_of(plan.counter)
    selection = (
        _selection(plan, bounds, share, norm, delta_threshold * (1 - 1e-12))
        if query.selects
        else None
    )
    columns = _columns(plan, source, bounds, norm, mu * math.sqrt(1 - share))
    plan = dataclasses.replace(plan, selection=selection, columns=columns)
    return dataclasses.replace(plan, identity=identity(plan))


def identity(plan: TablePlan) -> str:
    """The query's."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def _bounds(asked: Asked) -> TableBounds:
    if isinstance(asked, AskedOfChanges):
        more = True, asked.max_spells_contributed
        return TableBounds(
            asked.max_rows_contributed,
            asked.max_rows_per_group,
            asked.max_groups_contributed,
            *more,
        )
    return TableBounds(
        asked.max_rows_contributed, asked.max_rows_per_group, asked.max_groups_contributed
    )


def _selection(
    plan: TablePlan, bounds: TableBounds, share: float, norm: float, failure: float
) -> SelectionPlan:
    asked = plan.query.asked
    chosen = plan.counter
    weights = selection_weights(bounds.counts, SELECTION_DECAY)
    sensitivity = norm * presence_sensitivity(
        bounds, (1.0,)
    )  # the squares of the weights add up to at most 1
    sigma = round_up(sensitivity / (plan.mu * math.sqrt(share)) * (1 + 1e-12))
    least = asked.min_privacy_units_per_group
    each = failure / bounds.keys
    if isinstance(chosen, BltInf):
        first = blocks()
        taus = endless_thresholds(chosen, sigma, weights[0], least, each)
    else:
        first = tuple(range(1, chosen.horizon + 1))
        sd = tuple(sigma * v for v in path_sd(chosen))
        taus = thresholds(weights, sd, failure_probabilities(each, chosen.horizon), least)
    return SelectionPlan(
        share=share,
        weights=weights,
        sigma=sigma,
        first=first,
        thresholds=taus,
        shown_from=shown_from(taus),
    )


def _columns(
    plan: TablePlan, source: Source, bounds: TableBounds, norm: float, mu: float
) -> tuple[ColumnPlan, ...]:
    query = plan.query
    clamps = [
        of_width(source, 1 if isinstance(a, PerGroup) else bounds.rows) for a in query.aggregates
    ]
    increments = [
        [] if isinstance(a, Quantiles) else increments_of(a, plan.arguments, c)
        for a, c in zip(query.aggregates, clamps, strict=True)
    ]
    plain = sum(len(each) for each in increments)
    wanted = [a for a in query.aggregates if isinstance(a, Quantiles)]
    part = mu / math.sqrt(plain + len(wanted))
    columns: list[ColumnPlan] = []
    number = 0
    for aggregate, each in zip(query.aggregates, increments, strict=True):
        perturbations: list[NoisySum] = []
        if isinstance(aggregate, Quantiles):
            mechanism = plain + wanted.index(aggregate) + 1
            sensitivity = round_up(
                row_sensitivity(bounds, 0.0, 1.0) * math.sqrt(quantiles.LEVELS) * norm * (1 + 1e-12)
            )
            last = (
                BltInf().path_variance(LAST_STEP)
                if isinstance(plan.counter, BltInf)
                else max(path_sd(plan.counter)) ** 2
            )
            most = math.sqrt(last), source.max_users * bounds.rows
            perturbations.append(
                quantile_sum(aggregate, plan.arguments, mechanism, sensitivity, part, *most)
            )
        for added in each:
            number += 1
            if added.per_group:
                per_row = per_group_sensitivity(
                    added, bounds.max_rows_per_group, bounds.rows, bounds.keys
                )
            else:
                per_row = measure_sensitivity(
                    bounds, len(each), added.lower * added.grid, added.upper * added.grid
                )
            by_unit = presence_sensitivity(bounds, (1.0,) * bounds.counts)
            sensitivity = round_up((by_unit if added.rule == "users" else per_row) * norm)
            sigma = round_up(sensitivity / part * (1 + 1e-12))
            perturbation = NoisySum(
                **vars(added), mechanism=number, sensitivity=sensitivity, sigma=sigma
            )
            check_noise(aggregate.alias, sigma, added.grid, reach_of(plan.counter))
            perturbations.append(perturbation)
        columns.append(ColumnPlan(aggregate=aggregate, perturbations=tuple(perturbations)))
    return tuple(columns)


def _tree(plan: TablePlan, source: Source, asked: AskedOfTree) -> TreePlan:
    """Of mu^2 a node of level l has in its round r the share (6 / (pi^2 l r))^2: an eighth for its size, three for its sums, three for what goes
    from these, one for the count of rows that go."""
    rows = asked.max_rows_contributed
    norm = norm_of(plan.counter)
    once = plan.mu * 6 / math.pi**2 * (1 - 1e-12)
    each = once * math.sqrt(3 / 8 / len(plan.query.aggregates))
    columns = []
    removed = []
    for number, aggregate in enumerate(plan.query.aggregates, start=1):
        (added,) = increments_of(aggregate, plan.arguments, of_width(source, rows))
        sensitivity = round_up(rows * added.largest)
        sum_ = NoisySum(
            **vars(added),
            mechanism=number,
            sensitivity=sensitivity,
            sigma=round_up(sensitivity / each),
        )
        removed.append(round_up(norm * sensitivity / each * (1 + 1e-12)))
        deviation = (
            math.hypot(sum_.sigma, removed[-1] * math.sqrt(BltInf().path_variance(LAST_STEP)))
            / added.grid
        )
        if not LAST_STEP.bit_length() * MOST_ROUNDS * BEYOND * deviation < 2.0**62:
            raise ConfigError(
                f"the noise of {aggregate.alias} could overflow 64 bits: raise epsilon, or lower max_rows_contributed"
            )
        columns.append(ColumnPlan(aggregate=aggregate, perturbations=(sum_,)))
    eighth = once / math.sqrt(8)
    given = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)} | {
        "columns": tuple(columns)
    }
    gone = round_up(norm * rows / eighth * (1 + 1e-12))
    return TreePlan(
        **given, size=round_up(rows / eighth), gone=gone, removed=tuple(removed), beta=TREE_BETA
    )


__all__ = ["identity", "make_plan"]
