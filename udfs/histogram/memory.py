"""What a key bucket remembers of its keys beyond their windows, and the review at the end of each window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Bool, Float, Int, find, insert, match, places, run_starts, sort_order
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
"""In the place of the time at which a key became known."""


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
    def of(cls, table: pa.Table) -> Memory:
        """From the state."""
        key, known_us, epoch = (
            table.column(name).to_numpy() for name in ("key", "known_us", "epoch")
        )
        return cls(key, table.column("key_bytes").combine_chunks(), known_us, epoch)

    def table(self) -> pa.Table:
        """For the state."""
        return pa.table(
            {
                "key": self.key,
                "key_bytes": self.names,
                "known_us": self.known_us,
                "epoch": self.epoch,
            }
        )

    @property
    def known(self) -> Bool:
        """Which keys are."""
        return self.known_us != SILENT

    def known_since(self, key: Int) -> Int:
        """Return when each key became known; SILENT."""
        return self._look_up(key, self.known_us, SILENT)

    def epoch_of(self, key: Int, first: int) -> Int:
        """Return the epoch of each key; of a key that is not here, `first`."""
        return self._look_up(key, self.epoch, first)

    def with_keys(self, key: Int, names: pa.Array, first: int) -> Memory:
        """With these keys, silent and of epoch `first` where they are new; any order, no key twice."""
        order = np.argsort(key)
        order = order[match([key[order]], [self.key]) < 0]
        where = places(find([key[order]], [self.key])[0])
        taken = insert(np.arange(len(self.key)), len(self.key) + order, where)
        return Memory(
            insert(self.key, key[order], where),
            pa.concat_arrays([self.names, names.cast(self.names.type)]).take(pa.array(taken)),
            insert(self.known_us, np.full(len(order), SILENT), where),
            insert(self.epoch, np.full(len(order), first), where),
        )

    def learnt(self, key: Int, known_us: Int) -> Memory:
        """With these keys, all here, known since then."""
        times = self.known_us.copy()
        times[match([key], [self.key])] = known_us
        return replace(self, known_us=times)

    def dropped(self, which: Bool, epoch: int) -> Memory:
        """With these keys silent, and a new epoch."""
        return replace(
            self,
            known_us=np.where(which, SILENT, self.known_us),
            epoch=np.where(which, epoch, self.epoch),
        )

    def kept(self, which: Bool) -> Memory:
        """These keys only."""
        if which.all():
            return self
        return Memory(
            self.key[which],
            self.names.filter(pa.array(which)),
            self.known_us[which],
            self.epoch[which],
        )

    def _look_up(self, key: Int, values: Int, otherwise: int) -> Int:
        at = match([key], [self.key])
        return np.where(at >= 0, values[at] if len(values) else otherwise, otherwise)


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
    def of(cls, table: pa.Table) -> Evidence:
        """From the state."""
        return cls(
            *(
                table.column(name).to_numpy()
                for name in ("key", "window", "weight", "users", "noise")
            )
        )

    def table(self) -> pa.Table:
        """For the state."""
        return pa.table(
            {name: getattr(self, name) for name in ("key", "window", "weight", "users", "noise")}
        )

    def plus(self, other: Evidence) -> Evidence:
        """Both."""
        columns = [
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in self.__dataclass_fields__
        ]
        order = sort_order(columns[0], columns[1])
        return Evidence(*(column[order] for column in columns))

    def kept(self, which: Bool) -> Evidence:
        """These rows only."""
        return (
            self
            if which.all()
            else Evidence(*(getattr(self, name)[which] for name in self.__dataclass_fields__))
        )

    @property
    def keys(self) -> Int:
        """Each key once."""
        return self.key[run_starts(self.key)]


def empty_memory() -> dict[str, pa.Table]:
    """Nothing is known, and nothing was seen."""
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
        kept: (d, least sum with which a known key stays known, in units of 2^-20).
        first: the epoch of a key that was never dropped.
    """

    windows: int
    lengths: tuple[int, ...]
    thresholds: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, int], ...]
    first: int


