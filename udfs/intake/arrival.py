"""The order in which a unit's records are taken: by event time, and by lot where times are equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsql.udfs.columns import (
    Int,
    Numbered,
    Word,
    mix,
    run_starts,
    run_sums,
    running_count,
    sort_order,
    sort_runs,
    tied_rows,
)


def sort_by_arrival(
    period: Int, user: Numbered, ts: Int, key: Numbered, amounts: Sequence[Int]
) -> Int:
    """Return the order of records by (period, user, event time), those of equal time by lot.

    Guarantee: the records of one unit in one micro-batch alone decide their order, as a multiset: whatever the order of the input is, and
    whoever else is in it. Of records with equal times each is as likely as any other to come first, whatever it says.

    Args:
        period, user, ts: what is sorted by; users' ids are salted hashes, so every unit and every run draws other lots.
        key, amounts: all else that tells two records apart.
    """

    def digest(rows: Int | slice) -> Word:
        numbers = (column[rows] for column in amounts)
        return mix(user.take(rows).all(), ts[rows], key.take(rows).all(), *numbers)

    if len(ts) and ts.min() == ts.max():  # as where the time says nothing
        return sort_by_lot((period, user.numbers), digest(slice(None)))
    order, starts = sort_runs(period, user.numbers, ts)
    tied, run = tied_rows(starts)
    rows = order[tied]
    order[tied] = rows[sort_by_lot((run,), digest(rows))]
    return order


def sort_by_lot(columns: Sequence[Int], record: Word) -> Int:
    """Return the order of records by some columns, and by lot where these are equal.

    Copies of a record draw lots of their own: with one lot for all of them, a record that has none would often be first.

    Args:
        columns: what is sorted by.
        record: 64-bit digests of whole records; equal ones are copies.
    """
    order = sort_order(*columns, record)
    starts = run_starts(*(column[order] for column in columns))
    sorted_records = record[order]
    is_first = starts | run_starts(sorted_records)
    if is_first.all():
        return order
    run = np.cumsum(starts) - 1
    is_drawn = ((run_sums(is_first, starts) > 1) & (run_sums(~is_first, starts) > 0))[run]
    places = np.flatnonzero(is_drawn)
    copy = running_count(~is_first, is_first)[places]
    lot = sorted_records[places]
    lot = np.where(copy > 0, mix(lot.view(np.int64), copy), lot)
    order[places] = order[places][sort_order(run[places], lot)]
    return order
