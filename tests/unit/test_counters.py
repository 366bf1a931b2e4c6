"""Counters against their definitions: B times C is the prefix sum, and what the planner reads off a counter is what dense matrices say."""

import math

import numpy as np
import pytest

from benchmarks.fit_blt import impulse, loss
from dpsql.udfs.noise.blt_constants import BLT_CONSTANTS
from dpsql.udfs.noise.counters import (
    Blt,
    Counter,
    Honaker,
    column_norm,
    counter,
    impulse_response,
    path_sd,
)
from tests.property.noise_paths import noise_matrix, toeplitz, unit_path

HORIZONS = [1, 2, 3, 5, 7, 8, 24, 100]
EVERY = [counter(name, t) for name in ("BLT", "HONAKER") for t in HORIZONS]


def draws(chosen: Counter) -> list[tuple[int, int]]:
    """(step, number) of every standard normal, in the order of noise_matrix's columns."""
    return [
        (s, k)
        for s in range(1, chosen.horizon + 1)
        for k in range((s & -s).bit_length() if isinstance(chosen, Honaker) else 1)
    ]


def strategy(chosen: Blt) -> np.ndarray:
    """C as a dense Toeplitz matrix, from the definition."""
    n = chosen.horizon
    c = [1.0] + [
        sum(w * t ** (k - 1) for t, w in zip(chosen.theta, chosen.omega, strict=True))
        for k in range(1, n)
    ]
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("chosen", [c for c in EVERY if not isinstance(c, Honaker)], ids=str)
def test_noise_matrix_times_strategy_is_the_prefix_sum(chosen: Blt) -> None:
    """A = B C is what makes the released path exact plus noise. Catches: a recurrence that is not the inverse of the strategy."""
    n = chosen.horizon
    np.testing.assert_allclose(
        noise_matrix(chosen) @ strategy(chosen), np.tril(np.ones((n, n))), rtol=0, atol=1e-12 * n
    )
    np.testing.assert_allclose(impulse_response(chosen), noise_matrix(chosen)[:, 0], rtol=0, atol=0)
    np.testing.assert_allclose(toeplitz(chosen), impulse_response(chosen), rtol=1e-12)
    assert column_norm(chosen) == pytest.approx(
        float(np.linalg.norm(strategy(chosen), axis=0).max()), rel=1e-13
    )


@pytest.mark.parametrize("chosen", EVERY, ids=str)
def test_path_sd_is_that_of_the_dense_matrix(chosen: Counter) -> None:
    """Catches: stderr and thresholds computed for another path than the one released."""
    np.testing.assert_allclose(
        path_sd(chosen), np.linalg.norm(noise_matrix(chosen), axis=1), rtol=1e-13
    )