@dataclass(frozen=True)
class Review:
    """One closed window under review, and all that its tests need.

    Args:
        window, size_us, ends_us: its start, length and last trigger.
        carried: the tests.
        counter, sigma, min_users: of key selection.
        noise_key: the run's.
    """

    window: int
    size_us: int
    ends_us: int
    carried: CarriedParameters
    counter: Counter
    sigma: float
    min_users: int
    noise_key: bytes

    def tests(self, memory: Memory, evidence: Evidence) -> tuple[Bool, Bool]:
        """(proven: silent keys that become known, dropped: known keys that become silent), per key of the memory."""
        oldest = self.window - (self.carried.windows - 1) * self.size_us
        enough = np.unique(
            evidence.key[(evidence.users >= self.min_users) & (evidence.window >= oldest)]
        )
        asked = np.flatnonzero(memory.known | np.isin(memory.key, enough))
        reached = np.zeros(len(memory.key), bool)
        kept = np.ones(len(memory.key), bool)
        for start in range(0, len(asked), KEYS_AT_ONCE):
            some = asked[start : start + KEYS_AT_ONCE]
            sums = self._sums(memory, evidence, some)
            reached[some], kept[some] = self._proven(sums), self._kept(sums)
        return ~memory.known & reached, memory.known & ~kept

    def _sums(self, memory: Memory, evidence: Evidence, some: Int) -> _Sums:
        """Running sums over the last 1, 2, ..., L windows of some keys."""
        length = self.carried.windows
        key = memory.key[some]
        windows = self.window - np.arange(length) * self.size_us
        at = np.searchsorted(key, evidence.key)
        mine = (
            (at < len(key)) & (key[np.minimum(at, len(key) - 1)] == evidence.key)
            if len(key)
            else np.zeros(len(at), bool)
        )
        place = (self.window - evidence.window) // self.size_us
        mine &= (place >= 0) & (place < length)
        cell = at[mine], place[mine]
        shape = len(key), length
        weight = np.zeros(shape, np.int64)
        users = np.zeros(shape, np.int64)
        noise = np.zeros(shape)
        recorded = np.zeros(shape, bool)
        weight[cell], users[cell], noise[cell], recorded[cell] = (
            evidence.weight[mine],
            evidence.users[mine],
            evidence.noise[mine],
            True,
        )
        known_us = memory.known_us[some]
        epoch = memory.epoch[some]
        inside = windows >= epoch[:, None]
        silent = np.nonzero(inside & ~recorded)
        noise[silent] = self.words(windows[silent[1]], key[silent[0]])
        path = recorded & ((known_us[:, None] == SILENT) | (known_us[:, None] > windows))
        noise = np.where(inside, noise, 0.0)
        weights = np.cumsum(np.where(inside, weight, 0), axis=1)
        return _Sums(
            key,
            windows,
            known_us,
            epoch,
            inside,
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
        available = s.inside.sum(axis=1)
        found = np.zeros(len(s.key), bool)
        for d, taus in zip(self.carried.lengths, self.carried.thresholds, strict=True):
            k = np.minimum(d, available)
            tested = np.flatnonzero(
                ~found & (s.known_us == SILENT) & (k > 0) & (users[:, d - 1] >= self.min_users)
            )
            found[tested] = self._reaches(s, tested, d, np.array(taus)[k[tested] - 1])
        return found

    def _kept(self, s: _Sums) -> Bool:
        kept = np.ones(len(s.key), bool)
        for d, least in self.carried.kept:
            back = (d - 1) * self.size_us
            tested = np.flatnonzero(
                (s.known_us != SILENT)
                & (s.known_us <= self.ends_us - back)
                & (s.epoch <= self.window - back)
            )
            kept[tested] &= self._reaches(s, tested, d, np.full(len(tested), least))
        return kept

    def _reaches(self, s: _Sums, rows: Int, d: int, tau: Int) -> Bool:
        """Tell whether the exact real sums of the last d windows are at least tau: from float64 where it can tell."""
        if not len(rows):
            return np.zeros(0, bool)
        margin = (tau - s.weights[rows, d - 1]) * WEIGHT_UNIT
        above = self.sigma * s.noises[rows, d - 1] - margin
        each = np.where(
            s.path[rows, :d],
            trust(self.counter).error[-1],
            UNIT * (RELATIVE * MAX_NORMAL + ABSOLUTE + 2) * ROOM * self._sd,
        )
        error = ROOM * (each.sum(axis=1) + (d + 2) * UNIT * np.abs(s.noise[rows, :d]).sum(axis=1))
        found: Bool = above >= 0
        for i in np.flatnonzero(~(np.abs(above) > error * self.sigma)):
            found[i] = self._settled(s, int(rows[i]), d, float(margin[i]))
        return found

    def _settled(self, s: _Sums, row: int, d: int, margin: float) -> bool:
        paths, words = (
            self._tags(s, row, which & s.inside[row]) for which in _either(s.path[row], d)
        )
        return sum_reaches(
            self.noise_key, self.counter, self.sigma, paths, words, self._sd, WORD_ROUND, margin
        )

    def _tags(self, s: _Sums, row: int, which: Bool) -> Blocks:
        windows = s.windows[which]
        return tags(self.noise_key, windows, np.full(len(windows), s.key[row]))


@dataclass(frozen=True)
class _Sums:
    """Cells (key, how many windows back): `inside` its range, with the noise of a `path` or of a word; `weights, noises`: sums from the newest on."""

    key: Int
    windows: Int
    known_us: Int
    epoch: Int
    inside: Bool
    path: Bool
    users: npt.NDArray[np.int64]
    noise: Float
    weights: npt.NDArray[np.int64]
    noises: Float


def _either(path: Bool, d: int) -> tuple[Bool, Bool]:
    near = np.arange(len(path)) < d
    return path & near, ~path & near
