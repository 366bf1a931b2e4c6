"""Charts of a histogram: every value with its 95% error, axes with units, a caption that says what is shown. Needs matplotlib.

`pip install dpsql[notebooks]`. A figure is returned, nothing is shown or written: `figure.savefig("chart.png")` exports it as seen.
Keys are drawn in the script that they are written in, with the fonts of this machine.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from dpsql.description import DUE, END, SMOOTHED, START
from dpsql.errors import DataError
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import TOO_FEW
from dpsql.text import Z95
from dpsql.view.plain_table import as_histogram
from dpsql.view.series import HALF_DAY, MONTHS, at_times, first_row, largest
from dpsql.view.table import grouped_by, known_numbers, levels, measures, places_shown, ranked
from dpsql.view.words import TIME, absent, printable, says_nothing

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""

WIDTH = 7.2
CAPTION = 104
LABEL = 40
PANEL_LABELS = (40, 26, 20)
"""Characters of a key: beside a bar, and above a panel where there are so many in a row."""
MOST_MARKERS = 60
"""Points of a line; more hide the band behind it."""
SCREEN_DPI = 75
"""Pixels of a screen per inch of a chart; the picture has twice as many."""

NUMBERS = StrMethodFormatter("{x:,.10g}")


class Chart(Figure):
    """A figure that a notebook shows as it will be exported, whatever matplotlib's backend is: outside pyplot, nothing is global."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(
            figsize=(width, height), dpi=2 * SCREEN_DPI, layout="constrained", facecolor="white"
        )
        self.families: list[str] = []
        self.undrawn: set[str] = set()

    def drawable(self, text: str) -> str:
        """Return a text with escapes for what no font has; the fonts for the rest are those of this chart."""
        missing = _lacking(text, rcParams["font.family"])
        for family in _families() if missing else ():
            if missing > (remainder := _lacking("".join(missing), [family])):
                self.families.append(family)
                missing = remainder
        self.undrawn |= missing
        return "".join(_escape(each) if each in missing else each for each in text)

    def captioned(self, caption: str) -> Chart:
        """Put a text below the chart."""
        for text in self.findobj(Text):
            text.set_fontfamily([*rcParams["font.family"], *dict.fromkeys(self.families)])
        if self.undrawn:
            caption += f" No font here has {', '.join(map(_escape, sorted(self.undrawn)))}."
        self.supxlabel(
            "\n".join(textwrap.wrap(caption, CAPTION)),
            x=0.01,
            ha="left",
            fontsize=9,
            color="#444444",
        )
        return self

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        out = io.BytesIO()
        self.savefig(out, format="png")
        width, height = (round(inches * SCREEN_DPI) for inches in self.get_size_inches())
        return out.getvalue(), {"width": width, "height": height}


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _lacking(characters: str, family: Sequence[str]) -> set[str]:
    """Return which characters a font lacks."""
    if characters.isascii():
        return set()
    font = get_font(findfont(FontProperties(family=family)))
    return {each for each in characters if each != "\n" and not font.get_char_index(ord(each))}


@cache
def _families() -> tuple[str, ...]:
    """Return the installed fonts, those without serifs first; matplotlib's own list may be older than they are."""
    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:
        with suppress(OSError, RuntimeError, ValueError, KeyError, NotImplementedError):
            fontManager.addfont(path)
    regular = {
        font.name
        for font in fontManager.ttflist
        if font.style == "normal" and font.weight in (400, "normal")
    }
    # A box for every character is what that one has.
    names = (name for name in regular if not name.startswith("Last Resort"))
    return tuple(sorted(names, key=lambda name: ("Sans" not in name, "Mono" in name, name)))


def growth(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 6,
    unit: str | None = None,
    title: str | None = None,
    level: str | Sequence[str] | None = None,
) -> Chart:
    """Return the largest keys of the newest window, trigger by trigger: a panel for each, with its 95% error band.

    Args:
        histogram: rows of all triggers, as an answer's `.all_rows` or a lake has them.
        column: an aggregate, or a list of a sketch.
        keys: how many keys, the largest at the last trigger.
        unit: what the values count; the column's name unless given.
        title: above the chart.
        level: of a CUBE, the key columns that its rows are grouped by; the first of one column unless given.
    """
    rows, level_text = _drawable(histogram, column, keys, level)
    rows = rows.last_window
    published = rows.description
    frame = rows.frame
    begin = frame[DUE].min()
    end = frame[DUE].max()
    if published.windows:
        begin = frame[START].min()
        end = max(frame[END].max(), end)
    begins = (
        " A line begins at the trigger at which its key was selected." if published.selects else ""
    )
    return _panels(
        rows,
        column,
        keys,
        DUE,
        (begin, end),
        "trigger time (UTC)",
        unit,
        title,
        f"{_span(rows)}.{begins}{level_text}",
    )


