"""The planner of the histogram: ParsedQuery and the source's declaration -> PrivacyPlan, with every number concrete."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

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
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    ParsedQuery,
    PerGroup,
    Quantiles,
    arguments_of,
)
from dpsql.parts.hash_charge import hash_charge
from dpsql.parts.increments import (
    MAX_EXACT,
    check_noise,
    count_sums,
    increments_of,
    noise_fits,
    of_width,
    places_of,
    quantile_sum,
)
from dpsql.parts.key_selection import (
    CARRIED_SHARE,
    PAPER_DECAY,
    PAPER_SHARE,
    SELECTION_DECAY,
    SELECTION_SHARE,
    SELECTION_SHARE_OF_SEVERAL,
    THRESHOLD_DELTA_SHARE,
    failure_probabilities,
    left_over,
    thresholds,
    weight_norm,
    weights_in_people,
)
from dpsql.parts.left_out import mu_beside, plan_figures
from dpsql.parts.sums import per_group_sensitivity
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.contributions import WEIGHT_UNIT, Increment
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.counters import Counter, column_norm, counter, path_sd

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
        sd: standard deviation of the noise of one window's sum at its last trigger, in people.
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

PLAN_VERSION = 5
"""Changes when the same query would get other noise; part of the query's identity."""

USERS = "users"
ROWS = "rows"
"""Rules of counts that the sum which chooses keys can be a part of."""

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
    sizes = _sizes_of(query, source)
    delta_hash = _hash_charge(query, source, sizes.groups, sizes.meet)
    delta_left = query.delta - delta_hash
    delta_threshold = delta_left * THRESHOLD_DELTA_SHARE if query.selects else 0.0
    delta_noise = (delta_left - delta_threshold) * (1 - 1e-12)
    mu = round_down(total_mu(query.epsilon, delta_noise))
    if share is None:
        share = _share_for_selection(query)
    if decay is None:
        decay = PAPER_DECAY if query.asked.counter is CounterName.HONAKER else SELECTION_DECAY
    figures = plan_figures(query, source.max_users, mu, 1 + _count_numbers(sizes, frozenset()))
    noise = _noise(sizes, share, decay, mu_beside(figures, mu), delta_threshold * (1 - 1e-12))
    arguments = arguments_of(query)
    return PrivacyPlan(
        query=query,
        horizon=sizes.horizon,
        windows_per_record=sizes.windows,
        max_groups=sizes.groups,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_threshold=delta_threshold,
        delta_hash=delta_hash,
        mu=mu,
        selection=noise.selection,
        columns=_columns(sizes, arguments, noise),
        left_out=figures,
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


@dataclass(frozen=True)
class _Sizes:
    """Bounds of a query that say how large its sums can be.

    Args:
        windows: that hold one record. groups: that one unit can be in. meet: periods can meet in a group.
    """

    query: ParsedQuery[HistogramChoices]
    source: Source
    horizon: int
    windows: int
    groups: int
    meet: bool

    @property
    def counter(self) -> Counter:
        """The counter of all sums but those of quantiles."""
        return counter(self.query.asked.counter, self.horizon)

    @property
    def per_group(self) -> float:
        """Rows of one unit that count in a group."""
        return self.query.asked.max_rows_per_group

    @property
    def rows(self) -> float:
        """Rows of one unit that count in all groups of one window."""
        asked = self.query.asked
        return min(
            asked.max_rows_contributed, asked.max_groups_contributed * asked.max_rows_per_group
        )

    @property
    def copies(self) -> float:
        """Copies of these rows in all windows."""
        return self.windows * self.rows

    @property
    def by_users(self) -> float:
        """L2 norm of what one unit adds to counts of units; where periods meet, one that counts no more here may count there."""
        return math.sqrt(2 * self.groups if self.meet else self.groups)

    @property
    def by_rows(self) -> float:
        """L2 norm of what one unit adds to counts of rows."""
        return math.sqrt(self.windows * self.per_group * self.rows)

    def left_over(self, weights: tuple[int, ...], rule: str) -> float:
        """Return the L2 norm of what the weights of key selection leave of a count."""
        if rule == USERS:
            return left_over(weights, 1, math.inf)
        return left_over(weights, int(self.per_group), self.copies)


def _sizes_of(query: ParsedQuery[HistogramChoices], source: Source) -> _Sizes:
    choices = query.asked
    horizon = -(-(query.windows.size_us + query.allowed_lateness_us) // query.trigger_interval_us)
    windows = -(-query.windows.size_us // query.windows.slide_us)
    groups = windows * int(min(choices.max_rows_contributed, choices.max_groups_contributed))
    meet = windows > 1 and query.contribution_period is ContributionPeriod.WINDOW
    return _Sizes(query, source, horizon, windows, groups, meet)


@dataclass(frozen=True)
class _Noise:
    """The shares of mu, in mu, and key selection.

    Args:
        selection: None where no key is chosen.
        on_selection: rules of the counts that the sum which chooses keys is a part of.
        mu_people: for what the weights leave of a count of people. mu_each: for each other noisy number.
    """

    selection: SelectionPlan | None
    on_selection: frozenset[str]
    mu_people: float
    mu_each: float


def _rule_on_selection(sizes: _Sizes, aggregate: Aggregate) -> str:
    """Return what a count counts that contains the weights of key selection: units of one period in a group, each once; else nothing."""
    choices = sizes.query.asked
    if aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
        return "" if sizes.meet else USERS
    is_count = aggregate.function is AggregateFunction.COUNT_ROWS
    if not is_count or isinstance(aggregate, PerGroup) or choices.max_rows_per_group == math.inf:
        return ""
    return USERS if choices.max_rows_per_group == 1 and not sizes.meet else ROWS


def _rules_on_selection(sizes: _Sizes) -> frozenset[str]:
    """Return the rules of all counts that the sum of weights can be a part of."""
    choices = sizes.query.asked
    rows = sizes.copies if sizes.copies < math.inf else sizes.groups
    if (
        not sizes.query.selects
        or choices.counter is not CounterName.BLT
        or choices.release is ReleaseRule.RESELECT
        or choices.carry_windows > 1
        or sizes.source.max_users * rows / WEIGHT_UNIT >= MAX_EXACT // 2
    ):
        return frozenset()
    rules = {_rule_on_selection(sizes, aggregate) for aggregate in sizes.query.aggregates}
    return frozenset(rules - {""})


def _noise(sizes: _Sizes, share: float, decay: float, mu: float, delta: float) -> _Noise:
    """Share mu^2 out: what chooses keys, and each noisy number; `share`: of key selection, which also gets what is left over."""
    if not sizes.query.selects:
        numbers = _count_numbers(sizes, frozenset())
        return _Noise(None, frozenset(), 0.0, mu / math.sqrt(numbers))
    times = participations(sizes.query, sizes.windows)
    if times > MAX_WEIGHTS:
        raise ConfigError(
            f"one privacy unit could count {times:,} times in key selection ({sizes.windows:,} windows hold one record); at most {MAX_WEIGHTS:,} "
            "are planned: lower max_groups_contributed or max_rows_contributed, or let windows slide further"
        )
    weights = weights_in_people(times, decay)
    rules = _rules_on_selection(sizes)
    noise = _split_mu(sizes, rules, weights, share, mu, delta)
    worse = {rule for rule in rules if not _is_better(sizes, rule, noise)}
    return _split_mu(sizes, rules - worse, weights, share, mu, delta) if worse else noise


def _split_mu(
    sizes: _Sizes,
    rules: frozenset[str],
    weights: tuple[int, ...],
    share: float,
    mu: float,
    delta: float,
) -> _Noise:
    """Give each noisy number the same, and a count of people no more than gives it the least noise with what chooses keys."""
    rests = {rule: sizes.left_over(weights, rule) for rule in rules}
    numbers = _count_numbers(sizes, rules) - sum(not rest for rest in rests.values())
    share_each = (1 - share) / numbers if numbers else 0.0
    share_people = 0.0
    if rests.get(USERS):
        share_people = min(share_each, rests[USERS] / (weight_norm(weights) + rests[USERS]))
        numbers -= 1
    selection = _selection(sizes, weights, 1 - share_people - share_each * numbers, mu, delta)
    return _Noise(selection, rules, mu * math.sqrt(share_people), mu * math.sqrt(share_each))


def _count_numbers(sizes: _Sizes, rules: frozenset[str]) -> int:
    """Count the noisy numbers of a group; equal counts on key selection are one."""
    shared = {_rule_on_selection(sizes, each) for each in sizes.query.aggregates} & rules
    aggregates = sizes.query.aggregates
    return len(shared) + count_sums(
        [each for each in aggregates if _rule_on_selection(sizes, each) not in rules]
    )


def _is_better(sizes: _Sizes, rule: str, noise: _Noise) -> bool:
    """Tell whether a count has less noise at the last trigger than one with a counter of its own, and no 64 bits overflow."""
    assert noise.selection is not None
    on_selection = _on_selection(sizes, 1, rule, noise)
    sigma = on_selection.sigma + noise.selection.sigma
    if not noise_fits(sigma, WEIGHT_UNIT, sizes.horizon):
        return False
    if rule == USERS or not on_selection.sigma:
        return True
    own_sigma = sizes.by_rows * column_norm(sizes.counter) / noise.mu_each
    return on_selection.sd[-1] < own_sigma * path_sd(sizes.counter)[-1]


def _selection(
    sizes: _Sizes, weights: tuple[int, ...], share: float, mu: float, delta_threshold: float
) -> SelectionPlan:
    choices = sizes.query.asked
    times = len(weights)
    norm = weight_norm(weights) * column_norm(sizes.counter)
    sigma = round_up(norm / (mu * math.sqrt(share)) * (1 + 1e-12))
    sd = tuple(sigma * v for v in path_sd(sizes.counter))
    min_units = choices.min_privacy_units_per_group
    carried_tests = None
    if choices.carry_windows > 1:
        delta_carried = delta_threshold * CARRIED_SHARE
        delta_threshold -= delta_carried
        carried_tests = carried_plan(
            choices.carry_windows, weights[0], sd[-1], min_units, times, delta_carried
        )
    betas = failure_probabilities(delta_threshold / times, sizes.horizon)
    taus = thresholds(weights, sd, betas, 2 * min_units - 1 if sizes.meet else min_units)
    return SelectionPlan(
        counter=choices.counter,
        share=share,
        weights=weights,
        sigma=sigma,
        sd=sd,
        betas=betas,
        thresholds=taus,
        carried=carried_tests,
    )


def _columns(sizes: _Sizes, arguments: tuple[str, ...], noise: _Noise) -> tuple[ColumnPlan, ...]:
    plain_count = _count_numbers(sizes, noise.on_selection) - sum(
        isinstance(aggregate, Quantiles) for aggregate in sizes.query.aggregates
    )
    streams = itertools.count(1)
    trees = itertools.count(plain_count + 1)
    shared: dict[str, PerturbationPlan] = {}
    planned_sums: dict[int, PerturbationPlan] = {}
    columns = []
    aggregates = sizes.query.aggregates
    for aggregate, places in zip(aggregates, places_of(aggregates), strict=True):
        rule = _rule_on_selection(sizes, aggregate)
        perturbations: tuple[PerturbationPlan | QuantilePlan, ...]
        if isinstance(aggregate, Quantiles):
            perturbations = (_tree(sizes, aggregate, arguments, next(trees), noise.mu_each),)
        elif rule in noise.on_selection:
            if rule not in shared:
                shared[rule] = _on_selection(sizes, next(streams), rule, noise)
            perturbations = (shared[rule],)
        else:
            _plan_sums(sizes, aggregate, arguments, places, streams, noise.mu_each, planned_sums)
            perturbations = tuple(planned_sums[place] for place in places)
        columns.append(ColumnPlan(aggregate=aggregate, perturbations=perturbations))
    return tuple(columns)


def _plan_sums(
    sizes: _Sizes,
    aggregate: Aggregate,
    arguments: tuple[str, ...],
    places: tuple[int, ...],
    streams: Iterator[int],
    mu: float,
    planned_sums: dict[int, PerturbationPlan],
) -> None:
    """Add the sums of an aggregate that no other one has planned, by their places."""
    rows = 1 if isinstance(aggregate, PerGroup) else sizes.rows
    increments = increments_of(aggregate, arguments, of_width(sizes.source, rows))
    for place, increment in zip(places, increments, strict=True):
        if place not in planned_sums:
            number = next(streams)
            planned_sums[place] = _own_noise(sizes, aggregate.alias, increment, number, mu)


def _tree(
    sizes: _Sizes, aggregate: Quantiles, arguments: tuple[str, ...], noise_stream: int, mu: float
) -> QuantilePlan:
    # Of one release: the column's norm is 1
    sensitivity = round_up(sizes.by_rows * math.sqrt(quantiles.LEVELS))
    rows = sizes.source.max_users * sizes.rows
    tree = quantile_sum(aggregate, arguments, noise_stream, sensitivity, mu, 1.0, rows)
    return QuantilePlan(**vars(tree), counter=CounterName.BLT, releases=1, sd=(tree.sigma,))


def _on_selection(sizes: _Sizes, noise_stream: int, rule: str, noise: _Noise) -> PerturbationPlan:
    """Return the noise of what the weights leave of a count; with that of key selection it is the count's."""
    selection = noise.selection
    assert selection is not None
    remainder = sizes.left_over(selection.weights, rule)
    sensitivity = round_up(remainder * column_norm(sizes.counter)) if remainder else 0.0
    mu = noise.mu_people if rule == USERS else noise.mu_each
    sigma = round_up(sensitivity / mu * (1 + 1e-12)) if remainder else 0.0
    deviations = zip(path_sd(sizes.counter), selection.sd, strict=True)
    return PerturbationPlan(
        **vars(Increment(rule, -1)),
        noise_stream=noise_stream,
        counter=selection.counter,
        sensitivity=sensitivity,
        sigma=sigma,
        sd=tuple(math.hypot(sigma * own, shared) for own, shared in deviations),
        on_selection=True,
    )


def _own_noise(
    sizes: _Sizes, alias: str, increment: Increment, noise_stream: int, mu: float
) -> PerturbationPlan:
    if increment.per_group:
        of_sum = per_group_sensitivity(increment, sizes.per_group, sizes.copies, sizes.groups)
    elif increment.rule == USERS:
        of_sum = sizes.by_users
    else:
        of_sum = sizes.by_rows * increment.largest
    sensitivity = round_up(of_sum * column_norm(sizes.counter))
    sigma = round_up(sensitivity / mu * (1 + 1e-12))
    # A path adds one draw per step, with a factor of at most 1
    check_noise(alias, sigma, increment.grid, sizes.horizon)
    return PerturbationPlan(
        **vars(increment),
        noise_stream=noise_stream,
        counter=sizes.query.asked.counter,
        sensitivity=sensitivity,
        sigma=sigma,
        sd=tuple(sigma * v for v in path_sd(sizes.counter)),
    )


__all__ = ["identity", "make_plan", "participations", "unnamed_plan"]
