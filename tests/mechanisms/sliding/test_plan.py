"""Plans of sliding windows, and an accountant that finds every number that is too small."""

import dataclasses
import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest

import dpsql
from dpsql.errors import AccountingError, ConfigError
from dpsql.mechanisms.sliding.accounting import account
from dpsql.mechanisms.sliding.explain import explanation
from dpsql.mechanisms.sliding.plan import PaneGrouping, SlidingPlan, document
from dpsql.mechanisms.sliding.planner import half_width, make_plan
from dpsql.mechanisms.sliding.stages import intake, measurements, output_columns
from dpsql.parsed_query import ParsedQuery, PrivacyLevel, changed
from dpsql.privacy.cost import gamma
from dpsql.sources.config import Source
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.discrete_laplace import discrete_laplace
from dpsql.udfs.noise.window_sqrt import coefficients, response
from tests.mechanisms.sliding.queries import (
    EVENT,
    MINUTE,
    QUERIES,
    SOURCE,
    SQRT,
    SUM,
    USER,
    bounds,
    windows,
)
from tests.mechanisms.sliding.reference import coverage


@pytest.mark.parametrize("name", QUERIES)
def test_plans_cost_what_is_promised_and_waste_nothing(name: str) -> None:
    query = QUERIES[name]
    plan = planned(query)
    cost = account(plan, SOURCE)
    assert cost.protects is query.asked.privacy_level
    if query.delta > 0:
        assert 0.98 * query.delta <= cost.delta(query.epsilon) <= query.delta
    else:
        assert 0.999 * query.epsilon <= cost.epsilon <= query.epsilon
        assert (cost.mu2, cost.failure) == (0.0, 0.0)
    assert json.loads(json.dumps(document(plan)))
    assert document(plan) != document(planned(changed(query, epsilon=query.epsilon * 1.01)))
    sums = intake(plan, PublicGroups((), (), 0)).parameters.increments
    assert (
        len(measurements(plan))
        == len(sums)
        == sum(len(column.grids) for column in output_columns(plan))
    )


def planned(query: ParsedQuery) -> SlidingPlan:
    return make_plan(query, SOURCE)


def test_what_the_accountant_refuses() -> None:
    plan = planned(EVENT)
    three = planned(QUERIES["event, three aggregates"])
    sqrt = planned(SQRT)
    shared = dataclasses.replace(
        three,
        measurements=tuple(dataclasses.replace(m, noise_stream=1) for m in three.measurements),
    )
    whole = dataclasses.replace(
        three,
        measurements=(
            planned(changed(EVENT, epsilon=2.0)).measurements[0],
            *three.measurements[1:],
        ),
    )
    table = plan.measurements[0].fine
    assert table is not None
    off = dataclasses.replace(
        table, middle=(*table.middle[:-1], table.middle[-1] + (table.middle[-1] >> 30))
    )
    off = dataclasses.replace(
        off, middle=(off.middle[0] - 2 * (table.middle[-1] >> 30), *off.middle[1:])
    )
    seam = dataclasses.replace(
        plan, measurements=(dataclasses.replace(plan.measurements[0], fine=off),)
    )
    longer = dataclasses.replace(
        sqrt, coefficients=coefficients(30)
    )  # noise of a longer band, sigma for the shorter one's norm
    clamp = dataclasses.replace(
        three,
        measurements=(
            three.measurements[0],
            dataclasses.replace(three.measurements[1], upper=2**20),
            *three.measurements[2:],
        ),
    )
    # 1,016.8 steps, which move a pane's sum by 1,017 at times, charged as 1,016.
    parts = planned(changed(EVENT, aggregates=(dataclasses.replace(SUM, bounds=(0.0, 0.993)),)))
    finer = dataclasses.replace(
        parts.measurements[0], fine=discrete_laplace(0.1 / 1016 * (1 - 1e-8))
    )
    ids = dataclasses.replace(SOURCE, max_users=2**58)
    cases = [
        (shared, "equal numbers share their noise"),
        (whole, "more than the"),
        (seam, "does not keep its epsilon"),
        (longer, "mu is"),
        (clamp, "more than the"),
        (dataclasses.replace(parts, measurements=(finer,)), "more than the"),
        (
            dataclasses.replace(plan, query=changed(EVENT, privacy_level=PrivacyLevel.USER)),
            "a unit needs bounds",
        ),
        (
            dataclasses.replace(plan, query=changed(EVENT, privacy_unit=("user_id",))),
            "no unit and no bounds",
        ),
        (
            dataclasses.replace(plan, query=changed(EVENT, grouping=PaneGrouping.RETROACTIVE)),
            "other noise than",
        ),
        (dataclasses.replace(sqrt, coefficients=sqrt.coefficients[:10]), "begins with 1"),
        (
            dataclasses.replace(
                sqrt, measurements=(dataclasses.replace(sqrt.measurements[0], sigma=0.0),)
            ),
            "without noise",
        ),
        (dataclasses.replace(sqrt, measurements=plan.measurements), "without noise"),
    ]
    for wrong, message in cases:
        with pytest.raises(AccountingError, match=message):
            account(wrong, SOURCE)
    with pytest.raises(AccountingError, match="epsilon is"):
        account(planned(USER), ids)


