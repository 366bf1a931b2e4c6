"""One explanation for every kind of query: the same names, the same sections, and numbers that are the plan's and the accountant's."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import pytest

from dpsql.compiled import Query
from dpsql.explanation import ErrorBar, Explanation
from dpsql.mechanisms.dynamic.stages import perturbations, quantile_noise, users_needed
from dpsql.mechanisms.histogram.stages import quantiles_of, stderr
from dpsql.mechanisms.marginals.explain import typical_error
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.parts.whole_table import triggers
from dpsql.text import Z95, number, percent
from dpsql.times import duration
from tests.frozen import NUMBER, released
from tests.sql.golden import compiled, goldens

GOLDENS = {golden.stem: golden for golden in goldens("accepted")}
SECTIONS = (
    "In short", "What is promised", "When", "Limits", "Which keys are released", "How exact the numbers are", "How the budget is spent",
)  # fmt: skip
TOP = ("protects", "when", "limits", "keys", "columns", "budget", "identity", "notes")
CONSTANTS = {"95", "2", "20", "7"}
"""Of 95% intervals, mu^2, "2 events", and the sentence on more than 20 in 7 days."""
every_query = pytest.mark.parametrize("name", GOLDENS)


def query_of(name: str) -> Query:
    return compiled(GOLDENS[name])


@cache
def explained(name: str) -> Explanation:
    return query_of(name).explanation


def of_kind(kind: str) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Check all queries of a kind in one test: only then are they planned, and not where tests are collected."""

    def over_all(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            names = [name for name in GOLDENS if query_of(name).mechanism.name == kind]
            assert names
            for name in names:
                check(name)

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
        return test

    return over_all


def places(value: Any, at: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names of every object in a JSON value, by its path without indices."""
    if isinstance(value, dict):
        yield at, tuple(value)
        for name, each in value.items():
            yield from places(each, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for each in value:
            yield from places(each, f"{at}[]")


def outside_lists(value: Any, at: str = "") -> set[str]:
    """The paths of a JSON value down to its lists."""
    if not isinstance(value, dict):
        return {at}
    return {at}.union(*(outside_lists(each, f"{at}.{name}") for name, each in value.items()))


def test_json_has_the_same_paths_in_every_query() -> None:
    """Catches: a name that one kind of query leaves out, or has alone."""
    names = defaultdict(set)
    said = [explained(name).json() for name in GOLDENS]
    for explanation in said:
        for place, found in places(explanation):
            names[place].add(found)
    assert {place: found for place, found in names.items() if len(found) > 1} == {}
    assert names[""] == {TOP}
    assert len({frozenset(outside_lists(each)) for each in said}) == 1
    assert {query_of(name).mechanism.name for name in GOLDENS} == {each.name for each in MECHANISMS}


@every_query
def test_text_has_the_same_sections(name: str) -> None:
    lines = explained(name).text().splitlines()
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert tuple(titles[:-1]) == SECTIONS
    assert titles[-1] == f"Query identity: {query_of(name).plan.identity}"
    short = re.findall(r"(?m)^  ([A-Z][a-z ]+): {1,}", explained(name).text().split("\n\n")[0])
    limits = ["Limits"] if explained(name).protects.unit else []
    defaults = ["Defaults"] if any(query_of(name).defaults.values()) else []
    left_out = ["Left out"] if explained(name).limits.left_out else []
    parts = ["Protected", "Adds up to", "When", "Keys", "Noise"]
    assert short == [*parts, *limits, *left_out, *defaults]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no object and no list, with the name that it has."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, name)
    else:
        yield name, value


def forms(name: str, value: Any) -> set[str]:
    """How a value of the JSON may be written in the text."""
    if isinstance(value, str):
        return set(re.findall(NUMBER, value))
    if value is None:
        return set()
    if name.endswith("_us"):
        return {duration(value).split()[0]}
    short = (f"{value:g}", f"{value:,}", f"{value:.3g}", f"{value:.2g}", f"{value:.4f}")
    return {number(value), percent(value).removesuffix("%"), *short}


@every_query
def test_numbers_of_the_text_are_in_the_json(name: str) -> None:
    """Catches: a number that people are told and programs are not."""
    said = explained(name).json()
    known = CONSTANTS.union(*(forms(name, value) for name, value in leaves(said)))
    budget = said["budget"]
    if budget["noisy_numbers"]:
        rest = 1 - budget["figures_share"] - budget["selection_share"]
        known |= forms("", rest / budget["noisy_numbers"])
    known |= forms("", len(said["keys"]["tables"]))
    text = explained(name).text().split("\nQuery identity")[0]
    assert set(re.findall(NUMBER, text)) - known == set()


@every_query
def test_the_guarantee_is_the_accountants(name: str) -> None:
    """Catches: a cost or total of another plan, or one that the accountant has not computed."""
    query = query_of(name)
    protects = explained(name).protects
    cost = query.mechanism.account(query.plan, query.source)
    assert (protects.epsilon, protects.delta) == (query.parsed.epsilon, query.parsed.delta)
    assert protects.cost == asdict(cost)
    for total in protects.totals:
        joint = cost.periods(total.count)
        if total.epsilon is None:
            assert total.delta == 1
        else:
            assert joint.delta(total.epsilon) == pytest.approx(total.delta, rel=1e-3, abs=1e-15)


@every_query
def test_limits_and_times_are_the_querys(name: str) -> None:
    """Catches: C without its period, limits of another option, a table with windows."""
    query = query_of(name)
    parsed = query.parsed
    said = explained(name)
    period_us = parsed.windows.size_us if parsed.contribution_period == "WINDOW" else None
    if parsed.contribution_period == "DURATION":
        period_us = parsed.asked.period_us
    renews = bool(parsed.privacy_unit) and period_us is not None
    assert said.protects.unit == parsed.privacy_unit
    assert said.protects.period_us == (period_us if renews else None)
    limits = said.limits
    asked = parsed.asked
    options = ("max_rows_contributed", "max_rows_per_group", "max_groups_contributed")
    bounds = (
        asked.limits
        if query.mechanism.name == "sketch"
        else [getattr(asked, option) for option in options]
    )
    for option, bound in zip(options, bounds, strict=True):
        is_limit = parsed.privacy_unit and bound != math.inf
        assert getattr(limits, option) == (bound if is_limit else None)
    grid = query.shape.schedule.grid
    window = parsed.window
    assert (said.when.window_us, said.when.slide_us) == (
        (window.size_us, window.slide_us) if window else (None, None)
    )
    if window:
        assert said.when.releases == grid.horizon
    if parsed.privacy_unit:
        section = explained(name).text().split("\nLimits\n")[1].split("\n\n")[0]
        period = f" in {duration(period_us)}" if renews else " in the whole stream"
        period = "" if parsed.once else period
        for text in (
            " ".join(section.split()),
            " ".join(explained(name).text().split("\n\n")[0].split()),
        ):
            assert f"of one {', '.join(parsed.privacy_unit)} count{period}" in text


@every_query
def test_budget_is_the_plans(name: str) -> None:
    """Catches: a part of delta, or a share, of another purpose."""
    plan = query_of(name).plan
    budget = explained(name).budget
    assert budget.mu == plan.mu
    selection = getattr(plan, "selection", None)
    left = 1 - budget.figures_share
    assert budget.selection_share == (selection.share * left if selection else 0.0)
    parts = (budget.delta_noise, budget.delta_threshold, budget.delta_hash)
    assert sum(parts) <= plan.delta * (1 + 1e-9) and (plan.delta == 0 or min(parts[:1]) > 0)


def stderrs(errors: tuple[ErrorBar, ...]) -> list[tuple[int, float | None]]:
    return [(error.trigger, error.stderr) for error in errors]


@of_kind("histogram")
def test_histogram_tells_the_errors_and_thresholds_of_its_plan(name: str) -> None:
    """Catches: the last trigger's error told for the first, or a part's for its column's."""
    plan = query_of(name).plan
    for column, planned in zip(explained(name).columns, plan.columns, strict=True):
        parts = planned.perturbations
        if tree := quantiles_of(plan, planned):
            assert stderrs(column.errors) == [(plan.horizon, tree.stderr(1))]
            continue
        ends = [(1, 0), (plan.horizon, -1)][: 1 if plan.horizon == 1 else 2]
        told = [[(trigger, stderr(part)[end]) for trigger, end in ends] for part in parts]
        place = 1 if len(parts) == 3 else 0  # of a spread its squares, of two values their products
        assert stderrs(column.errors) == told[place]
        assert stderrs(column.parts) == (list(itertools.chain(*told)) if len(parts) > 1 else [])
        divisors = {1: "", 2: "n"}
        assert column.last.divisor == divisors.get(len(parts), column.last.divisor)
    if selection := plan.selection:
        needed = {1: selection.thresholds[0], plan.horizon: selection.thresholds[-1]}
        told = [(each.trigger, each.units) for each in explained(name).keys.units_needed]
        assert told == [(i, math.ceil(tau / selection.weights[0])) for i, tau in needed.items()]


@of_kind("sliding")
def test_sliding_windows_tell_the_interval_of_their_noise(name: str) -> None:
    """Catches: a half width with 1.96 where noise is discrete."""
    plan = query_of(name).plan
    measured = iter(plan.measurements)
    for column in explained(name).columns:
        parts = [next(measured) for _ in column.parts or column.errors]
        if column.parts:
            assert stderrs(column.parts) == [(1, part.stderr) for part in parts]
        elif plan.query.asked.grouping == "RETROACTIVE":
            assert stderrs(column.errors) == [(1, None)]
        else:
            (error,) = column.errors
            assert (error.stderr, error.half_width) == (parts[0].stderr, parts[0].half_width)
            if not plan.mu:
                assert error.half_width != pytest.approx(Z95 * error.stderr, rel=1e-6)


@of_kind("dynamic")
def test_running_totals_tell_the_errors_of_their_counters(name: str) -> None:
    """Catches: errors of another trigger, or of another noisy sum."""
    plan = query_of(name).plan
    noise = {each.mechanism: each for each in (*perturbations(plan), *quantile_noise(plan))}
    for column, planned in zip(explained(name).columns, plan.columns, strict=True):
        parts = [noise[part.noise_stream] for part in planned.perturbations]
        place = 1 if len(parts) == 3 else 0
        for error in column.errors:
            assert error.stderr == parts[place].stderr(error.trigger)
        told = [(i, part.stderr(i)) for part in parts for i in triggers(plan.query)]
        assert stderrs(column.parts) == (told if len(parts) > 1 else [])
    for each in explained(name).keys.units_needed:
        assert each.units == users_needed(plan, each.trigger)


@of_kind("marginals")
def test_marginals_tell_every_table(name: str) -> None:
    """Catches: the share or the cells of another table, an error of an answer that nothing covers."""
    plan = query_of(name).plan
    keys = explained(name).keys
    assert sum(table.cells for table in keys.tables) == keys.cells
    assert sum(table.share for table in keys.tables) == pytest.approx(1, abs=1e-4)
    for column, (aggregate, parts) in zip(explained(name).columns, plan.columns, strict=True):
        main = parts[1 if len(parts) == 3 else 0]
        cells = [
            next(
                error
                for error in table.errors
                if error.scope == aggregate.alias and (error.divisor or len(parts) == 1)
            )
            for table in keys.tables
        ]
        variances = plan.noisy_tables(main).variances(triggers(plan.query)[-1])
        assert [error.stderr for error in cells] == [math.sqrt(variance) for variance in variances]
        assert bool(column.errors) is (len(parts) == 1)
        for error in column.errors:
            columns = int(re.findall(r"on (\d) column", error.scope or "")[0])
            exact = typical_error(plan, parts[0], columns, error.trigger)
            assert error.stderr == (exact if math.isfinite(exact) else None)


@of_kind("sketch")
def test_sketches_tell_the_errors_of_estimates(name: str) -> None:
    """Catches: errors of a cell told as those of an estimate."""
    plan = query_of(name).plan
    for column, cells in zip(explained(name).columns, plan.cells, strict=True):
        ends = {1: cells.sd[0], plan.triggers: cells.sd[-1]}
        assert stderrs(column.errors) == [(i, sd * plan.stderr) for i, sd in ends.items()]


@every_query
def test_gaussian_intervals_are_1_96_standard_errors(name: str) -> None:
    if query_of(name).plan.mu:
        tables = explained(name).keys.tables
        of_columns = [
            error for column in explained(name).columns for error in (*column.errors, *column.parts)
        ]
        for error in (*of_columns, *(error for table in tables for error in table.errors)):
            assert (error.stderr is None) is (error.half_width is None)
            assert error.stderr is None or error.half_width == pytest.approx(
                Z95 * error.stderr, rel=1e-6
            )


@pytest.mark.parametrize(
    ("name", "columns", "units", "share"),
    [
        ("people_of_the_demo", {"editors": 18.28}, 54, 0.775),
        (
            "people_rows_and_sum",
            {"editors": 7.564, "edits": 61.67, "characters_added": 19473},
            22,
            0.665,
        ),
        ("people_of_three_keys", {"people": 16.32}, 38, 0.696),
        ("people_of_three_keys_once", {"people": 16.32}, 38, 0.696),
        ("people_of_one_key", {"people": 8.75}, 23, 0.96),
        ("people_of_one_key_once", {"people": 8.75}, 23, 0.96),
    ],
)
def test_people_are_counted_once(
    name: str, columns: dict[str, float], units: int, share: float
) -> None:
    """Catches: a count that is paid for beside the sum which chooses its key: +-19.0, 27.1 and 15.6 people."""
    e = explained(name)
    bars = {column.alias: column.last.half_width for column in e.columns}
    assert bars == {alias: pytest.approx(bar, rel=0.001) for alias, bar in columns.items()}
    assert e.keys.units_needed[-1].units == units
    assert e.budget.selection_share == pytest.approx(share, abs=0.001)
    is_counted = {column.alias: column.on_selection for column in e.columns}
    assert is_counted == {alias: alias != "characters_added" for alias in columns}


def test_equal_counts_print_the_same_numbers() -> None:
    """Catches: people and rows of one each, with noise of their own and a share of the budget each."""
    query = query_of("people_of_rows_of_one_each")
    rows = released(query)
    assert len(query.plan.perturbations) == 1 and rows.num_rows
    for name in ("c1", "c2"):
        assert rows[name].equals(rows["c0"]) and rows[name.replace("c", "s")].equals(rows["s0"])