def over_windows(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 6,
    unit: str | None = None,
    title: str | None = None,
    level: str | Sequence[str] | None = None,
) -> Chart:
    """Return the largest keys of the newest window, window by window: a panel for each, with its 95% error band.

    Args: as of `growth`; the rows are those of several windows.
    """
    rows, level_text = _drawable(histogram, column, keys, level)
    published = rows.description
    if not published.windows:
        raise DataError("this histogram has no windows: charts.growth draws it trigger by trigger")
    starts = rows.newest.frame[START]
    missing = (
        " Where a line is interrupted, the key was not published: that is not zero."
        if published.selects
        else ""
    )
    is_sliding = published.windows.slide_us < published.windows.size_us
    early = " The first ones may begin before the records do." if is_sliding else ""
    caption = (
        f"All {starts.nunique():,} windows, each at its newest trigger.{early}{missing}{level_text}"
    )
    return _panels(
        rows.newest,
        column,
        keys,
        START,
        (starts.min(), starts.max()),
        "beginning of the window (UTC)",
        unit,
        title,
        caption,
    )


def bars(
    histogram: pd.DataFrame,
    column: str,
    keys: int = 12,
    unit: str | None = None,
    title: str | None = None,
    level: str | Sequence[str] | None = None,
) -> Chart:
    """Return the largest keys of the newest window at its last trigger, with 95% errors; hollow where the value is below its own error. An average is a
    dot on an axis that has its bounds, hollow where it says nothing; ranked by an average, the noisiest keys would come first.

    Args:
        histogram, column, keys, unit, title, level: as of `growth`; the title says what is seen unless given.
    """
    level_rows, level_text = _drawable(histogram, column, keys, level)
    newest = level_rows.last_window.newest
    rows = newest.with_frame(newest.frame.reset_index(drop=True))
    published = rows.description
    names = grouped_by(rows)
    ordered, ranked_by = ranked(rows)
    within = _within(rows, column)
    chart_rows = ordered.with_frame(ordered.frame.head(keys).iloc[::-1])
    drawn_rows = chart_rows.frame
    spans = places_shown(rows, drawn_rows.index)[1]
    values, stderrs = chart_rows.numbers(column)
    errors = Z95 * stderrs
    is_hollow = (abs(values) < errors).tolist()
    if within:
        records = drawn_rows.to_dict("records")
        is_hollow = [says_nothing(row, column, published) for row in records]
    figure = Chart(WIDTH, 1.6 + 0.28 * max(len(drawn_rows), 4))
    axes = figure.add_subplot()
    axes.set_title(
        figure.drawable(
            title or _bars_title(drawn_rows, column, ranked_by, names, spans, len(rows.frame))
        ),
        loc="left",
        fontsize=11,
    )
    plain_axes(axes)
    _draw_values(axes, values, errors, is_hollow, within)
    positions = list(range(len(drawn_rows)))
    labels = [figure.drawable(_label(row, names)) for row in drawn_rows.to_dict("records")]
    axes.set_yticks(positions, labels)
    axes.set_xlabel(unit or _literal_text(column))
    if spans:
        # A text of its own: beside a key that is written from the right it would stand at the other end.
        places = axes.secondary_yaxis("right")
        places.set_yticks(positions, [spans.get(index, "") for index in drawn_rows.index])
        places.set_ylabel(f"place by {_literal_text(str(ranked_by))}", fontsize=8)
        places.tick_params(length=0)
        places.spines["right"].set_visible(False)
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    order = f" Ordered by {ranked_by}." if ranked_by and ranked_by != column else ""
    place = " Keys that share places cannot be told apart." if spans else ""
    meaning = TOO_FEW if within else "smaller than its own error"
    hollow = f" Hollow: {meaning}." if any(is_hollow) else ""
    hidden = len(rows.frame) - len(drawn_rows)
    remainder = f" {hidden} smaller keys are not drawn." if hidden else ""
    missing = " Keys that were not selected are missing, not zero." if published.selects else ""
    trigger = "" if published.once else f", trigger {rows.frame['trigger'].max()}"
    return figure.captioned(
        f"{_span(chart_rows)}{trigger}.{order} Whiskers: 95% of the noise; what the contribution bounds leave out is not "
        f"in them.{place}{hollow}{remainder}{missing}{level_text}"
    )


