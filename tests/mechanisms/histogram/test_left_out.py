"""Figures of what the limits leave out: which a query has, what a unit can add to them, their noise, and which rows of them are told."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import AccountingError
from dpsql.local.feeder import Feeder, recomputed_figures
from dpsql.mechanisms.histogram import accounting
from dpsql.parts.left_out import FigurePlan
from dpsql.sources.config import Source, Sources
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.intake.left_out import BEFORE_TRIGGERS, FIGURES
from dpsql.udfs.keys import PublicGroups, encode
from dpsql.udfs.stage import Clock, Tick
from tests.property.plans import HOUR

DAY = 24 * HOUR
WINDOWS = 2_000
KEY = bytes(range(32))
VISITS = Source(
    name="visits",
    format="parquet",
    path="visits",
    schema="user_id STRING, page STRING, seconds DOUBLE, ts TIMESTAMP",
    event_time="ts",
    privacy_unit=("user_id",),
    start_us=0,
    max_users=100_000,
    max_keys=10_000,
)
PAGES = Source(name="pages", format="csv", path="pages.csv", schema="page STRING", static=True)
PEOPLE = "COUNT(DISTINCT user_id) AS people"
VIEWS = "COUNT(*) AS views"
TOTAL = "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"
TOTAL_EACH = "SUM(seconds, contribution_bounds_per_group => (0, 60)) AS total"
COUNT_EACH = "COUNT(*, contribution_bounds_per_group => (0, 3)) AS counted"


def compiled(
    numbers: str,
    options: str = "max_rows_contributed = 6, max_rows_per_group = 4, max_groups_contributed = 2",
    group: str = "window(ts, '1 day'), page",
    source: Source = VISITS,
) -> dpsql.Query:
    key = "page, " if "page" in group else ""
    group_by = f" GROUP BY {group}" if group else ""
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, {options}) {key}{numbers} FROM visits{group_by}"
    return dpsql.compile(text, Sources((source, PAGES)))


def bounds(query: dpsql.Query) -> dict[str, int]:
    return {figure.name: figure.bound for figure in query.plan.left_out.figures}


UNITS = {"units": 1, "units_over": 1}
PAIRS = {"pairs": 2, "pairs_left_out": 4}
ROWS = {"rows": 6, "rows_left_out": 12}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (VIEWS, UNITS | ROWS),
        (f"{PEOPLE}, {VIEWS}", UNITS | PAIRS | ROWS),
        (TOTAL, UNITS | ROWS | {"values_clamped": 6}),
        (TOTAL_EACH, UNITS | PAIRS | ROWS | {"values_clamped": 2}),
        (f"{TOTAL}, {COUNT_EACH}", UNITS | PAIRS | ROWS | {"values_clamped": 8}),
    ],
)
def test_a_query_has_the_figures_that_its_limits_make(
    numbers: str, expected: dict[str, int]
) -> None:
    assert bounds(compiled(numbers)) == expected


def test_counts_of_people_are_about_keys_alone() -> None:
    people = compiled(PEOPLE, "max_groups_contributed = 2")
    assert bounds(people) == UNITS | PAIRS
    once = compiled(PEOPLE, "max_groups_contributed = 2", group="page")
    assert bounds(once) == UNITS | PAIRS
    assert bounds(compiled(PEOPLE, "max_groups_contributed = 1", group="window(ts, '1 day')")) == {}


def test_sums_of_groups_without_keys_can_be_cut() -> None:
    in_all = compiled(TOTAL_EACH, "max_groups_contributed = 1", group="window(ts, '1 day')")
    assert bounds(in_all) == UNITS | {"values_clamped": 1}


@pytest.mark.parametrize(
    ("options", "group", "reason"),
    [
        ("max_groups_contributed = 2", "window(ts, '2 days', '1 day'), page", "windows slide"),
        (
            "max_groups_contributed = 2, contribution_period = STREAM",
            "window(ts, '1 day'), page",
            "a unit's limits are for the whole stream",
        ),
        (
            "max_groups_contributed = 2, max_rows_contributed = 2, mechanism = PAPER",
            "window(ts, '1 day'), page",
            "rounds have none",
        ),
        (
            "max_groups_contributed = 2, trigger_interval = '1 day'",
            "page",
            "a table without windows has none yet",
        ),
        (
            "privacy_level = EVENT, public_groups = (SELECT page FROM pages)",
            "window(ts, '1 day'), page",
            "one row is protected, and none is refused",
        ),
    ],
)
def test_where_there_are_none_the_explanation_says_why(
    options: str, group: str, reason: str
) -> None:
    numbers = VIEWS if "EVENT" in options else PEOPLE
    explanation = compiled(numbers, options, group).explanation
    assert explanation.limits.left_out == ()
    assert f"No estimate of what the limits leave out: {reason}." in explanation.text()


def test_few_units_have_none() -> None:
    few = compiled(PEOPLE, source=dataclasses.replace(VISITS, max_users=400))
    assert few.plan.left_out.reason == "400 units are too few"


def test_bars_grow_by_less_than_three_percent() -> None:
    """Catches: shares that are taken twice, or for every figure anew."""
    query = compiled(f"{PEOPLE}, {VIEWS}, {TOTAL}")
    few = compiled(f"{PEOPLE}, {VIEWS}, {TOTAL}", source=dataclasses.replace(VISITS, max_users=400))
    for column, other in zip(query.plan.columns, few.plan.columns, strict=True):
        ratio = column.perturbations[0].sd[-1] / other.perturbations[0].sd[-1]
        assert 1.02 < ratio < 1.03
    spent = accounting.recompute(query.plan, VISITS)
    assert query.plan.mu * (1 - 1e-5) < spent.mu <= query.plan.mu


def with_figures(plan: dpsql.PrivacyPlan, figures: Iterable[FigurePlan]) -> dpsql.PrivacyPlan:
    return dataclasses.replace(
        plan, left_out=dataclasses.replace(plan.left_out, figures=tuple(figures))
    )


def test_the_accountant_knows_the_bounds_itself() -> None:
    """Catches: noise for half of what a unit adds, a figure that nobody bounds, noise that two numbers share."""
    plan = compiled(f"{PEOPLE}, {VIEWS}, {TOTAL_EACH}").plan
    accounting.check(plan, VISITS)
    figures = plan.left_out.figures
    half = [dataclasses.replace(each, sigma=each.sigma / 2) for each in figures[-1:]]
    unknown = [dataclasses.replace(each, name="pages") for each in figures[-1:]]
    shared = [dataclasses.replace(each, noise_stream=1) for each in figures[-1:]]
    for last in (half, unknown, shared):
        with pytest.raises(AccountingError):
            accounting.check(with_figures(plan, [*figures[:-1], *last]), VISITS)


def records(users: np.ndarray, keys: np.ndarray, seconds: np.ndarray, ts: np.ndarray) -> pa.Table:
    columns = {"drop": np.zeros(len(users), np.int8), "user": users, "ts": ts, "key": keys}
    columns["key_bytes"] = pa.array([encode([b"%d" % key]) for key in keys], pa.binary())
    return pa.table(columns | {"a0": seconds})


def one_units_records(keys: int, each: int, at: int, generator: np.random.Generator) -> pa.Table:
    size = keys * each
    order = generator.permutation(size)
    return records(
        np.full(size, 77),
        np.repeat(np.arange(keys) + 1000 << 40, each)[order],
        generator.choice([-5.0, 20.0, 99.0], size),
        at + generator.integers(0, HOUR, size),
    )


def totals(query: dpsql.Query, batches: list[pa.Table]) -> Counter[tuple[int, int]]:
    """Figures that the real intake counts, by window and number, over micro-batches of two buckets."""
    intake, _ = query.mechanism.stages(query.plan, query.facts(None))
    clock = Clock(NO_CLOCK, 1 << 61)
    counts = Counter[tuple[int, int]]()
    for bucket in (0, 1):
        state = intake.empty()
        for batch in batches:
            rows = batch.filter(pa.array(batch["user"].to_numpy() % 2 == bucket))
            stepped = intake.step(state, rows, clock, KEY)
            state = stepped.state
            for row in stepped.rows.to_pylist():
                if row["trigger"] == BEFORE_TRIGGERS:
                    counts[row["window"], row["key_bytes"][0]] += row["users"]
    return counts


@pytest.mark.parametrize("group", ["window(ts, '1 day'), page", "page"])
@pytest.mark.parametrize(
    "numbers",
    [PEOPLE, VIEWS, f"{PEOPLE}, {TOTAL}", TOTAL_EACH, COUNT_EACH, f"{TOTAL}, {COUNT_EACH}"],
)
def test_the_worst_neighbour_adds_its_bounds_and_no_more(numbers: str, group: str) -> None:
    """Catches: a bound of the step that is not the accountant's; a unit, or a group that is cut, that is counted again in each micro-batch."""
    rows = (
        ""
        if numbers in (PEOPLE, COUNT_EACH)
        else "max_rows_contributed = 6, max_rows_per_group = 4, "
    )
    query = compiled(numbers, f"{rows}max_groups_contributed = 2", group)
    generator = np.random.default_rng(3)
    others = [
        records(*(generator.integers(1, high, 60) for high in (20, 9)), np.full(60, 99.0), ts)
        for ts in (np.zeros(60, np.int64), np.full(60, HOUR))
    ]
    worst = [one_units_records(20, 9, at, generator) for at in (0, HOUR, 2 * HOUR)]
    with_unit = totals(
        query, [pa.concat_tables([*others, *worst[:1]]), *worst[1:], others[0].slice(0, 0)]
    )
    without = totals(query, [pa.concat_tables(others)])
    added = {number: with_unit[0, number] - without[0, number] for number in range(len(FIGURES))}
    expected = {FIGURES.index(name): most for name, most in bounds(query).items()}
    clamped = FIGURES.index("values_clamped")
    assert {number: n for number, n in added.items() if n and number != clamped} == {
        number: most for number, most in expected.items() if number != clamped
    }
    least = 2 if numbers in (TOTAL_EACH, COUNT_EACH) else 0
    assert least <= added[clamped] <= expected.get(clamped, 0)


