"""Noise paths of a table's groups: brought up to a trigger from wherever they are, and read exactly.

A path is a function of (key, mechanism, trigger) and of nothing else: not of when its group was first seen or last looked at. Steps are
absolute trigger numbers. A declared last trigger has the counter of its horizon; without one it is BLT_INF.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, Draw, path_sd
from dpsql.udfs.noise.exact_paths import Redraw, path_reaches, rounded
from dpsql.udfs.noise.path_error import trust

DRAWS_AT_A_TIME = 1 << 20


@dataclass(frozen=True)
class Paths:
    """The noise of one mechanism, for the groups whose inner noise blocks are `tag`; `round_`: where a group has several paths, which it is."""

    counter: Counter | BltInf
    mechanism: int
    noise_key: bytes
    tag: npt.NDArray[np.uint64]
    round_: Int | None = None

    def follow(self, state: Float, step: Int, groups: Int, trigger: int) -> None:
        """Bring the paths of some groups up to a trigger; changes `state` and `step`, which have a row for every group."""
        for last_step in np.unique(step[groups]).tolist():
            moving = groups[step[groups] == last_step]
            if isinstance(self.counter, BltInf) and trigger - last_step > 1:
                at_a_time = max(DRAWS_AT_A_TIME // (trigger - last_step), 1)
                for chunk in (moving[i : i + at_a_time] for i in range(0, len(moving), at_a_time)):
                    state[chunk] = self.counter.jump(
                        state[chunk], self._normals(chunk, np.arange(last_step + 1, trigger + 1))
                    )
            else:
                for next_step in range(last_step + 1, trigger + 1):
                    state[moving] = self._advance(
                        state[moving], self._draw(moving, next_step), next_step
                    )
            step[moving] = trigger

    def rounded(self, state: Float, groups: Int, trigger: int, scale: Float | float) -> Int:
        """Return the exact paths of some groups at a trigger, times `scale` (one or one per
        group), rounded to integers; their state is that of this trigger."""
        return rounded(state[groups, 0], scale, trigger, self._error(trigger), self._redraw(groups))

    def reaches(self, state: Float, groups: Int, trigger: int, sigma: float, margin: Float) -> Bool:
        """Tell whether the exact paths of some groups at a trigger times sigma are at least `margin`."""
        return path_reaches(
            state[groups, 0], sigma, margin, trigger, self._error(trigger), self._redraw(groups)
        )

    def _advance(self, state: Float, draw: Draw, step: int) -> Float:
        return (
            self.counter.advance(state, draw, step)
            if isinstance(self.counter, BltInf)
            else trust(self.counter).advance(state, draw, step)
        )

    def _error(self, trigger: int) -> float:
        return (
            self.counter.error(trigger)
            if isinstance(self.counter, BltInf)
            else float(trust(self.counter).error[trigger - 1])
        )

    def _redraw(self, groups: Int) -> Redraw:
        return Redraw(
            self.noise_key,
            self.tag,
            groups,
            self.mechanism,
            0 if self.round_ is None else self.round_,
            self.counter,
        )

    def _draw(self, groups: Int, step: int) -> Draw:
        tag = self.tag[groups]
        round_ = self._rounds(groups)
        return lambda number: randomness.normals(
            self.noise_key, tag, self.mechanism, round_, step, number
        )

    def _normals(self, groups: Int, steps: Int) -> Float:
        tag = np.repeat(self.tag[groups], len(steps), axis=0)
        round_ = np.repeat(self._rounds(groups), len(steps))
        return randomness.normals(
            self.noise_key, tag, self.mechanism, round_, np.tile(steps, len(groups))
        ).reshape(len(groups), len(steps))

    def _rounds(self, groups: Int) -> Int:
        return np.zeros(len(groups), np.int64) if self.round_ is None else self.round_[groups]


def standard_deviation(counter: Counter | BltInf, trigger: int) -> float:
    """Return the standard deviation of the path at a trigger, for unit noise."""
    return (
        float(np.sqrt(counter.path_variance(trigger)))
        if isinstance(counter, BltInf)
        else path_sd(counter)[trigger - 1]
    )
