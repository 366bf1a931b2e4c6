"""What a bucket of units remembers of a table whose rows end: every live row, the places of rows that have ended, where each unit is or was
present, and its slots.

Four sorted tables. Only what the images of a micro-batch name is looked at, everything else stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Int,
    find,
    insert,
    int_fields,
    match,
    places,
    read_columns,
    run_maxima,
    run_starts,
    sort_order,
    sort_runs,
    span_rows,
    span_sums,
    unsort,
)
from dpsql.udfs.intake.versions import INTS, Events, Images, KnownRows, Places, Versions
from dpsql.udfs.stage import BEGIN, NO_SEQUENCE, Clock, Tables
from dpsql.udfs.state_table import StateTable

TABLES = {
    "live": StateTable(("user", "row", "copy"), "user"),
    "ended": StateTable(("user", "row"), "user"),
    "presences": StateTable(("user", "period", "key"), "user"),
    "slots": StateTable(("user", "period", "key", "slot"), "user"),
}
ENDED = ("user", "row", "seq", "until")
PAIR = ("user", "period", "key")
PRESENCE = ("rows", "live", "spells", "rank", "until")
TAKEN = -1
"""Instead of the trigger from which on a slot is free."""


def schemas(values: int) -> dict[str, pa.Schema]:
    """Return the schemas of all tables.

    live: a row of it (`row`, and which of its equal copies), the key and increments that it began with, the contribution period, trigger and
    place in the feed of that, and its slot. ended: as in `Places`. presences: of a unit in a key by what it began in a period, as in `Pairs`.
    slots: when each is free.
    """
    int64 = pa.int64()
    live = [
        ("user", int64),
        ("row", int64),
        ("copy", pa.int32()),
        ("key", int64),
        ("period", int64),
        ("key_bytes", pa.binary()),
        ("slot", pa.int32()),
    ]
    live += [("begin", int64), ("seq", int64), *((f"v{j}", int64) for j in range(values))]
    presences = [
        ("user", int64),
        ("period", int64),
        ("key", int64),
        *((name, int64 if name == "until" else pa.int32()) for name in PRESENCE),
    ]
    slots = [
        ("user", int64),
        ("period", int64),
        ("key", int64),
        ("slot", pa.int32()),
        ("free_from", int64),
    ]
    return {
        "live": pa.schema(live),
        "ended": pa.schema(int_fields(ENDED)),
        "presences": pa.schema(presences),
        "slots": pa.schema(slots),
    }


def empty_state(values: int) -> Tables:
    """Return the state of a bucket that has seen nothing."""
    return {name: schema.empty_table() for name, schema in schemas(values).items()}


@dataclass(frozen=True)
class Pairs:
    """Units in keys by what they began in one contribution period: by unit, period and key. A unit has an allowance per period, so "of its unit" is
    of its unit in its period throughout.

    One value per pair: `of_user`, the number of its unit; `is_known`, whether a version of it has counted before; `rows` versions of it have counted,
    `live` of them do; the unit has been present `spells` times, the last time as its `rank`-th (0: too often to count); `until`, the last
    trigger at which one ended; `slots`, how many there are.
    One per unit: versions that have counted, keys, spells. One per slot: its pair, its number, whether it is taken, and when it is free.
    One per version: `of_version`, its pair. `state_rows`: where the state has pairs and slots.
    """

    user: Int
    period: Int
    key: Int
    of_version: Int
    of_user: Int
    is_known: Bool
    rows: Int
    live: Int
    spells: Int
    rank: Int
    until: Int
    slots: Int
    rows_of_user: Int
    keys_of_user: Int
    spells_of_user: Int
    slot_of: Int
    slot: Int
    free_from: Int
    state_rows: dict[str, Int]

    @property
    def is_taken(self) -> Bool:
        """Mask of the slots with a version in them."""
        return self.free_from == TAKEN

    def changed(
        self, rows: Int, spells: Int, position: Int, live: Int, rank: Int, until: Int
    ) -> Pairs:
        """Return pairs with other counts, and those at `position` with other `live`, `rank` and `until`."""
        columns = self.live.copy(), self.rank.copy(), self.until.copy()
        for column, values in zip(columns, (live, rank, until), strict=True):
            column[position] = values
        return replace(
            self, rows=rows, spells=spells, live=columns[0], rank=columns[1], until=columns[2]
        )


def known_rows(state: Tables, images: Images, closed_us: int) -> KnownRows:
    """Return what the state has of the rows that images name; of those that have ended the places that are still kept."""
    rows = _distinct(images.user, images.row)
    table = state["live"]
    positions = span_rows(*find(rows, read_columns(table, ("user", "row"))))
    ints = {name: table[name].to_numpy()[positions].astype(np.int64) for name in INTS}
    values = tuple(
        table[name].to_numpy()[positions] for name in table.column_names if name.startswith("v")
    )
    live = Versions(**ints, key_bytes=table["key_bytes"].take(positions), values=values)
    ended = read_columns(state["ended"], ENDED)
    ended_positions = span_rows(*find(rows, ended[:2]))
    kept = ended_positions[ended[3][ended_positions] > closed_us]
    return KnownRows(live, positions, Places(*(column[kept] for column in ended)))


def update_ended(
    table: pa.Table, images: Images, ended: Places, live: Versions, clock: Clock, kept_us: int
) -> pa.Table:
    """Return the table of places of rows that have ended.

    A place is kept for so long after the commit that said it, or after the clock of its arrival; by the clock, or by the newest commit of its unit.

    Args:
        table: as it was.
        images: all, unit by unit.
        ended: places of rows that they name.
        live: the versions of these rows that are live now.
        clock: of the micro-batch.
        kept_us: how long places are kept.
    """
    ts = np.minimum(images.ts, clock.latest_us)
    newest = _newest_places(images, ts, ended, clock.closed_us, kept_us)
    starts = run_starts(images.user)
    units = images.user[starts]
    unit_times = np.maximum(run_maxima(ts, starts), clock.closed_us)
    is_replaced = _is_expired(table, units, unit_times, clock.closed_us)
    stored_rows = read_columns(table, ENDED[:2])
    is_replaced[span_rows(*find([newest.user, newest.row], stored_rows))] = True
    live_row = sort_order(live.user, live.row)
    is_gone = match([newest.user, newest.row], [live.user[live_row], live.row[live_row]]) < 0
    is_kept = newest.until > unit_times[match([newest.user], [units])]
    is_new = is_gone & is_kept & (newest.seq > NO_SEQUENCE)
    new_rows = {name: column[is_new] for name, column in vars(newest).items()}
    return _replace_rows(table, np.flatnonzero(is_replaced), new_rows, len(stored_rows))


def _newest_places(images: Images, ts: Int, ended: Places, closed_us: int, kept_us: int) -> Places:
    """Return the newest place of each row that images name, and up to when it is to be kept."""
    order, starts = sort_runs(images.user, images.row)
    user = images.user[order][starts]
    row = images.row[order][starts]
    ended_rows = match([user, row], [ended.user, ended.row])
    seq = np.maximum(
        run_maxima(images.seq[order], starts), np.append(ended.seq, NO_SEQUENCE)[ended_rows]
    )
    until = np.maximum(run_maxima(ts[order], starts), closed_us) + kept_us
    until = np.maximum(until, np.append(ended.until, closed_us)[ended_rows])
    return Places(user, row, seq, until)


def _is_expired(table: pa.Table, units: Int, unit_times: Int, closed_us: int) -> Bool:
    """Tell which places are kept no longer, by the clock or by the newest commit of their unit."""
    user, until = read_columns(table, ("user", "until"))
    low, high = find([units], [user])
    closed = np.full(len(user), closed_us)
    closed[span_rows(low, high)] = np.repeat(unit_times, high - low)
    return until <= closed


def count_pairs(state: Tables, versions: Versions) -> Pairs:
    """Group versions by unit, period and key, with what the state has of these."""
    order, starts = sort_runs(versions.user, versions.period, versions.key)
    user = versions.user[order][starts]
    period = versions.period[order][starts]
    key = versions.key[order][starts]
    presences = {name: state["presences"][name].to_numpy() for name in (*PAIR, *PRESENCE)}
    known_pairs = [presences[name] for name in PAIR]
    state_row = match([user, period, key], known_pairs)
    is_known = state_row >= 0
    stored = {name: np.zeros(len(user), np.int64) for name in PRESENCE}
    for name in PRESENCE:
        stored[name][is_known] = presences[name][state_row[is_known]]

    is_new_user = run_starts(user, period)
    low, high = find([user[is_new_user], period[is_new_user]], known_pairs[:2])
    table = state["slots"]
    first, end = find([user, period, key], read_columns(table, PAIR))
    slot_rows = span_rows(first, end)
    return Pairs(
        user=user,
        period=period,
        key=key,
        of_version=unsort(order, np.cumsum(starts) - 1),
        of_user=np.cumsum(is_new_user) - 1,
        is_known=is_known,
        **stored,
        slots=end - first,
        rows_of_user=span_sums(presences["rows"], low, high),
        keys_of_user=high - low,
        spells_of_user=span_sums(presences["spells"], low, high),
        slot_of=np.repeat(np.arange(len(user)), end - first),
        slot=table["slot"].to_numpy()[slot_rows].astype(np.int64),
        free_from=table["free_from"].to_numpy()[slot_rows],
        state_rows={"presences": state_row[is_known], "slots": slot_rows},
    )


def update_tables(
    state: Tables,
    live_rows: Int,
    live_now: Versions,
    versions: Versions,
    events: Events,
    new_pairs: Pairs,
    open_period: int,
) -> Tables:
    """Return the tables of versions with what is known now. Of a period in which nothing can begin any more only the pairs of live versions are kept.

    Args:
        state: as it was; `live_rows`: where it had live versions that images name.
        live_now: the versions that are live now.
        versions, events: what happened, of versions that count.
        new_pairs: units in keys as they are now.
        open_period: the first in which a version can still begin.
    """
    live_now = live_now.take(sort_order(live_now.user, live_now.row, live_now.copy))
    live = {name: getattr(live_now, name) for name in (*INTS, "key_bytes")} | {
        f"v{j}": column for j, column in enumerate(live_now.values)
    }
    is_kept = (new_pairs.rows > 0) & ((new_pairs.period >= open_period) | (new_pairs.live > 0))
    presences = {name: getattr(new_pairs, name)[is_kept] for name in (*PAIR, *PRESENCE)}
    slots = _slots(versions, events, new_pairs)
    is_open = slots["period"] >= open_period
    slots = {name: column[is_open] for name, column in slots.items()}
    new_rows = {"live": live, "presences": presences, "slots": slots}
    replaced = {"live": live_rows}
    for name, rows in new_pairs.state_rows.items():
        replaced[name] = np.concatenate([rows, _closed(state[name], open_period)])
    return {
        name: _replace_rows(
            state[name], replaced[name], new_rows[name], len(TABLES[name].sorted_by)
        )
        for name in new_rows
    }


def _closed(table: pa.Table, open_period: int) -> Int:
    """Return where a table has pairs of closed periods that no live version needs."""
    is_closed = table["period"].to_numpy() < open_period
    if "live" in table.column_names:
        is_closed &= table["live"].to_numpy() == 0
    return np.flatnonzero(is_closed)


def _slots(versions: Versions, events: Events, new_pairs: Pairs) -> dict[str, Int]:
    """Return what was known of each slot, or the last that happened in it."""
    slot_events = events.take(versions.slot[events.version] >= 0)
    pair = np.concatenate([new_pairs.slot_of, new_pairs.of_version[slot_events.version]])
    slot = np.concatenate([new_pairs.slot, versions.slot[slot_events.version]])
    free_from = np.concatenate(
        [new_pairs.free_from, np.where(slot_events.sign == BEGIN, TAKEN, slot_events.trigger)]
    )
    order = sort_order(pair, slot)
    pair = pair[order]
    slot = slot[order]
    last = np.append(run_starts(pair, slot)[1:], True) if len(order) else np.zeros(0, bool)
    return {
        **{name: getattr(new_pairs, name)[pair[last]] for name in PAIR},
        "slot": slot[last],
        "free_from": free_from[order][last],
    }


def _distinct(*columns: Int) -> list[Int]:
    order = sort_order(*columns)
    ordered = [column[order] for column in columns]
    starts = run_starts(*ordered)
    return [column[starts] for column in ordered]


def _replace_rows(
    table: pa.Table, replaced: Int, new_rows: dict[str, Any], sorted_by: int
) -> pa.Table:
    """Return a sorted table without some of its rows, with new ones that are sorted too; `sorted_by`, the number of columns that it is sorted by."""
    is_kept = np.ones(table.num_rows, bool)
    is_kept[replaced] = False
    new = pa.table({name: new_rows[name] for name in table.column_names}).cast(table.schema)
    names = table.column_names[:sorted_by]
    kept_columns = [column[is_kept] for column in read_columns(table, names)]
    positions = places(find(read_columns(new, names), kept_columns)[0])
    order = insert(np.flatnonzero(is_kept), table.num_rows + np.arange(new.num_rows), positions)
    return pa.concat_tables([table, new]).take(order).combine_chunks()
