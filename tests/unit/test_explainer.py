"""Explanations of the histogram: their numbers are the plan's, and a person is told them."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import dpsql
from dpsql.errors import ConfigError
from dpsql.explanation import Explanation
from dpsql.jobs.terminal import print_json
from dpsql.mechanisms.histogram.explain import explanation
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
from dpsql.text import number, percent
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


def explained(q: ParsedQuery) -> Explanation:
    return explanation(make_plan(q, source()), source())


def test_what_a_key_needs_with_three_groups_is_what_that_query_says_it_needs(
    q: ParsedQuery,
) -> None:
    told = re.findall(
        r"max_groups_contributed = 3 instead of (\d+): about ([\d,]+) by the last",
        " ".join(explained(q).text().split()),
    )
    if q.asked.max_groups_contributed <= 3 or not q.selects:
        assert not told
        return
    choices = dataclasses.replace(q.asked, max_groups_contributed=3)
    needed = explained(dataclasses.replace(q, asked=choices)).keys.units_needed[-1]
    assert told == [(str(q.asked.max_groups_contributed), f"{needed.units:,}")]


def test_the_explanation_is_the_plans(q: ParsedQuery) -> None:
    """Catches: numbers of another column or trigger; a name that changes under programs that read them."""
    plan = make_plan(q, source())
    said = explained(q).json()
    assert json.loads(json.dumps(said)) == said
    protects, budget = said["protects"], said["budget"]
    assert (protects["epsilon"], protects["delta"], budget["mu"]) == (q.epsilon, q.delta, plan.mu)
    assert budget["mu"] == pytest.approx(total_mu(q.epsilon, budget["delta_noise"]), rel=2.0**-19)
    for column, planned in zip(said["columns"], plan.columns, strict=True):
        errors = stderr(planned.perturbations[0])
        told = [(each["trigger"], each["stderr"]) for each in column["errors"]]
        assert told == [(1, errors[0]), (plan.horizon, errors[-1])]
        several = len(planned.perturbations) > 1
        assert {each["statistic"] for each in column["errors"]} == {"sum" if several else "value"}
        assert bool(column["parts"]) is several
    needed = [each["units"] for each in said["keys"]["units_needed"]]
    if plan.selection:
        taus = plan.selection.thresholds
        weight = plan.selection.weights[0]
        assert needed == [-(-taus[0] // weight), -(-taus[-1] // weight)]
        assert (needed[0] - 1) * weight < taus[0] <= needed[0] * weight
    else:
        assert needed == []


def test_the_text_has_every_number_that_matters(q: ParsedQuery) -> None:
    """Golden-free: a number that the program promises to others must be one that a person was told."""
    explanation = explained(q)
    text = " ".join(explanation.text().split())
    limits, budget = explanation.limits, explanation.budget
    rows = limits.max_rows_contributed or 0
    assert f"mu = {budget.mu:.4f}" in text
    for part in (budget.delta_noise, budget.delta_threshold, budget.delta_hash):
        assert not part or f"{part:.3g}" in text
    assert f"{explanation.when.releases} releases per window" in text
    assert f"C = {rows:,} records" in text
    for symbol, limit in (("c", limits.max_rows_per_group), ("G", limits.max_groups_contributed)):
        assert (f"{symbol} = {limit:,} " in text) is (limit is not None and limit < rows)
    for needed in explanation.keys.units_needed:
        assert f"{needed.units:,} at trigger {needed.trigger:,}" in text
    for column in explanation.columns:
        for error in (*column.errors, *column.parts):
            assert f"± {number(error.half_width or 0)}" in text
        if column.bounds:
            assert "[{:g}, {:g}]".format(*column.bounds) in text


def test_an_average_tells_both_of_its_errors() -> None:
    """Its own error depends on the number of values. Catches: a program that takes the sum's error for the average's."""
    plan = make_plan(query(aggregates=(COUNT, AVG)), source())
    count, average = explanation(plan, source()).columns
    assert ([error.statistic for error in count.errors], count.parts) == (["value"] * 2, ())
    assert [(error.statistic, error.divisor) for error in average.errors] == [("sum", "n")] * 2
    sums, counts = average.parts[:2], average.parts[2:]
    assert [error.statistic for error in (*sums, *counts)] == ["sum", "sum", "count", "count"]
    assert [error.stderr for error in sums] == [error.stderr for error in average.errors]
    last = [stderr(part)[-1] for part in plan.columns[1].perturbations]
    assert [sums[-1].stderr, counts[-1].stderr] == last
    n, away = (
        10**6,
        5.0,
    )  # the released error is what the docstring says, at 5 from the middle of the bounds
    column = release_parameters(plan).columns[1]
    sums_of_group = np.array([0, round(n * away / column.grids[0]), n])
    _, released = finish(column, list(sums_of_group.reshape(3, 1)), np.array([plan.horizon]))
    assert released[0] == pytest.approx(math.hypot(last[0], away * last[1]) / n, rel=0.02)


def test_the_text_is_readable_and_shows_no_secret(q: ParsedQuery) -> None:
    text = explained(q).text()
    assert max(map(len, text.splitlines())) <= 120
    assert "nan" not in text.split()
    assert "salt" not in text.lower()


def test_rounds_are_not_called_refreshes() -> None:
    """RESELECT shows a key only at the triggers at which it is selected again. Catches: text of the other release rule."""
    assert "refreshed at every trigger" in explained(query()).text()
    assert "refreshed at every trigger" not in explained(QUERIES["paper"]).text()


def test_so_many_windows_that_nothing_is_promised_of_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Windows of a second, with delta 1e-6: what a month's may fail with is more than 1. Catches: an explanation that ends in an error, or is
    no JSON."""
    many = query(
        delta=1e-6, window=WindowSpec(1_000_000, 1_000_000, 0), trigger_interval_us=1_000_000
    )
    listed = dataclasses.replace(many, public_groups="SELECT page FROM pages", aggregates=(COUNT,))
    assert "epsilon inf in 30 days" in " ".join(explained(listed).text().split())
    month = explained(many).protects.totals[-1]
    assert (month.delta, month.epsilon) == (1.0, None)
    assert "unlimited in any 30 days in a row" in " ".join(explained(many).text().split())
    print_json({**explained(many).json(), "costs": (float("inf"), 1.5)})
    printed = json.loads(capsys.readouterr().out)
    assert printed["protects"]["totals"][-1]["epsilon"] is None
    assert printed["costs"] == [None, 1.5]


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
    days = [each for each in compiled.explanation.protects.totals if "window" not in each.span]
    assert [(each.span, each.count) for each in days] == [
        ("a day (UTC)", 1),
        ("any 7 days in a row", 2),
        ("any 30 days in a row", 6),
    ]
    costs = [each.epsilon or 0.0 for each in days]
    assert costs[0] == pytest.approx(4.0, rel=0.02) and costs[1] > 5.6
    line = compiled.line("0" * 32, "run", Origin())
    (spent,) = budgets([line])
    assert [total.epsilon for total in spent.totals] == pytest.approx(costs, rel=1e-6)
    assert f"{costs[1]:.3g} in any 7 days in a row" in compiled.explain()


