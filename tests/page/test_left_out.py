"""What the limits left out, in words: each sentence says what the figures say, and where they say nothing, so do the words."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import dpsql
from dpsql.description import LEFT_OUT_ATTRIBUTE, STDERR
from dpsql.published.public_rows import PublicRows
from dpsql.sources.config import Source, Sources
from dpsql.view.left_out import estimates

SOURCE = Source(
    name="visits",
    format="parquet",
    path="visits",
    schema="user_id STRING, page STRING, seconds DOUBLE, ts TIMESTAMP",
    event_time="ts",
    privacy_unit=("user_id",),
)
OPTIONS = "epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_groups_contributed = 2"
ROWS = ", max_rows_contributed = 6, max_rows_per_group = 4"
PEOPLE = "COUNT(DISTINCT user_id) AS people"
VIEWS = "COUNT(*) AS views"
TOTAL_EACH = "SUM(seconds, contribution_bounds_per_group => (0, 60)) AS total_each"
TOTAL = "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"


def sentences(numbers: str, options: str = OPTIONS, **figures: int) -> list[str]:
    """The words below a one-time release with some figures, of which each has a standard error of 10."""
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) page, {numbers} FROM visits GROUP BY page"
    query = dpsql.compile(text, Sources((SOURCE,)))
    assert set(figures) == {each.name for each in query.plan.left_out.figures}
    rows = PublicRows.describe(pd.DataFrame(), query.published)
    errors = {f"{name}_{STDERR}": 10.0 for name in figures}
    rows.frame.attrs[LEFT_OUT_ATTRIBUTE] = json.dumps([figures | errors])
    return list(estimates(rows))


def test_people_lack_pairs() -> None:
    (line,) = sentences(PEOPLE, units=10_000, units_over=330, pairs=11_000, pairs_left_out=320)
    assert line == (
        "About 3.3% (3.1 to 3.5%) of units (user_id) have more than 2 values of page; "
        "the counts above are too low by at least 2.8% on average."
    )


def test_what_is_not_clear_is_an_upper_end() -> None:
    (line,) = sentences(PEOPLE, units=10_000, units_over=-7, pairs=11_000, pairs_left_out=12)
    assert line == (
        "Fewer than 0.2% of units (user_id) have more than 2 values of page; the counts above are too low by less than 0.3% on average, "
        "as far as this capped estimate shows."
    )


def test_a_share_that_could_be_most_is_not_told() -> None:
    """A bar of 60% of few units says nothing, and reads like a loss of 60%."""
    (line,) = sentences(PEOPLE, units=200, units_over=0, pairs=30, pairs_left_out=12)
    assert line == (
        "Fewer than 9.8% of units (user_id) have more than 2 values of page; "
        "there are too few units to say how much too low the counts above are."
    )


def test_few_very_active_units_are_named() -> None:
    lines = sentences(PEOPLE, units=10_000, units_over=300, pairs=11_000, pairs_left_out=640)
    assert lines[1] == (
        "A few units are very active: this estimate includes at most 4 left-out pairs of each, so much more can be missing."
    )


def test_rows_and_clamped_values() -> None:
    figures = {"units": 10_000, "units_over": 1_000, "rows": 18_000, "rows_left_out": 2_000}
    lines = sentences(TOTAL, OPTIONS + ROWS, **figures, values_clamped=3_600)
    assert lines == [
        "About 10.0% (9.8 to 10.2%) of units (user_id) have more records than may count; at least 10% of the records are left out.",
        "About 20.0% (19.9 to 20.1%) of the values that count were clamped to 0 or 60.",
    ]


def test_clamped_sums_are_of_pairs() -> None:
    figures = {"units": 10_000, "units_over": 0, "pairs": 18_000, "pairs_left_out": 0}
    lines = sentences(TOTAL_EACH, **figures, values_clamped=3_600)
    assert lines[-1] == (
        "About 20.0% (19.9 to 20.1%) of the sums of a unit and key were clamped to 0 or 60."
    )
    rows = {"rows": 18_000, "rows_left_out": 0}
    lines = sentences(
        f"{TOTAL}, {TOTAL_EACH}", OPTIONS + ROWS, **figures, **rows, values_clamped=3_600
    )
    assert lines[-1].startswith(
        "About 10.0% (9.9 to 10.1%) of the values that count and sums of a unit and key were"
    )


def test_people_beside_rows_are_named() -> None:
    figures = {"units": 10_000, "units_over": 1_000, "pairs": 11_000, "pairs_left_out": 640}
    lines = sentences(f"{PEOPLE}, {VIEWS}", OPTIONS + ROWS, **figures, rows=18_000, rows_left_out=0)
    assert lines[0] == "The numbers of people above are too low by at least 5.5% on average."
    assert lines[1].endswith("fewer than 0.1% of the records are left out.")


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (
            12,
            "At most 32 units (user_id) in all: too few to release, or the records do not fit the schema.",
        ),
        (30, "There are too few units (user_id) for an estimate of what the limits left out."),
    ],
)
def test_few_units_say_so(units: int, said: str) -> None:
    assert sentences(PEOPLE, units=units, units_over=3, pairs=20, pairs_left_out=5) == [said]
