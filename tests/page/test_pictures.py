"""What a page shows first, and how: pictures, titles, cards, columns of quantiles, keys in their own order, rows as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import subprocess
import sys
from datetime import date
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from dpsql.description import NOTE, PROPERTY, Protects
from dpsql.published.public_rows import PublicRows
from dpsql.text import Z95
from dpsql.view.csv_text import csv_text
from dpsql.view.page import page
from dpsql.view.plain_table import OpenedTable
from dpsql.view.series import over_windows
from dpsql.view.table import MOST_IN_ORDER
from tests.described import described
from tests.page.test_table import DAYS, made, published, said, seen, standing

SCRIPTS = ("日本語", "中文", "한국어", "العربية", "हिन्दी")
EVIL = "<img src=x onerror=alert(1)> \"'&{{ 7*7 }}"


def titled(starts: str, ends: str) -> str:
    rows = published({0: {"a": 900.0}})
    rows = rows.assign(window_start=pd.Timestamp(starts), window_end=pd.Timestamp(ends))
    (title,) = re.findall(r"<h1>(.*)</h1>", page(standing(rows), rows))
    return title


@pytest.mark.parametrize(
    ("starts", "ends", "when"),
    [
        ("2015-09-12T00:00Z", "2015-09-13T00:00Z", "12 September 2015"),
        ("2015-09-01T00:00Z", "2015-10-01T00:00Z", "1 September 2015 to 30 September 2015"),
        ("2015-09-12T13:00Z", "2015-09-12T14:00Z", "12 September 2015, 13:00 to 14:00"),
        ("2015-09-12T23:00Z", "2015-09-13T00:00Z", "12 September 2015, 23:00 to 00:00"),
        ("2015-09-12T22:00Z", "2015-09-13T04:00Z", "12 September 2015 22:00 to 13 September 2015 04:00"),
    ],
)  # fmt: skip
def test_a_title_is_words(starts: str, ends: str, when: str) -> None:
    assert titled(starts, ends) == f"N per page, {when}"


def test_a_picture_comes_first_and_the_explanation_last() -> None:
    """Catches: a table before any picture; more or fewer than the 15 largest; a page that does not say what its table says of itself."""
    rows = published({0: {f"k{i:02}": 9_000.0 - 100 * i for i in range(32)}})
    text = page(standing(rows), rows)
    places = [text.index(part) for part in ("<h1>", '<div class="dots">', "<table>", "<details>")]
    assert places == sorted(places)
    picture = text[places[1] : text.index("</figure>")]
    drawn = re.findall(
        r'<bdi>(k\d\d)</bdi></span><svg class="interval".*?</svg><span class="number">([^<]*)',
        picture,
    )
    assert drawn == [(f"k{i:02}", f"{9_000 - 100 * i:,}.0 ± 9.8") for i in range(15)]
    assert "n: 15 of 32, by n, the largest first" in text
    details = seen(text[places[3] : text.index("</details>")])
    for line in OpenedTable(rows).explain().splitlines():
        assert line in details
    assert len(text) < 100_000, "32 keys are a small page"


def test_numbers_without_keys_begin_with_their_lines() -> None:
    """Catches: a headline of one of several numbers; a page without keys that has no picture above its table."""
    rows = published({0: {"a": 900.0}}).drop(columns="page")
    rows = rows.assign(m=7.0, m_stderr=1.0)
    rows.attrs[PROPERTY] = described(rows.columns).text()
    text = page(standing(rows), rows)
    assert "n: 900.0 ± 9.8; m: 7.0 ± 2.0" in seen(text) and "N, m, 1 March 2024" in seen(text)
    assert text.count('<svg class="series"') == 2
    assert text.index('<svg class="series"') < text.index('class="cards"') < text.index("<table>")


@pytest.mark.parametrize("ranks", [0.02, 0.2, 0.4, 0.6])
def test_quantiles_have_a_cell_each(ranks: float) -> None:
    """Catches: declared bounds shown as data; ranks that allow anything shown as numbers; no mark where they are half a step off."""
    rows = published({0: {"a": 300.0, "b": 20.0}}).drop(columns=["n", "n_stderr"])
    answer = [0.0, 11.0, 18.0, 54.0, 1_000.0]
    rows = rows.assign(sizes=[answer] * len(rows), sizes_rank_stderr=ranks / Z95)
    rows.attrs[PROPERTY] = described(rows.columns).text()
    found = made(rows, 0)
    details = [head.detail for head in found.heads]
    assert details == ["25%", "50%", "75%", "ranks"]
    assert {head.name for head in found.heads} == {"sizes"}
    cells = found.rows[0].cells
    if ranks > 0.5:
        assert [cell.text for cell in cells] == ["–"] * 3 + ["too few to say"]
        assert not any(cell.interval for cell in cells)
        return
    rough = ranks > 0.5 / 4
    assert [float(cell.text.strip("? ")) for cell in cells[:3]] == pytest.approx(
        [11, 18, 54], abs=9
    )
    assert {(cell.text[0] == "?", cell.small) for cell in cells[:3]} == {(rough, rough)}
    assert cells[3].text == f"± {100 * ranks:.2g}%"
    assert cells[2].interval.count('class="tick"') == 3 and not cells[0].interval
    assert "1,000" not in seen(page(standing(rows), rows)).split("What these")[0]


def test_many_quantiles_are_five_columns() -> None:
    rows = published({0: {"a": 300.0}}).drop(columns=["n", "n_stderr"])
    answer = np.linspace(0, 100, 101).tolist()
    rows = rows.assign(sizes=[answer] * len(rows), sizes_rank_stderr=0.001)
    rows.attrs[PROPERTY] = described(rows.columns).text()
    details = [head.detail for head in made(rows, 0).heads]
    assert details == ["5%", "25%", "50%", "75%", "95%", "ranks"]


def slots(text: str) -> list[str]:
    return re.findall(r'<div title="([^"]*): [^"]*">', text)


def test_numbers_and_days_stand_in_their_own_order() -> None:
    """Catches: hours by size; a gap that a missing key hides; an order of the query that is not kept."""
    hours = {"16": 900.0, "2": 500.0, "0": 80.0, "3": 700.0}
    rows = published({0: hours}).astype({"page": "int64"})
    text = page(standing(rows), rows)
    assert (
        slots(text) == ["0", "2", "3", "16"]
        and text.count('<div><span class=""></span></div>') == 13
    )
    found = made(rows, 0)
    assert [row.keys[0] for row in found.rows] == ["0", "2", "3", "16"]
    assert found.order == "by page, upwards" and found.first == found.rows[3]
    assert "n: page 16 is first, 900.0 ± 9.8" in seen(text)
    ordered = said(rows, order=("n DESC",))
    assert [row.keys[0] for row in made(ordered, 0).rows] == ["16", "3", "2", "0"]
    assert not slots(page(standing(ordered), ordered))
    days = published({0: {"2024-02-28": 9.0, "2024-03-01": 50.0, "2024-02-29": 400.0}})
    days = days.assign(page=[date.fromisoformat(day) for day in days["page"]])
    assert slots(page(standing(said(days)), said(days))) == [
        "2024-02-28",
        "2024-02-29",
        "2024-03-01",
    ]


@pytest.mark.parametrize(
    ("keys", "dtype"), [(["b", None], "string[pyarrow]"), ([16, None], "int64[pyarrow]")]
)
def test_null_is_a_key_like_others(keys: list[object], dtype: str) -> None:
    """Catches: a NULL of Arrow's own types that ends a line, a picture or the rows as CSV."""
    rows = published({day: {"a": 500.0, "b": 900.0} for day in (0, 1)})
    values = [keys[int(key == "b")] for key in rows["page"]]
    rows = said(rows.assign(page=pd.array(values, dtype=dtype)))
    text = page(standing(rows), rows[rows["window_start"] == DAYS[1]], all_rows=rows)
    assert text.count("<bdi>NULL</bdi>") >= 3 and "n: " in seen(text)


