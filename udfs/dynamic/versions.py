"""Images of a change feed, and the row versions that they cut: a begin of a row starts one, its end ends it, whether it counts or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Int,
    find,
    match,
    run_starts,
    run_sums,
    running_count,
    sort_order,
)
from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.contribution_bounding import mix
from dpsql.udfs.stage import BEGIN, END, NO_SEQUENCE, Clock

# Images of a change feed: each says that a row of the table begins, or that it ends; folded, and
# in the order in which they are taken.

# Order is a matter of one privacy unit: nothing here compares images of two of them.


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
        """Return the images at some places."""
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
    """Return the images of one bucket's records, and how many begins were dropped because they are ahead of the clock.

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
    values = tuple(rule.increments(rows) for rule in increments)
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
    """Return what is left where ends and begins of one row at one place of the feed are equal: an update of columns that the query does not read."""
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


# Row versions, cut from images: a begin of a row starts one, its end ends it, whether it counts
# or not.

# No row depends on another one here. A row's images come in the order of their places in the
# feed, ends before begins at one place
# (`dpsql.udfs.dynamic.versions`), so whether a row is there before an image is known from the
# image before it.

UNCOUNTED = -2
NO_SLOT = -1
"""Instead of a slot: the version does not count; it counts and needs none, because a key has room for all."""

INTS = ("user", "row", "copy", "key", "slot", "begin", "seq")
"""The whole numbers of a version."""


@dataclass(frozen=True)
class Versions:
    """One value per version. `copy`: which of the equal copies of its row; `begin`: the trigger of its begin (0: it does not count)."""

    user: Int
    row: Int
    copy: Int
    key: Int
    key_bytes: pa.ChunkedArray
    slot: Int
    begin: Int
    seq: Int
    values: tuple[Int, ...]

    def take(self, which: Int) -> Versions:
        """Return the versions at some places."""
        ints = {name: getattr(self, name)[which] for name in INTS}
        return Versions(
            **ints,
            key_bytes=self.key_bytes.take(pa.array(which)),
            values=tuple(column[which] for column in self.values),
        )


@dataclass(frozen=True)
class Events:
    """Unit by unit in the order in which they are taken: `version` begins (`sign` 1) or ends (-1), not before `trigger`."""

    version: Int
    sign: Int
    trigger: Int

    def take(self, which: Int | Bool) -> Events:
        """Return the events at some places."""
        return Events(self.version[which], self.sign[which], self.trigger[which])


@dataclass(frozen=True)
class VersionCut:
    """The versions that were there and after them those that begin, not admitted yet; what happens to them; ends of rows that were not there."""

    versions: Versions
    events: Events
    unknown: int


