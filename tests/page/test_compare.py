"""`dpsql compare` on half a day of the demo's edits."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from tests.page.conftest import EVIL, Published

EN = "#en.wikipedia"
DE = "#de.wikipedia"


def said(published: Published, *words: str) -> Result:
    return CliRunner().invoke(main, ["compare", "demo", *words, "--lake", published.lake])


def cells(published: Published, key: str, trigger: int) -> pd.Series:
    rows = published.rows
    return rows[(rows["channel"] == key) & (rows["trigger"] == trigger)].iloc[0]


def test_two_keys(published: Published) -> None:
    told = json.loads(said(published, EN, DE, "--json").stdout)
    assert [line["column"] for line in told] == ["editors", "edits", "characters_added"]
    one = cells(published, EN, 12)
    other = cells(published, DE, 12)
    assert (
        told[0]["difference"] == one["editors"] - other["editors"]
        and told[0]["real"]
        and not told[0]["at_most"]
    )
    assert told[0]["stderr"] == pytest.approx(
        (one["editors_stderr"] ** 2 + other["editors_stderr"] ** 2) ** 0.5
    )
    text = said(published, EN, DE, "--by", "editors").stdout
    assert re.search(rf"editors +{DE} .* larger", text) and "at most 8 records in a window" in text
    assert "smaller" in said(published, DE, EN).stdout
    assert "may be noise" in said(published, DE, DE).stdout


def test_changes_since_the_trigger_and_the_window_before(published: Published) -> None:
    told = json.loads(said(published, EN, "--json").stdout)
    assert {line["against"] for line in told} == {"trigger 11"}
    change = cells(published, EN, 12)["editors"] - cells(published, EN, 11)["editors"]
    assert told[0]["difference"] == change
    independent = cells(published, EN, 12)["editors_stderr"] * 2**0.5
    assert 0 < told[0]["stderr"] < 0.8 * independent  # noise at successive triggers goes together
    day = pd.Timedelta(days=1)
    moved = published.rows.assign(
        **{
            column: published.rows[column] + day
            for column in ("window_start", "window_end", "trigger_time")
        }
    )
    published.more(moved)
    told = json.loads(said(published, EN, "--window", "2015-09-13", "--json").stdout)
    assert {line["against"] for line in told} == {"trigger 11", "2015-09-12 00:00"}
    of_windows = next(
        line
        for line in told
        if line["against"] == "2015-09-12 00:00" and line["column"] == "editors"
    )
    assert (
        of_windows["difference"] == 0
        and of_windows["stderr"] == pytest.approx(independent)
        and not of_windows["real"]
    )


@pytest.mark.parametrize("predicted", [[EN], [DE], [EN, DE]], ids=str)
def test_what_was_not_measured_is_compared_with_nothing(
    published: Published, predicted: list[str]
) -> None:
    """Catches: the verdict "larger" on a value that has no error."""
    day = pd.Timedelta(days=1)
    newest = published.rows[published.rows["trigger"] == 12]
    moved = newest.assign(
        **{
            column: newest[column] + day
            for column in ("window_start", "window_end", "trigger_time")
        }
    )
    moved.loc[moved["channel"].isin(predicted), "editors_stderr"] = None
    published.more(moved)
    told = json.loads(
        said(published, EN, DE, "--window", "2015-09-13", "--by", "editors", "--json").stdout
    )
    assert told == [
        {"key": EN, "trigger": 12, "column": "editors", "against": DE, "difference": None}
    ]
    lines = said(published, EN, DE, "--window", "2015-09-13").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("editors"))
    assert re.fullmatch(
        rf"editors +{DE} +nothing to compare: a value is not measured, or NULL: too few to say",
        line.rstrip(),
    )
    assert all(
        re.search(r"(larger|smaller) among the records that count|may be noise", line)
        for line in lines
        if line.startswith(("edits", "characters"))
    )


def test_places_are_in_show(published: Published) -> None:
    """Among all published keys, however few are printed; as the page has them."""
    text = (
        CliRunner()
        .invoke(
            main,
            ["show", "demo", "--lake", published.lake, "--window", "2015-09-12", "--limit", "3"],
        )
        .stdout
    )
    assert re.search(r"^ +edits .* place$", text, re.MULTILINE) and re.search(
        r" by editors among the records that count$", text, re.MULTILINE
    )
    assert "keys that share places cannot be told apart" in text
    assert [line.split()[-1] for line in text.splitlines() if EN in line] == ["1"]
    all_rows = CliRunner().invoke(main, ["show", "demo", "--lake", published.lake, "--all"]).stdout
    assert "place" not in all_rows
    lines = (
        CliRunner()
        .invoke(
            main,
            ["show", "demo", "--lake", published.lake, "--window", "2015-09-12", "--limit", "40"],
        )
        .stdout.splitlines()
    )
    ends = [re.split(r"\s{2,}", line)[-1] for line in lines if line.startswith("2015-09-12")]
    assert (
        len(ends) > 10
        and all(re.fullmatch(r"\d+(–\d+)?", end) for end in ends)
        and any("–" in end for end in ends)
    )


def test_who_has_the_public_folder_alone_is_told_the_same(published: Published) -> None:
    """The table says how its noise goes together. Catches: an error that is only bounded without the run's folder."""
    whole = said(published, EN).stdout
    (Lake(published.lake).private("demo") / "run.json").unlink()
    assert said(published, EN).stdout == whole and "at most ±" not in whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["#en.wikipedi"],
            f"'#en.wikipedi' is not among the .* published keys of this window .*'{EN}'",
        ),
        (
            [EN, "--by", "views"],
            "has no column 'views' with an error; it has editors, edits, characters_added",
        ),
        ([], "name a key, or two; which places keys can have: `dpsql show demo`"),
        (["a", "b", "c"], "at most two keys can be compared"),
        ([EN, "--window", "2001-01-01"], "has published no window that starts at this time"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    published: Published, words: list[str], message: str
) -> None:
    found = said(published, *words)
    assert (
        found.exit_code == 2
        and re.search(message, found.output)
        and "Traceback" not in found.output
    )


def test_null_and_control_characters_are_written_as_shown(published: Published) -> None:
    assert said(published, "NULL", EN).exit_code == 0
    found = said(published, EVIL, EN)
    assert found.exit_code == 2 and "\x1b" not in found.output
    assert said(published, EVIL.replace("\x1b", r"\x1b"), EN).exit_code == 0