def test_many_numbers_stand_by_size() -> None:
    many = published({0: {str(i): 100.0 + i for i in range(MOST_IN_ORDER + 1)}})
    rows = many.astype({"page": "int64"})
    assert made(rows, 0).rows[0].keys == (str(MOST_IN_ORDER),)
    assert not slots(page(standing(rows), rows))


def windows(count: int, keys: int = 1, **columns: float) -> pd.DataFrame:
    starts = pd.date_range("2024-01-01", periods=count, freq="15min", tz="UTC")
    size = pd.Timedelta("15min")
    rows = [
        (start, start + size, 1, start + size, f"k{key}", 100.0 * (key + 1) + i % 7, 1.0)
        for i, start in enumerate(starts)
        for key in range(keys)
    ]
    names = ["window_start", "window_end", "trigger", "trigger_time", "page", "n", "n_stderr"]
    return said(pd.DataFrame(rows, columns=names).assign(**columns))


def test_windows_that_are_not_drawn_are_told() -> None:
    """Catches: two hours of a day, of which the page says that it is each window; a smoothed value in no picture."""
    all_drawn = over_windows(PublicRows.of_frame(windows(1_426)), "n")
    cut = over_windows(PublicRows.of_frame(windows(1_426, keys=6)), "n")
    assert all_drawn and cut
    assert "All 1,426 windows." in all_drawn.sentences and all_drawn.begin == "01 Jan"
    assert "The newest 500 of 1,426 windows." in cut.sentences and len(cut.lines) == 6
    assert 'class="guess"' not in all_drawn.lines[0].drawing
    smoothed = over_windows(PublicRows.of_frame(windows(100, n_smoothed=101.0)), "n")
    assert smoothed and 'class="guess"' in smoothed.lines[0].drawing
    assert any("smoothed" in sentence for sentence in smoothed.sentences)


