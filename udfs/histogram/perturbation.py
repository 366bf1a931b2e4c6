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
    shown: list[Int],
    perturbations: tuple[PerturbationParameters, ...],
    noise_key: bytes,
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
            again = [
                Redraw(noise_key, c.tag, groups, q.mechanism, 0, q.counter) for q in perturbations
            ]
            values = [
                noisy(g[f"v{j}"][groups], g[f"p{j}"][groups, 0], trigger, q, again[j])
                for j, q in enumerate(perturbations)
            ]
            out.append((groups, np.full(len(groups), trigger, np.int64), values))
    none = np.zeros(0, np.int64)
    groups, triggers = (np.concatenate([none, *(row[i] for row in out)]) for i in (0, 1))
    return (
        groups,
        triggers,
        [
            np.concatenate([none, *(values[j] for _, _, values in out)])
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
    for now in range(int(step[groups].min(initial=trigger)) + 1, trigger + 1):
        moving = groups[step[groups] == now - 1]
        for j, q in enumerate(perturbations):

            def draw(
                number: int,
                tag: np.ndarray = c.tag[moving],
                q: PerturbationParameters = q,
                now: int = now,
            ) -> Float:
                return randomness.normals(noise_key, tag, q.mechanism, 0, now, number)

            c.groups[f"p{j}"][moving] = trusted[j].advance(c.groups[f"p{j}"][moving], draw, now)
        step[moving] = now


def finish(column: OutputColumn, values: list[Int], trigger: Int) -> tuple[Int | Float, Float]:
    """(released values, their stderr) of one output column."""
    return combine(column, values, [np.array(stderr)[trigger - 1] for stderr in column.stderr])


def released_rows(
    rows: tuple[Int, Int, list[Int]],
    groups: dict[str, Any],
    key_bytes: pa.ChunkedArray,
    columns: tuple[OutputColumn, ...],
) -> pa.Table:
    """Released rows sorted by (window, trigger, key bytes): their order says nothing about hashes or arrival. Quantiles are read off later."""
    window = groups["window"]
    group, trigger, values = rows
    shown, position = np.unique(group, return_inverse=True)
    names = key_bytes.take(pa.array(shown))
    rank = np.empty(len(shown), np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(shown))
    order = sort_order(window[group], trigger, rank[position])
    group = group[order]
    trigger = trigger[order]
    values = [v[order] for v in values]
    table = {
        "window": window[group],
        "trigger": trigger,
        "key_bytes": names.take(pa.array(position[order])),
    }
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
