"""How records fall into the leaves of quantiles: rows of contributions beside those of plain sums, each of one leaf."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_sums, sort_runs


def with_leaves(
    summed: pa.Table,
    window: Int,
    trigger: Int,
    key: Int,
    key_bytes: pa.ChunkedArray,
    sign: Int,
    leaves: Mapping[int, Int],
) -> pa.Table:
    """Return contributions with a column `leaf`: 0 for the rows that are there already; then one per (window, trigger, key, leaf) in which something counts.

    Args:
        summed: one row per (window, trigger, key), 0 in the columns of leaves.
        window, trigger, key, key_bytes: of each event.
        sign: 1 of one that begins to count, -1 of one that ends, 0 of any other.
        leaves: perturbation -> the leaf of each event, 0 where it is in none.
    """
    leaf_events = [np.flatnonzero((column > 0) & (sign != 0)) for column in leaves.values()]
    event = np.concatenate(leaf_events)
    leaf = np.concatenate(
        [column[events] for column, events in zip(leaves.values(), leaf_events, strict=True)]
    )
    perturbation = np.repeat(list(leaves), [len(events) for events in leaf_events])
    order, starts = sort_runs(window[event], trigger[event], key[event], leaf)
    event = event[order]
    head = event[starts]
    table = dict.fromkeys(summed.column_names, np.zeros(len(head), np.int64))
    table |= {
        "window": window[head],
        "trigger": trigger[head],
        "key": key[head],
        "key_bytes": key_bytes.take(head),
    }
    for j in leaves:
        table[f"v{j}"] = run_sums(np.where(perturbation[order] == j, sign[event], 0), starts)
    table["leaf"] = leaf[order][starts]
    in_no_leaf = summed.append_column("leaf", pa.array(np.zeros(summed.num_rows, np.int64)))
    in_leaves = pa.table(table).select(in_no_leaf.column_names).cast(in_no_leaf.schema)
    return pa.concat_tables([in_no_leaf, in_leaves]).combine_chunks()
