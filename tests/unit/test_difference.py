"""The error of a difference against noise that was drawn, and the places of keys against their true order."""

from dataclasses import replace

import numpy as np
import pytest

from dpsql.description import Measure, NoiseKind, Published
from dpsql.parsed_query import AggregateFunction
from dpsql.udfs.noise.counters import counter
from dpsql.view.difference import between_triggers, between_windows, difference, places
from tests.described import described
from tests.property.noise_paths import noise_matrix

T = 13


def said(name: str, grid: float | None = 1.0, horizon: int | None = T) -> Published:
    measures = (Measure("views", AggregateFunction.COUNT_ROWS, True, None, grid),)
    return replace(
        described(["window_start", "views", "views_stderr"]),
        noise=NoiseKind(name, horizon),
        measures=measures,
    )


@pytest.mark.parametrize("name", ["BLT", "HONAKER"])
def test_the_error_of_a_change_is_that_of_the_counters_own_matrix(name: str) -> None:
    b = noise_matrix(counter(name, T))
    sd = np.linalg.norm(b, axis=1)
    for one in range(1, T + 1):
        for other in range(1, T + 1):
            made = difference(
                10.0,
                sd[one - 1],
                7.0,
                sd[other - 1],
                between_triggers(said(name), "views", one, other),
            )
            assert made.value == 3.0 and not made.at_most
            assert made.stderr == pytest.approx(
                np.linalg.norm(b[one - 1] - b[other - 1]), rel=1e-6, abs=1e-6
            )
    # Taken for independent, the error of a step would be far too large
    assert np.hypot(sd[-1], sd[-2]) > 1.4 * np.linalg.norm(b[-1] - b[-2])


def test_where_the_plan_says_too_little_the_error_is_bounded() -> None:
    rng = np.random.default_rng(1)
    assert (
        between_triggers(said("PANES", horizon=None), "views", 1, 2) is None
        and between_windows(said("PANES", horizon=None)) is None
    )
    assert between_triggers(said("BLT", grid=None), "views", 1, 2) is None  # an average
    assert between_triggers(said("BLT"), "clicks", 1, 2) is None
    assert between_windows(said("BLT")) == 0.0
    for _ in range(200):
        a, b = rng.normal(size=(2, 5))
        made = difference(0.0, float(np.linalg.norm(a)), 0.0, float(np.linalg.norm(b)), None)
        assert made.at_most and made.stderr >= np.linalg.norm(a - b) - 1e-12


def test_a_difference_is_real_beyond_its_error() -> None:
    assert difference(10.0, 3.0, 0.0, 4.0, 0.0).real()  # 10 against 1.96 * 5
    assert not difference(9.7, 3.0, 0.0, 4.0, 0.0).real()


def covered(shrunk: float, trials: int = 400) -> float:
    """How often the true place of the key that is hit worst lies between its bounds; `shrunk` errors are what a wrong stderr would be."""
    rng = np.random.default_rng(7)
    true = np.concatenate([np.arange(40) * 2.0, [300.0, 301.0, 500.0]])
    place = len(true) - np.argsort(np.argsort(true))
    hits = np.zeros(len(true))
    for _ in range(trials):
        noisy = true + rng.normal(0, 3.0, len(true))
        best, worst = places(noisy, np.full(len(true), 3.0 * shrunk), len(true))
        order = np.argsort(-noisy, kind="stable")
        hits[order] += (best <= place[order]) & (place[order] <= worst)
    return float(hits.min()) / trials


def test_every_key_s_place_is_covered() -> None:
    """400 draws; at 95% fewer than 92% have a probability below 1% per key, and the bounds of Bonferroni are wider than 95%."""
    assert covered(1.0) >= 0.95
    assert covered(0.25) < 0.9  # the same test tells bounds that are too narrow


def test_places_of_clear_equal_and_missing_values() -> None:
    best, worst = places(np.array([5.0, 100.0, np.nan, 5.0]), np.array([1.0, 1.0, 1.0, 1.0]), 4)
    assert best.tolist() == [1, 2, 2, 4] and worst.tolist() == [1, 3, 3, 4]
    best, worst = places(np.array([3.0]), np.array([1.0]), 4)
    assert best.tolist() == [1] and worst.tolist() == [1]
    best, worst = places(np.arange(1000.0), np.ones(1000), 600)
    assert len(best) == 600 and (best[1:] >= best[:-1]).all() and (worst >= best).all()
