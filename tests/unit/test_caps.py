"""Caps per privacy level: how they are read, what they limit, and that a row and a unit are never added up."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian

from dpsql import record
from dpsql.errors import BudgetError, ConfigError
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.budget import budgets, describe, facts
from dpsql.privacy.cost import Cost, Overlap, total
from dpsql.privacy.ledger import Ledger, cap_for, check_cap
from dpsql.privacy.origin import Origin, cap_in_words, declared_cap
from dpsql.sources.caps import Cap
from dpsql.sources.config import Source, load_sources
from dpsql.text import number as figures
from tests.unit.test_ledger import LINE

DAY = 86_400_000_000
USER_CAP = Cap(20.0, 1e-6, 7 * DAY)
EVENT_CAP = Cap(1.0, 0.0, 0, PrivacyLevel.EVENT)
PURE = replace(
    LINE,
    cost=Cost(PrivacyLevel.EVENT, 0.0, 0.4, 0.0, Overlap.EVENTS, 0.0, 0.0),
    declared_epsilon=0.4,
    declared_delta=0.0,
    run_id="01" * 16,
)
YAML = """\
sources:
  visits:
    format: parquet
    path: data
    event_time: ts
    privacy_unit: user_id
    cap:
      - {{epsilon: 20, delta: 1e-6, period: 7 days}}
      - {}
