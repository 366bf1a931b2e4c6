"""Charts of a histogram: every value with its 95% error, axes with units, a caption that says what is shown. Needs matplotlib.

`pip install dpsql[notebooks]`. A figure is returned, nothing is shown or written: `figure.savefig("chart.png")` exports it as seen.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from dpsql.description import DUE, END, START
from dpsql.errors import DataError
from dpsql.published.public_rows import newest_triggers, published_of
from dpsql.text import Z95
from dpsql.view.table import grouped_by, measures, places_shown, ranked
from dpsql.view.words import absent, printable

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""

WIDTH = 7.2
CAPTION = 118
LABEL = 40
PANEL_LABELS = (40, 26, 20)
SEARCHED = 40
"""Characters of a key: beside a bar, above a panel where there are so many in a row; and keys that are looked at for a line."""

HALF_DAY = timedelta(hours=12)
MONTHS = timedelta(days=300)
NUMBERS = StrMethodFormatter("{x:,.10g}")


class Chart(Figure):
    """A figure that a notebook shows as it will be exported, whatever matplotlib's backend is: outside pyplot, nothing is global."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")

    def captioned(self, caption: str) -> Chart:
        """With a text below it."""
        self.supxlabel(
            "\n".join(textwrap.wrap(caption, CAPTION)),
            x=0.01,
            ha="left",
            fontsize=8,
            color="#444444",
        )
        return self

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()


def growth(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 6,
    unit: str | None = None,
    title: str | None = None,
    narrow: bool = False,
) -> Chart:
    """Return the largest keys of the newest window, trigger by trigger: a panel for each, with its 95% error band.

    Args:
        histogram: rows of all triggers, as `dpsql.run_local` returns or a lake holds them.
        column: an aggregate.
        keys: how many keys, the largest at the last trigger.
        unit: what the values count; the column's name unless given.
        title: above the chart.
        narrow: for a phone: half as wide, with fewer panels in a row.
    """
    rows = _newest(histogram, column)
    last = ranked(rows[rows["trigger"] == rows["trigger"].max()])[0]
    begin = rows[DUE].min()
    end = rows[DUE].max()
    if published_of(rows).windows:
        begin = rows[START].min()
        end = max(rows[END].max(), end)
    begins = (
        " A line begins at the trigger at which its key was selected."
        if published_of(rows).selects
        else ""
    )
    return _panels(
        rows,
        column,
        last,
        keys,
        DUE,
        (begin, end),
        "trigger time (UTC)",
        unit,
        title,
        f"{_span(rows)}.{begins}",
        narrow,
    )


def over_windows(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 6,
    unit: str | None = None,
    title: str | None = None,
    narrow: bool = False,
) -> Chart:
    """Return the largest keys of the newest window, window by window: a panel for each, with its 95% error band.

    Args: as of `growth`; the rows are those of several windows.
    """
    _newest(histogram, column)
    if not published_of(histogram).windows:
        raise DataError("this histogram has no windows: charts.growth draws it trigger by trigger")
    rows = newest_triggers(histogram)
    last = ranked(rows[rows[START] == rows[START].max()])[0]
    span = (rows[START].min(), rows[START].max())
    missing = (
        " Where a line is interrupted, the key was not published: that is not zero."
        if published_of(rows).selects
        else ""
    )
    caption = f"Each window at its newest trigger.{missing}"
    return _panels(
        rows,
        column,
        last,
        keys,
        START,
        span,
        "beginning of the window (UTC)",
        unit,
        title,
        caption,
        narrow,
    )


