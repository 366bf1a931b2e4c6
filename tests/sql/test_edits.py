"""What a message proposes: every query below `write:` is accepted, says what it changes, and leads to no further refusal."""

from __future__ import annotations

import re
from functools import cache
from unittest import mock

import pytest

from dpsql.compiled import compile_query, parse_query
from dpsql.errors import Edit, Problem, QueryError
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.parsed_query import SKETCHES
from dpsql.sources.config import load_sources
from dpsql.sql import allowed, options, parse
from dpsql.sql.edits import edited, outermost, proposal
from dpsql.sql.items import OUR_AGGREGATES
from dpsql.times import microseconds
from tests.sql.golden import Golden, goldens, refusal, sources

NOON = microseconds("2026-11-26T12:00")


def refused(text: str, declared: object = None) -> QueryError:
    with (
        pytest.raises(QueryError) as caught,
        mock.patch("dpsql.sql.googlesql.now_us", lambda: NOON),
    ):
        parse_query(text, declared or sources())  # type: ignore[arg-type]
    return caught.value


def proposed(text: str, declared: object = None) -> tuple[str, tuple[str, ...]]:
    """The proposed query in one line, and what it changes."""
    proposal = refused(text, declared).proposal
    assert proposal is not None
    return " ".join(proposal.text.split()), proposal.reasons


@cache
def with_edits() -> list[Golden]:
    return [
        golden
        for golden in goldens("refused")
        if any(problem.edits for problem in refusal(golden).problems)
    ]


def test_an_edited_text_has_fewer_problems_and_no_new_one() -> None:
    """Catches: an edit that leads from one message to another one."""
    for golden in with_edits():
        before = refusal(golden)
        if before.proposal:
            compile_query(before.proposal.text, sources())
            assert "\n\n" not in before.proposal.text and str(before).endswith(str(before.proposal))
            continue
        edits = outermost([edit for problem in before.problems for edit in problem.edits])
        after = refused(edited(golden.text, edits))
        assert len(after.problems) < len(before.problems), golden.stem
        old = {problem.message for problem in before.problems}
        assert {problem.message for problem in after.problems} <= old, golden.stem


def test_most_goldens_with_an_edit_lead_to_a_query() -> None:
    led = [golden for golden in with_edits() if refusal(golden).proposal]
    assert len(with_edits()) >= 50 and len(led) / len(with_edits()) >= 0.6, len(led)


WORDS = re.compile(r"\b([A-Za-z_][A-Za-z_0-9]*)\(")
NAMES = re.compile(r"\b([a-z_]+) = ")
OURS = {
    *(name.lower() for name in OUR_AGGREGATES),
    *(sketch.lower() for sketch in SKETCHES),
    *allowed.FUNCTIONS,
    *("window", "explode", "cast", "try_cast", "cube", "decimal", "in", "options", "extract"),
}
OPTIONS = {option.name for option in parse.options_of(MECHANISMS)}


def hints() -> list[tuple[str, str]]:
    return [
        (golden.stem, problem.hint)
        for golden in goldens("refused")
        for problem in refusal(golden).problems
    ]


def test_no_hint_names_what_is_refused() -> None:
    """Catches: advice to write a function, an aggregate or an option that the next message refuses."""
    said = hints()
    assert len(said) > 400
    wrong = [
        (stem, hint)
        for stem, hint in said
        for name in WORDS.findall(hint)
        if name.lower() not in OURS
    ]
    wrong += [
        (stem, hint)
        for stem, hint in said
        for name in NAMES.findall(hint)
        if name not in OPTIONS | {"name", "status"}
    ]
    assert not wrong


NUMBERS = re.compile(
    r"max_rows_contributed = \d+|max_groups_contributed = [2-9]\d*|\(0, [1-9]\d*\)"
)


def test_no_hint_chooses_a_number_of_rows_or_bounds() -> None:
    """Catches: `max_rows_contributed = 32` and `(0, 100)`, which people copy, and which decide about the noise. Numbers of the query may be
    said."""
    written = {golden.stem: golden.text for golden in goldens("refused")}
    texts = [*hints(), *((name, hint) for name, hint in options.FOREIGN_OPTIONS.items())]
    chosen = [(stem, found) for stem, hint in texts for found in NUMBERS.findall(hint)]
    assert not [
        (stem, found)
        for stem, found in chosen
        if not {*re.findall(r"[1-9]\d*", found)}
        <= {*re.findall(r"[1-9]\d*", written.get(stem, ""))}
    ]


# How GoogleSQL and BigQuery say it, how it is said here, and what that changes.

