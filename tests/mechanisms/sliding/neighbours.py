"""What the steps tell of one event or of one unit, exactly: no sampling, and no formula of planner or accountant. Two neighbouring streams
go through both steps. Whatever noise is added to is a question: the first stream is answered with real noise, the second one gets the same
answers. Then both must be asked the same questions (these may depend on answers alone), and the logarithm of the ratio of the answers'
probabilities is, at worst, the sum over the questions of what they moved times their loss per step. Bins do not talk to each other, so each
is a trial of its own, and one pass looks at hundreds of neighbours."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from unittest import mock

import numpy as np
import pyarrow as pa

from dpsql.local.feeder import Stages
from dpsql.mechanisms.sliding.plan import SlidingPlan
from dpsql.mechanisms.sliding.stages import stages
from dpsql.udfs.columns import Float, Int
from dpsql.udfs.keys import PublicGroups, encode
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding import panes as panes_module
from dpsql.udfs.sliding.panes import PANE, SUM, PaneCells
from dpsql.udfs.sliding.window_sqrt import WindowSqrt
from dpsql.udfs.stage import Clock, Tick
from tests.mechanisms.sliding.queries import HOUR

START = 480_000 * HOUR
SLIDE = HOUR
NOISE_KEY = bytes(range(32))
INSIDE = (0.0, 0.5, 1 - 2.0**-20)
LATE = (0, 0, 0, 0, 1, 2, 3)
VALUES = (1.0, 100.0, -5.0, np.nan)


@dataclass(frozen=True)
class Event:
    """A row: the pane of its time (a fraction, from START on), its bin, the micro-batch that brings it, whose it is, its value."""

    at: float
    bin: int
    batch: int
    user: int = 0
    value: float = 1.0


@dataclass
class Question:
    """One draw of noise for several bins: where it comes from, its loss per step, what it was added to, and what was answered."""

    address: np.ndarray
    key: Int
    round_: int | Int
    first: Int
    members: Int
    epsilon: float
    exact: np.ndarray = field(default_factory=lambda: np.zeros(0))
    answer: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Asked(np.ndarray):
    """Noise that hears what it is added to."""

    hear: Callable[[np.ndarray], np.ndarray]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> np.ndarray:
        if ufunc is not np.add or method != "__call__" or more:
            raise AssertionError("noise is added to something, and nothing else is done with it")
        return self.hear(np.asarray(inputs[0] if inputs[1] is self else inputs[1]))


class Interview:
    """The questions of one pass; answered as `before` was, where that is given."""

    def __init__(self, before: Self | None = None) -> None:
        self.questions: list[Question] = []
        self.paths: list[tuple[int, Int]] = []
        self.normals: list[np.ndarray] = []
        self.alike = True
        self._before = before
        self._rows = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    @contextmanager
    def listening(self) -> Iterator[None]:
        tag = PaneCells._tag
        draw = DiscreteLaplace.draw
        close = WindowSqrt.close
        normals = panes_module.normals
        me = self

        def tagged(cells: PaneCells, rows: Int, back: Int | int) -> Any:
            me._rows = (
                cells.key[rows],
                cells.start_us
                - cells.slide_us * np.broadcast_to(np.asarray(back, np.int64), rows.shape),
            )
            return tag(cells, rows, back)

        def drawn(
            table: DiscreteLaplace,
            noise_key: bytes,
            tags: Any,
            mechanism: int,
            round_: int,
            step: int | Int,
        ) -> Asked:
            noise = draw(table, noise_key, tags, mechanism, round_, step).view(Asked)
            where = _address(tags, mechanism, round_, step)
            key, first = me._rows
            question = Question(
                where, key, round_, (first - START) // SLIDE, where[:, -1], table.epsilon
            )
            noise.hear = lambda exact: me._answer(question, exact, noise.view(np.ndarray))
            return noise

        def drawn_normal(
            noise_key: bytes, tags: Any, mechanism: int, round_: int, step: int
        ) -> Float:
            me.normals.append(_address(tags, mechanism, round_, step))
            return normals(noise_key, tags, mechanism, round_, step)

        def closed(m: WindowSqrt, bins: Any, exact: Int, pane: int, cells: PaneCells) -> Any:
            if len(exact):  # else it is asked what its columns are
                me.paths.append((pane, exact.copy()))
            return close(m, bins, exact, pane, cells)

        with (
            mock.patch.object(PaneCells, "_tag", tagged),
            mock.patch.object(DiscreteLaplace, "draw", drawn),
            mock.patch.object(WindowSqrt, "close", closed),
            mock.patch.object(panes_module, "normals", drawn_normal),
        ):
            yield

    def _answer(self, question: Question, exact: np.ndarray, noise: np.ndarray) -> np.ndarray:
        question.exact = exact.copy()
        question.answer = exact + noise
        number = len(self.questions)
        self.questions.append(question)
        if self._before is not None:
            asked = self._before.questions[number] if number < len(self._before.questions) else None
            if asked is None or not np.array_equal(asked.address, question.address):
                self.alike = False
            else:
                question.answer = asked.answer
        return question.answer.copy()


def _address(tags: Any, mechanism: int, round_: int, step: int | Int) -> np.ndarray:
    """The noise cells of a draw, one a row; the number of panes is last."""
    members = np.broadcast_to(np.asarray(step, np.int64), (len(tags),))
    return np.column_stack(
        [tags.view(np.int64), np.full((len(tags), 2), (mechanism, round_)), members]
    )


@dataclass(frozen=True)
class Told:
    """What two neighbouring streams tell apart.

    Args:
        loss: per bin, of discrete Laplace noise: what all questions moved times their loss per step.
        moved: per bin, the questions that moved, as (kind, first pane, members).
        alike: given the same answers both streams were asked the same.
        shared: noise words that were used for several questions, or draws of Gaussian paths; then the losses say nothing.
        paths: [measurement, pane, bin], by how much exact sums below Gaussian noise differ.
    """

    loss: Float
    moved: dict[int, list[tuple[str, int, int]]]
    alike: bool
    shared: int
    paths: Int

    @property
    def worst(self) -> float:
        """The largest loss of a bin."""
        return float(self.loss.max()) if self.alike and not self.shared else np.inf


def told(
    plan: SlidingPlan,
    bins: int,
    panes: int,
    one: Sequence[Event],
    other: Sequence[Event],
    change: Callable[[Stages], Stages] = tuple,
) -> Told:
    """Run both streams through the steps of a plan.

    Args:
        plan: with panes of an hour.
        bins, panes: how many.
        one, other: the streams.
        change: what a planted bug does to the two stages.
    """
    keys = np.sort(np.random.default_rng(7).integers(-(1 << 62), 1 << 62, bins))  # as hashes are
    public = PublicGroups(
        tuple(keys.tolist()), tuple(encode([b"%06d" % i]) for i in range(bins)), START
    )
    both = change(stages(plan, public))
    interviews: list[Interview] = []
    for stream in (one, other):
        interview = Interview(interviews[0] if interviews else None)
        with interview.listening():
            _pass(both, keys, panes, stream)
        interviews.append(interview)
    return _compared(interviews[0], interviews[1], keys, len(plan.measurements), panes)


def _pass(both: Stages, keys: Int, panes: int, stream: Sequence[Event]) -> None:
    """Micro-batch b comes while pane b is the newest, and its tick closes what ends with it; states go from one step to the next as tables."""
    intake, release = both
    states = intake.empty(), release.empty()
    at, number, batch, user, value = (
        np.array([getattr(e, name) for e in stream])
        for name in ("at", "bin", "batch", "user", "value")
    )
    columns = {"drop": np.zeros(len(at), np.int8), "user": user.astype(np.int64)}
    columns |= {
        "ts": START + np.rint(at * SLIDE).astype(np.int64),
        "key": keys[number.astype(np.int64)],
    }
    columns |= {"key_bytes": pa.array([encode([b"%06d" % i]) for i in number], pa.binary())}
    columns |= {name: value for name in intake.takes.names if name not in columns}
    rows = pa.table({name: columns[name] for name in intake.takes.names})
    for b in range(panes):
        mine = rows.filter(pa.array(batch == b))
        taken = intake.step(
            states[0], mine, Clock(START + b * SLIDE, START + (b + 1) * SLIDE), NOISE_KEY
        )
        sums = taken.rows.append_column(
            "batch", pa.array(np.full(taken.rows.num_rows, b, np.int64))
        )
        states = (
            taken.state,
            release.step(states[1], sums, [Tick(b, START + (b + 1) * SLIDE)], NOISE_KEY).state,
        )


def _compared(one: Interview, other: Interview, keys: Int, measurements: int, panes: int) -> Told:
    loss = np.zeros(len(keys))
    moved = dict[int, list[tuple[str, int, int]]]()
    alike = other.alike and len(one.questions) == len(other.questions)
    for a, b in zip(one.questions, other.questions, strict=False) if alike else ():
        shift = np.abs(a.exact.astype(np.float64) - b.exact)
        at = np.searchsorted(keys, a.key)
        np.add.at(loss, at, shift * a.epsilon)
        kind = {PANE: "pane", SUM: "sum"}.get(int(a.round_), "monitor")
        for i in np.flatnonzero(shift):
            moved.setdefault(int(at[i]), []).append((kind, int(a.first[i]), int(a.members[i])))
    used = np.concatenate([*(q.address for q in one.questions), *one.normals])
    paths = np.zeros((measurements, panes, len(keys)), np.int64)
    for sign, interview in ((1, one), (-1, other)):
        for number, (pane, exact) in enumerate(interview.paths):
            paths[number % measurements, pane] += sign * exact
    return Told(loss, moved, alike, len(used) - len(np.unique(used, axis=0)), paths)


def gaussian(plan: SlidingPlan, found: Told, bins: slice = slice(None)) -> float:
    """mu of the Gaussian noise that some bins' paths have: the norm of C d over its standard deviation, all measurements together."""
    c = np.array(plan.coefficients)
    squared = 0.0
    for m, paths in zip(plan.measurements, found.paths, strict=True):
        for d in paths[:, bins].T:
            squared += float(np.sum(np.convolve(c, d) ** 2)) / m.sigma**2 if d.any() else 0.0
    return float(np.sqrt(squared))


def busy(bins: int, panes: int, seed: int) -> list[Event]:
    """Streams that are flat, step or burst, most of them quiet; some rows come late, some too late, one in a hundred before the start."""
    g = np.random.default_rng(seed)
    rate = np.exp(g.normal(-0.5, 1.0, bins)) * np.ones((panes, 1))
    rate[panes // 2 :, g.random(bins) < 0.2] *= 10
    rate[g.random((panes, bins)) < 0.01] += 60
    counts = g.poisson(rate)
    where = np.repeat(np.argwhere(counts), counts[counts > 0], axis=0).tolist()
    return [event(g, pane, number, panes, user=int(g.integers(1 << 40))) for pane, number in where]


def event(g: np.random.Generator, pane: int, number: int, panes: int, user: int = 0) -> Event:
    """A row of a pane: at its very beginning, inside, or just before its end; now and then late."""
    of_time, of_batch, of_value, before = g.random(4).tolist()
    at = -0.5 if before < 0.01 else pane + INSIDE[int(of_time * len(INSIDE))]
    late = LATE[int(of_batch * len(LATE))]
    return Event(
        at, int(number), min(int(pane) + late, panes - 1), user, VALUES[int(of_value * len(VALUES))]
    )
