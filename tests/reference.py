"""The obvious meaning of the two steps, on plain lists and dicts, one record at a time: slow, and readable next to the design. It shares no
code with `udfs` but the parameter values, so a bug there is not repeated here."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.perturbation import finish
from dpsql.udfs.histogram.release import ReleaseParameters
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS, BoundingParameters
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.counters import Counter as NoiseCounter
from dpsql.udfs.noise.counters import path_sd
from dpsql.udfs.noise.perturbation import PerturbationParameters
from tests.property.noise_paths import unit_path

MASK = (1 << 64) - 1
Group = tuple[int, int]
"""(window start, key)."""


@dataclass(frozen=True)
class Record:
    """One row of docs/architecture.md; `values` are a0, a1, ..."""

    user: int
    ts: int
    key: int
    values: tuple[float, ...] = ()
    drop: int = 0

    @property
    def key_bytes(self) -> bytes:
        name = str(self.key).encode()
        return b"%04d" % len(name) + name


@dataclass(frozen=True)
class Admitted:
    """One copy of a record that survived bounding (one per window), and what it adds to its group."""

    record: Record
    window: int
    trigger: int
    weight: int
    first: bool
    increments: tuple[int, ...]
    counted: int
    """Who counts in rounds: the user; where a user's periods can meet in a window, the user on this side of it."""

    @property
    def group(self) -> Group:
        return self.window, self.record.key


def windows_of(ts: int, grid: Grid) -> list[int]:
    """Starts of the windows that hold an event time, newest first."""
    start = grid.offset_us + (ts - grid.offset_us) // grid.slide_us * grid.slide_us
    while start + grid.slide_us <= ts:
        start += grid.slide_us
    found = []
    while start > ts - grid.window_us:
        found.append(start)
        start -= grid.slide_us
    return found


def period_of(ts: int, p: BoundingParameters) -> int:
    """Start of the contribution period: as long as the window, or one for the whole stream."""
    return (
        p.grid.offset_us + (ts - p.grid.offset_us) // p.grid.window_us * p.grid.window_us
        if p.renews
        else 0
    )


def trigger_of(ts: int, window: int, grid: Grid, closed_us: int) -> int | None:
    """The first grid point after the event time that is not closed yet; None if there is none."""
    for i in range(1, grid.horizon + 1):
        point = window + i * grid.trigger_us
        if point > ts and point > closed_us:
            return i
    return None


def increment(values: Sequence[float], rule: Increment, first: bool) -> int:
    """What one record adds to one perturbation, in grid units."""
    if rule.rule == "rows":
        return 1
    if rule.rule == "users":
        return int(first)
    x = values[rule.argument]
    other = rule.partner and values[rule.partner.argument]
    if math.isnan(x) or (other is not None and math.isnan(other)):
        return 0
    if rule.rule == "valid":
        return 1
    if rule.rule == "product" and rule.partner and other is not None:
        y, x = (
            min(max(value - centre, -half), half)
            for value, centre, half in (
                (x, rule.centre, rule.partner.own_half_width),
                (other, rule.partner.centre, rule.partner.half_width),
            )
        )
        return min(max(round(y * x / rule.grid), rule.lower), rule.upper)
    if math.isinf(x):
        if rule.rule == "squares":
            return rule.upper
        return rule.upper if x > 0 else rule.lower
    steps = (x - rule.centre) / rule.grid
    if rule.rule == "squares":
        square = (x - rule.centre) ** 2 / rule.grid if abs(x) < 1e150 else math.inf
        return rule.upper if square >= 2 * rule.upper else round(square) - rule.upper
    return (
        rule.upper if steps >= rule.upper else rule.lower if steps <= rule.lower else round(steps)
    )


def brings(values: Sequence[float], rule: Increment) -> int:
    """What one record brings to its group's room, in parts of a unit of the grid."""
    x = values[rule.argument] if rule.argument >= 0 else 1.0
    if math.isnan(x) or not rule.rule.startswith("sum"):
        return 0 if math.isnan(x) else parts_of(rule)
    return round(min(max((x - rule.centre) / rule.grid, rule.lower), rule.upper) * parts_of(rule))