RECORDS = load_sources(
    {
        "edits": {
            "format": "parquet",
            "path": "edits",
            "schema": "user_id STRING, key STRING, ts TIMESTAMP, value DOUBLE, tags ARRAY<STRING>, n BIGINT",
            "event_time": "ts",
            "privacy_unit": "user_id",
            "start": "2026-01-01",
            "domains": {"n": {"range": [0, 9]}},
        },
        "pages": {"format": "parquet", "path": "pages", "schema": "key STRING", "static": True},
    }
)
CLAUSE = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1)"
AVERAGES = "GoogleSQL averages each unit's own average; here one row of each unit in a group counts"
READING = "compute with the released numbers when reading"
SAID = {
    "a report": (
        "SUM(value, contribution_bounds_per_group => (0, 9), report_format => 'JSON') FROM edits",
        "SUM(value, contribution_bounds_per_group => (0, 9)) FROM edits",
        ["every aggregate has a column <alias>_stderr"],
    ),
    "a field of a report": (
        "COUNT(*, report_format => 'PROTO').value.noise_confidence_interval FROM edits",
        "COUNT(*) FROM edits",
        [READING, "every aggregate has a column <alias>_stderr"],
    ),
    "a sum whose bounds lift": (
        "SUM(value, contribution_bounds_per_group => (2, 3)) FROM edits",
        "SUM(value, contribution_bounds_per_group => (0, 3)) FROM edits",
        ["who adds less is not lifted to the lower bound"],
    ),
    "groups of a cross join": (
        "x, COUNT(*) FROM edits CROSS JOIN UNNEST([1, 2, 3]) AS x GROUP BY x",
        "x, COUNT(*) FROM edits LATERAL VIEW explode(array(1, 2, 3)) t AS x GROUP BY x",
        [],
    ),
    "elements of a column": (
        "tag, COUNT(*) FROM edits, UNNEST(tags) AS tag GROUP BY tag",
        "tag, COUNT(*) FROM edits LATERAL VIEW explode(tags) t AS tag GROUP BY tag",
        [],
    ),
    "arithmetic": (
        "SUM(n) / COUNT(*) AS mean FROM edits",
        "SUM(n), COUNT(*) FROM edits",
        [READING],
    ),
    "a share of records": (
        "COUNTIF(value > 3) / COUNT(*) AS large FROM edits",
        "AVG(CASE WHEN value > 3 THEN 1 ELSE 0 END) AS large FROM edits",
        [],
    ),
    "a share by IF": (
        "SAFE_DIVIDE(SUM(IF(value > 3, 1, 0)), COUNT(*)) FROM edits",
        "AVG(CASE WHEN value > 3 THEN 1 ELSE 0 END) AS share FROM edits",
        [],
    ),
    "a count of those that": (
        "key, COUNTIF(value > 3) FROM edits GROUP BY key",
        "key, COUNT(CASE WHEN value > 3 THEN 1 END) FROM edits GROUP BY key",
        [],
    ),
    "FILTER": (
        "key, SUM(n, contribution_bounds_per_row => (0, 9)) FILTER (WHERE value > 3) AS s FROM edits GROUP BY key",
        "key, SUM(CASE WHEN value > 3 THEN n END, contribution_bounds_per_row => (0, 9)) AS s FROM edits GROUP BY key",
        [],
    ),
    "a median": (
        "key, MEDIAN(n) AS middle FROM edits GROUP BY key",
        "key, PERCENTILE_CONT(n, 0.5) AS middle FROM edits GROUP BY key",
        [],
    ),
    "a maximum": (
        "MAX(n) AS most FROM edits",
        "PERCENTILE_CONT(n, 0.99) AS most FROM edits",
        ["1% of the values lie above: the last one is one record's"],
    ),
    "a month": (
        "TIMESTAMP_TRUNC(ts, MONTH) AS month, COUNT(*) FROM edits GROUP BY month",
        "date_trunc('month', ts) AS month, COUNT(*) FROM edits GROUP BY month",
        [],
    ),
    "a week": (
        "DATE_TRUNC(DATE(ts), WEEK) AS week, COUNT(*) FROM edits GROUP BY week",
        "date_trunc('week', ts) AS week, COUNT(*) FROM edits GROUP BY week",
        ["weeks begin on Monday, BigQuery's on Sunday"],
    ),
    "a date": (
        "EXTRACT(DATE FROM ts) AS d, COUNT(*) FROM edits GROUP BY d",
        "date(ts) AS d, COUNT(*) FROM edits GROUP BY d",
        [],
    ),
    "a moving sum": (
        "date_trunc('hour', ts) AS h, SUM(COUNT(*)) OVER (ORDER BY h ROWS 5 PRECEDING) AS n FROM edits GROUP BY h",
        "window.start, COUNT(*) AS n FROM edits GROUP BY window(ts, '6 hours', '1 hour')",
        ["each row is of the 6 hours before `window_end`"],
    ),
    "a moving mean": (
        "AVG(COUNT(*)) OVER (ORDER BY d ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS n, date(ts) AS d FROM edits GROUP BY d",
        "COUNT(*) AS n, window.start FROM edits GROUP BY window(ts, '7 days', '1 day')",
        ["each row is of the 7 days before `window_end`: divide by 7 when reading"],
    ),
    "a unit under another name": (
        "key, COUNT(DISTINCT editor) AS n FROM (SELECT user_id AS editor, key FROM edits) GROUP BY key",
        "key, COUNT(DISTINCT user_id) AS n FROM (SELECT user_id, key FROM edits) GROUP BY key",
        [],
    ),
    "the last days": (
        "COUNT(*) FROM edits WHERE ts >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 7 DAY)",
        "COUNT(*) FROM edits WHERE ts >= TIMESTAMP '2026-11-19'",
        [
            "the query keeps this date; to have the latest 7 days at each trigger: window(ts, '1 week', '1 day')"
        ],
    ),
    "since some days": (
        "COUNT(*) FROM edits WHERE DATE(ts) > CURRENT_DATE - 30",
        "COUNT(*) FROM edits WHERE DATE(ts) > DATE '2026-10-27'",
        [
            "the query keeps this date; to have the latest 30 days at each trigger: window(ts, '30 days', '1 day')"
        ],
    ),
    "an alias of a column": (
        "UPPER(key) AS key, COUNT(*) FROM edits GROUP BY key ORDER BY key",
        "UPPER(key) AS key_key, COUNT(*) FROM edits GROUP BY key_key ORDER BY key_key",
        [],
    ),
    "a key that is a DOUBLE": (
        "value, COUNT(*) FROM edits GROUP BY value",
        "CAST(value AS STRING) AS value_key, COUNT(*) FROM edits GROUP BY value_key",
        ["`value_key` is a STRING"],
    ),
    "a table with its project": (
        "key, COUNT(*) FROM project.dataset.edits GROUP BY key",
        "key, COUNT(*) FROM edits GROUP BY key",
        [],
    ),
    "slips of a finger": (
        "key, CUONT(*) FROM edit GROUP BY key",
        "key, count(*) FROM edits GROUP BY key",
        ["`cuont` is read as count", "`edit` is read as edits"],
    ),
    "a safe cast": (
        "SAFE_CAST(key AS INT64) AS k, COUNT(*) FROM edits GROUP BY k",
        "TRY_CAST(key AS INT64) AS k, COUNT(*) FROM edits GROUP BY k",
        [],
    ),
}


