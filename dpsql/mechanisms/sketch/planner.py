"""The planner of sketches: noise of cells, thresholds, and how far off medians and minima of cells are."""

from __future__ import annotations

import dataclasses
import math

from dpsql.errors import ConfigError
from dpsql.mechanisms.protocol import identity_of
from dpsql.mechanisms.sketch.plan import (
    CellsPlan,
    SketchChoices,
    SketchKind,
    SketchLimits,
    SketchPlan,
    Wanted,
    WantedPerGroup,
    document,
)
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    ParsedQuery,
    PerGroup,
    PrivacyLevel,
)
from dpsql.parts.increments import check_noise, increments_of, of_width
from dpsql.parts.sums import per_group_sensitivity
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.noise.counters import column_norm, counter, path_sd
from dpsql.udfs.sketch.hashing import SCHEME

# How noisy an estimate is: standard deviation of the median, and of the smallest, of d
# independent standard normals, rounded up.

# A table, because these numbers are published: another machine's last bit would be another
# table. A test integrates them anew.

MEDIAN = {3: 0.66983, 5: 0.53557, 9: 0.40756, 17: 0.30008, 31: 0.22353}
SMALLEST = {3: 0.74798, 5: 0.66898, 9: 0.59780, 17: 0.53809, 31: 0.49364}
"""A query has 9 rows (`asked.DEPTH`); plans with others are for comparison."""


def stderr(kind: SketchKind, depth: int) -> float:
    """Return the standard error of an estimate from so many rows, per standard deviation of a
    cell's noise."""
    return (MEDIAN if kind is SketchKind.COUNT_SKETCH else SMALLEST)[depth]


# The planner: ParsedQuery and the source's declaration -> SketchPlan, with every number
# concrete.

PLAN_VERSION = 3
"""Changes when the same query would get other noise; part of the query's identity."""

FLOOR_SHARE = 0.1
"""Part of delta for the floor test; its thresholds depend on it only through logarithms."""
WIDTHS = [1 << k for k in range(6, 25)]
MOST_LISTED = 10_000
MOST_DRAWS = 1 << 36
"""Cells times triggers: some minutes of noise per window."""
APART = 16
"""Columns per value of one unit, at least: with fewer, a row would miss more than 3% of the counts (`collisions`)."""
IDS_SHARE = 0.01


