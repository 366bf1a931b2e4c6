"""What `dpsql explain` says, measured from outside: 1,000 runs (1,000 noise keys) of the whole chain, records to released rows. `stderr` is
the standard deviation of 10,000 noises (10 keys of each run): 0.7% of standard error, so 5% is 7 of them. `tau` is the number of users at
which a key appears in half of the runs, found by bisection: about 1% of standard error, so 5% is 5 of them. Both are far below 1e-6 for a
true claim; a claim 10% off is rejected as surely."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.histogram.explain import explanation
from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.udfs.histogram.release import release
from dpsql.udfs.intake.contribution_bounding import admit
from dpsql.udfs.stage import Clock, Tick
from tests.property.plans import COUNT, DAY, USERS, query, source
from tests.property.streams import identifier, table
from tests.reference import Record
from tests.statistical.noise import noise_key

T = 4
RUNS = 1_000
INTERVAL = DAY // T
SURE = 10
"""Keys with so many users that they appear at once: their released noise is measured."""


@cache
def plan() -> PrivacyPlan:
    # A small epsilon: well over 100 users are needed, so that 5% is several users
    return make_plan(
        query(
            epsilon=0.5,
            trigger_interval_us=INTERVAL,
            aggregates=(COUNT, USERS),
            max_rows_contributed=2,
        ),
        source(),
    )


def candidates(expected: int) -> list[int]:
    """Numbers of users to try, from 70% to 130% of what explain says."""
    return sorted({round(expected * (0.7 + 0.01 * i)) for i in range(61)})


@dataclass(frozen=True)
class Measured:
    """Shares of runs that show a key with so many users at the first (last) trigger; the noise of COUNT(*) and COUNT(DISTINCT)."""

    first: dict[int, float]
    last: dict[int, float]
    noise: list[np.ndarray]


@cache
def measured() -> Measured:
    """Every user has one record. Keys for the last trigger get theirs in the last interval, so that only there they are tested."""
    first, last = explanation(plan(), source()).keys.units_needed
    groups = [(n, 0, "first") for n in candidates(first.units)]
    groups += [(n, T - 1, "last") for n in candidates(last.units)]
    groups += [(3 * last.units, 0, "sure")] * SURE
    records = []
    truth = {}
    for name, (users, interval, kind) in enumerate(groups):
        key = identifier(10**9 + name)
        records += [
            Record(identifier(len(records) + i), interval * INTERVAL + i, key) for i in range(users)
        ]
        truth[records[-1].key_bytes] = (users, kind)
    rows = admit(None, table(records), Clock(), bounding_parameters(plan())).contributions
    rows = rows.append_column("batch", pa.array(np.zeros(rows.num_rows, np.int64)))
    p = release_parameters(plan())
    seen: dict[str, Counter[int]] = {"first": Counter(), "last": Counter(), "sure": Counter()}
    noise: list[list[int]] = [[], []]
    for run in range(RUNS):
        out = release(None, rows, [Tick(0, DAY)], p, noise_key(run)).rows
        for trigger, name, count, users in zip(
            *(out.column(n).to_pylist() for n in ("trigger", "key_bytes", "c0", "c1")), strict=True
        ):
            exact, kind = truth[name]
            if trigger == {"first": 1, "last": T, "sure": 1}[kind]:
                seen[kind][exact] += 1
                if kind == "sure":
                    noise[0].append(count - exact)
                    noise[1].append(users - exact)
    shares = {
        kind: {n: seen[kind][n] / RUNS for n, _, k in groups if k == kind}
        for kind in ("first", "last")
    }
    return Measured(shares["first"], shares["last"], [np.array(column, float) for column in noise])


def bisect(share: dict[int, float]) -> int:
    """The number of users at which a key appears in half of the runs."""
    tried = sorted(share)
    low = 0
    high = len(tried) - 1
    assert share[tried[low]] < 0.5 < share[tried[high]]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share[tried[middle]] < 0.5 else (low, middle)
    return tried[high]


@pytest.mark.parametrize(("column", "name"), [(0, "views"), (1, "visitors")])
def test_sigma_is_what_explain_says(column: int, name: str) -> None:
    """At the first trigger the path is one strategy step. Catches: sigma without the column norm, per-column shares mixed up, a count
    that is said to have its own noise alone."""
    stated = explanation(plan(), source()).columns[column]
    assert stated.alias == name
    noise = measured().noise[column]
    assert len(noise) == RUNS * SURE
    (number,) = plan().columns[column].perturbations
    assert isinstance(number, PerturbationPlan) and number.on_selection
    assert float(np.sqrt(np.mean(noise**2))) == pytest.approx(number.sd[0], rel=0.05)
    assert float(np.sqrt(np.mean(noise**2))) == pytest.approx(stated.errors[0].stderr, rel=0.05)


@pytest.mark.parametrize(("which", "place"), [("first", 0), ("last", -1)])
def test_a_key_appears_in_half_of_the_runs_with_the_users_explain_says(
    which: str, place: int
) -> None:
    """Catches: thresholds of another trigger, weights not those of a first key, selection noise of another size or never applied."""
    stated = explanation(plan(), source()).keys.units_needed[place].units
    assert bisect(getattr(measured(), which)) == pytest.approx(stated, rel=0.05)


def test_the_share_rises_with_the_users_and_as_slowly_as_the_noise() -> None:
    """At two standard deviations of the path below and above tau, 2% and 98% of the runs show the key: so sd is measured as well."""
    selection = plan().selection
    assert selection is not None
    for share, trigger in ((measured().first, 1), (measured().last, T)):
        middle = selection.users_needed(trigger)
        sd = selection.sd[trigger - 1] / (selection.weights[0] / 2**20)
        for offset, expected in ((-2, 0.0228), (-1, 0.1587), (1, 0.8413), (2, 0.9772)):
            assert (
                abs(share[min(share, key=lambda n: abs(n - (middle + offset * sd)))] - expected)
                < 0.12
            )
