"""Limited translation: a better guess of every window sum from the sums released so far. Post-processing; it costs no budget.

A window sum u is moved towards w times the running mean of the bin's panes, over several memories, by the positive-part James-Stein
factor min(1, V / M): V is known from the noise alone, M is how far the two have lain apart. No more than REACH standard deviations, and not
at all where the mean lies FAR away (Efron and Morris 1972: limited translation). So |smoothed - u| <= REACH standard deviations for
every stream. Only + - * / sqrt and comparisons in a fixed order: the same bits on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float

MEMORIES = (16, 32, 64, 128, 256, 512)
RISK = 128
"""Memory of the running mean M."""

REACH = 2.0
FAR = 3.0


def power(base: float, exponent: int) -> float:
    """Return base^exponent by multiplications in a fixed order; `**` rounds differently from one C library to another."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def weight(base: float, count: int) -> float:
    """Return 1 + base + .. + base^(count - 1)."""
    return (1.0 - power(base, count)) / (1.0 - base)


@dataclass(frozen=True)
class LimitedTranslation:
    """The smoother of one aggregate.

    Args:
        panes: panes of a window.
        variance: variance of the noise of one pane.
        floor: sums cannot be negative, so neither is what is shown.
    """

    panes: int
    variance: float
    floor: bool

    def agreement(self, memory: int, pane: int) -> tuple[float, float]:
        """Return (Var u - Cov(u, c), Var(u - c)) of the noise in pane number `pane`; c is the running mean times the panes of the window."""
        size = min(pane + 1, self.panes)
        decay = 1.0 - 1.0 / memory
        total = weight(decay, pane + 1)
        of_window = size * self.variance
        shared = size * self.variance * weight(decay, size) / total
        of_mean = size * size * self.variance * weight(decay * decay, pane + 1) / (total * total)
        return of_window - shared, of_window - 2.0 * shared + of_mean

    def stderr(self, pane: int) -> float:
        """Return the standard deviation of the window sum's noise."""
        return math.sqrt(min(pane + 1, self.panes) * self.variance)

    def mean(self, means: Float, memory: int, pane: int) -> Float:
        """Return the running mean of the panes up to number `pane`, weights (1 - 1/memory)^age."""
        return means[:, MEMORIES.index(memory)] / weight(1.0 - 1.0 / memory, pane + 1)

    def distance(self, distances: Float, memory: int, pane: int) -> Float:
        """Return M, the running mean of (u - c)^2."""
        return distances[:, MEMORIES.index(memory)] / weight(1.0 - 1.0 / RISK, pane + 1)

    def advance(
        self, means: Float, distances: Float, value: Float, window: Float, pane: int
    ) -> Float:
        """Take in one pane and smooth the window that ends with it.

        Args:
            means, distances: the bins' running sums, (bins, memories); changed in place.
            value: the pane, as measured or predicted.
            window: u, the sum of the window's panes.
            pane: number of the pane, from 0; windows are smoothed once a first whole one has passed.

        Returns:
            The smoothed window sums.
        """
        size = min(pane + 1, self.panes)
        best = np.full(len(window), -1.0)
        smoothed = window.copy()
        stderr = self.stderr(pane)
        for i, memory in enumerate(MEMORIES):
            means[:, i] *= 1.0 - 1.0 / memory
            means[:, i] += value
            difference = size * self.mean(means, memory, pane) - window
            distances[:, i] *= 1.0 - 1.0 / RISK
            distances[:, i] += difference * difference
            gain = self.agreement(memory, pane)[0]
            if pane < self.panes or gain <= 1e-9 * stderr * stderr:
                continue
            distance = np.maximum(self.distance(distances, memory, pane), 1e-30)
            shift = np.clip(
                np.minimum(1.0, gain / distance) * difference, -REACH * stderr, REACH * stderr
            )
            score = gain * gain / distance
            better = score > best
            best = np.where(better, score, best)
            smoothed = np.where(
                better, window + np.where(np.abs(difference) > FAR * stderr, 0.0, shift), smoothed
            )
        return np.maximum(smoothed, 0.0) if self.floor else smoothed