def side_beyond(values: Sequence[float], rule: Increment) -> int:
    """1 where a value is above its bounds, by half a step or more, -1 where it is below, else 0."""
    x = values[rule.argument] if rule.argument >= 0 else math.nan
    if rule.rule.removesuffix("_per_group") not in ("sum", "leaf") or math.isnan(x):
        return 0
    steps = (x - rule.centre) / rule.grid
    lowest = 0 if rule.rule == "leaf" else rule.lower
    whole = steps if math.isinf(steps) else round(steps)
    return (whole > rule.upper) - (whole < lowest)


def parts_of(rule: Increment) -> int:
    """Of a unit of the grid: as many as the larger bound has in 2^31."""
    return 2**31 // max(-rule.lower, rule.upper)


def by_lot(
    records: Iterable[Record], told_apart: Callable[[Record], Sequence[int]]
) -> list[Record]:
    """A user's records by event time, and by lot where these are equal: of equal records each draws one of its own."""
    copies = Counter[int]()
    lots = []
    for record in records:
        digest = mix(record.user, record.ts, record.key, *told_apart(record))
        lots.append((record.ts, mix(digest, copies[digest]) if copies[digest] else digest))
        copies[digest] += 1
    return [record for _, record in sorted(zip(lots, records, strict=True), key=lambda one: one[0])]


def mix(start: int, *columns: int) -> int:
    mixed = start & MASK
    for column in columns:
        mixed ^= column & MASK
        mixed = mixed * 0x9E3779B97F4A7C15 & MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
        mixed ^= mixed >> 31
    return mixed


@dataclass
class Allowance:
    """What one user has used up of one period: records per key, groups in order of first use, records in all."""

    keys: Counter[int] = field(default_factory=Counter)
    groups: list[Group] = field(default_factory=list)
    rows: int = 0
    rooms: Counter[tuple[Group, int, bool]] = field(default_factory=Counter)


