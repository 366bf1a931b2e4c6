"""Explanations: every number of the facts appears in the text, and the facts are the plan's."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import dpsql
from dpsql.errors import ConfigError
from dpsql.jobs.terminal import print_json
from dpsql.mechanisms.histogram.explain import explain, facts
from dpsql.mechanisms.histogram.plan import ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import release_parameters, stderr
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    ParsedQuery,
    WindowSpec,
)
from dpsql.privacy.budget import budgets
from dpsql.privacy.curve import total_mu
from dpsql.privacy.origin import Origin
from dpsql.text import Z95, number, percent
from dpsql.times import duration
from dpsql.udfs.histogram.perturbation import finish
from tests.property.plans import COUNT, DAY, HOUR, SUM, USERS, VALID, query, source

AVG = Aggregate("mean_time", AggregateFunction.AVG, "seconds", (10.0, 60.0))
QUERIES = {
    "plain": query(),
    "all aggregates": query(
        aggregates=(COUNT, VALID, USERS, SUM, AVG), max_rows_per_group=3, max_groups_contributed=2
    ),
    "for ever": query(
        contribution_period=ContributionPeriod.STREAM, min_privacy_units_per_group=17
    ),
    "paper": query(
        counter=CounterName.HONAKER, release=ReleaseRule.RESELECT, max_rows_contributed=32
    ),
    "public": query(public_groups="SELECT page FROM pages"),
    "late": query(
        allowed_lateness_us=2 * HOUR, trigger_interval_us=HOUR // 4, max_ahead_us=5 * HOUR
    ),
    "small epsilon": query(epsilon=0.01, delta=2.5e-8),
}


@pytest.fixture(params=QUERIES, name="q")
def _query(request: pytest.FixtureRequest) -> ParsedQuery:
    return QUERIES[request.param]


def test_what_a_key_needs_with_three_groups_is_what_that_query_says_it_needs(
    q: ParsedQuery,
) -> None:
    told = re.findall(
        r"max_groups_contributed = 3 in the place of (\d+): about (\d+) by the last",
        explain(make_plan(q, source()), source()),
    )
    if q.asked.max_groups_contributed <= 3 or not q.selects:
        assert not told
        return
    fewer = make_plan(
        dataclasses.replace(q, asked=dataclasses.replace(q.asked, max_groups_contributed=3)),
        source(),
    )
    needed = facts(fewer, source())["selection"]["users_needed_last_trigger"]
    assert [(int(groups), int(units)) for groups, units in told] == [
        (q.asked.max_groups_contributed, needed)
    ]
    assert f"{needed} by the last" in explain(fewer, source())


def test_the_text_holds_every_number_of_the_facts(q: ParsedQuery) -> None:
    """Golden-free: a number that the program promises to others must be one that a person was told. A strategy step's sigma is told as
    errors of what is released, which is what a reader can use."""
    plan = make_plan(q, source())
    text = explain(plan, source())
    said = facts(plan, source())
    assert f"({said['epsilon']:g}, {said['delta']:g})" in text
    assert f"mu = {said['mu']:.4f}" in text
    for name in ("delta_noise", "delta_threshold"):
        assert f"{said[name]:.3g}" in text
    assert f"{said['delta_hash']:.2g}" in text
    assert f"T = {said['horizon']} " in text
    for symbol, name in (
        ("C", "max_rows_contributed"),
        ("c", "max_rows_per_group"),
        ("G", "max_groups_contributed"),
    ):
        assert re.search(rf"\b{symbol} = {said[name]}\b", text)
    assert said["query_identity"] in text
    if said["selection"]:
        for name in ("users_needed_first_trigger", "users_needed_last_trigger"):
            assert re.search(rf"\b{said['selection'][name]:,}\b", text) or re.search(
                rf"\b{said['selection'][name]}\b", text
            )
        assert f"counter {said['selection']['counter']}" in text
    for column in said["columns"]:
        assert column["alias"] in text
        for name in ("stderr_first_trigger", "stderr_last_trigger"):
            assert f"± {number(Z95 * column[name])}" in text
        for part in column["parts"] or ():
            for name in ("stderr_first_trigger", "stderr_last_trigger"):
                assert f"± {number(Z95 * part[name])}" in text
        if column["clamp"]:
            assert "[{:g}, {:g}]".format(*column["clamp"]) in text


def test_the_facts_are_the_plans(q: ParsedQuery) -> None:
    """Catches: facts of another column or trigger; a name that changes under programs that read them."""
    plan = make_plan(q, source())
    said = facts(plan, source())
    assert json.loads(json.dumps(said)) == said
    assert (said["epsilon"], said["delta"], said["mu"]) == (q.epsilon, q.delta, plan.mu)
    assert said["mu"] == pytest.approx(total_mu(q.epsilon, said["delta_noise"]), rel=2.0**-19)
    for column, planned in zip(said["columns"], plan.columns, strict=True):
        errors = stderr(planned.perturbations[0])
        assert column["sigma"] == planned.perturbations[0].sigma
        assert (column["stderr_first_trigger"], column["stderr_last_trigger"]) == (
            errors[0],
            errors[-1],
        )
        assert (column["stderr_of"], column["parts"] is None) == (
            ("sum", False) if len(planned.perturbations) > 1 else ("value", True)
        )
    if plan.selection:
        taus = plan.selection.thresholds
        weight = plan.selection.weights[0]
        needed = (
            said["selection"]["users_needed_first_trigger"],
            said["selection"]["users_needed_last_trigger"],
        )
        assert needed == (-(-taus[0] // weight), -(-taus[-1] // weight))
        assert (needed[0] - 1) * weight < taus[0] <= needed[0] * weight
    else:
        assert said["selection"] is None


def test_an_average_tells_both_of_its_errors() -> None:
    """Its own error depends on the number of values. Catches: a program that takes the sum's error for the average's."""
    plan = make_plan(query(aggregates=(COUNT, AVG)), source())
    count, average = facts(plan, source())["columns"]
    assert (count["stderr_of"], count["parts"]) == ("value", None)
    assert average["stderr_of"] == "sum"
    total, values = average["parts"]
    assert (total["of"], values["of"]) == ("sum", "count")
    assert {
        name: total[name] for name in ("sigma", "stderr_first_trigger", "stderr_last_trigger")
    }.items() <= average.items()
    errors = [stderr(part) for part in plan.columns[1].perturbations]
    assert [part["stderr_last_trigger"] for part in (total, values)] == [
        error[-1] for error in errors
    ]
    n, away = (
        10**6,
        5.0,
    )  # the released error is what the docstring says, at 5 from the middle of the bounds
    column = release_parameters(plan).columns[1]
    sums = np.array([0, round(n * away / column.grids[0]), n])
    _, released = finish(column, list(sums.reshape(3, 1)), np.array([plan.horizon]))
    assert released[0] == pytest.approx(
        math.hypot(total["stderr_last_trigger"], away * values["stderr_last_trigger"]) / n, rel=0.02
    )


def test_the_text_is_readable_and_shows_no_secret(q: ParsedQuery) -> None:
    text = explain(make_plan(q, source()), source())
    assert max(map(len, text.splitlines())) <= 120
    assert "nan" not in text.split()
    assert "salt" not in text.lower()


def test_rounds_are_not_called_refreshes() -> None:
    """RESELECT shows a key only at the triggers at which it is selected again. Catches: text of the other release rule."""
    assert "refreshed at every trigger" in explain(make_plan(query(), source()), source())
    assert "refreshed at every trigger" not in explain(
        make_plan(QUERIES["paper"], source()), source()
    )


def test_so_many_windows_that_nothing_is_promised_of_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Windows of a second, with delta 1e-6: what a month's may fail with is more than 1. Catches: an explanation that ends in an error, or is
    no JSON."""
    many = query(
        delta=1e-6, window=WindowSpec(1_000_000, 1_000_000, 0), trigger_interval_us=1_000_000
    )
    plan = make_plan(many, source())
    month = facts(plan, source())["days"][-1]
    assert (month["delta"], month["epsilon"]) == (1.0, None)
    assert "/ unlimited" in explain(plan, source())
    print_json({**facts(plan, source()), "costs": (float("inf"), 1.5)})
    printed = json.loads(capsys.readouterr().out)
    assert printed["days"][-1]["epsilon"] is None and printed["costs"] == [None, 1.5]


