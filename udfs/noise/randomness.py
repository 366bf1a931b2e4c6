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
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from dpsql.udfs.columns import Float, Int

MAX_NORMAL = 13.2
"""The quantile of 2^-129 is -13.11: no draw is larger."""

SELECTION = 0
"""Mechanism number of key selection; perturbations count from 1."""

Blocks = npt.NDArray[np.uint64]


def _encrypt(noise_key: bytes, blocks: Blocks) -> Blocks:
    if not len(blocks):
        return blocks
    encryptor = Cipher(
        algorithms.AES(noise_key), modes.ECB()
    ).encryptor()  # ECB: one call encrypts all blocks independently
    encrypted = (
        encryptor.update(np.ascontiguousarray(blocks, dtype="<u8").data.cast("B"))
        + encryptor.finalize()
    )
    return np.frombuffer(encrypted, dtype="<u8").reshape(-1, 2)


def intake_key(noise_key: bytes) -> bytes:
    """Return 32 bytes for the intake of the same run, which draws no noise: the noise key cannot be found from them."""
    mac = hmac.HMAC(noise_key, hashes.SHA256())
    mac.update(b"dpsql/1/intake")
    return mac.finalize()


def tags(noise_key: bytes, window: Int, key: Int) -> Blocks:
    """Return the inner AES block of every group; shape (n, 2)."""
    blocks = np.empty((len(window), 2), dtype="<u8")
    blocks[:, 0] = window.view(np.uint64)
    blocks[:, 1] = key.view(np.uint64)
    return _encrypt(noise_key, blocks)


def words(
    noise_key: bytes,
    tag: Blocks,
    mechanism: int,
    round_: int | Int,
    step: int | Int,
    number: int | Int = 0,
) -> Blocks:
    """Return 128 random bits per group for one (mechanism, round, step) and number of the draw within the step; shape (n, 2).

    round_, step and number are one for all groups, or one per group.
    mechanism, number, round and step stay below 2^32 and have 32 bits each of the block, so different cells never share one.
    """
    blocks = np.array(tag, dtype="<u8", copy=True)
    blocks[:, 0] ^= (np.asarray(number, dtype=np.uint64) << np.uint64(32)) | np.uint64(mechanism)
    blocks[:, 1] ^= (np.asarray(round_, dtype=np.uint64) << np.uint64(32)) | np.asarray(
        step, dtype=np.uint64
    )
    return _encrypt(noise_key, blocks)


def lower_tails(random_words: Blocks) -> Float:
    """Return (k + 1/2) / 2^128 for the 127-bit number k of all bits but the sign: a probability in (0, 1/2], in float64.

    Fewer bits would not do: with 52, neighbouring quantiles in the tails lie wider apart than one unit of a SUM's grid, so some
    integers could never be noise, and an output there would rule out one of two neighbouring streams. With 127 bits and the
    floating point of small numbers the quantiles are dense to beyond 12 standard deviations.
    """
    high = (random_words[:, 0] & np.uint64((1 << 63) - 1)).astype(np.float64)
    low = (random_words[:, 1].astype(np.float64) + 0.5) * 2.0**-64
    return (high + low) * 2.0**-64


def normals(
    noise_key: bytes,
    tag: Blocks,
    mechanism: int,
    round_: int | Int,
    step: int | Int,
    number: int | Int = 0,
) -> Float:
    """Return the standard normals, one per group: the quantile of a lower tail with a random sign; always finite (|z| <= MAX_NORMAL)."""
    random_words = words(noise_key, tag, mechanism, round_, step, number)
    z = ndtri(lower_tails(random_words))
    return np.where(random_words[:, 0] >> np.uint64(63), -z, z)
