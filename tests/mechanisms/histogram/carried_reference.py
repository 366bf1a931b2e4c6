"""Key selection over several windows as plain lists: every sum of every key and window is kept for ever, every grid point is looked at by itself."""

from collections.abc import Mapping

import numpy as np

from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import path_sd

UNIT = 2.0**-20
Contributions = Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]
"""(window, key) -> trigger -> (weight, users)."""


class Reference:
    """The rows (window, trigger, key) that appear up to a time, and when each key was known."""

    def __init__(
        self, p: ReleaseParameters, noise_key: bytes, given: Contributions, until: int
    ) -> None:
        assert p.selection is not None and p.selection.window_tests is not None
        self.p = p
        self.s = p.selection
        self.c = p.selection.window_tests
        self.key_of_noise = noise_key
        self.given = given
        self.silent_since: dict[int, int] = {}
        self.known: dict[int, int] = {}
        self.shown_until: dict[int, int] = {}
        self.rows: set[tuple[int, int, int]] = set()
        self._paths: dict[tuple[int, int], list[float]] = {}
        self.dropped = 0
        self.carried = 0
        keys = sorted({key for _, key in given})
        grid = p.grid
        start = min(window for window, _ in given)
        for time in range(start + grid.trigger_us, until + 1, grid.trigger_us):
            self._grid_point(time, keys)

    def _grid_point(self, time: int, keys: list[int]) -> None:
        grid = self.p.grid
        found = {key for key in keys if key not in self.known and self._own(key, time)}
        for key in found:
            self.known[key] = time
        ended = time - grid.horizon * grid.trigger_us
        if ended % grid.window_us == 0:
            for key in keys:
                if key not in self.known and self._several(key, ended):
                    self.known[key] = time
                    self.carried += 1
                elif key in self.known and key not in found and self._weak(key, ended, time):
                    del self.known[key]
                    self.dropped += 1
                    self.silent_since[key] = -(-time // grid.window_us) * grid.window_us
                    self.shown_until[key] = self.silent_since[key]
        for window in self._open(time):
            trigger = (time - window) // grid.trigger_us
            self.rows |= {
                (window, trigger, key)
                for key in keys
                if key in self.known or window < self.shown_until.get(key, NO_CLOCK)
            }

    def _open(self, time: int) -> list[int]:
        grid = self.p.grid
        first = time - grid.horizon * grid.trigger_us
        return [
            w
            for w in range(-(-first // grid.window_us) * grid.window_us, time, grid.window_us)
            if w + grid.trigger_us <= time
        ]

    def _epoch(self, key: int) -> int:
        return self.silent_since.get(key, NO_CLOCK)

    def _own(self, key: int, time: int) -> bool:
        grid = self.p.grid
        for window in self._open(time):
            trigger = (time - window) // grid.trigger_us
            weight, users = self._sums(window, key, trigger)
            if window >= self._epoch(key) and users >= max(1, self.s.min_users):
                path = self.s.sigma * self._path(window, key)[trigger - 1]
                if weight * UNIT + path >= self.s.thresholds[trigger - 1] * UNIT:
                    return True
        return False

    def _several(self, key: int, ended: int) -> bool:
        size = self.p.grid.window_us
        for d, taus in zip(self.c.lengths, self.c.thresholds, strict=True):
            windows = [
                w for w in range(ended - (d - 1) * size, ended + 1, size) if w >= self._epoch(key)
            ]
            if any(self._sums(w, key)[1] >= max(1, self.s.min_users) for w in windows) and (
                sum(self._q(w, key) for w in windows) >= taus[len(windows) - 1] * UNIT
            ):
                return True
        return False

    def _weak(self, key: int, ended: int, time: int) -> bool:
        size = self.p.grid.window_us
        for d, least in self.c.least_sums:
            back = (d - 1) * size
            long_known = self.known[key] <= time - back and self._epoch(key) <= ended - back
            if (
                long_known
                and sum(self._q(w, key) for w in range(ended - back, ended + 1, size))
                < least * UNIT
            ):
                return True
        return False

    def _sums(self, window: int, key: int, trigger: int | None = None) -> tuple[int, int]:
        rows = [
            pair
            for at, pair in self.given.get((window, key), {}).items()
            if trigger is None or at <= trigger
        ]
        return sum(weight for weight, _ in rows), sum(users for _, users in rows)

    def _q(self, window: int, key: int) -> float:
        weight, users = self._sums(window, key)
        was_known = key in self.known and self.known[key] <= window
        noise = self._word(window, key) if was_known or not users else self._path(window, key)[-1]
        return weight * UNIT + self.s.sigma * noise

    def _tag(self, window: int, key: int) -> randomness.Blocks:
        return randomness.tags(self.key_of_noise, np.array([window]), np.array([key]))

    def _word(self, window: int, key: int) -> float:
        counter = self.s.counter
        return path_sd(counter)[-1] * float(
            randomness.normals(self.key_of_noise, self._tag(window, key), 0, 1, counter.horizon)[0]
        )

    def _path(self, window: int, key: int) -> list[float]:
        if (window, key) not in self._paths:
            counter = self.s.counter
            tag = self._tag(window, key)
            state = np.zeros((1, counter.width))
            out = []
            for step in range(1, counter.horizon + 1):
                state = counter.advance(
                    state,
                    lambda number, step=step: randomness.normals(
                        self.key_of_noise, tag, 0, 0, step, number
                    ),
                    step,
                )
                out.append(float(state[0, 0]))
            self._paths[window, key] = out
        return self._paths[window, key]
