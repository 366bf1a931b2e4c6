"""The page of `dpsql view`: it says what was published, needs nothing from anywhere, and no key can command it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from dpsql.description import PROPERTY
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from dpsql.privacy.budget import budgets
from dpsql.privacy.ledger import Ledger
from dpsql.published.public_rows import PublicRows
from dpsql.sources.config import load_sources
from dpsql.view.drawings import trend
from dpsql.view.page import Picture, page
from dpsql.view.standing import Standing, standing
from tests.page.conftest import CHECKOUT, EVIL, Published

WORDS = (
    "2015-09-13 00:00 UTC; unfinished, so far up to 2015-09-12 12:00",
    "± is 95% of the noise. It does not cover what the contribution bounds leave out.",
    "One user_id counts with at most 8 records in a window, 4 per channel, in at most 2 values of channel.",
)
SOURCES = str(CHECKOUT / "conf" / "sources.yaml")


class Seen(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def view(published: Published, *words: str) -> Result:
    return CliRunner().invoke(
        main,
        [
            "view",
            "demo",
            "--lake",
            published.lake,
            "--secret-file",
            str(published.secret),
            "--sources",
            SOURCES,
            *words,
        ],
    )


def test_the_page_says_what_was_published(published: Published, tmp_path: Path) -> None:
    out = tmp_path / "demo.html"
    assert view(published, "--out", str(out)).stdout == f"wrote {out}\n"
    assert [path.name for path in tmp_path.glob("*.html*")] == ["demo.html"], (
        "no temporary file is left"
    )
    seen = Seen(out.read_text(encoding="utf-8"))
    last = published.rows[published.rows["trigger"] == 12]
    for said in (
        "12 of 24",
        "2015-09-12 12:00 UTC",
        f"Keys shown {len(last)}",
        "epsilon 6",
        "1 run of ledger wiki",
        "stored input",
        "at most 4 each",
        *WORDS,
    ):
        assert said in seen.text
    for row in last.to_dict("records"):
        assert f"{row['edits']:,} ± {1.959964 * row['edits_stderr']:,.0f}" in seen.text
    assert len(seen.all("tbody")) == 1 and len(seen.all("tr")) == len(last) + 1
    assert len(seen.all("polyline")) > 3 * 20, (
        "every key has its way through the window, for every aggregate"
    )
    pictures = [each["src"] or "" for each in seen.all("img")]
    assert len(pictures) == 3, (
        "growth of three aggregates; there is one window, so nothing is drawn window by window"
    )
    assert len([each for each in seen.all("svg") if each.get("class") == "interval"]) == 3 * len(
        last
    )
    for picture in pictures:
        assert b"<svg" in base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,"))
    assert all("95%" in (each["alt"] or "") for each in seen.all("img"))


def test_the_page_needs_nothing_and_no_key_commands_it(
    published: Published, tmp_path: Path
) -> None:
    out = tmp_path / "demo.html"
    view(published, "--out", str(out))
    text = out.read_text(encoding="utf-8")
    seen = Seen(text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [
        each["content"] or ""
        for each in seen.all("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert (
        policy
        == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    assert not any(
        name in attributes
        for _, attributes in seen.tags
        for name in ("href", "onclick", "onload", "action")
    )
    assert all((each["src"] or "").startswith("data:") for each in seen.all("img"))
    assert EVIL.replace("\x1b", "\\x1b") in seen.text
    assert "\x1b" not in text


def test_no_name_commands_it(published: Published) -> None:
    """Catches: a place of the template whose text is not escaped: name of the query, columns, unit, ledger, attributes of a tag."""
    strange = {"edits": EVIL, "edits_stderr": f"{EVIL}_stderr", "channel": f"key {EVIL}"}
    found = at(published, NOON, "running")
    columns = tuple(
        dataclasses.replace(
            each, name=strange.get(each.name, each.name), of=strange.get(each.of or "", each.of)
        )
        for each in found.published.columns
    )
    measures = tuple(
        dataclasses.replace(each, alias=strange.get(each.alias, each.alias))
        for each in found.published.measures
    )
    renamed = published.rows.rename(columns=strange)
    renamed.attrs[PROPERTY] = dataclasses.replace(
        found.published, columns=columns, measures=measures
    ).text()
    said = dataclasses.replace(
        found.published,
        protects=(dataclasses.replace(found.published.protects[0], units=(f"unit {EVIL}",)),),
    )
    (budget,) = [
        each
        for each in budgets(Ledger.beside(published.secret).lines(), ())
        if each.ledger == "wiki"
    ]
    budget = dataclasses.replace(budget, ledger=f"ledger {EVIL}")
    strange_one = dataclasses.replace(found, name=f"name {EVIL}", published=said, budget=budget)
    plain = Seen(page(at(published, NOON, "running"), published.rows))
    seen = Seen(page(strange_one, renamed))
    assert {tag for tag, _ in seen.tags} == {tag for tag, _ in plain.tags}
    assert len(seen.all("script")) == 1
    assert {name for _, attributes in seen.tags for name in attributes} == {
        name for _, attributes in plain.tags for name in attributes
    }
    for what in ("name", "key", "unit", "ledger"):
        assert f"{what} <script>document.title='owned'</script>" in seen.text


@pytest.mark.usefixtures("no_pictures")
def test_a_page_of_no_run_that_can_be_read(published: Published, tmp_path: Path) -> None:
    """An analyst who may read the histogram alone sees what it promises, and no budget."""
    private = Lake(published.lake).private("demo")
    private.rename(tmp_path / "elsewhere")
    private.write_text("a file in the way")
    found = standing(Lake(published.lake), "demo", published.rows)
    assert (found.state, found.overdue) == (None, None)
    text = Seen(page(found, published.rows)).text
    assert (
        "Trigger 12 of 24 2015-09-12 12:00" in text
        and "epsilon 6" in text
        and "All runs" not in text
    )


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    levels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [((each + 0.055) / 1.055) ** 2.4 if each > 0.04 else each / 12.92 for each in levels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_every_text_is_dark_enough(published: Published) -> None:
    """Catches: a grey that is hard to read, in either theme."""
    text = page(at(published, NOON, "running"), published.rows)
    for theme in re.findall(r":root \{[^}]*--ground[^}]*\}", text):
        colours = dict(re.findall(r"--(\w+): (#\w+)", theme))
        for name in ("ink", "soft", "weak", "warn"):
            two = sorted(luminance(colours[each]) for each in (name, "ground"))
            assert (two[1] + 0.05) / (two[0] + 0.05) >= 4.5, (name, theme)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(published: Published, now: datetime, state: str | None) -> Standing:
    return Standing(
        "demo",
        now,
        state,
        PublicRows.of_frame(published.rows).description,
        12,
        NOON,
        NOON + timedelta(seconds=42),
    )


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose words are looked at: its charts take all of its time."""
    monkeypatch.setattr(
        "dpsql.view.page._picture", lambda *of, **more: Picture("data:", "data:", str(of[-1]))
    )


