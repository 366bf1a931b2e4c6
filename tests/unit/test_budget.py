"""Costs: how the parts of a promise add up, over mechanisms, contribution periods and runs; and what a cap leaves."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.stats import norm

from dpsql.errors import BudgetError
from dpsql.privacy.budget import budgets, describe, facts, spent_text
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, gaussian_delta, total
from dpsql.privacy.curve import total_mu
from dpsql.privacy.ledger import Ledger
from dpsql.sources.config import Cap, Source
from tests.unit.test_ledger import DAY, LINE, costing

ONE = costing(
    LINE, declared_epsilon=6.0, declared_delta=1e-9, mu2=total_mu(6, 1e-9) ** 2, failure=0.0
)
CLICKS = Source(
    "clicks", "parquet", "/clicks", event_time="ts", privacy_unit=("customer",), ledger="visits"
)


def capped(epsilon: float = 20.0, delta: float = 1e-6, days: int = 7) -> Source:
    return Source(
        "visits",
        "parquet",
        "/visits",
        event_time="ts",
        privacy_unit=("user_id",),
        cap=Cap(epsilon, delta, days * DAY),
    )


def test_seven_windows_of_epsilon_6_are_17() -> None:
    """The design's figure: 17.4 over 7 days, not 42; and over 30 days 42.5, not 180."""
    (found,) = budgets([ONE])
    assert [total.days for total in found.totals] == [1, 7, 30]
    assert [total.epsilon for total in found.totals] == pytest.approx([6.0, 17.42, 42.5], abs=0.05)
    assert [total.delta for total in found.totals] == pytest.approx([1e-9, 7e-9, 3e-8])


def test_unlike_runs_are_added_with_unlike_weights() -> None:
    """A daily, an hourly (half an hour off) and a STREAM run: 7 + 7 * 24 + 1 + 1 times in a week, each with its own mu and failures."""
    hourly = costing(
        ONE, run_id="1" * 32, size_us=DAY // 24, offset_us=DAY // 48, mu2=0.01, failure=1e-12
    )
    forever = costing(ONE, run_id="2" * 32, period="STREAM", mu2=0.5, kind="try")
    other = replace(ONE, run_id="3" * 32, ledger="elsewhere", source="elsewhere")
    found = {budget.ledger: budget for budget in budgets([ONE, hourly, forever, other])}
    mu = math.sqrt(7 * ONE.cost.mu2 + (7 * 24 + 1) * 0.01 + 0.5)
    noise = 7e-9 + (7 * 24 + 1) * (1e-9 - 1e-12) + 1e-9
    week = found["visits"].totals[1]
    assert week.epsilon == pytest.approx(float(get_epsilon_gaussian(1 / mu, noise)))
    assert week.delta == pytest.approx(noise + (7 * 24 + 1) * 1e-12)
    assert found["elsewhere"].totals[0].epsilon == pytest.approx(6.0)


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_what_is_left_is_granted_and_more_is_refused(tmp_path: Path, runs: int) -> None:
    """The rest that is told is a promise: a run that asks for it fits, one that asks for a thousandth more does not."""
    ledger = Ledger(tmp_path)
    source = capped(epsilon=40.0)
    for number in range(runs):
        ledger.append(costing(ONE, run_id=f"{number:032x}", failure=1e-10), source.cap)
    cap = budgets(ledger.lines(), [source])[0].cap
    assert cap is not None and source.cap is not None
    assert 0 < cap.left_epsilon <= 20
    if not runs:
        assert (cap.spent_epsilon, cap.spent_share, cap.left_epsilon) == (0.0, 0.0, 20.0)
        return
    more = costing(
        ONE,
        run_id="f" * 32,
        declared_epsilon=cap.left_epsilon,
        failure=1e-10,
        mu2=total_mu(cap.left_epsilon, 9e-10) ** 2,
    )
    with pytest.raises(BudgetError):
        ledger.append(costing(more, mu2=total_mu(cap.left_epsilon * 1.001, 9e-10) ** 2), source.cap)
    ledger.append(more, source.cap)
    after = budgets(ledger.lines(), [source])[0].cap
    assert after is not None and after.left_epsilon < 0.1
    assert after.spent_epsilon == pytest.approx(40.0, abs=0.01)
    assert after.spent_share == pytest.approx(1.0, abs=1e-3)


