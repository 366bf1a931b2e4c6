"""The noise function: one AES block at a time, extreme uniforms in high precision, and cells that never coincide."""

from __future__ import annotations

import itertools
import struct

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from udfs.randomness import UNIFORM_BITS, normals, tags, uniforms, words

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
        assert int(found[i]) == struct.unpack("<Q", outer[:8])[0] >> (64 - UNIFORM_BITS)


def test_every_cell_is_another_word() -> None:
    """Catches: (mechanism, number, round, step) packed so that two cells share a block; rounds given per group are those given alone."""
    tag = tags(KEY, WINDOWS[:1], KEYS[:1])
    ends = [0, 1, 2, 2**31, 2**32 - 1]
    cells = [int(words(KEY, tag, m, r, s, n)[0]) for m, r, s, n in itertools.product(ends, repeat=4)]
    assert len(set(cells)) == len(cells)
    per_group = words(KEY, tags(KEY, WINDOWS, KEYS), 0, np.arange(5), 3)
    assert per_group.tolist() == [int(words(KEY, tags(KEY, WINDOWS, KEYS), 0, i, 3)[i]) for i in range(5)]


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


def test_uniforms_are_exact_and_never_0_or_1() -> None:
    """Catches: an infinite normal, and a grid that is not symmetric about one half."""
    top = 2**UNIFORM_BITS - 1
    ends = uniforms(np.array([0, 1, top - 1, top], dtype=np.uint64))
    assert ends.tolist() == [2.0**-53, 3 * 2.0**-53, 1 - 3 * 2.0**-53, 1 - 2.0**-53]
    assert np.all(np.isfinite(ndtri(ends)))
    assert np.abs(ndtri(ends)).max() < 8.3


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
