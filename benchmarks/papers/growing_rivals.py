"""What questions to a growing table are compared with: benchmarks only, dpsql offers none of them.

* The sum over all cells: one counter per cell of all keys, with all of mu^2.
* PMWG (Cummings, Krehbiel, Lai and Tantipongpipat, NeurIPS 2018, algorithm 4) with the noise as printed: private multiplicative weights on a growing
  database, one row protected, public size. The threshold's noise is drawn once and after each hit. What is wrong with it: docs/privacy/marginals.md.

Laplace noise in float64: it is measured, and protects nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.udfs.marginals.estimates import Product
from dpsql.udfs.noise.counters import column_norm, path_sd

ALPHA = 0.1
EPSILON = 1.0
LOOKED_AT = 400
"""Questions after which a run with hits for 30% of them is not followed any further."""


def sum_over_cells(plan: MarginalsPlan, energy: np.ndarray, triggers: Sequence[int]) -> np.ndarray:
    """Standard errors where every cell has its own counter, C = 1; `energy` is |f|^2."""
    chosen = plan.counter
    sd = np.array([path_sd(chosen)[trigger - 1] for trigger in triggers])
    return np.sqrt(energy * ((column_norm(chosen) * sd / plan.mu) ** 2 + 1 / 12))


def pmwg(
    sizes: Sequence[int], values: np.ndarray, asked: Sequence[Product], delta: float, seed: int = 7
) -> str:
    """Question by question, at sizes from a fifth of the stream on."""
    chance = np.random.default_rng(seed)
    cells = math.prod(sizes)
    total = len(values)
    first = total // 5
    times = np.sort(chance.integers(first, total + 1, len(asked)))
    place = np.ravel_multi_index(tuple(values.T), tuple(sizes))

    def accuracy(t: int) -> float:
        """xi_t of the paper, for delta = 0 and above."""
        entropy = math.log(cells * first)
        if delta:
            return (
                ALPHA
                * math.sqrt(first * t)
                * EPSILON
                / (48 * math.sqrt(entropy * math.log(1 / delta)))
            )
        return ALPHA**2 * math.sqrt(first * t) * EPSILON / (162 * entropy)

    guess = np.full(cells, 1 / cells)
    size = first
    counts = np.bincount(place[:first], minlength=cells).astype(float)
    threshold = chance.laplace(0, 2)
    hits = twice = good = number = 0
    for number, (predicate, t) in enumerate(zip(asked, times.tolist(), strict=True), start=1):
        if t > size:
            counts += np.bincount(place[size:t], minlength=cells)
            guess = guess * (size / t) + (1 - size / t) / cells
            size = t
        f = indicator(sizes, predicate)
        true = float(f @ counts) / t
        guessed = float(f @ guess)
        xi = accuracy(t)
        fired = []
        for sign in (1, -1):
            gap = sign * (true - guessed)
            if gap + chance.laplace(0, 4 / xi) >= 2 * ALPHA / 3 + threshold / xi:
                fired.append(sign * (gap + chance.laplace(0, 8 / xi)))
                threshold = chance.laplace(0, 2)
        answer = guessed + fired[0] if fired else guessed
        good += abs(answer - true) <= ALPHA
        if fired:
            hits = hits + 1
            twice = twice + (len(fired) == 2)
            guess = guess * np.exp(-ALPHA / 6 * (f if answer < guessed else 1 - f))
            guess /= guess.sum()
        if number >= LOOKED_AT and hits > 0.3 * number:
            break
    scale = accuracy(first)
    noise = f"noise of a test Lap({4 / scale:.3g}), of an answer Lap({8 / scale:.3g}), as shares of the rows"
    seen = f"of {number} questions {hits} hits, both tests fired {twice} times ({twice / number:.0%}); {good / number:.0%} of answers within alpha"
    return f"PMWG as printed, alpha = {ALPHA}, delta = {delta:g}: {noise}; {seen}"


def indicator(sizes: Sequence[int], predicate: Product) -> np.ndarray:
    """Return 1 for each cell that a predicate of products holds for, else 0."""
    out = np.ones(1)
    for key, n in enumerate(sizes):
        out = np.multiply.outer(out, predicate.get(key, np.ones(n))).ravel()
    return out
