"""Lines through time for the page: the largest keys of a table, each on a scale of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from dpsql.description import DUE, END, SMOOTHED, START
from dpsql.published.public_rows import PublicRows
from dpsql.view.drawings import Drawing, way
from dpsql.view.table import finished, grouped_by, known_numbers, paths, ranked
from dpsql.view.words import key_text, printable, scale_texts

MOST_KEYS = 6
SEARCHED = 40
"""Keys that are looked at for a line."""

MOST_POINTS = 3_000
FEWEST_POINTS = 120
"""Points of all lines together, and of one line at least: a page stays small."""

HALF_DAY = timedelta(hours=12)
MONTHS = timedelta(days=300)
BAND = "Band: 95% of the noise; what the contribution bounds leave out is not in it."
GUESS = "Dashed: the smoothed value, a better guess."
INTERRUPTED = "Where a line is interrupted, the key was not published: that is not zero."
SELECTED = "A line begins at the trigger at which its key was selected."
OVERLAP = "They overlap. The first ones may begin before the records do, and rise for that reason."


@dataclass(frozen=True)
class KeyLine:
    """The line of a key, with the numbers at the ends of its scale."""

    keys: tuple[str, ...]
    drawing: Drawing
    low: str
    high: str


@dataclass(frozen=True)
class Series:
    """The lines of an aggregate, the times at their ends, and sentences on them."""

    title: str
    lines: tuple[KeyLine, ...]
    begin: str
    end: str
    sentences: tuple[str, ...]


def over_windows(rows: PublicRows, alias: str) -> Series | None:
    """Return an aggregate of finished windows, window by window; None where no key has two."""
    published = rows.description
    closed = rows.where(finished(rows)).newest
    if published.windows is None or closed.frame.empty:
        return None
    key_rows = largest(closed, START)
    starts = sorted(closed.frame[START].unique())
    count = max(FEWEST_POINTS, MOST_POINTS // len(key_rows))
    is_cut = len(starts) > count
    sentences = [f"{f'The newest {count:,} of' if is_cut else 'All'} {len(starts):,} windows."]
    if published.windows.slide_us < published.windows.size_us:
        sentences.append(OVERLAP)
    if published.selects:
        sentences.append(INTERRUPTED)
    shown_starts = starts[-count:]
    span = shown_starts[0], shown_starts[-1]
    return _series(alias, "window by window", key_rows, START, shown_starts, span, sentences)


def growth(window: PublicRows, alias: str) -> Series | None:
    """Return an aggregate of one window, trigger by trigger; None where no key has two."""
    published = window.description
    frame = window.frame
    if published.once:
        return None
    dues = sorted(frame[DUE].unique())
    begin = dues[0]
    end = dues[-1]
    if published.windows:
        begin = frame[START].min()
        end = max(frame[END].max(), end)
    sentences = [SELECTED] if published.selects else []
    key_rows = largest(window, DUE)
    return _series(alias, "trigger by trigger", key_rows, DUE, dues, (begin, end), sentences)


def largest(rows: PublicRows, when: str, keys: int = MOST_KEYS) -> list[PublicRows]:
    """Return the rows of each of the largest keys of the last time; keys of one point come last, for they make no line."""
    unique = rows.with_frame(rows.frame.reset_index(drop=True))
    points = unique.frame[when]
    ordered = ranked(unique.where(points == points.max()))[0]
    searched = ordered.with_frame(ordered.frame.head(SEARCHED))
    key_rows = paths(unique, searched)
    key_rows.sort(key=lambda path: path.frame[when].nunique() < 2)  # which is stable
    return key_rows[:keys]


def first_row(rows: PublicRows) -> dict[Any, Any]:
    """Return the first of some rows, with None for NULL."""
    row: dict[Any, Any] = rows.frame.head(1).to_dict("records")[0]
    return row


def at_times(path: PublicRows, when: str, times: list[Any]) -> PublicRows:
    """Return the rows of one key by some times, of which it may lack some."""
    frame = path.frame.drop_duplicates(when, keep="last")
    return path.with_frame(frame.set_index(when).reindex(times))


def _series(
    alias: str,
    progress: str,
    key_rows: Sequence[PublicRows],
    when: str,
    times: list[Any],
    span: tuple[Any, Any],
    sentences: Sequence[str],
) -> Series | None:
    """Return the lines of some keys.

    Args:
        alias, progress: the aggregate, and what its points are.
        key_rows: of each key.
        when: the column of the times.
        times: of all points that are drawn, ascending.
        span: the times at both ends.
        sentences: on the picture.
    """
    if max(path.frame[when].nunique() for path in key_rows) < 2:
        return None
    length = span[1] - span[0]
    across = np.array([(time - span[0]) / length for time in times])
    lines = tuple(_line(path, alias, when, times, across) for path in key_rows)
    has_guess = SMOOTHED in key_rows[0].description.extra_columns(alias)
    scale = ["Each line has a scale of its own."] if len(lines) > 1 else []
    form = "%d %b %H:%M" if length < 6 * HALF_DAY else "%d %b" if length < MONTHS else "%b %Y"
    begin, end = (f"{time:{form}}" for time in span)
    guess = [GUESS] if has_guess else []
    title = f"{printable(alias)}, {progress}"
    return Series(title, lines, begin, end, (*scale, BAND, *guess, *sentences))


def _line(path: PublicRows, alias: str, when: str, times: list[Any], across: np.ndarray) -> KeyLine:
    """Return the line of one key at some times."""
    published = path.description
    names = grouped_by(path)
    row = first_row(path)
    points = at_times(path, when, times)
    guess = published.extra_columns(alias).get(SMOOTHED)
    guesses = None if guess is None else points.frame[guess.name].to_numpy(np.float64)
    drawing, (low, high) = way("series", across, *known_numbers(points, alias), guesses)
    keys = tuple(key_text(row, name, published) for name in names)
    return KeyLine(keys, drawing, *scale_texts(low, high))