def test_noise_is_as_planned() -> None:
    """Catches: sigma of another figure, noise that figures or windows share, an amount that is not rounded once. Over 2,000 windows."""
    query = compiled(f"{PEOPLE}, {TOTAL}")
    stages = query.mechanism.stages(query.plan, query.facts(None))
    figures = query.plan.left_out.figures
    schema = stages[1].takes
    rows = {field.name: np.zeros(WINDOWS * len(figures), np.int64) for field in schema}
    rows["window"] = np.tile(np.arange(WINDOWS) * DAY, len(figures))
    rows["users"] = np.repeat(np.arange(len(figures)) + 100, WINDOWS)
    names = [bytes([FIGURES.index(figure.name)]) for figure in figures]
    rows["key_bytes"] = pa.array([name for name in names for _ in range(WINDOWS)], pa.binary())
    released = stages[1].step(
        stages[1].empty(), pa.table(rows, schema), [Tick(0, WINDOWS * DAY)], KEY
    )
    amounts = np.stack([np.frombuffer(b, "<i8") for b in released.rows["left_out"].to_pylist()])
    exact = np.arange(len(figures)) + 100
    scaled = (amounts - exact) / [figure.stderr for figure in figures]
    assert scaled.shape == (WINDOWS, 7)
    assert np.abs(scaled.mean(axis=0)).max() < 0.11  # 5 deviations of a mean of 2,000
    assert np.abs(scaled.std(axis=0) - 1).max() < 0.08
    neighbours = np.hstack([scaled[:-1], scaled[1:]])
    assert np.abs(np.corrcoef(neighbours.T) - np.eye(14)).max() < 0.12


