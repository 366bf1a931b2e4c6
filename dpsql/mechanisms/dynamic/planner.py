"""The planner of tables without windows: from bounds and budget to sensitivities, noise and thresholds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

from dpsql.errors import ConfigError
from dpsql.mechanisms.dynamic.plan import (
    ChangeChoices,
    NoisySum,
    TableChoices,
    TableColumnPlan,
    TablePlan,
    TableSelectionPlan,
    TreeChoices,
    TreePlan,
)
from dpsql.mechanisms.protocol import identity_of
from dpsql.parsed_query import ParsedQuery, PerGroup, Quantiles, arguments_of
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import (
    BEYOND,
    check_noise,
    count_sums,
    increments_of,
    of_width,
    places_of,
    quantile_sum,
)
from dpsql.parts.key_selection import (
    SELECTION_DECAY,
    SELECTION_SHARE,
    THRESHOLD_DELTA_SHARE,
    WEIGHT_BITS,
    failure_probabilities,
    selection_weights,
    thresholds,
)
from dpsql.parts.sensitivities import (
    TableBounds,
    measure_sensitivity,
    presence_sensitivity,
    row_sensitivity,
)
from dpsql.parts.sums import per_group_sensitivity
from dpsql.parts.whole_table import document, most_periods, norm_of, reach_of
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.contributions import Increment
from dpsql.udfs.dynamic.interval_tree import MOST_ROUNDS
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, path_sd
from dpsql.udfs.table_grid import LAST_STEP

# From bounds and budget to the numbers of a table that is released for ever: sensitivities, and
# thresholds over an endless sequence.

SINGLE = 64
"""Triggers up to here have a threshold each."""
PER_OCTAVE = 32
"""Later ones share one with their neighbours: so many per doubling of the trigger number; less than 1% above the least up to trigger 2^23."""
HIDE_BELOW = 0.5
"""A key that has appeared is not shown while its noisy weight is below that share of its threshold."""


def blocks() -> tuple[int, ...]:
    """Return the first trigger of every block of triggers that share a threshold, up to the last step that a noise cell can have."""
    octaves = range(SINGLE.bit_length() - 1, LAST_STEP.bit_length())
    return (
        *range(1, SINGLE),
        *((1 << k) + j * (1 << k) // PER_OCTAVE for k in octaves for j in range(PER_OCTAVE)),
    )


def failure_probability(total: float, trigger: int) -> float:
    """Return beta_i = total (6 / pi^2) / ((k + 1)^2 2^k), k = floor(lg i): over all triggers
    without end they add up to `total`."""
    octave = trigger.bit_length() - 1
    return total * (6 / math.pi**2) / ((octave + 1) ** 2 * 2**octave)


def endless_thresholds(
    chosen: BltInf, sigma: float, largest_weight: int, min_units: int, failure: float
) -> tuple[int, ...]:
    """Return tau of every block: m w_1 + sd Phi^-1(1 - beta), sd at the block's last trigger,
    rounded up to multiples of 2^-20; in units of 2^-20.

    Args:
        chosen: counter of the selection path.
        sigma: of one of its steps.
        largest_weight: w_1, in units of 2^-20.
        min_units: m, exact units before the noisy test.
        failure: what all thresholds of one group may fail with, together.
    """
    from scipy.special import ndtri  # slow to import

    first = blocks()
    quantiles: dict[int, float] = {}
    taus = []
    for begin, end in zip(first, [*first[1:], LAST_STEP + 1], strict=True):
        octave = begin.bit_length() - 1
        if octave not in quantiles:
            quantiles[octave] = round_up(
                -float(ndtri(failure_probability(failure, begin))) * (1 + 1e-12)
            )
        noise = sigma * math.sqrt(chosen.path_variance(end - 1)) * quantiles[octave] * (1 + 1e-12)
        taus.append(min_units * largest_weight + math.ceil(noise * 2.0**WEIGHT_BITS))
    return tuple(taus)


def shown_from(thresholds: Sequence[int]) -> tuple[int, ...]:
    """Return the noisy weight below which a key that has appeared is not shown, rounded up; in units of 2^-20."""
    return tuple(math.ceil(Fraction(HIDE_BELOW) * tau) for tau in thresholds)


# The planner of tables without windows: ParsedQuery and the source's declaration -> TablePlan,
# with every number concrete.

PLAN_VERSION = 3
"""Changes when the same query would get other noise; part of the query's identity."""

