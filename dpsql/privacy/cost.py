"""What a run costs one protected unit: Gaussian, pure and failure parts, in one contribution period and in several.

`Cost.periods` is the only place that knows how several periods add up. Sentences, ledger lines, caps and totals ask it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dpsql.errors import AccountingError
from dpsql.parsed_query import PrivacyLevel

__all__ = [
    "TOLERANCE",
    "Cost",
    "Overlap",
    "PrivacyLevel",
    "check_promise",
    "gaussian_delta",
    "shifted",
    "total",
]

DAY_US = 86_400_000_000
TOLERANCE = 1e-9
"""Relative slack for rounding in float64; far below anything that matters."""


class Overlap(StrEnum):
    """How contribution periods of one unit meet.

    NONE: two periods share no group, so their shifts are in different places.
    WINDOWS: periods are as long as sliding windows, so a window meets up to two of them and their shifts meet in its groups.
    TOGETHER: rows of all periods stay in the same groups for as long as they live, so the shifts of n periods meet for ever.
    STREAM: there is one period, for ever.
    EVENTS: what is protected is one row, and n of one person meet wherever they like: n times epsilon, n times mu.
    SUM: a sum over periods that have been counted already; it knows nothing of further ones.
    """

    NONE = "NONE"
    WINDOWS = "WINDOWS"
    TOGETHER = "TOGETHER"
    STREAM = "STREAM"
    EVENTS = "EVENTS"
    SUM = "SUM"


@dataclass(frozen=True)
class Cost:
    """The cost of ONE protected unit in ONE contribution period.

    Args:
        protects: who or what is protected.
        mu2: square of the Gaussian-DP parameter mu.
        epsilon: pure part, added to epsilon.
        failure: probability that thresholds or hashes fail, added to delta.
        overlap: how periods meet.
        mu2_shared, failure_shared: what each of two or more periods costs; more than one alone where they meet in a group.
        floor: of one event: how probable it is, in the world without it, that a value which only it brings passes a floor test. `failure` is
            that probability as mu shifts it (docs/privacy/sketch.md, theorem 23), so for n events both grow.
        failures: of periods whose rows meet: (n, failure of n periods together), n ascending from 2 on. For numbers between two the larger one
            holds, for larger ones nothing is promised.
    """

    protects: PrivacyLevel
    mu2: float
    epsilon: float
    failure: float
    overlap: Overlap
    mu2_shared: float
    failure_shared: float
    floor: float = 0.0
    failures: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        single = (self.mu2, self.failure)
        shared = (self.mu2_shared, self.failure_shared)
        if not all(0 <= value < math.inf for value in (*single, *shared, self.epsilon, self.floor)):
            raise ValueError("a cost must be finite and not negative")
        if (self.overlap is Overlap.EVENTS) != (
            self.protects is PrivacyLevel.EVENT
        ) and self.overlap is not Overlap.SUM:
            raise ValueError("rows add up as EVENTS, and nothing else does")
        counts = [1, *(n for n, _ in self.failures)]
        listed = [self.failure, *(failure for _, failure in self.failures)]
        if counts != sorted(set(counts)) or listed != sorted(listed):
            raise ValueError("more periods cannot fail less")
        if self.failures and self.overlap is not Overlap.TOGETHER:
            raise ValueError("failures of several periods are listed where their rows meet")
        if self.floor and self.overlap is not Overlap.EVENTS:
            raise ValueError("units pay for their floor tests by failure alone")
        if self.overlap is Overlap.WINDOWS:
            if self.mu2_shared < self.mu2 or self.failure_shared < self.failure:
                raise ValueError("a period with others cannot cost less than alone")
        elif self.overlap is Overlap.EVENTS and not math.isclose(
            self.failure, shifted(self.floor, self.mu), rel_tol=1e-9
        ):
            raise ValueError(
                "a failure of one row says nothing of several, but for a floor test's"
            )  # it grows with e^epsilon
        elif shared != single:
            raise ValueError(
                f"periods that overlap as {self.overlap} cost as much with others as alone"
            )

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter of one period."""
        return math.sqrt(self.mu2)

    def periods(self, n: int) -> Cost:
        """Return what n periods of one unit cost together, whichever they are (docs/privacy/index.md, theorem 4)."""
        if n < 1:
            raise ValueError(f"{n} periods")
        if self.overlap is Overlap.SUM and n > 1:
            raise ValueError("a sum over periods does not know what further ones cost")
        if n == 1 or self.overlap is Overlap.STREAM:
            return total([self], self.protects)
        if self.overlap is Overlap.EVENTS:
            mu2 = n * n * self.mu2
            failure = shifted(n * self.floor, n * self.mu)
        elif self.overlap is Overlap.TOGETHER:
            mu2 = n * n * self.mu2
            failure = next((failure for count, failure in self.failures if count >= n), 1.0)
        else:
            mu2 = n * self.mu2_shared
            failure = n * self.failure_shared
        return Cost(self.protects, mu2, n * self.epsilon, failure, Overlap.SUM, mu2, failure)

    def document(self) -> dict[str, Any]:
        """Return the cost as JSON; without `floor` and `failures` where there are none, as all costs were once."""
        optional = ("floor", "failures")
        return {
            name: value for name, value in asdict(self).items() if name not in optional or value
        }

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta at which one period is (epsilon, delta)-protected; below the
        pure part that is 1."""
        if epsilon < self.epsilon:
            return 1.0
        return gaussian_delta(self.mu, epsilon - self.epsilon) + self.failure


def touched(span_us: int, period_us: int, offset_us: int) -> int:
    """Return how many contribution periods of a run one span can touch, at most, where spans follow each other from 1970 on."""
    return _touched(span_us, period_us, offset_us, begins_every_us=span_us)


def touched_in_days(days: int, period_us: int, offset_us: int) -> int:
    """Return how many contribution periods of a run any so many days (UTC) in a row can touch, at most."""
    return _touched(days * DAY_US, period_us, offset_us, begins_every_us=DAY_US)


def _touched(span_us: int, period_us: int, offset_us: int, begins_every_us: int) -> int:
    # A span begins at a multiple, so its place in the contribution grid is -offset modulo gcd; the last such place touches most.
    step = math.gcd(begins_every_us, period_us)
    last_place = period_us - step + -offset_us % step
    return -(-(last_place + span_us) // period_us)


def gamma(coefficients: tuple[float, ...], panes: int) -> float:
    """Return how much more n periods of one unit cost together than n times one, as periods that follow each other meet in a bin's path.

    With g(k) the inner product of C's columns k panes apart: 1 + max (|g(a)| + |g(b)|) / g(0) over a, b >= 1 with a + b >= w + 1, plus
    2 max |g(k)| / g(0) over k > w. Rows of three consecutive periods lie so; those of periods further apart do not meet.
    """
    size = len(coefficients)
    products = [
        abs(math.fsum(coefficients[m] * coefficients[m + k] for m in range(size - k)))
        for k in range(size)
    ]
    largest = [product / products[0] for product in products] + [0.0] * (panes + 2)
    suffix_max = largest[:]
    for k in reversed(range(len(suffix_max) - 1)):
        suffix_max[k] = max(suffix_max[k], suffix_max[k + 1])
    largest_pair = max(
        largest[a] + suffix_max[max(1, panes + 1 - a)] for a in range(1, len(largest))
    )
    return (1 + largest_pair + 2 * suffix_max[panes + 1]) * (1 + 1e-9)


SEVERAL = tuple(sorted({1 << k for k in range(1, 21)} | {3 << k for k in range(20)}))
"""Numbers of periods of which the failure is told; of others that of the next larger one."""


def of_periods_together(mu2: float, failure_of: Callable[[int], float]) -> Cost:
    """Return the cost of one unit in one period, where rows of all periods stay in the same groups; `failure_of`: of so many periods together."""
    failures = ((n, failure_of(n)) for n in SEVERAL)
    possible = tuple((n, failure) for n, failure in failures if failure < 1)
    one = failure_of(1)
    user = PrivacyLevel.USER
    return Cost(user, mu2, 0.0, one, Overlap.TOGETHER, mu2, one, failures=possible)


def total(costs: Iterable[Cost], protects: PrivacyLevel = PrivacyLevel.USER) -> Cost:
    """Return what mechanisms with independent noise cost together, each for the periods that its cost speaks of.

    Args:
        costs: for the same unit; of none the sum is nothing.
        protects: the level of all of them.

    Raises:
        ValueError: they protect unlike things.
    """
    cost_list = list(costs)
    if any(cost.protects is not protects for cost in cost_list):
        raise ValueError(
            f"only costs of level {protects} add up here: a row and all that a unit does are not the same thing"
        )
    mu2 = math.fsum(cost.mu2 for cost in cost_list)
    epsilon = math.fsum(cost.epsilon for cost in cost_list)
    failure = math.fsum(cost.failure for cost in cost_list)
    return Cost(protects, mu2, epsilon, failure, Overlap.SUM, mu2, failure)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of a mu-Gaussian-DP mechanism: Phi(mu/2 - epsilon/mu) - e^epsilon
    Phi(-mu/2 - epsilon/mu).

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8; Dong, Roth and Su 2019 (arXiv 1905.02383), corollary 1.
    Edge cases: mu = 0 gives 0, or what a pure loss above epsilon leaves. Computed through logarithms, so tiny deltas keep their digits; where
    they are smaller than any float64 the smallest one stands for them, so that Gaussian noise never passes for pure.
    """
    from scipy.special import (
        log_ndtr,
    )  # here, because it is slow to import and most who read ledgers ask for no delta

    if mu <= 0:
        return max(0.0, -math.expm1(epsilon))
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return max(float(math.exp(first) * -math.expm1(min(0.0, second - first))), math.ulp(0.0))


def shifted(probability: float, mu: float) -> float:
    """Return the largest probability, in a world that mu-Gaussian noise keeps apart, of what has at most this probability here.

    Source: the trade-off curve of mu-Gaussian-DP (Dong, Roth and Su 2019): Phi(Phi^-1(probability) + mu).
    """
    if not probability:
        return 0.0
    from scipy.special import ndtr, ndtri  # slow to import

    return float(ndtr(ndtri(min(probability, 1.0)) + mu))


def check_promise(plan: Any, recomputed: Mapping[str, float]) -> None:
    """Refuse a plan that says more than its query, or costs more than it says.

    Args:
        plan: of any mechanism.
        recomputed: by the name in the plan, what an accountant has found.

    Raises:
        AccountingError: it does.
    """
    query = plan.query
    if plan.epsilon > query.epsilon or plan.delta > query.delta:
        raise AccountingError(
            f"the plan promises ({plan.epsilon}, {plan.delta}), the query ({query.epsilon}, {query.delta})"
        )
    for name, cost in recomputed.items():
        promised = getattr(plan, name)
        if not cost <= promised * (1 + TOLERANCE):
            raise AccountingError(
                f"the plan's {name} is {cost:.12g}, more than the {promised:.12g} it promises"
            )
