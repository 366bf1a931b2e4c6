"""CORR, COVAR_POP and the line of least squares: the truth without noise, errors that are those of repeated releases, and planted mistakes."""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import AccountingError
from dpsql.mechanisms.histogram.accounting import check
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.parsed_query import Aggregate, AggregateFunction, Paired
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.text import Z95
from dpsql.udfs.histogram.perturbation import finish
from dpsql.udfs.measure import pairs
from dpsql.udfs.measure.output_columns import combine
from tests.property.plans import COUNT, query, source

Y = -20.0, 60.0
X = 3.0, 9.0
SLOPE = AggregateFunction.REGR_SLOPE
Function = Callable[[np.ndarray, np.ndarray], float]
FUNCTIONS: dict[AggregateFunction, Function] = {
    AggregateFunction.COVAR_POP: lambda y, x: float(np.cov(y, x, bias=True)[0, 1]),
    AggregateFunction.CORR: lambda y, x: float(np.corrcoef(y, x)[0, 1]),
    SLOPE: lambda y, x: float(np.cov(y, x)[0, 1] / max(np.var(x, ddof=1), 1e-300)),
    AggregateFunction.REGR_INTERCEPT: lambda y, x: float(
        y.mean() - FUNCTIONS[SLOPE](y, x) * x.mean()
    ),
}
TRIALS = 20_000
Pairs = tuple[np.ndarray, np.ndarray]


def paired(function: AggregateFunction, alias: str = "pair") -> Paired:
    return Paired(alias, function, "seconds", Y, "x", X)


@cache
def plan_of(*aggregates: Aggregate) -> PrivacyPlan:
    return make_plan(query(aggregates=aggregates), source())


def sums_of(plan: PrivacyPlan, both: Pairs) -> list[int]:
    """What the real increments of the values add up to."""
    rows = pa.table({f"a{i}": pa.array(values, pa.float64()) for i, values in enumerate(both)})
    return [
        int(increment.increments(rows).sum()) for increment in bounding_parameters(plan).increments
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 1000])
def test_without_noise_it_is_that_of_clamped_pairs(function: AggregateFunction, size: int) -> None:
    """Catches: a NULL of one value that counts in the other's sums, bounds of x for y, products of values that are not clamped."""
    plan = plan_of(paired(function))
    pick = np.random.default_rng(size)
    more_y = [np.nan, 50.0, np.nan, np.inf, -np.inf, 1e200]
    more_x = [9.0, np.nan, np.nan, 3.5, 1e200, -np.inf]
    y = np.concatenate([pick.normal(20, 40, size), more_y])
    x = np.concatenate([pick.normal(7, 2, size), more_x])
    is_whole = ~(np.isnan(y) | np.isnan(x))
    truth = FUNCTIONS[function](np.clip(y[is_whole], *Y), np.clip(x[is_whole], *X))
    released, _ = combine(
        release_parameters(plan).columns[0],
        [np.array([v]) for v in sums_of(plan, (y, x))],
        [np.zeros(1)] * len(plan.perturbations),
    )
    assert released[0] == pytest.approx(truth, rel=1e-4)


CROWDS: dict[str, Callable[[np.random.Generator], Pairs]] = {
    "a line": lambda g: _line(g, 10.0, 1.5),
    "at the edge": lambda g: _line(g, 5.0, 0.8, 8.5),
    "no link": lambda g: (g.normal(40, 12, 100_000), g.uniform(3, 9, 100_000)),
}


def _line(g: np.random.Generator, slope: float, wide: float, middle: float = 6.0) -> Pairs:
    x = g.normal(middle, wide, 100_000)
    return 20 + slope * (x - 6) + g.normal(0, 5, len(x)), x


def releases(function: AggregateFunction, both: Pairs) -> Pairs:
    """(errors, the stderr that goes with each), by normal noise on the real sums."""
    plan = plan_of(paired(function))
    pick = np.random.default_rng(1)
    noisy = [
        np.rint(v + p.sd[-1] / p.grid * pick.normal(size=TRIALS)).astype(np.int64)
        for v, p in zip(sums_of(plan, both), plan.perturbations, strict=True)
    ]
    column = release_parameters(plan).columns[0]
    released, stderr = finish(column, noisy, np.full(TRIALS, plan.horizon))
    truth = FUNCTIONS[function](np.clip(both[0], *Y), np.clip(both[1], *X))
    return released - truth, stderr


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_intervals_hold_the_truth(function: AggregateFunction, crowd: str) -> None:
    """95%, of 20,000 releases (their own error is 0.15%)."""
    errors, stderr = releases(function, CROWDS[crowd](np.random.default_rng(7)))
    assert 0.94 < np.mean(np.abs(errors) <= Z95 * stderr) < 0.98


def test_errors_without_their_covariance_are_found() -> None:
    """Noise of one sum is in numerator and denominator alike."""
    real = pairs._fieller

    def apart(numerator: np.ndarray, denominator: np.ndarray) -> Pairs:
        padding = np.zeros_like(numerator[1:])
        return real(
            np.concatenate([numerator, padding]),
            np.concatenate([denominator[:1], padding, denominator[1:]]),
        )

    crowd = CROWDS["at the edge"](np.random.default_rng(7))
    errors, stderr = releases(AggregateFunction.REGR_INTERCEPT, crowd)
    with mock.patch.object(pairs, "_fieller", apart):
        _, wrong = releases(AggregateFunction.REGR_INTERCEPT, crowd)
    spread = float(np.std(errors))
    assert float(np.mean(stderr)) == pytest.approx(spread, rel=0.04)
    assert float(np.mean(wrong)) > 1.07 * spread


