"""What `dpsql budget` says: totals by an independent sum, and a rest that the ledger really grants and no more."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian

from dpsql.config import Cap, Source
from dpsql.errors import BudgetError
from dpsql.privacy.budget import budgets, describe, facts
from dpsql.privacy.curve import total_mu
from dpsql.privacy.ledger import Ledger
from tests.unit.test_ledger import DAY, LINE, costing

ONE = costing(LINE, declared_epsilon=6.0, declared_delta=1e-9, mu2=total_mu(6, 1e-9) ** 2, failure=0.0)
CLICKS = Source("clicks", "parquet", "/clicks", event_time="ts", privacy_unit=("customer",), ledger="visits")


def capped(epsilon: float = 20.0, delta: float = 1e-6, days: int = 7) -> Source:
    return Source("visits", "parquet", "/visits", event_time="ts", privacy_unit=("user_id",), cap=Cap(epsilon, delta, days * DAY))


def test_seven_windows_of_epsilon_6_are_17() -> None:
    """The design's figure: 17.4 over 7 days, not 42; and over 30 days 42.5, not 180."""
    (found,) = budgets([ONE])
    assert [total.days for total in found.totals] == [1, 7, 30]
    assert [total.epsilon for total in found.totals] == pytest.approx([6.0, 17.42, 42.5], abs=0.05)
    assert [total.delta for total in found.totals] == pytest.approx([1e-9, 7e-9, 3e-8])


def test_unlike_runs_are_added_with_unlike_weights() -> None:
    """A daily, an hourly (half an hour off) and a STREAM run: 7 + 7 * 24 + 1 + 1 times in a week, each with its own mu and failures."""
    hourly = costing(ONE, run_id="1" * 32, size_us=DAY // 24, offset_us=DAY // 48, mu2=0.01, failure=1e-12)
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
    ledger, source = Ledger(tmp_path), capped(epsilon=40.0)
    for number in range(runs):
        ledger.append(costing(ONE, run_id=f"{number:032x}", failure=1e-10), source.cap)
    cap = budgets(ledger.lines(), [source])[0].cap
    assert cap is not None and source.cap is not None
    assert 0 < cap.left_epsilon <= 20
    if not runs:
        assert (cap.spent_epsilon, cap.spent_share, cap.left_epsilon) == (0.0, 0.0, 20.0)
        return
    more = costing(ONE, run_id="f" * 32, declared_epsilon=cap.left_epsilon, failure=1e-10, mu2=total_mu(cap.left_epsilon, 9e-10) ** 2)
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
        "Ledger visits: 12 runs. Who is protected: user_id of visits; customer of clicks.",
        "Cap: epsilon 20, delta 1e-06 per 7 days.",
        "one more run with the newest one's window and delta (per 1 day, 1e-09) may ask for no more",
        "2026-01-01  run    0000000000000000000000000000000b  visits: epsilon 6, delta 1e-09 per 1 day",
        "and 2 older ones",
    ):
        assert part in text
    document = facts(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["runs"]) == 12
    assert "No cap is declared" in describe(budgets(lines)[0])


def test_a_cap_without_runs_and_failures_beyond_a_cap() -> None:
    (unused,) = budgets([], [capped(), CLICKS])
    assert "0 runs" in describe(unused) and unused.totals == ()
    (over,) = budgets([costing(ONE, failure=1e-6, declared_delta=2e-6)], [capped()])
    assert over.cap is not None and over.cap.spent_epsilon == math.inf and over.cap.left_epsilon == 0.0
    assert facts(over)["cap"]["spent_epsilon"] is None
    assert "more than its delta" in describe(over)
    assert budgets([], [CLICKS]) == ()
