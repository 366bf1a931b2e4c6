"""The planner of the histogram: ParsedQuery and the source's declaration -> PrivacyPlan, with every number concrete."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dpsql.errors import ConfigError
from dpsql.mechanisms.histogram.plan import (
    CarriedPlan,
    ColumnPlan,
    HistogramChoices,
    PerturbationPlan,
    PrivacyPlan,
    QuantilePlan,
    ReleaseRule,
    SelectionPlan,
    document,
)
from dpsql.mechanisms.protocol import identity_of
from dpsql.parsed_query import ContributionPeriod, CounterName, ParsedQuery, PerGroup, Quantiles
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import check_noise, increments_of, of_width, quantile_sum
from dpsql.parts.key_selection import (
    CARRIED_SHARE,
    PAPER_DECAY,
    PAPER_SHARE,
    SELECTION_DECAY,
    SELECTION_SHARE,
    SELECTION_SHARE_OF_SEVERAL,
    THRESHOLD_DELTA_SHARE,
    failure_probabilities,
    selection_weights,
    thresholds,
)
from dpsql.parts.sums import per_group_sensitivity
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.counters import column_norm, counter, path_sd

# Thresholds of key selection over several windows: the planner's numbers for theorem 29.

# A test of length d whose range has k windows, in each of which at most m units count, one of
# them the unit u, crosses with probability at
# most beta_d; with K groups of u, K d ranges of length d hold one of them, so all lengths
# together fail with probability at most
# K * sum_d d * beta_d, which is the `delta` given.

MOST_WINDOWS = 64

KEPT_Z = 3.0
"""A known key is dropped when its sum is so many deviations below that of the weakest key that is ever selected."""

KEPT_FROM = 4
"""Over fewer windows than these no key is dropped: noise alone would do it."""


def lengths(windows: int) -> tuple[int, ...]:
    """Return 2, 4, 8, ... below L, and L."""
    return (*(2**i for i in range(1, windows.bit_length()) if 2**i < windows), windows)


def carried_plan(
    windows: int, weight: int, sd: float, min_units: int, groups: int, delta: float
) -> CarriedPlan:
    """Plan the tests over several windows.

    Args:
        windows: L, 2 to 64.
        weight: w_1 in units of 2^-20.
        sd: standard deviation of the noise of one window's sum at its last trigger, in users' weight.
        min_units: m.
        groups: K, groups one unit can count in.
        delta: what all of them may fail.
    """
    if not 2 <= windows <= MOST_WINDOWS:
        raise ValueError(f"2 to {MOST_WINDOWS} windows, not {windows}")
    from scipy.special import ndtri  # slow to import

    tested = lengths(windows)
    betas = tuple(delta / (groups * len(tested) * d) for d in tested)
    taus = []
    for d, beta in zip(tested, betas, strict=True):
        quantile = round_up(-float(ndtri(beta)) * (1 + 1e-12))
        k = np.arange(1, d + 1)
        noise = np.ceil(np.sqrt(k) * sd * quantile * (1 + 1e-12) * 2.0**20)
        taus.append(
            tuple(int(n) * min_units * weight + int(v) for n, v in zip(k, noise, strict=True))
        )
    weakest = taus[-1][-1] / windows
    kept_sums = tuple(
        (d, math.floor(d * weakest - KEPT_Z * sd * math.sqrt(d) * 2.0**20))
        for d in tested
        if d >= KEPT_FROM or (d == windows < KEPT_FROM)
    )
    return CarriedPlan(
        windows=windows, lengths=tested, betas=betas, thresholds=tuple(taus), kept=kept_sums
    )


# The planner: ParsedQuery and the source's declaration -> PrivacyPlan, with every number
# concrete.

PLAN_VERSION = 2
"""Changes when the same query would get other noise; part of the query's identity."""

MAX_WEIGHTS = 4_000_000
"""Numbers of a plan that key selection may need: one for every time a unit can count."""


