"""Digest and cells: the construction one value at a time, all of the digest in it, and cells as even as chance."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dpsql.udfs.sketch.hashing import CellShape, digest, digests, hash_key
from tests.mechanisms.sketch import reference
from tests.mechanisms.sketch.sketch_runs import ROOT

SHAPES = [CellShape(3, 64), CellShape(9, 8192), CellShape(5, 4096, False), CellShape(31, 1 << 24)]
KEY = hash_key(ROOT, None)


def some(count: int) -> pa.Array:
    return pa.array([digest(b"value %d" % i) for i in range(count)], pa.binary(32))


@pytest.mark.parametrize("shape", SHAPES)
def test_cells_are_those_of_the_construction(shape: CellShape) -> None:
    names = some(12)
    fields = shape.fields(KEY, digests(names))
    for row in range(shape.depth):
        for i, name in enumerate(names.to_pylist()):
            column, sign = reference.place(KEY, name, row, shape.width, shape.blocks)
            assert fields[row, i] >> 1 == column
            assert (fields[row, i] & 1) == (sign < 0 and shape.signed)
    assert digest(b"x") == reference.digest(b"x")
    assert np.array_equal(digests(pa.chunked_array([names[:5], names[5:]])), digests(names))
    assert np.array_equal(digests(names[3:7]), digests(names)[3:7])


def test_every_bit_of_the_digest_enters_every_cell() -> None:
    """Two values that agree in 64 bits, or in 128, can be made by hand: they must not share their cells. One bit flipped: half of all bits."""
    shape = CellShape(9, 8192)
    first = digests(some(1))
    for bit in range(256):
        other = first.copy().view(np.uint8)
        other[0, bit // 8] ^= 1 << bit % 8
        here = shape.fields(KEY, first)
        there = shape.fields(KEY, other.view(np.int64))
        flipped = sum(int(each).bit_count() for each in (here ^ there)[:, 0])
        assert 30 < flipped < 96  # of 126; 63 +- 6 standard deviations


def test_hash_keys_of_windows_and_runs_differ() -> None:
    keys = {
        hash_key(root, window) for root in (ROOT, bytes(32)) for window in (None, 0, 1, -1, 1 << 61)
    }
    assert len(keys) == 10
    assert {len(key) for key in keys} == {16}


def test_columns_and_signs_are_even_and_rows_independent() -> None:
    """Chi-square; flake 1e-6."""
    shape = CellShape(4, 64)
    values = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, (40_000, 4))
    fields = shape.fields(KEY, values).astype(np.int64)
    for row in range(4):
        assert stats.chisquare(np.bincount(fields[row], minlength=128)).pvalue > 1e-6
    assert (
        stats.chisquare(np.bincount((fields[0] >> 3) * 16 + (fields[1] >> 3), minlength=256)).pvalue
        > 1e-6
    )


def test_sums_are_exact_integers() -> None:
    shape = CellShape(3, 64)
    g = np.random.default_rng(2)
    field = g.integers(0, 128, 500).astype(np.uint32)
    values = g.integers(-(1 << 52), 1 << 52, 500)
    expected = [0] * 64
    for each, value in zip(field.tolist(), values.tolist(), strict=True):
        expected[each >> 1] += -value if each & 1 else value
    assert shape.sums(field, values).tolist() == expected
    assert np.array_equal(shape.sums(field, None), shape.sums(field, np.ones(500, np.int64)))