@dataclass
class Bounder:
    """Contribution bounding that never forgets: what a user has used up in a period stays used up."""

    p: BoundingParameters
    used: dict[tuple[int, int], Allowance] = field(default_factory=lambda: defaultdict(Allowance))
    drops: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[int, Group]] = field(default_factory=set)

    def admit(self, records: Iterable[Record], closed_us: int, latest_us: int) -> list[Admitted]:
        """One micro-batch: a user's records by event time and lot, each against the three bounds, then a copy for each open window."""

        def told_apart(record: Record) -> list[int]:
            brought = [
                brings(record.values, rule)
                if rule.per_group
                else increment(record.values, rule, True)
                for rule in self.p.increments
            ]
            if self.p.figures and self.p.figures.clamps:
                brought += [side_beyond(record.values, rule) for rule in self.p.increments]
            return brought

        timely = [r for r in records if self._timely(r, closed_us, latest_us)]
        return [
            copy
            for r in by_lot(timely, told_apart)
            if self._within_bounds(r, closed_us)
            for copy in self._copies(r, closed_us)
        ]

    def _open(self, record: Record, closed_us: int) -> list[tuple[int, int, int]]:
        """(number of the copy, window, trigger) of the windows that exist and are open."""
        grid = self.p.grid
        first = self.p.first_window_us
        found = [
            (i, w, trigger_of(record.ts, w, grid, closed_us))
            for i, w in enumerate(windows_of(record.ts, grid))
        ]
        return [(i, w, t) for i, w, t in found if t is not None and (first is None or w >= first)]

    def _timely(self, record: Record, closed_us: int, latest_us: int) -> bool:
        if record.drop:
            self.drops[DROP_REASONS[record.drop - 1]] += 1
        elif self.p.public_keys is not None and record.key not in self.p.public_keys:
            self.drops["not_a_public_group"] += 1
        elif record.ts > latest_us:
            self.drops["too_far_ahead"] += 1
        elif not self._open(record, closed_us):
            self.drops["window_closed"] += 1
        else:
            return True
        return False

    def _within_bounds(self, record: Record, closed_us: int) -> bool:
        mine = self.used[record.user, period_of(record.ts, self.p)]
        new = record.key not in mine.keys
        if not new and mine.rows < self.p.max_rows and self._full(record, mine, closed_us):
            self.drops["over_bounds_per_group"] += 1
            return False
        if (
            mine.keys[record.key] >= self.p.max_rows_per_group
            or (new and len(mine.keys) >= self.p.max_groups)
            or mine.rows >= self.p.max_rows
        ):
            self.drops["bounds"] += 1
            return False
        mine.keys[record.key] += 1
        mine.rows += 1
        return True

    def _full(self, record: Record, mine: Allowance, closed_us: int) -> bool:
        """Of no copy anything would be added, and only for want of room."""
        if not all(rule.per_group or rule.rule == "users" for rule in self.p.increments):
            return False
        for _, window, _ in self._open(record, closed_us):
            rooms = [self._room(mine, (window, record.key), j, record.values) for j in self.rooms]
            if any(brought and had < most for _, had, most, brought in rooms) or not any(
                brought and most for _, _, most, brought in rooms
            ):
                return False
        return True

    @property
    def rooms(self) -> list[int]:
        return [j for j, rule in enumerate(self.p.increments) if rule.per_group]

    def _room(
        self, mine: Allowance, group: Group, j: int, values: Sequence[float]
    ) -> tuple[tuple[Group, int, bool], int, int, int]:
        """Of increment j: the room on the side of what the record brings, what is in it, what it holds, and what is brought."""
        rule = self.p.increments[j]
        brought = brings(values, self.p.increments[j])
        side = group, j, brought < 0
        bound = -rule.lower if brought < 0 else rule.upper
        return side, mine.rooms[side], bound * parts_of(rule), abs(brought)

    def _fill(self, mine: Allowance, group: Group, j: int, values: Sequence[float]) -> int:
        """What a copy adds: the room after it less the room before it, each rounded to the grid, half up."""
        side, had, most, brought = self._room(mine, group, j, values)
        unit = Fraction(1, parts_of(self.p.increments[j]))
        mine.rooms[side] = min(had + brought, most)
        more = math.floor(mine.rooms[side] * unit + Fraction(1, 2)) - math.floor(
            had * unit + Fraction(1, 2)
        )
        return -more if side[2] else more

    def _copies(self, record: Record, closed_us: int) -> list[Admitted]:
        mine = self.used[record.user, period_of(record.ts, self.p)]
        windows = -(-self.p.grid.window_us // self.p.grid.slide_us)
        out = []
        for copy, window, trigger in self._open(record, closed_us):
            group = (window, record.key)
            first = group not in mine.groups
            filled = {j: self._fill(mine, group, j, record.values) for j in self.rooms}
            if first and len(mine.groups) >= windows * min(self.p.max_rows, self.p.max_groups):
                continue
            mine.groups += [group] * first
            rank = (mine.rows - 1) * windows + copy if self.p.by_user else len(mine.groups) - 1
            weight = self.p.weights[rank] if first or self.p.by_user else 0
            new = (record.user, group) not in self.seen  # in any period: as a user, it counts once
            self.seen.add((record.user, group))
            increments = tuple(
                filled[j] if j in filled else increment(record.values, rule, new)
                for j, rule in enumerate(self.p.increments)
            )
            out.append(
                Admitted(
                    record,
                    window,
                    trigger,
                    weight,
                    first,
                    increments,
                    self._counted(record, window),
                )
            )
        return out

    def _counted(self, record: Record, window: int) -> int:
        if not self.p.renews or self.p.grid.slide_us == self.p.grid.window_us:
            return record.user
        return record.user // 2 * 2 + (period_of(window, self.p) == period_of(record.ts, self.p))


Cells = dict[tuple[int, ...], tuple[int, ...]]
"""(window, trigger, key) -> (weight, users, increments...); with rounds the cell also names the user."""


def sums(admitted: Iterable[Admitted], by_user: bool = False) -> Cells:
    """What a whole run's contributions add up to. With rounds a user counts once per cell, with its largest weight."""
    out: Cells = {}
    for a in admitted:
        cell = (a.window, a.trigger, a.record.key, *([a.counted] if by_user else []))
        weight, *others = out.get(cell, (0,) * (2 + len(a.increments)))
        added = (int(a.first), *a.increments)
        out[cell] = (
            max(weight, a.weight) if by_user else weight + a.weight,
            *(x + y for x, y in zip(others, added, strict=True)),
        )
    return out


Noise = Callable[[int, int, int, int, int, int], float]
"""(window, key, mechanism, round, step, number) -> standard normal."""
Row = tuple[int, int, bytes, tuple[float | None, ...]]
"""(window, trigger, key bytes, released values)."""


def released(
    admitted: Sequence[Admitted], p: ReleaseParameters, closed_us: int, noise: Noise | None = None
) -> list[Row]:
    """All rows of triggers up to closed_us, in the order of the table; every key is tested at every trigger, nothing sleeps. Without
    `noise` everything is exact: a group appears from the first trigger on at which its weight reaches tau."""
    groups = {a.group: a.record.key_bytes for a in admitted}
    if p.public:
        windows = {w for w in range(p.public.first_window_us, closed_us + 1, p.grid.slide_us)}
        groups = {
            (w, k): name
            for w in windows
            for k, name in zip(p.public.keys, p.public.key_bytes, strict=True)
        }
    rows = []
    for (window, key), name in groups.items():
        mine = [a for a in admitted if a.group == (window, key)]
        shown = _shown(mine, window, key, p, noise)
        for i in range(1, p.grid.horizon + 1):
            if window + i * p.grid.trigger_us <= closed_us and i in shown:
                totals = [
                    sum(a.increments[j] for a in mine if a.trigger <= i)
                    for j in range(len(p.perturbations))
                ]
                paths = [
                    _path(q.counter, i, window, key, q.mechanism, 0, noise) * (q.sigma / q.grid)
                    for q in p.perturbations
                ]
                values = [v + round(x) for v, x in zip(totals, paths, strict=True)]
                for j, q in enumerate(p.perturbations):
                    if q.is_on_selection:
                        weight = sum(a.weight for a in mine if a.trigger <= i)
                        assert p.selection is not None
                        chosen = _path(q.counter, i, window, key, 0, 0, noise) * p.selection.sigma
                        values[j] = _on_selection(
                            totals[j], weight, round(chosen * 2**20), round(paths[j]), q, p, i
                        )
                rows.append(
                    (window, i, name, tuple(_output(column, values, i) for column in p.columns))
                )
    return sorted(rows, key=lambda row: row[:3])


def _on_selection(
    count: int,
    weight: int,
    chosen: int,
    own: int,
    q: PerturbationParameters,
    p: ReleaseParameters,
    i: int,
) -> int:
    """The middle of what a count allows of which the sum that chose its key is a part; all but `count` in units of 2^-20."""
    assert p.selection is not None
    exact = count + Fraction(chosen + own, 2**20)
    sd = q.stderr_on_selection[i - 1]
    of_choice = p.selection.sigma * path_sd(p.selection.counter)[i - 1]
    over = (weight + chosen - p.selection.thresholds[i - 1]) / 2**20
    d = over * (sd / (of_choice * of_choice))
    if d >= 2.1:
        return math.floor(exact + Fraction(1, 2))
    least = p.selection.min_users
    low = max(least, float(exact) - sd * (3 / d + d / 4)) if d > 0 else least
    return round((low + max(low + sd, float(exact) + 1.959963984540054 * sd)) / 2)


def _shown(
    mine: Sequence[Admitted], window: int, key: int, p: ReleaseParameters, noise: Noise | None
) -> set[int]:
    """Triggers at which a group is released."""
    every = range(1, p.grid.horizon + 1)
    s = p.selection
    if s is None:
        return set(every)
    shown: set[int] = set()
    users: dict[object, int] = {}
    round_ = 0
    for i in every:
        if shown and not s.rounds:
            shown.add(i)
            continue
        now = [a for a in mine if a.trigger == i]
        if s.rounds:
            for user in {a.counted for a in now} - set(users):
                users[user] = max(a.weight for a in now if a.counted == user)
        else:
            users |= {(i, n): a.weight for n, a in enumerate(now) if a.first}
        path = s.sigma * _path(s.counter, i, window, key, 0, round_, noise)
        if (
            users
            and len(users) >= s.min_users
            and path >= (s.thresholds[i - 1] - sum(users.values())) / 2**20
        ):
            shown.add(i)
            if s.rounds:
                users = {}
                round_ = round_ + 1
    return shown


def _output(column: OutputColumn, values: Sequence[int], trigger: int) -> float | None:
    """Of noisy sums; what quotients are made of them has tests of its own (tests/mechanisms/histogram/test_spread.py)."""
    if column.kind in ("count", "sum"):
        return values[column.perturbations[0]] * (column.grids[0] if column.kind == "sum" else 1)
    found = float(
        finish(column, [np.array([value]) for value in values], np.array([trigger]))[0][0]
    )
    return None if math.isnan(found) else found


def _path(
    counter: NoiseCounter,
    trigger: int,
    window: int,
    key: int,
    mechanism: int,
    round_: int,
    noise: Noise | None,
) -> float:
    if noise is None:
        return 0.0
    return unit_path(
        counter, trigger, lambda step, number: noise(window, key, mechanism, round_, step, number)
    )
