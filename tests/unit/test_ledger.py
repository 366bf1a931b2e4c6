"""The ledger: what a cap allows, that two runs never share the last of it, and that a damaged ledger stops spending."""

import json
import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from dpsql.errors import BudgetError
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, shifted
from dpsql.privacy.curve import epsilon_of
from dpsql.privacy.ledger import Ledger, Line, cost_in_period
from dpsql.sources.config import Cap

DAY = 86_400_000_000
ONE_PERIOD = Cost(PrivacyLevel.USER, 1.0, 0.0, 1.01e-8, Overlap.NONE, 1.0, 1.01e-8)
NOW = "2026-01-01T00:00:00+00:00"
LINE = Line(
    "visits",
    "visits",
    ("user_id",),
    ONE_PERIOD,
    "WINDOW",
    DAY,
    0,
    6.0,
    1e-7,
    "identity",
    "00" * 16,
    "run",
    NOW,
)


COST = asdict(LINE.cost)


def costing(
    line: Line, mu2: float | None = None, failure: float | None = None, **changes: Any
) -> Line:
    """The line with another cost of one period, of which n cost n times as much."""
    mu2 = line.cost.mu2 if mu2 is None else mu2
    failure = line.cost.failure if failure is None else failure
    overlap = Overlap.STREAM if changes.get("period", line.period) == "STREAM" else Overlap.NONE
    return replace(
        line, cost=Cost(PrivacyLevel.USER, mu2, 0.0, failure, overlap, mu2, failure), **changes
    )


