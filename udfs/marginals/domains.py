"""Keys of records as places in their domains, and cells as keys of the public table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Int
from dpsql.udfs.keys import NULL_HEADER, decode, encode
from dpsql.udfs.marginals.cells import Marginals


@dataclass(frozen=True)
class Domains:
    """The values of every key as bytes (`dpsql.udfs.keys`), and whether the last of them stands for all else."""

    values: tuple[tuple[bytes, ...], ...]
    others: tuple[bool, ...]

    def places(self, key_bytes: pa.ChunkedArray) -> Int:
        """The place of each value in its domain (shape: rows, keys); -1 where it is in none."""
        columns = decode(key_bytes, len(self.values))
        out = np.empty((len(key_bytes), len(self.values)), np.int64)
        for key, (column, known, other) in enumerate(
            zip(columns, self.values, self.others, strict=True)
        ):
            found = pc.index_in(column, value_set=pa.array(known, pa.binary()))
            out[:, key] = found.fill_null(len(known) - 1 if other else -1).to_numpy()
        return out

    def names(self, marginals: Marginals, cells: Int) -> pa.Array:
        """Encoded keys of cells: NULL for a key that the cell's table does not have, and after all keys the table's grouping id.

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
                self._encoded[key].take(pa.array(place[key]))
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
