"""Perturbation: the released numbers of a selected group, exact integer sums plus rounded correlated Gaussian noise.

Guarantee (docs/privacy/histogram.md): noise of standard deviation sigma per strategy step, where sigma is calibrated to the L2
sensitivity of one user's change over all groups and triggers. The noise path depends on no data; it is rounded to the
column's grid first and then added to an integer, which is the same as rounding the real-valued noisy sum.
Source: DP-SQLP Algorithm 3 with a continual counter in the place of the tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Float, Int, sort_order
from dpsql.udfs.histogram.group_state import Closing
from dpsql.udfs.measure.output_columns import OutputColumn, combine
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy


def perturb(
    c: Closing,
    to_release: list[Int],
    perturbations: tuple[PerturbationParameters, ...],
    noise_key: bytes,
) -> tuple[Int, Int, list[Int]]:
    """Sum the increments of all groups, and perturb those that are released: (group, trigger, noisy values per perturbation).

    Changes c.groups (`v*, p*, paths_step`).
    """
    g = c.groups
    released: list[tuple[Int, Int, list[Int]]] = []
    for trigger in c.triggers:
        part = c.sums.rows_of(trigger)
        for j in range(len(perturbations)):
            g[f"v{j}"][c.sums.group[part]] += c.sums.sums[f"v{j}"][part]
        groups = to_release[trigger]
        _advance_to(c, groups, trigger, perturbations, noise_key)
        if len(groups):
            redraws = [
                Redraw(noise_key, c.tag, groups, q.mechanism, 0, q.counter) for q in perturbations
            ]
            values = [
                noisy(g[f"v{j}"][groups], g[f"p{j}"][groups, 0], trigger, q, redraws[j])
                for j, q in enumerate(perturbations)
            ]
            released.append((groups, np.full(len(groups), trigger, np.int64), values))
    no_groups = np.zeros(0, np.int64)
    groups, triggers = (np.concatenate([no_groups, *(row[i] for row in released)]) for i in (0, 1))
    return (
        groups,
        triggers,
        [
            np.concatenate([no_groups, *(values[j] for _, _, values in released)])
            for j in range(len(perturbations))
        ],
    )


def _advance_to(
    c: Closing,
    groups: Int,
    trigger: int,
    perturbations: tuple[PerturbationParameters, ...],
    noise_key: bytes,
) -> None:
    step = c.groups["paths_step"]
    trusted = [trust(q.counter) for q in perturbations]
    for next_trigger in range(int(step[groups].min(initial=trigger)) + 1, trigger + 1):
        moving = groups[step[groups] == next_trigger - 1]
        for j, q in enumerate(perturbations):

            def draw(
                number: int,
                tag: np.ndarray = c.tag[moving],
                q: PerturbationParameters = q,
                next_trigger: int = next_trigger,
            ) -> Float:
                return randomness.normals(noise_key, tag, q.mechanism, 0, next_trigger, number)

            c.groups[f"p{j}"][moving] = trusted[j].advance(
                c.groups[f"p{j}"][moving], draw, next_trigger
            )
        step[moving] = next_trigger


def finish(column: OutputColumn, values: list[Int], trigger: Int) -> tuple[Int | Float, Float]:
    """Return the released values and their stderr of one output column."""
    return combine(column, values, [np.array(stderr)[trigger - 1] for stderr in column.stderr])


def released_rows(
    rows: tuple[Int, Int, list[Int]],
    groups: dict[str, Any],
    key_bytes: pa.ChunkedArray,
    columns: tuple[OutputColumn, ...],
) -> pa.Table:
    """Return released rows sorted by (window, trigger, key bytes): their order says nothing about hashes or arrival. Quantiles are read off later."""
    window = groups["window"]
    group, trigger, values = rows
    released_groups, position = np.unique(group, return_inverse=True)
    names = key_bytes.take(released_groups)
    rank = np.empty(len(released_groups), np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(released_groups))
    order = sort_order(window[group], trigger, rank[position])
    group = group[order]
    trigger = trigger[order]
    values = [v[order] for v in values]
    table = {"window": window[group], "trigger": trigger, "key_bytes": names.take(position[order])}
    for i, column in (
        (i, column) for i, column in enumerate(columns) if column.kind != "quantiles"
    ):
        table[f"c{i}"], table[f"s{i}"] = finish(column, values, trigger)
    table |= (
        {"key": groups["key"][group]}
        if any(column.kind == "quantiles" for column in columns)
        else {}
    )
    return pa.table(table)
