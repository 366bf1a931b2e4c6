"""The README's picture: the demo's private counts with their errors, beside the true ones.

    python -m benchmarks.picture        writes docs/figures/demo.svg

The records are public, so the truth may be shown; noise and picture are the same at each call.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure

import dpsql
from dpsql.local.feeder import try_query
from dpsql.text import Z95
from dpsql.view.charts import COLOURS, NUMBERS

CHECKOUT = Path(__file__).resolve().parents[1]
WIKI = CHECKOUT / "conf" / "demo" / "wiki"
PICTURE = CHECKOUT / "docs" / "figures" / "demo.svg"
SECRET = bytes(range(32))
RUN_ID = "de" * 16
LARGEST = 5
SHOWN = 22
GREY = "#444444"


def released() -> pd.DataFrame:
    """The demo's histogram of the one day there is."""
    query = dpsql.compile(
        (CHECKOUT / "conf/queries/demo.sql").read_text(),
        dpsql.load_sources(CHECKOUT / "conf/sources.yaml"),
    )
    rows = try_query(query, {"wiki": [WIKI]}, run_id=RUN_ID, secret=dpsql.Secret(SECRET)).histogram
    return rows.assign(
        channel=rows["channel"].astype(str).str.removeprefix("#"),
        trigger_time=rows["trigger_time"].dt.tz_localize(None),
    )


def edits() -> pd.DataFrame:
    """The records."""
    return pd.read_parquet(WIKI)


def truth() -> pd.DataFrame:
    """Editors so far, per channel (columns) and hour (rows)."""
    first = edits().groupby(["key", "user_id"])["ts"].min().reset_index()
    hour = first["ts"].dt.tz_localize(None).dt.floor("h") + pd.Timedelta(hours=1)
    counts = first.groupby([hour, first["key"].str.removeprefix("#")]).size().unstack(fill_value=0)
    return counts.cumsum()


def through_the_day(
    axes: mpl.axes.Axes, rows: pd.DataFrame, true: pd.DataFrame, channels: list[str]
) -> None:
    """Lines of the largest channels."""
    below = float("inf")
    for colour, channel in zip(COLOURS, channels, strict=False):
        mine = rows[rows["channel"] == channel].sort_values("trigger")
        error = Z95 * mine["editors_stderr"]
        axes.fill_between(
            mine["trigger_time"],
            mine["editors"] - error,
            mine["editors"] + error,
            color=colour,
            alpha=0.25,
            linewidth=0,
        )
        axes.plot(
            mine["trigger_time"],
            mine["editors"],
            color=colour,
            marker="o",
            markersize=3,
            linewidth=1.2,
        )
        axes.plot(true.index, true[channel], color=GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        end = mine.iloc[-1]
        below = min(
            below - axes.get_ylim()[1] / 18, end["editors"]
        )  # so that labels do not lie upon each other
        axes.annotate(
            channel,
            (end["trigger_time"], below),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.margins(x=0.02)
    axes.set_ylabel("editors")
    axes.set_xlabel("hour of the day, UTC")
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.set_title("Editors so far, released every hour", loc="left", fontsize=10)


def at_the_end(
    axes: mpl.axes.Axes, rows: pd.DataFrame, true: pd.DataFrame, channels: list[str]
) -> None:
    """Dots with whiskers for the smaller channels, and a stroke where the truth is."""
    last = rows[rows["trigger"] == rows["trigger"].max()].set_index("channel").loc[channels[::-1]]
    places = list(range(len(last)))
    axes.errorbar(
        last["editors"],
        places,
        xerr=Z95 * last["editors_stderr"],
        fmt="o",
        color=COLOURS[0],
        markersize=3.5,
        capsize=2.5,
    )
    axes.plot(
        true.iloc[-1][last.index], places, "|", color=GREY, markersize=11, markeredgewidth=1.4
    )
    axes.set_yticks(places, list(last.index), fontsize=8)
    axes.set_xlabel("editors")
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.set_title(
        f"At the end of the day, ranks {LARGEST + 1} to {SHOWN}", loc="left", fontsize=10
    )


def picture() -> Figure:
    """Both panels."""
    rows = released()
    true = truth()
    last = (
        rows[rows["trigger"] == rows["trigger"].max()]
        .nlargest(SHOWN, "editors")["channel"]
        .tolist()
    )
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    through_the_day(left, rows, true, last[:LARGEST])
    at_the_end(right, rows, true, last[LARGEST:])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    said = "Colour: private, with 95% of the noise. Grey: the truth, of all editors.\n"
    said += "Wikipedias by editors, 2015-09-12; epsilon 2 per editor and day."
    figure.supxlabel(said, fontsize=9, x=0.01, ha="left")
    return figure


def main() -> None:
    """Write the picture."""
    with mpl.rc_context(
        {"svg.hashsalt": "dpsql", "svg.fonttype": "none", "font.family": "sans-serif"}
    ):
        picture().savefig(PICTURE, metadata={"Date": None})
    print(f"wrote {PICTURE.relative_to(CHECKOUT)}")


if __name__ == "__main__":
    main()
