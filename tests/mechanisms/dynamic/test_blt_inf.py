"""The counter that never ends, against dense matrices, long division and its figures."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpsql.udfs.noise import double_double as dd
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.exact_normal import quantile
from dpsql.udfs.noise.exact_paths import GUARD, Redraw, coefficients, exact_path
from dpsql.udfs.noise.randomness import normals, tags, words
from tests.mechanisms.dynamic.reference import toeplitz

CHOSEN = BltInf()
KEY = bytes(32)
# f * sd(path), by trigger: what the counter was fitted to; from the model that chose its constants.
FIGURES = {
    10: 2.37,
    100: 3.36,
    1_000: 4.27,
    8_760: 5.23,
    10_000: 5.29,
    100_000: 6.26,
    2**20: 7.26,
    10**7: 12.0,
}


def stepped(z: np.ndarray, state: np.ndarray | None = None) -> np.ndarray:
    state = np.zeros((len(z), CHOSEN.width)) if state is None else state
    for step in range(1, z.shape[1] + 1):
        state = CHOSEN.advance(state, lambda _, step=step: z[:, step - 1], step)
    return state


def whole(state: np.ndarray) -> np.ndarray:
    """High and low parts together, in extended precision."""
    half = CHOSEN.width // 2
    return state[:, :half].astype(np.longdouble) + state[:, half:]


@pytest.mark.parametrize("trigger", FIGURES)
def test_noise_is_as_large_as_the_figures_say(trigger: int) -> None:
    """Catches: a wrong constant, f of a finite horizon, a variance of another path."""
    found = math.sqrt(CHOSEN.squared_norm() * CHOSEN.path_variance(trigger))
    assert found == pytest.approx(FIGURES[trigger], rel=5e-3)


def test_closed_forms_are_those_of_the_power_series() -> None:
    b = np.array(toeplitz(CHOSEN.theta, CHOSEN.omega, 1500))
    np.testing.assert_allclose(CHOSEN.response(np.arange(1500)), b, rtol=1e-12)
    for step in (1, 2, 3, 100, 1500):
        assert CHOSEN.path_variance(step) == pytest.approx(math.fsum(b[:step] ** 2), rel=1e-13)
        assert CHOSEN.response_sum(step) == pytest.approx(math.fsum(b[:step]), rel=1e-13)


def test_the_noise_matrix_times_the_strategy_is_the_prefix_sum() -> None:
    """A = B C for a dense C of its definition. Catches: a recurrence that is not the inverse of the strategy."""
    n = 300
    c = [1.0] + [
        sum(w * t**k for t, w in zip(CHOSEN.theta, CHOSEN.omega, strict=True)) for k in range(n - 1)
    ]
    strategy = np.array([[c[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    for t in (1, 2, 7, n):
        row = stepped(np.eye(n)[:, :t])[:, 0]  # row t of B
        np.testing.assert_allclose(row[:t], CHOSEN.response(np.arange(t - 1, -1, -1)), rtol=1e-14)
        np.testing.assert_allclose(row @ strategy, np.arange(n) < t, atol=1e-12)
    # Columns of C are the first one moved down and cut off, so none is larger, and f is over infinite time.
    tail = sum(
        w * v * (t * u) ** (n - 1) / (1 - t * u) for t, w in _constants() for u, v in _constants()
    )
    assert float(np.sum(strategy[:, 0] ** 2) + tail) == pytest.approx(
        CHOSEN.squared_norm(), rel=1e-13
    )


def _constants() -> list[tuple[float, float]]:
    return list(zip(CHOSEN.theta, CHOSEN.omega, strict=True))


def test_zeros_and_residues_are_those_of_the_counter() -> None:
    """lambda_1 < theta_1 < lambda_2 < ...; C vanishes at 1 / lambda; B's partial fractions. Catches: too few bits for roots this close to 1."""
    roots, residues = CHOSEN._poles
    with mpmath.workprec(400):
        zeros = [mpmath.mpf(x) / mpmath.mpf(2) ** 256 for x in roots]
        theta = [mpmath.mpf(v) for v in CHOSEN.theta]
        omega = [mpmath.mpf(v) for v in CHOSEN.omega]
        for lower, upper in zip(zeros[1:], theta, strict=True):
            assert lower < upper
            assert (
                abs(1 + sum(w / (lower - t) for w, t in zip(omega, theta, strict=True)))
                < mpmath.mpf(2) ** -180
            )
        assert all(t < x for t, x in zip(theta, zeros[2:], strict=False))
        r = [mpmath.mpf(v) / mpmath.mpf(2) ** 256 for v in residues]
        assert min(r) > 0
        assert abs(sum(r) - 1) < mpmath.mpf(2) ** -180  # b_0
        assert (
            abs(sum(v * x for v, x in zip(r, zeros, strict=True)) - (1 - sum(omega)))
            < mpmath.mpf(2) ** -180
        )  # b_1 = 1 - C_1


def test_paths_are_exact_after_ten_million_steps() -> None:
    """One draw of 1 at the first step, then none: the path is b. Catches: a state that drifts, in steps, jumps or powers."""
    first = np.zeros((1, 1))
    first[0, 0] = 1.0
    state = stepped(first)
    step = 1
    for jump in (9, 90, 900, 9_000, 90_000, 900_000):
        state = CHOSEN.jump(state, np.zeros((1, jump)))
        step = step + jump
        assert state[0, 0] == pytest.approx(_b(step - 1), rel=1e-14)
    for power in (1 << 22, 1 << 22):
        state = CHOSEN._move(state, power)
        step = step + power
    assert step == 9_388_608
    assert state[0, 0] == pytest.approx(_b(step - 1), rel=1e-13)


