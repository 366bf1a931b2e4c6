"""What people are shown of a histogram: digits, which window, HAVING, ORDER BY and LIMIT, what the bounds leave out, why there is nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpsql.compiled import compile_query
from dpsql.description import Measure
from dpsql.errors import LakeError
from dpsql.jobs.tables import SMALL, VAGUE, print_histogram
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.parsed_query import Aggregate, AggregateFunction, ContributionPeriod, WindowSpec
from dpsql.published.public_rows import PublicRows, frame_of
from dpsql.published.words import TOO_FEW
from dpsql.text import Z95
from dpsql.view.reading import as_read
from dpsql.view.table import finished, in_order, one_window, passed_over
from dpsql.view.words import (
    EITHER_SIDE,
    LEFT_OUT,
    heads,
    key_text,
    left_out,
    measured,
    next_trigger,
    printable,
    quantiles_text,
    text_of,
    why_nothing,
)
from tests.described import described, of_plan, told
from tests.property.plans import COUNT, DAY, HOUR, SUM, USERS, query, source
from tests.sql.golden import Golden, compiled, goldens, sources

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.03124, 0.00041, "0.03124 ± 0.00041"),
        (7_141, 76.0, "7,141 ± 76"),
        (np.int64(7_141), 6.9, "7,141 ± 7"),
        (7_141.0, 6.9, "7,141.0 ± 6.9"),
        (1_203, 118.0, "1,200 ± 120"),
        (521_887.3, 18_980.0, "522,000 ± 19,000"),
        (26_213_456, 7_400_000.0, "26.2 M ± 7.4 M"),
        (26_213_456, 740_000.0, "26.21 M ± 0.74 M"),
        (26_213_456, 76.0, "26,213,456 ± 76"),
        (3.2e9, 1.4e8, "3.20 bn ± 0.14 bn"),
        (1e-9, 2e-11, "1e-09 ± 2e-11"),
        (3.0, 0.0, "3 ± 0"),
        (None, 1.0, "NULL"),
    ],
)
def test_digits_are_those_that_the_error_deserves(value: Any, error: float, text: str) -> None:
    assert measured(value, error / Z95)[0] == text


@pytest.mark.parametrize(
    ("function", "most"), [("AVG", 60.0), ("STDDEV_SAMP", 60 / 2**0.5), ("VAR_POP", 900.0)]
)
def test_what_says_nothing_is_not_read_as_a_value(function: str, most: float) -> None:
    """An interval over all that the bounds allow is no `30 ± 30`, which a half as large is. Catches: its middle, which is no news."""
    published = described(["views", "views_stderr"])
    published = replace(
        published,
        measures=(Measure("views", AggregateFunction(function), False, (0.0, 60.0), None),),
    )
    (column,) = published.display_columns
    whole, half = (
        text_of({"views": end / 2, "views_stderr": end / 2 / Z95}, column, published)
        for end in (most, most / 2)
    )
    assert whole == TOO_FEW
    assert [float(part) for part in half.split(" ± ")] == pytest.approx([most / 4] * 2, rel=0.1)


@pytest.mark.parametrize(
    ("values", "rank_error", "text"),
    [
        ([0.0, 12.5, 60.0], 0.02, "0, 12.5, 60; ranks ± 0.02 (share of rows)"),
        (
            [0.0, 4.03, 18.04, 61.5, 1000.0],
            0.01,
            "0, 4.03, 18.0, 62, 1,000; ranks ± 0.01 (share of rows)",
        ),
        (
            [0.0, 28.08, 91.31, 385.7, 1000.0],
            0.2,
            "? 0, 28, 90, 390, 1,000; ranks ± 0.2 (share of rows)",
        ),
        (
            [0.0, 20.02, 20.02, 20.02, 1000.0],
            0.13,
            "? 0, 20, 20.02, 20, 1,000; ranks ± 0.13 (share of rows)",
        ),
        ([0.0, 20.02, 20.02, 20.02, 1000.0], 0.501, TOO_FEW),
        ([0.0, 20.02, 20.02, 20.02, 1000.0], 7.0, TOO_FEW),
        (31.25, 0.02, "31.2; ranks ± 0.02 (share of rows)"),
        (31.25, 0.13, "? 31.2; ranks ± 0.13 (share of rows)"),
        (31.25, 0.6, TOO_FEW),
        (None, float("nan"), TOO_FEW),
    ],
)
def test_quantiles_have_the_digits_that_their_ranks_deserve(
    values: Any, rank_error: float, text: str
) -> None:
    """By the values at the rank plus and minus its error. Catches: noise with four digits, a step or more of ranks without a mark, the sum of both errors."""
    assert quantiles_text(values, rank_error / Z95, TOO_FEW, (0.0, 60.0)) == text


def test_a_mark_is_explained_by_what_it_marks(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches: `?` of quantiles that is said to be a value below its own error, and no word of it."""
    frame = pd.DataFrame(
        {
            "page": ["a"],
            "n": [300],
            "n_stderr": [1.0],
            "q": [[0.0, 9.0, 60.0]],
            "q_rank_stderr": [0.2],
        }
    )
    for small in (False, True):
        published = described(frame.columns)
        print_histogram(
            PublicRows.describe(
                frame.assign(n=300 * (not small), trigger=1), replace(published, once=True)
            ),
            5,
        )
        said = " ".join(capsys.readouterr().out.split())
        assert "? 0, 9, 60" in said
        assert VAGUE in said and (SMALL in said) is small