def test_averages_that_say_nothing_are_in_no_line() -> None:
    """Catches: the middle of the bounds drawn as if it were a value."""
    from tests.page.test_table import AVERAGES

    rows = published({day: {"a": 9.0} for day in range(3)}, stderr=0.5, measure=AVERAGES)
    rows.loc[rows["window_start"] == DAYS[1], ["n", "n_stderr"]] = 5.0, 5 / Z95
    series = over_windows(PublicRows.of_frame(rows), "n")
    assert series
    (line,) = re.findall(r'class="line" d="([^"]*)"', series.lines[0].drawing)
    assert line.count("M") == 2


def test_keys_of_every_script_are_text() -> None:
    """Catches: keys inside of a picture, whose fonts lack most scripts; a page that imports what draws such pictures."""
    rows = published(
        {day: {key: 900.0 - 50 * i for i, key in enumerate(SCRIPTS)} for day in (0, 1)}
    )
    text = page(standing(rows), rows[rows["window_start"] == DAYS[1]], all_rows=rows)
    for key in SCRIPTS:
        assert text.count(f"<bdi>{key}</bdi>") >= 2 + 1 + 1, "picture, tables, lines"
        assert all(key not in drawing for drawing in re.findall("<svg.*?</svg>", text))
    assert "<img" not in text and "image/" not in text
    program = "import sys; sys.modules['matplotlib'] = None; import dpsql.view.page"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_first_key_commands_nothing() -> None:
    """Catches: a headline, a picture or a line whose key is not escaped."""
    plain, strange = (
        page(standing(rows), rows)
        for rows in (published({0: {key: 900.0, "b": 1.0}}) for key in ("a", EVIL))
    )
    tags = [re.findall(r"<[a-z]+", text) for text in (plain, strange)]
    assert tags[0] == tags[1]
    assert seen(strange).count(EVIL) >= 4, "headline, picture, table, line"


def test_cards_are_words() -> None:
    """Catches: trigger and lag of a run that is over; several promises under one head."""
    rows = published({0: {"a": 900.0}})
    run = Protects(
        level="USER", units=("user_id",), period_us=None, max_rows=8, max_rows_per_group=None, max_groups=2,
        sums=1, units_needed=22, rows_end=False, epsilon=2.0, delta=1e-9,
    )  # fmt: skip
    of_rows = dataclasses.replace(run, units=(), level="EVENT", units_needed=None)
    told = dataclasses.replace(PublicRows.of_frame(rows).description, protects=(of_rows, run))
    stood = dataclasses.replace(standing(rows), published=told, state="published")
    text = seen(page(stood, rows)).replace("\n", " ")
    cards = re.findall(r"(Protected, run \d of 2|Noise|Left out|Made|Trigger|Lag)(?=[a-z2])", text)
    assert cards == ["Protected, run 1 of 2", "Protected, run 2 of 2", "Noise", "Left out", "Made"]
    for words in (
        "each row, not each personepsilon 2, delta 1e-09",
        "each user_idall that one user_id does for ever: epsilon 2, delta 1e-09",
        "added to every number± is 95% of the noise.",
        "A key appears once about 22 different user_id have it in one window of 1 day.",
        "A missing key is not zero.",
        "2024-03-04 00:00 UTCreleased from stored input",
    ):
        assert words in text
    live = seen(page(dataclasses.replace(stood, state="running"), rows))
    assert "Trigger2 of 24" in live and "Lag" in live and "Made2" not in live


