"""A second reading of the semantics: what a query means, on plain lists and dicts, one record after the other. Written from the
documentation, to be read next to it. It shares nothing with the product: no code of `dpsql` or `udfs`, no numpy, no noise. Times are
integers, microseconds since 1970 UTC. Records are dicts by column name."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_KEY_BYTES = 4096
WEIGHT_UNIT = 2**20
NOT_YET = -(2**62)
"""The time up to which triggers are closed before the first tick."""

Record = Mapping[str, Any]
Key = tuple[Any, ...]
Group = tuple[int, Key]
"""(window start, key)."""


@dataclass(frozen=True)
class Column:
    """One aggregate: `function` is COUNT(*), COUNT, COUNT(DISTINCT), SUM or AVG; `low` and `high` are bounds of one row."""

    alias: str
    function: str
    argument: str = ""
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Question:
    """A query with every default filled in.

    Args:
        unit, event_time, keys: columns of a record.
        columns: the aggregates.
        size, slide, offset: of the windows; interval: between triggers; lateness, max_ahead: as the options say.
        rows, rows_per_key, keys_per_unit: C, c and G.
        for_ever: the allowance is for the whole stream, else for periods as long as a window.
        least_units: of a group before it is tested.
        rounds: release = RESELECT.
        decay: of the weights in key selection.
        listed: the public keys; None where keys are selected. The one key () for a query without keys.
        start: of the stream, for public keys.
    """

    unit: tuple[str, ...]
    event_time: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    size: int
    slide: int
    offset: int
    interval: int
    lateness: int
    max_ahead: int
    rows: int
    rows_per_key: int
    keys_per_unit: int
    for_ever: bool
    least_units: int = 1
    rounds: bool = False
    decay: float = 0.5
    listed: frozenset[Key] | None = None
    start: int | None = None

    @property
    def horizon(self) -> int:
        """T: triggers of a window, at start + 1, 2, ... T intervals."""
        return -(-(self.size + self.lateness) // self.interval)

    @property
    def windows_per_record(self) -> int:
        """r: a record is in so many windows at most."""
        return -(-self.size // self.slide)

    @property
    def most_groups(self) -> int:
        """K: (window, key) groups that one unit may be in per period."""
        return self.windows_per_record * min(self.rows, self.keys_per_unit)

    @property
    def first_window(self) -> int | None:
        """Windows before the one that holds the declared start do not exist; None: all do."""
        return None if self.start is None or self.listed is None else self.windows_of(self.start)[0]

    @property
    def least_counted(self) -> int:
        """A unit counts once per period, and a window can hold records of two: so many, that at least m units are among them."""
        return (
            self.least_units
            if self.for_ever or self.size == self.slide
            else 2 * self.least_units - 1
        )

    def windows_of(self, when: int) -> list[int]:
        """Starts of the windows that hold a time, newest first: [s, s + size) with s = offset, offset +- slide, ..."""
        newest = when - (when - self.offset) % self.slide
        return [
            newest - i * self.slide
            for i in range(self.windows_per_record)
            if when < newest - i * self.slide + self.size
        ]

    def exists(self, window: int) -> bool:
        return self.first_window is None or window >= self.first_window

    def period_of(self, when: int) -> int:
        """Start of the contribution period: as long as a window, from offset mod slide on."""
        return 0 if self.for_ever else when - (when - self.offset % self.slide) % self.size

    def trigger_of(self, when: int, window: int, closed: int) -> int | None:
        """The first trigger of a window after a time that is not closed yet; None if there is none."""
        return next(
            (
                i
                for i in range(1, self.horizon + 1)
                if window + i * self.interval > max(when, closed)
            ),
            None,
        )

    def weights(self) -> list[int]:
        """w_1, w_2, ...: i^-decay, so a unit's first group counts 1; in units of 2^-20."""
        counted = self.windows_per_record * min(
            self.rows, self.keys_per_unit * (self.rows_per_key if self.rounds else 1)
        )
        return [math.floor(i**-self.decay * WEIGHT_UNIT) for i in range(1, counted + 1)]