@pytest.mark.parametrize(("written", "right", "reasons"), SAID.values(), ids=SAID)
def test_what_is_said_elsewhere(written: str, right: str, reasons: list[str]) -> None:
    text, said = proposed(f"{CLAUSE} {written}", RECORDS)
    assert text == f"{CLAUSE} {right}"
    assert sorted(said) == sorted(reasons)
    compile_query(text, RECORDS)


OPTION = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1{})"
OF_OPTIONS = {
    "no bound on groups": (
        OPTION.format(", max_groups_contributed = NULL") + " key, COUNT(*) FROM edits GROUP BY key",
        OPTION.format("") + " key, COUNT(*) FROM edits GROUP BY key",
        ["max_groups_contributed is 8 where it is not written"],
    ),
    "epsilon of key selection": (
        OPTION.format(", group_selection_epsilon = 0.5") + " key, COUNT(*) FROM edits GROUP BY key",
        OPTION.format("") + " key, COUNT(*) FROM edits GROUP BY key",
        ["key selection has its share of the one budget"],
    ),
    "public groups without a key": (
        OPTION.format(", group_selection_strategy = PUBLIC_GROUPS") + " COUNT(*) FROM edits",
        OPTION.format("") + " COUNT(*) FROM edits",
        ["a query without a key has no groups to select"],
    ),
    "public groups by a join": (
        OPTION.format(", group_selection_strategy = PUBLIC_GROUPS")
        + " key, COUNT(*) FROM edits RIGHT OUTER JOIN (SELECT DISTINCT key FROM pages) USING (key) GROUP BY key",
        OPTION.format(", group_selection_strategy = PUBLIC_GROUPS").replace(
            "(epsilon", "(public_groups = (SELECT key FROM pages), epsilon"
        )
        + " key, COUNT(*) FROM edits GROUP BY key",
        [],
    ),
    "an average with bounds per group": (
        OPTION.format("") + " AVG(value, contribution_bounds_per_group => (1, 3)) FROM edits",
        OPTION.format("").replace("(epsilon", "(max_rows_per_group = 1, epsilon")
        + " AVG(value, contribution_bounds_per_row => (1, 3)) FROM edits",
        [AVERAGES],
    ),
    "the same beside a count": (
        OPTION.format("")
        + " AVG(value, contribution_bounds_per_group => (1, 3)), COUNT(*, contribution_bounds_per_group => (0, 5)) FROM edits",
        OPTION.format("").replace("(epsilon", "(max_rows_per_group = 5, epsilon")
        + " AVG(value, contribution_bounds_per_row => (1, 3)), COUNT(*, contribution_bounds_per_group => (0, 5)) FROM edits",
        [AVERAGES.replace("one row", "5 rows").replace("counts", "count")],
    ),
    "a query around it": (
        "SELECT SUM(n) FROM ("
        + OPTION.format("")
        + " key, COUNT(*) AS n FROM edits GROUP BY key) WHERE n > 5",
        OPTION.format("") + " key, COUNT(*) AS n FROM edits GROUP BY key",
        ["compute with the rows that are released, in whatever reads the table"],
    ),
    "another name": (
        OPTION.format(", max_partitions_contributed = 3")
        + " key, COUNT(*) FROM edits GROUP BY key",
        OPTION.format(", max_groups_contributed = 3") + " key, COUNT(*) FROM edits GROUP BY key",
        [],
    ),
}


