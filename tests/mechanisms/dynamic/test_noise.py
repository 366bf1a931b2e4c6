"""The noise that a table releases: as large as stderr says, one path over all its triggers. Testers of tests/statistical: flake 1e-6, power
against 10%."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.dynamic.explain import explanation
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.mechanisms.dynamic.stages import stages
from dpsql.udfs.histogram.release import Tick
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.table.release import Perturbation, Selection, TableParameters, release
from dpsql.udfs.table_grid import TableGrid
from tests.mechanisms.dynamic import plans
from tests.mechanisms.dynamic.reference import toeplitz
from tests.mechanisms.dynamic.test_release import COUNT, START, STEP
from tests.property.plans import COUNT as COUNT_ROWS
from tests.property.plans import SUM
from tests.statistical.noise import CERTAIN, contributions, group_keys, noise_key
from tests.statistical.sampling import PAIRS, has_covariance, has_sd, independent

LAST = 12
SIGMA = 40.0
LATE = 300
"""Keys that appear only then have caught up in one go."""


@cache
def measured(late: bool, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(noise[key, trigger], stderr[trigger]) of triggers 1..LAST, or of LAST triggers from LATE on."""
    counter = BltInf()
    first = LATE if late else 1
    selection = Selection(counter, 1.0, (1,), (1 << 20,), (0,), 1)
    p = TableParameters(
        TableGrid.from_start(START, STEP),
        selection,
        (Perturbation(1, counter, SIGMA, 1.0),),
        (COUNT,),
    )
    keys = np.sort(group_keys(PAIRS))
    ones = np.ones(PAIRS, np.int64)
    rows = contributions(keys, 0 * ones, ones * first, ones * CERTAIN, [1000 * np.arange(PAIRS)])
    out = release(None, rows, [Tick(0, START + STEP * (first + LAST - 1))], p, noise_key(seed)).rows
    values = (
        out.column("c0").to_numpy().astype(np.float64).reshape(LAST, PAIRS).T
        - 1000 * np.arange(PAIRS)[:, None]
    )
    return values, out.column("s0").to_numpy().reshape(LAST, PAIRS)[:, 0]


def covariance(first: int) -> np.ndarray:
    """B B^T at the measured triggers, dense, from the power series; and the rounding."""
    size = first + LAST - 1
    b = toeplitz(BltInf().theta, BltInf().omega, size)
    matrix = np.array([[b[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])[
        first - 1 :
    ]
    return SIGMA**2 * matrix @ matrix.T + np.eye(LAST) / 12


@pytest.mark.parametrize("late", [False, True])
def test_noise_is_as_large_as_stderr_says(late: bool) -> None:
    """Catches: sigma left out, stderr of another trigger, f counted twice. A planted tenth too little is found."""
    noise, stderr = measured(late)
    for trigger in (0, LAST - 1):
        assert has_sd(noise[:, trigger], stderr[trigger])
        assert not has_sd(noise[:, trigger] * 0.9, stderr[trigger])


@pytest.mark.parametrize("late", [False, True])
def test_covariance_over_time_is_that_of_the_counter(late: bool) -> None:
    """Catches: fresh noise at every trigger, which averages away; noise that starts anew when a key appears (planted)."""
    noise, _ = measured(late)
    expected = covariance(LATE if late else 1)
    assert has_covariance(noise, expected)
    assert not has_covariance(noise, np.diag(np.diag(expected)))
    if late:
        assert not has_covariance(noise, covariance(1))


def test_keys_and_runs_are_independent() -> None:
    noise, _ = measured(False)
    other, _ = measured(False, 2)
    assert independent(noise[:, 3], other[:, 3])
    assert independent(noise[::2, 3], noise[1::2, 3])


def test_figures_of_explain_are_those_of_10_000_paths() -> None:
    """Both steps of a plan, 10,000 listed keys: standard errors as `explain` tells them, within 3%. A planted 5% are found."""
    listed = PublicGroups(
        tuple(range(10_000)), tuple(b"%05d" % key for key in range(10_000)), plans.START
    )
    asked = {
        "public_groups": "SELECT page FROM pages",
        "aggregates": (COUNT_ROWS, SUM),
        "feed": plans.FEED,
    }
    plan = make_plan(plans.query(**asked), plans.source())
    stage = stages(plan, listed)[1]
    rows = stage.step(
        stage.empty(),
        stage.takes.empty_table(),
        [Tick(0, plans.START + 100 * plans.HOUR)],
        noise_key(7),
    ).rows
    columns = explanation(plan, plans.source()).columns
    for trigger in (1, 10, 100):
        of_trigger = rows.filter(pa.array(rows["trigger"].to_numpy() == trigger))
        for i, column in enumerate(columns):
            (told,) = [each.stderr for each in column.errors if each.trigger == trigger]
            assert told is not None
            found = np.sqrt(np.mean(of_trigger[f"c{i}"].to_numpy().astype(np.float64) ** 2))
            assert found == pytest.approx(told, rel=0.03)
            assert found != pytest.approx(1.05 * told, rel=0.03)