WEEKLY = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-8, privacy_unit_column = user_id, {}) {} FROM visits GROUP BY {}"
OF_A_WEEK = {
    "histogram": WEEKLY.format(
        "max_rows_contributed = 1",
        "page, COUNT(*) AS n",
        "page, window(ts, '7 days', '7 days', '{} days')",
    ),
    "sketch": WEEKLY.format(
        "max_rows_contributed = 1, max_groups_contributed = 1, trigger_interval = '7 days'",
        "APPROX_TOP_COUNT(page, 3) AS top",
        "window(ts, '7 days', '7 days', '{} days')",
    ),
    "sliding": WEEKLY.format(
        "max_rows_contributed = 1", "COUNT(*) AS n", "window(ts, '7 days', '1 day', '{} days')"
    ),
}


@pytest.mark.parametrize("begins", [0, 4])
@pytest.mark.parametrize("kind", OF_A_WEEK)
def test_a_week_is_any_seven_days_in_a_row(kind: str, begins: int) -> None:
    """Windows of a week begin on Thursdays, or on Mondays: from Wednesday to Tuesday one person is in two of either. Catches: seven days
    counted from 1970, which are never in two windows that begin on Thursdays."""
    visits = {
        "format": "parquet",
        "path": "data",
        "schema": "user_id STRING, ts TIMESTAMP, page STRING",
        "event_time": "ts",
    }
    sources = {"visits": {**visits, "privacy_unit": "user_id", "start": "2026-01-01"}}
    compiled = dpsql.compile(OF_A_WEEK[kind].format(begins), sources)
    assert compiled.mechanism.name == kind
    days = compiled.explain_json()["days"]
    assert [(each["days"], each["periods"]) for each in days] == [(1, 1), (7, 2), (30, 6)]
    assert days[0]["epsilon"] == pytest.approx(4.0, rel=0.02) and days[1]["epsilon"] > 5.6
    line = compiled.line("0" * 32, "run", Origin())
    (spent,) = budgets([line])
    assert [total.epsilon for total in spent.totals] == pytest.approx(
        [each["epsilon"] for each in days], rel=1e-6
    )
    week = f"{days[1]['epsilon']:.3g}"
    assert (
        f"/ {week} /" in compiled.explain()
        or f"{week} in any 7 days in a row" in compiled.explain()
    )


