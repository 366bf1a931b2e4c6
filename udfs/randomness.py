"""The one place where randomness is made: a keyed pseudo-random function of (group, mechanism, round, step).

There is no generator and no hidden state: asking twice for the same cell gives the same number, so a retried micro-batch,
a restarted job and the local engine all see the same noise, and nothing can be averaged away by asking again.

Construction: `AES_k(AES_k(window, key) xor (mechanism, number, round, step))`, a fixed-length CBC-MAC of two blocks under a 256-bit
noise key that belongs to one run. The inner block is `tag` below and is computed once per group and call. `key` is the
64-bit salted hash of the group's key; two keys that share it share their whole state, which is charged to delta.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from udfs.columns import Float, Int

UNIFORM_BITS = 52
SELECTION = 0
"""Mechanism number of key selection; perturbations count from 1."""

Blocks = npt.NDArray[np.uint64]


def _encrypt(noise_key: bytes, blocks: Blocks) -> Blocks:
    if not len(blocks):
        return blocks
    encryptor = Cipher(algorithms.AES(noise_key), modes.ECB()).encryptor()  # ECB: one call encrypts all blocks independently
    out = encryptor.update(np.ascontiguousarray(blocks, dtype="<u8").data.cast("B")) + encryptor.finalize()
    return np.frombuffer(out, dtype="<u8").reshape(-1, 2)


def tags(noise_key: bytes, window: Int, key: Int) -> Blocks:
    """The inner AES block of every group; shape (n, 2)."""
    blocks = np.empty((len(window), 2), dtype="<u8")
    blocks[:, 0] = window.view(np.uint64)
    blocks[:, 1] = key.view(np.uint64)
    return _encrypt(noise_key, blocks)


def words(noise_key: bytes, tag: Blocks, mechanism: int, round_: int | Int, step: int, number: int = 0) -> npt.NDArray[np.uint64]:
    """52 random bits per group for one (mechanism, round, step) and number of the draw within the step; shape (n,).

    mechanism, number, round and step stay below 2^32 and have 32 bits each of the block, so different cells never share one.
    """
    blocks = np.array(tag, dtype="<u8", copy=True)
    blocks[:, 0] ^= np.uint64(number << 32 | mechanism)
    blocks[:, 1] ^= (np.asarray(round_, dtype=np.uint64) << np.uint64(32)) | np.uint64(step)
    return _encrypt(noise_key, blocks)[:, 0] >> np.uint64(64 - UNIFORM_BITS)


def uniforms(random_words: npt.NDArray[np.uint64]) -> Float:
    """(k + 1/2) / 2^52: strictly between 0 and 1, exact in float64, symmetric about 1/2."""
    return (random_words.astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS


def normals(noise_key: bytes, tag: Blocks, mechanism: int, round_: int | Int, step: int, number: int = 0) -> Float:
    """Standard normals by the inverse distribution function, one per group; always finite (|z| < 8.3)."""
    return ndtri(uniforms(words(noise_key, tag, mechanism, round_, step, number)))
