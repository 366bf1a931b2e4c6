"""Noise states as columns: a row's numbers are a list of a fixed size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


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
