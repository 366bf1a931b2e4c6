"""STDDEV and VARIANCE: the truth without noise, errors that are those of repeated releases, and planted mistakes that both find."""

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
from dpsql.errors import AccountingError, ConfigError
from dpsql.mechanisms.histogram.accounting import check
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.parsed_query import Aggregate, AggregateFunction
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source, Sources
from dpsql.text import Z95
from dpsql.udfs.histogram.perturbation import finish
from dpsql.udfs.measure import output_columns
from dpsql.udfs.measure.output_columns import combine, variance
from tests.property.plans import HOUR, query, source

LOW = -20.0
HIGH = 60.0
FUNCTIONS = {
    AggregateFunction.VAR_POP: np.var,
    AggregateFunction.VAR_SAMP: lambda x: np.var(x, ddof=1),
    AggregateFunction.STDDEV_POP: np.std,
    AggregateFunction.STDDEV_SAMP: lambda x: np.std(x, ddof=1),
}
TRIALS = 40_000


@cache
def plan_of(function: AggregateFunction) -> PrivacyPlan:
    return make_plan(
        query(aggregates=(Aggregate("spread", function, "seconds", (LOW, HIGH)),)), source()
    )


def sums_of(plan: PrivacyPlan, values: np.ndarray) -> list[int]:
    """What the real increments of the values add up to."""
    rows = pa.table({"a0": pa.array(values, pa.float64())})
    return [
        int(increment.increments(rows).sum()) for increment in bounding_parameters(plan).increments
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [2, 7, 1000])
def test_without_noise_it_is_that_of_the_clamped_values(
    function: AggregateFunction, size: int
) -> None:
    """NULL adds nothing, infinity is clamped. Catches: squares of values that are not clamped, an offset per record forgotten."""
    plan = plan_of(function)
    generator = np.random.default_rng(size)
    values = np.concatenate([generator.normal(10, 25, size), [np.nan, np.inf, -np.inf, 1e200]])
    known = np.clip(values[~np.isnan(values)], LOW, HIGH)
    released, _ = combine(
        release_parameters(plan).columns[0],
        [np.array([v]) for v in sums_of(plan, values)],
        [np.zeros(1)] * 3,
    )
    assert released[0] == pytest.approx(FUNCTIONS[function](known), rel=1e-5)