TREE_BETA = 1e-3
"""How often a node of an interval tree may end a round by noise alone; the paper leaves it open."""


def make_plan(query: ParsedQuery[TableChoices], source: Source) -> TablePlan:
    """Plan one query over a table.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) on all that one privacy unit begins in one contribution period: usually ever.

    Raises:
        ConfigError: the source declares no start, the id hash would cost over 10% of delta, or clamps or noise could overflow.
    """
    choices = query.asked
    if source.start_us is None:
        raise ConfigError(
            f"without a window triggers are counted from the stream's declared start: {source.declared('start', '2026-01-01')}"
        )
    bounds = _bounds(choices)
    delta_hash = hash_charge(query, source, source.max_users, bounds.keys)
    delta_left = query.delta - delta_hash
    delta_threshold = delta_left * THRESHOLD_DELTA_SHARE if query.selects else 0.0
    delta_noise = (delta_left - delta_threshold) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    share = SELECTION_SHARE if query.selects else 0.0
    arguments = arguments_of(query)
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
    if isinstance(choices, TreeChoices):
        plan = _tree(plan, source, choices)
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
    """Return the SHA-256 that identifies a plan."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def _bounds(choices: TableChoices) -> TableBounds:
    if isinstance(choices, ChangeChoices):
        more = True, choices.max_spells_contributed
        return TableBounds(
            choices.max_rows_contributed,
            choices.max_rows_per_group,
            choices.max_groups_contributed,
            *more,
        )
    return TableBounds(
        choices.max_rows_contributed, choices.max_rows_per_group, choices.max_groups_contributed
    )


def _selection(
    plan: TablePlan, bounds: TableBounds, share: float, norm: float, failure: float
) -> TableSelectionPlan:
    choices = plan.query.asked
    chosen = plan.counter
    weights = selection_weights(bounds.counts, SELECTION_DECAY)
    sensitivity = norm * presence_sensitivity(
        bounds, (1.0,)
    )  # the squares of the weights add up to at most 1
    sigma = round_up(sensitivity / (plan.mu * math.sqrt(share)) * (1 + 1e-12))
    min_units = choices.min_privacy_units_per_group
    failure_per_group = failure / bounds.keys
    if isinstance(chosen, BltInf):
        first = blocks()
        taus = endless_thresholds(chosen, sigma, weights[0], min_units, failure_per_group)
    else:
        first = tuple(range(1, chosen.horizon + 1))
        sd = tuple(sigma * v for v in path_sd(chosen))
        taus = thresholds(
            weights, sd, failure_probabilities(failure_per_group, chosen.horizon), min_units
        )
    return TableSelectionPlan(
        share=share,
        weights=weights,
        sigma=sigma,
        first=first,
        thresholds=taus,
        shown_from=shown_from(taus),
    )


def _columns(
    plan: TablePlan, source: Source, bounds: TableBounds, norm: float, mu: float
) -> tuple[TableColumnPlan, ...]:
    query = plan.query
    most_rows = bounds.rows * most_periods(plan)
    clamps = [
        of_width(source, 1 if isinstance(a, PerGroup) else most_rows) for a in query.aggregates
    ]
    increments = [
        [] if isinstance(a, Quantiles) else increments_of(a, plan.arguments, c)
        for a, c in zip(query.aggregates, clamps, strict=True)
    ]
    plain_count = count_sums([a for a in query.aggregates if not isinstance(a, Quantiles)])
    quantile_aggregates = [a for a in query.aggregates if isinstance(a, Quantiles)]
    part = mu / math.sqrt(plain_count + len(quantile_aggregates))
    columns: list[TableColumnPlan] = []
    planned_sums: dict[int, NoisySum] = {}
    places = places_of(query.aggregates)
    for aggregate, numbers, parts in zip(query.aggregates, places, increments, strict=True):
        perturbations: list[NoisySum] = []
        if isinstance(aggregate, Quantiles):
            sensitivity = round_up(
                row_sensitivity(bounds, 0.0, 1.0) * math.sqrt(quantiles.LEVELS) * norm * (1 + 1e-12)
            )
            perturbations.append(
                quantile_sum(
                    aggregate,
                    plan.arguments,
                    plain_count + quantile_aggregates.index(aggregate) + 1,
                    sensitivity,
                    part,
                    _largest_deviation(plan.counter),
                    source.max_users * most_rows,
                )
            )
        for place, increment in zip(numbers, parts, strict=False):
            if place in planned_sums:
                continue  # another aggregate's
            sensitivity = round_up(_sensitivity(increment, len(parts), bounds) * norm)
            sigma = round_up(sensitivity / part * (1 + 1e-12))
            planned_sums[place] = NoisySum(
                **vars(increment),
                noise_stream=len(planned_sums) + 1,
                sensitivity=sensitivity,
                sigma=sigma,
            )
            check_noise(aggregate.alias, sigma, increment.grid, reach_of(plan.counter))
        perturbations += [planned_sums[place] for place in numbers if parts]
        columns.append(TableColumnPlan(aggregate=aggregate, perturbations=tuple(perturbations)))
    return tuple(columns)


def _largest_deviation(chosen: Counter | BltInf) -> float:
    """Return the largest standard deviation of a path, for unit noise."""
    if isinstance(chosen, BltInf):
        return math.sqrt(chosen.path_variance(LAST_STEP))
    return math.sqrt(max(path_sd(chosen)) ** 2)


def _sensitivity(increment: Increment, sums: int, bounds: TableBounds) -> float:
    """Return how far one unit moves one of the `sums` of an aggregate, as a multiple of the counter's column norm."""
    if increment.rule == "users":
        return presence_sensitivity(bounds, (1.0,) * bounds.counts)
    if increment.per_group:
        return per_group_sensitivity(increment, bounds.max_rows_per_group, bounds.rows, bounds.keys)
    return measure_sensitivity(
        bounds, sums, increment.lower * increment.grid, increment.upper * increment.grid
    )


