"""What a query asks of the histogram, and every number of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import Aggregate, ContributionPeriod, CounterName, ParsedQuery
from dpsql.parts.left_out import FigurePlans
from dpsql.parts.sums import MadeOfSums, NoisySum, QuantileSum, as_stored

# What a query asks of the histogram besides what every query says.


class ReleaseRule(StrEnum):
    """When a selected key is released again."""

    EVERY_TRIGGER = "EVERY_TRIGGER"
    RESELECT = "RESELECT"


@dataclass(frozen=True, kw_only=True)
class HistogramChoices:
    """Bounds, key selection and release of one query; the options of the same names, every default filled in.

    `carry_windows`: how many windows, the present one included, may prove a key together; 1: each for itself. C and c are infinite where
    rows are not counted.
    """

    max_rows_contributed: float
    max_rows_per_group: float
    max_groups_contributed: int
    min_privacy_units_per_group: int
    release: ReleaseRule
    counter: CounterName
    carry_windows: int = 1


# PrivacyPlan: the finished, concrete plan. Every number that shapes bounding or noise is here;
# nothing is DEFAULT any more.

# The planner makes it, `accounting` checks it, `explain` prints it, `stages` gives its numbers
# to the steps. `identity` is the query's identity.


@dataclass(frozen=True, kw_only=True)
class CarriedPlan:
    """Tests of a key over several windows, at the end of each (docs/privacy/histogram.md, theorem 29).

    Args:
        windows: L: how many windows, the present one included, may prove a key together.
        lengths: D: over how many windows a sum is tested.
        betas: per length, failure probability of one test.
        thresholds: per length d, tau_(d,k) for k = 1..d windows in the range; in units of 2^-20 (integers).
        kept: (d, least sum over its last d windows with which a known key stays known, in units of 2^-20).
    """

    windows: int
    lengths: tuple[int, ...]
    betas: tuple[float, ...]
    thresholds: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, int], ...]

    def users_needed(self, place: int, weight: int) -> int:
        """Count the units in each window, with this key as their first, that bring the noiseless
        sum of a full range to its threshold."""
        return -(-self.thresholds[place][-1] // (self.lengths[place] * weight))


@dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    """Key selection.

    Args:
        counter: the continual counter of the selection path.
        share: share, spent here, of the mu^2 that figures of what is left out leave.
        weights: w_1..w_K in units of 2^-20 (integers, non-increasing, w_1 = 2^20: a unit's first key counts 1).
        sigma: standard deviation of the noise of one strategy step (noise multiplier times sensitivity), in people.
        sd: standard deviation of the noisy path at triggers 1..T, in people.
        betas: beta_i, failure probability of the threshold at trigger i.
        thresholds: tau_i in units of 2^-20 (integers).
        carried: tests over several windows; None: each window by itself.
    """

    counter: CounterName
    share: float
    weights: tuple[int, ...]
    sigma: float
    sd: tuple[float, ...]
    betas: tuple[float, ...]
    thresholds: tuple[int, ...]
    carried: CarriedPlan | None = None

    @property
    def users_needed_jointly(self) -> tuple[tuple[int, int], ...]:
        """Numbers of windows that prove a key together, and the users that it needs in each."""
        if self.carried is None:
            return ()
        first = self.weights[0]
        lengths = enumerate(self.carried.lengths)
        return tuple((windows, self.carried.users_needed(i, first)) for i, windows in lengths)

    @property
    def falls(self) -> bool:
        """A unit's later keys count less than its first."""
        return self.weights[-1] < self.weights[0]

    def users_needed(self, trigger: int) -> int:
        """Count the users (each with this key as first key) that bring the noiseless sum to the
        threshold: ceil(tau / w_1)."""
        return -(-self.thresholds[trigger - 1] // self.weights[0])


@dataclass(frozen=True, kw_only=True)
class PerturbationPlan(NoisySum):
    """With its counter, and the standard deviation of the released path at triggers 1..T, in value units.

    `on_selection`: the noisy sum of weights that chooses keys is a part of the count: `sensitivity` and `sigma` are of what the weights
    leave of it, `sd` is of both noises.
    """

    counter: CounterName
    sd: tuple[float, ...]
    on_selection: bool = False


@dataclass(frozen=True, kw_only=True)
class QuantilePlan(QuantileSum):
    """With the counter of a node and how many steps it has: it is released once, at a window's last trigger; `sd` is that of the release."""

    counter: CounterName
    releases: int
    sd: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """One output column: the aggregate and the perturbations it is made of (AVG: sum, then count; variances: squares between the two)."""

    aggregate: Aggregate
    perturbations: tuple[PerturbationPlan | QuantilePlan, ...]


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan(MadeOfSums, Plan):
    """The whole promise and how it is kept.

    `arguments` are the distinct argument expressions of the aggregates (Spark SQL), in order: record columns a0, a1, ...
    `delta = delta_noise + delta_threshold + delta_hash` at most; `mu` is the total Gaussian-DP parameter. `left_out`: figures of what the limits
    leave out.
    """

    mechanism: ClassVar[str] = "histogram"

    query: ParsedQuery[HistogramChoices]
    horizon: int
    windows_per_record: int
    max_groups: int
    delta_noise: float
    delta_threshold: float
    delta_hash: float
    selection: SelectionPlan | None
    columns: tuple[ColumnPlan, ...]
    left_out: FigurePlans

    @property
    def carries(self) -> bool:
        """Whether windows prove keys together."""
        return self.selection is not None and self.selection.carried is not None

    @property
    def periods_meet(self) -> bool:
        """Two contribution periods of a unit can meet in one group: periods are as long as a window, and windows slide."""
        return (
            self.query.contribution_period is ContributionPeriod.WINDOW
            and self.windows_per_record > 1
        )

    @property
    def min_counted(self) -> int:
        """How often units must have counted in a group before the noisy test, so that at least m of them did: one counts once per period."""
        least = self.query.asked.min_privacy_units_per_group
        return 2 * least - 1 if self.periods_meet else least


def document(plan: PrivacyPlan) -> dict[str, Any]:
    """Return the plan as JSON values: what its identity digests. What is asked of the histogram stands among what every query says."""
    content = as_stored(plan)
    query = content["query"]
    del query["mechanism"]
    if query["window"]:
        query["window"]["event_time"] = query.pop("event_time")
    query |= query.pop("asked")
    return content


__all__ = [
    "Aggregate",
    "CarriedPlan",
    "ColumnPlan",
    "NoisySum",
    "PerturbationPlan",
    "PrivacyPlan",
    "SelectionPlan",
    "document",
]
