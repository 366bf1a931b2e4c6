"""The worst neighbours of each plan: what a search over streams, late rows, borders of panes and the start finds, and what planted bugs do to it."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from dpsql.local.feeder import Stages
from dpsql.mechanisms.sliding.accounting import account
from dpsql.mechanisms.sliding.plan import PaneGrouping, SlidingPlan
from dpsql.mechanisms.sliding.planner import make_plan
from dpsql.parsed_query import ContributionPeriod, changed
from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise.discrete_laplace import LARGEST, discrete_laplace
from dpsql.udfs.noise.window_sqrt import coefficients
from dpsql.udfs.sliding import panes as panes_module
from dpsql.udfs.sliding.intake import PaneEvents, UnitIntake
from dpsql.udfs.sliding.panes import PaneCells
from dpsql.udfs.sliding.retroactive import Retroactive
from dpsql.udfs.stage import Clock, Stepped
from tests.mechanisms.sliding.neighbours import (
    SLIDE,
    VALUES,
    Event,
    Told,
    busy,
    event,
    gaussian,
    told,
)
from tests.mechanisms.sliding.queries import (
    AVG,
    COUNT,
    EVENT,
    HOUR,
    SOURCE,
    SPREAD,
    SQRT,
    SUM,
    USER,
    bounds,
    query_of_hours,
)

W = 4
PANES = 100
EPSILON = 0.5
LATE = {"allowed_lateness_us": HOUR}
NOT_WHOLE = dataclasses.replace(SUM, bounds=(-0.993, 0.993))
"""1,016.8 steps of the noise: a row moves a pane's sum by 1,016 or 1,017, as the rest of it will have it."""
PLANS: dict[str, SlidingPlan] = {
    name: make_plan(query_of_hours(query, W), SOURCE)
    for name, query in {
        "PANES": changed(EVENT, epsilon=EPSILON, **LATE),
        "PANES, three aggregates": changed(
            EVENT, epsilon=EPSILON, aggregates=(COUNT, SUM, AVG), **LATE
        ),
        "PANES, a spread": changed(EVENT, epsilon=EPSILON, aggregates=(SPREAD,), **LATE),
        "PANES, two sums of parts of steps": changed(
            EVENT,
            epsilon=EPSILON,
            aggregates=(NOT_WHOLE, dataclasses.replace(AVG, bounds=(-0.3, 0.69))),
            **LATE,
        ),
        "RETROACTIVE": changed(EVENT, epsilon=EPSILON, grouping=PaneGrouping.RETROACTIVE, **LATE),
        "RETROACTIVE, a sum of parts of steps": changed(
            EVENT,
            epsilon=EPSILON,
            grouping=PaneGrouping.RETROACTIVE,
            aggregates=(NOT_WHOLE,),
            **LATE,
        ),
        "WINDOW_SQRT": changed(SQRT, epsilon=EPSILON, **LATE),
        "WINDOW_SQRT, three aggregates": changed(
            SQRT, epsilon=EPSILON, aggregates=(COUNT, SUM, AVG), **LATE
        ),
        "WINDOW_SQRT, a spread": changed(SQRT, epsilon=EPSILON, aggregates=(COUNT, SPREAD), **LATE),
        "units, a spread": changed(
            USER, epsilon=EPSILON, delta=1e-6, aggregates=(SPREAD,), **bounds(3, 2, 2), **LATE
        ),
        "units, PANES": changed(USER, epsilon=EPSILON, **bounds(3, 2, 2), **LATE),
        "units, a sum of parts of steps": changed(
            USER, epsilon=EPSILON, aggregates=(NOT_WHOLE,), **bounds(3, 2, 2), **LATE
        ),
        "units, STREAM": changed(
            USER,
            epsilon=EPSILON,
            contribution_period=ContributionPeriod.STREAM,
            **bounds(3, 2, 2),
            **LATE,
        ),
        "units, WINDOW_SQRT": changed(USER, epsilon=EPSILON, delta=1e-6, **bounds(3, 2, 2), **LATE),
    }.items()
}
# A monitor with two fifths of epsilon, so that groups are found among the few panes of a search.
_OFTEN = dataclasses.replace(
    PLANS["RETROACTIVE"].measurements[0],
    monitor=discrete_laplace(0.4 * EPSILON),
    together=discrete_laplace(0.6 * EPSILON),
)
PLANS["RETROACTIVE"] = dataclasses.replace(PLANS["RETROACTIVE"], measurements=(_OFTEN,))
BINS_OF_A_UNIT = 3
Change = Callable[[Stages], Stages]


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Args:
        told: of all its neighbours at once.
        spent: per trial, the loss as a share of what is promised for it.
        events: the row that makes a bin's neighbours (events), in order of the bins.
    """

    told: Told
    spent: Float
    events: tuple[Event, ...] = ()

    @property
    def worst(self) -> float:
        """The largest share; above 1 the promise is broken. Infinite where the questions or the noise give the difference away."""
        return float(self.spent.max()) if self.told.alike and not self.told.shared else math.inf


def search(
    name: str,
    trials: int = 40,
    seed: int = 1,
    change: Change = tuple,
    plan: SlidingPlan | None = None,
) -> Found:
    """The neighbours of one plan: a row added, removed or changed in each bin; or, half as many, all rows of a unit in `BINS_OF_A_UNIT` bins."""
    chosen = PLANS[name] if plan is None else plan
    return (_units if name.startswith("units") else _events)(
        chosen, PLANS[name], trials, seed, change
    )


def _events(
    plan: SlidingPlan, promised: SlidingPlan, trials: int, seed: int, change: Change
) -> Found:
    g = np.random.default_rng([seed, 1])
    common = busy(trials, PANES, seed)
    mine = tuple(event(g, int(g.integers(PANES - 10)), number, PANES) for number in range(trials))
    moved = g.random(trials) < 0.2  # a changed row: one removed and one added
    one = common + list(mine)
    other = common + [
        dataclasses.replace(event(g, int(g.integers(PANES - 10)), e.bin, PANES))
        for e, changes in zip(mine, moved, strict=True)
        if changes
    ]
    found = told(plan, trials, PANES, one, other, change)
    loss = (
        np.array([gaussian(plan, found, slice(i, i + 1)) for i in range(trials)]) / promised.mu
        if plan.mu
        else found.loss / EPSILON
    )
    return Found(found, loss / np.where(moved, 2, 1), mine)


def _units(
    plan: SlidingPlan, promised: SlidingPlan, trials: int, seed: int, change: Change
) -> Found:
    """The unit of a trial is there in one or two periods that follow each other, with more rows than it may have."""
    trials = -(-trials // 2)
    g = np.random.default_rng([seed, 2])
    bins = trials * BINS_OF_A_UNIT
    common = busy(bins, PANES, seed)
    mine = list[Event]()
    periods = np.zeros(trials, int)
    for trial in range(trials):
        first = int(g.integers(1, PANES // W - 3)) * W
        span = W * int(g.integers(1, 3))
        rows = [
            event(
                g,
                first + int(g.integers(span)),
                trial * BINS_OF_A_UNIT + int(g.integers(BINS_OF_A_UNIT)),
                PANES,
                user=-1 - trial,
            )
            for _ in range(12)
        ]
        rows = [
            dataclasses.replace(e, at=max(e.at, first), value=VALUES[1] if trial % 2 else e.value)
            for e in rows
        ]
        mine += rows
        periods[trial] = len({int(e.at) // W for e in rows})
    found = told(plan, bins, PANES, common + mine, common, change)
    if promised.query.contribution_period is ContributionPeriod.STREAM:
        periods[:] = 1
    if not plan.mu:
        return Found(
            found, found.loss.reshape(trials, BINS_OF_A_UNIT).sum(axis=1) / (EPSILON * periods)
        )
    mu = np.array(
        [
            gaussian(plan, found, slice(i * BINS_OF_A_UNIT, (i + 1) * BINS_OF_A_UNIT))
            for i in range(trials)
        ]
    )
    cost = account(promised, SOURCE)
    return Found(found, mu / np.array([math.sqrt(cost.periods(int(n)).mu2) for n in periods]))


@dataclass(frozen=True)
class Bug:
    """A planted bug: the plan that it is in, what it does to the plan, to the stages, and which functions it replaces."""

    name: str
    where: str
    plan: Callable[[SlidingPlan], SlidingPlan] = lambda plan: plan
    change: Change = tuple
    patch: Callable[[], AbstractContextManager[object]] = nullcontext


def caught(bug: Bug, trials: int = 40, seed: int = 1) -> float:
    """The share of the promise that is told; above 1 it is caught."""
    with bug.patch():
        return search(bug.where, trials, seed, bug.change, bug.plan(PLANS[bug.where])).worst


@contextmanager
def _group_asked_twice() -> Iterator[None]:
    average = Retroactive._average

    def twice(
        m: Retroactive, sums: Int, rows: Any, cells: PaneCells, back: Int, size: Int
    ) -> Float:
        again = dataclasses.replace(cells, mechanism=cells.mechanism + 100)
        return (
            average(m, sums, rows, cells, back, size) + average(m, sums, rows, again, back, size)
        ) / 2

    with mock.patch.object(Retroactive, "_average", twice):
        yield


@contextmanager
def _average_with_too_little_noise() -> Iterator[None]:
    """The average of a group moves by 1 / |G|; its noise has scale 1 / (eps2 |G|^2)."""

    def average(
        m: Retroactive, sums: Int, rows: Any, cells: PaneCells, back: Int, size: Int
    ) -> Float:
        out = np.zeros(len(rows))
        for members in np.unique(size[rows]):
            at = np.flatnonzero(rows & (size == members))
            table = discrete_laplace(min(m.table.epsilon * float(members) ** 2, LARGEST))
            out[at] = sums[at] / members + cells.sum(
                table, at, back[at], size[at], np.zeros(len(at), np.int64)
            )
        return out

    with mock.patch.object(Retroactive, "_average", average):
        yield


def _late_rows_twice(both: Stages) -> Stages:
    """A row that comes after its pane has ended counts in the next one too."""
    intake, release = both
    step = PaneEvents.step

    class Twice(PaneEvents):
        def step(self, state: Any, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
            late = rows.column("ts").to_numpy() < now.closed_us
            moved = rows.filter(pa.array(late))
            at = moved.column_names.index("ts")
            moved = moved.set_column(at, "ts", pa.array(moved.column("ts").to_numpy() + SLIDE))
            return step(self, state, pa.concat_tables([rows, moved]), now, noise_key)

    assert isinstance(intake, PaneEvents)
    return Twice(intake.parameters, intake.arguments), release


def _distinct_by_pane(both: Stages) -> Stages:
    """A unit counts once in every pane, and panes are added up as if it counted once in a window."""
    intake, release = both

    class EveryPane(UnitIntake):
        def step(self, state: Any, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
            taken = UnitIntake.step(self, state, rows, now, noise_key)
            return Stepped(intake.empty(), taken.rows, taken.counted)

    assert isinstance(intake, UnitIntake)
    return EveryPane(intake.parameters, intake.arguments), release


def _louder(factor: Callable[[SlidingPlan], int]) -> Callable[[SlidingPlan], SlidingPlan]:
    """A factor of every scale is forgotten."""

    def change(plan: SlidingPlan) -> SlidingPlan:
        each = [
            dataclasses.replace(m, fine=discrete_laplace(m.fine.epsilon * factor(plan)))
            for m in plan.measurements
            if m.fine
        ]
        return dataclasses.replace(plan, measurements=tuple(each))

    return change


def _longer_band(plan: SlidingPlan) -> SlidingPlan:
    """Noise of a band of twice as many coefficients than the norm was taken over."""
    return dataclasses.replace(plan, coefficients=coefficients(2 * W))


BUGS = (
    Bug("group asked twice", "RETROACTIVE", patch=_group_asked_twice),
    Bug(
        "monitor and release share a noise cell",
        "RETROACTIVE",
        patch=lambda: mock.patch.object(panes_module, "MONITOR", panes_module.PANE),
    ),
    Bug(
        "average of m panes with noise 1/(eps2 m^2)",
        "RETROACTIVE",
        patch=_average_with_too_little_noise,
    ),
    Bug(
        "scale 1/eps for several aggregates",
        "PANES, three aggregates",
        plan=_louder(lambda plan: len(plan.measurements)),
    ),
    Bug("late row measured in the next pane too", "PANES", change=_late_rows_twice),
    Bug("level USER without C", "units, PANES", plan=_louder(lambda plan: plan.query.asked.rows)),
    Bug("COUNT(DISTINCT unit) added up over panes", "units, PANES", change=_distinct_by_pane),
    Bug("norm over fewer coefficients than the noise uses", "WINDOW_SQRT", plan=_longer_band),
)
