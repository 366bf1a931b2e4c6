"""Images of a change feed: each says that a row of the table begins, or that it ends; folded, and in the order in which they are taken.

Order is a matter of one privacy unit: nothing here compares images of two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, run_starts, run_sums, running_count, sort_order
from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.contribution_bounding import mix
from dpsql.udfs.stage import BEGIN, END, Clock


@dataclass(frozen=True)
class Images:
    """One value per image, unit by unit in the order in which they are taken.

    `row` names the row of the table among those of its unit; `kind` is BEGIN or END; `ts` never falls along a row; `at` is the record that the
    image is; `values` are its integer increments.
    """

    user: Int
    row: Int
    seq: Int
    kind: Int
    ts: Int
    key: Int
    at: Int
    values: tuple[Int, ...]

    def take(self, which: Int | Bool) -> Images:
        """Some of them."""
        user, row, seq, kind, ts, key, at = (
            column[which]
            for column in (self.user, self.row, self.seq, self.kind, self.ts, self.key, self.at)
        )
        return Images(
            user, row, seq, kind, ts, key, at, tuple(column[which] for column in self.values)
        )


def images(
    rows: pa.Table, clock: Clock, increments: tuple[Increment, ...], copies: bool
) -> tuple[Images, int]:
    """The images of one bucket's records, and how many begins were dropped because they are ahead of the clock.

    Args:
        rows: records that are none of those to be dropped, with `row, kind, seq`.
        clock: of the micro-batch.
        increments: of the plan.
        copies: the table has no primary key: rows of one unit with equal key and values are copies of each other.
    """
    given = {
        name: rows.column(name).to_numpy().astype(np.int64, copy=False)
        for name in ("user", "row", "seq", "kind", "ts", "key")
    }
    values = tuple(rule.of(rows) for rule in increments)
    content = mix(given["key"], *values)
    if copies:
        given["row"] = mix(given["row"], content.view(np.int64)).view(np.int64)
    whole = Images(**given, at=np.arange(rows.num_rows), values=values)
    left = _folded(whole, content)
    whole = whole.take(left)
    content = content[left]
    ahead = (whole.kind == BEGIN) & (whole.ts > clock.latest_us)
    whole = whole.take(~ahead)
    content = content[~ahead]
    return _in_order(whole, content), int(ahead.sum())


def _folded(given: Images, content: np.ndarray) -> Int:
    """What is left where ends and begins of one row at one place of the feed are equal: an update of columns that the query does not read."""
    order = sort_order(given.user, given.row, given.seq, content, given.kind, given.ts)
    user, row, seq, kind = (
        column[order] for column in (given.user, given.row, given.seq, given.kind)
    )
    starts = run_starts(user, row, seq, content[order])
    ends = run_sums((kind == END).astype(np.int64), starts)
    begins = run_sums((kind == BEGIN).astype(np.int64), starts)
    run = np.cumsum(starts) - 1
    number = running_count(np.ones(len(order), bool), starts | run_starts(kind))
    return np.sort(order[number > np.minimum(ends, begins)[run]])


def _in_order(given: Images, content: np.ndarray) -> Images:
    """By time; at one time the first images of all rows before their second ones, and ends first, so that they make room."""
    order = sort_order(given.user, given.row, given.seq, given.kind, content, given.ts)
    one = given.take(order)
    content = content[order]
    times, rank = np.unique(one.ts, return_inverse=True)
    run = (np.cumsum(run_starts(one.user, one.row)) - 1) * max(len(times), 1)
    ts = times[np.maximum.accumulate(run + rank) - run] if len(times) else one.ts
    place = running_count(
        run_starts(one.user, one.row, ts, one.seq), run_starts(one.user, one.row, ts)
    )
    one = Images(one.user, one.row, one.seq, one.kind, ts, one.key, one.at, one.values)
    return one.take(sort_order(one.user, ts, place, one.kind, one.row, content))