def curve(mu: float, epsilon: float) -> float:
    """The Gaussian mechanism's exact delta, written down once more."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def test_lines_come_back_as_written(tmp_path: Path) -> None:
    ledger = Ledger.beside(tmp_path / "dpsql" / "secret")
    assert ledger.lines() == ()
    other = replace(LINE, kind="try", unit=("a", "b"), run_id="01" * 16)
    assert [ledger.append(LINE, None), ledger.append(other, None)] == [1, 2]
    assert ledger.lines() == (LINE, other)
    assert (tmp_path / "dpsql" / "ledger").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "dpsql" / "ledger" / "000002.json").stat().st_mode & 0o777 == 0o600


def test_a_printed_line_has_one_epsilon() -> None:
    """Catches: `epsilon=0.0` of Gaussian noise beside the epsilon that was declared."""
    assert re.findall(r"\w*epsilon=[\d.]+", str([LINE])) == ["declared_epsilon=6.0"]


@pytest.mark.parametrize(
    ("size", "offset", "cap_days", "expected"),
    [
        (1, 0, 7, 7), (1, 0.5, 7, 8), (2, 0, 7, 4), (7, 0, 1, 1), (7, 1, 1, 1), (7, 0.5, 1, 2), (3, 1, 7, 3), (30, 7, 7, 2), (1, 1, 30, 30),
        (30, 0, 30, 1), (0.25, 0, 1, 4), (0.25, 0.125, 1, 5),
    ],
)  # fmt: skip
def test_contribution_periods_that_a_cap_period_can_touch(
    size: float, offset: float, cap_days: int, expected: int
) -> None:
    line = replace(LINE, size_us=int(size * DAY), offset_us=int(offset * DAY))
    assert line.charges(cap_days * DAY) == expected
    assert replace(line, period="STREAM").charges(cap_days * DAY) == 1
    # By counting: cut the days into eighths and look at which contribution periods each cap period has
    eighth = DAY // 8
    counted = max(
        len({(first + i * eighth - line.offset_us) // line.size_us for i in range(cap_days * 8)})
        for first in range(0, 8 * 31 * cap_days * DAY, cap_days * DAY)
    )
    assert counted == expected


@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 7, 8, 28, 30]), st.integers(0, 240))
def test_contribution_periods_that_days_in_a_row_can_touch(
    eighths: int, days: int, offset: int
) -> None:
    """By counting, whichever day they begin on."""
    line = replace(LINE, size_us=eighths * DAY // 8, offset_us=offset * DAY // 8)
    starts = range(0, eighths)  # days after which the grid of days and that of periods meet again
    counted = max(
        len({(8 * first + eighth - offset) // eighths for eighth in range(8 * days)})
        for first in starts
    )
    assert line.charges_in_days(days) == counted
    assert replace(line, period="STREAM").charges_in_days(days) == 1


def test_spending_is_joint_and_gaussian() -> None:
    """Seven days of epsilon 6 are not epsilon 42."""
    together = cost_in_period(
        [LINE, costing(LINE, period="STREAM", mu2=2.0)], Cap(1.0, 1e-6, 7 * DAY)
    )
    assert together.mu == pytest.approx(3.0)
    assert together.failure == pytest.approx(8 * 1.01e-8)
    one = next(mu / 1000 for mu in range(1, 9999) if curve(mu / 1000, 6.0) > 1e-9)
    week = cost_in_period([costing(LINE, mu2=one**2)], Cap(1.0, 1e-6, 7 * DAY))
    assert epsilon_of(week.mu, 1e-9) == pytest.approx(18.3, abs=0.1)


def test_a_cap_holds_to_the_last_run(tmp_path: Path) -> None:
    """Exactly as many runs fit as the joint curve allows; the refused one leaves nothing behind."""
    cap = Cap(epsilon=6.0, delta=1e-3, period_us=DAY)
    fits = max(
        n for n in range(100) if n == 0 or curve(math.sqrt(n), 6.0) + n * 1.01e-8 <= cap.delta
    )
    assert fits >= 2
    ledger = Ledger(tmp_path / "ledger")
    for number in range(fits):
        ledger.append(replace(LINE, run_id=f"{number + 1:032x}"), cap)
    with pytest.raises(
        BudgetError, match=rf"cap of epsilon 6.*{fits} runs before.*raise the cap: its source"
    ):
        ledger.append(LINE, cap)
    assert len(ledger.lines()) == fits
    ledger.append(replace(LINE, ledger="others"), cap)  # another ledger name, other people
    with pytest.raises(BudgetError, match="would exceed the cap"):
        ledger.append(
            replace(LINE, source="elsewhere", run_id="e" * 32), cap
        )  # another source, the same people
    with pytest.raises(BudgetError, match="would exceed the cap"):
        Ledger(tmp_path / "new").append(costing(LINE, failure=2e-3), cap)


def test_two_runs_never_both_take_the_last_of_a_budget(tmp_path: Path) -> None:
    cap = Cap(epsilon=6.0, delta=1e-3, period_us=DAY)
    fits = max(n for n in range(1, 100) if curve(math.sqrt(n), 6.0) + n * 1.01e-8 <= cap.delta)

    def attempt(number: int) -> bool:
        try:
            Ledger(tmp_path / "ledger").append(replace(LINE, run_id=f"{number:032x}"), cap)
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == fits
    lines = Ledger(tmp_path / "ledger").lines()
    assert len({line.run_id for line in lines}) == len(lines) == fits


@pytest.mark.parametrize(
    "damage",
    [
        {"size_us": 0}, {"size_us": 1.5}, {"period": "DAY"}, {"period": "STREAM"}, {"version": 4}, {"version": 1}, {"extra": 1}, {"ledger": 3},
        {"cost": None}, {"cost": {"mu2": 1.0}}, {"declared_delta": -1.0}, {"declared_epsilon": math.nan},
        *({"cost": COST | wrong} for wrong in (
            {"mu2": -1.0}, {"mu2": math.nan}, {"mu2": "0"}, {"mu2": None}, {"mu2": 0.5}, {"failure": math.inf}, {"failure_shared": 0.0},
            {"protects": "user"}, {"overlap": "STREAM"}, {"overlap": "SUM"}, {"overlap": "WINDOWS", "mu2_shared": 0.9}, {"epsilon": True}, {"extra": 1},
        )),
    ],
)  # fmt: skip
def test_a_damaged_line_stops_all_spending(tmp_path: Path, damage: dict[str, object]) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(LINE, None)
    path = tmp_path / "000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(BudgetError, match=r"000001\.json"):
        ledger.append(LINE, None)


def test_a_line_with_a_floor_says_another_version(tmp_path: Path) -> None:
    """It must not be read as a line without: that would charge several events too little."""
    failure = shifted(1e-9, 0.5)
    line = replace(
        LINE, cost=Cost(PrivacyLevel.EVENT, 0.25, 0.0, failure, Overlap.EVENTS, 0.25, failure, 1e-9)
    )
    ledger = Ledger(tmp_path)
    ledger.append(line, None)
    path = tmp_path / "000001.json"
    written = json.loads(path.read_text())
    assert written["version"] == 3 and ledger.lines() == (line,)
    for damage in (
        {"version": 2},
        {"cost": {**written["cost"], "floor": 0.0}},
        {"cost": {**written["cost"], "floor": 1e-12}},
    ):
        path.write_text(json.dumps(written | damage))
        with pytest.raises(BudgetError, match=r"000001\.json"):
            ledger.lines()


@pytest.mark.parametrize("version", [1, 5])
def test_a_line_of_another_release_stops_all_spending(tmp_path: Path, version: int) -> None:
    """Nobody here knows what it has spent."""
    ledger = Ledger(tmp_path)
    ledger.append(LINE, None)
    path = tmp_path / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    with pytest.raises(
        BudgetError,
        match=rf"000001\.json: version {version} was written by another release.*Nothing else is spent",
    ):
        ledger.append(replace(LINE, run_id="f" * 32), None)
    assert not (tmp_path / "000002.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\udc80"])
def test_an_unreadable_line_is_a_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "000001.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BudgetError, match="put back the original file"):
        Ledger(tmp_path).lines()


def test_a_missing_line_and_a_foreign_file_are_noticed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(3):
        ledger.append(replace(LINE, run_id=f"{number + 1:032x}"), None)
    line = (tmp_path / "000002.json").read_bytes()
    (tmp_path / "000002.json").unlink()
    with pytest.raises(BudgetError, match=r"000002.json is lost; put it back"):
        ledger.append(LINE, None)
    (tmp_path / "000002.json").write_bytes(line)
    for foreign in ("000000.json", "notes.txt", "000004.json.orig"):
        (tmp_path / foreign).touch()
        with pytest.raises(BudgetError, match="is no line; move it away"):
            ledger.append(LINE, None)
        (tmp_path / foreign).unlink()
    for number in (1, 2, 3):
        with pytest.raises(BudgetError, match="has its line already"):
            ledger.append(replace(LINE, run_id=f"{number:032x}"), None)
    assert ledger.append(LINE, None) == 4


def test_many_processes_and_kills_never_exceed_a_cap(tmp_path: Path) -> None:
    """14 processes at once on the real storage, 7 of them killed: every line is whole and sealed, and together they spend the cap and no more."""
    from tests.unit.ledger_crowd import CAP, POINTS, SECRET

    command = [sys.executable, "-m", "tests.unit.ledger_crowd", str(tmp_path / "ledger"), "1"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    ended = dict(pair.split(":") for pair in done.stdout.split())
    assert [ended[str(number)] for number in range(len(POINTS))] == ["9"] * len(POINTS), (
        "the kills did not happen"
    )
    ledger = Ledger(tmp_path / "ledger", SECRET)
    lines = ledger.lines()
    failures = len(lines) * 1.01e-8
    assert curve(math.sqrt(0.1 * len(lines)), CAP.epsilon) + failures <= CAP.delta
    with pytest.raises(
        BudgetError, match="would exceed the cap"
    ):  # and nothing is lost through the kills
        ledger.append(costing(LINE, mu2=0.1, run_id="f" * 32), CAP)
    assert len({line.run_id for line in lines}) == len(lines) >= 10