def bars(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 12,
    unit: str | None = None,
    title: str | None = None,
) -> Chart:
    """Return the largest keys of the newest window at its last trigger, with 95% errors; hollow where the value is below its own error. An average is a
    dot between its bounds, to which whiskers are cut; ranked by an average, the noisiest keys would come first.

    Args:
        histogram, column, keys, unit, title: as of `growth`; the title says what is seen unless given.
    """
    rows = _newest(histogram, column)
    names = published_of(histogram).keys
    last = rows[rows["trigger"] == rows["trigger"].max()].reset_index(drop=True)
    ordered, by = ranked(last)
    within = _within(rows, column)
    shown = ordered.head(keys).iloc[::-1]
    spans = places_shown(last, shown)[1]
    labels = [
        f"{_label(row, names)}  {spans.get(i, '')}".rstrip()
        for i, row in zip(shown.index, shown.to_dict("records"), strict=True)
    ]
    value = shown[column].astype(float).to_numpy()
    error = Z95 * shown[published_of(rows).stderr(column)].astype(float).to_numpy()
    figure = Chart(WIDTH, 1.6 + 0.28 * max(len(shown), 4))
    axes = figure.add_subplot()
    axes.set_title(
        title or _seen(shown, column, by, names, spans, len(last)), loc="left", fontsize=11
    )
    plain_axes(axes)
    places = list(range(len(shown)))
    small = [False] * len(shown) if within else (abs(value) < error).tolist()
    faces = ["white" if hollow else COLOURS[0] for hollow in small]
    down = value - error
    up = value + error
    if within:
        down = down.clip(*within)
        up = up.clip(*within)
        axes.hlines(places, down, up, color="#333333", linewidth=1)
        axes.plot(value.clip(*within), places, "o", color=COLOURS[0], markersize=6)
        axes.set_xlim(*within)
    else:
        axes.barh(places, value, color=faces, edgecolor=COLOURS[0])
        axes.errorbar(
            value, places, xerr=error, fmt="none", ecolor="#333333", capsize=3, linewidth=1
        )
        axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_yticks(places, labels)
    axes.set_xlabel(unit or column)
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    hidden = len(last) - len(shown)
    more = f" {hidden} smaller keys are not drawn." if hidden else ""
    order = f" Ordered by {by}." if by and by != column else ""
    told = (
        f" After each key: its place by {by}; keys that share places cannot be told apart."
        if spans
        else ""
    )
    hollow = " Hollow: smaller than its own error." if any(small) else ""
    cut = " Whiskers end at the declared bounds." if within else ""
    return figure.captioned(
        f"{_span(shown)}, trigger {last['trigger'].max()}.{order} Whiskers: 95% of the noise; what the contribution bounds leave out is not "
        f"in them.{told}{hollow}{cut}{more} Keys that were not selected are missing, not zero."
    )