"""


def read(folder: Path, second: str) -> Source:
    (folder / "sources.yaml").write_text(YAML.format(second))
    return load_sources(folder / "sources.yaml")["visits"]


def test_a_list_has_a_cap_per_level(tmp_path: Path) -> None:
    source = read(tmp_path, "{privacy_level: EVENT, epsilon: 1, delta: 0}")
    assert (source.cap, source.event_cap) == (USER_CAP, EVENT_CAP)
    assert [source.cap_of(level) for level in PrivacyLevel] == [USER_CAP, EVENT_CAP]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            "{privacy_level: EVENT, epsilon: 1, delta: 0, period: 1 day}",
            r":9: .*has no `period` at sources\.visits\.cap\.1\.period",
        ),
        (
            "{privacy_level: ROW, epsilon: 1, delta: 0}",
            r":9: `privacy_level` must be USER or EVENT, not 'ROW'",
        ),
        ("{epsilon: 1, delta: 1e-6, period: 1 day}", r":9: two caps of level USER"),
        (
            "{privacy_level: EVENT, epsilon: 1, delta: 0, perod: 1}",
            r":9: unknown setting `perod`: did you mean `period`\?",
        ),
        ("{privacy_level: EVENT, epsilon: 0, delta: 0}", r":9: `epsilon` must be a number above 0"),
        ("{privacy_level: EVENT, epsilon: 1}", r":9: `delta` is missing"),
        (
            "{privacy_level: EVENT, epsilon: 1, delta: false}",
            r":9: `delta` must be a number above 0",
        ),
        ("7", r":9: must be a block"),
    ],
)
def test_what_is_wrong_in_a_list_has_its_line(tmp_path: Path, second: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, second)


def test_a_user_cap_has_a_delta_and_a_period(tmp_path: Path) -> None:
    for cap, message in (
        ("{epsilon: 1, delta: 0, period: 1 day}", "`delta` must be"),
        ("{epsilon: 1, delta: 1e-6}", "`period` is missing"),
    ):
        (tmp_path / "s.yaml").write_text(
            YAML.split("    cap:", maxsplit=1)[0] + f"    cap: {cap}\n"
        )
        with pytest.raises(ConfigError, match=message):
            load_sources(tmp_path / "s.yaml")


def test_a_cap_of_one_level_refuses_the_other() -> None:
    """Catches: a query of rows on a source whose owner has limited what may be shown of people, with nothing that limits it."""
    users = Source("visits", "parquet", cap=USER_CAP)
    rows = Source("visits", "parquet", event_cap=EVENT_CAP)
    assert (
        cap_for(users, PrivacyLevel.USER) == USER_CAP
        and cap_for(rows, PrivacyLevel.EVENT) == EVENT_CAP
    )
    assert cap_for(Source("visits", "parquet"), PrivacyLevel.EVENT) is None
    with pytest.raises(
        BudgetError,
        match=r"protects units \(USER\), and this query protects rows \(EVENT\).*privacy_level: EVENT",
    ):
        cap_for(users, PrivacyLevel.EVENT)
    with pytest.raises(
        BudgetError, match=r"protects rows \(EVENT\), and this query protects units \(USER\)"
    ):
        cap_for(rows, PrivacyLevel.USER)


def test_rows_and_units_do_not_share_a_cap(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.append(PURE, EVENT_CAP)
    ledger.append(LINE, Cap(6.0, 1.1e-7, DAY))  # fits by itself alone
    ledger.append(replace(PURE, run_id="02" * 16), EVENT_CAP)  # 0.8 of 1
    with pytest.raises(BudgetError, match="epsilon 1, delta 0 per row"):
        ledger.append(replace(PURE, run_id="03" * 16), EVENT_CAP)
    assert [line.cost for line in ledger.lines()] == [PURE.cost, LINE.cost, PURE.cost]
    with pytest.raises(ValueError, match="a cap of level EVENT for a cost of level USER"):
        ledger.append(replace(LINE, run_id="04" * 16), EVENT_CAP)


def test_rows_of_one_person_add_up_linearly() -> None:
    """Catches: n rows charged like n periods, whose shifts are in different places."""
    one = Cost(PrivacyLevel.EVENT, 0.25, 0.1, 0.0, Overlap.EVENTS, 0.25, 0.0)
    ten = one.periods(10)
    assert (ten.mu, ten.epsilon) == (pytest.approx(10 * one.mu), pytest.approx(1.0))
    with pytest.raises(ValueError, match="rows add up as EVENTS"):
        Cost(PrivacyLevel.EVENT, 0.25, 0.1, 0.0, Overlap.NONE, 0.25, 0.0)
    with pytest.raises(ValueError, match="not the same thing"):
        total([one, LINE.cost])


def test_the_budget_tells_the_levels_apart() -> None:
    source = Source(
        "visits",
        "parquet",
        "/visits",
        event_time="ts",
        privacy_unit=("user_id",),
        cap=USER_CAP,
        event_cap=EVENT_CAP,
    )
    users, rows = budgets([LINE, PURE, replace(PURE, run_id="02" * 16)], [source])
    assert (users.protects, len(users.lines), rows.protects, len(rows.lines)) == (
        PrivacyLevel.USER,
        1,
        PrivacyLevel.EVENT,
        2,
    )
    assert [(t.days, t.epsilon, t.delta) for t in rows.totals] == [
        (n, pytest.approx(0.8 * n), 0.0) for n in (1, 10, 100)
    ]
    assert rows.cap is not None and rows.cap.spent_epsilon == pytest.approx(0.8)
    assert rows.cap.left_epsilon == pytest.approx(0.2)
    said = describe(rows)
    assert (
        "one row of visits, not one person" in said
        and "100 rows epsilon 80.0" in said
        and "Cap: epsilon 1, delta 0 per row." in said
    )
    assert facts(rows)["privacy_level"] == "EVENT" and facts(rows)["totals"][1]["rows"] == 10
    assert facts(users)["totals"][0]["days"] == 1
    granted = rows.cap.left_epsilon
    assert 2 * 0.4 + granted <= EVENT_CAP.epsilon * (1 + 1e-12) and math.isfinite(granted)


@pytest.mark.parametrize("capped", [True, False])
def test_what_runs_that_protect_rows_cost_a_person_is_said_beside_the_total_of_persons(
    tmp_path: Path, capped: bool
) -> None:
    """Catches: a total of "all these runs" without those on the same people that protect rows only, of whom k cost k times as much."""
    source = Source(
        "visits",
        "parquet",
        event_time="ts",
        privacy_unit=("user_id",),
        cap=USER_CAP if capped else None,
    )
    ledger = Ledger(tmp_path)
    mu = 0.05
    delta = 1e-7
    noisy = Cost(PrivacyLevel.EVENT, mu**2, 0.0, 0.0, Overlap.EVENTS, mu**2, 0.0)
    for number, line in enumerate(
        (
            PURE,
            LINE,
            replace(PURE, cost=noisy, declared_delta=delta),
            replace(PURE, ledger="others"),
        )
    ):
        ledger.append(replace(line, run_id=f"{number:032x}"), None)
    lines = ledger.lines()
    users = next(
        each
        for each in budgets(lines, [source])
        if (each.ledger, each.protects) == ("visits", PrivacyLevel.USER)
    )
    rows = [
        line
        for line in lines
        if (line.ledger, line.cost.protects) == ("visits", PrivacyLevel.EVENT)
    ]
    told = facts(users)["rows_only"]
    assert told["runs"] == len(rows) == 2 and [each["rows"] for each in told["totals"]] == [
        1,
        10,
        100,
    ]
    for each in told["totals"]:
        pure = sum(each["rows"] * line.cost.epsilon for line in rows)
        gaussian = get_epsilon_gaussian(
            1 / (each["rows"] * math.sqrt(sum(line.cost.mu2 for line in rows))), delta
        )
        assert (each["epsilon"], each["delta"]) == (pytest.approx(pure + gaussian), delta)
    costs = " / ".join(figures(each["epsilon"]) for each in told["totals"])
    said = f"2 runs protect rows only: a person with 1 / 10 / 100 rows there in that time pays epsilon {costs} (delta 1e-07) more"
    assert said in describe(users)
    alone = budgets([line for line in lines if line not in rows], [source])
    assert [facts(each)["totals"] for each in alone if each.ledger == "visits"] == [
        facts(users)["totals"]
    ]
    assert not any("rows only" in describe(each) for each in alone)


def test_a_cap_of_rows_that_is_gone_is_noticed() -> None:
    source = Source("visits", "parquet", event_cap=EVENT_CAP)
    kept = declared_cap(source, PrivacyLevel.EVENT)
    assert kept == (1.0, 0.0, 0) and declared_cap(source) is None
    assert cap_in_words(kept) == "{privacy_level: EVENT, epsilon: 1, delta: 0}"
    line = replace(PURE, origin=Origin("", ("path /data",), kept))
    with pytest.raises(BudgetError, match="privacy_level: EVENT, epsilon: 1, delta: 0"):
        check_cap([line], "visits", "visits", None)
    written = {"ledger_id": "", "reads": ["path /data"], "cap": list(kept), "apart_from": []}
    assert record.parse(written, Origin).cap == kept
    with pytest.raises(ValueError):
        record.parse(written | {"cap": [1.0, 0.0, DAY]}, Origin)  # of units: no delta, but a period