def _draw_values(
    axes: Axes,
    values: np.ndarray,
    errors: np.ndarray,
    is_hollow: Sequence[bool],
    within: tuple[float, float] | None,
) -> None:
    """Draw values with their errors: as bars from zero; averages, which have bounds, as dots."""
    positions = list(range(len(values)))
    faces = ["white" if hollow else COLOURS[0] for hollow in is_hollow]
    if within:
        low = values - errors
        high = values + errors
        axes.hlines(positions, low, high, color="#333333", linewidth=1)
        axes.scatter(values, positions, 36, c=faces, edgecolors=COLOURS[0], zorder=3)
        axes.set_xlim(np.nanmin([within[0], *low]), np.nanmax([within[1], *high]))
        return
    axes.barh(positions, values, color=faces, edgecolor=COLOURS[0])
    axes.errorbar(
        values, positions, xerr=errors, fmt="none", ecolor="#333333", capsize=3, linewidth=1
    )
    axes.axvline(0, color="#333333", linewidth=0.8)


def _panels(
    rows: PublicRows,
    column: str,
    keys: int,
    when: str,
    span: tuple[Any, Any],
    axis: str,
    unit: str | None,
    title: str | None,
    caption: str,
) -> Chart:
    """Return small multiples: the same time for every key, whose name stands above its line, and a scale of its own, or the largest flattens the
    others."""
    names = grouped_by(rows)
    times = sorted(rows.frame[when].unique())
    lines = largest(rows, when, keys)
    panel_columns = min(len(PANEL_LABELS), max(1, len(lines)))
    panel_rows = -(-max(1, len(lines)) // panel_columns)
    figure = Chart(WIDTH, 1.3 + 1.55 * panel_rows)
    figure.suptitle(
        figure.drawable(
            title or f"{_literal_text(column)} per {_literal_text(', '.join(names) or 'window')}"
        ),
        x=0.01,
        ha="left",
        fontsize=11,
    )
    grid = figure.subplots(panel_rows, panel_columns, squeeze=False)
    for axes, path in zip(grid.flat, lines, strict=False):
        label = _label(first_row(path), names, PANEL_LABELS[panel_columns - 1])
        _draw_panel(axes, at_times(path, when, times), column, figure.drawable(label))
        _set_times(axes, span)
        axes.tick_params(labelsize=7.5)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for axes in list(grid.flat)[len(lines) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(unit or _literal_text(column), fontsize=8)
    scales = ", each panel with its own scale" if len(lines) > 1 else ""
    guess = " Orange: the smoothed value, a better guess." if _smoothed(rows, column) else ""
    return figure.captioned(
        f"Across: {axis}{scales}. Bands: 95% of the noise; what the contribution bounds leave out is not in them.{guess} {caption}"
    )


def _smoothed(rows: PublicRows, column: str) -> str | None:
    """Return the column that has better guesses of an aggregate."""
    name = f"{column}_{SMOOTHED}"
    return name if name in rows.frame and column in rows.description.amounts else None


def _draw_panel(axes: Axes, rows: PublicRows, column: str, label: str) -> None:
    """Draw a key's values by time, with the band of their error and the key above."""
    line = rows.frame
    values, stderrs = known_numbers(rows, column)
    errors = Z95 * stderrs
    low = values - errors
    high = values + errors
    axes.fill_between(line.index, low, high, color=COLOURS[0], alpha=0.25, linewidth=0)
    is_there = np.isfinite(values)
    has_neighbours = np.convolve(is_there, [1, 0, 1], "same") > 0
    is_marked = is_there & ~has_neighbours if is_there.sum() > MOST_MARKERS else is_there
    axes.plot(
        line.index,
        values,
        color=COLOURS[0],
        marker="o",
        markevery=np.flatnonzero(is_marked).tolist(),
        markersize=2.5,
        linewidth=1.2,
    )
    if smoothed := _smoothed(rows, column):
        axes.plot(line.index, line[smoothed], color=COLOURS[1], linewidth=1.2)
    axes.set_title(label, loc="left", fontsize=9)
    plain_axes(axes)
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _set_times(axes: Axes, span: tuple[Any, Any]) -> None:
    """Let the axis of a panel show a span of time and name its two ends."""
    begin, end = span if span[0] < span[1] else (span[0] - HALF_DAY, span[1] + HALF_DAY)
    length = end - begin
    form = "%d %b %H:%M" if length < 6 * HALF_DAY else "%d %b" if length < MONTHS else "%b %Y"
    axes.set_xlim(begin - length / 40, end + length / 40)
    axes.set_xticks([begin, begin + length / 2, end], [f"{begin:{form}}", "", f"{end:{form}}"])
    # At the edges they grow inwards, so that those of two panels never meet
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[-1].set_horizontalalignment("right")


def _within(rows: PublicRows, column: str) -> tuple[float, float] | None:
    return next(measure.within for measure in measures(rows) if measure.alias == column)


def _bars_title(
    drawn_rows: pd.DataFrame,
    column: str,
    ranked_by: str | None,
    names: Sequence[str],
    spans: Mapping[Any, str],
    keys: int,
) -> str:
    """Return the title of a chart of values: which key leads, if that is no noise. `shown` has the largest last."""
    if ranked_by != column or not spans or keys < 2:
        return f"{_literal_text(column)} per {_literal_text(', '.join(names) or 'window')}"
    if spans[drawn_rows.index[-1]] == "1":
        return f"{_label(drawn_rows.iloc[-1].to_dict(), names, PANEL_LABELS[1])} leads in {_literal_text(column)}"
    if spans[drawn_rows.index[-1]] == f"1–{keys}":
        return f"No key can be told apart by {_literal_text(column)}"
    return f"Which key leads in {_literal_text(column)} cannot be told apart"


def plain_axes(axes: Axes) -> None:
    """Take the frame away and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _drawable(
    histogram: pd.DataFrame, column: str, keys: int, level: str | Sequence[str] | None
) -> tuple[PublicRows, str]:
    """Return the rows that have an aggregate or a list, of one level of a CUBE, and words for that level.

    Raises:
        DataError: no rows, no key, no such aggregate or no such level.
    """
    if keys < 1:
        raise DataError(f"keys={keys}: draw at least one")
    rows = PublicRows.of_frame(histogram)
    names = (*rows.description.amounts, *rows.description.lists)
    if column not in names:
        raise DataError(
            f"no aggregate {column!r} in this histogram; it has {', '.join(names) or 'none'}"
        )
    if column in rows.description.lists:
        rows = as_histogram(rows, column)
    if rows.frame.empty:
        raise DataError(
            "this histogram has no rows: no key has been selected yet (docs/howto/missing-keys.md says why)"
        )
    return _at_level(rows, level)


def _at_level(rows: PublicRows, level: str | Sequence[str] | None) -> tuple[PublicRows, str]:
    """Return the rows of one level of a CUBE, and words for it; all rows where there are no levels.

    Raises:
        DataError: no such level.
    """
    if not rows.description.sets:
        if level is not None:
            raise DataError(
                f"level={level!r}: only rows of CUBE, ROLLUP and GROUPING SETS have levels"
            )
        return rows, ""
    parts = {frozenset(grouped_by(part)): part for part in levels(rows)}
    columns = [level] if isinstance(level, str) else level
    chosen = next(iter(parts)) if columns is None else frozenset(columns)
    if chosen not in parts:
        texts = "; ".join(", ".join(grouped_by(part)) or "none" for part in parts.values())
        raise DataError(f"level={level!r}: the rows are grouped by {texts}")
    part = parts[chosen]
    text = ", ".join(grouped_by(part)) or "nothing"
    hint = "; level= draws others" if len(parts) > 1 else ""
    return part, f" These rows are grouped by {text}{hint}."


def _span(rows: PublicRows) -> str:
    if rows.description.once:
        return "All records"
    if not rows.description.windows:
        return "The whole table"
    return f"Window from {rows.frame[START].min():{TIME}} UTC"


def _label(row: Mapping[Any, Any], names: Sequence[str], max_length: int = LABEL) -> str:
    """Return a key as text of a chart: short."""
    text = (
        ", ".join("NULL" if absent(row[name]) else printable(row[name]) for name in names)
        or "all records"
    )
    return _literal_text(text if len(text) <= max_length else text[: max_length - 1] + "…")


def _literal_text(text: str) -> str:
    """Take away what matplotlib would obey: $ begins mathematics, a first _ hides a line."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")
