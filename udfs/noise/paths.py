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
from dpsql.udfs.noise.exact_paths import Redraw, reached, rounded
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
        for done in np.unique(step[groups]).tolist():
            moving = groups[step[groups] == done]
            if isinstance(self.counter, BltInf) and trigger - done > 1:
                at_a_time = max(DRAWS_AT_A_TIME // (trigger - done), 1)
                for some in (moving[i : i + at_a_time] for i in range(0, len(moving), at_a_time)):
                    state[some] = self.counter.jump(
                        state[some], self._normals(some, np.arange(done + 1, trigger + 1))
                    )
            else:
                for now in range(done + 1, trigger + 1):
                    state[moving] = self._advance(state[moving], self._draw(moving, now), now)
            step[moving] = trigger

    def rounded(self, state: Float, groups: Int, trigger: int, scale: Float | float) -> Int:
        """Return the exact paths of some groups at a trigger, times `scale` (one or one per
        group), rounded to integers; their state is that of this trigger."""
        return rounded(state[groups, 0], scale, trigger, self._error(trigger), self._again(groups))

    def reached(self, state: Float, groups: Int, trigger: int, sigma: float, margin: Float) -> Bool:
        """Tell whether the exact paths of some groups at a trigger times sigma are at least `margin`."""
        return reached(
            state[groups, 0], sigma, margin, trigger, self._error(trigger), self._again(groups)
        )

    def _advance(self, state: Float, draw: Draw, now: int) -> Float:
        return (
            self.counter.advance(state, draw, now)
            if isinstance(self.counter, BltInf)
            else trust(self.counter).advance(state, draw, now)
        )

    def _error(self, trigger: int) -> float:
        return (
            self.counter.error(trigger)
            if isinstance(self.counter, BltInf)
            else float(trust(self.counter).error[trigger - 1])
        )

    def _again(self, groups: Int) -> Redraw:
        return Redraw(
            self.noise_key,
            self.tag,
            groups,
            self.mechanism,
            0 if self.round_ is None else self.round_,
            self.counter,
        )

    def _draw(self, groups: Int, now: int) -> Draw:
        tag = self.tag[groups]
        round_ = self._rounds(groups)
        return lambda number: randomness.normals(
            self.noise_key, tag, self.mechanism, round_, now, number
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
    """Of the path at a trigger, for unit noise."""
    return (
        float(np.sqrt(counter.path_variance(trigger)))
        if isinstance(counter, BltInf)
        else path_sd(counter)[trigger - 1]
    )
