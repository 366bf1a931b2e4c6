"""The noise of published cells: as large as planned at every refresh cycle, one path per cell, no word twice. Flake 1e-6, power against 10%."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpsql.mechanisms.sketch.asked import Wanted
from dpsql.mechanisms.sketch.plan import SketchPlan
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.udfs.noise.counters import counter, noise_matrix
from dpsql.udfs.sketch.refresh import Schedule
from tests.mechanisms.sketch.sketch_runs import COUNT, START, Run, cells_of, event
from tests.property.plans import DAY, HOUR, source
from tests.statistical.sampling import has_covariance, has_sd, independent

TRIGGERS = 24
SUM = Wanted("spent", 3, "seconds", (-3.0, 9.0))


def noise(cycle: int, seed: int = 1, **changes: Any) -> tuple[SketchPlan, np.ndarray]:
    """(plan, cells[trigger - 1, row, column]) of a window without records."""
    plan = make_plan(event(depth=3, width=2048, cycle=cycle, strategy=None, trigger_interval_us=HOUR, **changes), source())
    run = Run(plan, seed)
    run.tick(START + DAY)
    shown = [cells_of(run.released[0], plan, trigger) for trigger in range(1, TRIGGERS + 1)]
    return plan, np.stack(shown).astype(np.float64)


@pytest.mark.parametrize("cycle", [1, 2, 8])
def test_noise_is_as_large_as_planned(cycle: int) -> None:
    """Every column by its number of refreshes; a planted tenth too little is found, and so is the step of the trigger (bug 7)."""
    plan, cells = noise(cycle)
    sd, schedule = plan.cells[0].sd, Schedule(TRIGGERS, cycle)
    for trigger in (cycle, TRIGGERS - 1, TRIGGERS):
        scaled = []
        for block in range(cycle):
            count = schedule.count(block, trigger)
            mine = cells[trigger - 1, :, block::cycle].reshape(-1)
            if not count:
                assert not mine.any()
            else:
                scaled.append(mine / np.hypot(sd[count - 1], 12**-0.5))
        flat = np.concatenate(scaled)
        assert has_sd(flat, 1.0)
        assert not has_sd(flat * 0.88, 1.0)
    if cycle == 8:
        assert schedule.horizon == 4
        assert not has_sd(cells[-1].reshape(-1), noise(1)[0].cells[0].sd[-1])  # noise for as many steps as triggers


def test_a_cell_has_one_path_over_its_refreshes() -> None:
    """Covariance over refreshes is that of the counter; fresh noise at every refresh (planted) averages away and is found."""
    plan, cells = noise(8)
    block = 1  # refreshed at 1, 9, 17 and 24
    paths = np.stack([cells[trigger - 1, :, block::8].reshape(-1) for trigger in (1, 9, 17, 24)], axis=1)
    more = [noise(8, seed)[1] for seed in range(2, 9)]
    paths = np.concatenate([paths, *(np.stack([c[t - 1, :, block::8].reshape(-1) for t in (1, 9, 17, 24)], axis=1) for c in more)])
    b = noise_matrix(counter("BLT", 4)) * plan.cells[0].sigma
    covariance = b @ b.T + np.eye(4) / 12
    assert has_covariance(paths, covariance)
    assert not has_covariance(paths, np.diag(np.diag(covariance)))


def test_rows_columns_sketches_windows_and_runs_are_independent() -> None:
    """One noise tag for two rows (bug 10), or for two sketches, would print the same noise twice: differences would be exact."""
    _, both = noise(1, wanted=(COUNT, SUM))
    _, other = noise(1, 2, wanted=(COUNT, SUM))
    last = both[-1]
    flat = [*last, other[-1][0], np.roll(last[0], 1), both[0][0] - both[1][0]]
    for i, one in enumerate(flat[:7]):
        for another in flat[i + 1 : 8]:
            assert not np.array_equal(one, another)
    assert independent(np.concatenate(last[:3]), np.concatenate(last[3:]))
    assert independent(np.concatenate([last[0], last[3]]), np.concatenate([last[1], last[4]]))
    assert independent(np.concatenate(last), np.concatenate(other[-1]))
