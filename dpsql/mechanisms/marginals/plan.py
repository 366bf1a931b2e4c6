"""What a query asks of marginals, and every number of its plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import Aggregate, CounterName, ParsedQuery
from dpsql.parts.increments import places_of
from dpsql.parts.sums import Summed
from dpsql.parts.whole_table import Renewing
from dpsql.sources.change_feed import Feed
from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.cells import Keys, MeasuredTables
from dpsql.udfs.marginals.release import ClosingKeys, NoisyTables
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, counter

# What a query asks of marginals besides what every query says.


@dataclass(frozen=True, kw_only=True)
class CubeChoices:
    """Bounds, domains and tables; every default filled in.

    Args:
        max_rows_contributed, max_rows_per_group, max_groups_contributed: C, c, G, of cells that have all keys.
        domains: of the keys, in their order.
        grouping_sets: the tables that may be measured; the planner gives each its share, or none.
        max_triggers: number of the last trigger; None: there is none.
        cuts: places of keys that cut the event time, and the names of the functions that do.
    """

    max_rows_contributed: int
    max_rows_per_group: int
    max_groups_contributed: int
    domains: tuple[Domain, ...]
    grouping_sets: tuple[Keys, ...]
    max_triggers: int | None
    cuts: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChangingCubeChoices(CubeChoices):
    """The choices about a table whose rows end: C are versions of rows, c those of a cell at one time.

    `period_us`: how long a contribution period lasts; None: for ever.
    """

    feed: Feed
    period_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class SessionCubeChoices(CubeChoices):
    """The choices about a table with paid answers, which have the part `session_share` of mu^2."""

    session_share: float


# MarginalsPlan: every number of a table's marginals.


@dataclass(frozen=True, kw_only=True)
class MeasuredSum(Summed):
    """One integer sum per cell of every table; `sigmas`: of one step's noise, a table each, in value units."""

    sigmas: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """One marginal: its keys, its number in SQL, and its share of mu^2 (in 2^-20)."""

    keys: Keys
    grouping_id: int
    share: int


@dataclass(frozen=True, kw_only=True)
class MarginalsPlan(Renewing, Plan):
    """The whole promise and how it is kept."""

    mechanism: ClassVar[str] = "marginals"

    query: ParsedQuery[CubeChoices]
    start_us: int
    delta_noise: float
    delta_hash: float
    closing: ClosingKeys | None
    tables: tuple[MeasuredTable, ...]
    sums: tuple[MeasuredSum, ...]

    @property
    def changes(self) -> ChangingCubeChoices | None:
        """The choices about a table whose rows end; None: it only grows."""
        return self.query.asked if isinstance(self.query.asked, ChangingCubeChoices) else None

    @property
    def session_share(self) -> float:
        """The part of mu^2 that paid answers have."""
        asked = self.query.asked
        return asked.session_share if isinstance(asked, SessionCubeChoices) else 0.0

    @property
    def marginals(self) -> MeasuredTables:
        """The tables as cells."""
        return MeasuredTables(
            tuple(domain.size for domain in self.query.asked.domains),
            tuple(table.keys for table in self.tables),
        )

    @property
    def closing_keys(self) -> Keys:
        """The keys whose cells close; none where all are counters."""
        return self.closing.keys if self.closing else ()

    @property
    def columns(self) -> tuple[tuple[Aggregate, tuple[MeasuredSum, ...]], ...]:
        """Each aggregate with the sums that it is made of."""
        aggregates = self.query.aggregates
        columns = []
        for aggregate, places in zip(aggregates, places_of(aggregates), strict=True):
            columns.append((aggregate, tuple(self.sums[place] for place in places)))
        return tuple(columns)

    @property
    def counter(self) -> Counter | BltInf:
        """The counter of every cell: without a last trigger BLT_INF."""
        last = self.query.asked.max_triggers
        return BltInf() if last is None else counter(CounterName.BLT, last)

    def noisy_tables(self, measured: MeasuredSum) -> NoisyTables:
        """Return the numbers of one sum for its release."""
        return NoisyTables(
            self.marginals,
            measured.sigmas,
            self.counter,
            measured.noise_stream,
            measured.grid,
            self.closing_keys,
        )


# CUBE as sets of keys.

MAX_CELLS = 2**22
"""Limit on the cells of all measured tables together."""


def cube(sizes: Sequence[int], max_grouping_keys: int) -> tuple[Keys, ...]:
    """Return every set of one to so many keys, and the whole table unless it alone has too many cells.

    The total is not among them: it is the sum of every table. Of one key more than that a table has no worth of its own.
    """
    keys = range(len(sizes))
    few = [
        key_set
        for size in range(1, max_grouping_keys + 1)
        for key_set in itertools.combinations(keys, size)
    ]
    all_keys = tuple(keys)
    return tuple(few) if all_keys in few or math.prod(sizes) > MAX_CELLS else (*few, all_keys)
