"""Columns of numbers: runs of equal rows, their sums, look-ups between two tables, and lists of a fixed size. All of numpy, nothing per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Sorted integer columns: runs of equal rows, their sums, and look-ups between two tables. All of
# numpy, nothing per row.

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Word = npt.NDArray[np.uint64]

MOST_COUNTED = 2**16 - 1
"""Numbers of 16 bits are sorted by counting them, which numpy does."""


def sort_order(*columns: npt.NDArray[np.generic]) -> Int:
    """Return the stable order that sorts rows by the first column, then the second, and so on; columns are integers.

    Columns are packed side by side, over the row number, into 64-bit words: sorting plain words is many times faster than a stable
    sort of indices. Where they do not fit into one word, rows that are tied in the first one are sorted by the others.
    """
    size = len(columns[0])
    index_bits = max(size - 1, 1).bit_length()
    words = _words(columns, 64 - index_bits)
    leading_word = next(words)
    order = _word_order(leading_word, index_bits)
    other_words = list(words)
    if other_words:
        tied, run = tied_rows(run_starts(leading_word[order]))
        rows = order[tied]
        order[tied] = rows[sort_order(run, *(word[rows] for word in other_words))]
    return order


def _word_order(words: Word, index_bits: int) -> Int:
    """Return the stable order of words that leave so many bits for the row number."""
    row = np.arange(len(words), dtype=np.uint64)
    if (words[1:] >= words[:-1]).all():
        return row.view(np.int64)
    if words.max() <= MOST_COUNTED:
        return np.argsort(words.astype(np.uint16), kind="stable")
    sorted_words = np.sort(words << np.uint64(index_bits) | row)
    return (sorted_words & np.uint64((1 << index_bits) - 1)).view(np.int64)


def tied_rows(starts: Bool) -> tuple[Int, Int]:
    """Return the rows in runs of more than one, and the number of each one's run."""
    tied = np.flatnonzero(~(starts & np.append(starts, True)[1:]))
    run: Int = np.cumsum(starts)
    return tied, run[tied]


def _words(columns: Sequence[npt.NDArray[np.generic]], room: int) -> Iterator[Word]:
    """Yield columns side by side in words of at most `room` bits, the first columns first; one that does not fit goes on in the next word."""
    packed = np.zeros(len(columns[0]), np.uint64)
    free = room
    for column in columns:
        codes, bits = _codes(column)
        while bits > free:
            bits = bits - free
            yield packed << np.uint64(free) | codes >> np.uint64(bits)
            codes = codes & np.uint64((1 << bits) - 1)
            packed = np.zeros_like(packed)
            free = room
        packed = packed << np.uint64(bits) | codes
        free = free - bits
    yield packed


def _codes(column: npt.NDArray[np.generic]) -> tuple[Word, int]:
    """Return numbers from 0 in the order of the values, and how many bits they need."""
    if not len(column):
        return np.zeros(0, np.uint64), 0
    low = column.min()
    high = column.max()
    bits = (int(high) - int(low)).bit_length()
    # Differences of 64-bit integers are right modulo 2^64, and nothing wider is asked for.
    return (
        column.astype(np.int64 if column.dtype.kind == "i" else np.uint64).view(np.uint64)
        - np.uint64(int(low) % (1 << 64))
    ), bits


def is_sorted(columns: Sequence[npt.NDArray[Any]], distinct: bool = False) -> bool:
    """Tell whether the rows ascend, compared column by column; distinct: if no row is there twice, too."""
    equal = np.ones(max(len(columns[0]) - 1, 0), bool)
    smaller = ~equal
    for column in columns:
        smaller |= equal & (column[:-1] < column[1:])
        equal &= column[:-1] == column[1:]
    return bool((smaller if distinct else smaller | equal).all())


def run_starts(*columns: npt.NDArray[np.generic]) -> Bool:
    """Tell where a row of *sorted* columns differs from the row before (the first row is always True)."""
    size = len(columns[0])
    starts = np.zeros(size, dtype=bool)
    if size:
        starts[0] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def sort_runs(*columns: npt.NDArray[np.generic]) -> tuple[Int, Bool]:
    """Return the order that sorts rows by some columns, and where runs of equal rows start in it."""
    order = sort_order(*columns)
    return order, run_starts(*(column[order] for column in columns))


