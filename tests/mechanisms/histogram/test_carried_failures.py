"""How often keys of one unit appear, on the real steps with failures made frequent, against theorem 29; and planted bugs that must be found.

Every key is a trial of its own: its noise is that of its own cells. What changes the rows of a run at all is found by the plain reference.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.histogram.calibration import failure_probabilities, thresholds
from dpsql.mechanisms.histogram.carried import carried_plan
from dpsql.udfs.columns import run_starts
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram import carrying
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.memory import Evidence, Memory
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.perturbation import OutputColumn, PerturbationParameters
from dpsql.udfs.histogram.release import release
from dpsql.udfs.histogram.review import CarriedParameters, Review
from dpsql.udfs.noise.counters import counter, path_sd
from dpsql.udfs.stage import Tick
from tests.mechanisms.histogram.carried_reference import Reference
from tests.mechanisms.histogram.test_carried_release import KEY, UNIT, history, parameters, run

TRIALS = 20_000
BEFORE = 8
"""Windows that close before the first record: ranges reach back to them."""


def planned(windows: int, weight: float, least: int, delta: float, triggers: int = 2) -> ReleaseParameters:
    """The planner's own numbers for one group of a unit, half of delta for own and half for carried tests; nothing is reviewed."""
    chosen, first = counter("BLT", triggers), int(weight * UNIT)
    sd = path_sd(chosen)
    plan = carried_plan(windows, first, sd[-1], least, 1, delta / 2)
    own = thresholds((first,), sd, failure_probabilities(delta / 2, triggers), least)
    carried = CarriedParameters(windows, plan.lengths, plan.thresholds, (), NO_CLOCK)
    selection = SelectionParameters(chosen, 1.0, own, least, False, carried)
    column = OutputColumn("count", (0,), (1.0,), ((1.0,) * triggers,))
    grid = Grid(40, 40, 0, 40 // triggers, triggers)
    return ReleaseParameters(grid, selection, (PerturbationParameters(1, chosen, 1.0, 1.0),), (column,))


def from_one_weight(p: ReleaseParameters, weight: float, least: int) -> ReleaseParameters:
    """Planted: sums of k windows are compared with a threshold that starts from one window's users."""
    assert p.selection and p.selection.carried
    lower = tuple(
        tuple(tau - (k - 1) * least * int(weight * UNIT) for k, tau in enumerate(taus, 1)) for taus in p.selection.carried.thresholds
    )
    return changed(p, thresholds=lower)


def changed(p: ReleaseParameters, **changes: Any) -> ReleaseParameters:
    assert p.selection and p.selection.carried
    carried = dataclasses.replace(p.selection.carried, **changes)
    return dataclasses.replace(p, selection=dataclasses.replace(p.selection, carried=carried))


def appear(p: ReleaseParameters, weight: float, users: dict[int, int]) -> float:
    """Share of the keys that ever appear; `users`: window -> how many have the key there."""
    keys = np.arange(TRIALS, dtype=np.int64)
    tables = []
    for window, many in users.items():
        each = np.full(TRIALS, many, np.int64)
        columns = {"window": np.full(TRIALS, (BEFORE + window) * 40), "trigger": np.full(TRIALS, 1), "key": keys}
        sums = {"weight": each * int(weight * UNIT), "users": each, "v0": each, "batch": each * 0}
        tables.append(pa.table(columns | {"key_bytes": pa.array([b"%d" % key for key in keys], pa.binary())} | sums))
    table = pa.concat_tables(tables).select(["window", "trigger", "key", "key_bytes", "weight", "users", "v0", "batch"])
    assert p.selection and p.selection.carried
    end = (BEFORE + max(users) + p.selection.carried.windows + 1) * 40
    return len(set(release(None, table, [Tick(0, end)], p, KEY).rows.column("key_bytes").to_pylist())) / TRIALS


@pytest.mark.parametrize(("alone", "weight"), [(1, 0.01), (2, 0.3), (7, 0.3)])
def test_a_unit_alone_in_n_windows_appears_no_oftener_than_n_times(alone: int, weight: float) -> None:
    """5 deviations of the count aside. For n = 1 and a weight that is small against the noise at least 0.4 of it: the promise wastes little."""
    delta = 0.02
    found = appear(planned(8, weight, 1, delta), weight, dict.fromkeys(range(alone), 1))
    promised = alone * delta
    assert found <= promised + 5 * (promised / TRIALS) ** 0.5
    if alone == 1:
        assert found >= 0.4 * promised


def test_thresholds_of_one_windows_users_are_found() -> None:
    """Planted 2 and 4: for m = 1, 8 windows of one unit; for m = 3, two others in every window."""
    one = planned(8, 1.0, 1, 0.02)
    assert appear(one, 1.0, dict.fromkeys(range(8), 1)) <= 0.16
    assert appear(from_one_weight(one, 1.0, 1), 1.0, dict.fromkeys(range(8), 1)) > 0.2
    three = planned(8, 0.5, 3, 0.02)
    crowd = dict.fromkeys(range(8), 2) | {7: 3}
    assert appear(three, 0.5, crowd) <= 0.02
    assert appear(from_one_weight(three, 0.5, 3), 0.5, crowd) > 0.1


def test_a_beta_that_is_not_divided_by_the_length_is_found() -> None:
    """Planted 1: 16 ranges of length 16 hold one window of a unit."""
    right = changed(planned(16, 0.01, 1, 0.004), lengths=(16,), thresholds=(planned_length(16, 0.01, 0.002),))
    wrong = changed(right, thresholds=(planned_length(16, 0.01, 0.002 * 16),))
    assert appear(right, 0.01, {0: 1}) <= 0.004 + 5 * (0.004 / TRIALS) ** 0.5
    assert appear(wrong, 0.01, {0: 1}) > 0.004 + 5 * (0.004 / TRIALS) ** 0.5


def planned_length(d: int, weight: float, delta: float) -> tuple[int, ...]:
    """tau_(d,k) where d is the only length: its beta is delta / d."""
    from scipy.stats import norm

    k, sd = np.arange(1, d + 1), path_sd(counter("BLT", 2))[-1]
    return tuple(int(v) for v in np.ceil((k * weight + np.sqrt(k) * sd * norm.isf(delta / d)) * UNIT))


def users_over_windows(patch: pytest.MonkeyPatch) -> None:
    right = Review.tests

    def tests(self: Review, memory: Memory, evidence: Evidence) -> Any:
        starts = run_starts(evidence.key)
        total = np.cumsum(evidence.users)
        before = np.repeat((total - evidence.users)[starts], np.diff(np.append(np.flatnonzero(starts), len(starts))))
        return right(self, memory, dataclasses.replace(evidence, users=total - before))

    patch.setattr(Review, "tests", tests)


def from_the_first_record(patch: pytest.MonkeyPatch) -> None:
    right = Review.tests

    def tests(self: Review, memory: Memory, evidence: Evidence) -> Any:
        first = dict(zip(evidence.key[::-1].tolist(), evidence.window[::-1].tolist(), strict=True))
        epoch = np.array([max(e, first.get(k, e)) for k, e in zip(memory.key.tolist(), memory.epoch.tolist(), strict=True)], np.int64)
        return right(self, dataclasses.replace(memory, epoch=epoch), evidence)

    patch.setattr(Review, "tests", tests)


def only_with_records(patch: pytest.MonkeyPatch) -> None:
    right = carrying._Work._show_known

    def show(self: Any, state: Any, memory: Memory, now: int, until: int) -> Any:
        there = set(zip(*(state.groups.column(name).to_pylist() for name in ("window", "key")), strict=True))
        groups = right(self, state, memory, now, until).groups
        kept = [cell in there for cell in zip(*(groups.column(name).to_pylist() for name in ("window", "key")), strict=True)]
        return dataclasses.replace(state, groups=groups.filter(pa.array(kept, pa.bool_())))

    patch.setattr(carrying._Work, "_show_known", show)


def known_from_later(patch: pytest.MonkeyPatch) -> None:
    """The list of known keys is read one pass after its time: keys found at a window's end are there already."""
    right = carrying._Work._show_known

    def show(self: Any, state: Any, memory: Memory, now: int, until: int) -> Any:
        later = dataclasses.replace(memory, known_us=np.where(memory.epoch == NO_CLOCK, now, memory.known_us))
        return right(self, state, later, now, until)

    patch.setattr(carrying._Work, "_show_known", show)


def epoch_goes_on(patch: pytest.MonkeyPatch) -> None:
    right = Memory.dropped
    patch.setattr(Memory, "dropped", lambda self, which, epoch: dataclasses.replace(right(self, which, epoch), epoch=self.epoch))


def dropped_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = Memory.kept
    patch.setattr(Memory, "kept", lambda self, which: right(self, which & (self.known | (self.epoch == NO_CLOCK))))


def paths_of_known_keys(patch: pytest.MonkeyPatch) -> None:
    right = carrying._Work._evidence

    def evidence(self: Any, c: Any, ended: Any, memory: Memory, review: Review) -> Evidence:
        nobody = dataclasses.replace(memory, known_us=np.full(len(memory.key), NO_CLOCK))
        return right(self, c, ended, nobody, review)

    patch.setattr(carrying._Work, "_evidence", evidence)


@pytest.mark.parametrize(
    "planted",
    [
        users_over_windows,
        from_the_first_record,
        only_with_records,
        known_from_later,
        epoch_goes_on,
        dropped_is_forgotten,
        paths_of_known_keys,
    ],
)
def test_planted_bugs_change_rows_that_the_reference_knows(
    planted: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted 3 and 5 to 9: a run with the bug is told from the reference; without it there is no difference."""
    # Low thresholds: keys come and go all the time. Of lonely keys each window has one unit, where two are asked for.
    lonely = planted is users_over_windows
    p = parameters(4, 1, 0, least=2 if lonely else 1, loud=0.7)
    differs, same = 0, 0
    for seed in range(12):
        given = history(random.Random(seed), p, 30, keys=10)
        if lonely:
            given = {cell: {1: (UNIT, 1)} for cell in given}
        end = 40 * 32
        expected = Reference(p, KEY, given, end).rows
        same += {(window, trigger, int(name)) for window, trigger, name, _ in run(given, p, [end])[0]} == expected
        with monkeypatch.context() as patch:
            planted(patch)
            differs += {(window, trigger, int(name)) for window, trigger, name, _ in run(given, p, [end])[0]} != expected
        if differs:
            break
    assert same == seed + 1
    assert differs