def _b(k: int) -> float:
    """b_k in extended precision."""
    roots, residues = CHOSEN._poles
    with mpmath.workprec(300):
        one = mpmath.mpf(2) ** 256
        return float(
            sum(
                mpmath.mpf(r) / one * (mpmath.mpf(x) / one) ** k
                for x, r in zip(roots, residues, strict=True)
            )
        )


@pytest.mark.parametrize(
    ("done", "more"), [(0, 1), (0, 64), (0, 65), (0, 1000), (3, 200), (500, 129)]
)
def test_a_jump_is_its_steps(done: int, more: int) -> None:
    z = np.random.default_rng(more).standard_normal((3, done + more))
    before = stepped(z[:, :done])
    off = np.abs(whole(CHOSEN.jump(before, z[:, done:])) - whole(stepped(z[:, done:], before)))
    assert float(off.max()) < 1e-17  # longdouble has 64 bits
    one_by_one = np.concatenate(
        [CHOSEN.jump(before[i : i + 1], z[i : i + 1, done:]) for i in range(3)]
    )
    assert np.array_equal(
        one_by_one, CHOSEN.jump(before, z[:, done:])
    )  # whatever is computed beside it


def test_double_doubles_are_as_exact_as_stated() -> None:
    """Sums and products against rationals. Catches: a split that is off, a low part lost."""
    pick = np.random.default_rng(3)
    a, b = (pick.standard_normal(200) * 2.0 ** pick.integers(-20, 20, 200) for _ in range(2))
    x = dd.two_sum(a, b * 2.0**-54)
    y = dd.two_sum(b, a * 2.0**-55)
    c = 8598533 / 2**24
    entry = (float(a[0]), float(a[0] * 2.0**-55))
    for name, found, exact in (
        ("sum", dd.add(x, y), lambda i: _exact(x, i) + _exact(y, i)),
        ("constant", dd.times(np.full(200, c), x), lambda i: Fraction(c) * _exact(x, i)),
        ("product", dd.product(entry, x), lambda i: sum(map(Fraction, entry)) * _exact(x, i)),
    ):
        for i in range(200):
            size = max(abs(_exact(x, i)), abs(_exact(y, i))) if name == "sum" else abs(exact(i))
            assert abs(_exact(found, i) - exact(i)) <= 8 * Fraction(2) ** -106 * size, name


def _exact(pair: dd.Pair, i: int) -> Fraction:
    return Fraction(float(pair[0][i])) + Fraction(float(pair[1][i]))


@pytest.mark.parametrize("step", [1, 2, 90, 700])
def test_keyed_paths_are_within_their_bound_and_their_words_decide(step: int) -> None:
    """The path from its words in integers, beside the double-double one. Catches: a bound that is too small, words of other steps."""
    tag = tags(KEY, np.zeros(1, np.int64), np.array([11], np.int64))
    z = normals(KEY, np.repeat(tag, step, axis=0), 1, 0, np.arange(1, step + 1))
    computed = CHOSEN.jump(np.zeros((1, CHOSEN.width)), z[None, :])[0, 0]
    drawn = words(KEY, np.repeat(tag, step, axis=0), 1, 0, np.arange(1, step + 1)).tolist()
    bits = 128
    exact = exact_path(
        CHOSEN,
        [
            quantile(h, low, at, bits + GUARD)
            for (h, low), at in zip(drawn, z.tolist(), strict=True)
        ],
        step,
        bits,
    )
    assert abs(Fraction(float(computed)) - Fraction(exact, 1 << bits)) < Fraction(
        CHOSEN.error(step)
    )
    scale = 2.0**30
    again = Redraw(KEY, tag, np.zeros(1, np.int64), 1, 0, CHOSEN).rounded(
        np.zeros(1, np.int64), step, scale
    )[0]
    assert again == round(Fraction(exact, 1 << bits) * Fraction(scale))


def test_rows_of_b_are_within_the_units_that_are_allowed() -> None:
    """Closed form in float64 against 300 bits, at lags of every size. Catches: an exponential that loses digits far out."""
    lags = np.unique(np.round(2.0 ** np.arange(0, 24, 0.37)).astype(np.int64))
    exact = np.array([_b(int(k)) for k in lags])
    assert np.max(np.abs(CHOSEN.response(lags) - exact) / exact) < 12 * 2.0**-53
    assert np.array_equal(coefficients(CHOSEN, 5), CHOSEN.response(np.arange(4, -1, -1)))


def test_draws_reach_buffers_no_further_than_the_error_bound_assumes() -> None:
    """|C^-1|_1 <= 2, and an error in a buffer moves no later path by more than itself. Catches: constants for which `error` is no bound."""
    assert 1 + np.sum(np.abs(np.diff(CHOSEN.response(np.arange(1 << 16))))) <= 2
    assert 2 * 13.2 / (1 - max(CHOSEN.theta)) < 2**24.7
    for j in range(1, 1 + len(CHOSEN.theta)):
        state = np.zeros((1, CHOSEN.width))
        state[0, j] = 1.0
        for power in (1, 8, 1 << 10, 1 << 20):
            assert -1 <= CHOSEN._move(state, power)[0, 0] <= 0
