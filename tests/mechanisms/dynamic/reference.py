"""A table's release as plain lists, one key and one trigger at a time: slow, and readable next to docs/privacy/dynamic.md. It shares with
`udfs` the parameter values, the words of the noise and nothing else: paths are sums over all draws, by the power series of B."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from dpsql.udfs.measure.output_columns import combine
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.randomness import SELECTION, normals, tags
from dpsql.udfs.table.release import TableParameters


@dataclass(frozen=True)
class Change:
    """What becomes of a key's sums at one trigger; it arrives with a micro-batch."""

    batch: int
    trigger: int
    key: int
    weight: int = 0
    users: int = 0
    values: tuple[int, ...] = (0,)

    @property
    def key_bytes(self) -> bytes:
        name = str(self.key).encode()
        return b"%04d" % len(name) + name


Noise = Callable[[int, int, int], float]
"""(key, mechanism, trigger) -> the unit-noise path of a key there."""


@lru_cache(maxsize=8)
def toeplitz(theta: tuple[float, ...], omega: tuple[float, ...], count: int) -> tuple[float, ...]:
    """First column of B: running sums of the power series of 1 / C."""
    c = [1.0] + [
        math.fsum(w * t**k for t, w in zip(theta, omega, strict=True)) for k in range(count - 1)
    ]
    inverse: list[float] = []
    for k in range(count):
        inverse.append(
            (1.0 if k == 0 else 0.0) - math.fsum(c[j] * inverse[k - j] for j in range(1, k + 1))
        )
    return tuple(math.fsum(inverse[: k + 1]) for k in range(count))


def keyed(p: TableParameters, noise_key: bytes, last: int) -> Noise:
    """The run's noise, up to a trigger."""
    counters = {q.mechanism: q.counter for q in p.perturbations}
    if p.selection:
        counters[SELECTION] = p.selection.counter

    @cache
    def draws(key: int, mechanism: int) -> np.ndarray:
        tag = np.repeat(
            tags(noise_key, np.zeros(1, np.int64), np.array([key], np.int64)), last, axis=0
        )
        return normals(noise_key, tag, mechanism, 0, np.arange(1, last + 1))

    def path(key: int, mechanism: int, trigger: int) -> float:
        chosen = counters[mechanism]
        assert not hasattr(chosen, "levels"), "a Toeplitz counter"
        b = toeplitz(chosen.theta, chosen.omega, last)  # type: ignore[union-attr]
        return math.fsum(
            b[trigger - step] * z
            for step, z in enumerate(draws(key, mechanism)[:trigger].tolist(), start=1)
        )

    return path


def silent(_key: int, _mechanism: int, _trigger: int) -> float:
    return 0.0


def variance(chosen: object, trigger: int) -> float:
    """Of the path, for unit noise."""
    assert isinstance(chosen, BltInf) or hasattr(chosen, "theta")
    return math.fsum(b * b for b in toeplitz(chosen.theta, chosen.omega, trigger))  # type: ignore[attr-defined]


def release(changes: Iterable[Change], last: int, p: TableParameters, noise: Noise) -> list[tuple]:
    """Every released row (trigger, key bytes, then value and stderr per column; None for NaN) of triggers 1..last, sorted by trigger and key."""
    rows = []
    everything = list(changes)
    selected: set[int] = set()
    keys = {change.key: change.key_bytes for change in everything}
    if p.public:
        keys |= dict(zip(p.public.keys, p.public.key_bytes, strict=True))
    for trigger in range(1, last + 1):
        for key, name in keys.items():
            so_far = [c for c in everything if c.key == key and c.trigger <= trigger]
            if p.selection is not None:
                weight = sum(c.weight for c in so_far) / 2.0**20 + p.selection.sigma * noise(
                    key, SELECTION, trigger
                )
                block = max(i for i, begin in enumerate(p.selection.first) if begin <= trigger)
                if (
                    sum(c.users for c in so_far) >= p.selection.min_users
                    and weight >= p.selection.thresholds[block] / 2.0**20
                ):
                    selected.add(key)
                if key not in selected or weight < p.selection.shown_from[block] / 2.0**20:
                    continue
            noisy = []
            error = []
            for j, q in enumerate(p.perturbations):
                noisy.append(
                    sum(c.values[j] for c in so_far)
                    + round(q.sigma / q.grid * noise(key, q.mechanism, trigger))
                )
                error.append(math.sqrt(q.sigma**2 * variance(q.counter, trigger) + q.grid**2 / 12))
            row: list[object] = [trigger, name]
            for column in p.columns:
                j = column.perturbations[0]
                if column.kind == "avg":
                    each = [np.array([error[k]]) for k in column.perturbations]
                    found = combine(column, [np.array([value]) for value in noisy], each)
                    row += [None if np.isnan(made[0]) else float(made[0]) for made in found]
                else:
                    row += [
                        noisy[j] * column.grids[0] if column.kind == "sum" else noisy[j],
                        error[j],
                    ]
            rows.append(tuple(row))
    return sorted(rows, key=lambda row: row[:2])