def rows() -> PublicRows:
    """Two days that have ended, with two triggers each, and one that grows."""
    found = []
    for day, triggers in ((0, 2), (1, 2), (2, 1)):
        start = MIDNIGHT + timedelta(days=day)
        for trigger in range(1, triggers + 1):
            found += [
                (
                    start,
                    start + timedelta(days=1),
                    trigger,
                    start + timedelta(hours=12 * trigger),
                    key,
                    day * 10 + i,
                    1.0,
                )
                for i, key in enumerate("ab")
            ]
    frame = pd.DataFrame(
        found,
        columns=[
            "window_start",
            "window_end",
            "trigger",
            "trigger_time",
            "page",
            "views",
            "views_stderr",
        ],
    )
    return PublicRows.of_frame(told(frame))


def days_of(found: PublicRows) -> set[int]:
    return set(found.frame["window_start"].dt.day)


def test_finished_windows_come_first_and_each_with_its_newest_trigger() -> None:
    ordered = in_order(rows().newest)
    shown = ordered.frame
    assert list(zip(shown["window_start"].dt.day, shown["trigger"], shown["page"], strict=True)) == [
        (2, 2, "b"), (2, 2, "a"), (1, 2, "b"), (1, 2, "a"), (3, 1, "b"), (3, 1, "a"),
    ]  # fmt: skip
    assert finished(ordered).tolist() == [True] * 4 + [False] * 2
    assert days_of(one_window(rows(), "views", None)) == {2}
    assert days_of(one_window(rows(), "views", None, growing=True)) == {3}
    only = rows().where(rows().frame["window_start"].dt.day == 3)
    assert len(one_window(only, "views", None).frame) == 2, (
        "where no window is finished, the one that grows"
    )
    third = int((MIDNIGHT + timedelta(days=2)).timestamp() * 1e6)
    assert days_of(one_window(rows(), "views", third)) == {3}
    with pytest.raises(LakeError, match="no window that starts at this time"):
        one_window(rows(), "views", third + 1)


def test_windows_of_noise_alone_are_passed_over_and_that_is_said() -> None:
    def days(*values: float) -> PublicRows:
        """Three days of which the last one grows; both keys have the value of their day."""
        found = rows()
        views = found.frame["window_start"].dt.day.map(lambda day: values[day - 1])
        return found.with_frame(found.frame.assign(views=views))

    def first(found: PublicRows) -> PublicRows:
        return one_window(found, "views", None, aliases=["views"])

    old = first(
        days(-40.0, 2.4, 50.0)
    )  # 2.4 errors are seldom for one value, and less so for the largest of two
    assert days_of(old) == {1}
    over = "A newer window, that of 2026-01-02 00:00 UTC, is passed over: no value in it is clearly above its own noise."
    assert passed_over(days(-40.0, 2.4, 50.0), old) == over
    for values in ((40.0, 4.0, 0.0), (0.0, 0.0, 9.0), (0.0, np.nan, 0.0)):
        newest = first(days(*values))
        assert days_of(newest) == {2} and passed_over(days(*values), newest) == ""
    drop = days(9.0, 0.0, 0.0)
    two = drop.with_frame(drop.frame.assign(window_end=drop.frame["window_start"]))
    assert passed_over(two, first(two)).startswith(
        "2 newer windows, of 2026-01-02 00:00 to 2026-01-03 00:00 UTC, are passed over"
    )