def cut(
    given: Images, trigger: Int, names: pa.ChunkedArray, there: Versions, copies: bool
) -> VersionCut:
    """Follow every row through a micro-batch.

    Args:
        given: unit by unit in the order in which they are taken.
        trigger: the first that each image can have.
        names: the key bytes of each image.
        there: live versions of the rows that images name, sorted by (user, row, copy).
        copies: rows have no primary key; a begin is always another copy, and an end takes the copy that began last.
    """
    order, old, copy, starts, unknown = (_by_copy if copies else _by_row)(given, there)
    one = given.take(order)
    begin = one.kind == BEGIN
    live = np.where(starts, old >= 0, _before(begin))
    begins = begin & ~(live & np.where(starts, _same(one, there, old), _repeats(one)))
    ends = live & (begins | ~begin)
    fresh = np.flatnonzero(begins)
    # The version that is there after an image: its own, or that of the newest begin before it, or the one that was there at first.
    version = np.where(begins, len(there.user) + np.cumsum(begins) - 1, old)
    after = version[np.maximum.accumulate(np.where(begins | starts, np.arange(len(order)), 0))]
    before = np.where(starts, old, _before(after))
    seq = np.concatenate([there.seq, one.seq[fresh]])
    again = begin & ~begins
    np.maximum.at(seq, before[again], one.seq[again])
    place = np.concatenate(
        [2 * order[ends], 2 * order[fresh] + 1]
    )  # an update ends the old version first
    events = Events(
        np.concatenate([before[ends], after[fresh]]),
        np.concatenate([np.full(int(ends.sum()), END), np.full(len(fresh), BEGIN)]),
        trigger[place // 2],
    )
    new = _new(one.take(fresh), copy[fresh], names.take(pa.array(order[fresh])))
    return VersionCut(
        replace(_with(there, new), seq=seq),
        events.take(sort_order(place)),
        unknown + int((~begin & ~live).sum()),
    )


def _by_row(given: Images, there: Versions) -> tuple[Int, Int, Int, Bool, int]:
    """Images row by row without replays; the version that was there; 0; where rows start; 0.

    A replay is an image whose place in the feed is not after that of the row's live version.
    """
    order = sort_order(given.user, given.row)
    one = given.take(order)
    starts = run_starts(one.user, one.row)
    run = np.cumsum(starts) - 1
    old = match([one.user[starts], one.row[starts]], [there.user, there.row])[run]
    silent = one.seq == NO_SEQUENCE  # these come first, and are never replays
    moved = np.zeros(int(starts.sum()), bool)
    moved[run[silent & ((one.kind == END) | ~_same(one, there, old))]] = True
    known = np.append(there.seq, NO_SEQUENCE)[old]  # -1: the last
    later = (one.seq > known) | moved[run]
    begin = one.kind == BEGIN
    again = begin & (
        running_count(begin, run_starts(one.user, one.row, one.seq)) > 1
    )  # the first begin at a place is that of a version
    kept = silent | later & ~again
    order = order[kept]
    one = one.take(kept)
    old = old[kept]
    return order, old, np.zeros(len(order), np.int64), run_starts(one.user, one.row), 0


def _by_copy(given: Images, there: Versions) -> tuple[Int, Int, Int, Bool, int]:
    """Images copy by copy of their rows; the version that was there; the copy; where copies start; ends of rows without one.

    Copies are a stack: begins and ends of one copy alternate.
    """
    order = sort_order(given.user, given.row)
    one = given.take(order)
    starts = run_starts(one.user, one.row)
    run = np.cumsum(starts) - 1
    low, high = find([one.user[starts], one.row[starts]], [there.user, there.row])
    height = (high - low)[run] + running_count(one.kind, starts)
    apart = 2 * (len(run) + int((high - low).max(initial=0))) + 1
    missing = np.maximum(0, -(np.minimum.accumulate(height - run * apart) + run * apart))
    unknown = missing > np.where(starts, 0, _before(missing))
    copy = height + missing - (one.kind == BEGIN)
    old = np.where(copy < (high - low)[run], low[run] + copy, -1)
    left = np.flatnonzero(~unknown)
    left = left[sort_order(run[left], copy[left])]
    return order[left], old[left], copy[left], run_starts(run[left], copy[left]), int(unknown.sum())


def _same(one: Images, there: Versions, which: Int) -> Bool:
    """Tell whether a begin has the key and the values of a version (-1: of none)."""
    equal = which >= 0
    for mine, theirs in zip((one.key, *one.values), (there.key, *there.values), strict=True):
        equal = equal & (mine == np.append(theirs, 0)[which])
    return equal


def _repeats(one: Images) -> Bool:
    """Tell whether an image has the key and the values of the one before."""
    equal = np.ones(len(one.key), bool)
    for column in (one.key, *one.values):
        equal &= column == _before(column)
    return equal


def _before(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of each row, what the one before has; of the first anything."""
    return np.roll(column, 1)


def _new(given: Images, copy: Int, names: pa.ChunkedArray) -> Versions:
    slot = np.full(len(copy), UNCOUNTED)
    begin = np.zeros(len(copy), np.int64)
    return Versions(
        given.user, given.row, copy, given.key, names, slot, begin, given.seq, given.values
    )


def _with(there: Versions, new: Versions) -> Versions:
    names = pa.chunked_array([*there.key_bytes.chunks, *new.key_bytes.chunks], pa.binary())
    ints = {name: np.concatenate([getattr(there, name), getattr(new, name)]) for name in INTS}
    return Versions(
        **ints,
        key_bytes=names,
        values=tuple(map(np.concatenate, zip(there.values, new.values, strict=True))),
    )
