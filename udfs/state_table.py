"""How a table of a bucket's state is kept: `run.json` says it of each, so that state is read and cut anew without the mechanism.

Its columns are integers, key bytes, and noise states as lists of a fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Table:
    """One table of a bucket's state.

    Args:
        sorted_by: the columns that its rows are sorted by.
        bucket_by: the id that decides in which bucket a row is: modulo the number of buckets, never negative.
        order: the step searches it, and finds each row once (`distinct`) or a run of them (`repeated`); or does not search it (`any`).
    """

    sorted_by: tuple[str, ...]
    bucket_by: str
    order: Literal["distinct", "repeated", "any"] = "distinct"


def to_lists(values: npt.NDArray[np.float64]) -> pa.FixedSizeListArray:
    """A (rows, width) array as a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def from_lists(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float64]:
    """The (rows, width) array of a column of fixed-size lists; a copy."""
    return np.array(as_rows(column, width))


def as_rows(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float64]:
    """As `from_lists`, but a view where it can be one."""
    flat: npt.NDArray[np.float64] = column.combine_chunks().flatten().to_numpy()
    return flat.reshape(len(column), width)
