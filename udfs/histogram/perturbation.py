"""Perturbation: the released numbers of a selected group, exact integer sums plus rounded correlated Gaussian noise.

Guarantee (docs/privacy/histogram.md, theorem 3): noise of standard deviation sigma per strategy step, where sigma is calibrated to the L2
sensitivity of one user's change over all groups and triggers. The noise path depends on no data; it is rounded to the
column's grid first and then added to an integer, which is the same as rounding the real-valued noisy sum.
A count that the sum of weights is a part of has that sum's noise, which chose the key, and noise of its own for what the weights leave: each
is rounded to 2^-20, of which both sums are whole numbers, so the count is a function of two noisy sums that are paid for.
Source: DP-SQLP Algorithm 3 with a continual counter in the place of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Float, Int, sort_order
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.histogram.chosen_counts import WEIGHT_BITS, Excess, interval_of
from dpsql.udfs.histogram.group_state import Closing
from dpsql.udfs.histogram.key_selection import SelectionParameters, advance_to
from dpsql.udfs.measure.output_columns import OutputColumn, combine
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import path_sd
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy


@dataclass(frozen=True)
class NoisyGroups:
    """Noisy sums of groups at triggers.

    values: per perturbation, in steps of its grid. stderr: by the position of a perturbation, where it differs from row to row.
    """

    group: Int
    trigger: Int
    values: list[Int]
    stderr: dict[int, Float]


def perturb(
    c: Closing,
    to_release: list[Int],
    perturbations: tuple[PerturbationParameters, ...],
    noise_key: bytes,
    selection: SelectionParameters | None = None,
) -> NoisyGroups:
    """Sum the increments of all groups, and perturb those that are released.

    Changes c.groups (`v*, p*, paths_step`; where a count is on selection also `noise, step`).
    """
    g = c.groups
    is_on_selection = any(q.is_on_selection for q in perturbations)
    chosen = _ChosenSums(c, selection, noise_key) if selection and is_on_selection else None
    released: list[NoisyGroups] = []
    for trigger in c.triggers:
        part = c.sums.rows_of(trigger)
        for j in range(len(perturbations)):
            g[f"v{j}"][c.sums.group[part]] += c.sums.sums[f"v{j}"][part]
        groups = to_release[trigger]
        _advance_to(c, groups, trigger, perturbations, noise_key)
        excess = chosen.excess_at(groups, trigger) if chosen else None
        if len(groups):
            released.append(_noisy_groups(c, groups, trigger, perturbations, noise_key, excess))
    return _joined(released, perturbations)


def _noisy_groups(
    c: Closing,
    groups: Int,
    trigger: int,
    perturbations: tuple[PerturbationParameters, ...],
    noise_key: bytes,
    excess: Excess | None,
) -> NoisyGroups:
    values = []
    stderr = {}
    for j, q in enumerate(perturbations):
        sums = c.groups[f"v{j}"][groups]
        redraw = Redraw(noise_key, c.tag, groups, q.mechanism, 0, q.counter)
        if q.is_on_selection and excess is not None:
            sums <<= WEIGHT_BITS
            sums += excess.noise
        if q.width:
            sums = noisy(sums, c.groups[f"p{j}"][groups, 0], trigger, q, redraw)
        if q.is_on_selection and excess is not None:
            sums, stderr[j] = interval_of(sums, q.stderr_on_selection[trigger - 1], excess)
        values.append(sums)
    return NoisyGroups(groups, np.full(len(groups), trigger, np.int64), values, stderr)


def _joined(
    released: list[NoisyGroups], perturbations: tuple[PerturbationParameters, ...]
) -> NoisyGroups:
    """Put the rows of all triggers together."""
    no_groups = np.zeros(0, np.int64)
    no_errors = np.zeros(0)
    return NoisyGroups(
        np.concatenate([no_groups, *(rows.group for rows in released)]),
        np.concatenate([no_groups, *(rows.trigger for rows in released)]),
        [
            np.concatenate([no_groups, *(rows.values[j] for rows in released)])
            for j in range(len(perturbations))
        ],
        {
            j: np.concatenate([no_errors, *(rows.stderr[j] for rows in released)])
            for j, q in enumerate(perturbations)
            if q.is_on_selection
        },
    )


class _ChosenSums:
    """The noisy sums of weights that choose keys, trigger by trigger of one tick.

    Selection has gone through all triggers of the tick: weights start as they were before it.
    """

    def __init__(self, c: Closing, selection: SelectionParameters, noise_key: bytes) -> None:
        self._closing = c
        self._selection = selection
        self._noise_key = noise_key
        self._sd = path_sd(selection.counter)
        self._weight = c.groups["weight"].copy()
        np.subtract.at(self._weight, c.due.group, c.due.sums["weight"])

    def excess_at(self, groups: Int, trigger: int) -> Excess:
        """Return by how much the sums of some groups exceed their threshold at the next trigger that closes, and their noise."""
        c = self._closing
        selection = self._selection
        part = c.due.rows_of(trigger)
        self._weight[c.due.group[part]] += c.due.sums["weight"][part]
        advance_to(c, groups, trigger, selection, self._noise_key)
        parameters = PerturbationParameters(
            randomness.SELECTION, selection.counter, selection.sigma, WEIGHT_UNIT
        )
        redraw = Redraw(self._noise_key, c.tag, groups, randomness.SELECTION, 0, selection.counter)
        no_sum = np.zeros(len(groups), np.int64)
        noise = noisy(no_sum, c.groups["noise"][groups, 0], trigger, parameters, redraw)
        surplus = self._weight[groups] + noise - selection.thresholds[trigger - 1]
        sd = selection.sigma * self._sd[trigger - 1]
        return Excess(noise, surplus.astype(np.float64) * WEIGHT_UNIT, sd, selection.min_users)


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
            if not q.width:
                continue

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


def finish(
    column: OutputColumn, values: list[Int], trigger: Int, errors: dict[int, Float] | None = None
) -> tuple[Int | Float, Float]:
    """Return the released values and their stderr of one output column; `errors`: as `NoisyGroups.stderr`."""
    row_errors = errors or {}
    planned = zip(column.perturbations, column.stderr, strict=True)
    stderr = [
        row_errors[j] if j in row_errors else np.array(by_trigger)[trigger - 1]
        for j, by_trigger in planned
    ]
    return combine(column, values, stderr)


def released_rows(
    rows: NoisyGroups,
    groups: dict[str, Any],
    key_bytes: pa.ChunkedArray,
    columns: tuple[OutputColumn, ...],
) -> pa.Table:
    """Return released rows sorted by (window, trigger, key bytes): their order says nothing about hashes or arrival. Quantiles are read off later."""
    window = groups["window"]
    released_groups, position = np.unique(rows.group, return_inverse=True)
    names = key_bytes.take(released_groups)
    rank = np.empty(len(released_groups), np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(released_groups))
    order = sort_order(window[rows.group], rows.trigger, rank[position])
    group = rows.group[order]
    trigger = rows.trigger[order]
    values = [v[order] for v in rows.values]
    stderr = {j: errors[order] for j, errors in rows.stderr.items()}
    table = {"window": window[group], "trigger": trigger, "key_bytes": names.take(position[order])}
    for i, column in (
        (i, column) for i, column in enumerate(columns) if column.kind != "quantiles"
    ):
        table[f"c{i}"], table[f"s{i}"] = finish(column, values, trigger, stderr)
    table |= (
        {"key": groups["key"][group]}
        if any(column.kind == "quantiles" for column in columns)
        else {}
    )
    return pa.table(table)