FORMULAS = ("=1+1", "+1", "-1", "@x", " =1", "\t=1", "a;=1", 'a","=1', "a\n=1", "＝1", "'=1", "'")
HARMLESS = ("a=1", "#en", "1-2", "", "a'b", "日本語", 'say "hi"', "a;b", "a,b", "NULL")


def unmarked(text: str) -> str:
    return re.sub(r"(^|[;\t\r\n\"])(\s*)'", r"\1\2", text)


def test_no_cell_of_the_csv_is_a_formula() -> None:
    """Catches: a key that a spreadsheet runs, also where it parts cells at semicolons; two keys with one text; a change that nothing tells."""
    keys = [*FORMULAS, *HARMLESS]
    rows = published({0: {key: 9.0 for key in keys}}).assign(n=-5.5)
    newest = PublicRows.of_frame(rows).newest
    text, is_marked = csv_text(newest)
    assert text.startswith("\ufeff") and is_marked
    head, *lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    assert head[4:] == ["page (' added before = + - @)", "n", "n_stderr", NOTE]
    assert [unmarked(line[4]) for line in lines] == keys
    assert [line[4] for line in lines][len(FORMULAS) :] == [*HARMLESS]
    assert {line[5] for line in lines} == {"-5.5"} and lines[0][0] == "2024-03-01T00:00:00Z"
    for cell in re.split(r"[;,\t\r\n\"|]", text):
        assert not re.match(r"\s*[=+@＝]|\s*-(?!5\.5$)", cell), cell
    harmless = newest.where(newest.frame["page"].isin(HARMLESS))
    assert not csv_text(harmless)[1] and "added" not in csv_text(harmless)[0]
    shown = page(standing(rows), rows)
    assert "an apostrophe is added before = + - @" in seen(shown)
    (address,) = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', shown)
    assert sorted(unquote(address).splitlines()) == sorted(text.splitlines())


def test_the_csv_tells_null_from_nothing_and_keeps_lists() -> None:
    rows = published({0: {"": 9.0, "b": 8.0}})
    rows = rows.assign(sizes=[[0.0, -2.5]] * len(rows))
    rows.loc[rows["page"] == "b", "page"] = None
    text, _ = csv_text(PublicRows.of_frame(rows).newest)
    _, empty, null, _ = text.split("\r\n")
    assert empty.split(",", 4)[4] == '"",9.0,5.0,"[0.0, -2.5]","n: smaller than its error"'
    assert null.split(",", 4)[4] == ',8.0,5.0,"[0.0, -2.5]","n: smaller than its error"'


def test_scales_of_lines_and_limits_of_lists_are_told() -> None:
    rows = published({0: {"a": 900.0, "b": 20.0}})
    text = seen(page(standing(rows), rows))
    assert "trigger by trigger, each with a scale of its own from zero." in text
    assert "Each line has a scale of its own." in text
    run = Protects(
        level="USER", units=("user_id",), period_us=3_600_000_000, max_rows=4, max_rows_per_group=2, max_groups=None,
        sums=1, units_needed=None, rows_end=False, epsilon=2.0, delta=1e-9,
    )  # fmt: skip
    told = dataclasses.replace(PublicRows.of_frame(rows).description, protects=(run,))
    listed = seen(page(dataclasses.replace(standing(rows), published=told), rows, listed=True))
    limits = "One user_id counts with at most 4 records in a window, 2 per page."
    assert f"{limits} What is beyond is left out" in listed
    assert "N, 1 March 2024" in listed and "N per page" not in listed


def test_places_are_of_each_column() -> None:
    """Catches: places by one column beside an order by another."""
    rows = published({0: {"a": 900.0, "b": 20.0}})
    more = rows.assign(m=[5.0 if key == "a" else 700.0 for key in rows["page"]], m_stderr=1.0)
    two = dataclasses.replace(
        described(more.columns), measures=tuple(
            dataclasses.replace(measure, alias=alias)
            for alias in ("n", "m") for measure in PublicRows.of_frame(rows).description.measures
        )
    )  # fmt: skip
    more.attrs[PROPERTY] = two.text()
    found = made(more, 0)
    places = [[cell.place for cell in row.cells] for row in found.rows]
    assert sorted(places) == [["1", "2"], ["2", "1"]]
    text = page(standing(more), more)
    assert text.count('data-place="1"') == text.count('data-place="2"') == 3
