"""Sliding windows as plain lists: one bin, one number at a time. Noise is asked for by name, so that both forms can be given the same."""

import math
from collections.abc import Callable

from dpsql.mechanisms.sliding.planner import _probabilities

Noise = Callable[[int], int]
"""Noise by number of the pane."""


def pane_sums(
    records: list[tuple[int, int, int]], slide: int, first: int
) -> dict[tuple[int, int], int]:
    """(pane, key) -> how many of the records `(batch, ts, key)` are in it."""
    out: dict[tuple[int, int], int] = {}
    for _, ts, key in records:
        if ts >= first:
            cell = ((ts - first) // slide, key)
            out[cell] = out.get(cell, 0) + 1
    return out


def windows(values: list[float], w: int) -> list[float]:
    """Sum of the last w values, added up in the order of pane number modulo w."""
    out = []
    for t in range(len(values)):
        last = range(max(0, t - w + 1), t + 1)
        total = 0.0
        for pane in sorted(last, key=lambda pane: pane % w):
            total += values[pane]
        out.append(total)
    return out


def plain(x: list[int], w: int, noise: Noise) -> list[int]:
    """PANES: every pane measured, the last w added up."""
    y = [count + noise(t) for t, count in enumerate(x)]
    return [sum(y[max(0, t - w + 1) : t + 1]) for t in range(len(x))]


def paper(
    x: list[int], monitor: Noise, alone: Noise, together: Callable[[int, int], int], epsilon: float
) -> tuple[list[float], list[int]]:
    """Retroactive Grouping as published (Algorithms 1 and 2), sampling rate 1: the value of every pane, and the panes that were measured alone.

    Args:
        x: a bin's counts.
        monitor, alone: noise of the monitor, of a pane by itself.
        together: noise of the sum of a number of panes, by (first pane, number).
        epsilon: eps2, of what is measured.
    """
    values: list[float] = []
    fired: list[int] = []
    group: list[int] = []
    target = 0
    last = 0.0
    for t, count in enumerate(x):
        if t == 0 or (values[-1] - (count + monitor(t))) ** 2 >= 2.0 / (epsilon * epsilon):
            group = []
            target = 2
            last = float(count + alone(t))
            fired.append(t)
        else:
            group.append(count)
            if len(group) >= target:
                last = (sum(group) + together(t - len(group) + 1, len(group))) / len(group)
                group, target = [], 2 * len(group)
        values.append(last)
    return values, fired


def smoothing_target(values: list[float], memory: int, w: int) -> float:
    """w times the mean of the values with weights (1 - 1/memory)^age."""
    weights = [(1 - 1 / memory) ** age for age in range(len(values))][::-1]
    return w * sum(a * v for a, v in zip(weights, values, strict=True)) / sum(weights)


def coverage(epsilon: float, panes: int, h: int) -> float:
    """P(|sum| <= h) of so many discrete Laplace noises."""
    p = _probabilities(epsilon, panes)
    return float(p[0] + 2.0 * math.fsum(p[1 : h + 1].tolist()))