def make_plan(query: ParsedQuery[SketchChoices], source: Source) -> SketchPlan:
    """Plan one query of sketches.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.

    Returns:
        A plan that spends at most (query.epsilon, query.delta) per protected unit and contribution period.

    Raises:
        ConfigError: no sketch keeps the promise, or none of this shape; says what would be accepted.
    """
    choices = query.asked
    triggers = -(-(query.windows.size_us + query.allowed_lateness_us) // query.trigger_interval_us)
    windows = -(-query.windows.size_us // query.windows.slide_us)
    _check(query, triggers, windows)
    unknown = choices.lists and query.public_groups is None
    delta_hash = source.max_users / 2.0**64 if choices.bounds else 0.0
    if delta_hash > IDS_SHARE * query.delta:
        raise ConfigError(
            f"delta = {query.delta:g} is too small: collisions of 64-bit ids alone cost {delta_hash:.2g}, over 1% of it"
        )
    delta_floor = FLOOR_SHARE * query.delta if unknown else 0.0
    delta_noise = (query.delta - delta_hash - delta_floor) * (1 - 1e-12)
    if not delta_noise > 0:
        raise ConfigError("a sketch has Gaussian noise: delta must be above 0")
    mu = round_down(total_mu(query.epsilon, delta_noise))
    arguments = tuple(
        dict.fromkeys(sketch.weight for sketch in choices.wanted if sketch.weight is not None)
    )
    plan = SketchPlan(
        query=query,
        triggers=triggers,
        windows_per_record=windows,
        epsilon=query.epsilon,
        delta=query.delta,
        delta_noise=delta_noise,
        delta_floor=delta_floor,
        delta_hash=delta_hash,
        mu=mu,
        beta=_beta(query, triggers, mu, delta_floor) if unknown else None,
        stderr=stderr(choices.kind, choices.depth),
        hash_scheme=SCHEME,
        cells=tuple(
            _cells(query, source, number, sketch, triggers, windows, arguments, mu)
            for number, sketch in enumerate(choices.wanted, 1)
        ),
        arguments=arguments,
        identity="",
    )
    return dataclasses.replace(plan, identity=identity(plan))


def identity(plan: SketchPlan) -> str:
    """Return the SHA-256 that identifies a plan."""
    return identity_of(PLAN_VERSION, document(dataclasses.replace(plan, identity="")))


def collisions(keys: int, width: int) -> float:
    """Return the share of a unit's values that a row leaves out, at most, by the one-cell rule, if
    all of them are different."""
    return 1 - width * -math.expm1(keys * math.log1p(-1 / width)) / keys


def missed(keys: int, width: int) -> float:
    """Return the largest share of one value's records that a row leaves out, where it is the last of its units' values."""
    return -math.expm1((keys - 1) * math.log1p(-1 / width))


def _check(query: ParsedQuery[SketchChoices], triggers: int, windows: int) -> None:
    choices = query.asked
    if (choices.level is PrivacyLevel.EVENT) != (choices.bounds is None):
        raise ConfigError("privacy_level = EVENT takes no bounds, and USER needs them")
    if choices.depth not in MEDIAN or choices.width not in WIDTHS:
        raise ConfigError(
            f"a sketch has {', '.join(map(str, MEDIAN))} rows, and sketch_width is a power of two, 64 to 2^24; not {choices.depth} and {choices.width}"
        )
    if choices.depth * choices.width * triggers * len(choices.wanted) > MOST_DRAWS:
        raise ConfigError(
            f"{choices.depth} x {choices.width} cells at {triggers} triggers are more than 2^36 draws of noise per window"
        )
    if not choices.wanted or any(
        not 0 <= sketch.number <= MOST_LISTED for sketch in choices.wanted
    ):
        raise ConfigError(f"a list has 1 to {MOST_LISTED:,} values")
    if choices.bounds is not None and choices.width < APART * choices.bounds.keys:
        share = collisions(choices.bounds.keys, choices.width)
        need = min((w for w in WIDTHS if w >= APART * choices.bounds.keys), default=None)
        way = f"sketch_width = {need}" if need else "lower max_groups_contributed"
        raise ConfigError(
            f"a user's own values would collide: each row would miss up to {share:.1%} of the counts; {way}"
        )
    if choices.lists and query.public_groups is None:
        if windows > 1:
            raise ConfigError(
                "the salt of a window must stay secret until it closes: slide = size, or public_groups"
            )
        if choices.kind is SketchKind.COUNT_MIN:
            raise ConfigError(
                "COUNT_MIN has no signs, so a value that no record has cannot be told from others: public_groups"
            )
    if choices.kind is SketchKind.COUNT_MIN and any(
        sketch.bounds and sketch.bounds[0] < 0 for sketch in choices.wanted
    ):
        raise ConfigError(
            "COUNT_MIN takes the smallest cell, which is nothing where values are negative: COUNT_SKETCH"
        )


def _beta(query: ParsedQuery[SketchChoices], triggers: int, mu: float, delta_floor: float) -> float:
    """Return a = Phi(Phi^-1(delta_floor) - mu), shared by all tests that a unit's own keys can
    meet."""
    from scipy.special import ndtr, ndtri  # slow to import

    all_tests = float(ndtr(ndtri(delta_floor) - mu)) * (1 - 1e-9)
    return round_down(all_tests / (tests(query) * len(query.asked.wanted) * triggers))


def tests(query: ParsedQuery[SketchChoices]) -> int:
    """Count the (window, value) pairs of one unit in one period. With STREAM one value counts anew
    in every window, under another hash key."""
    bounds = query.asked.bounds
    if bounds is None:
        return 1
    return bounds.rows if query.contribution_period is ContributionPeriod.STREAM else bounds.keys


def _squares(bounds: SketchLimits) -> int:
    """Return the most that the squares of a unit's rows per cell add up to: as many cells with c
    rows as there can be, and one with the rest."""
    full, rest = divmod(bounds.rows, bounds.max_rows_per_key)
    return full * bounds.max_rows_per_key**2 + rest**2


def _groups(query: ParsedQuery[SketchChoices], windows: int) -> int:
    """Count the (window, value) pairs in which a unit's rows of one period are: windows that meet a
    period, as it begins with one where slides divide it."""
    bounds = query.asked.bounds
    size = query.windows.size_us
    slide = query.windows.slide_us
    if bounds is None:
        return 1
    meeting = -(-2 * size // slide) - (size % slide == 0)
    of_values = (
        meeting * bounds.keys
        if query.contribution_period is ContributionPeriod.WINDOW
        else windows * bounds.rows
    )
    return min(windows * bounds.rows, of_values)


def _cells(
    query: ParsedQuery[SketchChoices],
    source: Source,
    number: int,
    sketch: Wanted,
    triggers: int,
    windows: int,
    arguments: tuple[str, ...],
    mu: float,
) -> CellsPlan:
    choices = query.asked
    chosen = counter(CounterName.BLT, triggers)
    rows = choices.bounds.rows if choices.bounds else 1
    function = AggregateFunction.COUNT_ROWS if sketch.weight is None else AggregateFunction.SUM
    per_group = isinstance(sketch, WantedPerGroup) and choices.bounds is not None
    aggregate = (PerGroup if per_group else Aggregate)(
        sketch.alias, function, sketch.weight, sketch.bounds
    )
    (increment,) = increments_of(aggregate, arguments, of_width(source, 1 if per_group else rows))
    shift = (
        math.sqrt(windows * choices.depth * (_squares(choices.bounds) if choices.bounds else 1))
        * increment.largest
    )
    if per_group and choices.bounds:
        sums = per_group_sensitivity(
            increment, choices.bounds.max_rows_per_key, windows * rows, _groups(query, windows)
        )
        shift = math.sqrt(choices.depth) * sums
    sensitivity = round_up(shift * column_norm(chosen))
    sigma = round_up(sensitivity / (mu / math.sqrt(len(choices.wanted))) * (1 + 1e-12))
    check_noise(sketch.alias, sigma, increment.grid, triggers)
    return CellsPlan(
        **vars(increment),
        noise_stream=number,
        sensitivity=sensitivity,
        sigma=sigma,
        sd=tuple(sigma * v for v in path_sd(chosen)),
    )


__all__ = ["collisions", "identity", "make_plan", "missed", "tests"]