def make_plan(
    query: ParsedQuery[HistogramChoices],
    source: Source,
    share: float | None = None,
    decay: float | None = None,
) -> PrivacyPlan:
    """Plan one query with windows.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.
        share: of mu^2, for key selection; None: the measured best, or the paper's.
        decay: of the weights with which a unit's keys count there; likewise.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) per privacy unit and contribution period.

    Raises:
        ConfigError: the id hash would cost over 10% of delta, or clamps could overflow.
    """
    plan = unnamed_plan(query, source, share, decay)
    return dataclasses.replace(plan, identity=identity(plan))


def unnamed_plan(
    query: ParsedQuery[HistogramChoices],
    source: Source,
    share: float | None = None,
    decay: float | None = None,
) -> PrivacyPlan:
    """Plan a query as `make_plan` does, without an identity: enough for who compares many plans and
    runs none."""
    horizon = -(-(query.windows.size_us + query.allowed_lateness_us) // query.trigger_interval_us)
    windows = -(-query.windows.size_us // query.windows.slide_us)
    groups = windows * int(
        min(query.asked.max_rows_contributed, query.asked.max_groups_contributed)
    )
    meet = windows > 1 and query.contribution_period is ContributionPeriod.WINDOW
    delta_hash = _hash_charge(query, source, groups, meet)
    delta_left = query.delta - delta_hash
    delta_threshold = delta_left * THRESHOLD_DELTA_SHARE if query.selects else 0.0
    delta_noise = (delta_left - delta_threshold) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    if share is None:
        share = _share_for_selection(query)
    if decay is None:
        decay = PAPER_DECAY if query.asked.counter is CounterName.HONAKER else SELECTION_DECAY
    if query.selects:
        selection = _selection(
            query, windows, horizon, share, decay, mu, delta_threshold * (1 - 1e-12), meet
        )
    else:
        selection = None
        share = 0.0
    arguments = _arguments(query)
    columns = _columns(
        query, source, arguments, horizon, windows, groups, meet, mu * math.sqrt(1 - share)
    )
    return PrivacyPlan(
        query=query,
        horizon=horizon,
        windows_per_record=windows,
        max_groups=groups,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_threshold=delta_threshold,
        delta_hash=delta_hash,
        mu=mu,
        selection=selection,
        columns=columns,
        arguments=arguments,
        identity="",
    )


def _share_for_selection(query: ParsedQuery[HistogramChoices]) -> float:
    """Return the share of mu^2 for key selection: the measured best, or the paper's."""
    if query.asked.counter is CounterName.HONAKER:
        return PAPER_SHARE
    return SELECTION_SHARE if query.asked.carry_windows == 1 else SELECTION_SHARE_OF_SEVERAL


def identity(plan: PrivacyPlan) -> str:
    """Return the SHA-256 that identifies a plan."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def _hash_charge(
    query: ParsedQuery[HistogramChoices], source: Source, groups: int, meet: bool
) -> float:
    """Charge delta with colliding 64-bit ids, which could displace records or print a private name.

    K ids of one user can become more through keys that share 32 bits with one of them: K * (1 + max_keys / 2^32) on average. Where periods
    meet, rounds tell users apart by 63 bits.
    """
    users = source.max_users * (2 if meet and query.asked.release is ReleaseRule.RESELECT else 1)
    return hash_charge(query, source, users, groups)


def participations(query: ParsedQuery[HistogramChoices], windows: int) -> int:
    """Return how often one unit can count in key selection: once per group, or, in rounds, once per admitted copy of a record."""
    if query.asked.release is ReleaseRule.RESELECT:
        return windows * int(
            min(
                query.asked.max_rows_contributed,
                query.asked.max_groups_contributed * query.asked.max_rows_per_group,
            )
        )
    return windows * int(min(query.asked.max_rows_contributed, query.asked.max_groups_contributed))


def _selection(
    query: ParsedQuery[HistogramChoices],
    windows: int,
    horizon: int,
    share: float,
    decay: float,
    mu: float,
    delta_threshold: float,
    meet: bool,
) -> SelectionPlan:
    chosen = counter(query.asked.counter, horizon)
    times = participations(query, windows)
    if times > MAX_WEIGHTS:
        raise ConfigError(
            f"one privacy unit could count {times:,} times in key selection ({windows:,} windows hold one record); at most {MAX_WEIGHTS:,} "
            "are planned: lower max_groups_contributed or max_rows_contributed, or let windows slide further"
        )
    weights = selection_weights(times, decay)
    sigma = round_up(column_norm(chosen) / (mu * math.sqrt(share)) * (1 + 1e-12))
    sd = tuple(sigma * v for v in path_sd(chosen))
    min_units = query.asked.min_privacy_units_per_group
    carried_tests = None
    if query.asked.carry_windows > 1:
        delta_carried = delta_threshold * CARRIED_SHARE
        delta_threshold -= delta_carried
        carried_tests = carried_plan(
            query.asked.carry_windows, weights[0], sd[-1], min_units, times, delta_carried
        )
    betas = failure_probabilities(delta_threshold / times, horizon)
    taus = thresholds(weights, sd, betas, 2 * min_units - 1 if meet else min_units)
    return SelectionPlan(
        counter=query.asked.counter,
        share=share,
        weights=weights,
        sigma=sigma,
        sd=sd,
        betas=betas,
        thresholds=taus,
        carried=carried_tests,
    )


def _arguments(query: ParsedQuery[HistogramChoices]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(a.argument for a in query.aggregates if a.argument is not None))


def _columns(
    query: ParsedQuery[HistogramChoices],
    source: Source,
    arguments: tuple[str, ...],
    horizon: int,
    windows: int,
    groups: int,
    meet: bool,
    mu: float,
) -> tuple[ColumnPlan, ...]:
    chosen = counter(query.asked.counter, horizon)
    rows = min(
        query.asked.max_rows_contributed,
        query.asked.max_groups_contributed * query.asked.max_rows_per_group,
    )
    by_users = math.sqrt(
        2 * groups if meet else groups
    )  # where periods meet, a unit that counts no more here may count there
    by_rows = math.sqrt(windows * query.asked.max_rows_per_group * rows)
    clamps = [of_width(source, 1 if isinstance(a, PerGroup) else rows) for a in query.aggregates]
    increments = [
        [] if isinstance(a, Quantiles) else increments_of(a, arguments, c)
        for a, c in zip(query.aggregates, clamps, strict=True)
    ]
    plain_count = sum(map(len, increments))
    quantile_aggregates = [a for a in query.aggregates if isinstance(a, Quantiles)]
    part = mu / math.sqrt(plain_count + len(quantile_aggregates))
    columns = []
    number = 0
    for aggregate, parts in zip(query.aggregates, increments, strict=True):
        perturbations: list[PerturbationPlan | QuantilePlan] = []
        if isinstance(aggregate, Quantiles):
            sensitivity = round_up(
                by_rows * math.sqrt(quantiles.LEVELS)
            )  # of one release: the column's norm is 1
            tree = quantile_sum(
                aggregate,
                arguments,
                plain_count + quantile_aggregates.index(aggregate) + 1,
                sensitivity,
                part,
                1.0,
                source.max_users * rows,
            )
            perturbations.append(
                QuantilePlan(**vars(tree), counter=CounterName.BLT, releases=1, sd=(tree.sigma,))
            )
        for increment in parts:
            number += 1
            if increment.per_group:
                of_sum = per_group_sensitivity(
                    increment, query.asked.max_rows_per_group, windows * rows, groups
                )
            else:
                of_sum = by_users if increment.rule == "users" else by_rows * increment.largest
            sensitivity = round_up(of_sum * column_norm(chosen))
            sigma = round_up(sensitivity / part * (1 + 1e-12))
            sd = tuple(sigma * v for v in path_sd(chosen))
            perturbation = PerturbationPlan(
                **vars(increment),
                noise_stream=number,
                counter=query.asked.counter,
                sensitivity=sensitivity,
                sigma=sigma,
                sd=sd,
            )
            check_noise(
                aggregate.alias, sigma, increment.grid, len(sd)
            )  # a path adds one draw per step, with a factor of at most 1
            perturbations.append(perturbation)
        columns.append(ColumnPlan(aggregate=aggregate, perturbations=tuple(perturbations)))
    return tuple(columns)


__all__ = ["identity", "make_plan", "participations", "unnamed_plan"]