def _panels(
    rows: pd.DataFrame,
    column: str,
    ordered: pd.DataFrame,
    keys: int,
    when: str,
    span: tuple[Any, Any],
    axis: str,
    unit: str | None,
    title: str | None,
    caption: str,
    narrow: bool,
) -> Chart:
    """Small multiples: the same time for every key, whose name stands above its line, and a scale of its own, or the largest flattens the others."""
    names = grouped_by(rows)
    stderr = published_of(rows).stderr(column)
    within = _within(rows, column)
    chosen = _with_a_line(rows, ordered, when, keys)
    labels, width = (PANEL_LABELS[1:], WIDTH / 2) if narrow else (PANEL_LABELS, WIDTH)
    across = min(len(labels), max(1, len(chosen)))
    down = -(-max(1, len(chosen)) // across)
    figure = Chart(width, 1.3 + 1.55 * down)
    figure.suptitle(
        title or f"{_plain(column)} per {_plain(', '.join(names) or 'window')}",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    grid = figure.subplots(down, across, squeeze=False)
    begin, end = span if span[0] < span[1] else (span[0] - HALF_DAY, span[1] + HALF_DAY)
    length = end - begin
    form = "%d %b %H:%M" if length < 6 * HALF_DAY else "%d %b" if length < MONTHS else "%b %Y"
    form = form.replace(" %H", "\n%H") if narrow else form
    ends = [f"{begin:{form}}", "", f"{end:{form}}"]
    for axes, (row, line) in zip(grid.flat, chosen, strict=False):
        value = line[column].astype(float)
        error = Z95 * line[stderr].astype(float)
        low = value - error
        high = value + error
        if within:
            low = low.clip(*within)
            high = high.clip(*within)
        axes.fill_between(line.index, low, high, color=COLOURS[0], alpha=0.25, linewidth=0)
        axes.plot(line.index, value, color=COLOURS[0], marker="o", markersize=2.5, linewidth=1.2)
        axes.set_title(_label(row, names, labels[across - 1]), loc="left", fontsize=9)
        plain_axes(axes)
        axes.yaxis.set_major_formatter(NUMBERS)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.set_xlim(begin - length / 40, end + length / 40)
        axes.set_xticks([begin, begin + length / 2, end], ends)
        # At the edges they grow inwards, so that those of two panels never meet
        axes.get_xticklabels()[0].set_ha("left")
        axes.get_xticklabels()[-1].set_ha("right")
        axes.tick_params(labelsize=7.5)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for axes in list(grid.flat)[len(chosen) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(unit or _plain(column), fontsize=8)
    scales = ", each panel with its own scale" if len(chosen) > 1 else ""
    return figure.captioned(
        f"Across: {axis}{scales}. Bands: 95% of the noise; what the contribution bounds leave out is not in them. {caption}"
    )


def _within(rows: pd.DataFrame, column: str) -> tuple[float, float] | None:
    return next(each.within for each in measures(rows) if each.alias == column)


def _with_a_line(
    rows: pd.DataFrame, ordered: pd.DataFrame, when: str, keys: int
) -> list[tuple[dict[Any, Any], pd.DataFrame]]:
    """Return the largest keys, each with what it has at each time; keys of one point come last, for they make no line."""
    names = grouped_by(rows)
    times = sorted(rows[when].unique())
    found = []
    for row in ordered.head(SEARCHED).to_dict("records"):
        mine = rows
        for name in names:
            mine = mine[mine[name].isna() if absent(row[name]) else mine[name] == row[name]]
        found.append((row, mine.drop_duplicates(when, keep="last").set_index(when).reindex(times)))
    found.sort(key=lambda each: each[1]["trigger"].count() < 2)  # which is stable
    return found[:keys]


def _seen(
    shown: pd.DataFrame,
    column: str,
    by: str | None,
    names: Sequence[str],
    spans: Mapping[Any, str],
    keys: int,
) -> str:
    """Return the title of a chart of values: which key leads, if that is no noise. `shown` has the largest last."""
    if by != column or not spans or keys < 2:
        return f"{_plain(column)} per {_plain(', '.join(names) or 'window')}"
    if spans[shown.index[-1]] == "1":
        return (
            f"{_label(shown.iloc[-1].to_dict(), names, PANEL_LABELS[1])} leads in {_plain(column)}"
        )
    if spans[shown.index[-1]] == f"1–{keys}":
        return f"No key can be told apart by {_plain(column)}"
    return f"Which key leads in {_plain(column)} cannot be told apart"


def plain_axes(axes: Axes) -> None:
    """Without a frame, on a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _newest(histogram: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows of the newest window, or of a table without windows.

    Raises:
        DataError: no rows, or no such aggregate.
    """
    known = published_of(histogram).amounts
    if column not in known:
        raise DataError(
            f"no aggregate {column!r} in this histogram; it has {', '.join(known) or 'none'}"
        )
    if not len(histogram):
        raise DataError(
            "this histogram has no rows: no key has been selected yet (docs/howto.md says why a key is missing)"
        )
    return (
        histogram[histogram[START] == histogram[START].max()]
        if published_of(histogram).windows
        else histogram
    )


def _span(rows: pd.DataFrame) -> str:
    return (
        f"Window from {rows[START].min():%Y-%m-%d %H:%M}"
        if published_of(rows).windows
        else "The whole table"
    )


def _label(row: Mapping[Any, Any], names: Sequence[str], most: int = LABEL) -> str:
    """Return a key as text of a chart: short."""
    plain = (
        ", ".join("NULL" if absent(row[name]) else printable(row[name]) for name in names)
        or "all records"
    )
    return _plain(plain if len(plain) <= most else plain[: most - 1] + "…")


def _plain(text: str) -> str:
    """Without what matplotlib would obey: $ begins mathematics, a first _ hides a line."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")
