"""Releases of thousands of groups that are certain to be selected: the released value minus the exact one is the noise."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import release_parameters
from dpsql.udfs.histogram.release import release
from dpsql.udfs.stage import Tick

CERTAIN = 1 << 50
"""A weight above every threshold by more than any noise."""


def noise_key(seed: int) -> bytes:
    return hashlib.sha256(b"noise key %d" % seed).digest()


def group_keys(groups: int) -> np.ndarray:
    """Well spread 64-bit ids."""
    return np.random.default_rng(7).integers(-(2**63), 2**63 - 1, groups, dtype=np.int64)


def contributions(
    keys: np.ndarray,
    windows: np.ndarray,
    triggers: np.ndarray,
    weights: np.ndarray,
    values: list[np.ndarray],
) -> pa.Table:
    """Rows of arrival batch 0; as many users as weight units of one would be."""
    names = pa.array([b"%020d" % (int(k) + 2**63) for k in keys], pa.binary())
    table = {
        "window": windows,
        "trigger": triggers,
        "key": keys,
        "key_bytes": names,
        "weight": weights,
    }
    table |= {"users": np.full(len(keys), 1 << 40)}
    return pa.table(
        table
        | {f"v{j}": v for j, v in enumerate(values)}
        | {"batch": np.zeros(len(keys), np.int64)}
    )


@dataclass(frozen=True)
class Noise:
    """noise[column][group, trigger] in the column's units, and the stderr that was released with it."""

    noise: list[np.ndarray]
    stderr: list[np.ndarray]


def measure(plan: PrivacyPlan, groups: int, seed: int = 1, window: int = 0) -> Noise:
    """The noise of every column of `groups` groups of one window at every trigger; the exact sums differ from group to group."""
    p = release_parameters(plan)
    keys = np.sort(group_keys(groups))  # the order of their names, and so of the released rows
    exact = [np.arange(groups, dtype=np.int64) * (j + 1) for j in range(len(p.perturbations))]
    ones = np.ones(groups, np.int64)
    rows = contributions(keys, ones * window, ones, ones * CERTAIN, exact)
    out = release(
        None, rows, [Tick(0, window + p.grid.horizon * p.grid.trigger_us)], p, noise_key(seed)
    ).rows
    assert out.num_rows == groups * p.grid.horizon
    noise = []
    for i, column in enumerate(p.columns):
        values = out.column(f"c{i}").to_numpy().astype(np.float64).reshape(p.grid.horizon, groups).T
        noise.append(values - exact[column.perturbations[0]][:, None] * column.grids[0])
    stderr = [
        out.column(f"s{i}").to_numpy().reshape(p.grid.horizon, groups)[:, 0]
        for i in range(len(p.columns))
    ]
    return Noise(noise, stderr)
