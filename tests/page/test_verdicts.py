"""Differences and places of all records: hardly any is wrong, on crowds of six kinds with the truth at hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql.description import Measure
from dpsql.parsed_query import AggregateFunction
from dpsql.published.public_rows import PublicRows
from dpsql.view.difference import MOST_SHORTFALL, Of, difference, places, shortfall
from dpsql.view.left_out import LeftOut
from dpsql.view.table import known_shortfall

PEOPLE = 12_000
LARGEST = 20
SEEDS = 3
KEYS = {"few keys": 1.2, "some keys": 1.6, "many keys": 3.0}
"""Keys of one person on average, of which three count."""


def crowd(
    mean_keys: float, crawlers: float, in_time: bool, generator: np.random.Generator
) -> pd.DataFrame:
    """Visits of people, whose keys are drawn by their popularity; crawlers visit 40 keys, most of them the same five. `in_time`: some keys come
    late in each person's day."""
    popularity = np.arange(1, 61) ** -0.9
    popularity /= popularity.sum()
    sizes = generator.geometric(1 / mean_keys, PEOPLE)
    sizes = np.minimum(sizes, 40)
    is_crawler = generator.random(PEOPLE) < crawlers
    sizes[is_crawler] = 40
    person = np.repeat(np.arange(PEOPLE), sizes)
    key = generator.choice(60, len(person), p=popularity)
    favours = is_crawler[person] & (generator.random(len(person)) < 0.7)
    key[favours] = generator.integers(5, 10, favours.sum())
    hour = generator.uniform(0, 24, len(person))
    if in_time:
        hour = np.clip(hour / 2 + key % 2 * 12, 0, 23.9)
    return pd.DataFrame(
        {
            "user_id": person.astype(str),
            "page": key,
            "ts": pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(hour, unit="h"),
        }
    )


def released(visits: pd.DataFrame, window: str, secret: Path) -> PublicRows:
    group = f"window(ts, '{window}'), page" if window else "page"
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_groups_contributed = 3) "
        f"page, COUNT(DISTINCT user_id) AS people FROM visits GROUP BY {group}"
    )
    until = "2026-01-03" if window else None
    answer = dpsql.query(text, visits, unit="user_id", time="ts", secret=secret, until=until)
    return PublicRows.of_frame(answer.all_rows)


def verdicts(rows: PublicRows, truth: pd.Series) -> Iterator[tuple[Of | None, bool]]:
    """Yield, for pairs of the largest keys, of which records the difference is one, and whether the truth is another."""
    share = known_shortfall(rows, "people")
    largest = rows.frame.nlargest(LARGEST, "people").to_dict("records")
    for one, other in itertools.combinations(largest, 2):
        change = difference(
            one["people"], one["people_stderr"], other["people"], other["people_stderr"], 0.0
        )
        is_wrong = (truth[one["page"]] - truth[other["page"]]) * change.value <= 0
        yield change.verdict(min(one["people"], other["people"]), share), bool(is_wrong)


CROWDS = {
    ("few keys", 0.0): True,
    ("few keys", 0.005): True,
    ("few keys", 0.03): False,
    ("some keys", 0.0): True,
    ("many keys", 0.0): False,
    ("many keys", 0.005): False,
}
"""Keys and share of crawlers; False: a tenth of the pairs or more may be left out, so nothing is said of all records."""


@pytest.mark.parametrize(("kind", "crawlers"), CROWDS)
def test_few_differences_of_all_records_are_wrong(
    kind: str, crawlers: float, tmp_path: Path
) -> None:
    """Catches: a loss that is judged by what is estimated instead of what it may be, and a rule that never speaks."""
    told = []
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        visits = crowd(KEYS[kind], crawlers, seed == 2, generator)
        truth = visits.groupby("page")["user_id"].nunique()
        told += verdicts(released(visits, "1 day" * (seed > 0), tmp_path / "secret"), truth)
    of_all = [is_wrong for of, is_wrong in told if of is Of.ALL]
    assert sum(of_all) <= 0.05 * len(of_all)
    assert bool(of_all) == CROWDS[kind, crawlers]


def left_out(pairs: int, pairs_left_out: int, stderr: float, rows: PublicRows) -> LeftOut:
    figures = {"pairs": pairs, "pairs_left_out": pairs_left_out}
    errors = {f"{name}_stderr": stderr for name in figures}
    return LeftOut(figures | errors, rows.description.protects[-1])


def test_what_may_be_left_out_is_what_counts(tmp_path: Path) -> None:
    """Catches: a shortfall without the noise of its two figures; a rule for sums, of which one robot can lose half."""
    rows = released(crowd(1.2, 0, False, np.random.default_rng(5)), "", tmp_path / "secret")
    people = next(iter(rows.description.measures))
    assert shortfall(left_out(1_000, 50, 10, rows), people, units=True) == pytest.approx(
        (50 + 19.6) / (1_000 - 19.6), rel=1e-3
    )
    assert shortfall(left_out(1_000, 90, 10, rows), people, units=True) is None
    assert shortfall(left_out(1_000, -90, 1, rows), people, units=True) == 0
    assert shortfall(None, people, units=True) is None
    count = Measure("views", AggregateFunction.COUNT_ROWS, True, None, 1.0)
    assert shortfall(left_out(1_000, 0, 1, rows), count, units=True) is None
    assert shortfall(None, count, units=False) == 0


def test_a_difference_of_all_records_has_the_margin() -> None:
    change = difference(130.0, 5.0, 100.0, 5.0, 0.0)
    assert change.verdict(100.0, None) is Of.COUNTED
    assert change.verdict(100.0, 0.05) is Of.ALL
    assert change.verdict(100.0, 0.09) is Of.COUNTED
    assert difference(110.0, 5.0, 100.0, 5.0, 0.0).verdict(100.0, 0.0) is None


def test_places_have_the_margin() -> None:
    """Catches: places of all records by noise alone."""
    values = np.array([130.0, 100.0, 40.0])
    stderrs = np.full(3, 4.0)
    best, worst = places(values, stderrs, 3)
    assert list(zip(best, worst, strict=True)) == [(1, 1), (2, 2), (3, 3)]
    best, worst = places(values, stderrs, 3, MOST_SHORTFALL)
    assert list(zip(best, worst, strict=True)) == [(1, 2), (1, 2), (3, 3)]