def test_what_the_planner_refuses() -> None:
    with pytest.raises(ConfigError, match="at most 500 slides"):
        planned(windows(SQRT, 501))
    with pytest.raises(ConfigError, match="lower max_rows_contributed"):
        planned(changed(USER, **bounds(10**9, 10**9, 1)))
    with pytest.raises(ConfigError, match="at most 20"):
        planned(changed(EVENT, epsilon=21.0))
    with pytest.raises(ConfigError, match="collisions"):
        planned(changed(QUERIES["sqrt, user"], delta=1e-12))
    with pytest.raises(ConfigError, match="overflow 64 bits"):
        make_plan(
            changed(USER, epsilon=20.0, aggregates=(SUM,), **bounds(100, 100, 1)),
            dataclasses.replace(SOURCE, max_users=2**48),
        )


def test_a_pane_stays_open_up_to_the_end_of_a_pane() -> None:
    for given, kept in ((0, 0), (1, MINUTE), (MINUTE, MINUTE), (MINUTE + 1, 2 * MINUTE)):
        assert planned(changed(EVENT, allowed_lateness_us=given)).lateness_us == kept


@pytest.mark.parametrize(
    ("epsilon", "w", "expected"),
    [(0.1, 1, 30), (0.1, 15, 108), (1.0, 1, None), (1.0, 5, None), (0.05, 4, None)],
)
def test_half_widths_are_exact(epsilon: float, w: int, expected: int | None) -> None:
    """Against the convolution of probabilities written out."""
    a = math.exp(-epsilon)
    reach = int(45 / epsilon)
    one = np.array([(1 - a) / (1 + a) * a ** abs(k) for k in range(-reach, reach + 1)])
    p = one
    for _ in range(w - 1):
        p = np.convolve(p, one)
    middle = len(p) // 2
    inside = [float(p[middle - h : middle + h + 1].sum()) for h in range(1, middle)]
    h = half_width(epsilon, w)
    assert h == 1 + next(i for i, each in enumerate(inside) if each >= 0.95)
    assert coverage(epsilon, w, h) == pytest.approx(inside[h - 1])
    assert expected in (None, h)


def test_half_widths_of_fine_grids_are_no_narrower() -> None:
    for epsilon in (1e-4, 1e-5):
        assert half_width(epsilon, 15) == pytest.approx(
            half_width(2.0**-9, 15) * 2.0**-9 / epsilon, rel=2e-3
        )
    assert coverage(1e-4, 15, half_width(1e-4, 15)) >= 0.95
    assert coverage(1e-4, 15, int(half_width(1e-4, 15) * 0.999)) < 0.95