def test_a_day_a_week_and_a_month_are_told() -> None:
    """The design's figures at (6, 1e-9): 6 / 17.4 / 42. For a STREAM period there is nothing to add up."""
    text = " ".join(explained(query()).text().split())
    told = re.findall(r"up to (\d+) periods?, epsilon ([\d.]+)", text)
    assert [int(periods) for periods, _ in told] == [1, 7, 30]
    # half of delta goes to the thresholds, so mu and these are a little smaller than for the whole
    assert [float(epsilon) for _, epsilon in told] == pytest.approx([6, 17.4, 42], rel=0.05)
    stream = dataclasses.replace(query(), contribution_period=ContributionPeriod.STREAM)
    assert "30 days" not in explained(stream).text()
    assert "in the whole stream" in explained(stream).text()


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
    few = source(max_keys=1000)
    text = explanation(make_plan(limit, few, decay=1.0), few).text()
    assert "number 1000000 counts 9.54e-05%." in " ".join(text.split())  # its weight is below 2^-20
    sliding = dataclasses.replace(limit, window=WindowSpec(DAY, HOUR, 0))
    with pytest.raises(
        ConfigError, match=r"could count 24,000,000 times .*24 windows.*max_groups_contributed"
    ):
        make_plan(sliding, source(max_keys=1000))