def test_a_day_a_week_and_a_month_are_told() -> None:
    """The design's figures at (6, 1e-9): 6 / 17.4 / 42. For a STREAM period there is nothing to add up."""
    plan = make_plan(query(), source())
    (told,) = re.findall(
        r"together cost epsilon ([\d.]+) / ([\d.]+) / ([\d.]+), delta", explain(plan, source())
    )
    assert "any 1 / 7 / 30 days (UTC) in a row touch up to 1 / 7 / 30 windows" in explain(
        plan, source()
    )
    # half of delta goes to the thresholds, so mu and these are a little smaller than for the whole
    assert [float(v) for v in told] == pytest.approx([6, 17.4, 42], rel=0.05)
    stream = dataclasses.replace(query(), contribution_period=ContributionPeriod.STREAM)
    text = explain(make_plan(stream, source()), source())
    assert "365" not in text
    assert "for ever" in text


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (0, "0 seconds"),
        (1, "1 microsecond"),
        (1_500 * HOUR // 1_000, "90 minutes"),
        (HOUR, "1 hour"),
        (DAY, "1 day"),
        (DAY + HOUR, "25 hours"),
    ],
)
def test_durations(us: int, words: str) -> None:
    assert duration(us) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (12.34, "12.3"),
        (0.01234, "0.0123"),
        (99.99, "100.0"),
        (3.2e12, "3.2e+12"),
        (-5.0, "-5.00"),
    ],
)
def test_numbers(value: float, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (1.0, "100%"),
        (0.999, "99.9%"),
        (0.7, "70%"),
        (0.1, "10%"),
        (0.00025, "0.025%"),
        (0.9999999, "100%"),
    ],
)
def test_shares(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_plan_at_its_limits_is_explained_and_one_beyond_is_refused() -> None:
    """A million rows of a unit, for which the plan has a million weights; more than MAX_WEIGHTS of them would fill the memory."""
    limit = query(delta=9e-6, max_rows_contributed=1_000_000, max_rows_per_group=1)
    text = explain(make_plan(limit, source(max_keys=1000), decay=1.0), source(max_keys=1000))
    assert "number 1000000 counts 0% of the first" in text  # its weight is below 2^-20
    sliding = dataclasses.replace(limit, window=WindowSpec(DAY, HOUR, 0))
    with pytest.raises(
        ConfigError, match=r"could count 24,000,000 times .*24 windows.*max_groups_contributed"
    ):
        make_plan(sliding, source(max_keys=1000))
