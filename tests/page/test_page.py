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
from dpsql.text import Z95
from dpsql.view.drawings import HEIGHT, MARGIN, WIDTH, trend, way
from dpsql.view.page import page
from dpsql.view.standing import Standing, standing
from tests.page.conftest import CHECKOUT, EVIL, Published

WORDS = (
    " per channel, 12 September 2015 ",
    "Private numbers: released from stored input, unfinished, so far up to 2015-09-12 12:00.",
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
        f"15 of {len(last)}, by editors, the largest first",
        "Protected each user_id all that one user_id does in a window of 1 day: epsilon 6, delta 1e-09",
        "Left out rare keys, and records beyond limits",
        "1 run of ledger wiki",
        "at most 4 each",
        *WORDS,
    ):
        assert said in seen.text
    for row in last.to_dict("records"):
        assert f"{row['edits']:,} ± {1.959964 * row['edits_stderr']:,.0f}" in seen.text
    assert len(seen.all("tbody")) == 1 and len(seen.all("tr")) == len(last) + 1
    drawings = [each.get("class") for each in seen.all("svg")]
    assert drawings.count("trend") > 3 * 20, (
        "every key has its way through the window, for every aggregate"
    )
    assert drawings.count("series") == 3 * 6, "there is one window, so none is drawn by window"
    assert drawings.count("interval") > 2 * len(last) + 15
    for live in ("Trigger", "Lag", "Input"):
        assert f"{live} " not in seen.text.replace("Trigger by", ""), "nobody waits for the next"


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
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not any(
        name in attributes
        for _, attributes in seen.tags
        for name in ("onclick", "onload", "action", "src", "srcset")
    )
    (rows,) = seen.all("a")
    assert (rows["href"] or "").startswith(
        "data:text/csv;charset=utf-8,%EF%BB%BF%22window_start%22"
    )
    assert rows["download"] == "demo.csv" and [tag for tag, _ in seen.tags].count("a") == 1
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


def test_a_page_of_no_run_that_can_be_read(published: Published, tmp_path: Path) -> None:
    """An analyst who may read the histogram alone sees what it promises, and no budget."""
    private = Lake(published.lake).private("demo")
    private.rename(tmp_path / "elsewhere")
    private.write_text("a file in the way")
    found = standing(Lake(published.lake), "demo", published.rows)
    assert (found.state, found.overdue) == (None, None)
    text = Seen(page(found, published.rows)).text
    assert (
        "so far up to 2015-09-12 12:00" in text and "epsilon 6" in text and "All runs" not in text
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


def test_lag(published: Published) -> None:
    """A live run is on time, late for its next trigger, or nobody works on it."""
    rows = published.rows.iloc[:5].assign(trigger_time=NOON)
    soon = Seen(page(at(published, NOON + timedelta(minutes=5), "running"), rows))
    assert (
        "Lag 42 s newest trigger written 2026-01-01 12:00 UTC; next 2026-01-01 13:00" in soon.text
    )
    assert "Trigger 12 of 24 2026-01-01 12:00 UTC" in soon.text
    late = Seen(page(at(published, NOON + timedelta(hours=3), "running"), rows))
    assert "2 h overdue" in late.text and {"class": "warn"} in late.all("li")
    stopped = Seen(page(at(published, NOON + timedelta(days=3), "stopped"), rows))
    assert (
        "stopped" in stopped.text
        and "overdue" not in stopped.text
        and "Trigger 12" not in stopped.text
        and {"class": "warn"} not in stopped.all("li")
    )
    refreshed = Seen(page(at(published, NOON, "running"), rows, refresh_seconds=5))
    assert {"http-equiv": "refresh", "content": "5"} in refreshed.all("meta")
    assert not any(each.get("http-equiv") == "refresh" for each in soon.all("meta"))


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


def points(drawing: str, name: str) -> list[tuple[int, int]]:
    """The points of a path, which are told each by its way from the one before."""
    (path,) = re.findall(rf'class="{name}" d="([^"]*)"', drawing)
    found = list[tuple[int, int]]()
    for sign, x, y in re.findall(r"([Ml])(-?\d+) (-?\d+)", path):
        x0, y0 = (0, 0) if sign == "M" else found[-1]
        found.append((x0 + int(x), y0 + int(y)))
    return found


def test_a_trend_is_the_band_and_the_line() -> None:
    """Catches: a newest point outside of the drawing; a scale without zero; a page that grows with the triggers."""
    drawn = trend(
        np.array([1, 2, 4]), np.array([0.0, 100.0, np.nan]), np.array([10.0, 10.0, 10.0]), 4
    )
    line = points(drawn, "line")
    third = MARGIN + (WIDTH - 2 * MARGIN) / 3
    assert [x for x, _ in line] == [MARGIN, round(third)], (
        "the second of four is a third of the way"
    )
    low, high, room = -19.6, 119.6, HEIGHT - 2 * MARGIN
    up = [HEIGHT - MARGIN - room * (value - low) / (high - low) for value in (0.0, 100.0)]
    assert [y for _, y in line] == pytest.approx(up, abs=0.6)
    assert len(points(drawn, "band")) == 4
    assert trend(np.array([3]), np.array([np.nan]), np.array([1.0]), 4) == ""
    long = trend(np.arange(1, 10_001), np.ones(10_000), np.ones(10_000), 10_000)
    assert len(long) < 2_000
    ((x, y),) = points(long, "dots")
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', long)[0])
    assert x == width - MARGIN and 0 < y < height, "the newest point is in sight"


@pytest.mark.parametrize(("count", "dots"), [(60, 60), (61, 1)])
def test_lines_of_many_points_have_no_dots(count: int, dots: int) -> None:
    """Catches: markers that hide the band; a gap that a line crosses; a smoothed line that is not drawn."""
    values = np.arange(count + 1, dtype=float)
    values[20] = np.nan
    across = np.linspace(0, 1, count + 1)
    drawn, scale = way("series", across, values, np.ones(count + 1), values + 3)
    assert scale == pytest.approx((-Z95, count + Z95))
    assert len(points(drawn, "dots")) == dots and len(points(drawn, "guess")) == count
    (line,) = re.findall(r'class="line" d="([^"]*)"', drawn)
    assert line.count("M") == 2


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
        _until(
            lambda: out.exists() and "so far up to 2015-09-12 12:00" in out.read_text(), watching
        )
        assert 'http-equiv="refresh" content="5"' in out.read_text()
        newer = published.rows[published.rows["trigger"] == 12].assign(trigger=13)
        newer["trigger_time"] += pd.Timedelta(hours=1)
        published.more(newer.astype({"trigger": published.rows["trigger"].dtype}))
        _until(lambda: "so far up to 2015-09-12 13:00" in out.read_text(), watching)
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
