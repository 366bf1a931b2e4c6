"""The release of measured marginals as one array of all cells: exact integer sums join one counter per cell.

The numbers of cells stand where other mechanisms have hashes of keys. A path is a function of (cell, mechanism, trigger) alone, so it does not
depend on which cells a bucket has, or on when it was last asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.marginals.cells import MeasuredTables
from dpsql.udfs.marginals.release import NoisyTables
from dpsql.udfs.noise.paths import Paths
from dpsql.udfs.noise.randomness import tags


@dataclass(frozen=True)
class Cells:
    """The state: exact sums of all cells in grid units, and paths up to a trigger."""

    trigger: int
    sums: Int
    paths: Float


def sums(marginals: MeasuredTables, values: Int, amounts: Int) -> Int:
    """What rows add to all cells; `amounts` are integers, one per row."""
    out = np.zeros(marginals.first[-1], np.int64)
    np.add.at(out, marginals.touched(values), amounts[:, None])
    return out


def split(marginals: MeasuredTables, cells: np.ndarray) -> list[np.ndarray]:
    """A number per cell, of all tables, as one array per table."""
    first = marginals.first
    return [
        cells[first[t] : first[t + 1]].reshape(marginals.shape(t))
        for t in range(len(marginals.tables))
    ]


def nothing_seen(p: NoisyTables) -> Cells:
    """Before trigger 1."""
    cells = p.marginals.first[-1]
    return Cells(0, np.zeros(cells, np.int64), np.zeros((cells, p.counter.width)))


def release(state: Cells, added: Int, p: NoisyTables, noise_key: bytes) -> tuple[Cells, Int]:
    """The next trigger.

    Args:
        state: of the trigger before; it is not changed.
        added: what the trigger's rows add to every cell, in grid units.
        p: the plan's numbers.
        noise_key: 32 bytes, the run's.

    Returns:
        New state, and the noisy sum of every cell in grid units.
    """
    trigger = state.trigger + 1
    exact = state.sums + added
    tag = tags(noise_key, np.zeros(len(exact), np.int64), np.arange(len(exact)))
    path = Paths(p.counter, p.mechanism, noise_key, tag)
    states = state.paths.copy()
    step = np.full(len(exact), state.trigger)
    out = np.zeros(len(exact), np.int64)
    for table, sigma in enumerate(p.sigmas):
        cells = np.arange(p.marginals.first[table], p.marginals.first[table + 1])
        path.follow(states, step, cells, trigger)
        out[cells] = exact[cells] + path.rounded(states, cells, trigger, sigma / p.grid)
    return Cells(trigger, exact, states), out