def frame(days: Iterable[int], users: int, keys: int = 1) -> pd.DataFrame:
    rows = [
        {
            "user_id": f"u{user}",
            "page": f"p{key}",
            "seconds": 5.0,
            "ts": pd.Timestamp(day, unit="D"),
        }
        for day in days
        for user in range(users)
        for key in range(keys)
    ]
    return pd.DataFrame(rows).assign(ts=lambda rows: rows.ts.dt.tz_localize("UTC"))


def answered(query: str, rows: pd.DataFrame, tmp_path: object, **options: object) -> dpsql.Answer:
    return dpsql.query(
        query, rows, unit="user_id", time="ts", secret=f"{tmp_path}/secret", **options
    )


SELECT = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_groups_contributed = 2)"


def test_a_window_without_rows_has_no_figures(tmp_path: object) -> None:
    """Catches: a row of figures that tells of records where no key was released."""
    text = f"{SELECT} page, {PEOPLE} FROM t GROUP BY window(ts, '1 day'), page"
    rows = pd.concat([frame([1, 3], 400), frame([2], 3)])
    answer = answered(text, rows, tmp_path, until="1970-01-09")
    days = {start[:10] for start in answer.left_out["window_start"]}
    assert days == {"1970-01-02", "1970-01-04"}
    assert set(answer.all_rows["window_start"].dt.strftime("%Y-%m-%d")) == days


