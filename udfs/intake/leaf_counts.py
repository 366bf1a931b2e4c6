"""How records fall into the leaves of quantiles: rows of contributions beside those of plain sums, each of one leaf."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_starts, run_sums, sort_order


def with_leaves(
    summed: pa.Table,
    window: Int,
    trigger: Int,
    key: Int,
    key_bytes: pa.ChunkedArray,
    sign: Int,
    leaves: Mapping[int, Int],
) -> pa.Table:
    """Contributions with a column `leaf`: 0 for the rows that are there already; then one per (window, trigger, key, leaf) in which something counts.

    Args:
        summed: one row per (window, trigger, key), 0 in the columns of leaves.
        window, trigger, key, key_bytes: of each event.
        sign: 1 of one that begins to count, -1 of one that ends, 0 of any other.
        leaves: perturbation -> the leaf of each event, 0 where it is in none.
    """
    of = list(leaves)
    event = np.concatenate([np.flatnonzero((leaves[j] > 0) & (sign != 0)) for j in of])
    which = np.repeat(
        np.arange(len(of)), [np.count_nonzero((leaves[j] > 0) & (sign != 0)) for j in of]
    )
    leaf = np.concatenate([leaves[j][(leaves[j] > 0) & (sign != 0)] for j in of])
    order = sort_order(window[event], trigger[event], key[event], leaf)
    event = event[order]
    which = which[order]
    leaf = leaf[order]
    starts = run_starts(window[event], trigger[event], key[event], leaf)
    head = event[starts]
    size = int(starts.sum())
    table = {
        "window": window[head],
        "trigger": trigger[head],
        "key": key[head],
        "key_bytes": key_bytes.take(pa.array(head)),
    }
    for name in summed.column_names:
        if name not in table:
            table[name] = np.zeros(size, np.int64)
    for place, j in enumerate(of):
        table[f"v{j}"] = run_sums(np.where(which == place, sign[event], 0), starts)
    plain = summed.append_column("leaf", pa.array(np.zeros(summed.num_rows, np.int64)))
    return pa.concat_tables(
        [plain, pa.table(table | {"leaf": leaf[starts]}).cast(plain.schema)]
    ).combine_chunks()
