"""What a key bucket remembers of its keys beyond their windows, and the review at the end of each window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Float,
    Int,
    find,
    insert,
    match,
    places,
    read_columns,
    run_starts,
    sort_order,
)
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import Counter, path_sd
from dpsql.udfs.noise.exact_paths import sum_reaches
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, ROOM, UNIT, trust
from dpsql.udfs.noise.randomness import MAX_NORMAL, Blocks, tags
from dpsql.udfs.state_table import StateTable

# What a key bucket remembers of its keys beyond their windows: which are known, and what closed
# windows have shown of each.

# A key is silent or known. Evidence is the selection sum of a (window, key) after the window's
# last trigger; it exists for every key and window,
# with a record or not, so a window without a row stands for a weight of 0 and one word of noise.

TABLES = {"memory": StateTable(("key",), "key"), "evidence": StateTable(("key", "window"), "key")}

SILENT = NO_CLOCK
"""Mark of a silent key, in the place of the time at which it became known."""


@dataclass(frozen=True)
class Memory:
    """Keys that are known, that have evidence, or whose epoch must not be forgotten; sorted by key.

    known_us: the trigger's time at which the key became known; SILENT. epoch: no test reads a window that starts earlier.
    """

    key: Int
    names: pa.Array
    known_us: Int
    epoch: Int

    @classmethod
    def from_table(cls, table: pa.Table) -> Memory:
        """Read the table of the state."""
        key, known_us, epoch = read_columns(table, ("key", "known_us", "epoch"))
        return cls(key, table["key_bytes"].combine_chunks(), known_us, epoch)

    def table(self) -> pa.Table:
        """Return the table of the state."""
        return pa.table(
            {
                "key": self.key,
                "key_bytes": self.names,
                "known_us": self.known_us,
                "epoch": self.epoch,
            }
        )

    @property
    def is_known(self) -> Bool:
        """Mask of the known keys."""
        return self.known_us != SILENT

    def known_since(self, key: Int) -> Int:
        """Return when each key became known; SILENT."""
        return self._look_up(key, self.known_us, SILENT)

    def epoch_of(self, key: Int, first: int) -> Int:
        """Return the epoch of each key; of a key that is not here, `first`."""
        return self._look_up(key, self.epoch, first)

    def with_keys(self, key: Int, names: pa.Array, first: int) -> Memory:
        """Return the memory with these keys, silent and of epoch `first` where they are new; any order, no key twice."""
        order = np.argsort(key)
        order = order[match([key[order]], [self.key]) < 0]
        positions = places(find([key[order]], [self.key])[0])
        rows = insert(np.arange(len(self.key)), len(self.key) + order, positions)
        return Memory(
            insert(self.key, key[order], positions),
            pa.concat_arrays([self.names, names.cast(self.names.type)]).take(rows),
            insert(self.known_us, np.full(len(order), SILENT), positions),
            insert(self.epoch, np.full(len(order), first), positions),
        )

    def learnt(self, key: Int, known_us: Int) -> Memory:
        """Return the memory with these keys, all here, known since then."""
        times = self.known_us.copy()
        times[match([key], [self.key])] = known_us
        return replace(self, known_us=times)

    def dropped(self, is_dropped: Bool, epoch: int) -> Memory:
        """Return the memory with these keys silent, and a new epoch."""
        return replace(
            self,
            known_us=np.where(is_dropped, SILENT, self.known_us),
            epoch=np.where(is_dropped, epoch, self.epoch),
        )

    def select(self, is_selected: Bool) -> Memory:
        """Leave out the keys that are not selected."""
        if is_selected.all():
            return self
        return Memory(
            self.key[is_selected],
            self.names.filter(is_selected),
            self.known_us[is_selected],
            self.epoch[is_selected],
        )

    def _look_up(self, key: Int, values: Int, otherwise: int) -> Int:
        row = match([key], [self.key])
        return np.where(row >= 0, values[row] if len(values) else otherwise, otherwise)


@dataclass(frozen=True)
class Evidence:
    """Sums of closed windows with an admitted record, sorted by (key, window).

    weight: in units of 2^-20. users: that counted. noise: of unit sigma, the end of the group's path, or one word; NaN where float64 cannot be trusted.
    """

    key: Int
    window: Int
    weight: Int
    users: Int
    noise: Float

    @classmethod
    def from_table(cls, table: pa.Table) -> Evidence:
        """Read the table of the state."""
        return cls(*read_columns(table, ("key", "window", "weight", "users", "noise")))

    def table(self) -> pa.Table:
        """Return the table of the state."""
        return pa.table(vars(self))

    def plus(self, addition: Evidence) -> Evidence:
        """Return both, sorted by key and window."""
        columns = [
            np.concatenate([getattr(self, name), getattr(addition, name)])
            for name in self.__dataclass_fields__
        ]
        order = sort_order(columns[0], columns[1])
        return Evidence(*(column[order] for column in columns))

    def select(self, is_selected: Bool) -> Evidence:
        """Leave out the rows that are not selected."""
        return (
            self
            if is_selected.all()
            else Evidence(*(column[is_selected] for column in vars(self).values()))
        )

    @property
    def keys(self) -> Int:
        """Keys with evidence, each once."""
        return self.key[run_starts(self.key)]


def empty_memory() -> dict[str, pa.Table]:
    """Return the tables in which nothing is known, and nothing was seen."""
    none = np.zeros(0, np.int64)
    memory = Memory(none, pa.array([], pa.binary()), none, none)
    return {
        "memory": memory.table(),
        "evidence": Evidence(none, none, none, none, np.zeros(0)).table(),
    }


# The end of a window: which silent keys several windows prove together, and which known keys
# their last windows no longer support.

# Guarantee (docs/privacy/histogram.md, theorem 29): a range of a silent key is the last d
# windows, d fixed by the plan, cut at the key's epoch and at
# nothing else: that windows without a record count with their noise is what the proof needs.
# Thresholds are for as many windows as the range
# has, each with m users that may be there whatever one user does. The review of known keys reads
# sums of known keys only.

WORD_ROUND = 1
"""The round of the one word of a window without a path; paths are of round 0."""

KEYS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class CarriedParameters:
    """Numbers of tests over several windows.

    Args:
        windows: L.
        lengths, thresholds: per length d, tau_(d,k) for k = 1..d, in units of 2^-20.
        least_sums: (d, least sum with which a known key stays known, in units of 2^-20).
        first: the epoch of a key that was never dropped.
    """

    windows: int
    lengths: tuple[int, ...]
    thresholds: tuple[tuple[int, ...], ...]
    least_sums: tuple[tuple[int, int], ...]
    first: int


@dataclass(frozen=True)
class Review:
    """One closed window under review, and all that its tests need.

    Args:
        window, size_us, ends_us: its start, length and last trigger.
        window_tests: the tests.
        counter, sigma, min_users: of key selection.
        noise_key: the run's.
    """

    window: int
    size_us: int
    ends_us: int
    window_tests: CarriedParameters
    counter: Counter
    sigma: float
    min_users: int
    noise_key: bytes

    def tests(self, memory: Memory, evidence: Evidence) -> tuple[Bool, Bool]:
        """Tell per key of the memory whether it is proven, a silent key that becomes known, and dropped, a known key that becomes silent."""
        oldest = self.window - (self.window_tests.windows - 1) * self.size_us
        enough = np.unique(
            evidence.key[(evidence.users >= self.min_users) & (evidence.window >= oldest)]
        )
        reviewed = np.flatnonzero(memory.is_known | np.isin(memory.key, enough))
        is_proven = np.zeros(len(memory.key), bool)
        stays_known = np.ones(len(memory.key), bool)
        for start in range(0, len(reviewed), KEYS_AT_ONCE):
            rows = reviewed[start : start + KEYS_AT_ONCE]
            sums = self._sums(memory, evidence, rows)
            is_proven[rows] = self._proven(sums)
            stays_known[rows] = self._stays_known(sums)
        return ~memory.is_known & is_proven, memory.is_known & ~stays_known

    def _sums(self, memory: Memory, evidence: Evidence, rows: Int) -> _Sums:
        """Return running sums over the last 1, 2, ..., L windows of some keys."""
        length = self.window_tests.windows
        key = memory.key[rows]
        windows = self.window - np.arange(length) * self.size_us
        position = np.searchsorted(key, evidence.key)
        is_reviewed = (
            (position < len(key)) & (key[np.minimum(position, len(key) - 1)] == evidence.key)
            if len(key)
            else np.zeros(len(position), bool)
        )
        age = (self.window - evidence.window) // self.size_us
        is_reviewed &= (age >= 0) & (age < length)
        cell = position[is_reviewed], age[is_reviewed]
        shape = len(key), length
        weight = np.zeros(shape, np.int64)
        weight[cell] = evidence.weight[is_reviewed]
        users = np.zeros(shape, np.int64)
        users[cell] = evidence.users[is_reviewed]
        noise = np.zeros(shape)
        noise[cell] = evidence.noise[is_reviewed]
        recorded = np.zeros(shape, bool)
        recorded[cell] = True
        known_us = memory.known_us[rows]
        epoch = memory.epoch[rows]
        in_range = windows >= epoch[:, None]
        silent = np.nonzero(in_range & ~recorded)
        noise[silent] = self.words(windows[silent[1]], key[silent[0]])
        path = recorded & ((known_us[:, None] == SILENT) | (known_us[:, None] > windows))
        noise = np.where(in_range, noise, 0.0)
        weights = np.cumsum(np.where(in_range, weight, 0), axis=1)
        return _Sums(
            key,
            windows,
            known_us,
            epoch,
            in_range,
            path,
            users,
            noise,
            weights,
            np.cumsum(noise, axis=1),
        )

    def words(self, window: Int, key: Int) -> Float:
        """Return the noise of unit sigma of groups without a path: one word each, as wide as the path's end."""
        tag = tags(self.noise_key, window, key)
        return self._sd * randomness.normals(
            self.noise_key, tag, randomness.SELECTION, WORD_ROUND, self.counter.horizon
        )

    @property
    def _sd(self) -> float:
        return path_sd(self.counter)[-1]

    def _proven(self, s: _Sums) -> Bool:
        users = np.maximum.accumulate(s.users, axis=1)
        available = s.in_range.sum(axis=1)
        has_passed = np.zeros(len(s.key), bool)
        for d, taus in zip(self.window_tests.lengths, self.window_tests.thresholds, strict=True):
            k = np.minimum(d, available)
            tested = np.flatnonzero(
                ~has_passed & (s.known_us == SILENT) & (k > 0) & (users[:, d - 1] >= self.min_users)
            )
            has_passed[tested] = self._reaches(s, tested, d, np.array(taus)[k[tested] - 1])
        return has_passed

    def _stays_known(self, s: _Sums) -> Bool:
        stays = np.ones(len(s.key), bool)
        for d, least_sum in self.window_tests.least_sums:
            back = (d - 1) * self.size_us
            tested = np.flatnonzero(
                (s.known_us != SILENT)
                & (s.known_us <= self.ends_us - back)
                & (s.epoch <= self.window - back)
            )
            stays[tested] &= self._reaches(s, tested, d, np.full(len(tested), least_sum))
        return stays

    def _reaches(self, s: _Sums, rows: Int, d: int, tau: Int) -> Bool:
        """Tell whether the exact real sums of the last d windows are at least tau: from float64 where it can tell."""
        if not len(rows):
            return np.zeros(0, bool)
        margin = (tau - s.weights[rows, d - 1]) * WEIGHT_UNIT
        excess = self.sigma * s.noises[rows, d - 1] - margin
        errors = np.where(
            s.path[rows, :d],
            trust(self.counter).error[-1],
            UNIT * (RELATIVE * MAX_NORMAL + ABSOLUTE + 2) * ROOM * self._sd,
        )
        error = ROOM * (errors.sum(axis=1) + (d + 2) * UNIT * np.abs(s.noise[rows, :d]).sum(axis=1))
        reaches: Bool = excess >= 0
        for i in np.flatnonzero(~(np.abs(excess) > error * self.sigma)):
            reaches[i] = self._settled(s, int(rows[i]), d, float(margin[i]))
        return reaches

    def _settled(self, s: _Sums, row: int, d: int, margin: float) -> bool:
        paths, words = (
            self._tags(s, row, which & s.in_range[row]) for which in _either(s.path[row], d)
        )
        return sum_reaches(
            self.noise_key, self.counter, self.sigma, paths, words, self._sd, WORD_ROUND, margin
        )

    def _tags(self, s: _Sums, row: int, is_chosen: Bool) -> Blocks:
        windows = s.windows[is_chosen]
        return tags(self.noise_key, windows, np.full(len(windows), s.key[row]))


@dataclass(frozen=True)
class _Sums:
    """Cells (key, how many windows back): `in_range`: in its range, with the noise of a `path` or of a word; `weights, noises`: sums from the newest on."""

    key: Int
    windows: Int
    known_us: Int
    epoch: Int
    in_range: Bool
    path: Bool
    users: npt.NDArray[np.int64]
    noise: Float
    weights: npt.NDArray[np.int64]
    noises: Float


def _either(path: Bool, d: int) -> tuple[Bool, Bool]:
    near = np.arange(len(path)) < d
    return path & near, ~path & near
