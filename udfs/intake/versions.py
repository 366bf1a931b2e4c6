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
    Word,
    find,
    match,
    mix,
    run_starts,
    run_sums,
    running_count,
    sort_order,
)
from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.arrival import sort_by_lot
from dpsql.udfs.stage import BEGIN, END, NO_SEQUENCE, ORDERED, Clock

# Images of a change feed: each says that a row of the table begins, or that it ends; folded, and
# in the order in which they are taken.

# Order is a matter of one privacy unit: nothing here compares images of two of them.


@dataclass(frozen=True)
class Images:
    """One value per image, unit by unit in the order in which they are taken.

    `row` names the row of the table among those of its unit; `kind` is BEGIN or END; `ts` never falls along a row; `record` is the record that the
    image is; `values` are its integer increments.
    """

    user: Int
    row: Int
    seq: Int
    kind: Int
    ts: Int
    key: Int
    record: Int
    values: tuple[Int, ...]

    def take(self, positions: Int | Bool) -> Images:
        """Return the images at some places."""
        ints = {name: c[positions] for name, c in vars(self).items() if name != "values"}
        return Images(**ints, values=tuple(column[positions] for column in self.values))


def read_images(
    rows: pa.Table, clock: Clock, increments: tuple[Increment, ...], copies: bool
) -> tuple[Images, int]:
    """Return the images of one bucket's records, and how many begins were dropped because they are ahead of the clock.

    Args:
        rows: records that are none of those to be dropped, with `row, kind, seq`.
        clock: of the micro-batch.
        increments: of the plan.
        copies: the table has no primary key: rows of one unit with equal key and values are copies of each other.
    """
    columns = {
        name: rows[name].to_numpy().astype(np.int64, copy=False)
        for name in ("user", "row", "seq", "kind", "ts", "key")
    }
    values = tuple(rule.increments(rows) for rule in increments)
    content = mix(columns["key"], *values)
    if copies:
        columns["row"] = mix(columns["row"], content.view(np.int64)).view(np.int64)
    is_ordered = (np.abs(columns["kind"]) == ORDERED) & (not copies)
    columns["kind"] = np.sign(columns["kind"])
    folded = Images(**columns, record=np.arange(rows.num_rows), values=values)
    unfolded = _folded(folded, content, is_ordered)
    folded = folded.take(unfolded)
    content = content[unfolded]
    is_ahead = (folded.kind == BEGIN) & (folded.ts > clock.latest_us)
    folded = folded.take(~is_ahead)
    content = content[~is_ahead]
    return _in_order(folded, content, copies), int(is_ahead.sum())


def _folded(unordered: Images, content: Word, is_ordered: Bool) -> Int:
    """Return what is left where ends and begins of one row at one place of the feed are equal: an update of columns that the query does not read.

    Of a place with such a pair alone, whose end is known to come first, the begin is left: the row is there, whether its begin was seen or not.
    """
    order = sort_order(
        unordered.user, unordered.row, unordered.seq, content, unordered.kind, unordered.ts
    )
    user, row, seq, kind = (
        column[order] for column in (unordered.user, unordered.row, unordered.seq, unordered.kind)
    )
    starts = run_starts(user, row, seq, content[order])
    ends = run_sums((kind == END).astype(np.int64), starts)
    begins = run_sums((kind == BEGIN).astype(np.int64), starts)
    run = np.cumsum(starts) - 1
    number = running_count(np.ones(len(order), bool), starts | run_starts(kind))
    is_left = number > np.minimum(ends, begins)[run]
    place_starts = run_starts(user, row, seq)
    is_open = is_left | ~is_ordered[order] | (starts & ~place_starts)
    is_one_pair = run_sums(is_open.astype(np.int64), place_starts) == 0
    is_first = (kind == BEGIN) & (number == 1)
    is_left |= is_first & is_one_pair[np.cumsum(place_starts) - 1]
    return np.sort(order[is_left])


def _in_order(unordered: Images, content: Word, copies: bool) -> Images:
    """Sort images by time; at one time the first images of all rows before their second ones, and ends first, so that they make room; the rest by lot.

    Copies of a row are rows of their own, so theirs are taken by their places in the feed.
    """
    order = sort_order(
        unordered.user, unordered.row, unordered.seq, unordered.kind, content, unordered.ts
    )
    ordered = unordered.take(order)
    content = content[order]
    times, rank = np.unique(ordered.ts, return_inverse=True)
    run = (np.cumsum(run_starts(ordered.user, ordered.row)) - 1) * max(len(times), 1)
    ts = times[np.maximum.accumulate(run + rank) - run] if len(times) else ordered.ts
    place = ordered.seq
    if not copies:
        place = running_count(
            run_starts(ordered.user, ordered.row, ts, ordered.seq),
            run_starts(ordered.user, ordered.row, ts),
        )
    record = mix(ordered.user, ts, ordered.row, content.view(np.int64))
    order = sort_by_lot((ordered.user, ts, place, ordered.kind), record)
    return replace(ordered, ts=ts).take(order)