@pytest.mark.parametrize(("written", "right", "reasons"), OF_OPTIONS.values(), ids=OF_OPTIONS)
def test_options_that_are_said_elsewhere(written: str, right: str, reasons: list[str]) -> None:
    assert proposed(written, RECORDS) == (right, tuple(reasons))
    compile_query(right, RECORDS)


NEVER = {
    "a sum without bounds": "SUM(value) FROM edits",
    "quantiles without bounds": "APPROX_QUANTILES(value, 4)[OFFSET(2)] FROM edits",
    "exact values beside private ones": "COUNT(*) FROM edits UNION ALL SELECT COUNT(*) FROM edits",
    "the last value of one record": "key, ANY_VALUE(value) FROM edits GROUP BY key",
}


@pytest.mark.parametrize("written", NEVER.values(), ids=NEVER)
def test_what_has_no_other_spelling_is_refused_alone(written: str) -> None:
    """Catches: a query that is bent until it is accepted."""
    assert refused(f"{CLAUSE} {written}", RECORDS).proposal is None


def test_a_list_of_private_groups_is_never_proposed() -> None:
    """Catches: keys of people's records in `public_groups`, where they would be published without a threshold."""
    written = "key, COUNT(*) FROM edits RIGHT JOIN (SELECT DISTINCT key FROM edits) USING (key) GROUP BY key"
    edits = [
        edit
        for problem in refused(f"{CLAUSE} {written}", RECORDS).problems
        for edit in problem.edits
    ]
    assert not [edit for edit in edits if "public_groups" in edit.text]


def _judge(*answers: tuple[Problem, ...]) -> object:
    left = list(answers)
    return lambda text: left.pop(0)


def test_edits_that_overlap() -> None:
    """Catches: an edit inside of a text that another one has replaced; an empty line in the query; rounds without end."""
    outer, inner = Edit(0, 9, "SELECT 2", "outer"), Edit(7, 8, "3", "inner")
    assert outermost([inner, outer, outer]) == [outer]
    assert edited("SELECT 1 FROM t", [Edit(7, 8, "2"), Edit(8, 8, ", 3")]) == "SELECT 2, 3 FROM t"
    wrong = Problem("m", "h", 0, 1, (Edit(7, 8, "3", "why"),))
    found = proposal("SELECT 1\n\n  \nFROM t", [wrong], _judge(()))  # type: ignore[arg-type]
    assert found is not None and found.text == "SELECT 3\nFROM t" and found.reasons == ("why",)
    for answers in (((wrong,),) * 9, ((Problem("m", "h", 0, 1),),)):
        assert proposal("SELECT 1 FROM t", [wrong], _judge(*answers)) is None  # type: ignore[arg-type]
    kept = proposal("SELECT 1,\n'a\n\nb' FROM t", [wrong], _judge(()))  # type: ignore[arg-type]
    assert kept is not None and kept.text == "SELECT 3,\n'a\n\nb' FROM t"
