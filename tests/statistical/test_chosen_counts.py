"""Through the real steps: of all keys with N units that are shown, how many have N inside the interval that is said of them."""

from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import release_parameters
from dpsql.udfs.histogram import perturbation
from dpsql.udfs.histogram.chosen_counts import Excess
from dpsql.udfs.histogram.release import release
from dpsql.udfs.stage import Tick
from tests.property.plans import DAY, USERS, query, source
from tests.statistical.noise import contributions, group_keys, noise_key
from tests.statistical.sampling import FLAKE

KEYS = 12_000
"""Of one size: at 2 deviations below its threshold 2% are shown, 270 keys."""
GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "at once": np.ones_like,
    "slow": lambda share: share,
    "late": lambda share: share**4,
}


def plan(horizon: int, groups: int) -> PrivacyPlan:
    return make_plan(
        query(aggregates=(USERS,), trigger_interval_us=DAY // horizon, max_rows_contributed=groups),
        source(),
    )


def inside(made: PrivacyPlan, deviations: float, growth: str, seed: int) -> np.ndarray:
    """Whether the true number is inside, of each shown key at a window's last trigger; all keys have as many units."""
    assert made.selection is not None
    chosen = made.selection
    true = round(chosen.thresholds[-1] / 2**20 + deviations * chosen.sd[-1])
    share = GROWTH[growth](np.arange(1, made.horizon + 1) / made.horizon)
    counts = np.diff(np.rint(true * share).astype(np.int64), prepend=0)
    keys = np.repeat(np.sort(group_keys(KEYS)), made.horizon)
    triggers = np.tile(np.arange(1, made.horizon + 1), KEYS)
    amounts = np.tile(counts, KEYS)
    rows = contributions(keys, np.zeros(len(keys), np.int64), triggers, amounts << 20, [amounts])
    rows = rows.set_column(rows.column_names.index("users"), "users", pa.array(amounts))
    end = DAY // made.horizon * made.horizon
    out = release(None, rows, [Tick(0, end)], release_parameters(made), noise_key(seed)).rows
    last = out.filter(pa.array(out["trigger"].to_numpy() == made.horizon))
    off = np.abs(last["c0"].to_numpy() - true)
    return off <= 1.959963984540054 * last["s0"].to_numpy() + 1e-9


CASES = [
    (horizon, growth, deviations)
    for horizon, growth in ((1, "at once"), (24, "slow"), (24, "late"))
    for deviations in (-2, -1, 0, 1, 2)
]


def holds_too_seldom(found: np.ndarray, least: float) -> bool:
    """Fewer than `least` of all such keys, for certain."""
    return stats.binom.cdf(int(found.sum()), len(found), least) < FLAKE


@pytest.mark.parametrize(("horizon", "growth", "deviations"), CASES)
def test_shown_keys_have_the_truth_inside(horizon: int, growth: str, deviations: float) -> None:
    """Catches: bars that know nothing of a key's having been chosen because it is large."""
    found = inside(plan(horizon, 1 if deviations % 2 else 4), deviations, growth, 3)
    assert len(found) >= 200
    assert not holds_too_seldom(found, 0.95 if horizon == 1 else 0.925)


def test_plain_bars_are_found() -> None:
    """The value and its deviation as they are, for every key."""

    def plain(sums: np.ndarray, sd: float, excess: Excess) -> tuple[np.ndarray, np.ndarray]:
        return (sums + (1 << 19)) >> 20, np.full(len(sums), sd)

    with mock.patch.object(perturbation, "interval_of", plain):
        assert holds_too_seldom(inside(plan(1, 4), -2, "at once", 3), 0.95)
        assert holds_too_seldom(inside(plan(24, 1), -2, "slow", 3), 0.925)


def test_most_keys_are_far_from_their_threshold_and_have_plain_bars() -> None:
    made = plan(24, 4)
    found = inside(made, 8, "slow", 3)
    assert len(found) == KEYS
    assert 0.94 <= found.mean() <= 0.96
