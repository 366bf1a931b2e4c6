"""The intake of a change feed as plain lists: one privacy unit after the other, its whole history remembered, nothing cut into state. It
shares with `udfs` the parameter values, `mix`, which orders what nothing else orders, and nothing else."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dpsql.udfs.columns import mix
from dpsql.udfs.intake.changes import FeedParameters
from dpsql.udfs.stage import Clock

NOWHERE = -(1 << 62)


class Image(NamedTuple):
    """`kind` 1 begins a row, -1 ends it, twice that where ends come first; `values` are the increments; `seq` NOWHERE: it does not say."""

    user: int
    row: int
    seq: int
    kind: int
    ts: int
    key: int
    values: tuple[int, ...]


@dataclass
class Version:
    row: int
    key: int
    values: tuple[int, ...]
    begin: int
    seq: int
    period: int
    slot: int | None
    counted: bool
    end: int | None = None


@dataclass
class Spell:
    key: int
    period: int
    begin: int
    rank: int
    end: int | None = None


@dataclass
class History:
    """Of one unit; `ended`: row -> its newest place, and until when it is kept; `drops`: why images were dropped, or did not count."""

    versions: list[Version] = field(default_factory=list)
    spells: list[Spell] = field(default_factory=list)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    drops: Counter[str] = field(default_factory=Counter)


Sums = dict[tuple[int, int], list[int]]
"""(trigger, key) -> weight, users, increments."""


def histories(
    batches: Iterable[tuple[list[Image], Clock]], p: FeedParameters
) -> dict[int, History]:
    """Every unit's own."""
    out: dict[int, History] = defaultdict(History)
    for given, clock in batches:
        for user in sorted({image.user for image in given}):
            kept = _kept([image for image in given if image.user == user], p)
            timely = [image for image in kept if image.kind == -1 or image.ts <= clock.latest_us]
            out[user].drops["too_far_ahead"] += len(kept) - len(timely)
            taken = _order(timely, p)
            for image in taken if p.copies else _without_replays(out[user], taken, clock):
                _take(
                    out[user],
                    image,
                    max(
                        (image.ts - p.grid.offset_us) // p.grid.trigger_us + 1,
                        p.grid.closed(clock.closed_us) + 1,
                        1,
                    ),
                    p,
                )
            if taken and not p.copies:
                _keep_places(out[user], taken, clock, p)
    return out


def _live(unit: History, row: int) -> list[Version]:
    return [v for v in unit.versions if v.row == row and v.end is None]


def _without_replays(unit: History, taken: list[Image], clock: Clock) -> list[Image]:
    """Images after what was known of their rows' places, each kind once at a place."""
    unit.ended = {row: kept for row, kept in unit.ended.items() if kept[1] > clock.closed_us}
    known = {
        row: max([unit.ended.get(row, (NOWHERE, 0))[0], *(v.seq for v in _live(unit, row))])
        for row in {image.row for image in taken}
    }
    seen = set[tuple[int, int, int]]()
    out = []
    for image in taken:
        is_silent = image.seq == known[image.row] == NOWHERE
        place = (image.row, image.seq, image.kind)
        if not is_silent and (image.seq <= known[image.row] or place in seen):
            unit.drops["replayed"] += 1
        else:
            out.append(image)
        seen.add(place)
    return out


def _keep_places(unit: History, taken: list[Image], clock: Clock, p: FeedParameters) -> None:
    for row in {image.row for image in taken}:
        mine = [image for image in taken if image.row == row]
        before = unit.ended.pop(row, (NOWHERE, clock.closed_us))
        seq = max([before[0], *(image.seq for image in mine)])
        said = max(min(image.ts, clock.latest_us) for image in mine)
        until = max(before[1], max(said, clock.closed_us) + p.ended_rows_kept_us)
        if seq > NOWHERE and not _live(unit, row):
            unit.ended[row] = (seq, until)
    newest = max(min(image.ts, clock.latest_us) for image in taken)
    unit.ended = {row: kept for row, kept in unit.ended.items() if kept[1] > newest}


def sums(units: Iterable[History], p: FeedParameters) -> Sums:
    """What all of them add, at every trigger up to the last."""
    out: Sums = defaultdict(lambda: [0] * (2 + len(p.increments)))
    for unit in units:
        for v in unit.versions:
            for when, sign in ((v.begin, 1), (v.end, -1)):
                if v.counted and when is not None and when <= p.grid.horizon:
                    for j, (rule, value) in enumerate(zip(p.increments, v.values, strict=True)):
                        out[when, v.key][2 + j] += sign * value * (rule.rule != "users")
        for spell in unit.spells:
            for when, sign in ((spell.begin, 1), (spell.end, -1)):
                if spell.rank <= len(p.weights) and when is not None and when <= p.grid.horizon:
                    row = out[when, spell.key]
                    row[0] += sign * p.weights[spell.rank - 1]
                    row[1] += sign
                    for j, rule in enumerate(p.increments):
                        row[2 + j] += sign * (rule.rule == "users")
    return {cell: row for cell, row in out.items() if any(row)}