# Row versions, cut from images: a begin of a row starts one, its end ends it, whether it counts
# or not.

# No row depends on another one here. A row's images come in the order of their places in the
# feed, ends before begins at one place
# (`dpsql.udfs.intake.versions`), so whether a row is there before an image is known from the
# image before it.

UNCOUNTED = -2
NO_SLOT = -1
"""Instead of a slot: the version does not count; it counts and needs none, because a key has room for all."""

INTS = ("user", "row", "copy", "key", "period", "slot", "begin", "seq")
"""The whole numbers of a version."""


@dataclass(frozen=True)
class Versions:
    """Row versions, one value each. `copy`: which of the equal copies of its row; `period`: the contribution period that it began in;
    `begin`: the trigger of its begin (0: it does not count)."""

    user: Int
    row: Int
    copy: Int
    key: Int
    period: Int
    key_bytes: pa.ChunkedArray
    slot: Int
    begin: Int
    seq: Int
    values: tuple[Int, ...]

    def take(self, positions: Int) -> Versions:
        """Return the versions at some places."""
        ints = {name: getattr(self, name)[positions] for name in INTS}
        return Versions(
            **ints,
            key_bytes=self.key_bytes.take(positions),
            values=tuple(column[positions] for column in self.values),
        )


@dataclass(frozen=True)
class Places:
    """Newest places in the feed of rows that are not there, by unit and row, and the times up to which they are kept."""

    user: Int
    row: Int
    seq: Int
    until: Int


@dataclass(frozen=True)
class KnownRows:
    """Rows that images name, as the state has them: live versions, sorted by (user, row, copy), where they are in it, and places of other rows."""

    live: Versions
    positions: Int
    ended: Places


@dataclass(frozen=True)
class Events:
    """Begins and ends of versions, unit by unit in the order in which they are taken: `version` begins (`sign` 1) or ends (-1), not before `trigger`."""

    version: Int
    sign: Int
    trigger: Int

    def take(self, positions: Int | Bool) -> Events:
        """Return the events at some places."""
        return Events(self.version[positions], self.sign[positions], self.trigger[positions])


@dataclass(frozen=True)
class VersionCut:
    """The versions that were there and after them those that begin, not admitted yet; what happens to them.

    `unknown`: ends of rows that were not there; `replayed`: images that were ignored for their places.
    """

    versions: Versions
    events: Events
    unknown: int
    replayed: int

    @property
    def live(self) -> Int:
        """Positions of the versions that do not end."""
        is_live = np.ones(len(self.versions.user), bool)
        is_live[self.events.version[self.events.sign == END]] = False
        return np.flatnonzero(is_live)