def test_heads_and_sentences_say_what_the_bounds_leave_out() -> None:
    plan = of_plan(
        make_plan(
            query(
                aggregates=(COUNT, USERS, SUM),
                max_rows_contributed=8,
                max_rows_per_group=4,
                max_groups_contributed=2,
            ),
            source(),
        )
    )
    assert heads(plan) == {
        COUNT.alias: "at most 4 each",
        SUM.alias: f"{SUM.bounds[0]:g} to {SUM.bounds[1]:g}, at most 4 each",
    }  # type: ignore[index]
    noise, bounds = left_out(plan)
    assert "It does not cover what the contribution bounds leave out" in noise
    assert bounds.startswith(
        "One user_id counts with at most 8 records in a window, 4 per page, in at most 2 values of page. "
    )
    for_ever = of_plan(
        make_plan(
            query(
                max_rows_contributed=1,
                max_rows_per_group=1,
                max_groups_contributed=1,
                contribution_period=ContributionPeriod.STREAM,
            ),
            source(),
        )
    )
    assert left_out(for_ever)[1].startswith(
        "One user_id counts with at most 1 record in the whole stream. "
    )
    sliding = of_plan(
        make_plan(
            query(
                window=WindowSpec(DAY, HOUR, 0),
                max_rows_contributed=3,
                max_rows_per_group=3,
                max_groups_contributed=3,
            ),
            source(),
        )
    )
    assert left_out(sliding)[1].startswith("One user_id counts with at most 3 records in 1 day. ")
    mean = Aggregate("mean", AggregateFunction.AVG, "seconds", (10.0, 60.0))
    alone = of_plan(
        make_plan(
            query(keys=(), max_rows_contributed=4, max_rows_per_group=1, max_groups_contributed=4),
            source(),
        )
    )
    assert (
        all(each.endswith("at most 1 each") for each in heads(alone).values())
        and "counts with at most 1 record in a window. " in left_out(alone)[1]
    )
    for aggregates, words in (
        ((COUNT,), [LEFT_OUT]),
        ((mean,), [EITHER_SIDE]),
        ((COUNT, mean), [LEFT_OUT, EITHER_SIDE]),
    ):
        said = left_out(of_plan(make_plan(query(aggregates=aggregates), source())))[1]
        assert [each for each in (LEFT_OUT, EITHER_SIDE) if each in said] == words


def test_an_empty_table_says_why() -> None:
    plan = make_plan(query(), source())
    assert plan.selection is not None
    said = why_nothing(of_plan(plan))
    assert (
        f"about {plan.selection.users_needed(plan.horizon)} different user_id have it in one window"
        in said
    )
    assert "no key had enough people" in said
    public = make_plan(query(public_groups="SELECT page FROM pages"), source())
    assert "after the source's `start`" in why_nothing(of_plan(public))
    plan_of_hours = of_plan(make_plan(query(trigger_interval_us=HOUR), source()))
    noon = int((MIDNIGHT + timedelta(hours=12, minutes=1)).timestamp() * 1e6)
    assert next_trigger(plan_of_hours, noon) == "2026-01-01 13:00:00 UTC"


