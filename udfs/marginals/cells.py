"""Measured marginals as dense cells: which cell of every table a row is in, and the numbers that SQL gives grouping sets.

A key has values 0 to n - 1: its place in the declared domain. A table is a set of keys; all cells of all tables have one number each, tables in
the order in which they are listed and cells in the order of their keys. So a cell has a number and no hash.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpsql.udfs.columns import Bool, Int

Keys = tuple[int, ...]
"""Places of a table's keys, ascending."""


@dataclass(frozen=True)
class Marginals:
    """The tables that are measured.

    Args:
        sizes: number of values of every key.
        tables: the keys of every table, no two alike.
    """

    sizes: tuple[int, ...]
    tables: tuple[Keys, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or len(set(self.tables)) != len(self.tables):
            raise ValueError("a marginal is measured once, over keys that have values")
        if any(list(keys) != sorted({*keys} & {*range(len(self.sizes))}) for keys in self.tables):
            raise ValueError("the keys of a table are places of keys, ascending")

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """How many cells each table has; the table without keys has one."""
        return tuple(math.prod(self.sizes[key] for key in keys) for keys in self.tables)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Number of the first cell of each table, and after the last one how many cells there are."""
        return tuple(sum(self.cells[:table]) for table in range(len(self.tables) + 1))

    def shape(self, table: int) -> tuple[int, ...]:
        """Of the table as an array, an axis for each key."""
        return tuple(self.sizes[key] for key in self.tables[table])

    def grouping_id(self, table: int) -> int:
        """`GROUPING_ID()` of SQL: a bit for every key, the first key's highest; 1 where the table does not have the key.

        >>> Marginals((2, 2, 2), ((0, 1, 2), (0, 2), ())).grouping_id(1)
        2
        """
        last = len(self.sizes) - 1
        return sum(1 << (last - key) for key in range(last + 1) if key not in self.tables[table])

    def inside(self, values: Int) -> Bool:
        """Whether all values of a row (shape: rows, keys) are in their domains."""
        return np.all((values >= 0) & (values < np.array(self.sizes)), axis=1)

    def touched(self, values: Int) -> Int:
        """The cell of every table that each row is in; shape: rows, tables. All values are inside.

        Raises:
            ValueError: a value is outside its domain: it would be counted in the cell of another.
        """
        if not self.inside(values).all():
            raise ValueError("a value outside its domain has no cell")
        out = np.empty((len(values), len(self.tables)), np.int64)
        for table, keys in enumerate(self.tables):
            place = np.zeros(len(values), np.int64)
            for key in keys:
                place = place * self.sizes[key] + values[:, key]
            out[:, table] = self.first[table] + place
        return out
