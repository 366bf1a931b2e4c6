"""Sorted columns against plain Python."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from udfs.columns import match, run_starts, run_sums, running_count, sort_order


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
    expected = [sum(int(values[i]) for i, _ in group) for _, group in itertools.groupby(enumerate(rows), key=lambda row: row[1])]
    assert run_sums(values, starts).tolist() == expected
    flags = np.arange(size) % 3 > 0
    so_far: dict[tuple, int] = defaultdict(int)
    counts = []
    for row, flag in zip(rows, flags, strict=True):
        so_far[row] += int(flag)
        counts.append(so_far[row])
    assert running_count(flags, starts).tolist() == counts


def test_match_finds_rows_or_says_so() -> None:
    """Catches: a look-up on the first column only, and a key found in itself."""
    table = [np.array([5, 5, -1]), np.array([1, 2, 9])]
    keys = [np.array([-1, 5, 5, 7]), np.array([9, 2, 3, 9])]
    assert match(keys, table).tolist() == [2, 1, -1, -1]
    empty = [np.zeros(0, np.int64)] * 2
    assert match(keys, empty).tolist() == [-1] * 4
    assert match(empty, table).tolist() == []


def test_match_compares_all_64_bits() -> None:
    """Catches: ids that went through float64 on the way."""
    big = 2**62
    assert match([np.array([big + 1])], [np.array([big, big + 1])]).tolist() == [1]
    assert match([np.array([big + 3])], [np.array([big, big + 1])]).tolist() == [-1]