@pytest.mark.parametrize(("w", "expected"), [(15, 1.92), (24, 2.02), (60, 2.17), (168, 2.31)])
def test_several_periods_cost_gamma_times_as_much(w: int, expected: float) -> None:
    assert gamma(coefficients(w), w) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_true_shift_of_several_periods_stays_below_what_is_charged(n: int) -> None:
    """One bin, w = 15: each period's rows at the pane where all of them together move C x most (search by one pane at a time)."""
    w = 15
    plan = planned(changed(QUERIES["sqrt, user"], **bounds(1, 1, 1)))
    c = np.array(plan.coefficients)
    g = np.array([float(c[: len(c) - k] @ c[k:]) if k < len(c) else 0.0 for k in range(n * w + 1)])

    def shift(places: list[int]) -> float:
        times = [i * w + place for i, place in enumerate(places)]
        return float(sum(g[abs(s - t)] for s in times for t in times)) / float(g[0])

    best = 0.0
    for start in range(w):
        places = [start] * n
        for _ in range(6):
            for i in range(n):
                places[i] = max(
                    range(w), key=lambda p, i=i: shift([*places[:i], p, *places[i + 1 :]])
                )
        best = max(best, shift(places))
    one = account(plan, SOURCE)
    assert n < best * (1 + 1e-9) <= one.periods(n).mu2 / one.mu2
    assert best > 1.2 * n  # so n times the cost of one would be false


def test_pure_periods_and_events_add_up() -> None:
    assert account(planned(USER), SOURCE).periods(7).epsilon == pytest.approx(0.7, rel=1e-9)
    stream = account(planned(QUERIES["user, STREAM"]), SOURCE)
    assert stream.periods(7).epsilon == stream.epsilon
    event = account(planned(EVENT), SOURCE)
    sqrt = account(planned(SQRT), SOURCE)
    assert event.periods(10).epsilon == pytest.approx(1.0, rel=1e-9)
    assert sqrt.periods(10).mu == pytest.approx(10 * sqrt.mu)  # linear, not by the square root


def test_at_level_user_it_has_less_than_a_third_of_the_variance_of_one_copy_per_window() -> None:
    """w = 15, same (epsilon, delta, C, c, G): a record in 15 windows moves independent noise by sqrt(15) times as much."""
    plan = planned(QUERIES["sqrt, user"])
    m = plan.measurements[0]
    asked = USER.asked
    copies = math.sqrt(15 * (asked.max_rows_per_group or 0) * asked.rows) / plan.mu
    assert (m.stderr / copies) ** 2 < 0.30


def said(query: ParsedQuery) -> str:
    return " ".join(explanation(planned(query), SOURCE).text().split())


def test_explain_says_what_events_cost() -> None:
    event = said(EVENT)
    assert "one row of wiki (not one person): epsilon 0.1, delta 0." in event
    assert "In 10 events: epsilon 1.00, delta 0. In 100 events: epsilon 10.0, delta 0." in event
    assert "In 2 events: epsilon 0.200, delta 0." in event
    assert "Changing an event costs as much as 2 events." in event
    assert "COUNT(*) ± 108" in event
    assert (
        "delta = 0, privacy_level = EVENT, no trigger_interval: 54.75; once, at the window's end. This query. "
        "delta = 1e-09, privacy_level = EVENT, no trigger_interval: 105.5; once" in event
    )
    user = said(changed(QUERIES["sqrt, user"], delta=1e-6))
    assert re.search(
        r"delta = 0, no trigger_interval: [\d.]+, epsilon 288 in 30 days; .* "
        r"delta = [\de.-]+, no trigger_interval: [\d.]+, epsilon [\d.]+ in 30 days; .* This query\.",
        user,
    )
    assert (
        "delta = 1e-06, trigger_interval = '1 minute', a copy of every record in each of its 15 windows: "
        in user
    )
    assert "worse than" in said(QUERIES["retroactive"])
    assert "everything that one user_id does in 15 minutes" in said(USER)