def test_the_text_says_who_what_and_what_is_left() -> None:
    lines = [replace(ONE, run_id=f"{number:032x}") for number in range(12)]
    (found,) = budgets(lines, [capped(), CLICKS])
    text = describe(found)
    for part in (
        "Ledger visits: 12 runs. Who is protected: user_id of visits.",
        "Cap: epsilon 20, delta 1e-06 per 7 days, counted from Thursday, 1970-01-01.",
        "one more run with the newest one's window and delta (per 1 day, 1e-09) may ask for no more",
        "2026-01-01  run    0000000000000000000000000000000b  visits: epsilon 6, delta 1e-09 per 1 day",
        "and 2 older ones",
    ):
        assert part in text
    assert "customer" not in text  # declared, and no run protects it
    document = facts(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["runs"]) == 12
    assert "No cap is declared" in describe(budgets(lines)[0])


def test_runs_over_all_records_are_counted() -> None:
    """Catches: `1 run (1 for ever)`, and a count of such runs where there are others."""
    over_all = [costing(ONE, run_id=f"{number:032x}", period="STREAM") for number in range(2)]
    for lines, words in (
        (over_all[:1], "units: 1 run over all records, epsilon"),
        (over_all, "units: 2 runs over all records, epsilon"),
        ([ONE, *over_all], "units: 3 runs (2 over all records), epsilon"),
        ([ONE], "units: 1 run, epsilon"),
    ):
        assert words in spent_text(budgets(lines)[0], "cap=")


def test_a_cap_without_runs_and_failures_beyond_a_cap() -> None:
    (unused,) = budgets([], [capped(), CLICKS])
    assert "0 runs" in describe(unused) and unused.totals == ()
    (over,) = budgets([costing(ONE, failure=1e-6, declared_delta=2e-6)], [capped()])
    assert (
        over.cap is not None and over.cap.spent_epsilon == math.inf and over.cap.left_epsilon == 0.0
    )
    assert facts(over)["cap"]["spent_epsilon"] is None
    assert "more than its delta" in describe(over)
    assert budgets([], [CLICKS]) == ()


ALONE = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.NONE, 0.25, 1e-9)
SLIDING = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.WINDOWS, 0.5, 7e-9)
STREAM = replace(ALONE, overlap=Overlap.STREAM)


def test_periods_that_share_no_group_cost_n_times_as_much() -> None:
    seven = ALONE.periods(7)
    assert (seven.mu2, seven.overlap) == (1.75, Overlap.SUM)
    assert seven.failure == pytest.approx(7e-9)
    assert seven.mu == math.sqrt(7) * ALONE.mu


def test_periods_that_meet_in_a_window_cost_more_from_the_second_on() -> None:
    assert (SLIDING.periods(1).mu2, SLIDING.periods(1).failure) == (0.25, 1e-9)
    assert (SLIDING.periods(2).mu2, SLIDING.periods(2).failure) == (1.0, 1.4e-8)
    assert SLIDING.periods(2).mu == 2 * SLIDING.mu
    assert SLIDING.periods(365).mu2 == pytest.approx(365 * 0.5)


def test_a_stream_has_one_period() -> None:
    assert STREAM.periods(365) == STREAM.periods(1) == replace(STREAM, overlap=Overlap.SUM)


def test_a_sum_knows_nothing_of_further_periods() -> None:
    with pytest.raises(ValueError, match="further"):
        ALONE.periods(2).periods(3)
    assert ALONE.periods(2).periods(1) == ALONE.periods(2)
    with pytest.raises(ValueError, match="0 periods"):
        ALONE.periods(0)


def test_pure_parts_add_up_by_themselves() -> None:
    pure = replace(ALONE, mu2=0.0, mu2_shared=0.0, epsilon=0.5)
    assert pure.periods(3).epsilon == 1.5
    assert pure.delta(0.4) == 1.0
    assert pure.delta(0.5) == 1e-9
    assert replace(ALONE, epsilon=0.5).delta(1.5) == gaussian_delta(0.5, 1.0) + 1e-9