def cut_versions(
    feed: Images, trigger: Int, period: Int, names: pa.ChunkedArray, known: KnownRows, copies: bool
) -> VersionCut:
    """Follow every row through a micro-batch.

    Args:
        feed: images, unit by unit in the order in which they are taken.
        trigger: the first that each image can have.
        period: that this trigger is in.
        names: the key bytes of each image.
        known: rows that images name, as the state has them.
        copies: rows have no primary key; a begin is always another copy, and an end takes the copy that began last.
    """
    stored = known.live
    order, old, copy, starts = _by_copy(feed, stored) if copies else _by_row(feed, known)
    ignored = len(feed.user) - len(order)
    ordered = feed.take(order)
    is_begin = ordered.kind == BEGIN
    is_live = np.where(starts, old >= 0, _previous(is_begin))
    begins = is_begin & ~(
        is_live & np.where(starts, _same(ordered, stored, old), _repeats(ordered))
    )
    ends = is_live & (begins | ~is_begin)
    new_images = np.flatnonzero(begins)
    # The version that is there after an image: its own, or that of the newest begin before it, or the one that was there at first.
    version = np.where(begins, len(stored.user) + np.cumsum(begins) - 1, old)
    version_after = version[
        np.maximum.accumulate(np.where(begins | starts, np.arange(len(order)), 0))
    ]
    version_before = np.where(starts, old, _previous(version_after))
    seq = np.concatenate([stored.seq, ordered.seq[new_images]])
    repeated = is_begin & ~begins
    np.maximum.at(seq, version_before[repeated], ordered.seq[repeated])
    place = np.concatenate(
        [2 * order[ends], 2 * order[new_images] + 1]
    )  # an update ends the old version first
    events = Events(
        np.concatenate([version_before[ends], version_after[new_images]]),
        np.concatenate([np.full(int(ends.sum()), END), np.full(len(new_images), BEGIN)]),
        trigger[place // 2],
    )
    new = _new(
        ordered.take(new_images),
        copy[new_images],
        period[order[new_images]],
        names.take(order[new_images]),
    )
    return VersionCut(
        replace(_append(stored, new), seq=seq),
        events.take(sort_order(place)),
        int((~is_begin & ~is_live).sum()) + (ignored if copies else 0),
        0 if copies else ignored,
    )


def _by_row(feed: Images, known: KnownRows) -> tuple[Int, Int, Int, Bool]:
    """Return images row by row without replays; the version that was there; 0; where rows start.

    A replay is an image whose place in the feed is not after the newest of its row, or that is at its place what another one is.
    """
    order = sort_order(feed.user, feed.row)
    ordered = feed.take(order)
    starts = run_starts(ordered.user, ordered.row)
    run = np.cumsum(starts) - 1
    rows = [ordered.user[starts], ordered.row[starts]]
    old = match(rows, [known.live.user, known.live.row])[run]
    ended_rows = match(rows, [known.ended.user, known.ended.row])[run]
    known_seq = np.maximum(
        np.append(known.live.seq, NO_SEQUENCE)[old],
        np.append(known.ended.seq, NO_SEQUENCE)[ended_rows],
    )  # -1: the last
    is_silent = (ordered.seq == NO_SEQUENCE) & (known_seq == NO_SEQUENCE)
    place_starts = run_starts(ordered.user, ordered.row, ordered.seq, ordered.kind)
    is_kept = is_silent | (ordered.seq > known_seq) & place_starts
    order = order[is_kept]
    ordered = ordered.take(is_kept)
    return (
        order,
        old[is_kept],
        np.zeros(len(order), np.int64),
        run_starts(ordered.user, ordered.row),
    )


def _by_copy(feed: Images, stored: Versions) -> tuple[Int, Int, Int, Bool]:
    """Return images copy by copy of their rows, without ends of rows that have none; the version that was there; the copy; where copies start.

    Copies are a stack: begins and ends of one copy alternate.
    """
    order = sort_order(feed.user, feed.row)
    ordered = feed.take(order)
    starts = run_starts(ordered.user, ordered.row)
    run = np.cumsum(starts) - 1
    low, high = find([ordered.user[starts], ordered.row[starts]], [stored.user, stored.row])
    height = (high - low)[run] + running_count(ordered.kind, starts)
    stride = 2 * (len(run) + int((high - low).max(initial=0))) + 1
    missing = np.maximum(0, -(np.minimum.accumulate(height - run * stride) + run * stride))
    is_unknown = missing > np.where(starts, 0, _previous(missing))
    copy = height + missing - (ordered.kind == BEGIN)
    old = np.where(copy < (high - low)[run], low[run] + copy, -1)
    remaining = np.flatnonzero(~is_unknown)
    remaining = remaining[sort_order(run[remaining], copy[remaining])]
    return (
        order[remaining],
        old[remaining],
        copy[remaining],
        run_starts(run[remaining], copy[remaining]),
    )


def _same(feed: Images, stored: Versions, version: Int) -> Bool:
    """Tell whether a begin has the key and the values of a version (-1: of none)."""
    equal = version >= 0
    for column, stored_column in zip(
        (feed.key, *feed.values), (stored.key, *stored.values), strict=True
    ):
        equal = equal & (column == np.append(stored_column, 0)[version])
    return equal


def _repeats(feed: Images) -> Bool:
    """Tell whether an image has the key and the values of the one before."""
    equal = np.ones(len(feed.key), bool)
    for column in (feed.key, *feed.values):
        equal &= column == _previous(column)
    return equal


def _previous(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return for each row what the one before has; for the first anything."""
    return np.roll(column, 1)


def _new(feed: Images, copy: Int, period: Int, names: pa.ChunkedArray) -> Versions:
    return Versions(
        user=feed.user,
        row=feed.row,
        copy=copy,
        key=feed.key,
        period=period,
        key_bytes=names,
        slot=np.full(len(copy), UNCOUNTED),
        begin=np.zeros(len(copy), np.int64),
        seq=feed.seq,
        values=feed.values,
    )


def _append(stored: Versions, new: Versions) -> Versions:
    names = pa.chunked_array([*stored.key_bytes.chunks, *new.key_bytes.chunks], pa.binary())
    ints = {name: np.concatenate([getattr(stored, name), getattr(new, name)]) for name in INTS}
    return Versions(
        **ints,
        key_bytes=names,
        values=tuple(map(np.concatenate, zip(stored.values, new.values, strict=True))),
    )