@pytest.mark.parametrize(
    ("window", "c", "more", "keyed"),
    [
        ("'1 day', '1 hour'", 4, "", True),
        ("'1 day', '1 hour'", 4, ", allowed_lateness = '30 minutes'", True),
        ("'1 day', '6 hours'", 20, "", False),
        ("'7 days'", 4, "", True),
        ("'1 day'", 4, ", allowed_lateness = '2 hours'", False),
    ],
)
def test_other_ways_to_ask_have_the_errors_and_costs_that_they_are_told_to_have(
    window: str, c: int, more: str, keyed: bool
) -> None:
    """Each way is asked, and its own plan and accountant say the same. Catches: a window with copies told without its counter."""
    sources = {
        "wiki": dataclasses.replace(SOURCE, schema="user_id STRING, channel STRING, ts TIMESTAMP")
    }
    sources["channels"] = Source(
        "channels", "parquet", path="channels", schema="channel STRING", static=True
    )
    listed, key = (
        ("public_groups = (SELECT channel FROM channels), ", "channel") if keyed else ("", "")
    )

    def asked(options: str) -> dpsql.Query:
        bounds = f"privacy_unit_column = user_id, max_rows_contributed = 20, max_rows_per_group = {c}{more}"
        return dpsql.compile(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({listed}epsilon = 1, {bounds}, {options}) {key + ', ' if key else ''}COUNT(*) AS n "
            f"FROM wiki GROUP BY window(ts, {window}){', ' + key if key else ''}",
            sources,
        )

    def error(query: dpsql.Query) -> float:
        return (
            query.plan.columns[0].perturbations[0].sd[-1]
            if query.plan.mechanism == "histogram"
            else query.plan.measurements[0].stderr
        )

    first = asked("delta = 1e-6")
    interval = f", trigger_interval = {window.rsplit(', ', maxsplit=1)[-1]}"
    ways = [
        asked("delta = 0"),
        first,
        *([asked("delta = 1e-6" + interval)] if "," in window else []),
    ]
    months = [query.explanation.protects.totals[-1] for query in ways]
    assert {month.span for month in months} == {"any 30 days in a row"}
    costs = [month.epsilon for month in months]
    for mine, query in enumerate(ways):
        told = re.findall(
            r": ([\d.]+), epsilon ([\d.]+) in 30 days;[^.]*\.( This)?",
            " ".join(query.explain().split()),
        )
        assert [bool(this) for _, _, this in told] == [each == mine for each in range(len(ways))]
        if query.plan.delta:
            assert [float(each) for each, _, _ in told] == pytest.approx(
                list(map(error, ways)), rel=2e-3
            )
            assert "7" in window or [float(cost) for _, cost, _ in told] == pytest.approx(
                costs, rel=2e-3
            )


def test_a_grid_has_at_most_2_20_units_to_the_largest_value_and_a_step_2_10_of_them() -> None:
    for hi in (1.0, 1.5, 2.0, 1023.9, 1024.0, 1e-7):
        m = planned(
            changed(EVENT, aggregates=(dataclasses.replace(SUM, bounds=(-hi / 3, hi)),))
        ).measurements[0]
        assert 512 < hi / m.step <= 1024
        assert m.step == m.grid * 2**10
        assert math.frexp(m.grid)[0] == 0.5
        assert -hi / 3 <= m.lower * m.grid <= m.upper * m.grid <= hi
        assert not m.floor


def test_the_standard_error_of_window_sqrt_does_not_fall_with_the_panes() -> None:
    plan = planned(SQRT)
    assert all(a <= b for a, b in pairwise(plan.sd))
    assert plan.sd[-1] == pytest.approx(
        float(np.linalg.norm(response(15, plan.coefficients).window))
    )
    assert plan.measurements[0].stderr == pytest.approx(
        76, abs=1
    )  # the page's figure at epsilon 0.1, delta 1e-6
