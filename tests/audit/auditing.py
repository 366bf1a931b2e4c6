"""One audit: run both sides of an experiment, bound delta and mu from below, and compare with promise and truth."""

import math
import time
from dataclasses import dataclass

from scipy.special import ndtr

from tests.audit.bounds import Found, found
from tests.audit.ideal import Truth, statistics, truths
from tests.audit.scenarios import Scenario
from tests.audit.trials import Bug, Experiment, Outcome, experiment, run

CHUNK = 20_000
"""Trials of one run; larger audits join several runs with noise keys of their own."""


@dataclass(frozen=True)
class Result:
    """Promise, truth and bounds of one scenario or planted bug; seconds of the audit itself."""

    experiment: Experiment
    trials: int
    seconds: float
    found: Found
    delta: Truth
    mu: Truth

    @property
    def promised(self) -> Found:
        """delta (noise and threshold) and mu, of as many periods as the user is in."""
        plan = self.experiment.plan
        promised = self.experiment.promised
        if self.experiment.scenario.periods == 1:
            return Found(plan.delta_noise + plan.delta_threshold, plan.mu)
        return Found(promised.delta(plan.epsilon), promised.mu)

    @property
    def kept(self) -> bool:
        """Neither bound is beyond the promise."""
        return self.found.delta <= self.promised.delta and self.found.mu <= self.promised.mu

    @property
    def share(self) -> float:
        """Share of the promised mu that the best measurable event of this scenario shows (0: it shows delta only)."""
        return self.mu.value / self.promised.mu

    @property
    def beyond(self) -> tuple[str, float, float]:
        """Of a planted bug: what gives it away, by how many standard errors the truth is beyond the promise, and the power. Power:
        probability that an audit of this size, with other noise, finds a bound beyond the promise."""
        each = {}
        for name, truth in (("delta", self.delta), ("mu", self.mu)):
            promised = getattr(self.promised, name)
            if math.isfinite(truth.value):
                each[name] = (
                    (truth.value - promised) / truth.spread,
                    float(ndtr((truth.expected - promised) / truth.spread)),
                )
        name = max(each, key=lambda n: each[n])
        return name, *each[name]


def audit(
    scenario: Scenario, trials: int, bug: Bug | None = None, seed: int = 1, draws: int = 200_000
) -> Result:
    """Audit a scenario, with a bug planted or not, with `trials` trials a side; `draws` simulations a side give the truth."""
    e = experiment(scenario, bug)
    delta, mu = truths(e, trials, draws)
    start = time.perf_counter()
    sides = []
    for with_user in (False, True):
        runs = [
            run(e, min(CHUNK, trials - at), with_user, seed + at) for at in range(0, trials, CHUNK)
        ]
        sides.append(Outcome.joined(runs))
    statistic = statistics(e, (sides[0], sides[1]))
    bounds = found(statistic[1], statistic[0], e.plan.epsilon, e.promised.failure)
    return Result(e, trials, time.perf_counter() - start, bounds, delta, mu)