@pytest.mark.usefixtures("no_pictures")
def test_lag(published: Published) -> None:
    """A live run is on time, late for its next trigger, or nobody works on it."""
    rows = published.rows.iloc[:5].assign(trigger_time=NOON)
    soon = Seen(page(at(published, NOON + timedelta(minutes=5), "running"), rows))
    assert (
        "Lag 42 s newest trigger written 2026-01-01 12:00 UTC; next 2026-01-01 13:00" in soon.text
    )
    late = Seen(page(at(published, NOON + timedelta(hours=3), "running"), rows))
    assert "2 h overdue" in late.text and {"class": "warn"} in late.all("li")
    stopped = Seen(page(at(published, NOON + timedelta(days=3), "stopped"), rows))
    assert (
        "stopped" in stopped.text
        and "overdue" not in stopped.text
        and {"class": "warn"} not in stopped.all("li")
    )
    refreshed = Seen(page(at(published, NOON, "running"), rows, refresh_seconds=5))
    assert {"http-equiv": "refresh", "content": "5"} in refreshed.all("meta")
    assert not any(each.get("http-equiv") == "refresh" for each in soon.all("meta"))


@pytest.mark.usefixtures("no_pictures")
def test_a_cap_is_a_bar(published: Published, tmp_path: Path) -> None:
    file = tmp_path / "sources.yaml"
    capped = (
        (CHECKOUT / "conf/sources.yaml")
        .read_text()
        .replace("  wiki:\n", "  wiki:\n    cap: {epsilon: 20, delta: 1e-6, period: 7 days}\n", 1)
    )
    file.write_text(capped)
    found = budgets(Ledger.beside(published.secret).lines(), load_sources(file).values())
    (budget,) = [each for each in found if each.ledger == "wiki"]
    assert budget.cap is not None
    budget = dataclasses.replace(budget, rows_only=(3, ()))
    text = page(dataclasses.replace(at(published, NOON, "running"), budget=budget), published.rows)
    assert "of ledger wiki; not in it: 3 that protect rows only" in Seen(text).text
    assert f"Budget spent {budget.cap.spent_share:.0%} of epsilon 20 per 7 days" in Seen(text).text
    assert f"width:{100 * budget.cap.spent_share:.1f}%" in text


