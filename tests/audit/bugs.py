"""Planted bugs: a table of small frozen values. Each must push a bound beyond the promise."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import dpsql.udfs.histogram.key_selection
import dpsql.udfs.histogram.release
import dpsql.udfs.intake.contribution_bounding
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.parts.key_selection import thresholds
from dpsql.privacy.cost import Cost, Overlap
from dpsql.udfs.columns import Int
from dpsql.udfs.histogram.group_state import Closing
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.intake.user_state import count_entries
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import column_norm
from tests.audit.scenarios import SCENARIOS, Scenario
from tests.audit.trials import Bug, Parameters

BY_NAME: dict[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}


def _bounds(**changes: Any) -> Callable[[PrivacyPlan, Parameters], Parameters]:
    return lambda _plan, p: (dataclasses.replace(p[0], **changes), p[1])


def _scaled(
    factor: Callable[[PrivacyPlan, Parameters], float],
) -> Callable[[PrivacyPlan, Parameters], Parameters]:
    """Every perturbation's sigma divided by a factor that was forgotten."""

    def change(plan: PrivacyPlan, p: Parameters) -> Parameters:
        each = tuple(
            dataclasses.replace(q, sigma=q.sigma / factor(plan, p)) for q in p[1].perturbations
        )
        return p[0], dataclasses.replace(p[1], perturbations=each)

    return change


def _without_union(plan: PrivacyPlan, p: Parameters) -> Parameters:
    """Every trigger's threshold as if it were the only one."""
    assert plan.selection is not None and p[1].selection is not None
    betas = (sum(plan.selection.betas),) * plan.horizon
    taus = thresholds(
        plan.selection.weights,
        plan.selection.sd,
        betas,
        plan.query.asked.min_privacy_units_per_group,
    )
    return p[0], dataclasses.replace(
        p[1], selection=dataclasses.replace(p[1].selection, thresholds=taus)
    )


@contextlib.contextmanager
def _rank_forgotten() -> Iterator[None]:
    """The groups that a user had before the micro-batch do not count towards the rank of new ones."""

    def forgetful(*arguments: Any) -> Any:
        counted = count_entries(*arguments)
        return dataclasses.replace(counted, user_entries=np.zeros_like(counted.user_entries))

    with mock.patch.object(dpsql.udfs.intake.contribution_bounding, "count_entries", forgetful):
        yield


@contextlib.contextmanager
def _rounds_alike() -> Iterator[None]:
    """A new round starts at the first draw again, and its draws are those of the first round. Prediction is off: it does the same right."""

    def advance_to(
        c: Closing, groups: Int, trigger: int, p: SelectionParameters, noise_key: bytes
    ) -> None:
        step = c.groups["step"]
        target = trigger - c.groups["selected_at"]
        for now in range(1, trigger + 1):
            moving = groups[(step[groups] == now - 1) & (target[groups] >= now)]
            draws = partial(
                randomness.normals, noise_key, c.tag[moving], randomness.SELECTION, 0, now
            )
            c.groups["noise"][moving] = p.counter.advance(c.groups["noise"][moving], draws, now)
            step[moving] = now

    with (
        mock.patch.object(dpsql.udfs.histogram.key_selection, "advance_to", advance_to),
        mock.patch.object(dpsql.udfs.histogram.release, "predict", lambda *_: None),
    ):
        yield


def _without_column_norm(_plan: PrivacyPlan, p: Parameters) -> float:
    return column_norm(p[1].perturbations[0].counter)


def _apart(one: Cost, periods: int) -> Cost:
    """n times as much as one period, which is right where windows do not slide; the formula up to commit 27b5d01."""
    return dataclasses.replace(
        one, overlap=Overlap.NONE, mu2_shared=one.mu2, failure_shared=one.failure
    ).periods(periods)


BUGS: tuple[Bug, ...] = (
    Bug(
        "sensitivity without the column norm",
        BY_NAME["C records in one key"],
        _scaled(_without_column_norm),
    ),
    Bug("the same, tree", BY_NAME["the same, tree"], _scaled(_without_column_norm)),
    Bug(
        "threshold without the union over triggers",
        BY_NAME["C keys that nobody else has"],
        _without_union,
    ),
    Bug(
        "per-key bound not enforced",
        BY_NAME["many records in one key, c = 2"],
        _bounds(max_rows_per_group=4),
    ),
    Bug(
        "every key of a unit counts two units",
        BY_NAME["C keys at their thresholds, decay 1/2"],
        _bounds(weights=(2 << 20,) * 4),
    ),
    Bug(
        "rank restarted with each micro-batch",
        BY_NAME["a key in each of C micro-batches, decay 1"],
        patch=_rank_forgotten,
    ),
    Bug(
        "allowance and rank restarted in a STREAM period",
        BY_NAME["three windows of a STREAM period"],
        _bounds(renews=True),
    ),
    Bug(
        "sliding copies not counted",
        BY_NAME["three sliding windows"],
        _scaled(lambda plan, _: plan.windows_per_record**0.5),
    ),
    Bug(
        "noise reused across rounds",
        BY_NAME["rounds at their thresholds"],
        patch=_rounds_alike,
        same_rounds=True,
    ),
    Bug("noise redrawn on retry, two answers averaged", BY_NAME["C records in one key"], answers=2),
    Bug(
        "two periods charged as if they never met",
        BY_NAME["two periods that meet in sliding windows"],
        charge=_apart,
    ),
    Bug("clock from the data", BY_NAME["a record far in the future"], clock_from_data=True),
)