@pytest.mark.parametrize("chosen", EVERY, ids=str)
def test_the_noise_matrix_is_the_definition_pushed_through(chosen: Counter) -> None:
    """Unit vectors through the reference of tests/reference.py. Catches: for the tree, a node that two prefix sums see differently."""
    if chosen.horizon <= 24:
        names = draws(chosen)
        expected = [
            [unit_path(chosen, t, lambda s, k, name=name: float((s, k) == name)) for name in names]
            for t in range(1, chosen.horizon + 1)
        ]
        np.testing.assert_allclose(noise_matrix(chosen), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("horizon", [*HORIZONS, 1000])
def test_the_tree_touches_as_many_nodes_as_its_sensitivity_says(horizon: int) -> None:
    """The nodes over a leaf that complete by the horizon. Catches: one level too few (the sensitivity would be too small)."""
    touched = [
        sum(1 for k in range(20) if -(-leaf // 2**k) * 2**k <= horizon)
        for leaf in range(1, horizon + 1)
    ]
    assert Honaker(horizon).squared_norm() == max(touched)


def test_paper_figures_of_the_tree() -> None:
    """Known figures of tree + Honaker for mu = 1, max / mean / last; its mean is the root of the mean variance."""
    for horizon, figures in (
        (100, (5.15, 3.73, 3.33)),
        (1_000, (7.28, 5.36, 5.52)),
        (10_000, (10.1, 7.13, 5.94)),
    ):
        sd = np.array(path_sd(Honaker(horizon))) * column_norm(Honaker(horizon))
        assert (sd.max(), math.sqrt(float(np.mean(sd**2))), sd[-1]) == pytest.approx(
            figures, rel=2e-3
        )


@pytest.mark.parametrize("horizon", [1, 2, 5, 24, 100, 1000])
def test_blt_is_within_1_5_percent_of_the_square_root_factorisation(horizon: int) -> None:
    """Catches: constants of another horizon. The square root itself: 2.53 at 100 and 3.27 at 1,000."""
    best = sum((math.comb(2 * k, k) / 4**k) ** 2 for k in range(min(horizon, 500)))
    best += sum(
        1 / (math.pi * (k + 0.25)) for k in range(500, horizon)
    )  # binomials this large do not fit a float
    blt = Blt.for_horizon(horizon)
    assert column_norm(blt) * max(path_sd(blt)) <= 1.015 * best
    assert {100: 2.53, 1000: 3.27}.get(horizon, round(best, 2)) == round(best, 2)


def test_every_horizon_up_to_10_000_has_constants() -> None:
    """A horizon takes the next larger fit, and noise never grows with time by more than the counter's own. Catches: a gap in the table."""
    for horizon in [*range(1, 200), 721, 1025, 9_999, 10_000]:
        blt = Blt.for_horizon(horizon)
        assert (blt.theta, blt.omega) == BLT_CONSTANTS[
            min(h for h in BLT_CONSTANTS if h >= horizon)
        ]
        assert blt.horizon == horizon
    for theta, omega in BLT_CONSTANTS.values():
        assert all(0 < t < 1 for t in theta)
        assert all(w > 0 for w in omega)


@pytest.mark.parametrize("horizon", [h for h in BLT_CONSTANTS if h > 1])
def test_the_stored_constants_are_a_local_optimum(horizon: int) -> None:
    """Perturbing any constant by 1e-3 relative does not improve the fit's loss by more than 1e-6: nobody mistyped or truncated one. theta
    is perturbed through 1 - theta, as the fit does: 1e-3 of theta itself would leave (0, 1)."""
    theta, omega = (np.array(v) for v in BLT_CONSTANTS[horizon])
    stored = np.concatenate([np.log(theta / (1 - theta)), np.log(omega)])
    at = loss(stored, horizon)
    for i in range(len(stored)):
        for sign in (-1, 1):
            moved = stored.copy()
            moved[i] += sign * 1e-3
            assert loss(moved, horizon) > at - 1e-6
    worse = stored.copy()
    worse[-1] += 0.3
    assert loss(worse, horizon) > at + 1e-6  # the check can fail
    column, noise = impulse(theta, omega, horizon)
    np.testing.assert_allclose(
        noise[:50], impulse_response(Blt.for_horizon(horizon))[:50], rtol=1e-9
    )
    assert math.sqrt(float(np.sum(column**2))) == pytest.approx(
        column_norm(Blt.for_horizon(horizon)), rel=1e-12
    )


@pytest.mark.parametrize("chosen", EVERY, ids=str)
def test_paths_do_not_depend_on_the_paths_beside_them(chosen: Counter) -> None:
    """Bit by bit. Catches: matrix products, whose rounding depends on the shape; then a bucket count would change released rows."""
    z = np.random.default_rng(1).standard_normal((chosen.horizon, 16, 7))

    def final(paths: slice) -> np.ndarray:
        state = np.zeros((7, chosen.width))[paths]
        for step in range(1, chosen.horizon + 1):
            state = chosen.advance(
                state, lambda number, step=step: z[step - 1, number, paths], step
            )
        return state

    whole = final(slice(None))
    assert all(np.array_equal(final(slice(i, i + 1)), whole[i : i + 1]) for i in range(7))


def test_no_buffers_at_horizon_1() -> None:
    assert Blt.for_horizon(1).width == 1
    assert column_norm(Blt.for_horizon(1)) == path_sd(Blt.for_horizon(1))[0] == 1.0