@dataclass(frozen=True)
class Numbered:
    """A column as numbers of its distinct values. The values ascend, so numbers compare as values do."""

    numbers: npt.NDArray[np.signedinteger[Any]]
    values: npt.NDArray[Any]

    def take(self, rows: npt.NDArray[Any] | slice) -> Numbered:
        """Choose rows; all distinct values keep their numbers."""
        return Numbered(self.numbers[rows], self.values)

    def plain(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of some rows."""
        return self.take(rows).all()

    def all(self) -> npt.NDArray[Any]:
        """Return the values of all rows."""
        values: npt.NDArray[Any] = self.values[self.numbers]
        return values


def number_values(column: npt.NDArray[Any]) -> Numbered:
    """Number the distinct values of a column of integers."""
    order, starts = sort_runs(column)
    numbers = (np.cumsum(starts) - 1).astype(np.int32)
    return Numbered(unsort(order, numbers), column[order[starts]])


def read_integers(rows: pa.Table, name: str) -> Int:
    """Return a column of integers.

    Raises:
        TypeError: it holds a NULL.
    """
    column = rows[name]
    if column.null_count:
        raise TypeError(f"column {name} must not hold NULL")
    return column.to_numpy().astype(np.int64, copy=False)


def read_numbers(rows: pa.Table, name: str) -> Numbered:
    """Return a column of integers, be it plain or numbered already: as a dictionary of Arrow whose values ascend.

    Raises:
        ValueError: they do not.
    """
    array = rows[name].combine_chunks()
    if pa.types.is_dictionary(array.type):
        values = array.dictionary.to_numpy()
        if not is_sorted([values], distinct=True):
            raise ValueError(f"the distinct values of column {name} do not ascend")
        return Numbered(array.indices.to_numpy(), values)
    return number_values(read_integers(rows, name))


def number_rows(columns: Sequence[pa.ChunkedArray], size: int) -> tuple[Int, list[pa.Array]]:
    """Number the distinct rows of some columns of `size` values, NULL among them; returned with the columns of the distinct ones."""
    numbers = np.zeros(size, np.int64)
    distinct: list[pa.Array] = []
    for next_column in columns:
        more, values = _encoded(next_column)
        if not distinct:
            numbers = more
            distinct = [values]
            continue
        pair_numbers = numbers.astype(np.int64) * len(values) + more
        numbers, pairs = _encoded(pa.chunked_array([pair_numbers]))
        first, second = np.divmod(pairs.to_numpy(), max(len(values), 1))
        distinct = [column.take(first) for column in distinct] + [values.take(second)]
    return numbers, distinct


def _encoded(column: pa.ChunkedArray) -> tuple[Int, pa.Array]:
    """Return the numbers of a column's distinct values, and these."""
    encoded = column.dictionary_encode(null_encoding="encode")
    if not encoded.num_chunks:
        return np.zeros(0, np.int64), pa.nulls(0, column.type)
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    return numbers, encoded.chunk(encoded.num_chunks - 1).dictionary


def plain_rows(rows: pa.Table) -> pa.Table:
    """Return rows whose columns are plain, where some are numbered."""
    plain_types = [getattr(field.type, "value_type", field.type) for field in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, plain_types, strict=True))))


def run_sums(values: Bool | Int, starts: Bool) -> Int:
    """Return the sum of each run, or how many flags are set in it (wrapping int64 arithmetic; the planner has excluded overflow)."""
    if not len(values):
        return values.astype(np.int64)
    return np.add.reduceat(values, np.flatnonzero(starts), dtype=np.int64)


def run_maxima(values: Int, starts: Bool) -> Int:
    """Return the largest value of each run."""
    return np.maximum.reduceat(values, np.flatnonzero(starts)) if len(values) else values


def running_count(flags: Bool | Int, starts: Bool) -> Int:
    """Return how many flags are set from the start of a row's run up to and including the row; of numbers their sum."""
    total = np.cumsum(flags, dtype=np.int64)
    first = np.flatnonzero(starts)
    before = total[first] - flags[first].astype(np.int64)
    return total - np.repeat(before, np.diff(np.append(first, len(flags))))