def test_a_smoothed_value_has_the_digits_of_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches: a guess shown to sixteen digits, as if it were a key."""
    start = pd.Timestamp("2026-01-01", tz="UTC")
    row = {
        "window_start": start,
        "window_end": start + pd.Timedelta("1h"),
        "trigger": 1,
        "trigger_time": start + pd.Timedelta("1h"),
    }
    frame = pd.DataFrame(
        [row | {"page": "a", "views": 12, "views_stderr": 4.848, "views_smoothed": 7.174185884435}]
    )
    print_histogram(PublicRows.of_frame(told(frame)), 5)
    assert capsys.readouterr().out.splitlines()[1].split()[-4:] == ["12", "±", "10", "7"]


@pytest.mark.parametrize("golden", goldens("accepted"), ids=lambda golden: golden.stem)
def test_every_plan_has_words_for_what_is_shown(golden: Golden) -> None:
    """Catches: `show`, `try` and `view` that know the bounds of some mechanisms only."""
    query = compiled(golden)
    published = query.published
    assert set(heads(published)) <= {column.name for column in query.shape.columns}
    for words in (*left_out(published), why_nothing(published), next_trigger(published, 0)):
        assert "None" not in words and "inf" not in words.split(), words


def test_a_row_that_is_not_grouped_by_a_key_says_all() -> None:
    several = described(["channel", "grouping_id"])
    one = described(["channel"])
    assert key_text({"channel": None}, "channel", several) == "all"
    assert key_text({"channel": None}, "channel", one) == "NULL"
    assert key_text({"channel": "a\n"}, "channel", several) == "a\\n"


@pytest.mark.parametrize(
    "key", ["می\u200cخواهم", "क्\u200dष", "क्\u200cष", "র\u200d্যাব", "അവന\u0d4d\u200d", "ශ්\u200dරී ලංකා"]
)
def test_joiners_of_a_spelling_are_text(key: str) -> None:
    """Catches: a Persian, Hindi, Bengali, Malayalam or Sinhala word with an escape in it."""
    assert printable(key) == key


@pytest.mark.parametrize(
    "key",
    [
        *("pay\u200dpal", "\u200dक", "क\u200dष", "क्\u200d\u200dष", "क्\u200d", "का\u200d\u094d", "क्\u200d\u093e", "क्\u200da", "क्\u200c", "a्\u200dक"),
        *("می\u200dخ", "ا\u200cم", "م\u200c", "م\u200c\u200cم", "م\u202eم", "क्\u2066ष", "क्\u200bष"),
        *("क्\u00adष", "\u200d", "\u200c", "1\u200d1"),
    ],
)  # fmt: skip
def test_other_format_characters_are_shown(key: str) -> None:
    """Catches: two keys that look alike, or a text that turns what follows it around."""
    assert printable(key) != key and printable(key).isprintable()


CLAUSE = (
    "OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)"
)
SQL = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} url, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), url"


def released_rows() -> PublicRows:
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
    return PublicRows.of_frame(frame_of(table, described(table.column_names)))


def shown(ending: str) -> list[tuple[int, int, object, int]]:
    found = as_read(released_rows(), compile_query(f"{SQL} {ending}", sources()).reading)
    return [
        (r.window_start.day, r.trigger, None if pd.isna(r.url) else r.url, r.views)
        for r in found.frame.itertuples()
    ]


def test_without_a_word_all_rows_are_shown_as_they_are() -> None:
    assert "reading" not in compile_query(SQL, sources()).document()
    pd.testing.assert_frame_equal(as_read(released_rows()).frame, released_rows().frame)


@pytest.mark.parametrize(
    "ending",
    [
        "ORDER BY COUNT(*) DESC, url",
        "ORDER BY views DESC, 1",
        "ORDER BY 2 DESC, url ASC NULLS FIRST",
    ],
)
def test_order_is_within_a_release(ending: str) -> None:
    first = [(1, 1, "b", 2), (1, 1, "a", 1)]
    second = [(1, 2, None, 50), (1, 2, "a", 30), (1, 2, "it's", 30), (1, 2, "b", -4)]
    assert shown(ending) == [*first, *second, (2, 1, "b", 9), (2, 1, "a", 8), (2, 1, "c", 7)]


def test_limit_is_of_each_release_and_nulls_come_as_in_spark() -> None:
    assert shown("ORDER BY url LIMIT 1") == [(1, 1, "a", 1), (1, 2, None, 50), (2, 1, "a", 8)]
    assert shown("ORDER BY url DESC LIMIT 1") == [
        (1, 1, "b", 2),
        (1, 2, "it's", 30),
        (2, 1, "c", 7),
    ]
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
    plain = compile_query(SQL, sources())
    read = compile_query(f"{SQL} HAVING views > 3 ORDER BY 2 LIMIT 3", sources())
    assert read.plan == plain.plan and read.plan.identity == plain.plan.identity
    assert read.document()["query"] == plain.document()["query"]
    assert replace(read, text=plain.text, reading=plain.reading) == plain


def test_types_of_keys_stay() -> None:
    own = compile_query(f"{SQL} ORDER BY 2", sources()).reading
    assert (as_read(released_rows(), own).frame.dtypes == released_rows().frame.dtypes).all()
