"""The noise function: one AES block at a time, extreme uniforms in high precision, and cells that never coincide."""

import itertools
import struct

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtr, ndtri

from dpsql.udfs.noise.randomness import MAX_NORMAL, lower_tails, normals, tags, words

KEY = bytes(range(32))
WINDOWS = np.array([0, -1, 86_400_000_000, -(2**62), 2**62], dtype=np.int64)
KEYS = np.array([1, -(2**63), 2**63 - 1, 0, -7], dtype=np.int64)


def block(data: bytes) -> bytes:
    return Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(data)


@pytest.mark.parametrize(("mechanism", "round_", "step", "number"), [(0, 0, 1, 0), (1, 0, 24, 3), (3, 2**31, 10_000, 13)])
def test_the_construction_one_block_at_a_time(mechanism: int, round_: int, step: int, number: int) -> None:
    """Catches: byte order, a field that is dropped or overlaps another, the low bits of a word taken for the high ones."""
    found = words(KEY, tags(KEY, WINDOWS, KEYS), mechanism, round_, step, number)
    for i, (window, key) in enumerate(zip(WINDOWS.tolist(), KEYS.tolist(), strict=True)):
        inner = block(struct.pack("<qq", window, key))
        outer = block(bytes(x ^ y for x, y in zip(inner, struct.pack("<IIII", mechanism, number, step, round_), strict=True)))
        assert tuple(found[i].tolist()) == struct.unpack("<QQ", outer)


def test_every_cell_is_another_word() -> None:
    """Catches: (mechanism, number, round, step) packed so that two cells share a block; rounds given per group are those given alone."""
    tag = tags(KEY, WINDOWS[:1], KEYS[:1])
    ends = [0, 1, 2, 2**31, 2**32 - 1]
    cells = [tuple(words(KEY, tag, m, r, s, n)[0].tolist()) for m, r, s, n in itertools.product(ends, repeat=4)]
    assert len(set(cells)) == len(cells)
    per_group = words(KEY, tags(KEY, WINDOWS, KEYS), 0, np.arange(5), 3)
    assert per_group.tolist() == [words(KEY, tags(KEY, WINDOWS, KEYS), 0, i, 3)[i].tolist() for i in range(5)]


def test_no_groups_give_no_noise() -> None:
    """A tick of a bucket without groups. Catches: an empty buffer handed to the cipher (memoryview cannot cast it)."""
    none = np.zeros(0, np.int64)
    assert tags(KEY, none, none).shape == (0, 2)
    assert normals(KEY, tags(KEY, none, none), 1, 0, 1).shape == (0,)


def test_a_group_has_the_same_noise_whoever_is_beside_it() -> None:
    """Catches: a cipher mode that chains blocks."""
    whole = normals(KEY, tags(KEY, WINDOWS, KEYS), 1, 0, 1)
    for i in range(5):
        assert normals(KEY, tags(KEY, WINDOWS[i : i + 1], KEYS[i : i + 1]), 1, 0, 1)[0] == whole[i]


def test_tails_are_never_0_and_reach_far_enough() -> None:
    """Catches: an infinite normal, a sign bit that is counted twice, a tail cut off where a SUM's grid still sees it."""
    full = 2**64 - 1
    ends = lower_tails(np.array([[0, 0], [0, full], [1, 0], [2**63 - 1, full], [2**63, 0]], dtype=np.uint64))
    assert ends.tolist() == [2.0**-129, pytest.approx(2.0**-64), pytest.approx(2.0**-64), 0.5, 2.0**-129]
    assert np.abs(ndtri(ends)).max() < MAX_NORMAL


def test_quantiles_are_denser_than_any_grid_to_ten_deviations() -> None:
    """With 52-bit uniforms neighbouring quantiles at 6 sd are 4e-8 sd apart: wider than one unit of a SUM's grid, so some
    outputs were impossible in one world. Here every unit of the grid of SUM(x, (0, 60)), C = 32, epsilon = 1, has many."""
    unit_in_sd = 2.0**-15 / 17_000
    for z in (-1.0, -4.0, -6.0, -8.0, -10.0):
        p = float(ndtr(z))
        step = max(p * 2.0**-52, 2.0**-128)
        assert float(ndtri(p + step) - ndtri(p)) * 1000 < unit_in_sd
    coarse = float(ndtri(float(ndtr(-6.0)) + 2.0**-52) + 6.0)
    assert coarse > unit_in_sd  # the test would see the old defect


def exact_quantile(u: float) -> mpmath.mpf:
    """Phi^-1 with 40 digits: Newton from the float64 answer."""
    with mpmath.workdps(40):
        x = mpmath.mpf(float(ndtri(u)))
        for _ in range(4):
            x -= (mpmath.ncdf(x) - mpmath.mpf(u)) / mpmath.npdf(x)
        return x


def test_the_quantile_function_on_extreme_uniforms() -> None:
    """Relative error below 1e-14. Catches: a library whose tails are an approximation (the threshold lives in the tail)."""
    low = [2.0**-53 * (2 * k + 1) for k in (0, 1, 2, 3, 10, 1000, 10**6, 10**9, 10**12)]
    middle = [0.1, 0.25, 0.3, 0.499, 0.501, 0.75, 0.9]
    for u in low + [1 - u for u in low] + middle:
        found, exact = float(ndtri(u)), exact_quantile(u)
        assert abs((mpmath.mpf(found) - exact) / exact) < 1e-14, u
