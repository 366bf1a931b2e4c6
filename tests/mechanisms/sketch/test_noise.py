"""The noise of published cells: as large as planned at every trigger, one path per cell, no word twice. Flake 1e-6, power against 10%."""

from typing import Any

import numpy as np

from dpsql.mechanisms.sketch.plan import SketchPlan, Wanted
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.udfs.noise.counters import counter
from tests.mechanisms.sketch.sketch_runs import ONLY_ASKED, START, Run, cells_of, event
from tests.property.noise_paths import noise_matrix
from tests.property.plans import DAY, HOUR, source
from tests.statistical.sampling import has_covariance, has_sd, independent

TRIGGERS = 24
SUM = Wanted("spent", 0, "seconds", (-3.0, 9.0))


def noise(seed: int = 1, **changes: Any) -> tuple[SketchPlan, np.ndarray]:
    """(plan, cells[trigger - 1, row, column]) of a window without records."""
    plan = make_plan(
        event(
            **(
                {"depth": 3, "width": 2048, "wanted": (ONLY_ASKED,), "trigger_interval_us": HOUR}
                | changes
            )
        ),
        source(),
    )
    run = Run(plan, seed)
    run.tick(START + DAY)
    shown = [cells_of(run.released[0], plan, trigger) for trigger in range(1, TRIGGERS + 1)]
    return plan, np.stack(shown).astype(np.float64)


def test_noise_is_as_large_as_planned() -> None:
    """A planted tenth too little is found, and so is the noise of another trigger (bug 7)."""
    plan, cells = noise()
    for trigger in (1, TRIGGERS - 1, TRIGGERS):
        scaled = cells[trigger - 1].reshape(-1) / np.hypot(plan.cells[0].sd[trigger - 1], 12**-0.5)
        assert has_sd(scaled, 1.0)
        assert not has_sd(scaled * 0.88, 1.0)
    assert not has_sd(cells[-1].reshape(-1), plan.cells[0].sd[0])


def test_a_cell_has_one_path_over_the_triggers() -> None:
    """Covariance over triggers is that of the counter; fresh noise at every trigger (planted) averages away and is found."""
    plan, cells = noise()
    seen = [1, 9, 17, 24]
    paths = np.stack([cells[trigger - 1].reshape(-1) for trigger in seen], axis=1)
    b = noise_matrix(counter("BLT", TRIGGERS)) * plan.cells[0].sigma
    covariance = (b @ b.T)[np.ix_(*[np.array(seen) - 1] * 2)] + np.eye(4) / 12
    assert has_covariance(paths, covariance)
    assert not has_covariance(paths, np.diag(np.diag(covariance)))


def test_rows_columns_sketches_windows_and_runs_are_independent() -> None:
    """One noise tag for two rows (bug 10), or for two sketches, would print the same noise twice: differences would be exact."""
    _, both = noise(wanted=(ONLY_ASKED, SUM))
    _, other = noise(2, wanted=(ONLY_ASKED, SUM))
    last = both[-1]
    flat = [*last, other[-1][0], np.roll(last[0], 1), both[0][0] - both[1][0]]
    for i, one in enumerate(flat[:7]):
        for another in flat[i + 1 : 8]:
            assert not np.array_equal(one, another)
    assert independent(np.concatenate(last[:3]), np.concatenate(last[3:]))
    assert independent(np.concatenate([last[0], last[3]]), np.concatenate([last[1], last[4]]))
    assert independent(np.concatenate(last), np.concatenate(other[-1]))
