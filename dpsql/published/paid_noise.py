"""The noise of paid answers, and the name of a question, which is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.paths import Paths
from dpsql.udfs.noise.randomness import tags

NOISE_STREAM = 2**32 - 1
"""Number of the noise of paid answers: no sum of a release has it."""
ONE_STEP = BltInf()
"""The first step of its path is one normal number."""


def noise(noise_key: bytes, trigger: int, question: str, sigma: float, times: int) -> int:
    """Return a normal number times sigma, rounded: another one for each trigger, question, sigma and number of answers that the question has had.

    Two answers with one normal number and two sigmas would give the exact count away.
    """
    words = f"dpsql/1/paid|{trigger}|{question}|{sigma.hex()}|{times}".encode()
    window, key = np.frombuffer(hashlib.sha256(words).digest()[:16], "<i8").reshape(2, 1)
    path = Paths(ONE_STEP, NOISE_STREAM, noise_key, tags(noise_key, window, key))
    state = np.zeros((1, ONE_STEP.width))
    place = np.zeros(1, np.int64)
    path.follow(state, np.zeros(1, np.int64), place, 1)
    return int(path.rounded(state, place, 1, sigma)[0])


def question_digest(
    domains: Sequence[Sequence[str]], products: Sequence[Mapping[int, np.ndarray]]
) -> str:
    """Return the SHA-256 of the set of cells that disjoint products are: one for all ways to write it.

    It is the reduced decision diagram over the keys: a key whose values all lead to the same set is passed over.
    """
    digests: dict[tuple[int, tuple[int, ...]], str] = {}

    def having(key: int, value: int, places: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i in places if key not in products[i] or products[i][key][value] > 0)

    def diagram(key: int, places: tuple[int, ...]) -> str:
        if key == len(domains):
            return "in" if places else "out"
        if (key, places) not in digests:
            values = range(len(domains[key]))
            branches = [diagram(key + 1, having(key, value, places)) for value in values]
            text = f"{key}:{','.join(branches)}"
            differs = len(set(branches)) > 1
            digests[key, places] = (
                hashlib.sha256(text.encode()).hexdigest() if differs else branches[0]
            )
        return digests[key, places]

    return diagram(0, tuple(range(len(products))))