def test_a_trend_is_the_band_and_the_line() -> None:
    drawn = trend(
        np.array([1, 2, 4]), np.array([0.0, 100.0, np.nan]), np.array([10.0, 10.0, 10.0]), 4
    )
    (line,) = re.findall(r'polyline class="line" points="([^"]*)"', drawn)
    across = [float(point.split(",")[0]) for point in line.split()]
    up = [float(point.split(",")[1]) for point in line.split()]
    assert across == [3.0, 45.0], "the second of four triggers is a third of the way"
    low = -19.6
    high = 119.6
    assert up == pytest.approx(
        [25 - 22 * (value - low) / (high - low) for value in (0.0, 100.0)], abs=0.06
    )
    assert len(re.findall(r'polygon class="band" points="([^"]*)"', drawn)[0].split()) == 4
    assert "polyline" not in trend(np.array([3]), np.array([5.0]), np.array([1.0]), 4)
    assert trend(np.array([3]), np.array([np.nan]), np.array([1.0]), 4) == ""
    long = trend(np.arange(1, 10_001), np.ones(10_000), np.ones(10_000), 10_000)
    assert len(long) < 4_000
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', long)[0])
    x, y = map(float, re.findall(r'cx="([^"]*)" cy="([^"]*)"', long)[0])
    assert x == width - 3 and 0 < y < height, "the newest point is in sight"


@pytest.mark.usefixtures("no_pictures")
def test_what_is_not_there_is_said(published: Published, tmp_path: Path) -> None:
    for words, says in (
        (("--window", "2014-01-01"), "published no window that starts at this time"),
        (("--out", str(tmp_path / "none" / "x.html")), "there is no folder"),
    ):
        refused = view(published, *words)
        assert refused.exit_code == 2 and says in refused.stderr and refused.stdout == ""


def test_watch_follows_the_run_until_it_is_asked_to_stop(
    published: Published, tmp_path: Path
) -> None:
    """Catches: a page that is not made anew, one that is seen half written, a page that goes on asking after the end."""
    out = tmp_path / "demo.html"
    words = [
        "view",
        "demo",
        "--lake",
        published.lake,
        "--secret-file",
        str(published.secret),
        "--sources",
        SOURCES,
        "--out",
        str(out),
        "--watch",
    ]
    place = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    watching = subprocess.Popen(
        [sys.executable, "-m", "dpsql.jobs.cli", *words],
        env=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until(lambda: out.exists() and "12 of 24" in out.read_text(), watching)
        assert 'http-equiv="refresh" content="5"' in out.read_text()
        newer = published.rows[published.rows["trigger"] == 12].assign(trigger=13)
        newer["trigger_time"] += pd.Timedelta(hours=1)
        published.more(newer.astype({"trigger": published.rows["trigger"].dtype}))
        _until(lambda: "13 of 24" in out.read_text(), watching)
        watching.send_signal(signal.SIGTERM)
        stdout, stderr = watching.communicate(timeout=60)
        assert watching.returncode == 0, stderr
        assert "follows the run" in stdout and "Traceback" not in stderr
        assert 'http-equiv="refresh"' not in out.read_text(), "nobody makes it anew any more"
    finally:
        watching.kill()
        watching.wait()


def test_a_table_is_shown_once_after_every_commit(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a table that is printed at every look, or never again; Ctrl-C that is an error."""
    looks = iter(range(6))

    def sleep(_: float) -> None:
        look = next(looks)
        if look == 2:
            newer = published.rows[published.rows["trigger"] == 12].assign(trigger=13)
            newer["trigger_time"] += pd.Timedelta(hours=1)
            published.more(newer.astype({"trigger": published.rows["trigger"].dtype}))
        if look == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("dpsql.jobs.watch.sleep", sleep)
    done = CliRunner().invoke(
        main, ["show", "demo", "--lake", published.lake, "--watch", "--limit", "3"]
    )
    assert done.exit_code == 0 and done.stderr == "", done.output
    assert done.stdout.count("12, unfinished") == done.stdout.count("13, unfinished") == 3


def _until(found: object, process: subprocess.Popen[str], seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not found():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.2)
