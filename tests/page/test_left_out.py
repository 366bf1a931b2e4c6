"""What the limits left out, in words: each sentence says what the figures say, and where they say nothing, so do the words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import dpsql
from benchmarks import left_out as benchmark
from dpsql.description import LEFT_OUT_ATTRIBUTE, STDERR
from dpsql.published.public_rows import PublicRows
from dpsql.sources.config import Source, Sources
from dpsql.view.left_out import estimates
from dpsql.view.words import left_out

SOURCE = Source(
    name="visits",
    format="parquet",
    path="visits",
    schema="user_id STRING, page STRING, seconds DOUBLE, ts TIMESTAMP",
    event_time="ts",
    privacy_unit=("user_id",),
    start_us=0,
)
OPTIONS = "epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_groups_contributed = 2"
ROWS = ", max_rows_contributed = 6, max_rows_per_group = 4"
PEOPLE = "COUNT(DISTINCT user_id) AS people"
VIEWS = "COUNT(*) AS views"
TOTAL_EACH = "SUM(seconds, contribution_bounds_per_group => (0, 60)) AS total_each"
TOTAL = "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"


def compiled(text: str) -> dpsql.Query:
    return dpsql.compile(f"SELECT WITH DIFFERENTIAL_PRIVACY {text}", Sources((SOURCE,)))


def sentences(numbers: str, options: str = OPTIONS, keys: int = 9, **figures: int) -> list[str]:
    """The words below a one-time release with some figures, of which each has a standard error of 10."""
    query = compiled(f"OPTIONS ({options}) page, {numbers} FROM visits GROUP BY page")
    assert set(figures) == {each.name for each in query.plan.left_out.figures}
    rows = PublicRows.describe(pd.DataFrame({"page": range(keys)}), query.published)
    errors = {f"{name}_{STDERR}": 10.0 for name in figures}
    rows.frame.attrs[LEFT_OUT_ATTRIBUTE] = json.dumps([figures | errors])
    return list(estimates(rows))


def test_people_lack_pairs() -> None:
    lines = sentences(PEOPLE, units=10_000, units_over=330, pairs=11_000, pairs_left_out=320)
    assert lines == [
        "Between 3.0% and 3.6% of units (user_id) have more than 2 values of page.",
        "At least 2.6% of the pairs of a unit and a key are left out.",
    ]


def test_what_is_not_clear_is_an_upper_end() -> None:
    figures = {"units": 10_000, "units_over": -7, "pairs": 11_000, "pairs_left_out": 12}
    assert sentences(PEOPLE, **figures) == [
        "Fewer than 0.20% of units (user_id) have more than 2 values of page.",
        "Fewer than 0.29% of the pairs of a unit and a key are left out, counting at most 4 of each unit.",
    ]
    assert sentences(PEOPLE, keys=2, **figures) == []  # nobody lacks one of two keys


def test_a_share_that_could_be_most_is_not_told() -> None:
    """Catches: fewer than 60%, which reads like a loss of 60%."""
    lines = sentences(PEOPLE, units=200, units_over=0, pairs=30, pairs_left_out=12)
    assert lines == ["Fewer than 9.9% of units (user_id) have more than 2 values of page."]
    (line,) = sentences(PEOPLE, units=60, units_over=15, pairs=60, pairs_left_out=15)
    assert line == "There are too few units (user_id) for an estimate of what the limits left out."


def test_rows_and_clamped_values() -> None:
    figures = {"units": 10_000, "units_over": 1_000, "rows": 18_000, "rows_left_out": 2_000}
    lines = sentences(TOTAL, OPTIONS + ROWS, **figures, values_clamped=3_600)
    assert lines == [
        "Between 9.7% and 10.3% of units (user_id) have more records than may count.",
        "At least 9.9% of the records are left out.",
        "Between 19.8% and 20.2% of the values that count were clamped to 0 or 60.",
    ]


def test_clamped_sums_are_of_pairs() -> None:
    figures = {"units": 10_000, "units_over": 0, "pairs": 18_000, "pairs_left_out": 0}
    lines = sentences(TOTAL_EACH, **figures, values_clamped=3_600)
    assert lines[-1] == (
        "Between 19.8% and 20.2% of the sums of a unit and key were clamped to 0 or 60."
    )
    rows = {"rows": 18_000, "rows_left_out": 0}
    lines = sentences(
        f"{TOTAL}, {TOTAL_EACH}", OPTIONS + ROWS, **figures, **rows, values_clamped=3_600
    )
    assert lines[-1].startswith(
        "Between 9.9% and 10.1% of the values that count and sums of a unit and key were"
    )
    assert "100% or" not in sentences(TOTAL_EACH, **figures, values_clamped=18_600)[-1]


def test_people_beside_rows_are_named() -> None:
    figures = {"units": 10_000, "units_over": 1_000, "pairs": 11_000, "pairs_left_out": 640}
    lines = sentences(f"{PEOPLE}, {VIEWS}", OPTIONS + ROWS, **figures, rows=18_000, rows_left_out=0)
    assert lines[1] == "At least 5.3% of the pairs of a unit and a key are left out."
    assert lines[2].startswith("Fewer than 0.11% of the records are left out, counting at most 12")


@pytest.mark.parametrize("text", [PEOPLE, f"{PEOPLE} FROM visits GROUP BY window(ts, '1 day')"])
def test_a_count_of_units_without_keys_has_no_limits(text: str) -> None:
    """Catches: a warning of limits below a number that no limit touches."""
    text = text if "FROM" in text else f"{text} FROM visits"
    published = compiled(f"OPTIONS ({OPTIONS}{ROWS}) {text}").published
    assert left_out(published) == ("± is 95% of the noise.",)
    assert left_out(compiled(f"OPTIONS ({OPTIONS}{ROWS}) {text.replace(PEOPLE, VIEWS)}").published)[
        1
    ]
    figures = {"units": 1_000, "units_over": 500, "rows": 1_000, "rows_left_out": 900}
    frame = pd.DataFrame({"people": [1_000], "trigger": 1})
    frame.attrs[LEFT_OUT_ATTRIBUTE] = json.dumps(
        [figures | {f"{name}_{STDERR}": 10.0 for name in figures}]
    )
    assert estimates(PublicRows.describe(frame, replace(published, windows=None))) == ()


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_sentences_are_false_in_few_secrets(share: float) -> None:
    """Catches: a point estimate behind `at least`; an error that shrinks where the noisy number is large.

    Of 2,000 secrets a true sentence is false in 92 or more with probability 1e-7 (2.5% each, 20 kinds and two cells: 5e-6)."""
    cell = benchmark.Cell(3_000, share)
    found = benchmark.counts(cell, benchmark.drawn(cell, 2_000))
    assert found["Fewer than: records", False] > 100  # something is said
    assert max(count for (_, wrong), count in found.items() if wrong) < 92
    assert sum(count for (kind, _), count in found.items() if kind.startswith("At least")) > 100


def test_true_figures_of_the_table_are_those_of_queries(tmp_path: Path) -> None:
    """Catches: a cell of the table whose truth is not that of its records."""
    cell = benchmark.Cell(3_000, 0.1)
    session = dpsql.session(cell.records(), unit="user_id", secret=tmp_path / "secret")
    (found,) = session.query(benchmark.SQL, **benchmark.OPTIONS).left_out.to_dict("records")
    for name, value in cell.figures.items():
        assert abs(found[name] - value) < 6 * found[f"{name}_{STDERR}"]


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (
            12,
            "At most 32 units (user_id) in all: there are few, or their records do not fit the schema.",
        ),
        (30, "There are too few units (user_id) for an estimate of what the limits left out."),
    ],
)
def test_few_units_say_so(units: int, said: str) -> None:
    assert sentences(PEOPLE, units=units, units_over=3, pairs=20, pairs_left_out=5) == [said]