def test_gaussian_noise_never_passes_for_pure() -> None:
    """Its delta here is about 10^-5000, which float64 rounds to 0. Catches: a cap with delta = 0 that accepts it."""
    event = replace(
        ALONE,
        protects=PrivacyLevel.EVENT,
        overlap=Overlap.EVENTS,
        mu2=1e-4,
        mu2_shared=1e-4,
        failure=0.0,
        failure_shared=0.0,
    )
    assert event.delta(1.0) > 0
    assert replace(event, mu2=0.0, mu2_shared=0.0, epsilon=1.0).delta(1.0) == 0


def test_rows_do_not_add_up_as_periods() -> None:
    """Catches: a cost of one row that says it meets in windows; a cap would charge one row for all that a person has."""
    for overlap in (Overlap.WINDOWS, Overlap.NONE, Overlap.STREAM):
        with pytest.raises(ValueError, match="rows add up as EVENTS"):
            replace(ALONE, protects=PrivacyLevel.EVENT, overlap=overlap)


def test_a_floor_test_of_events_fails_more_often_for_several() -> None:
    """n events shift the noise n times as far and bring n values: Phi(Phi^-1(n a) + n mu), which is more than n times one event's failure."""
    a = 1e-9
    mu = 0.5
    failure = float(norm.cdf(norm.ppf(a) + mu))
    one = Cost(PrivacyLevel.EVENT, mu**2, 0.0, failure, Overlap.EVENTS, mu**2, failure, a)
    ten = one.periods(10)
    assert (ten.mu, ten.failure) == (
        pytest.approx(5.0),
        pytest.approx(float(norm.cdf(norm.ppf(10 * a) + 10 * mu)), rel=1e-6),
    )
    assert ten.failure > 1000 * failure
    assert one.periods(1).failure == pytest.approx(failure) and total(
        [one, one], PrivacyLevel.EVENT
    ).failure == pytest.approx(2 * failure)
    for wrong in (
        {"failure": a, "failure_shared": a},
        {"floor": 0.0},
        {"floor": 2 * a},
        {"floor": math.nan},
        {"floor": -a},
    ):
        with pytest.raises(ValueError, match=r"cost|failure"):
            replace(one, **wrong)
    with pytest.raises(ValueError, match="by failure alone"):
        replace(ALONE, floor=a)


def test_runs_add_up_and_unlike_levels_do_not() -> None:
    together = total([ALONE.periods(2), SLIDING.periods(2), STREAM.periods(9)])
    assert together.mu2 == pytest.approx(0.5 + 1.0 + 0.25)
    assert together.failure == pytest.approx(2e-9 + 1.4e-8 + 1e-9)
    assert total([]).delta(1.0) == 0.0
    event = replace(
        ALONE, protects=PrivacyLevel.EVENT, overlap=Overlap.EVENTS, failure=0.0, failure_shared=0.0
    )
    for costs, level in (
        ([ALONE, event], PrivacyLevel.USER),
        ([ALONE], PrivacyLevel.EVENT),
        ([event], PrivacyLevel.USER),
    ):
        with pytest.raises(ValueError, match="not the same thing"):
            total(costs, level)
    assert total([event], PrivacyLevel.EVENT).protects is PrivacyLevel.EVENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"mu2": -1.0}, {"mu2": math.inf}, {"failure": math.nan}, {"epsilon": -0.1}, {"mu2_shared": 0.6}, {"failure_shared": 2e-9},
        {"overlap": Overlap.WINDOWS, "mu2_shared": 0.2}, {"overlap": Overlap.WINDOWS, "mu2_shared": 0.6, "failure_shared": 1e-10},
        {"overlap": Overlap.STREAM, "mu2_shared": 0.5}, {"overlap": Overlap.SUM, "failure_shared": 1e-8},
    ],
)  # fmt: skip
def test_impossible_costs_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cost"):
        replace(ALONE, **wrong)