def test_one_release_always_has_figures(tmp_path: object) -> None:
    """Catches: figures that are there only where somebody was."""
    text = f"{SELECT} page, {PEOPLE} FROM t GROUP BY page"
    answer = answered(text, frame([1], 1), tmp_path)
    assert answer.rows.empty and len(answer.left_out) == 1
    assert "units (user_id)" in repr(answer)


def test_figures_tell_what_the_limits_took(tmp_path: object) -> None:
    text = f"{SELECT} page, {PEOPLE} FROM t GROUP BY page"
    (row,) = answered(text, frame([1], 2_000, keys=3), tmp_path).left_out.to_dict("records")
    truth = {"units": 2_000, "units_over": 2_000, "pairs": 4_000, "pairs_left_out": 2_000}
    assert set(row) == {*truth, *(f"{name}_stderr" for name in truth)}
    for name, exact in truth.items():
        assert abs(row[name] - exact) < 5 * row[f"{name}_stderr"]


@pytest.mark.parametrize("buckets", [(1, 1), (2, 3)])
def test_listed_keys_have_figures_in_windows_without_records(buckets: tuple[int, int]) -> None:
    """Catches: windows whose figures are missing, which tells that nobody came, or are told by every bucket, with noise of the same cells."""
    query = compiled(
        PEOPLE,
        "max_groups_contributed = 1, public_groups = (SELECT page FROM pages)",
        source=VISITS,
    )
    public = PublicGroups((5, 8), (encode([b"a"]), encode([b"b"])), 0)
    intake, release = query.mechanism.stages(query.plan, query.facts(public))
    feeder = Feeder((intake, release), KEY, buckets)
    released = feeder.tick(DAY)
    feeder.micro_batch(
        records(np.arange(4), np.full(4, 5), np.zeros(4), np.full(4, 2 * DAY)).select(
            [name for name in intake.takes.names]
        ),
        Clock(DAY, 1 << 61),
    )
    released += feeder.tick(4 * DAY)
    figures = recomputed_figures(query.plan, released)
    assert figures is not None
    days = [start.day for start in figures["window_start"].to_pylist()]
    assert days == [1, 2, 3, 4]