@pytest.mark.parametrize("function", FUNCTIONS)
def test_of_few_pairs_nothing_is_said(function: AggregateFunction) -> None:
    """A tenth of the error of the count: the middle of the bounds and all between them, or NULL; never a bar that is short."""
    rows = int(plan_of(paired(function)).perturbations[-1].sd[-1] / 10)
    pick = np.random.default_rng(7)
    x = pick.uniform(3, 9, rows)
    errors, stderr = releases(function, (x * 5, x))
    largest = {AggregateFunction.CORR: 1.0, AggregateFunction.COVAR_POP: 40.0 * 3.0}
    is_said = ~np.isnan(errors) & (Z95 * stderr < 0.999 * largest.get(function, math.inf))
    assert np.mean(is_said) < 0.01
    if function in largest:
        assert np.nanmean(~np.isnan(errors)) > 0.9


@pytest.mark.parametrize("function", [SLOPE, AggregateFunction.REGR_INTERCEPT])
def test_a_constant_x_has_no_line(function: AggregateFunction) -> None:
    """2.5% of its variances are above the noise by luck, and few of these are clear. Catches: a variance of noise that is divided by."""
    pick = np.random.default_rng(7)
    errors, _ = releases(function, (pick.uniform(-20, 60, 100_000), np.full(100_000, 5.0)))
    assert np.mean(np.isnan(errors)) > 0.97


def test_of_an_x_that_hardly_varies_bars_hold_the_correlation() -> None:
    """It is 1 here, and noise is most of the variance of x. Catches: a root of what noise alone could be, whose error looks like half of its own."""
    x = np.random.default_rng(7).normal(6, 0.01, 20_000)
    errors, stderr = releases(AggregateFunction.CORR, (20 + 3000 * (x - 6), x))
    assert np.mean(np.abs(errors) <= Z95 * stderr) > 0.94


def test_a_correlation_is_at_most_1() -> None:
    """Catches: a quotient of noisy numbers that is not clamped."""
    x = np.random.default_rng(7).uniform(3, 9, 30_000)
    errors, _ = releases(AggregateFunction.CORR, (x * 6, x))
    assert -2 <= errors.min() < 0 and errors.max() <= 1e-9


def test_sums_of_the_same_values_are_shared() -> None:
    """Six, whatever is asked; a bound that differs shares none. Catches: noise and budget for each column by itself."""
    all_four = [paired(function, function.lower()) for function in FUNCTIONS]
    plan = plan_of(*all_four, COUNT)
    assert [p.noise_stream for p in plan.perturbations] == [1, 2, 3, 4, 5, 6, 7]
    assert check(plan, source()).mu == pytest.approx(plan.mu)
    other = dataclasses.replace(all_four[0], alias="other", x_bounds=(3.0, 10.0))
    assert len(plan_of(*all_four, other).perturbations) == 10


def test_no_pair_moves_its_sums_further_than_the_plan_says() -> None:
    """Over a net of pairs; the corners move all six sums as far as each can be moved. Catches: products or squares with a lower bound than theirs."""
    plan = plan_of(paired(AggregateFunction.CORR))
    net = np.meshgrid(*(np.linspace(low - 9, high + 9, 301) for low, high in (Y, X)))
    rows = pa.table({f"a{i}": values.ravel() for i, values in enumerate(net)})
    moved = np.array([each.increments(rows) for each in bounding_parameters(plan).increments])
    most = np.array([p.upper for p in plan.perturbations])[:, None]
    assert (np.abs(moved) <= most).all() and (np.abs(moved) == most).all(axis=0).any()
    heights = [p.upper * p.grid for p in plan.perturbations]
    assert heights == pytest.approx([120.0, 40.0, 3.0, 4.5, 800.0, 1.0], rel=1e-5)


@pytest.mark.parametrize("place", range(6))
def test_the_accountant_finds_a_sum_with_less_noise(place: int) -> None:
    """0.1% less, and products charged as values of x."""
    plan = plan_of(paired(AggregateFunction.CORR))
    parts = plan.columns[0].perturbations
    check(plan, source())
    for sigma in (parts[place].sigma * 0.999, parts[2].sigma * (1.0 if place == 0 else 0.001)):
        changed = tuple(
            dataclasses.replace(p, sigma=sigma) if i == place else p for i, p in enumerate(parts)
        )
        column = dataclasses.replace(plan.columns[0], perturbations=changed)
        with pytest.raises(AccountingError):
            check(dataclasses.replace(plan, columns=(column,)), source())


QUERY = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_rows_contributed = 1) "
    "REGR_SLOPE(y, x, {0}) AS slope, REGR_INTERCEPT(y, x, {0}) AS at_zero, CORR(y, x, {0}) AS linked, COVAR_POP(y, x, {0}) AS together FROM frame"
).format("contribution_bounds_per_row => ((-20, 60), (3, 9))")


def test_a_frame_has_its_line(tmp_path: Any) -> None:
    """One release, by hand. Catches: arguments in another order than the intake's."""
    y, x = (values[:20_000] for values in CROWDS["a line"](np.random.default_rng(7)))
    frame = pd.DataFrame({"unit": np.arange(len(x)), "y": y, "x": x})
    frame.loc[::5, "x"] = np.nan
    ledger = Ledger(tmp_path / "ledger")
    session = dpsql.session(
        frame, unit="unit", name="frame", secret=Secret(bytes(range(32))), ledger=ledger
    )
    row = session.query(QUERY).rows.iloc[0]
    whole = frame.dropna()
    both = np.clip(whole.y, *Y).to_numpy(), np.clip(whole.x, *X).to_numpy()
    for alias, function in (("slope", SLOPE), ("linked", AggregateFunction.CORR)):
        assert abs(row[alias] - FUNCTIONS[function](*both)) < 4 * row[f"{alias}_stderr"]
        assert row[f"{alias}_stderr"] < 0.1 * abs(row[alias])
