"""The end of a window: which silent keys several windows prove together, and which known keys their last windows no longer support.

Guarantee (docs/privacy/histogram.md, theorem 29): a range of a silent key is the last d windows, d fixed by the plan, cut at the key's epoch and at
nothing else: that windows without a record count with their noise is what the proof needs. Thresholds are for as many windows as the range
has, each with m users that may be there whatever one user does. The review of known keys reads sums of known keys only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.histogram.memory import SILENT, Evidence, Memory
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import Counter, path_sd
from dpsql.udfs.noise.exact_paths import sum_reaches
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, ROOM, UNIT, trust
from dpsql.udfs.noise.randomness import MAX_NORMAL, Blocks, tags

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
        """The noise of unit sigma of groups without a path: one word each, as wide as the path's end."""
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
        """Whether the exact real sums of the last d windows are at least tau: from float64 where it can tell."""
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
