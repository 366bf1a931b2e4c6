"""Perturbation: the released numbers of a selected group, exact integer sums plus rounded correlated Gaussian noise.

Guarantee (docs/privacy/histogram.md): noise of standard deviation sigma per strategy step, where sigma is calibrated to the L2
sensitivity of one user's change over all groups and triggers. The noise path depends on no data; it is rounded to the
column's grid first and then added to an integer, which is the same as rounding the real-valued noisy sum.
Source: DP-SQLP Algorithm 3 with a continual counter in the place of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Float, Int, sort_order
from dpsql.udfs.histogram.group_state import Closing
from dpsql.udfs.histogram.spread import Moments
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.exact_paths import Redraw, rounded
from dpsql.udfs.noise.path_error import trust


@dataclass(frozen=True)
class PerturbationParameters:
    """`mechanism` numbers the noise (from 1); sigma in value units; grid: value of one integer unit (a power of two)."""

    mechanism: int
    counter: Counter
    sigma: float
    grid: float


@dataclass(frozen=True)
class OutputColumn:
    """One released column.

    Args:
        kind: `count` (int64), `sum` (float64, an exact multiple of the grid), `avg`, `variance` or `deviation` (float64, NaN where there are too
            few), or `quantiles`: so many float64 as there are `parts`, and one (`dpsql.udfs.quantiles`).
        perturbations: positions of its perturbations (avg: centred sum, then count; variance and deviation: squares between the two).
        grids: their grids.
        stderr: per perturbation, standard deviation of the noise at triggers 1..horizon, in value units.
        bounds: clip of an average; one record's of a variance. centre: what its values were centred on.
        offset: what was taken from each square. sample: a variance divides by the count less 1.
    """

    kind: str
    perturbations: tuple[int, ...]
    grids: tuple[float, ...]
    stderr: tuple[tuple[float, ...], ...]
    bounds: tuple[float, float] = (0.0, 0.0)
    centre: float = 0.0
    parts: int = 0
    offset: float = 0.0
    sample: bool = False


def noisy(exact: Int, path: Float, trigger: int, p: PerturbationParameters, again: Redraw) -> Int:
    """Exact sums (grid units) plus the unit-noise path scaled by sigma and rounded to the grid.

    The rounded noise is that of the exact real path: where the float64 path is too close to half-way between two grid points to tell,
    or NaN, `again` computes it from its words.
    """
    scale = p.sigma / p.grid  # exact: the grid is a power of two
    return exact + rounded(path, scale, trigger, trust(p.counter).error[trigger - 1], again)


def perturb(
    c: Closing, shown: list[Int], perturbations: tuple[PerturbationParameters, ...], noise_key: bytes
) -> tuple[Int, Int, list[Int]]:
    """Sum the increments of all groups, and perturb those that are shown: (group, trigger, noisy values per perturbation).

    Changes c.groups (`v*, p*, paths_step`).
    """
    g = c.groups
    out: list[tuple[Int, Int, list[Int]]] = []
    for trigger in c.triggers:
        part = c.sums.at(trigger)
        for j in range(len(perturbations)):
            g[f"v{j}"][c.sums.group[part]] += c.sums.sums[f"v{j}"][part]
        groups = shown[trigger]
        _advance_to(c, groups, trigger, perturbations, noise_key)
        if len(groups):
            again = [Redraw(noise_key, c.tag, groups, q.mechanism, 0, q.counter) for q in perturbations]
            values = [noisy(g[f"v{j}"][groups], g[f"p{j}"][groups, 0], trigger, q, again[j]) for j, q in enumerate(perturbations)]
            out.append((groups, np.full(len(groups), trigger, np.int64), values))
    none = np.zeros(0, np.int64)
    groups, triggers = (np.concatenate([none, *(row[i] for row in out)]) for i in (0, 1))
    return groups, triggers, [np.concatenate([none, *(values[j] for _, _, values in out)]) for j in range(len(perturbations))]


def _advance_to(c: Closing, groups: Int, trigger: int, perturbations: tuple[PerturbationParameters, ...], noise_key: bytes) -> None:
    step, trusted = c.groups["paths_step"], [trust(q.counter) for q in perturbations]
    for now in range(int(step[groups].min(initial=trigger)) + 1, trigger + 1):
        moving = groups[step[groups] == now - 1]
        for j, q in enumerate(perturbations):

            def draw(number: int, tag: np.ndarray = c.tag[moving], q: PerturbationParameters = q, now: int = now) -> Float:
                return randomness.normals(noise_key, tag, q.mechanism, 0, now, number)

            c.groups[f"p{j}"][moving] = trusted[j].advance(c.groups[f"p{j}"][moving], draw, now)
        step[moving] = now


def finish(column: OutputColumn, values: list[Int], trigger: Int) -> tuple[Int | Float, Float]:
    """(released values, their stderr) of one output column.

    An average is the two noisy releases' quotient plus the centre, clipped to its bounds, NaN (with its stderr) where the noisy
    count is below 1; its stderr is the first-order propagation of the two noises, from released numbers only.
    """
    return combine(column, values, [np.array(stderr)[trigger - 1] for stderr in column.stderr])


def released_rows(rows: tuple[Int, Int, list[Int]], window: Int, key_bytes: pa.ChunkedArray, columns: tuple[OutputColumn, ...]) -> pa.Table:
    """Released rows sorted by (window, trigger, key bytes): their order says nothing about hashes or arrival."""
    group, trigger, values = rows
    shown, position = np.unique(group, return_inverse=True)
    names = key_bytes.take(pa.array(shown))
    rank = np.empty(len(shown), np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(shown))
    order = sort_order(window[group], trigger, rank[position])
    group, trigger, values = group[order], trigger[order], [v[order] for v in values]
    table = {"window": window[group], "trigger": trigger, "key_bytes": names.take(pa.array(position[order]))}
    for i, column in enumerate(columns):
        table[f"c{i}"], table[f"s{i}"] = finish(column, values, trigger)
    return pa.table(table)


def released_columns(columns: Sequence[OutputColumn]) -> pa.Schema:
    """Columns of released rows."""
    fields = [("window", pa.int64()), ("trigger", pa.int64()), ("key_bytes", pa.binary())]
    for i, column in enumerate(columns):
        if column.kind == "quantiles":
            fields += [*((f"c{i}_{k}", pa.float64()) for k in range(column.parts + 1)), (f"s{i}", pa.float64())]
            continue
        fields += [(f"c{i}", pa.int64() if column.kind == "count" else pa.float64()), (f"s{i}", pa.float64())]
    return pa.schema(fields)


def combine(column: OutputColumn, values: list[Int], errors: list[Float]) -> tuple[Int | Float, Float]:
    """As `finish`, with the standard deviation of the noise of every row and perturbation given."""
    first = values[column.perturbations[0]]
    if column.kind == "count":
        return first, errors[0]
    if column.kind == "sum":
        return (first * column.grids[0]).astype(np.float64), errors[0]
    if column.kind in ("variance", "deviation"):
        return _spread(column, values, errors)
    count = values[column.perturbations[1]]
    enough = count >= 1
    safe = np.where(enough, count, 1)
    quotient = first * column.grids[0] / safe
    average: Float = np.clip(column.centre + quotient, *column.bounds)
    stderr: Float = np.sqrt(errors[0] ** 2 + (quotient * errors[1]) ** 2) / safe
    return np.where(enough, average, np.nan), np.where(enough, stderr, np.nan)


def _spread(column: OutputColumn, values: list[Int], errors: list[Float]) -> tuple[Float, Float]:
    total, squares, count = ((values[j] * grid).astype(np.float64) for j, grid in zip(column.perturbations, column.grids, strict=True))
    largest = ((column.bounds[1] - column.bounds[0]) / 2) ** 2
    found = Moments(total, errors[0], squares, errors[1], count, errors[2], column.offset, largest)
    return found.deviation(column.sample) if column.kind == "deviation" else found.variance(column.sample)
