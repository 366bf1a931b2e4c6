"""Measured marginals as dense cells, and keys as places in their domains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Bool, Int
from dpsql.udfs.keys import NULL_HEADER, decode, encode

# Measured marginals as dense cells: which cell of every table a row is in, and the numbers that
# SQL gives grouping sets.

# A key has values 0 to n - 1: its place in the declared domain. A table is a set of keys; all
# cells of all tables have one number each, tables in
# the order in which they are listed and cells in the order of their keys. So a cell has a number
# and no hash.

Keys = tuple[int, ...]
"""Places of a table's keys, ascending."""


@dataclass(frozen=True)
class MeasuredTables:
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
        """Number of cells of each table; the table without keys has one."""
        return tuple(math.prod(self.sizes[key] for key in keys) for keys in self.tables)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Number of the first cell of each table, and after the last one how many cells there are."""
        return tuple(sum(self.cells[:table]) for table in range(len(self.tables) + 1))

    def shape(self, table: int) -> tuple[int, ...]:
        """Return the shape of the table as an array, an axis for each key."""
        return tuple(self.sizes[key] for key in self.tables[table])

    def grouping_id(self, table: int) -> int:
        """Return `GROUPING_ID()` of SQL: a bit for every key, the first key's highest; 1 where the table does not have the key.

        >>> Marginals((2, 2, 2), ((0, 1, 2), (0, 2), ())).grouping_id(1)
        2
        """
        last = len(self.sizes) - 1
        return sum(1 << (last - key) for key in range(last + 1) if key not in self.tables[table])

    def is_inside(self, values: Int) -> Bool:
        """Tell whether all values of a row (shape: rows, keys) are in their domains."""
        return np.all((values >= 0) & (values < np.array(self.sizes)), axis=1)

    def touched(self, values: Int) -> Int:
        """Return the cell of every table that each row is in; shape: rows, tables. All values are inside.

        Raises:
            ValueError: a value is outside its domain: it would be counted in the cell of another.
        """
        if not self.is_inside(values).all():
            raise ValueError("a value outside its domain has no cell")
        cells = np.empty((len(values), len(self.tables)), np.int64)
        for table, keys in enumerate(self.tables):
            place = np.zeros(len(values), np.int64)
            for key in keys:
                place = place * self.sizes[key] + values[:, key]
            cells[:, table] = self.first[table] + place
        return cells


def closes(closing: Keys, keys: Keys) -> bool:
    """Tell whether the cells of a table close: it has all keys that say when."""
    return bool(closing) and {*closing} <= {*keys}


# Keys of records as places in their domains, and cells as keys of the public table.


@dataclass(frozen=True)
class Domains:
    """The values of every key as bytes (`dpsql.udfs.keys`), and whether the last of them stands for all else."""

    values: tuple[tuple[bytes, ...], ...]
    has_others: tuple[bool, ...]

    def places(self, key_bytes: pa.ChunkedArray) -> Int:
        """Return the place of each value in its domain (shape: rows, keys); -1 where it is in none."""
        columns = decode(key_bytes, len(self.values))
        places = np.empty((len(key_bytes), len(self.values)), np.int64)
        for key, (column, values, has_other) in enumerate(
            zip(columns, self.values, self.has_others, strict=True)
        ):
            place = pc.index_in(column, value_set=pa.array(values, pa.binary()))
            places[:, key] = place.fill_null(len(values) - 1 if has_other else -1).to_numpy()
        return places

    def names(self, marginals: MeasuredTables, cells: Int) -> pa.Array:
        """Return encoded keys of cells: NULL for a key that the cell's table does not have, and after all keys the table's grouping id.

        Args:
            marginals: the tables.
            cells: numbers, ascending.
        """
        bounds = np.searchsorted(cells, marginals.first)
        parts = [pa.array([], pa.binary())]
        for table, (low, high) in enumerate(
            zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ):
            if low == high:
                continue
            within = np.unravel_index(
                cells[low:high] - marginals.first[table], marginals.shape(table) or (1,)
            )
            place = dict(zip(marginals.tables[table], within, strict=False))
            columns = [
                self._encoded[key].take(place[key])
                if key in place
                else pa.array([NULL_HEADER] * (high - low), pa.binary())
                for key in range(len(self.values))
            ]
            last = pa.array(
                [encode([str(marginals.grouping_id(table)).encode()])] * (high - low), pa.binary()
            )
            parts.append(pc.binary_join_element_wise(*columns, last, pa.scalar(b"", pa.binary())))
        return pa.concat_arrays(parts)

    @cached_property
    def _encoded(self) -> tuple[pa.Array, ...]:
        return tuple(
            pa.array([encode([value]) for value in values], pa.binary()) for values in self.values
        )