def releases(function: AggregateFunction, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(errors, the stderr that goes with each), by normal noise on the real sums."""
    plan = plan_of(function)
    generator = np.random.default_rng(1)
    sds = [p.sd[-1] / p.grid for p in plan.perturbations]
    noisy = [
        np.rint(v + sd * generator.normal(size=TRIALS)).astype(np.int64)
        for v, sd in zip(sums_of(plan, values), sds, strict=True)
    ]
    released, stderr = finish(
        release_parameters(plan).columns[0], noisy, np.full(TRIALS, plan.horizon)
    )
    return released - FUNCTIONS[function](np.clip(values, LOW, HIGH)), stderr


def off(function: AggregateFunction, values: np.ndarray) -> tuple[float, float]:
    """(root of the mean squared error over trials, the mean stderr)."""
    errors, stderr = releases(function, values)
    return math.sqrt(float(np.mean(errors**2))), float(np.mean(stderr))


CROWDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "in the middle": lambda g: g.normal(20, 12, 20_000),
    "at the edge": lambda g: g.normal(55, 3, 150_000),
    "two heaps": lambda g: np.where(g.random(20_000) < 0.5, -18.0, 55.0),
}


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("function", [AggregateFunction.VAR_POP, AggregateFunction.VAR_SAMP])
def test_the_stderr_is_that_of_repeated_releases(function: AggregateFunction, crowd: str) -> None:
    """Within 3% of 40,000 releases (their own error is 0.4%)."""
    found, said = off(function, CROWDS[crowd](np.random.default_rng(7)))
    assert said == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_intervals_hold_the_truth(function: AggregateFunction, crowd: str) -> None:
    """95%, of 40,000 releases (their own error is 0.1%). Catches: the delta method near 0, which has 88% of deviations at the edge."""
    errors, stderr = releases(function, CROWDS[crowd](np.random.default_rng(7)))
    assert 0.94 < np.mean(np.abs(errors) <= Z95 * stderr) < 0.985


def test_intervals_of_equal_values_hold_0() -> None:
    """There the variance is 0 or noise, and its root no number with a normal error."""
    errors, stderr = releases(AggregateFunction.STDDEV_POP, np.full(20_000, 20.0))
    assert 0.94 < np.mean(np.abs(errors) <= Z95 * stderr) < 0.985


SHAPES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "in the middle": lambda g: g.normal(0, 0.3, 400),
    "at the edge": lambda g: -1 + g.exponential(0.1, 400),
    "at the bound": lambda g: np.ones(400),
    "two heaps": lambda g: np.where(g.random(400) < 0.5, -0.95, 0.9),
    "equal": lambda g: np.zeros(400),
    "long tail": lambda g: -1 + g.lognormal(-2, 1.2, 400),
}
SIZES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    **{
        f"{size} errors": lambda g, size=size: np.full(3000, 10.0 * size)
        for size in (0.2, 1, 2, 3, 5, 8, 20)
    },
    "1 to 100 errors": lambda g: g.uniform(10, 1000, 3000),
    "Zipf": lambda g: 5 / np.sqrt(g.random(3000)),
    "steep": lambda g: 5 + g.exponential(8, 3000),
}
"""True counts of groups; the noise of a count is 10 rows. Of the last two fewer than one in 10 counts is above 3 errors."""
CLEAR = ("8 errors", "20 errors", "1 to 100 errors")
NOISE = 10.0, 5.0, 10.0
"""Of centred values from -1 to 1, of squares less 1/2, and of counts, as planned."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """True numbers of groups, 15 times, and noisy sums of theirs: of an average, and of a deviation."""

    mean: float
    deviation: float
    average: tuple[np.ndarray, np.ndarray]
    spread: tuple[np.ndarray, np.ndarray, np.ndarray]

    @classmethod
    def of(cls, shape: str, sizes: str) -> "Groups":
        g = np.random.default_rng(5)
        values = np.clip(SHAPES[shape](g), -1, 1)
        n = np.repeat(np.rint(SIZES[sizes](g)), 15)
        total = n * values.mean()
        squares = n * (np.mean(values**2) - 0.5)
        s, q, *others = (sd * g.normal(size=len(n)) for sd in (*NOISE, NOISE[0], NOISE[2]))
        return cls(
            values.mean(),
            values.std(),
            (total + others[1], n + others[2]),
            (total + s, squares + q, n + others[0]),
        )

    def held(self, shown: float = -np.inf) -> tuple[float, float]:
        """Shares of intervals of averages and of deviations that hold the truth, of counts that are so many errors at least."""
        found = []
        for column, sums, truth in (
            (AVERAGE, self.average, self.mean),
            (DEVIATION, self.spread, self.deviation),
        ):
            value, stderr = combine(
                column, list(sums), [*NOISE] if len(sums) > 2 else [NOISE[0], NOISE[2]]
            )
            inside = np.abs(value - truth) <= Z95 * stderr + 1e-9
            found.append(float(np.mean(inside[(sums[-1] >= shown * NOISE[2]) & ~np.isnan(value)])))
        return found[0], found[1]


AVERAGE = output_columns.OutputColumn("avg", (0, 1), (1.0, 1.0), (), (-1.0, 1.0))
DEVIATION = output_columns.OutputColumn(
    "deviation", (0, 1, 2), (1.0,) * 3, (), (-1.0, 1.0), offset=0.5
)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_of_few_rows_hold_the_truth(shape: str, sizes: str) -> None:
    """95%; and no more than 98% of averages where most bars are clear of the bounds. Catches: errors of first order, and of half the bounds for all."""
    averages, deviations = Groups.of(shape, sizes).held()
    assert averages > 0.95 and deviations > 0.96
    if sizes in CLEAR:
        assert averages < 0.98


@pytest.mark.parametrize("sizes", ["Zipf", "steep"])
def test_values_that_their_noise_has_chosen_are_found(sizes: str) -> None:
    """Errors of first order of counts of 5 errors or more, where most counts are small; and ours, were they withheld below 3."""
    groups = Groups.of("at the edge", sizes)
    total, count = groups.average
    shown = count >= 5 * NOISE[2]
    quotient = total / count
    first_order = np.hypot(NOISE[0], quotient * NOISE[2]) / count
    assert np.mean(np.abs(quotient - groups.mean)[shown] <= Z95 * first_order[shown]) < 0.92
    assert groups.held(shown=3)[0] < 0.92


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_forgotten_error_is_found(place: int) -> None:
    """Each of the three. Catches: a test of errors that would pass without one of them."""
    crowd = CROWDS["at the edge" if place == 0 else "in the middle"](np.random.default_rng(7))

    def without(*given: Any) -> tuple[np.ndarray, np.ndarray]:
        return variance(
            *(
                ((value, 0.0 * error) if i == place else (value, error))
                for i, (value, error) in enumerate(given[:3])
            ),
            *given[3:],
        )

    with mock.patch.object(output_columns, "variance", without):
        found, said = off(AggregateFunction.VAR_POP, crowd)
    assert said < 0.97 * found, place


def test_the_accountant_finds_too_little_noise_on_squares() -> None:
    """0.1% less; and a sensitivity of values in the place of that of their squares."""
    plan = plan_of(AggregateFunction.STDDEV_POP)
    check(plan, source())
    squares = plan.columns[0].perturbations[1]
    assert squares.rule == "squares"
    for sigma in (squares.sigma * 0.999, plan.columns[0].perturbations[0].sigma):
        parts = tuple(
            dataclasses.replace(p, sigma=sigma) if p is squares else p
            for p in plan.columns[0].perturbations
        )
        wrong = dataclasses.replace(
            plan, columns=(dataclasses.replace(plan.columns[0], perturbations=parts),)
        )
        with pytest.raises(AccountingError):
            check(wrong, source())


def test_no_square_moves_its_sum_further_than_the_plan_says() -> None:
    """Over a fine net of values, the ends and all that is clamped. Catches: an offset that is not the middle, a clamp left out."""
    plan = plan_of(AggregateFunction.VAR_POP)
    values = np.concatenate(
        [np.linspace(LOW - 5, HIGH + 5, 100_001), [np.inf, -np.inf, 1e308, -1e308, 0.0, np.nan]]
    )
    rows = pa.table({"a0": pa.array(values, pa.float64())})
    p = plan.perturbations[1]
    moved = bounding_parameters(plan).increments[1].increments(rows)
    assert np.abs(moved).max() == p.upper == -p.lower
    assert p.upper * p.grid == pytest.approx(((HIGH - LOW) / 2) ** 2 / 2, rel=1e-5)


def test_bounds_whose_squares_are_no_numbers_are_refused() -> None:
    wide = Aggregate("spread", AggregateFunction.VAR_POP, "seconds", (0.0, 1e99))
    with pytest.raises(ConfigError, match="their squares leave the range of numbers"):
        make_plan(query(aggregates=(wide,)), source())


def run(tmp_path) -> pd.DataFrame:
    """200 keys of 400 units each, all with the same values."""
    users = 400
    keys = 200
    values = np.random.default_rng(3).normal(30, 12, users)
    frame = pd.DataFrame(
        {
            "user_id": [f"{key}-{user}" for key in range(keys) for user in range(users)],
            "page": [f"p{key}" for key in range(keys) for _ in range(users)],
            "seconds": np.tile(values, keys),
            "ts": pd.Timestamp("2026-01-01 06:00", tz="UTC"),
        }
    )
    schema = "user_id STRING, page STRING, seconds DOUBLE, ts TIMESTAMP"
    visits = Source(
        name="visits",
        format="parquet",
        path="visits",
        schema=schema,
        event_time="ts",
        privacy_unit=("user_id",),
    )
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 10, delta = 9e-6, privacy_unit_column = user_id, max_rows_contributed = 1) page, "
        "STDDEV(seconds, contribution_bounds_per_row => (0, 60)) AS spread, VAR_POP(seconds, contribution_bounds_per_row => (0, 60)) AS small "
        "FROM visits GROUP BY window(ts, '1 day'), page"
    )
    query = dpsql.compile(text, Sources((visits,)))
    until = int(pd.Timestamp("2026-01-02", tz="UTC").value // 1000) + HOUR
    rows = dpsql.run_local(
        query, frame, Secret(bytes(range(32))), until_us=until, ledger=Ledger(tmp_path / "ledger")
    )
    clamped = np.clip(values, 0, 60)
    return rows.assign(spread_true=np.std(clamped, ddof=1), small_true=np.var(clamped))


def scores(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    z = (rows[name] - rows[f"{name}_true"]) / rows[f"{name}_stderr"]
    return float(z.mean()) * math.sqrt(len(z)), float(z.std())


def test_a_whole_run_is_off_by_its_stderr(tmp_path) -> None:
    """Of 200 keys: 4.5 errors of a mean, a quarter of a spread. Both find an offset that is not added back."""
    rows = run(tmp_path)
    assert len(rows) == 200
    for name in ("spread", "small"):
        mean, spread = scores(rows, name)
        assert abs(mean) < 4.5 and 0.75 < spread < 1.25, (name, mean, spread)


def test_a_forgotten_offset_is_found(tmp_path) -> None:
    with mock.patch.object(
        output_columns, "variance", lambda *given: variance(*given[:3], 0.9 * given[3], *given[4:])
    ):
        rows = run(tmp_path)
    assert abs(scores(rows, "small")[0]) > 4.5
