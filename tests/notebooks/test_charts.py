"""Charts say what they show: axes, units, a caption, errors of 95%, and no key can command them."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.image import imread

from benchmarks.curves import curves
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
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        found += [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return "\n".join(found)


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
    assert "Hollow: smaller than its own error" in " ".join(said.split()) and "missing, not zero" in said
    for key in ("a  1", "NULL  4", r"\$x^2\$  3"):
        assert key in said.splitlines()


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
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "a  1", "the most views, not the highest rating"
    assert "Ordered by views" in texts(chart)


def test_places_hold_the_truth_and_people_say_how_large_a_key_is(half_a_day: pd.DataFrame) -> None:
    """Catches: a chart of what bounds leave hardly anything of, ranked by itself; keys that are called first and are not."""
    rows = half_a_day[half_a_day["channel"].notna() & half_a_day["channel"].astype(str).str.startswith("#")]
    wiki = pd.read_parquet(CHECKOUT / "conf/demo/wiki")
    true = wiki[wiki["ts"] < rows[DUE].max()].groupby("key")["user_id"].nunique()
    orders = []
    for column in ("editors", "edits", "characters_added"):
        chart = charts.bars(rows, column, keys=15)
        labels = [label.get_text().rsplit("  ", 1) for label in chart.axes[0].get_yticklabels()]
        orders.append(labels)
        held = [
            int(place.split("–")[0]) <= 1 + (true > true[key]).sum() and (true >= true[key]).sum() <= int(place.split("–")[-1])
            for key, place in labels
        ]
        assert len(labels) == 15 and sum(held) >= 13, labels  # each with 95%
        assert "its place by editors; keys that share places cannot be told apart" in " ".join(chart.get_supxlabel().split())
        growing = [axes.get_title(loc="left") for axes in charts.growth(rows, column, keys=6).axes]
        assert growing == [key for key, _ in labels[::-1][:6]]
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
    chart = curves({"edits": [(1, 5.0), (2, 3.0)], "editors": [(1, 2.0), (2, 1.0)]}, "epsilon", "error (%)", "One day.")
    chart.savefig(tmp_path / "chart.png")
    exported = imread(tmp_path / "chart.png")
    assert exported.shape[:2] == (540, 1080)
    assert (exported == imread(io.BytesIO(chart._repr_png_()))).all()
    assert 0.005 < (exported[:, :, :3].mean(axis=2) < 0.5).mean() < 0.2, "an empty picture, or a black one"
    assert np.allclose(exported[0, 0, :3], 1)


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(DataError, match="no aggregate 'visits' in this histogram; it has views"):
        charts.bars(histogram(), "visits")
    with pytest.raises(DataError, match="no key has been selected yet"):
        charts.growth(histogram().iloc[:0], "views")