def mix_of(*values: int) -> int:
    """`mix` of single values, be they written with a sign or without one."""
    words = [np.array([value % (1 << 64)], np.uint64).view(np.int64) for value in values]
    return int(mix(*words)[0])


def content(image: Image) -> int:
    return mix_of(image.key, *image.values)


def row_of(image: Image, p: FeedParameters) -> int:
    mixed = mix_of(image.row, content(image))
    return int(np.array([mixed], np.uint64).view(np.int64)[0]) if p.copies else image.row


def _kept(given: list[Image], p: FeedParameters) -> list[Image]:
    """Equal ends and begins at one place of a row are nothing; but if they are all that is there, and ends come first, one of the begins stays."""
    places: dict[Any, dict[Any, dict[int, list[Image]]]] = defaultdict(
        lambda: defaultdict(lambda: {1: [], -1: []})
    )
    for image in sorted(given, key=lambda image: image.ts):
        both = places[row_of(image, p), image.seq][image.key, image.values]
        both[1 if image.kind > 0 else -1].append(image)
    out = []
    for contents in places.values():
        left = []
        for both in contents.values():
            gone = min(len(both[1]), len(both[-1]))
            left += both[1][gone:] + both[-1][gone:]
        if not left and len(contents) == 1 and not p.copies:
            (both,) = contents.values()
            left = both[1][:1] if all(abs(i.kind) == 2 for i in both[1] + both[-1]) else []
        out += [image._replace(kind=1 if image.kind > 0 else -1) for image in left]
    return out


def _order(given: list[Image], p: FeedParameters) -> list[Image]:
    out = []
    copies = Counter[Any]()
    for row in sorted({row_of(image, p) for image in given}):
        mine = sorted(
            (image for image in given if row_of(image, p) == row),
            key=lambda i: (i.seq, i.kind, content(i), i.ts),
        )
        latest = min(image.ts for image in mine)
        places: dict[int, list[int]] = defaultdict(list)
        for image in mine:
            latest = max(latest, image.ts)
            if image.seq not in places[latest]:
                places[latest].append(image.seq)
            place = image.seq if p.copies else len(places[latest])
            record = mix_of(image.user, latest, row, content(image))
            copies[latest, place, image.kind, record] += 1
            number = copies[latest, place, image.kind, record] - 1
            lot = mix_of(record, number) if number else record
            out.append((latest, place, image.kind, lot, image._replace(row=row, ts=latest)))
    return [image for *_, image in sorted(out)]


def _take(unit: History, image: Image, trigger: int, p: FeedParameters) -> None:
    there = _live(unit, image.row)
    if image.kind == -1:
        if there:
            _end(unit, there[-1], trigger)
        else:
            unit.drops["unknown_row"] += 1
        return
    if there and not p.copies:
        if (there[-1].key, there[-1].values) == (image.key, image.values):
            there[-1].seq = max(there[-1].seq, image.seq)
            return
        _end(unit, there[-1], trigger)
    period = (trigger - 1 + p.periods.offset) // p.periods.length
    version = Version(image.row, image.key, image.values, trigger, image.seq, period, None, False)
    unit.versions.append(version)
    counted = [v for v in unit.versions if v.counted and v.period == period]
    keys = {v.key for v in counted}
    over = {"not_a_public_group": p.public_keys is not None and image.key not in p.public_keys}
    over |= {"window_closed": trigger > p.grid.horizon, "over_max_rows": len(counted) >= p.max_rows}
    over |= {"over_max_groups": image.key not in keys and len(keys) >= p.max_groups}
    if why := next((reason for reason, is_so in over.items() if is_so), None):
        unit.drops[why] += 1
        return
    if p.max_rows_per_group < p.max_rows:
        taken = {v.slot for v in counted if v.key == image.key and v.end is None}
        free = {
            slot: max(
                (
                    v.end
                    for v in counted
                    if v.key == image.key and v.slot == slot and v.end is not None
                ),
                default=0,
            )
            for slot in range(p.max_rows_per_group)
            if slot not in taken
        }
        if not free:
            unit.drops["over_max_rows_per_group"] += 1
            return
        version.slot = min(free, key=lambda slot: (free[slot], slot))
        version.begin = max(trigger, free[version.slot])
    version.counted = True
    if not any(v.key == image.key and v.end is None for v in counted):
        spells = [spell for spell in unit.spells if spell.period == period]
        before = max(
            (spell.end for spell in spells if spell.key == image.key and spell.end is not None),
            default=0,
        )
        begin = max(version.begin, before)
        unit.spells.append(Spell(image.key, period, begin, len(spells) + 1))


def _end(unit: History, version: Version, trigger: int) -> None:
    version.end = max(trigger, version.begin) if version.counted else trigger
    pair = version.period, version.key
    mine = [v for v in unit.versions if v.counted and (v.period, v.key) == pair]
    if version.counted and not any(v.end is None for v in mine):
        spell = next(s for s in unit.spells if (s.period, s.key) == pair and s.end is None)
        spell.end = max(v.end for v in mine if v.end is not None)
