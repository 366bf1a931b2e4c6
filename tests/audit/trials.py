"""Run the real steps, admit -> release, on thousands of independent trials of one scenario at once. Every trial has users and keys of
its own, so its noise is independent of every other trial's, and its records are the same up to names. A cell is a (window, key) of the
trial."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pyarrow as pa

from dpsql.mechanisms.histogram.accounting import cost
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel
from dpsql.udfs.columns import Float, Int
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.histogram import perturbation
from dpsql.udfs.histogram.chosen_counts import Excess
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import Clock, Tick
from tests.audit.scenarios import INTERVAL, SOURCE, Crowd, Scenario, Visit, plan_of

KEYS = 16
"""Keys per trial at most; key number = trial * KEYS + key."""

Parameters = tuple[BoundingParameters, ReleaseParameters]


@dataclass(frozen=True)
class Bug:
    """A planted bug: what it does to the parameters, which functions it replaces while the steps run, or how it feeds them.

    Args:
        scenario: where it shows. change: parameters that it alters. patch: functions that it replaces.
        clock_from_data: the clock is the largest event time seen.
        answers: how often a release is drawn anew; the observer averages.
        same_rounds: every round has the noise of the first.
        charge: what several periods are said to cost, from the cost of one.
    """

    name: str
    scenario: Scenario
    change: Callable[[PrivacyPlan, Parameters], Parameters] = lambda _plan, parameters: parameters
    patch: Callable[[], AbstractContextManager[object]] = nullcontext
    clock_from_data: bool = False
    answers: int = 1
    same_rounds: bool = False
    charge: Callable[[Cost, int], Cost] = Cost.periods


@dataclass(frozen=True)
class Outcome:
    """What an observer sees. pattern[cell, trial]: bit i - 1 is set where the cell was released at trigger i. values[perturbation, cell,
    trial, trigger - 1]: released numbers in value units, 0 where not released."""

    pattern: Int
    values: Float

    @classmethod
    def joined(cls, outcomes: Sequence[Outcome]) -> Outcome:
        return cls(
            np.concatenate([o.pattern for o in outcomes], axis=1),
            np.concatenate([o.values for o in outcomes], axis=2),
        )


@dataclass(frozen=True)
class Experiment:
    """A scenario with its plan, its parameters (a bug's, where one is planted) and the contributions of one trial on both sides."""

    scenario: Scenario
    plan: PrivacyPlan
    bounding: BoundingParameters
    releasing: ReleaseParameters
    bug: Bug
    cells: tuple[tuple[int, int], ...]
    contributions: tuple[pa.Table, pa.Table]

    @property
    def promised(self) -> Cost:
        """What the plan says that the user in question costs, the hashes left out."""
        plan = self.plan
        periods = self.scenario.periods
        if periods == 1:
            return Cost(
                PrivacyLevel.USER,
                plan.mu**2,
                0.0,
                plan.delta_threshold,
                Overlap.SUM,
                plan.mu**2,
                plan.delta_threshold,
            )
        one = cost(plan, SOURCE)
        hashes = plan.delta_hash
        return self.bug.charge(
            replace(
                one,
                failure=max(0.0, one.failure - hashes),
                failure_shared=max(0.0, one.failure_shared - hashes),
            ),
            periods,
        )

    @property
    def increments(self) -> tuple[Float, Float]:
        """x[perturbation, cell, trigger - 1] without and with the user, in value units."""
        p = self.releasing
        out = []
        for table in self.contributions:
            x = np.zeros((len(p.perturbations), len(self.cells), p.grid.horizon))
            for row in table.to_pylist():
                for j, q in enumerate(p.perturbations):
                    x[j, self.cells.index((row["window"], row["number"])), row["trigger"] - 1] += (
                        row[f"v{j}"] * unit(q)
                    )
            out.append(x)
        return out[0], out[1]


def experiment(scenario: Scenario, bug: Bug | None = None) -> Experiment:
    """Plan a scenario, plant the bug, and admit one trial of each side."""
    bug = bug or Bug("", scenario)
    plan = plan_of(scenario)
    b, r = bug.change(plan, parameters(scenario, plan, 1))
    with bug.patch():
        sides = [
            _numbered(_admitted(scenario, plan, b, bug, 1, with_user)[0])
            for with_user in (False, True)
        ]
    cells = sorted({(row["window"], row["number"]) for side in sides for row in side.to_pylist()})
    return Experiment(scenario, plan, b, r, bug, tuple(cells), (sides[0], sides[1]))


def parameters(scenario: Scenario, plan: PrivacyPlan, trials: int) -> Parameters:
    """The parameters of both steps; public groups are the same keys in every trial."""
    if not scenario.public:
        return bounding_parameters(plan), release_parameters(plan)
    numbers = np.repeat(np.arange(trials), scenario.public) * KEYS + np.tile(
        np.arange(scenario.public), trials
    )
    names = tuple(int(n).to_bytes(8, "big") for n in numbers)
    public = PublicGroups(tuple(int(k) for k in identifiers(numbers, 1)), names, 0)
    return bounding_parameters(plan, public), release_parameters(plan, public)


def run(e: Experiment, trials: int, with_user: bool, seed: int) -> Outcome:
    """One run of all trials of one side."""
    b = e.bounding
    r = e.releasing
    if e.scenario.public:
        b, r = parameters(e.scenario, e.plan, trials)
    # The noisy numbers themselves: averages and intervals are functions of theirs.
    numbers = (
        OutputColumn("sum", (j,), (unit(q),), ((0.0,) * r.grid.horizon,))
        for j, q in enumerate(r.perturbations)
    )
    # Figures of what the limits leave out have a test of their own: they are sums that nothing else is made of.
    r = replace(r, columns=tuple(numbers), figures=None)
    with e.bug.patch(), mock.patch.object(perturbation, "interval_of", _noisy_count):
        rows, ticks = _admitted(e.scenario, e.plan, b, e.bug, trials, with_user)
        _check_alike(rows, e.contributions[with_user], trials)
        released = []
        for answer in range(e.bug.answers):
            state = None
            out = []
            key = hashlib.sha256(f"{e.scenario.name} {with_user} {seed} {answer}".encode()).digest()
            batch = rows.column("batch").to_numpy()
            for tick in ticks:  # one micro-batch each
                step = release(state, rows.filter(pa.array(batch == tick.batch)), [tick], r, key)
                state = step.state
                out.append(step.rows)
            released.append(pa.concat_tables(out))
    outcomes = [_observed(e, table, trials) for table in released]
    if any(not np.array_equal(o.pattern, outcomes[0].pattern) for o in outcomes):
        raise ValueError("only releases of the same groups can be averaged")
    return Outcome(outcomes[0].pattern, np.mean([o.values for o in outcomes], axis=0))


def unit(q: PerturbationParameters) -> float:
    """Value of one whole number that is released."""
    return 1.0 if q.is_on_selection else q.grid


def _noisy_count(sums: Int, sd: float, _excess: Excess) -> tuple[Int, Float]:
    return (sums + (1 << 19)) >> 20, np.full(len(sums), sd)


def identifiers(numbers: Int, tag: int) -> Int:
    """Well spread 64-bit ids of users (tag 0) and keys (tag 1), all different."""
    mixed = (
        numbers.astype(np.uint64) * np.uint64(2) + np.uint64(tag) + np.uint64(0x9E3779B97F4A7C15)
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


def records(visits: Sequence[Visit], who: Sequence[int], trials: int, arguments: int) -> pa.Table:
    """The Arrow table of one micro-batch: every visit of every trial."""
    trial = np.repeat(np.arange(trials), len(visits))
    number = trial * KEYS + np.tile(np.array([v.key for v in visits], np.int64), trials)
    table = {
        "drop": np.zeros(len(trial), np.int8),
        "user": identifiers(trial * 64 + np.tile(np.array(who, np.int64), trials), 0),
    }
    table |= {
        "ts": np.tile(np.array([round(v.at * INTERVAL) for v in visits], np.int64), trials),
        "key": identifiers(number, 1),
    }
    table |= {"key_bytes": _names(number)}
    values = np.tile(np.array([v.value for v in visits], np.float64), trials)
    return pa.table(table | {f"a{i}": values for i in range(arguments)})


def _admitted(
    scenario: Scenario,
    plan: PrivacyPlan,
    b: BoundingParameters,
    bug: Bug,
    trials: int,
    with_user: bool,
) -> tuple[pa.Table, tuple[Tick, ...]]:
    """All contributions of one side with their arrival batch, and the tick that ends each micro-batch."""
    mine = [(v, 0) for v in scenario.mine] if with_user else []
    everyone = mine + [(v, 1 + i) for i, v in enumerate(scenario.strangers)]
    state = None
    tables = []
    ticks = []
    newest = 0
    everywhere = [*scenario.mine, *scenario.strangers]
    slide = b.grid.slide_us // INTERVAL
    window = max(
        [
            0,
            *(v.at // slide * slide for v in everywhere),
            *(crowd.window for crowd in scenario.crowds),
        ]
    )
    end = (int(window) + plan.horizon) * INTERVAL
    batches = len(scenario.closed) + 1
    for batch in range(batches):
        present = [(v, who) for v, who in everyone if v.batch == batch]
        newest = max([newest, *(round(v.at * INTERVAL) for v, _ in present)])
        clock, closed = _clock(scenario, plan, batch)
        if bug.clock_from_data:
            clock = Clock(newest)
            closed = newest
        rows = records(
            [v for v, _ in present], [who for _, who in present], trials, len(plan.arguments)
        )
        admission = admit(state, rows, clock, b)
        state = admission.state
        tables.append(_in_batch(admission.contributions, batch))
        ticks.append(Tick(batch, end if batch == batches - 1 else closed))
    tables += [_in_batch(crowd_rows(crowd, plan, b, trials), 0) for crowd in scenario.crowds]
    return pa.concat_tables(tables).combine_chunks(), tuple(ticks)


def _clock(scenario: Scenario, plan: PrivacyPlan, batch: int) -> tuple[Clock, int]:
    """The wall clock that a micro-batch is admitted under, and the time that its tick closes."""
    if not scenario.closed:
        return Clock(), NO_CLOCK
    times = [round(t * INTERVAL) for t in (0, *scenario.closed)]
    return Clock(times[batch], times[batch] + plan.query.max_ahead_us), times[
        min(batch + 1, len(times) - 1)
    ]


def crowd_rows(crowd: Crowd, plan: PrivacyPlan, b: BoundingParameters, trials: int) -> pa.Table:
    """What admission gives for `users` other users with one record each, whose value is the one that adds nothing to a sum."""
    number = np.arange(trials) * KEYS + crowd.key
    weight = crowd.users * b.weights[0]
    if plan.selection is not None and crowd.level is not None:
        weight = round(crowd.level * plan.selection.thresholds[crowd.trigger - 1])
    ones = np.ones(trials, np.int64)
    table = {
        "window": ones * crowd.window * INTERVAL,
        "trigger": ones * crowd.trigger,
        "key": identifiers(number, 1),
    }
    if b.by_user:  # one row stands for all of them; another one at every trigger
        table["user"] = identifiers(np.arange(trials) * 64 + 32 + crowd.trigger, 0)
    table |= {"key_bytes": _names(number), "weight": ones * weight, "users": ones * crowd.users}
    return pa.table(
        table
        | {
            f"v{j}": ones * (0 if q.rule == "sum" else crowd.users)
            for j, q in enumerate(plan.perturbations)
        }
    )


def _in_batch(rows: pa.Table, batch: int) -> pa.Table:
    return rows.append_column("batch", pa.array(np.full(rows.num_rows, batch, np.int64)))


def _names(number: Int) -> pa.Array:
    buffers = [
        None,
        pa.py_buffer(np.arange(0, 8 * len(number) + 1, 8, dtype=np.int32)),
        pa.py_buffer(number.astype(">u8").tobytes()),
    ]
    return pa.Array.from_buffers(pa.binary(), len(number), buffers)


def _numbers(rows: pa.Table) -> Int:
    names = rows.column("key_bytes").combine_chunks()
    data = names.cast(pa.binary(8)).buffers()[1] if len(names) else b""
    return np.frombuffer(data or b"", dtype=">u8").astype(np.int64)


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column("number", pa.array(_numbers(rows) % KEYS))


def _check_alike(rows: pa.Table, one: pa.Table, trials: int) -> None:
    """All trials were admitted alike, so that they are repetitions of one experiment."""
    alike = rows.num_rows == one.num_rows * trials
    for name in (
        "weight",
        "users",
        "trigger",
        "window",
        *(n for n in rows.column_names if n[0] == "v"),
    ):
        alike &= int(rows.column(name).to_numpy().sum()) == trials * int(
            one.column(name).to_numpy().sum()
        )
    if not alike:
        raise ValueError("the trials of one run differ")


def _observed(e: Experiment, table: pa.Table, trials: int) -> Outcome:
    p = e.releasing
    horizon = e.releasing.grid.horizon
    number = _numbers(table)
    window = table.column("window").to_numpy()
    pattern = np.zeros((len(e.cells), trials), np.int64)
    values = np.zeros((len(p.perturbations), len(e.cells), trials, horizon))
    trigger = table.column("trigger").to_numpy()
    trial = number // KEYS
    released = np.stack([table.column(f"c{j}").to_numpy() for j in range(len(p.perturbations))])
    for i, (start, key) in enumerate(e.cells):
        here = (window == start) & (number % KEYS == key)
        np.bitwise_or.at(pattern[i], trial[here], np.int64(1) << (trigger[here] - 1))
        values[:, i, trial[here], trigger[here] - 1] = released[:, here]
    return Outcome(pattern, values)
