"""MarginalsPlan: every number of a growing table's marginals."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from dpsql.mechanisms.marginals.asked import Asked
from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import Aggregate, CounterName, ParsedQuery
from dpsql.parts.increments import sums_of
from dpsql.parts.sums import Summed
from dpsql.udfs.marginals.cells import Keys, Marginals
from dpsql.udfs.marginals.release import NoisyTables
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, counter


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
class MarginalsPlan(Plan):
    """The whole promise and how it is kept."""

    mechanism: ClassVar[str] = "marginals"

    query: ParsedQuery[Asked]
    start_us: int
    delta_noise: float
    delta_hash: float
    tables: tuple[MeasuredTable, ...]
    sums: tuple[MeasuredSum, ...]

    @property
    def marginals(self) -> Marginals:
        """The tables as cells."""
        return Marginals(
            tuple(domain.size for domain in self.query.asked.domains),
            tuple(table.keys for table in self.tables),
        )

    @property
    def columns(self) -> tuple[tuple[Aggregate, tuple[MeasuredSum, ...]], ...]:
        """Each aggregate with the sums that it is made of."""
        left = iter(self.sums)
        return tuple(
            (each, tuple(islice(left, sums_of(each.function)))) for each in self.query.aggregates
        )

    @property
    def counter(self) -> Counter | BltInf:
        """Of every cell: without a last trigger BLT_INF."""
        last = self.query.asked.max_triggers
        return BltInf() if last is None else counter(CounterName.BLT, last)

    def noisy_tables(self, each: MeasuredSum) -> NoisyTables:
        """The numbers of one sum for its release."""
        return NoisyTables(self.marginals, each.sigmas, self.counter, each.mechanism, each.grid)
