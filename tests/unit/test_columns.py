"""Sorted columns against plain Python."""

import bisect
import itertools
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from dpsql.udfs.columns import (
    find,
    insert,
    match,
    number_rows,
    places,
    read_numbers,
    run_starts,
    run_sums,
    running_count,
    sort_order,
)


def random_columns(seed: int, size: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(-2, 3, size) for _ in range(3)]


@pytest.mark.parametrize("size", [0, 1, 2, 50])
def test_sort_order_is_stable_and_by_the_first_column_first(size: int) -> None:
    """Catches: numpy's lexsort order (last column first) leaking out; an unstable sort would make ties depend on the machine."""
    columns = random_columns(size, size)
    expected = sorted(range(size), key=lambda i: tuple(int(c[i]) for c in columns))
    assert sort_order(*columns).tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 50])
def test_runs(size: int) -> None:
    """Catches: sums that spill into the next run, counts that start from 0 or run on."""
    columns = random_columns(size, size)
    order = sort_order(*columns)
    rows = [tuple(int(c[i]) for c in columns) for i in order]
    starts = run_starts(*(c[order] for c in columns))
    assert starts.tolist() == [i == 0 or rows[i] != rows[i - 1] for i in range(size)]
    values = np.arange(size, dtype=np.int64) - 7
    expected = [
        sum(int(values[i]) for i, _ in group)
        for _, group in itertools.groupby(enumerate(rows), key=lambda row: row[1])
    ]
    assert run_sums(values, starts).tolist() == expected
    flags = np.arange(size) % 3 > 0
    so_far: dict[tuple, int] = defaultdict(int)
    counts = []
    for row, flag in zip(rows, flags, strict=True):
        so_far[row] += int(flag)
        counts.append(so_far[row])
    assert running_count(flags, starts).tolist() == counts


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint32, np.uint8])
@pytest.mark.parametrize("size", [3, 200])
def test_sort_order_of_wide_and_narrow_columns(kind: type, size: int) -> None:
    """Catches: columns that do not fit into one word beside each other, differences of far numbers, ties that lose their order."""
    generator = np.random.default_rng(size)
    ends = np.iinfo(kind)
    few = generator.integers(ends.min, ends.max, 4, dtype=kind, endpoint=True)
    many = generator.integers(ends.min, ends.max, size, dtype=kind, endpoint=True)
    picked = few[generator.integers(0, 4, size)]
    for columns in (
        (picked, many),
        (many, picked),
        (picked, picked, picked[::-1]),
        (few[:1].repeat(size), picked, many[::-1]),
    ):
        assert sort_order(*columns).tolist() == np.lexsort(columns[::-1]).tolist()


def rows_of(*rows: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(column, np.int64) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("spread", [1, 2, 6])
def test_find_is_a_search_among_sorted_rows(spread: int) -> None:
    """Against bisection of tuples; with one, two or many values in the first column. Catches: a range that runs into the next row's."""
    generator = np.random.default_rng(spread)
    table = sorted(
        zip(
            generator.integers(0, spread, 80).tolist(),
            generator.integers(0, 9, 80).tolist(),
            strict=True,
        )
    )
    keys = [(a, b) for a in range(-1, spread + 1) for b in range(-1, 10)]
    for size in (0, 1, 7, 80):
        part = table[:size] if size else []
        columns = rows_of(*part) if part else [np.zeros(0, np.int64)] * 2
        low, high = find(rows_of(*keys), columns)
        assert low.tolist() == [bisect.bisect_left(part, key) for key in keys]
        assert high.tolist() == [bisect.bisect_right(part, key) for key in keys]


def test_rows_are_inserted_before_the_row_they_name() -> None:
    old = np.array([10, 20, 30])
    new = np.array([5, 15, 16, 40])
    assert insert(old, new, places(np.array([0, 1, 1, 3]))).tolist() == [5, 10, 15, 16, 20, 30, 40]
    assert insert(np.ones((2, 2)), np.zeros((1, 2)), places(np.array([1]))).tolist() == [
        [1, 1],
        [0, 0],
        [1, 1],
    ]


def test_match_finds_rows_or_says_so() -> None:
    """Catches: a look-up on the first column only."""
    table = [np.array([-1, 5, 5]), np.array([9, 1, 2])]
    keys = [np.array([-1, 5, 5, 7]), np.array([9, 2, 3, 9])]
    assert match(keys, table).tolist() == [0, 2, -1, -1]
    empty = [np.zeros(0, np.int64)] * 2
    assert match(keys, empty).tolist() == [-1] * 4
    assert match(empty, table).tolist() == []


def test_match_compares_all_64_bits() -> None:
    """Catches: ids that went through float64 on the way."""
    big = 2**62
    assert match([np.array([big + 1])], [np.array([big, big + 1])]).tolist() == [1]
    assert match([np.array([big + 3])], [np.array([big, big + 1])]).tolist() == [-1]


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_number_rows_numbers_distinct_rows(size: int) -> None:
    """Catches: numbers of pairs that do not fit into 32 bits, NULL that is another value's, a chunk's own numbers."""
    number = np.arange(size)
    texts = pa.array([None if n % 7 == 0 else str(n) for n in number], pa.string())
    columns = [
        pa.chunked_array([number[: size // 2], number[size // 2 :]]),
        pa.chunked_array([texts[:9], texts[9:]]),
        pa.chunked_array([number % 3 == 0]),
    ]
    twice = [pa.chunked_array([*column.chunks, *column.chunks]) for column in columns]
    numbers, distinct = number_rows(twice, 2 * size)
    assert len(distinct[0]) == size
    assert [values.take(numbers).to_pylist() for values in distinct] == [
        column.to_pylist() for column in twice
    ]


def test_lookups_of_tests_refuse_tables_out_of_order() -> None:
    """An order that is promised and not kept: rows would not be found, and nothing would say so."""
    ordered = [np.array([1, 2, 2]), np.array([5, 1, 3])]
    assert match([np.array([2]), np.array([3])], ordered).tolist() == [2]
    with pytest.raises(AssertionError, match="not sorted"):
        match([np.array([2]), np.array([3])], [np.array([1, 2, 2]), np.array([5, 3, 1])])


def test_numbered_columns_ascend() -> None:
    """Numbers that do not compare as their values do: units would be taken for others' neighbours."""
    numbered = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([7, 3]))
    with pytest.raises(ValueError, match="do not ascend"):
        read_numbers(pa.table({"user": numbered}), "user")
