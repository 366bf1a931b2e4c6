"""Exact noise against mpmath, which shares nothing with it; the slow path forced, planted next to a boundary, and broken on purpose."""

import dataclasses
from unittest import mock

import mpmath
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtri

from dpsql.udfs.histogram.key_selection import SelectionParameters, crosses
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.noise import exact_paths, path_error, randomness
from dpsql.udfs.noise.counters import Counter, Honaker, counter
from dpsql.udfs.noise.exact_normal import quantile
from dpsql.udfs.noise.exact_paths import GUARD, Redraw, coefficients, exact_path
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, UNIT, trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy
from dpsql.udfs.noise.randomness import lower_tails, normals, tags, words
from dpsql.udfs.stage import Tick
from tests.property.noise_paths import noise_matrix
from tests.unit.test_release import COUNT, GRID, KEY, rows

DIGITS = 60
PATHS = 8
IDS = np.arange(PATHS, dtype=np.int64)
TAG = tags(KEY, IDS, 3 * IDS + 1)
COUNTERS = [counter(name, horizon) for name in ("BLT", "HONAKER") for horizon in (1, 7, 24)]


def by_mpmath(high: int, low: int) -> mpmath.mpf:
    """The normal of a word by mpmath's erfc and Newton's method."""
    tail = (mpmath.mpf((high % 2**63) * 2**64 + low) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 128
    x = mpmath.mpf(float(ndtri(float(tail))))
    for _ in range(5):
        x -= (mpmath.erfc(-x / mpmath.sqrt(2)) / 2 - tail) / mpmath.npdf(x)
    return -x if high >> 63 else x


def path_by_mpmath(chosen: Counter, path: int, step: int) -> mpmath.mpf:
    """A path from the definitions: C x = z solved row by row, the binomials, or the tree from its root down."""

    def z(at: int, number: int = 0) -> mpmath.mpf:
        return by_mpmath(*words(KEY, TAG[path : path + 1], 1, 0, at, number)[0].tolist())

    def node(end: int, level: int) -> mpmath.mpf:
        if level == 0:
            return z(end)
        v = mpmath.mpf(1) / (2 * (1 - mpmath.mpf(2) ** -(level + 1)))
        return v * z(end, level) + (1 - v) * (
            node(end - 2 ** (level - 1), level - 1) + node(end, level - 1)
        )

    with mpmath.workdps(DIGITS):
        if isinstance(chosen, Honaker):
            total = mpmath.mpf(0)
            end = 0
            for level in reversed(range(step.bit_length())):
                if step >> level & 1:
                    end += 2**level
                    total += node(end, level)
            return total
        c = [
            mpmath.fsum(
                mpmath.mpf(w) * mpmath.mpf(t) ** k
                for t, w in zip(chosen.theta, chosen.omega, strict=True)
            )
            for k in range(step)
        ]
        x: list[mpmath.mpf] = []
        for at in range(1, step + 1):
            x.append(z(at) - mpmath.fsum(c[k] * x[at - 2 - k] for k in range(at - 1)))
        return mpmath.fsum(x)


def in_float64(chosen: Counter, step: int) -> np.ndarray:
    """The unit-noise paths as the steps compute them."""
    state = np.zeros((PATHS, chosen.width))
    for now in range(1, step + 1):
        state = trust(chosen).advance(
            state, lambda number, now=now: normals(KEY, TAG, 1, 0, now, number), now
        )
    return state[:, 0]


def redraw(chosen: Counter) -> Redraw:
    return Redraw(KEY, TAG, np.arange(PATHS), 1, 0, chosen)


def some_words(count: int, seed: int) -> np.ndarray:
    """Words of all sizes: plain ones, tails down to the last bit, and next to one half."""
    pick = np.random.default_rng(seed)
    w = pick.integers(0, 2**64, (count, 2), dtype=np.uint64)
    shift = pick.integers(0, 63, count).astype(np.uint64)
    kind = np.arange(count) % 4
    low = w[:, 0] & np.uint64(2**63 - 1)
    high = np.select(
        [kind == 1, kind == 2, kind == 3],
        [low >> shift, np.uint64(2**63 - 1) - (low >> shift), np.uint64(0)],
        w[:, 0],
    )
    return np.stack([high, np.where(kind == 3, w[:, 1] >> shift, w[:, 1])], axis=1).astype(
        np.uint64
    )


ENDS = np.array(
    [
        [0, 0],
        [2**63, 0],
        [2**63 - 1, 2**64 - 1],
        [2**64 - 1, 2**64 - 1],
        [2**62, 0],
        [0, 2**64 - 1],
    ],
    dtype=np.uint64,
)


@pytest.mark.parametrize("bits", [64, 128, 900])
def test_quantiles_in_integers_are_those_of_mpmath(bits: int) -> None:
    """Catches: too few guard bits in the tails, a constant cut off, a Newton step that stops too early, a sign."""
    chosen = np.concatenate([ENDS, some_words(60, bits)])
    with mpmath.workprec(bits + 200):
        for (high, low), start in zip(
            chosen.tolist(), ndtri(lower_tails(chosen)).tolist(), strict=True
        ):
            assert (
                abs(quantile(high, low, start, bits) - by_mpmath(high, low) * mpmath.mpf(2) ** bits)
                < 1
            )


def test_a_broken_quantile_function_is_noticed() -> None:
    with pytest.raises(ArithmeticError, match="quantile"):
        quantile(1 << 60, 0, -0.5, 64)


def shares_of_the_stated_error(chosen: np.ndarray) -> np.ndarray:
    """|float64 normal - exact quantile| over what `path_error` allows, per word."""
    found = ndtri(lower_tails(chosen))
    bits = 160
    exact = [
        -abs(quantile(high, low, start, bits))
        for (high, low), start in zip(chosen.tolist(), found.tolist(), strict=True)
    ]
    ratios = [f.as_integer_ratio() for f in found.tolist()]
    off = [abs((n << bits) // d - e) / 2.0**bits for (n, d), e in zip(ratios, exact, strict=True)]
    return np.array(off) / (UNIT * (RELATIVE * np.abs(found) + ABSOLUTE))


def test_float64_normals_are_within_the_stated_error() -> None:
    """A machine or a scipy on which this fails would release other bits. Catches: a bound below what the library does."""
    shares = shares_of_the_stated_error(np.concatenate([ENDS, some_words(4000, 1)]))
    assert (
        0.2 < shares.max() < 0.75
    )  # about half of what is allowed; above a fifth, so a bound five times smaller would fail


@pytest.mark.parametrize("chosen", COUNTERS, ids=str)
def test_exact_paths_are_those_of_mpmath(chosen: Counter) -> None:
    """Catches: float64 constants read as something else, steps out of order, a tree node that is not the counter's."""
    for path in range(2):
        steps, numbers = exact_paths._draws(chosen, chosen.horizon)
        tag = np.repeat(TAG[path : path + 1], len(steps), axis=0)
        drawn = words(KEY, tag, 1, 0, steps, numbers).tolist()
        start = normals(KEY, tag, 1, 0, steps, numbers).tolist()
        z = [
            quantile(high, low, at, 128 + GUARD)
            for (high, low), at in zip(drawn, start, strict=True)
        ]
        found = exact_path(chosen, z, chosen.horizon, 128)
        with mpmath.workdps(DIGITS):
            assert (
                abs(found - path_by_mpmath(chosen, path, chosen.horizon) * mpmath.mpf(2) ** 128) < 1
            )


@pytest.mark.parametrize("chosen", COUNTERS, ids=str)
def test_float64_paths_are_within_their_bound(chosen: Counter) -> None:
    """Catches: a source of rounding that the bound forgets. It is a bound on the worst case, so there is much room."""
    computed = in_float64(chosen, chosen.horizon)
    for path in range(3):
        with mpmath.workdps(DIGITS):
            assert (
                abs(mpmath.mpf(computed[path]) - path_by_mpmath(chosen, path, chosen.horizon))
                < trust(chosen).error[-1]
            )
    assert trust(chosen).error[-1] < 1e-11


@pytest.mark.parametrize(("name", "horizon"), [("BLT", 100), ("BLT", 1000), ("HONAKER", 1000)])
def test_rounding_at_every_operation_stays_within_the_bound(name: str, horizon: int) -> None:
    """Float64 against the same recurrence in extended precision, same draws. Catches: a bound that grows too slowly with the steps."""
    chosen = counter(name, horizon)
    wide = np.longdouble
    z = np.random.default_rng(2).standard_normal((horizon, 11, 20))
    state = np.zeros((20, chosen.width))
    exact = np.zeros((20, chosen.width), wide)
    worst = 0.0
    for step in range(1, horizon + 1):
        state = chosen.advance(state, lambda number, step=step: z[step - 1, number], step)
        exact = chosen.advance(
            exact, lambda number, step=step: z[step - 1, number].astype(wide), step
        )
        worst = max(
            worst, float(np.max(np.abs(state[:, 0] - exact[:, 0])) / trust(chosen).error[step - 1])
        )
    assert worst < 0.1


@pytest.mark.parametrize("chosen", COUNTERS, ids=str)
def test_coefficients_are_the_rows_of_the_noise_matrix(chosen: Counter) -> None:
    """Catches: draws in another order than their coefficients, a node of the tree with its sibling's weight."""
    for step in range(1, chosen.horizon + 1):
        row = coefficients(chosen, step)
        np.testing.assert_allclose(
            row, noise_matrix(chosen)[step - 1, : len(row)], rtol=0, atol=1e-14
        )


# A boundary, planted: sigma such that path * sigma is half-way between two integers, as far as float64 can tell.


def planted(chosen: Counter, path: int, step: int) -> tuple[PerturbationParameters, int]:
    """Parameters with the boundary, and what the exact path rounds to."""
    sigma = 1000.5 / abs(in_float64(chosen, step)[path])
    with mpmath.workdps(DIGITS):
        exact = path_by_mpmath(chosen, path, step) * mpmath.mpf(sigma)
        assert abs(abs(exact) - 1000.5) < 1e-10
        return PerturbationParameters(1, chosen, sigma, 1.0), int(mpmath.nint(exact))


def noise_at(chosen: Counter, path: int, step: int, p: PerturbationParameters) -> int:
    again = dataclasses.replace(redraw(chosen), groups=np.array([path]))
    return int(
        noisy(np.zeros(1, np.int64), in_float64(chosen, step)[path : path + 1], step, p, again)[0]
    )


@pytest.mark.parametrize("chosen", [counter(name, 7) for name in ("BLT", "HONAKER")], ids=str)
def test_a_path_next_to_a_boundary_is_rounded_exactly(chosen: Counter) -> None:
    """All planted paths, against mpmath; float64 alone gets some wrong, and so do both planted bugs."""
    wrong = {"float64": 0, "bound a million times too small": 0, "slow path returns the float": 0}
    for path in range(PATHS):
        for step in (3, 7):
            p, exact = planted(chosen, path, step)
            with mock.patch.object(
                Redraw, "rounded", autospec=True, side_effect=Redraw.rounded
            ) as slow:
                assert noise_at(chosen, path, step, p) == exact
                assert slow.call_count == 1
            computed = in_float64(chosen, step)[path]
            wrong["float64"] += int(np.rint(computed * p.sigma)) != exact
            small = dataclasses.replace(trust(chosen), error=trust(chosen).error * 1e-6)
            with mock.patch("dpsql.udfs.noise.perturbation.trust", lambda _, small=small: small):
                wrong["bound a million times too small"] += noise_at(chosen, path, step, p) != exact
            lazy = mock.patch.object(
                Redraw, "rounded", lambda *_, at=computed * p.sigma: np.array([int(np.rint(at))])
            )
            with lazy:
                wrong["slow path returns the float"] += noise_at(chosen, path, step, p) != exact
    assert all(count > 0 for count in wrong.values()), wrong


def test_a_path_next_to_the_threshold_is_compared_exactly() -> None:
    """sigma such that the noisy count meets tau, as far as float64 can tell. Catches: a float64 decision at the threshold."""
    chosen = counter("BLT", 7)
    decisions = []
    for path in range(PATHS):
        value = float(in_float64(chosen, 7)[path])
        tau = 3 << 20 if value > 0 else -3 << 20
        p = SelectionParameters(chosen, 3.0 / abs(value), (tau,) * 7, 1)
        again = dataclasses.replace(redraw(chosen), groups=np.array([path]))
        with mock.patch.object(
            Redraw, "reaches", autospec=True, side_effect=Redraw.reaches
        ) as slow:
            found = bool(crosses(np.array([value]), np.zeros(1, np.int64), 7, p, again)[0])
            assert slow.call_count == 1
        with mpmath.workdps(DIGITS):
            above = path_by_mpmath(chosen, path, 7) * mpmath.mpf(p.sigma) - tau / 2**20
            assert abs(above) < 1e-13
            assert found == (above >= 0)
        decisions.append(found == bool(p.sigma * value >= tau / 2**20))
    assert not all(decisions)  # float64 alone decides some of them wrongly


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("name", ["BLT", "HONAKER"])
def test_every_cell_by_the_slow_path_is_the_same_release(name: str, rounds: bool) -> None:
    """The bound widened until nothing is trusted, then numbers that no path may have: the released rows keep their bits."""
    chosen = counter(name, 4)
    selection = SelectionParameters(chosen, 1.5, (3 << 20,) * 4, 1, rounds)
    p = ReleaseParameters(
        GRID, selection, (PerturbationParameters(1, chosen, 700.0, 1.0),), (COUNT,)
    )
    table = rows(*[(0, 1 + i % 3, 50 + i % 40, 1) for i in range(160)], by_user=rounds)

    def run() -> pa.Table:
        return release(None, table, [Tick(0, 20), Tick(0, 40)], p, KEY).rows

    expected = run()
    assert expected.num_rows > 40
    real = path_error.trust

    def no_trust(c: Counter) -> path_error.Trust:
        return dataclasses.replace(real(c), error=real(c).error + 1e9)

    def nothing_is_small(c: Counter) -> path_error.Trust:
        return dataclasses.replace(real(c), limits=np.full((4, c.width), 0.5))

    with (
        mock.patch("dpsql.udfs.noise.perturbation.trust", no_trust),
        mock.patch("dpsql.udfs.histogram.key_selection.trust", no_trust),
    ):
        assert run().equals(expected)
        with mock.patch("dpsql.udfs.noise.exact_paths._settle_in_float64", lambda *_: None):
            assert run().equals(expected)
            with mock.patch(
                "dpsql.udfs.noise.exact_paths.quantile",
                lambda high, low, start, bits: quantile(high, low, start, bits) + (1 << bits),
            ):
                assert not run().equals(expected)  # the slow path is what was released
    with (
        mock.patch("dpsql.udfs.histogram.perturbation.trust", nothing_is_small),
        mock.patch("dpsql.udfs.histogram.key_selection.trust", nothing_is_small),
    ):
        assert run().equals(expected)


def test_wild_numbers_are_never_trusted() -> None:
    """One number beyond its limit, in any column, makes the path NaN for good. Catches: a limit of another step, a column left out."""
    for name in ("BLT", "HONAKER"):
        chosen = counter(name, 24)
        limits = trust(chosen).limits
        assert limits is not None
        for column in range(chosen.width):
            state = np.zeros((2, chosen.width))
            state[1, column] = limits[4, column] * 1.01
            state = trust(chosen).within(state, 5)
            for step in range(6, 25):
                state = trust(chosen).advance(state, lambda _: np.zeros(2), step)
                assert np.isnan(state[1, 0])
                assert state[0, 0] == 0
    assert randomness.MAX_NORMAL > path_error.LIMIT
