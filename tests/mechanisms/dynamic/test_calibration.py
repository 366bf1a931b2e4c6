"""Numbers of an endless table: thresholds that fail rarely enough over all triggers, sensitivities that no unit exceeds, and an accountant
that finds what is too small."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic import accounting
from dpsql.mechanisms.dynamic.planner import (
    TableBounds,
    blocks,
    endless_thresholds,
    failure_probability,
    presence_sensitivity,
    row_sensitivity,
    shown_from,
)
from dpsql.privacy.noise_costs import path_deviations
from dpsql.udfs.noise.blt_inf import OMEGA, THETA, BltInf
from dpsql.udfs.table_grid import LAST_STEP

CHOSEN = BltInf()
F = math.sqrt(CHOSEN.squared_norm())
UNIT = 1 << 20
TOTAL = 1e-10
SIGMA = 1.75


def c_of(count: int, chosen: BltInf = CHOSEN) -> np.ndarray:
    k = np.arange(count - 1)
    return np.concatenate(
        [[1.0], sum(w * t**k for t, w in zip(chosen.theta, chosen.omega, strict=True))]
    )


def strategy(count: int) -> np.ndarray:
    c = c_of(count)
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)])


# Thresholds.


def test_blocks_cover_every_trigger_once() -> None:
    first = blocks()
    assert first[0] == 1
    assert all(b > a for a, b in itertools.pairwise(first))
    assert first[-1] < LAST_STEP
    for trigger in (1, 63, 64, 8760, 2**31):
        block = max(f for f in first if f <= trigger)
        assert block == trigger or trigger - block < trigger / 32


def test_failures_of_all_triggers_without_end_are_the_total() -> None:
    """Catches: shares of a finite horizon, which add up to more than all of it once the horizon is passed."""
    per_octave = [
        sum(failure_probability(TOTAL, i) for i in range(1 << k, 2 << k)) for k in range(12)
    ]
    np.testing.assert_allclose(
        per_octave, [TOTAL * 6 / math.pi**2 / (k + 1) ** 2 for k in range(12)], rtol=1e-12
    )
    assert (
        sum(per_octave) + TOTAL * 6 / math.pi**2 * sum(1 / (k + 1) ** 2 for k in range(12, 10**5))
        < TOTAL
    )


@pytest.mark.parametrize("min_units", [1, 5])
def test_thresholds_are_the_quantile_at_each_trigger(min_units: int) -> None:
    """At least that of the trigger, at most 1% more. Catches: the deviation of a block's first trigger, a rounding down."""
    first = blocks()
    taus = endless_thresholds(CHOSEN, SIGMA, UNIT // 2, min_units, TOTAL)
    for trigger in (*range(1, 200), 8_760, 10**5, 10**6):
        tau = taus[max(i for i, f in enumerate(first) if f <= trigger)] / UNIT - min_units / 2
        least = (
            SIGMA
            * math.sqrt(CHOSEN.path_variance(trigger))
            * norm.isf(failure_probability(TOTAL, trigger))
        )
        assert least <= tau <= least * 1.01 + 2**-19
    assert shown_from(taus) == tuple(-(-tau // 2) for tau in taus)


def threshold_failure(
    sigma: float,
    first: tuple[int, ...],
    thresholds: list[int] | tuple[int, ...],
    largest_weight: int,
) -> float:
    """As the accountant finds it: that a group of one unit too few ever crosses."""
    end = accounting._ends(first, thresholds, LAST_STEP)
    return accounting._failures(
        sigma, first, end, path_deviations(CHOSEN, end), thresholds, largest_weight
    )


def test_the_accountant_sums_what_thresholds_fail_with() -> None:
    """From covariances by doubling. What the last triggers that can be numbered leave over is less than 2%."""
    taus = endless_thresholds(CHOSEN, SIGMA, UNIT // 2, 1, TOTAL)
    assert 0.98 * TOTAL < threshold_failure(SIGMA, blocks(), taus, UNIT // 2) <= TOTAL
    lower = [int((tau - UNIT // 2) * 0.999) + UNIT // 2 for tau in taus]
    assert threshold_failure(SIGMA, blocks(), lower, UNIT // 2) > TOTAL * 1.01
    assert threshold_failure(SIGMA * 1.001, blocks(), taus, UNIT // 2) > TOTAL * 1.01
    assert threshold_failure(SIGMA, blocks(), taus, UNIT // 2 + UNIT // 50) > TOTAL
    with pytest.raises(AccountingError, match="blocks"):
        threshold_failure(SIGMA, blocks()[1:], taus[1:], UNIT // 2)


def test_covariances_by_doubling_are_those_of_a_dense_matrix() -> None:
    inverse = np.linalg.inv(strategy(300))
    b = np.tril(np.ones((300, 300))) @ inverse
    found = accounting.path_deviations(CHOSEN, (1, 2, 3, 64, 65, 299, 300))
    np.testing.assert_allclose(
        found, np.linalg.norm(b, axis=1)[[0, 1, 2, 63, 64, 298, 299]], rtol=1e-12
    )


# The counter.


def test_the_accountants_norm_is_over_infinite_time() -> None:
    assert accounting.column_norm(CHOSEN) == pytest.approx(F, rel=1e-9)
    assert np.linalg.norm(c_of(1 << 20)) < F * (1 - 1e-6)  # what a finite horizon would say is less


@pytest.mark.parametrize(
    ("theta", "omega"),
    [
        ((THETA[0], *THETA[:1], *THETA[2:]), OMEGA),  # twice the same
        (THETA, (-OMEGA[0], *OMEGA[1:])),
        ((*THETA[:5], 1.0), OMEGA),
        ((0.5,), (1.25,)),  # C rises
        ((0.25,), (0.75,)),  # 1 - 1.5 + 0.1875 < 0: not convex
    ],
)
def test_a_counter_that_the_theorems_do_not_cover_is_refused(
    theta: tuple[float, ...], omega: tuple[float, ...]
) -> None:
    with pytest.raises(AccountingError, match=r"counter|convex"):
        accounting.column_norm(BltInf(theta, omega))


# Sensitivities: |C d| of what one unit adds, over all groups.


@cache
def gram(count: int) -> np.ndarray:
    """g(k) = sum_m c_m c_(m+k) over infinite time: dense to 2^14 lags, and the closed tail."""
    n = 1 << 14
    c = c_of(n + count)
    tails = [
        sum(
            w * v * t ** (n - 1) * u ** (n - 1 + k) / (1 - t * u)
            for t, w in _constants()
            for u, v in _constants()
        )
        for k in range(count)
    ]
    return np.array([float(c[:n] @ c[k : k + n]) + tail for k, tail in enumerate(tails)])


def _constants() -> list[tuple[float, float]]:
    return list(zip(THETA, OMEGA, strict=True))


def test_the_gram_is_convex_and_falls() -> None:
    """What the spell lemma stands on. Catches: constants for which rows of one slot add up to more than their squares."""
    g = gram(400)
    assert g[0] == pytest.approx(F**2, rel=1e-12)
    assert np.all(np.diff(g) < 0)
    assert np.all(np.diff(g, 2) > 0)


def shift2(d: np.ndarray) -> float:
    """|C d|^2 over infinite time; d ends within 300 triggers."""
    at = np.flatnonzero(d)
    g = gram(301)
    return float(sum(d[i] * d[j] * g[abs(i - j)] for i in at for j in at))


def test_dense_matrices_and_the_closed_form_agree() -> None:
    """A version on [s, e) costs 2 (g(0) - g(e - s)) in squares; cut off at trigger T less."""
    g = gram(301)
    matrix = strategy(300)
    for s, e in ((0, 1), (3, 250), (10, 40)):
        d = np.zeros(300)
        d[s], d[e] = 1, -1
        assert shift2(d) == pytest.approx(2 * (g[0] - g[e - s]), rel=1e-12)
        assert float(np.sum((matrix @ d) ** 2)) <= shift2(d) + 1e-12
        assert float(np.sum(np.convolve(c_of(1 << 14), d) ** 2)) == pytest.approx(
            shift2(d), rel=1e-3
        )


def spells_of_a_slot(pick: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Disjoint [s, e), some that touch; the last one may have no end."""
    ends = np.sort(pick.choice(260, 2 * count, replace=False)).tolist()
    if pick.random() < 0.4:
        ends = (
            list(range(2 * count))
            if pick.random() < 0.5
            else [int(v) for v in np.linspace(0, 260, 2 * count)]
        )
    spells = list(zip(ends[::2], ends[1::2], strict=True))
    if pick.random() < 0.3:
        spells = [
            (s, spells[i + 1][0] if i + 1 < len(spells) else 300) for i, (s, _) in enumerate(spells)
        ]  # each begins where one ends
    return spells


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-3.0, 0.0), (-2.0, 3.0)])
@pytest.mark.parametrize(("rows", "per_group"), [(1, 1), (4, 1), (4, 2), (6, 3), (8, 8)])
def test_no_unit_with_ends_is_beyond_the_bound(
    rows: int, per_group: int, lower: float, upper: float
) -> None:
    """Random units of one group (more groups cost less: c slots of each), then the worst again with more amplitude. Catches: a bound without
    the 2, lifetime c in the place of live c, mixed signs as one sign. With values of one sign the worst is within 35% of the bound."""
    pick = np.random.default_rng(rows * 10 + per_group)
    bound = row_sensitivity(TableBounds(rows, per_group, 1, ends=True), lower, upper) * F
    assert accounting.row_ratio(rows, per_group, 1, True, (lower, upper), F, 1.0) == pytest.approx(
        bound, rel=1e-12
    )
    worst = 0.0
    for _ in range(150):
        d = np.zeros(301)
        together = pick.random() < 0.5
        parts = np.array_split(np.arange(rows), min(per_group, rows))
        template = spells_of_a_slot(pick, rows)
        for part in parts:
            if not len(part):
                continue
            spells = template[: len(part)] if together else spells_of_a_slot(pick, len(part))
            for i, (s, e) in enumerate(spells):
                value = (
                    (lower, upper)[i % 2]
                    if lower < 0 < upper and pick.random() < 0.8
                    else (upper if upper else lower)
                )
                d[s] += value
                d[e] -= value if e < 300 else 0.0
        worst = max(worst, shift2(d))
    assert worst <= bound**2 * (1 + 1e-9)
    if lower >= 0 or upper <= 0:
        assert worst > 0.42 * bound**2


@pytest.mark.parametrize(
    ("rows", "per_group", "groups"), [(3, 1, 3), (4, 2, 2), (4, 4, 1), (6, 2, 3)]
)
def test_a_table_that_only_grows_costs_what_a_window_does(
    rows: int, per_group: int, groups: int
) -> None:
    """Every unit of whole rows: reached by rows that begin together. Catches: a sqrt(2) too much, or c forgotten."""
    bounds = TableBounds(rows, per_group, groups)
    bound = row_sensitivity(bounds, -1.0, 1.0) * F
    assert accounting.row_ratio(
        rows, per_group, groups, False, (-1.0, 1.0), F, 1.0
    ) == pytest.approx(bound, rel=1e-12)
    pick = np.random.default_rng(rows)
    worst = 0.0
    for _ in range(200):
        left = rows
        total = 0.0
        for _group in range(groups):
            count = min(per_group, left)
            left -= count
            at = pick.choice(20, count) if pick.random() < 0.5 else np.full(count, 7)
            total += shift2(np.bincount(at, minlength=301).astype(float))
        worst = max(worst, total)
    assert worst <= bound**2 * (1 + 1e-9)
    if bounds.rows % per_group == 0:
        assert worst == pytest.approx(bound**2)


def test_presence_costs_its_weights_and_ends_double_the_square() -> None:
    weights = (0.8, 0.5, 0.3)
    for ends in (False, True):
        bound = presence_sensitivity(TableBounds(3, 1, 3, ends, max_spells=3), weights) * F
        assert accounting.presence_ratio(weights, ends, F, 1.0) == pytest.approx(bound, rel=1e-12)
        d = np.zeros(301)
        for i, w in enumerate(weights):  # one key that is left and entered again
            d[20 * i] += w
            d[20 * i + 12] -= w if ends else 0.0
        assert shift2(d) <= bound**2 if ends else True
        apart = sum(
            shift2(np.eye(301)[20 * i] * w - (np.eye(301)[20 * i + 200] * w if ends else 0))
            for i, w in enumerate(weights)
        )
        assert 0.5 * bound**2 < apart <= bound**2 * (1 + 1e-9)
    with pytest.raises(AccountingError, match="weights"):
        accounting.presence_ratio((0.3, 0.5), True, F, 1.0)
