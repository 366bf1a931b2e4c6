"""How often keys of one unit appear, on the real steps with failures made frequent, against theorem 29; and wrong numbers that must be
found. Every key is a trial of its own: its noise is that of its own cells."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.histogram.planner import carried_plan
from dpsql.parts.key_selection import failure_probabilities, thresholds
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.memory import CarriedParameters
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.release import release
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.counters import counter, path_sd
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import Tick
from tests.mechanisms.histogram.test_carried_release import KEY, UNIT

TRIALS = 20_000
BEFORE = 8
"""Windows that close before the first record: ranges reach back to them."""


def planned(
    windows: int, weight: float, least: int, delta: float, triggers: int = 2
) -> ReleaseParameters:
    """The planner's own numbers for one group of a unit, half of delta for own and half for carried tests; nothing is reviewed."""
    chosen = counter("BLT", triggers)
    first = int(weight * UNIT)
    sd = path_sd(chosen)
    plan = carried_plan(windows, first, sd[-1], least, 1, delta / 2)
    own = thresholds((first,), sd, failure_probabilities(delta / 2, triggers), least)
    carried = CarriedParameters(windows, plan.lengths, plan.thresholds, (), NO_CLOCK)
    selection = SelectionParameters(chosen, 1.0, own, least, False, carried)
    column = OutputColumn("count", (0,), (1.0,), ((1.0,) * triggers,))
    grid = Grid(40, 40, 0, 40 // triggers, triggers)
    return ReleaseParameters(
        grid, selection, (PerturbationParameters(1, chosen, 1.0, 1.0),), (column,)
    )


def from_one_weight(p: ReleaseParameters, weight: float, least: int) -> ReleaseParameters:
    """Planted: sums of k windows are compared with a threshold that starts from one window's users."""
    assert p.selection and p.selection.window_tests
    lower = tuple(
        tuple(tau - (k - 1) * least * int(weight * UNIT) for k, tau in enumerate(taus, 1))
        for taus in p.selection.window_tests.thresholds
    )
    return changed(p, thresholds=lower)


def changed(p: ReleaseParameters, **changes: Any) -> ReleaseParameters:
    assert p.selection and p.selection.window_tests
    carried = dataclasses.replace(p.selection.window_tests, **changes)
    return dataclasses.replace(p, selection=dataclasses.replace(p.selection, window_tests=carried))


def appear(p: ReleaseParameters, weight: float, users: dict[int, int]) -> float:
    """Share of the keys that ever appear; `users`: window -> how many have the key there."""
    keys = np.arange(TRIALS, dtype=np.int64)
    tables = []
    for window, many in users.items():
        each = np.full(TRIALS, many, np.int64)
        columns = {
            "window": np.full(TRIALS, (BEFORE + window) * 40),
            "trigger": np.full(TRIALS, 1),
            "key": keys,
        }
        sums = {"weight": each * int(weight * UNIT), "users": each, "v0": each, "batch": each * 0}
        tables.append(
            pa.table(
                columns | {"key_bytes": pa.array([b"%d" % key for key in keys], pa.binary())} | sums
            )
        )
    table = pa.concat_tables(tables).select(
        ["window", "trigger", "key", "key_bytes", "weight", "users", "v0", "batch"]
    )
    assert p.selection and p.selection.window_tests
    end = (BEFORE + max(users) + p.selection.window_tests.windows + 1) * 40
    return (
        len(set(release(None, table, [Tick(0, end)], p, KEY).rows.column("key_bytes").to_pylist()))
        / TRIALS
    )


@pytest.mark.parametrize(("alone", "weight"), [(1, 0.01), (2, 0.3), (7, 0.3)])
def test_a_unit_alone_in_n_windows_appears_no_oftener_than_n_times(
    alone: int, weight: float
) -> None:
    """5 deviations of the count aside. For n = 1 and a weight that is small against the noise at least 0.4 of it: the promise wastes little."""
    delta = 0.02
    found = appear(planned(8, weight, 1, delta), weight, dict.fromkeys(range(alone), 1))
    promised = alone * delta
    assert found <= promised + 5 * (promised / TRIALS) ** 0.5
    if alone == 1:
        assert found >= 0.4 * promised


def test_thresholds_of_one_windows_users_are_found() -> None:
    """Planted 2 and 4: for m = 1, 8 windows of one unit; for m = 3, two others in every window."""
    one = planned(8, 1.0, 1, 0.02)
    assert appear(one, 1.0, dict.fromkeys(range(8), 1)) <= 0.16
    assert appear(from_one_weight(one, 1.0, 1), 1.0, dict.fromkeys(range(8), 1)) > 0.2
    three = planned(8, 0.5, 3, 0.02)
    crowd = dict.fromkeys(range(8), 2) | {7: 3}
    assert appear(three, 0.5, crowd) <= 0.02
    assert appear(from_one_weight(three, 0.5, 3), 0.5, crowd) > 0.1


def test_a_beta_that_is_not_divided_by_the_length_is_found() -> None:
    """Planted 1: 16 ranges of length 16 hold one window of a unit."""
    right = changed(
        planned(16, 0.01, 1, 0.004), lengths=(16,), thresholds=(planned_length(16, 0.01, 0.002),)
    )
    wrong = changed(right, thresholds=(planned_length(16, 0.01, 0.002 * 16),))
    assert appear(right, 0.01, {0: 1}) <= 0.004 + 5 * (0.004 / TRIALS) ** 0.5
    assert appear(wrong, 0.01, {0: 1}) > 0.004 + 5 * (0.004 / TRIALS) ** 0.5


def planned_length(d: int, weight: float, delta: float) -> tuple[int, ...]:
    """tau_(d,k) where d is the only length: its beta is delta / d."""
    from scipy.stats import norm

    k = np.arange(1, d + 1)
    sd = path_sd(counter("BLT", 2))[-1]
    return tuple(
        int(v) for v in np.ceil((k * weight + np.sqrt(k) * sd * norm.isf(delta / d)) * UNIT)
    )
