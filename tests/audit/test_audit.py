"""Lower bounds on what the real steps cost, at 95% confidence, against the promise; and planted bugs, which must be caught. Noise keys are
fixed, so that the outcome is. `benchmarks/audit.py --full` runs the same tables with ten times the trials."""

import math
from unittest import mock

import numpy as np
import pytest
from scipy.stats import binom, norm

import dpsql.udfs.noise.randomness
from dpsql.parts.left_out import mu_beside
from dpsql.udfs.intake.contribution_bounding import admit
from dpsql.udfs.stage import Clock
from tests.audit.auditing import audit
from tests.audit.bounds import LEVEL, at_least, at_most, found
from tests.audit.bugs import BUGS, BY_NAME
from tests.audit.ideal import mu_of_paths
from tests.audit.scenarios import SCENARIOS, Crowd, Scenario, Visit, plan_of
from tests.audit.trials import Bug, crowd_rows, experiment, parameters, records, run

TRIALS = 20_000
"""A side. Bounds on mu are then expected 0.05 below the truth; every planted bug is caught with the power that is tested below."""

DRAWS = 50_000


def name(value: Scenario | Bug) -> str:
    return value.name


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_no_bound_is_beyond_the_promise(scenario: Scenario) -> None:
    """And the bounds come as close to the truth as so many trials allow: an audit that has lost its sight fails too."""
    result = audit(scenario, TRIALS, draws=DRAWS)
    assert result.kept, result
    assert result.found.mu >= result.mu.expected - 4 * result.mu.spread
    assert result.found.delta >= result.delta.expected - 4 * result.delta.spread


@pytest.mark.parametrize("bug", BUGS, ids=name)
def test_planted_bugs_are_caught(bug: Bug) -> None:
    result = audit(bug.scenario, TRIALS, bug, draws=DRAWS)
    assert not result.kept, result
    _, errors, power = result.beyond
    assert errors > 5
    assert power > 0.99


def test_scenarios_reach_what_they_are_meant_to_reach() -> None:
    """Where everything is shown, the paths alone carry the whole mu of the perturbations; the released tree shows less than its nodes."""
    shares = {
        s.name: mu_of_paths(experiment(s)) / mu_beside(plan_of(s).left_out, plan_of(s).mu)
        for s in SCENARIOS
    }
    perturbation = np.sqrt(1 - 0.05)
    for full in ("C records in one key", "C = 8, c = 4, G = 2"):
        assert shares[full] == pytest.approx(
            perturbation, abs=0.01
        )  # the rounding of counts hides the rest
    for whole in ("public groups", "C records in C keys, c = 1"):
        assert shares[whole] == pytest.approx(1.0, abs=0.01)
    for several in ("AVG", "three windows of a STREAM period", "rounds, all selected"):
        assert shares[several] == pytest.approx(perturbation, abs=0.01)
    assert shares["COUNT, COUNT(DISTINCT), SUM"] == pytest.approx(1.0, abs=0.01)
    assert shares["many records in one key, c = 1"] == pytest.approx(0.5, abs=0.01)
    assert shares["many records in one key, c = 2"] == pytest.approx(
        perturbation / math.sqrt(2), abs=0.01
    )
    assert 0.85 < shares["the same, tree"] < perturbation
    assert shares["a record far in the future"] == 0


def test_noise_of_two_rounds_is_independent() -> None:
    """A round whose noise ignores its number keeps the promise of the scenarios above by its margins, so it is caught here. Crowds at their
    thresholds at every trigger: selection at trigger 2 after selection at trigger 1 is a fair coin; if the second round continued the first
    round's path, about three of four would be selected again. 20,000 coins: a deviation of 0.5 +- 0.02."""
    scenario = Scenario(
        "two rounds",
        dict(BY_NAME["rounds at their thresholds"].query),
        (Visit(0, 0.5),),
        crowds=(Crowd(0, 1, 10, 1.0), Crowd(0, 2, 10, 1.0)),
    )
    e = experiment(scenario)

    def again() -> float:
        pattern = run(e, TRIALS, False, 1).pattern[0]
        first = pattern & 1 == 1
        return float(np.mean(pattern[first] >> 1 & 1))

    assert again() == pytest.approx(0.5, abs=0.02)
    normals = dpsql.udfs.noise.randomness.normals

    def of_round_0(key, tag, mechanism, _round, step, number=0):  # type: ignore[no-untyped-def]
        return normals(key, tag, mechanism, 0, step, number)

    with mock.patch.object(dpsql.udfs.noise.randomness, "normals", of_round_0):
        assert again() > 0.6


@pytest.mark.parametrize(
    "scenario", ["C records in one key", "COUNT, COUNT(DISTINCT), SUM", "three sliding windows"]
)
def test_crowds_are_what_admission_gives(scenario: str) -> None:
    plan = plan_of(BY_NAME[scenario])
    b, _ = parameters(BY_NAME[scenario], plan, 1)
    crowd = Crowd(0, 2, 7, None)
    others = records([Visit(0, 1.5, value=0.0)] * 7, range(7), 1, len(plan.arguments))
    admitted = admit(None, others, Clock(), b).contributions.to_pylist()
    assert crowd_rows(crowd, plan, b, 1).to_pylist()[0] in admitted
    assert sum(row["users"] for row in admitted) == 7 * plan.windows_per_record


def test_limits_are_clopper_pearson() -> None:
    for hits in (0, 1, 17, 99, 100):
        low = float(at_least(np.array(hits), 100))
        high = float(at_most(np.array(hits), 100))
        assert hits == 0 or binom.sf(hits - 1, 100, low) == pytest.approx(LEVEL)
        assert hits == 100 or binom.cdf(hits, 100, high) == pytest.approx(LEVEL)


def test_bounds_of_a_gaussian_are_below_the_truth_and_near_it() -> None:
    generator = np.random.default_rng(3)
    mu = 1.0
    epsilon = 1.0
    delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    bounds = [
        found(generator.normal(mu, 1, 20_000), generator.normal(0, 1, 20_000), epsilon, 0.0)
        for _ in range(40)
    ]
    assert sum(b.mu > mu for b in bounds) <= 4
    assert sum(b.delta > delta for b in bounds) <= 4
    assert np.mean([b.mu for b in bounds]) > 0.94 * mu
    assert np.mean([b.delta for b in bounds]) > 0.8 * delta
