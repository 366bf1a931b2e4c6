"""Key selection over several windows: thresholds against their definition, and how often they fail."""

import dataclasses
import random

import numpy as np
import pytest

from dpsql.errors import AccountingError
from dpsql.mechanisms.histogram.accounting import check
from dpsql.mechanisms.histogram.plan import CarriedPlan, PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import carried_plan, lengths, make_plan
from dpsql.parsed_query import ContributionPeriod, CounterName, WindowSpec
from tests.property.plans import DAY, HOUR, query, source


def test_lengths_are_powers_of_two_and_the_last() -> None:
    expected = {
        2: (2,),
        3: (2, 3),
        4: (2, 4),
        5: (2, 4, 5),
        28: (2, 4, 8, 16, 28),
        64: (2, 4, 8, 16, 32, 64),
    }
    assert {n: lengths(n) for n in expected} == expected


def random_plan(pick: random.Random) -> PrivacyPlan:
    rows = pick.choice([1, 2, 5, 32])
    return make_plan(
        query(
            epsilon=10 ** pick.uniform(-1, 1.3),
            delta=10 ** pick.uniform(-8, -5.1),
            max_rows_contributed=rows,
            **{
                f"max_{name}": pick.randint(1, rows)
                for name in ("rows_per_group", "groups_contributed")
            },
            contribution_period=pick.choice([ContributionPeriod.WINDOW, ContributionPeriod.STREAM]),
            trigger_interval_us=pick.choice([DAY, 6 * HOUR, HOUR]),
            allowed_lateness_us=pick.choice([0, HOUR, 3 * DAY]),
            min_privacy_units_per_group=pick.choice([1, 1, 7]),
            counter=pick.choice([CounterName.BLT, CounterName.HONAKER]),
            carry_windows=pick.randint(2, 64),
        ),
        source(max_keys=1000),
        decay=pick.choice([0.0, 0.5, 1.0]),
    )


def carrying(plan: PrivacyPlan, **changes: object) -> PrivacyPlan:
    assert plan.selection and plan.selection.carried
    carried = dataclasses.replace(plan.selection.carried, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(plan, selection=dataclasses.replace(plan.selection, carried=carried))


def smaller(plan: PrivacyPlan, place: int) -> PrivacyPlan:
    """With the noise part of one length's thresholds 0.1% too small."""
    assert plan.selection and plan.selection.carried
    least = plan.query.asked.min_privacy_units_per_group
    weight = plan.selection.weights[0]
    taus = list(plan.selection.carried.thresholds)
    taus[place] = tuple(
        k * least * weight + int((tau - k * least * weight) * 0.999)
        for k, tau in enumerate(taus[place], 1)
    )
    return carrying(plan, thresholds=tuple(taus))


def test_200_random_plans_fail_as_they_may_and_no_less() -> None:
    """Catches: beta not divided by d or by K, sums of k windows with one window's noise, and the noise of any one length 0.1% too small."""
    pick = random.Random(15)
    for _ in range(200):
        plan = random_plan(pick)
        stream = source(max_keys=1000)
        assert (
            0.999 * plan.delta_threshold
            <= check(plan, stream).delta_threshold
            <= plan.delta_threshold
        )
        assert plan.selection and plan.selection.carried and plan.selection.share == 0.5
        with pytest.raises(AccountingError, match="delta_threshold"):
            check(smaller(plan, pick.randrange(len(plan.selection.carried.lengths))), stream)


def test_what_theorem_29_is_not_about_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_plan(random.Random(1))
    stream = source(max_keys=1000)
    assert plan.selection and plan.selection.carried
    alone = dataclasses.replace(plan, selection=dataclasses.replace(plan.selection, carried=None))
    with pytest.raises(AccountingError, match="another number of windows"):
        check(alone, stream)
    with pytest.raises(AccountingError, match="a threshold for each number of windows"):
        check(
            carrying(
                plan, thresholds=tuple(taus[:-1] for taus in plan.selection.carried.thresholds)
            ),
            stream,
        )
    rounds = dataclasses.replace(plan.query.asked, release=ReleaseRule.RESELECT)
    with pytest.raises(AccountingError, match="in rounds"):
        check(
            dataclasses.replace(plan, query=dataclasses.replace(plan.query, asked=rounds)), stream
        )
    sliding = dataclasses.replace(
        plan,
        query=dataclasses.replace(plan.query, window=WindowSpec(DAY, DAY // 2, 0)),
        windows_per_record=2,
    )
    with pytest.raises(AccountingError, match="overlap"):
        check(sliding, stream)
    monkeypatch.setattr(
        "dpsql.mechanisms.histogram.accounting.impulse_response",
        lambda counter: np.array([1.0, -1e-9]),
    )
    with pytest.raises(AccountingError, match="negative factor"):
        check(make_plan(query(carry_windows=3), stream), stream)


def test_a_known_key_is_kept_by_less_than_what_selects_the_weakest() -> None:
    """Sums of a key just strong enough for L windows are above the review's by 3 of their deviations; L < 4 is reviewed at L."""
    plan: CarriedPlan = carried_plan(28, 1 << 19, 2.0, 1, 32, 1e-10)
    weakest = plan.thresholds[-1][-1] / 28
    assert [d for d, _ in plan.kept] == [4, 8, 16, 28]
    for d, least in plan.kept:
        assert (d * weakest - least) / 2.0**20 == pytest.approx(3 * 2.0 * d**0.5, abs=1e-5)
    assert [d for d, _ in carried_plan(3, 1 << 19, 2.0, 1, 32, 1e-10).kept] == [3]
    assert [d for d, _ in carried_plan(2, 1 << 19, 2.0, 1, 32, 1e-10).kept] == [2]


@pytest.mark.parametrize(("alone", "weight"), [(1, 0.01), (1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0)])
def test_a_unit_alone_in_n_windows_is_found_no_oftener_than_n_times(
    alone: int, weight: float
) -> None:
    """Failures made frequent, by simulation of the tests alone. Catches: thresholds that start from w_1, as if u were in one window of a range."""
    delta = 0.02
    windows = 8
    paths = 200_000
    plan = carried_plan(windows, int(weight * 2**20), 1.0, 1, 1, delta)
    q = np.random.default_rng(alone).standard_normal((paths, alone + 2 * windows))
    q[:, windows : windows + alone] += weight
    q = np.concatenate([np.zeros((paths, 1)), np.cumsum(q, axis=1)], axis=1)
    known = np.zeros(paths, bool)
    wrong = np.zeros(paths, bool)
    for v in range(
        windows + 1, q.shape[1]
    ):  # v windows have closed; u is in some of the windows + 1 .. windows + alone
        for d, taus in zip(plan.lengths, plan.thresholds, strict=True):
            if v - d < windows + alone:  # m = 1: some window of the range has the unit
                sums = q[:, v] - q[:, v - d]
                known |= sums >= taus[-1] / 2**20
                wrong |= sums >= taus[-1] / 2**20 - (d - 1) * weight
    promised = alone * delta
    assert known.mean() <= promised
    if weight < 0.1:
        assert known.mean() >= 0.4 * promised
    if alone == 8:
        assert wrong.mean() > 1.2 * promised