@dataclass(frozen=True)
class Copy:
    """An admitted record in one of its windows.

    Args:
        trigger: at which it counts.
        counted: who counts in key selection: a unit, in one of its periods.
        record: itself.
        weight: what it adds to key selection.
        new: the unit was not in the group before (in no period).
    """

    trigger: int
    counted: tuple[Key, int]
    record: Record
    weight: int
    new: bool


@dataclass
class Allowance:
    """What one unit has used up of one period."""

    rows: int = 0
    keys: Counter[Key] = field(default_factory=Counter)
    groups: list[Group] = field(default_factory=list)


class Reading:
    """One run: micro-batches and ticks in their order."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.drops: Counter[str] = Counter()
        self.groups: dict[Group, list[Copy]] = defaultdict(list)
        self._used: dict[tuple[Key, int], Allowance] = defaultdict(Allowance)
        self._seen: set[tuple[Key, Group]] = set()
        self._closed = NOT_YET
        self._weights = question.weights()

    def micro_batch(self, records: Iterable[Record], latest: int) -> None:
        """Records that come together are taken in order of their event times, whatever their order in the files.

        Args:
            records: of one micro-batch.
            latest: later event times are too far ahead: `max_ahead` after the wall clock, or after `--until` where that is later.
        """
        timely = [record for record in records if self._timely(record, latest)]
        for record in sorted(timely, key=self._when):
            if self._within_bounds(record):
                self._add(record)

    def tick(self, until: int) -> None:
        self._closed = max(self._closed, until)

    def _when(self, record: Record) -> int:
        return microseconds(record[self.question.event_time])

    def _unit(self, record: Record) -> Key:
        return tuple(record[name] for name in self.question.unit)

    def _key(self, record: Record) -> Key:
        return tuple(record[name] for name in self.question.keys)

    def _open(self, record: Record) -> list[tuple[int, int, int]]:
        """(number of the copy, window, trigger) of the windows that exist and are open."""
        q = self.question
        when = self._when(record)
        found = [
            (i, window, q.trigger_of(when, window, self._closed))
            for i, window in enumerate(q.windows_of(when))
            if q.exists(window)
        ]
        return [(i, window, trigger) for i, window, trigger in found if trigger is not None]

    def _timely(self, record: Record, latest: int) -> bool:
        """The first reason that holds is the one that is counted."""
        q = self.question
        if record[q.event_time] is None:
            reason = "null_event_time"
        elif None in self._unit(record):
            reason = "null_privacy_unit"
        elif (
            bytes_of(self._key(record)) > MAX_KEY_BYTES
            or bytes_of(self._unit(record)) > MAX_KEY_BYTES
        ):
            reason = "key_too_long"
        elif q.listed is not None and self._key(record) not in q.listed:
            reason = "not_a_public_group"
        elif self._when(record) > latest:
            reason = "too_far_ahead"
        elif not self._open(record):
            reason = "window_closed"
        else:
            return True
        self.drops[reason] += 1
        return False

    def _within_bounds(self, record: Record) -> bool:
        """C, then G, then c; only admitted records use anything up."""
        q = self.question
        key = self._key(record)
        mine = self._used[self._unit(record), q.period_of(self._when(record))]
        if mine.rows >= q.rows:
            reason = "over_max_rows"
        elif key not in mine.keys and len(mine.keys) >= q.keys_per_unit:
            reason = "over_max_groups"
        elif mine.keys[key] >= q.rows_per_key:
            reason = "over_max_rows_per_group"
        else:
            mine.rows += 1
            mine.keys[key] += 1
            return True
        self.drops[reason] += 1
        return False

    def _add(self, record: Record) -> None:
        """A copy for each open window, newest first; groups beyond K of a unit and period are left out."""
        q = self.question
        unit = self._unit(record)
        key = self._key(record)
        counted = (unit, q.period_of(self._when(record)))
        mine = self._used[counted]
        for number, window, trigger in self._open(record):
            group = (window, key)
            first = group not in mine.groups
            if first and len(mine.groups) >= q.most_groups:
                continue
            mine.groups += [group] * first
            if q.rounds:  # every record may count in a round of its own
                weight = self._weights[(mine.rows - 1) * q.windows_per_record + number]
            else:
                weight = self._weights[len(mine.groups) - 1] if first else 0
            new = (unit, group) not in self._seen
            self._seen.add((unit, group))
            self.groups[group].append(Copy(trigger, counted, record, weight, new))

    def due(self) -> dict[Group, list[int]]:
        """Per group that may have rows at all, its closed triggers. Public keys need no record."""
        q = self.question
        groups = set(self.groups)
        if q.listed is not None and q.first_window is not None:
            windows = range(q.first_window, self._closed, q.slide)
            groups = {(window, key) for window in windows for key in q.listed}
        found = {
            group: [i for i in range(1, q.horizon + 1) if group[0] + i * q.interval <= self._closed]
            for group in groups
        }
        return {group: triggers for group, triggers in found.items() if triggers}

    def exact(self, group: Group, trigger: int, column: Column) -> float | None:
        """What a column counts up to a trigger; an average of nothing is None."""
        copies = [copy for copy in self.groups.get(group, ()) if copy.trigger <= trigger]
        if column.function == "COUNT(*)":
            return len(copies)
        if column.function == "COUNT(DISTINCT)":
            return sum(copy.new for copy in copies)
        values = [
            x for x in (known(copy.record[column.argument]) for copy in copies) if x is not None
        ]
        if column.function == "COUNT":
            return len(values)
        clamped = [min(max(float(x), column.low), column.high) for x in values]
        if column.function == "SUM":
            return math.fsum(clamped)
        return math.fsum(clamped) / len(clamped) if clamped else None

    def shown(
        self,
        group: Group,
        triggers: Sequence[int],
        thresholds: Sequence[int],
        slack: Sequence[float],
    ) -> dict[int, bool | None]:
        """At which of a group's closed triggers it has a row: True, False, or None where noise decides.

        Args:
            group: with a record, or with a public key.
            triggers: closed ones, from `due`.
            thresholds: tau_1, tau_2, ... in units of 2^-20.
            slack: within so many units of tau (per trigger) the noise decides.
        """
        q = self.question
        if q.listed is not None:
            return dict.fromkeys(triggers, True)
        out: dict[int, bool | None] = {}
        units: dict[Any, int] = {}
        members: set[Any] = set()
        for i in triggers:
            now = [copy for copy in self.groups[group] if copy.trigger == i]
            unclear = None in out.values()
            if q.rounds:
                if unclear:  # who is in the round depends on when it began
                    out[i] = None
                    continue
                for who in {copy.counted for copy in now} - set(units):
                    units[who] = max(copy.weight for copy in now if copy.counted == who)
                members = set(units)
            else:
                units |= {(i, number): copy.weight for number, copy in enumerate(now)}
                members |= {copy.counted for copy in now}
                if True in out.values():  # once selected, for ever
                    out[i] = True
                    continue
            over = sum(units.values()) - thresholds[i - 1]
            enough = bool(members) and len(members) >= q.least_counted
            out[i] = enough and (
                True if over >= slack[i - 1] else False if over < -slack[i - 1] else None
            )
            if out[i] is False and unclear:
                out[i] = None  # it may have been selected before
            if q.rounds and out[i]:
                units = {}
        return out


def known(value: Any) -> Any:
    """A value that counts; NaN is NULL."""
    return None if value is None or value != value else value


def microseconds(when: datetime) -> int:
    """Since 1970 UTC."""
    return (when - EPOCH) // timedelta(microseconds=1)


def bytes_of(values: Key) -> int:
    """How long a key (or a privacy unit) is: the bytes of all its columns together. Numbers, dates and times count as decimal text."""
    return sum(len(text_of(value)) for value in values if value is not None)


def text_of(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return str(value).lower().encode()
    if isinstance(value, datetime):
        return str(microseconds(value)).encode()
    if isinstance(value, date):
        return str((value - EPOCH.date()).days).encode()
    return (f"{value:f}" if isinstance(value, Decimal) else str(value)).encode()
