"""Charts say what they show: axes, units, a caption, errors of 95%, and no key can command them."""

import io
import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.image import imread

import dpsql
from dpsql import Secret
from dpsql.description import DUE, PROPERTY, Measure
from dpsql.errors import DataError
from dpsql.parsed_query import AggregateFunction
from dpsql.published.public_rows import PublicRows
from dpsql.text import Z95
from dpsql.view import charts
from tests.described import told
from tests.page.conftest import CHECKOUT, half_a_day  # noqa: F401

DAY = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ["a", "_hidden", "$x^2$", None, "x" * 100, "tab\there"]


def histogram() -> pd.DataFrame:
    rows = []
    for trigger in range(1, 5):
        for i, key in enumerate(KEYS):
            when = DAY + timedelta(hours=6 * trigger)
            rows.append((DAY, DAY + timedelta(days=1), trigger, when, key, 1000 * trigger // (i + 1) - 600 * (i == 5), 10.0 * trigger))
    return told(pd.DataFrame(rows, columns=["window_start", "window_end", "trigger", "trigger_time", "page", "views", "views_stderr"]))


def texts(chart: charts.Chart) -> str:
    found = [chart.get_suptitle(), chart.get_supxlabel(), chart.get_supylabel()]
    for axes in chart.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *(places.get_ylabel() for places in axes.child_axes)]
        found += [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return "\n".join(found)


def labels(chart: charts.Chart) -> list[str]:
    return [label.get_text() for label in chart.axes[0].get_yticklabels()]


def places(chart: charts.Chart) -> list[str]:
    return [label.get_text() for label in chart.axes[0].child_axes[0].get_yticklabels()]


def test_growth_has_bands_of_95_percent() -> None:
    chart = charts.growth(histogram(), "views", keys=6, unit="page views")
    axes = chart.axes[0]
    band = next(each for each in axes.collections if isinstance(each, PolyCollection))
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(4000 + 1.96 * 40, abs=0.1)
    assert [len(each.lines) for each in chart.axes] == [1] * len(KEYS), "a panel for each key"
    assert "trigger time (UTC)" in chart.get_supxlabel() and axes.get_ylabel() == "page views"
    said = texts(chart)
    for part in ("95% of the noise", "2026-01-01 00:00", "NULL", r"\$x^2\$", "tab\\there", "_hidden"):
        assert part in said
    assert "x" * 41 not in said


def test_bars_name_every_key_and_mark_what_is_below_its_error() -> None:
    data = histogram()
    data.loc[(data["trigger"] == 4) & (data["page"] == "tab\there"), "views"] = 3
    chart = charts.bars(data, "views")
    bars = chart.axes[0].patches
    assert [bar.get_width() for bar in bars][-1] == 4000
    assert bars[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    said = texts(chart)
    assert "Hollow: smaller than its own error" in " ".join(said.split())
    assert dict(zip(labels(chart), places(chart), strict=True)).items() >= {"a": "1", "NULL": "4", r"\$x^2\$": "3"}.items()


def test_whiskers_of_an_average_are_whole_and_a_count_ranks_it() -> None:
    data = told(histogram().assign(rating=4.5, rating_stderr=1.0))
    data.loc[data["page"] == "tab\there", ["rating", "rating_stderr"]] = [2.5, 2.5 / Z95]
    published = PublicRows.of_frame(data).description
    measures = (*published.measures[:1], Measure("rating", AggregateFunction.AVG, False, (0.0, 5.0), None))
    data.attrs[PROPERTY] = replace(published, measures=measures).text()
    chart = charts.bars(data, "rating")
    axes = chart.axes[0]
    assert not axes.patches and axes.get_xlim() == (0.0, 4.5 + Z95)
    ends = np.concatenate([path.vertices[:, 0] for path in axes.collections[0].get_paths()])
    assert ends.min() == pytest.approx(0) and ends.max() == 4.5 + Z95
    assert (axes.collections[1].get_facecolor() == 1).all(axis=1).sum() == 1
    assert "Hollow: too few to say" in " ".join(texts(chart).split())
    assert (labels(chart)[-1], places(chart)[-1]) == ("a", "1"), "the most views, not the highest rating"
    assert "Ordered by views" in texts(chart)


def test_places_hold_the_truth_and_people_say_how_large_a_key_is(half_a_day: pd.DataFrame) -> None:
    """Catches: a chart of what bounds leave hardly anything of, ranked by itself; keys that are called first and are not."""
    rows = half_a_day[half_a_day["channel"].notna() & half_a_day["channel"].astype(str).str.startswith("#")]
    wiki = pd.read_parquet(CHECKOUT / "conf/demo/wiki")
    true = wiki[wiki["ts"] < rows[DUE].max()].groupby("key")["user_id"].nunique()
    orders = []
    for column in ("editors", "edits", "characters_added"):
        chart = charts.bars(rows, column, keys=15)
        drawn = list(zip(labels(chart), places(chart), strict=True))
        orders.append(drawn)
        held = [
            int(place.split("–")[0]) <= 1 + (true > true[key]).sum() and (true >= true[key]).sum() <= int(place.split("–")[-1])
            for key, place in drawn
        ]
        assert len(drawn) == 15 and sum(held) >= 13, drawn  # each with 95%
        said = " ".join(texts(chart).split())
        assert "place by editors" in said and "Keys that share places cannot be told apart" in said and "missing, not zero" in said
        growing = [axes.get_title(loc="left") for axes in charts.growth(rows, column, keys=6).axes]
        assert growing == [key for key, _ in drawn[::-1][:6]]
    assert orders[0] == orders[1] == orders[2]
    assert "leads in editors" in charts.bars(rows, "editors").axes[0].get_title(loc="left")
    noisy = rows.assign(**{f"{column}_stderr": 1e6 for column in ("editors", "edits", "characters_added")})
    assert charts.bars(noisy, "editors").axes[0].get_title(loc="left") == "No key can be told apart by editors"


def test_a_window_in_which_a_key_is_missing_interrupts_its_line() -> None:
    days = [histogram().assign(window_start=DAY + timedelta(days=i), window_end=DAY + timedelta(days=i + 1)) for i in range(3)]
    days[1] = days[1][days[1]["page"] != "a"]
    chart = charts.over_windows(pd.concat(days), "views")
    assert chart.axes[0].get_title(loc="left") == "a"
    assert np.isnan(np.asarray(chart.axes[0].lines[0].get_ydata(), float)).tolist() == [False, True, False]


def test_an_exported_chart_is_what_is_shown(tmp_path: Path) -> None:
    """Catches: a picture that fills the page, because nothing says how large it is."""
    chart = charts.bars(histogram(), "views")
    chart.savefig(tmp_path / "chart.png")
    exported = imread(tmp_path / "chart.png")
    shown, size = chart._repr_png_()
    assert size == {"width": 540, "height": round(exported.shape[0] / 2)} and exported.shape[1] == 1080
    assert (exported == imread(io.BytesIO(shown))).all()
    assert 0.005 < (exported[:, :, :3].mean(axis=2) < 0.5).mean() < 0.2, "an empty picture, or a black one"
    assert np.allclose(exported[0, 0, :3], 1)


SCRIPTS = {"chinese": "中文维基百科", "japanese": "日本語", "korean": "한국어", "arabic": "العربية", "hindi": "हिन्दी"}


@pytest.mark.parametrize("key", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("is_installed", [True, False], ids=["fonts", "no fonts"])
def test_keys_are_drawn_in_their_script(key: str, is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: empty boxes and their warnings; the place at the other end of an Arabic key, and reversed."""
    if not is_installed:
        monkeypatch.setattr(charts, "_families", tuple)
    rows = histogram()
    rows["page"] = rows["page"].replace({"tab\there": key, "a": f"{key} a"})
    chart = charts.bars(rows, "views")
    chart._repr_png_()  # no warning
    label = labels(chart)[0]
    family = chart.axes[0].get_yticklabels()[0].get_fontfamily()
    if any(not charts._lacking(key, [name]) for name in family):
        assert label == key and "No font here" not in chart.get_supxlabel()
    else:
        assert not is_installed or all(charts._lacking(key, [name]) for name in charts._families()), "a font has it"
        assert label == key.encode("unicode_escape").decode()
        assert chart.get_supxlabel().count("No font here has") == 1
    assert places(chart) == ["6", "5", "4", "3", "2", "1"]


def cube() -> pd.DataFrame:
    """Two hours and three channels, each alone and together."""
    rows = [(n, hour, channel) for n, (hour, channel) in enumerate(itertools.product((None, 8, 12), (None, "b", "a", "c")))]
    given = [(DAY, DAY + timedelta(days=1), 1, DAY, hour, channel, 2 * (hour is None) + (channel is None), 100 * n, 5.0) for n, hour, channel in rows]
    names = ["window_start", "window_end", "trigger", "trigger_time", "hour", "channel", "grouping_id", "edits", "edits_stderr"]
    return told(pd.DataFrame(given, columns=names).astype({"hour": "Int64"}))


@pytest.mark.parametrize(
    ("level", "drawn"),
    [
        (None, ["b", "a", "c"]), ("channel", ["b", "a", "c"]), (["hour"], ["8", "12"]), ((), ["all records"]),
        (("channel", "hour"), ["8, b", "8, a", "8, c", "12, b", "12, a", "12, c"]),
    ],
)  # fmt: skip
def test_a_chart_draws_one_level_of_a_cube(level: tuple[str, ...] | None, drawn: list[str]) -> None:
    """Catches: bars of wikis and of hours among each other, and of both together."""
    chart = charts.bars(cube(), "edits", level=level)
    assert labels(chart) == drawn
    assert "level= draws others" in " ".join(chart.get_supxlabel().split())
    assert "not selected" not in chart.get_supxlabel(), "all keys of domains are there"


def test_a_list_of_a_sketch_is_drawn(tmp_path: Path) -> None:
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
        APPROX_TOP_COUNT(key, 3) AS top_wikis FROM wiki GROUP BY window(ts, '1 day')"""
    records = pd.read_parquet(CHECKOUT / "conf/demo/wiki")
    query = dpsql.compile(text, dpsql.load_sources(CHECKOUT / "conf/sources.yaml"))
    rows = dpsql.run_local(query, records, Secret(b"s" * 32, tmp_path / "secret"), until_us=int(pd.Timestamp("2015-09-13", tz="UTC").value) // 1000)
    chart = charts.bars(rows, "top_wikis")
    assert (labels(chart)[-1], len(labels(chart))) == ("#en.wikipedia", 3)


@pytest.mark.parametrize("windows", [60, 61])
def test_many_windows_are_a_line_without_markers(windows: int) -> None:
    """Catches: a worm that hides its band; a lonely point that nothing draws; a better guess that no picture has."""
    starts = [DAY + timedelta(days=i) for i in range(windows + 2) if i != 1]
    rows = [(start, start + timedelta(days=1), 1, start, 100 + i, 5.0, 100.5) for i, start in enumerate(starts)]
    names = ["window_start", "window_end", "trigger", "trigger_time", "edits", "edits_stderr", "edits_smoothed"]
    frame = pd.DataFrame(rows, columns=names)
    frame.loc[2, "edits"] = None
    chart = charts.over_windows(told(frame), "edits")
    line, smoothed = chart.axes[0].lines
    assert line.get_markevery() == ([0, 1, *range(3, 61)] if windows == 60 else [])
    assert list(smoothed.get_ydata()) == [100.5] * len(starts)
    said = " ".join(chart.get_supxlabel().split())
    assert f"All {len(starts)} windows" in said and "the smoothed value, a better guess" in said
    assert "begin before" not in said
    published = PublicRows.of_frame(told(frame)).description
    assert published.windows is not None
    sliding = replace(published, windows=replace(published.windows, slide_us=published.windows.size_us // 2))
    frame.attrs[PROPERTY] = sliding.text()
    assert "The first ones may begin before the records do" in " ".join(charts.over_windows(frame, "edits").get_supxlabel().split()), "a false rise"


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(DataError, match="no aggregate 'visits' in this histogram; it has views"):
        charts.bars(histogram(), "visits")
    with pytest.raises(DataError, match="no key has been selected yet"):
        charts.growth(histogram().iloc[:0], "views")
    with pytest.raises(DataError, match="keys=0: draw at least one"):
        charts.bars(histogram(), "views", keys=0)
    with pytest.raises(DataError, match=r"level='page': only rows of CUBE, ROLLUP and GROUPING SETS have levels"):
        charts.bars(histogram(), "views", level="page")
    with pytest.raises(DataError, match="level='page': the rows are grouped by channel; hour; hour, channel; none"):
        charts.bars(cube(), "edits", level="page")
