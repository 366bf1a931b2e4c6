"""What a query asks of a table without windows, and every number of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import Aggregate, CounterName, ParsedQuery
from dpsql.parts.sums import MadeOfSums, NoisySum, QuantileSum
from dpsql.parts.whole_table import Renewing
from dpsql.sources.change_feed import Feed
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, counter

# What a query asks of a table without windows besides what every query says.


@dataclass(frozen=True, kw_only=True)
class TableChoices:
    """Bounds and key selection; the options of the same names, every default filled in.

    `max_triggers`: number of the last trigger; None: there is none. C and c are infinite where rows are not counted.
    """

    max_rows_contributed: float
    max_rows_per_group: float
    max_groups_contributed: int
    min_privacy_units_per_group: int
    max_triggers: int | None


@dataclass(frozen=True, kw_only=True)
class ChangeChoices(TableChoices):
    """The choices about a table whose rows end.

    `max_spells_contributed`: times of presence of one unit that count, over all keys. `period_us`: how long a contribution period lasts; None: for
    ever.
    """

    max_spells_contributed: int
    feed: Feed
    period_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class TreeChoices(ChangeChoices):
    """The choices about a table whose rows end, by the mechanism of Qiu and Yi: a baseline."""

    release: str = "INTERVAL_TREE"


# TablePlan: every number of a table without windows. No tuple in it is as long as the run:
# thresholds are listed by blocks of triggers.


@dataclass(frozen=True, kw_only=True)
class TableSelectionPlan:
    """Key selection.

    Args:
        share: share of mu^2 spent here.
        weights: w_1..w_K in units of 2^-20 (integers, non-increasing, sum of squares <= 2^40).
        sigma: standard deviation of the noise of one strategy step, in units' weight.
        first: first trigger of every block of triggers that share a threshold.
        thresholds: tau of every block, in units of 2^-20 (integers).
        shown_from: likewise, the noisy weight from which a key that has appeared is shown.
    """

    share: float
    weights: tuple[int, ...]
    sigma: float
    first: tuple[int, ...]
    thresholds: tuple[int, ...]
    shown_from: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TableColumnPlan:
    """One output column: the aggregate and the perturbations it is made of (AVG: sum, then count)."""

    aggregate: Aggregate
    perturbations: tuple[NoisySum, ...]


@dataclass(frozen=True, kw_only=True)
class TablePlan(Renewing, MadeOfSums, Plan):
    """The whole promise and how it is kept; `delta = delta_noise + delta_threshold + delta_hash` at most, `mu` is all of it.

    Triggers are counted from `start_us`: the same noise under another count of triggers would be on other sums.
    """

    mechanism: ClassVar[str] = "dynamic"

    query: ParsedQuery[TableChoices]
    start_us: int
    max_groups: int
    delta_noise: float
    delta_threshold: float
    delta_hash: float
    selection: TableSelectionPlan | None
    columns: tuple[TableColumnPlan, ...]

    @property
    def changes(self) -> ChangeChoices | None:
        """The choices about a table whose rows end; None: it only grows."""
        return self.query.asked if isinstance(self.query.asked, ChangeChoices) else None

    @property
    def counter(self) -> Counter | BltInf:
        """The counter of every path: without a last trigger BLT_INF."""
        last = self.query.asked.max_triggers
        return BltInf() if last is None else counter(CounterName.BLT, last)


@dataclass(frozen=True, kw_only=True)
class TreePlan(TablePlan):
    """The plan of an interval tree: all sigmas are those of a node of level 1 in its first round,
    and grow with level times round.

    Args:
        size: sigma of a node's number of rows.
        gone: of a step of the counter of rows that have gone from it.
        removed: likewise, per perturbation, of what went with them; its `sigma` is that of what a node releases.
        beta: how often a round may end by noise alone.
    """

    size: float
    gone: float
    removed: tuple[float, ...]
    beta: float


__all__ = [
    "NoisySum",
    "QuantileSum",
    "TableColumnPlan",
    "TablePlan",
    "TableSelectionPlan",
    "TreePlan",
]