def span_sums(values: npt.NDArray[Any], low: Int, high: Int) -> Int:
    """Return the sum of the values low..high - 1 of each span."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    sums: Int = total[high] - total[low]
    return sums


def span_rows(low: Int, high: Int) -> Int:
    """Return the row numbers low..high - 1 of each span, one span after the other."""
    sizes = high - low
    return np.repeat(high - np.cumsum(sizes), sizes) + np.arange(sizes.sum())


def unsort(order: Int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of rows that were sorted by `order` in the order that the rows had before."""
    unsorted: npt.NDArray[Any] = np.empty(len(order), values.dtype)
    unsorted[order] = values
    return unsorted


def read_columns(table: pa.Table, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return some columns of a table as arrays."""
    return [table[name].to_numpy() for name in names]


def find(
    keys: Sequence[npt.NDArray[np.generic]], table: Sequence[npt.NDArray[np.generic]]
) -> tuple[Int, Int]:
    """Return where the rows of `keys` are in a *sorted* table: they equal its rows low..high - 1, and would be inserted at low.

    Args:
        keys, table: column by column, same types.
    """
    low = np.zeros(len(keys[0]), np.int64)
    high = np.full(len(keys[0]), len(table[0]), np.int64)
    is_whole_table = True
    for number, (values, column) in enumerate(zip(keys, table, strict=True)):
        if not is_whole_table:
            low, high = (
                _bisect(column, values, low, high, False),
                _bisect(column, values, low, high, True),
            )
        elif len(column) and column[0] == column[-1]:  # one value, as where one window is open
            same = values == column[0]
            if not same.all():
                low = np.where(values > column[0], len(column), 0)
                high = low.copy()
                if number + 1 < len(keys):
                    low[same], high[same] = find(
                        [k[same] for k in keys[number + 1 :]], table[number + 1 :]
                    )
                else:
                    high[same] = len(column)
                return low, high
        else:
            low = np.searchsorted(column, values)
            high = np.searchsorted(column, values, side="right")
            is_whole_table = False
    return low, high


def _bisect(
    column: npt.NDArray[np.generic],
    values: npt.NDArray[np.generic],
    low: Int,
    high: Int,
    right: bool,
) -> Int:
    """Search binarily for every wanted value in its own part of the column."""
    low = low.copy()
    high = high.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        middle_value = column[middle]
        sought = values[open_]
        goes_right = middle_value <= sought if right else middle_value < sought
        low[open_[goes_right]] = middle[goes_right] + 1
        high[open_[~goes_right]] = middle[~goes_right]
    return low


def match(keys: Sequence[npt.NDArray[np.generic]], table: Sequence[npt.NDArray[np.generic]]) -> Int:
    """Return the position in a sorted table of distinct rows of every row of `keys`, or -1."""
    low, high = find(keys, table)
    return np.where(low < high, low, -1)


def mix(start: Int, *columns: Int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit mix (splitmix64's finaliser). Of a whole record it breaks ties of event time, differently for every user.

    Only one user's own records are compared by it, so it needs no secrecy; it keeps ties independent of arrival
    order and of the engine.
    """
    mixed = start.view(np.uint64).copy()
    for column in columns:
        mixed ^= column.view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def int_fields(names: Iterable[str]) -> list[pa.Field]:
    """Return fields of 64-bit integers."""
    return [pa.field(name, pa.int64()) for name in names]


def places(rows: Int) -> Int:
    """Return where new rows stand once each has been inserted before its row of `rows` (ascending) of the old ones."""
    return rows + np.arange(len(rows))


def insert(column: npt.NDArray[Any], new: npt.NDArray[Any], positions: Int) -> npt.NDArray[Any]:
    """Return the column with new rows at `positions` of the result, as from `places`; also for rows of several numbers."""
    inserted = np.empty((len(column) + len(new), *column.shape[1:]), column.dtype)
    is_old = np.ones(len(inserted), bool)
    is_old[positions] = False
    inserted[is_old] = column
    inserted[positions] = new
    return inserted


# Noise states as columns: a row's numbers are a list of a fixed size.


def to_lists(values: npt.NDArray[np.float64]) -> pa.FixedSizeListArray:
    """Return a (rows, width) array as a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def from_lists(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float64]:
    """Return the (rows, width) array of a column of fixed-size lists; a copy."""
    return np.array(as_rows(column, width))


def as_rows(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float64]:
    """Return the array of `from_lists`, but as a view where it can be one."""
    flat: npt.NDArray[np.float64] = column.combine_chunks().flatten().to_numpy()
    return flat.reshape(len(column), width)
