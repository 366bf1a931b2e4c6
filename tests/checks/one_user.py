"""Every stream of one user at tiny parameters, through the real contribution bounding: what it shifts, to the square. All streams are
admitted at once, each as a user of its own with keys of its own, so that their contributions stay apart."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.stage import Clock

Option = tuple[int, int, float]
"""(event time, key, value) of one record."""


@dataclass(frozen=True)
class Shifts:
    """What each stream adds, as dense arrays: [stream, group, trigger]; groups are (window, key) pairs. weights: of key selection (with
    rounds: of the user's row at that trigger). users: user counts. sums: one array per perturbation."""

    weights: np.ndarray
    users: np.ndarray
    sums: tuple[np.ndarray, ...]


def streams(options: Sequence[Option], length: int) -> np.ndarray:
    """Numbers of options: every sequence of exactly `length` records, which holds the shorter ones as repeats; shape (n, length)."""
    return np.array(list(itertools.product(range(len(options)), repeat=length)), np.int64)


def shifts(
    options: Sequence[Option], chosen: np.ndarray, clocks: Sequence[int], p: BoundingParameters
) -> Shifts:
    """Admit the j-th record of every stream in micro-batch j, under clock j (closed time), or all together if there is one clock."""
    count, length = chosen.shape
    ts, key, value = (np.array(c) for c in zip(*options, strict=True))
    user = _spread(np.arange(count, dtype=np.int64))
    own_key = _spread(np.arange(count, dtype=np.int64)[:, None] * 64 + key[chosen] + (1 << 40))
    batches = [list(range(length))] if len(clocks) == 1 else [[j] for j in range(length)]
    state = None
    rooms = None
    parts = []
    for batch, closed in zip(batches, clocks, strict=True):
        rows = {"drop": np.zeros(count * len(batch), np.int8), "user": np.tile(user, len(batch))}
        rows |= {"ts": np.concatenate([ts[chosen[:, j]] for j in batch]).astype(np.int64)}
        rows |= {"key": np.concatenate([own_key[:, j] for j in batch])}
        rows |= {
            "key_bytes": pa.array([b"%d" % n for j in batch for n in range(count)], pa.binary())
        }
        rows |= {"a0": np.concatenate([value[chosen[:, j]] for j in batch]).astype(float)}
        admission = admit(state, pa.table(rows), Clock(closed), p, rooms)
        state = admission.state
        rooms = admission.sums
        parts.append(admission.contributions)
    table = pa.concat_tables(parts)
    stream_of = {
        int(k): (n, int(key[chosen[n, j]]))
        for n, row in enumerate(own_key.tolist())
        for j, k in enumerate(row)
    }
    owner = np.array([stream_of[k] for k in table.column("key").to_pylist()]).reshape(-1, 2)
    windows, window = np.unique(table.column("window").to_numpy(), return_inverse=True)
    group = window * (int(key.max()) + 1) + owner[:, 1]
    shape = (count, len(windows) * (int(key.max()) + 1), p.grid.horizon)
    at = (owner[:, 0], group, table.column("trigger").to_numpy() - 1)
    weights = np.zeros(shape)
    # As the release step merges micro-batches: with rounds a user has its largest weight of the trigger.
    (np.maximum if p.by_user else np.add).at(weights, at, table.column("weight").to_numpy() / 2**20)
    users = np.zeros(shape)
    np.add.at(users, at, table.column("users").to_numpy())
    sums = []
    for j, rule in enumerate(p.increments):
        total = np.zeros(shape)
        np.add.at(total, at, table.column(f"v{j}").to_numpy() * rule.grid)
        sums.append(total)
    return Shifts(weights, users, tuple(sums))


def squared(shift: np.ndarray, strategy: np.ndarray) -> np.ndarray:
    """Per stream, the squared norm of C d over all groups."""
    return np.sum((shift @ strategy.T) ** 2, axis=(1, 2))


def squared_in_rounds(weights: np.ndarray, strategy: np.ndarray) -> np.ndarray:
    """Per stream, the squared shift of selection under the worst choice of when every group's rounds end. A user counts in a round at its
    first trigger there, so a group's rounds pick any set of its triggers: the worst picks all."""
    return np.sum(weights**2 * np.sum(strategy**2, axis=0), axis=(1, 2))


def _spread(names: np.ndarray) -> np.ndarray:
    """Ids with different upper halves."""
    return (names.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
