"""Records that come in time: neither ahead of the clock nor in windows that are closed; and their copies in windows that are open."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, read_integers
from dpsql.udfs.grid import Grid
from dpsql.udfs.stage import NO_RECORD, Clock


class Timely(Protocol):
    """Numbers that decide whether a record comes in time."""

    @property
    def grid(self) -> Grid:
        """Grid of windows and triggers."""

    @property
    def public_keys(self) -> tuple[int, ...] | None:
        """Sorted key hashes that may appear; None: any key."""

    @property
    def first_window_us(self) -> int | None:
        """Windows that start earlier do not exist; None: all do."""


def timely(rows: pa.Table, clock: Clock, p: Timely, drops: dict[str, int]) -> Bool:
    """Tell whether each record may count: not dropped before, a public key, not ahead of the clock, its newest window still open.

    Args:
        rows: with `drop, ts, key`.
        clock: of the micro-batch.
        p: the plan's numbers.
        drops: counts by reason, added to.
    """
    code = read_integers(rows, "drop")
    ts = read_integers(rows, "ts")
    if p.public_keys is None and not code.any() and _all_in_time(ts, clock, p):
        return np.ones(len(ts), bool)
    for number, count in zip(*np.unique(code, return_counts=True), strict=True):
        if number:
            drops[NO_RECORD[number - 1]] += int(count)
    is_timely = code == 0
    if p.public_keys is not None:
        is_timely &= count_drops(
            is_timely & ~np.isin(read_integers(rows, "key"), np.array(p.public_keys, np.int64)),
            "not_a_public_group",
            drops,
        )
    is_timely &= count_drops(is_timely & (ts > clock.latest_us), "too_far_ahead", drops)
    return is_timely & count_drops(is_timely & _is_closed(ts, clock, p), "window_closed", drops)


def _all_in_time(ts: Int, clock: Clock, p: Timely) -> bool:
    """Tell whether no record is too far ahead, and the newest window of none is closed.

    Windows close in order, and a last trigger closes for all that is later: where the earliest and the latest event time are open, all are.
    """
    if not len(ts):
        return True
    extremes = np.array([ts.min(), ts.max()])
    return bool(extremes[1] <= clock.latest_us and not _is_closed(extremes, clock, p).any())


def open_copies(ts: Int, clock: Clock, p: Timely) -> tuple[Int, Int, Int]:
    """Return (record, window, trigger) of every copy whose window is open: its first trigger after the event time that is not closed yet."""
    record, window = p.grid.windows_of(ts)
    trigger = _trigger(ts[record], window, clock, p)
    is_open = (trigger <= p.grid.horizon) & _exists(window, p)
    return record[is_open], window[is_open], trigger[is_open]


def _is_closed(ts: Int, clock: Clock, p: Timely) -> Bool:
    """Tell whether the newest window of each event time is closed, or does not exist."""
    newest = p.grid.latest_window(ts)
    return (_trigger(ts, newest, clock, p) > p.grid.horizon) | ~_exists(newest, p)


def _trigger(ts: Int, window: Int, clock: Clock, p: Timely) -> Int:
    """Return the first grid point of the window after the record's own event time that is not closed yet."""
    return np.maximum(
        p.grid.own_trigger(ts, window), p.grid.closed_triggers(window, clock.closed_us) + 1
    )


def _exists(window: Int, p: Timely) -> Bool:
    return np.ones(len(window), bool) if p.first_window_us is None else window >= p.first_window_us


def count_drops(is_dropped: Bool, reason: str, drops: dict[str, int]) -> Bool:
    """Count dropped records, and tell which are left."""
    drops[reason] += int(is_dropped.sum())
    return ~is_dropped
