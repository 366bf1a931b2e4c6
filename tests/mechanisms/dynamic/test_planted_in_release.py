"""Errors planted into the release and the plan of a table: the plain reference, or the accountant, finds each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from scipy.stats import norm

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.udfs.columns import Int
from dpsql.udfs.dynamic import release
from dpsql.udfs.dynamic.state import Arrays
from dpsql.udfs.noise.blt_inf import BltInf
from tests.mechanisms.dynamic.plans import FEED, query, source
from tests.mechanisms.dynamic.reference import Change, keyed
from tests.mechanisms.dynamic.reference import release as reference
from tests.mechanisms.dynamic.test_release import KEY, UNIT, parameters, run
from tests.property.plans import COUNT

LAST = 12
ROWS = [Change(0, 1, key, 20 * UNIT, 20, (20, 0)) for key in range(8)]
GONE = [dataclasses.replace(row, trigger=4, weight=-row.weight, users=-20, values=(-20, 0)) for row in ROWS]
BACK = [dataclasses.replace(row, batch=1, trigger=8) for row in ROWS]
reaches, closed = release._reaches, release.closed


def on_exact_counts(g: Arrays, groups: Int, trigger: int, least: int, p: Any, noise: Any) -> Any:
    """The test of keys as it is; what is shown, by the weight without noise."""
    return reaches(g, groups, trigger, least, p, noise) if least == p.at(trigger)[0] else g["weight"][groups] >= least


def noise_anew(arrays: Arrays, *others: Any) -> Any:
    """A key without rows begins again with its noise when it comes back."""
    arrays["p0"][arrays["users"] == 0] = 0.0
    return closed(arrays, *others)


@pytest.mark.parametrize(("name", "planted"), [("_reaches", on_exact_counts), ("closed", noise_anew)])
def test_a_planted_error_of_release_is_found(name: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    p, changes, cuts = parameters(sigma=2.0), [*ROWS, *GONE, *BACK], [(0, 6), (1, LAST)]
    expected = [row[:3] for row in reference(changes, LAST, p, keyed(p, KEY, LAST))]
    assert [row[:3] for row in run(changes, cuts, p)[1]] == expected
    monkeypatch.setattr(release, name, planted)
    assert [row[:3] for row in run(changes, cuts, p)[1]] != expected


def test_thresholds_of_a_finite_horizon_are_found() -> None:
    """Each trigger fails with a hundredth of what 100 may: over all triggers that is without end."""
    plan = make_plan(query(feed=FEED), source())
    s = plan.selection
    assert s is not None
    share = plan.delta_threshold / len(s.weights) / 100
    taus = [s.weights[0] + s.sigma * math.sqrt(BltInf().path_variance(first)) * norm.isf(share) * UNIT for first in s.first]
    finite = dataclasses.replace(s, thresholds=tuple(math.ceil(tau) for tau in taus))
    with pytest.raises(AccountingError, match="delta_threshold"):
        account(dataclasses.replace(plan, selection=finite), source())


def test_mixed_signs_taken_for_one_are_found() -> None:
    """Bounds (-3, 9): the sigma of (0, 9)."""
    total = dataclasses.replace(COUNT, alias="total")
    signs = [dataclasses.replace(total, function=type(COUNT.function).SUM, argument="seconds", bounds=b) for b in ((-3.0, 9.0), (0.0, 9.0))]
    mixed, one = (make_plan(query(feed=FEED, aggregates=(each,)), source()) for each in signs)
    sigma = one.perturbations[0].sigma
    assert mixed.perturbations[0].sigma / sigma == pytest.approx(math.hypot(3, 9) / 9, rel=1e-3)
    column = mixed.columns[0]
    cheap = dataclasses.replace(column, perturbations=(dataclasses.replace(column.perturbations[0], sigma=sigma),))
    with pytest.raises(AccountingError, match="mu"):
        account(dataclasses.replace(mixed, columns=(cheap,)), source())