def _tree(plan: TablePlan, source: Source, choices: TreeChoices) -> TreePlan:
    """Plan an interval tree. Of mu^2 a node of level l has in its round r the share (6 / (pi^2 l
    r))^2: an eighth for its size, three for its sums, three for what goes from these, one for the
    count of rows that go."""
    rows = choices.max_rows_contributed
    norm = norm_of(plan.counter)
    once = plan.mu * 6 / math.pi**2 * (1 - 1e-12)
    sum_mu = once * math.sqrt(3 / 8 / len(plan.query.aggregates))
    columns = []
    removed = []
    for number, aggregate in enumerate(plan.query.aggregates, start=1):
        (increment,) = increments_of(aggregate, plan.arguments, of_width(source, rows))
        sensitivity = round_up(rows * increment.largest)
        sum_ = NoisySum(
            **vars(increment),
            noise_stream=number,
            sensitivity=sensitivity,
            sigma=round_up(sensitivity / sum_mu),
        )
        removed.append(round_up(norm * sensitivity / sum_mu * (1 + 1e-12)))
        deviation = (
            math.hypot(sum_.sigma, removed[-1] * math.sqrt(BltInf().path_variance(LAST_STEP)))
            / increment.grid
        )
        if not LAST_STEP.bit_length() * MOST_ROUNDS * BEYOND * deviation < 2.0**62:
            raise ConfigError(
                f"the noise of {aggregate.alias} could overflow 64 bits: raise epsilon, or lower max_rows_contributed"
            )
        columns.append(TableColumnPlan(aggregate=aggregate, perturbations=(sum_,)))
    eighth = once / math.sqrt(8)
    plan_fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)} | {
        "columns": tuple(columns)
    }
    sigma_gone = round_up(norm * rows / eighth * (1 + 1e-12))
    return TreePlan(
        **plan_fields,
        size=round_up(rows / eighth),
        gone=sigma_gone,
        removed=tuple(removed),
        beta=TREE_BETA,
    )


__all__ = ["identity", "make_plan"]
