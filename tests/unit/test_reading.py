"""HAVING, ORDER BY and LIMIT: what is shown of released rows, window by window; the plan and its identity know nothing of them."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest

from dpsql.compiled import compile_query
from dpsql.published.frames import frame_of
from dpsql.view.reading import as_read
from tests.described import described
from tests.sql.golden import sources

CLAUSE = "OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)"
SQL = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} url, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), url"


def rows() -> pd.DataFrame:
    """Two windows, of which the first has two triggers; a NULL key and an apostrophe."""
    day = pd.to_datetime(["2026-01-01"] * 6 + ["2026-01-02"] * 3, utc=True)
    table = pa.table(
        {
            "window_start": pa.array(day, pa.timestamp("us", tz="UTC")),
            "window_end": pa.array(day + pd.Timedelta(days=1), pa.timestamp("us", tz="UTC")),
            "trigger": pa.array([1, 1, 2, 2, 2, 2, 1, 1, 1], pa.int32()),
            "trigger_time": pa.array(day, pa.timestamp("us", tz="UTC")),
            "url": ["a", "b", "a", "b", None, "it's", "c", "b", "a"],
            "views": [1, 2, 30, -4, 50, 30, 7, 9, 8],
            "views_stderr": [1.0] * 9,
        }
    )
    return frame_of(table, described(table.column_names))


def shown(ending: str) -> list[tuple[int, int, object, int]]:
    found = as_read(rows(), compile_query(f"{SQL} {ending}", sources()).reading)
    return [(r.window_start.day, r.trigger, None if pd.isna(r.url) else r.url, r.views) for r in found.itertuples()]


def test_without_a_word_all_rows_are_shown_as_they_are() -> None:
    assert "reading" not in compile_query(SQL, sources()).document()
    pd.testing.assert_frame_equal(as_read(rows()), rows())


@pytest.mark.parametrize("ending", ["ORDER BY COUNT(*) DESC, url", "ORDER BY views DESC, 1", "ORDER BY 2 DESC, url ASC NULLS FIRST"])
def test_order_is_within_a_release(ending: str) -> None:
    first, second = [(1, 1, "b", 2), (1, 1, "a", 1)], [(1, 2, None, 50), (1, 2, "a", 30), (1, 2, "it's", 30), (1, 2, "b", -4)]
    assert shown(ending) == [*first, *second, (2, 1, "b", 9), (2, 1, "a", 8), (2, 1, "c", 7)]


def test_limit_is_of_each_release_and_nulls_come_as_in_spark() -> None:
    assert shown("ORDER BY url LIMIT 1") == [(1, 1, "a", 1), (1, 2, None, 50), (2, 1, "a", 8)]
    assert shown("ORDER BY url DESC LIMIT 1") == [(1, 1, "b", 2), (1, 2, "it's", 30), (2, 1, "c", 7)]
    assert [len(shown(f"LIMIT {most}")) for most in (1, 2, 100)] == [3, 6, 9]


@pytest.mark.parametrize(
    ("condition", "views"),
    [
        ("COUNT(*) > 8", [30, 50, 30, 9]),
        ("views < 0 OR url = 'it\\'s'", [-4, 30]),
        ("url IS NULL", [50]),
        ("NOT (url IN ('a', 'b') OR views BETWEEN 6 AND 8)", [30]),
    ],
)
def test_conditions_are_of_released_values(condition: str, views: list[int]) -> None:
    assert [row[3] for row in shown(f"HAVING {condition}")] == views


def test_the_promise_and_the_noise_are_those_of_the_query_without_them() -> None:
    plain, read = compile_query(SQL, sources()), compile_query(f"{SQL} HAVING views > 3 ORDER BY 2 LIMIT 3", sources())
    assert read.plan == plain.plan and read.plan.identity == plain.plan.identity
    assert read.document()["query"] == plain.document()["query"]
    assert replace(read, text=plain.text, reading=plain.reading) == plain


def test_types_of_keys_stay() -> None:
    own = compile_query(f"{SQL} ORDER BY 2", sources()).reading
    assert (as_read(rows(), own).dtypes == rows().dtypes).all()
