"""Charts of a histogram: every value with its 95% error, axes with units, a caption that says what is shown. Needs matplotlib.

`pip install dpsql[notebooks]`. A figure is returned, nothing is shown or written: `figure.savefig("chart.png")` exports it as seen.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from dpsql.errors import DataError
from dpsql.frames import aggregates_of, has_windows, keys_of
from dpsql.view.formatting import Z95, absent, printable

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""

MARKS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH, CAPTION = 7.2, 118
LABEL = 40
NUMBERS = StrMethodFormatter("{x:,.10g}")


class Chart(Figure):
    """A figure that a notebook shows as it will be exported, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()


def growth(histogram: pd.DataFrame, column: str, keys: int = 5, unit: str | None = None, title: str | None = None) -> Chart:
    """The largest keys of the newest window, trigger by trigger, each with its 95% error band.

    Args:
        histogram: rows of all triggers, as `dpsql.run_local` returns or a lake holds them.
        column: an aggregate.
        keys: how many keys, the largest at the last trigger.
        unit: what the values count; the column's name unless given.
        title: above the chart.
    """
    rows, names = _newest(histogram, column), keys_of(histogram)
    last = rows[rows["trigger"] == rows["trigger"].max()].nlargest(keys, column)
    figure, axes = _figure(title or f"{column} per {', '.join(names) or 'window'}", 4.2)
    for i, chosen in enumerate(last.to_dict("records")):
        mine = rows
        for name in names:
            mine = mine[mine[name].isna() if absent(chosen[name]) else mine[name] == chosen[name]]
        mine = mine.sort_values("trigger")
        when, value, error = mine["trigger_time"], mine[column].astype(float), Z95 * mine[f"{column}_stderr"].astype(float)
        colour = COLOURS[i % len(COLOURS)]
        axes.fill_between(when, value - error, value + error, color=colour, alpha=0.25, linewidth=0)
        axes.plot(when, value, color=colour, marker=MARKS[i % len(MARKS)], markersize=3.5, label=_label(chosen, names))
    axes.set_xlabel("trigger time (UTC)")
    axes.set_ylabel(unit or column)
    axes.yaxis.set_major_formatter(NUMBERS)
    begin, end = rows["trigger_time"].min(), rows["trigger_time"].max()
    if has_windows(rows):
        begin, end = rows["window_start"].min(), max(rows["window_end"].max(), end)
    axes.set_xlim(begin, end + (end - begin) / 50)
    locator = AutoDateLocator(maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if names and len(last):
        axes.legend(framealpha=0.85, edgecolor="none", title=", ".join(names), loc="upper left")
    return _captioned(
        figure,
        f"{_span(rows)}. Bands: 95% of the noise; what the bounds dropped is not in them. A line "
        "begins at the trigger at which its key was selected.",
    )


def bars(histogram: pd.DataFrame, column: str, keys: int = 12, unit: str | None = None, title: str | None = None) -> Chart:
    """The largest keys of the newest window at its last trigger, with 95% errors; hollow where the value is below its own error."""
    rows, names = _newest(histogram, column), keys_of(histogram)
    last = rows[rows["trigger"] == rows["trigger"].max()]
    shown = last.nlargest(keys, column).iloc[::-1]
    value, error = shown[column].astype(float), Z95 * shown[f"{column}_stderr"].astype(float)
    figure, axes = _figure(title or f"{column} per {', '.join(names) or 'window'}", 1.6 + 0.28 * max(len(shown), 4))
    places = list(range(len(shown)))
    small = (value.abs() < error).tolist()
    faces = ["white" if hollow else COLOURS[0] for hollow in small]
    axes.barh(places, value, color=faces, edgecolor=COLOURS[0])
    axes.errorbar(value, places, xerr=error, fmt="none", ecolor="#333333", capsize=3, linewidth=1)
    axes.set_yticks(places, [_label(row, names) for row in shown.to_dict("records")])
    axes.set_xlabel(unit or column)
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.axvline(0, color="#333333", linewidth=0.8)
    hidden = len(last) - len(shown)
    more = f" {hidden} smaller keys are not drawn." if hidden else ""
    hollow = " Hollow: smaller than its own error." if any(small) else ""
    return _captioned(
        figure,
        f"{_span(shown)}, trigger {last['trigger'].max()}. Whiskers: 95% of the noise.{hollow}{more} "
        "Keys that were not selected are missing, not zero.",
    )


def curves(
    points: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, caption: str, title: str | None = None, log_x: bool = True
) -> Chart:
    """One line per name through (x, y) points, like error against epsilon.

    Args:
        points: per line, its points in order of x.
        x, y: names of the axes, with units.
        caption: below the chart.
        title: above it.
        log_x: steps of x are factors; its ticks are the points themselves.
    """
    figure, axes = _figure(title or f"{y} against {x}", 3.6)
    for i, (name, line) in enumerate(points.items()):
        across, up = [point[0] for point in line], [point[1] for point in line]
        axes.plot(across, up, color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)], markersize=5, label=name)
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({point[0] for line in points.values() for point in line})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.set_ylim(bottom=0)
    if len(points) > 1:
        axes.legend(framealpha=0.85, edgecolor="none")
    return _captioned(figure, caption)


def _figure(title: str, height: float) -> tuple[Chart, Axes]:
    """A figure of its own, outside pyplot: nothing global to close or to configure."""
    figure = Chart(figsize=(WIDTH, height), dpi=150, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _captioned(figure: Chart, caption: str) -> Chart:
    figure.supxlabel("\n".join(textwrap.wrap(caption, CAPTION)), x=0.01, ha="left", fontsize=8, color="#444444")
    return figure


def _newest(histogram: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of the newest window, or of a table without windows.

    Raises:
        DataError: no rows, or no such aggregate.
    """
    if f"{column}_stderr" not in histogram.columns:
        known = aggregates_of(histogram)
        raise DataError(f"no aggregate {column!r} in this histogram; it has {', '.join(known) or 'none'}")
    if not len(histogram):
        raise DataError("this histogram has no rows: no key has been selected yet (docs/howto.md says why a key is missing)")
    return histogram[histogram["window_start"] == histogram["window_start"].max()] if has_windows(histogram) else histogram


def _span(rows: pd.DataFrame) -> str:
    return f"Window from {rows['window_start'].min():%Y-%m-%d %H:%M}" if has_windows(rows) else "The whole table"


def _label(row: Mapping[Any, Any], names: Sequence[str]) -> str:
    """A key as text of a chart: short, and without what matplotlib would obey ($ begins mathematics, a first _ hides a line)."""
    plain = ", ".join("NULL" if absent(row[name]) else printable(row[name]) for name in names) or "all records"
    short = plain if len(plain) <= LABEL else plain[: LABEL - 1] + "…"
    return ("\u200b" if short.startswith("_") else "") + short.replace("$", r"\$")
