"""What a query need not say: with and without the default written it is one query, and `explain` names each default that decides something."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.compiled import Query, compile_query
from dpsql.errors import QueryError
from dpsql.parts.hash_charge import HASH_SHARE
from dpsql.sources.config import Source, load_sources
from tests.sql.golden import Golden, goldens, sources

DECLARED = load_sources(
    {
        "visits": {
            "format": "parquet",
            "path": "visits",
            "schema": "user_id STRING, url STRING, ts TIMESTAMP, seconds DOUBLE, status INT",
            "event_time": "ts",
            "privacy_unit": "user_id",
            "start": "2026-01-01",
        },
        "pages": {"format": "parquet", "path": "pages", "schema": "url STRING", "static": True},
    }
)
DAY = "GROUP BY window(ts, '1 day')"
SLIDING = "GROUP BY window(ts, '7 days', '1 day')"
TABLE = "trigger_interval = '1 day'"


def asked(options: str, columns: str, groups: str = f"{DAY}, url") -> Query:
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {columns} FROM visits {groups}"
    return compile_query(text, DECLARED)


# What is left out, and what it becomes: options, columns, GROUP BY, and the same with all written.
PEOPLE = "COUNT(DISTINCT user_id) AS n"
SUMS = "SUM(seconds, contribution_bounds_per_group => (0, 60)) AS n"
ROWS = "COUNT(*) AS n"
ALL = "delta = 1e-9, privacy_unit_column = user_id"
SAME = {
    "delta and unit": ("max_rows_contributed = 4", f"url, {ROWS}", f"{DAY}, url", ALL),
    "rows by key": (
        "",
        f"url, {ROWS}",
        f"{DAY}, url",
        f"{ALL}, max_rows_contributed = 16, max_rows_per_group = 2, max_groups_contributed = 8",
    ),
    "G is written": (
        "max_groups_contributed = 3",
        f"url, {ROWS}",
        f"{DAY}, url",
        "max_rows_contributed = 6, max_rows_per_group = 2",
    ),
    "c is written": (
        "max_rows_per_group = 5",
        f"url, {ROWS}",
        f"{DAY}, url",
        "max_rows_contributed = 40, max_groups_contributed = 8",
    ),
    "people by key": ("", f"url, {PEOPLE}", f"{DAY}, url", "max_groups_contributed = 8"),
    "sums per group": ("", f"url, {SUMS}", f"{DAY}, url", "max_groups_contributed = 8"),
    "rows without a key": ("", ROWS, DAY, "max_rows_contributed = 64"),
    "people in the paper's mechanism": (
        "mechanism = PAPER",
        f"url, {PEOPLE}",
        f"{DAY}, url",
        "max_rows_contributed = 8, max_rows_per_group = 1, max_groups_contributed = 8",
    ),
    "a stream without a key": (
        "contribution_period = STREAM",
        ROWS,
        DAY,
        "max_rows_contributed = 64",
    ),
    "a growing table": (
        TABLE,
        f"url, {ROWS}",
        "GROUP BY url",
        "max_rows_contributed = 16, max_rows_per_group = 2, max_groups_contributed = 8",
    ),
    "a growing table without a key": (TABLE, ROWS, "", "max_rows_contributed = 64"),
    "a list of values": (
        "",
        "APPROX_TOP_COUNT(url, 5) AS top",
        DAY,
        "max_rows_contributed = 16, max_rows_per_group = 2, max_groups_contributed = 8",
    ),
    "one event": ("privacy_level = EVENT", ROWS, DAY, "delta = 1e-9"),
    "panes": ("delta = 0", ROWS, SLIDING, "max_rows_contributed = 64"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_default_is_what_it_would_be_written(name: str) -> None:
    """Catches: a default that the plan, or the identity, knows from the value itself."""
    options, columns, groups, rest = SAME[name]
    short = asked(", ".join(filter(None, ("epsilon = 1", options))), columns, groups)
    long = asked(", ".join(filter(None, ("epsilon = 1", options, rest))), columns, groups)
    assert short.parsed == long.parsed and short.plan.identity == long.plan.identity


def test_names_and_places_are_what_they_would_be_written() -> None:
    short = asked(
        "epsilon = 1",
        "upper(url), COUNT(*), COUNT(*), AVG(seconds, contribution_bounds_per_row => (0, 9))",
        f"{DAY}, 1",
    )
    names = "upper(url) AS upper_url, COUNT(*) AS count, COUNT(*) AS count_2"
    long = asked(
        "epsilon = 1",
        f"{names}, AVG(seconds, contribution_bounds_per_row => (0, 9)) AS avg_seconds",
        f"{DAY}, upper_url",
    )
    assert short.parsed == long.parsed
    every = asked(f"epsilon = 1, {TABLE}", f"url, status, {ROWS}", "GROUP BY ALL")
    assert (
        every.parsed
        == asked(f"epsilon = 1, {TABLE}", f"url, status, {ROWS}", "GROUP BY url, 2").parsed
    )


@pytest.mark.parametrize(
    ("columns", "groups", "told"),
    [
        (
            f"url, {ROWS}",
            f"{DAY}, url",
            "at most 8 values of url, 2 rows each (max_groups_contributed, max_rows_per_group).",
        ),
        (f"url, {PEOPLE}", f"{DAY}, url", "at most 8 values of url (max_groups_contributed)."),
        (ROWS, DAY, "at most 64 rows of a unit (max_rows_per_group)."),
        (SUMS, DAY, "delta = 1e-09 (10,000,000 units)."),
    ],
)
def test_defaults_are_told(columns: str, groups: str, told: str) -> None:
    query = asked("epsilon = 1", columns, groups)
    said = " ".join(query.explain().split("\n\n")[0].split())
    assert "Defaults: delta = 1e-09 (10,000,000 units)" in said and told in said
    assert query.explain_json()["limits"]["defaults"] == dict(query.defaults)
    whole = asked(f"epsilon = 1, {ALL}, max_rows_contributed = 4", columns, groups)
    assert "Defaults:" not in whole.explain() and not any(whole.defaults.values())


def test_without_a_key_a_number_of_groups_has_no_meaning() -> None:
    plain, written = (
        asked(f"epsilon = 1{more}", ROWS, DAY) for more in ("", ", max_groups_contributed = 3")
    )
    assert plain.parsed == written.parsed


def test_people_and_sums_without_a_key_are_not_cut_by_rows() -> None:
    """Catches: 64 rows of a unit, where the bounds say what all its rows add: 1,600 of 5,000 would be released."""
    for columns in (SUMS, PEOPLE, f"{SUMS}, {PEOPLE.replace(' n', ' people')}"):
        for groups, places in ((DAY, 1), (SLIDING, 2)):
            bounds = asked("epsilon = 1", columns, groups).parsed.asked
            assert (bounds.max_rows_contributed, bounds.max_groups_contributed) == (
                math.inf,
                places,
            )


def test_rows_beside_bounds_per_group_have_to_be_written() -> None:
    """Catches: two rows of a unit, by default, beside a sum that promises all of them."""
    for columns in (
        f"{SUMS}, COUNT(*) AS m",
        f"{SUMS}, AVG(seconds, contribution_bounds_per_row => (0, 1)) AS m",
    ):
        for groups in (DAY, f"{DAY}, url"):
            with pytest.raises(QueryError, match="needs a number of them"):
                asked("epsilon = 1", f"url, {columns}" if "url" in groups else columns, groups)
    assert asked("epsilon = 1, max_rows_per_group = 2", f"{SUMS}, COUNT(*) AS m", DAY)


def test_a_feed_says_how_many_rows_of_a_unit_may_be_there() -> None:
    with pytest.raises(QueryError, match="max_rows_contributed is required"):
        compile_query(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, trigger_interval = '1 day') COUNT(*) AS n FROM accounts",
            sources(),
        )


@settings(max_examples=60, deadline=None)
@given(
    users=st.integers(1, 10**10),
    keys=st.integers(1, 10**9),
    groups=st.integers(1, 100),
    slides=st.integers(1, 30),
)
def test_delta_is_small_and_pays_for_colliding_ids(
    users: int, keys: int, groups: int, slides: int
) -> None:
    """Catches: a default that the plan refuses; one that some people need not fear; a copy of the charge that is another one."""
    visits: Source = replace(DECLARED["visits"], max_users=users, max_keys=keys)
    query = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, max_groups_contributed = {groups}) url, COUNT(*) AS n "
        f"FROM visits GROUP BY window(ts, '{slides} days', '1 day'), url"
    )
    plan = compile_query(query, {"visits": visits}).plan
    assert plan.delta_hash <= HASH_SHARE * plan.delta
    assert plan.delta <= max(1e-6, 100 * plan.delta_hash) and plan.delta >= 0.01 / max(users, 10**4)


OPTION = re.compile(
    r"(delta|privacy_unit_column|max_rows_contributed|max_rows_per_group|max_groups_contributed)\s*=\s*(\([^()]*\)|[^,()\s]+)\s*,?\s*"
)


def test_epsilon_is_the_one_option_to_say() -> None:
    """Catches: a second option that a first query has to have."""
    assert asked("epsilon = 1", "url, COUNT(*)", "GROUP BY url")
    with pytest.raises(QueryError) as caught:
        asked("", "url, COUNT(*)", "GROUP BY url")
    assert [problem.message for problem in caught.value.problems] == [
        "The option epsilon is required"
    ]


@pytest.mark.parametrize("golden", goldens("accepted"), ids=lambda golden: golden.stem)
def test_options_can_be_left_out_one_by_one(golden: Golden) -> None:
    """Catches: a query that says less and is refused, or planned with a number that it does not have."""
    for found in OPTION.finditer(golden.text):
        text = golden.text[: found.start()] + golden.text[found.end() :]
        text = re.sub(r",\s*\)", ")", text)
        try:
            query = compile_query(text, sources())
        except QueryError as refused:
            assert re.search(
                "max_rows_contributed is required|needs a number of them|must be above 0|at most max_rows_contributed|delta",
                str(refused),
            ), refused
            continue
        if found[1] == "privacy_unit_column":
            assert query.plan.identity == compile_query(golden.text, sources()).plan.identity
        else:
            assert query.parsed.delta > 0 or "delta" in text


BOUNDED = {
    "a share": ("AVG(CASE WHEN seconds > 3 THEN 1 ELSE 0 END) AS n", "(0, 1)"),
    "one value": ("SUM(CASE WHEN status = 200 THEN 5 END) AS n", "(0, 5)"),
    "below zero": (
        "SUM(CASE WHEN status = 1 THEN -2.5 WHEN status = 2 THEN 4 ELSE NULL END) AS n",
        "(-2.5, 4)",
    ),
    "a percentile": (
        "PERCENTILE_CONT(CASE status WHEN 1 THEN 10 ELSE 20 END, 0.9) AS n",
        "(10, 20)",
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_are_those_of_the_literals_of_a_case(name: str) -> None:
    """Catches: bounds of something that the text does not have."""
    column, bounds = BOUNDED[name]
    short = asked("epsilon = 1", column, DAY)
    call = column.rindex(")")
    long = asked(
        "epsilon = 1",
        f"{column[:call]}, contribution_bounds_per_row => {bounds}{column[call:]}",
        DAY,
    )
    assert short.parsed == long.parsed and short.parsed.aggregates[0].bounds is not None


@pytest.mark.parametrize(
    "column",
    [
        "SUM(seconds)",
        "SUM(CASE WHEN status = 1 THEN seconds ELSE 0 END)",
        "SUM(CASE WHEN status = 1 THEN 1 ELSE status END)",
        "AVG(CASE WHEN status = 1 THEN NULL END)",
        "SUM(CASE WHEN status = 1 THEN 0 END)",
        "SUM(CASE WHEN status = 1 THEN 1e999 ELSE 0 END)",
    ],
)
def test_a_value_whose_bounds_nobody_says_is_refused(column: str) -> None:
    """Catches: bounds of a part of a CASE; of the records."""
    with pytest.raises(QueryError, match=r"needs clamping bounds|not a number|must be"):
        asked("epsilon = 1", f"{column} AS n", DAY)


def test_bounds_of_a_column_are_those_that_the_source_declares() -> None:
    source = {
        **DECLARED,
        "visits": load_sources(
            {
                "visits": {
                    "format": "parquet",
                    "path": "v",
                    "schema": "user_id STRING, ts TIMESTAMP, stars INT",
                    "event_time": "ts",
                    "start": "2026-01-01",
                    "privacy_unit": "user_id",
                    "domains": {"stars": {"values": [0, 1, 2, 3, 4, 5]}},
                }
            }
        )["visits"],
    }
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1) AVG(stars{}) AS n FROM visits GROUP BY window(ts, '1 day')"
    short, long = (
        compile_query(text.format(more), source)
        for more in ("", ", contribution_bounds_per_row => (0, 5)")
    )
    assert short.parsed == long.parsed


@pytest.mark.parametrize("share", ["0", "1", "1.5", "0.123", "'0.5'", "seconds", "-0.5"])
def test_a_percentile_has_a_share_of_two_decimals(share: str) -> None:
    with pytest.raises(QueryError, match="a share of at most two decimals"):
        asked(
            "epsilon = 1",
            f"PERCENTILE_CONT(seconds, {share}, contribution_bounds_per_row => (0, 1)) AS n",
            DAY,
        )


def test_a_percentile_is_one_of_the_quantiles(tmp_path: Path) -> None:
    """Catches: an element counted from one; the array in its place."""
    times = pd.Timestamp("2026-03-01 12:00", tz="UTC")
    frame = pd.DataFrame(
        {"u": [f"u{i}" for i in range(2000)], "ts": times, "x": [i % 100 for i in range(2000)]}
    )
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, max_rows_per_group = 1) {} FROM r GROUP BY window(ts, '1 day')"
    columns = ", ".join(
        f"PERCENTILE_CONT(x, {share}, contribution_bounds_per_row => (0, 100)) AS p{i}"
        for i, share in enumerate((0.1, ".5", 0.95))
    )
    answer = dpsql.query(
        text.format(columns),
        frame,
        unit="u",
        time="ts",
        start="2026-03-01",
        until="2026-03-02",
        secret=tmp_path / "secret",
    )
    row = answer.rows.iloc[0]
    assert [abs(row[f"p{i}"] - true) < 4 for i, true in enumerate((10, 50, 95))] == [True] * 3, row
    assert row["p0_rank_stderr"] < 0.02


def test_numbers_may_begin_with_their_point() -> None:
    """Catches: a bound that may be `.5`, and an epsilon that may not."""
    columns = "url, COUNT(*) AS n"
    assert asked("epsilon = .5", columns).parsed == asked("epsilon = 0.5", columns).parsed
