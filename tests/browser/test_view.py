"""The page of `dpsql view` in a real Chromium: `make test-browser`. Not part of CI, whose machines have no browser (tests/page is)."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from dpsql.jobs.cli import main
from dpsql.view.page import page
from tests.page.conftest import CHECKOUT, Published, half_a_day, published
from tests.page.test_table import cube, standing

__all__ = ["half_a_day", "published"]
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BLUE = np.array([0x00, 0x72, 0xB2]) / 255


@pytest.fixture
def browser() -> str:
    """A missing browser is a failure: whoever runs this wants to know."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            "no Chromium: install one (Debian: apt install chromium-headless-shell), or set CHROMIUM to its path"
        )
    return found


@pytest.fixture
def address(published: Published, tmp_path: Path) -> str:
    out = tmp_path / "demo.html"
    words = [
        "--lake",
        published.lake,
        "--secret-file",
        str(published.secret),
        "--sources",
        str(CHECKOUT / "conf/sources.yaml"),
    ]
    made = CliRunner().invoke(main, ["view", "demo", "--out", str(out), *words])
    assert made.exit_code == 0, made.output
    return out.as_uri()


def shown(browser: str, address: str, *words: str) -> tuple[str, str]:
    """What the browser made of the page, and what it said of it (console messages)."""
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1280,3000",
        "--virtual-time-budget=2000",
    ]  # fmt: skip
    done = subprocess.run(
        [browser, *flags, *words, address], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_it_loads_without_a_complaint_and_no_key_runs(browser: str, address: str) -> None:
    document, said = shown(browser, address, "--dump-dom")
    assert said == "", "the page's own policy or script was refused, or something failed"
    assert "<title>demo</title>" in document, "a key has run its script"
    assert document.count("<tr ") > 20 and 'hidden=""' not in document


def test_the_filter_finds_keys(browser: str, address: str) -> None:
    document, said = shown(browser, address + "#EN.wiki", "--dump-dom")
    assert said == ""
    rows = re.findall(r'<tr data-key="([^"]*)"( hidden="")?>', document)
    assert [key for key, hidden in rows if not hidden] == ["#en.wikipedia"]
    document, _ = shown(browser, address + "#nowhere", "--dump-dom")
    assert "a key that is missing is not zero</span>" in document


def test_the_charts_are_seen(browser: str, address: str, tmp_path: Path) -> None:
    picture = tmp_path / "shot.png"
    shown(browser, address, f"--screenshot={picture}")
    pixels = imread(picture)[:, :, :3]
    blue = np.abs(pixels - BLUE).max(axis=2) < 0.02
    assert blue[150:550].sum() > 150, "no dots in the first picture"
    assert blue[900:2000].sum() > 500, "no lines in the table"
    assert blue[2200:].sum() > 1_000, "no lines below the table"
    assert (pixels.mean(axis=2) > 0.99).mean() > 0.7, "the ground is white"


def test_places_and_words_follow_the_sort(browser: str, address: str) -> None:
    """Catches: places by the first column, and words on it, beside rows in the order of another."""
    document, said = shown(browser, address, "--dump-dom")
    heads = re.findall(r"<th(?: [^>]*)?>(?:<button[^>]*>([^<]*))?", document)
    for column in (heads.index("edits"), heads.index("editors")):
        document, said = shown(browser, f"{address}#&sort={column},-1", "--dump-dom")
        assert said == ""
        name = heads[column]
        assert f'Rows: <span class="order">by {name}, the largest first</span>' in document
        among = r"( among the records that count)?"
        assert re.search(f'Place in <span class="ranked">{name}{among}</span>', document)
        rows = re.findall(r"<tr data-key.*?</tr>", document)
        cells = [re.findall(r"<td[^>]*?(?:data-place=\"([^\"]*)\")?>([^<]*)", row) for row in rows]
        assert [row[0][1] for row in cells] == [row[column][0] for row in cells]


def test_the_picker_moves_title_pictures_and_table(browser: str, tmp_path: Path) -> None:
    """Catches: pictures of one window or level above the table of another."""
    file = tmp_path / "cube.html"
    rows = cube()
    file.write_text(page(standing(rows), rows))
    document, said = shown(browser, f"{file.as_uri()}#&window=hour", "--dump-dom")
    assert said == ""
    panels = re.findall(r'<section class="panel" data-window="([^"]*)"( hidden="")?>', document)
    assert [name for name, hidden in panels if not hidden] == ["hour", "hour"]
    assert len(panels) == 8 and "<h1>N per hour" in document


def test_it_fits_a_phone_and_the_first_column_stays(
    browser: str, address: str, tmp_path: Path
) -> None:
    """Catches: a page that is wider than its screen. (A window of this browser has 500 pixels at least.)"""
    picture = tmp_path / "phone.png"
    shown(
        browser, address, f"--screenshot={picture}", "--window-size=500,3000", "--hide-scrollbars"
    )
    pixels = imread(picture)[:, :, :3]
    assert (pixels[:, -10:] > 0.99).all(), "something reaches the edge of the screen"
    blue = np.abs(pixels - BLUE).max(axis=2) < 0.02
    assert blue[150:700].sum() > 150, "no dots in the first picture"
