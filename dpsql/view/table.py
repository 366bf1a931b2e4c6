"""One window as a table of keys: which window, which measures, the order of keys, place, value with its error, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.description import DUE, END, START, Measure, Role
from dpsql.errors import LakeError
from dpsql.parsed_query import AggregateFunction, Reading
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import silence
from dpsql.text import Z95
from dpsql.view import words
from dpsql.view.cells import NONE, Cell, Head, quantile_columns
from dpsql.view.difference import (
    AMONG_COUNTED,
    Of,
    between_windows,
    difference,
    larger_share,
    places,
    shortfall,
)
from dpsql.view.drawings import NO_DRAWING, intervals, trend
from dpsql.view.left_out import has_units, of_window
from dpsql.view.reading import as_read, has_oldest_first, is_ordered
from dpsql.view.words import (
    absent,
    aggregate_text,
    amount,
    key_text,
    printable,
    says_nothing,
    text_of,
)

# What each aggregate of a histogram measures, as far as drawing and ranking it depends on that.
# From what its table says of itself.

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.udfs.columns import Float


def measures(rows: PublicRows) -> list[Measure]:
    """Return the aggregates that have a standard error, in the order of the columns."""
    published = rows.description
    measure_by_alias = {measure.alias: measure for measure in published.measures}
    return [measure_by_alias[alias] for alias in published.amounts]


def grouped_by(rows: PublicRows) -> list[str]:
    """Return the key columns; of the rows of a CUBE those that some row has a value of, as all have of one level."""
    published = rows.description
    return [
        name
        for name in published.keys
        if not published.sets
        or (name not in published.names(Role.SET) and rows.frame[name].notna().any())
    ]


def levels(rows: PublicRows) -> list[PublicRows]:
    """Return the rows of a CUBE by what they are grouped by, few columns first; the total, which is grouped by none, last."""
    groups = rows.frame.groupby(rows.description.names(Role.SET), sort=False)
    rows_by_level = [rows.with_frame(level) for _, level in groups]
    return sorted(
        rows_by_level,
        key=lambda level: (not grouped_by(level), len(grouped_by(level)), grouped_by(level)),
    )


def size_of(rows: PublicRows) -> str | None:
    """Return the column that says how large a key is: of people, whom bounds hardly touch; else the count or sum that stands out most of its noise.

    None where there are only averages: of few records they are noise, and the noisiest are the largest and the smallest.
    """
    people = {
        measure.alias
        for measure in rows.description.measures
        if measure.function is AggregateFunction.COUNT_DISTINCT_UNIT
    }

    def signal(alias: str) -> tuple[bool, float]:
        values, stderrs = rows.numbers(alias)
        noise = float(np.nansum(stderrs**2) ** 0.5)
        return alias in people, float(np.nansum(np.abs(values))) / noise if noise > 0 else 0.0

    return max(
        (measure.alias for measure in measures(rows) if measure.within is None),
        key=signal,
        default=None,
    )


def size_order(rows: PublicRows) -> dict[str, bool]:
    """Return the column by which rows are ordered, and whether upwards: the size (`size_of`), the largest first.

    Where there are only averages, those with the smallest error come first: it says where most records are, and what says nothing is last.
    """
    published = rows.description
    if size := size_of(rows):
        return {size: False}
    if published.amounts:
        return {published.stderr(published.amounts[0]): True}
    if published.quantiles:
        return dict.fromkeys(published.names(Role.RANK_STDERR)[:1], True)
    return dict.fromkeys(published.fitted[:1], False)


def ranked(rows: PublicRows) -> tuple[PublicRows, str | None]:
    """Return the rows as `size_order` says them, and the column of their size."""
    frame = rows.frame
    for column, is_upwards in size_order(rows).items():
        frame = frame.sort_values(column, ascending=is_upwards, kind="stable")
    return rows.with_frame(frame), size_of(rows)


def growing_aliases(rows: PublicRows) -> list[str]:
    """Return the aggregates that grow with the number of records; all, where there are only averages."""
    window_measures = measures(rows)
    return [measure.alias for measure in window_measures if measure.within is None] or [
        measure.alias for measure in window_measures
    ]


def known_numbers(rows: PublicRows, alias: str) -> tuple[Float, Float]:
    """Return the values of an aggregate and their standard errors; NaN where a value says nothing."""
    values, stderrs = rows.numbers(alias)
    limit = silence(alias, rows.description)[1]
    return np.where(stderrs < limit, values, np.nan), np.where(stderrs < limit, stderrs, np.nan)


MOST_IN_ORDER = 60


def ordered_key(rows: PublicRows) -> str | None:
    """Return the key by which rows stand in its own order: it is a number or a time, it stands alone, and it has few values."""
    names = grouped_by(rows)
    if len(names) != 1 or is_ordered(rows) or len(rows.frame) > MOST_IN_ORDER:
        return None
    values = rows.frame[names[0]].dropna()
    return names[0] if len(values) and isinstance(values.iloc[0], Number | date) else None


# Which rows of a histogram a person wants first: each window's newest trigger, finished windows
# before those that still grow.


BY_CHANCE = 0.01
"""How often a window of noise alone has, at most, a value that passes for more (Gaussian noise; `telling`)."""


def finished(rows: PublicRows, clock: Any = None) -> pd.Series:
    """Tell per row whether its window had ended by the newest trigger: `clock`, or of these rows. (Late records may still change it.)"""
    frame = rows.frame
    if not rows.description.windows:
        import pandas as pd  # slow to import

        return pd.Series(True, frame.index)  # a table is what it is at its newest trigger
    return frame[END] <= (frame[DUE].max() if clock is None else clock)


def in_order(rows: PublicRows, size_column: str | None = None) -> PublicRows:
    """Return the newest finished window first, unfinished ones last, or, by ORDER BY window.start, the oldest first; within a window the largest
    keys first, unless the query has an order.

    Args:
        rows: of a histogram.
        size_column: the column that says how large a key is, whatever order the query has; as `size_order` unless given.
    """
    published = rows.description
    is_upwards = has_oldest_first(rows)
    order = {} if is_upwards else {"_finished": False}
    order |= {column: is_upwards and column == START for column in published.release}
    if size_column:
        order[size_column] = False
    elif not is_ordered(rows):
        order |= size_order(rows)
    ordered = rows.frame.assign(_finished=finished(rows))
    if order:
        ordered = ordered.sort_values([*order], ascending=[*order.values()], kind="stable")
    return rows.with_frame(ordered.drop(columns="_finished"))


def telling(rows: PublicRows, aggregates: Sequence[str]) -> pd.Series:
    """Tell per row whether its window has a value above its own noise. Of many noisy values some are large: the more there are, the larger one must be."""
    last = rows.newest
    values, errors = np.stack([last.numbers(alias) for alias in aggregates], axis=-1)
    largest = np.divide(
        np.abs(values), errors, out=np.zeros_like(values), where=(errors > 0) & np.isfinite(values)
    ).max(axis=1)
    windows = (
        last.frame[[START]].assign(largest=largest).groupby(START)["largest"].agg(["max", "size"])
    )
    # P(|N| > z) <= exp(-z^2 / 2), of which a union bound makes that of all values
    enough = windows["max"] > np.sqrt(2 * np.log(windows["size"] * len(aggregates) / BY_CHANCE))
    return rows.frame[START].map(enough)


def one_window(
    rows: PublicRows,
    name: str,
    window_us: int | None,
    growing: bool = False,
    aliases: Sequence[str] = (),
) -> PublicRows:
    """Return the rows of one window; all there are where there are no windows.

    Args:
        rows: of all windows.
        name: of the query.
        window_us: where the window starts, microseconds since 1970 UTC; None: the newest one that is finished, or, where none is, the newest.
        growing: the newest one, finished or not.
        aliases: aggregates, one of which is above its own noise in the window that is chosen, if there is such a one.

    Raises:
        LakeError: the query has published no such window.
    """
    if not rows.description.windows:
        if window_us is not None:
            raise LakeError(f"query {name!r} has no windows: leave --window away")
        return rows
    if window_us is None:
        ended = rows.where(finished(rows))
        chosen = rows if growing or ended.frame.empty else ended
        if aliases and not growing and (tells := telling(chosen, aliases)).any():
            chosen = chosen.where(tells)
        return chosen.last_window
    starts = rows.frame[START].astype("datetime64[us, UTC]").astype("int64")
    window_rows = rows.where(starts == window_us)
    if window_rows.frame.empty:
        raise LakeError(
            f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are"
        )
    return window_rows


def passed_over(rows: PublicRows, window: PublicRows) -> str:
    """Return what is said of the finished windows that are newer than the one that is shown; nothing where there are none."""
    if not rows.description.windows:
        return ""
    starts = rows.frame[START]
    newer = starts[finished(rows) & (starts > window.frame[START].iloc[0])]
    if newer.empty:
        return ""
    if newer.nunique() == 1:
        return f"A newer window, that of {newer.min():%Y-%m-%d %H:%M} UTC, is passed over: no value in it is clearly above its own noise."
    span = f"{newer.min():%Y-%m-%d %H:%M} to {newer.max():%Y-%m-%d %H:%M} UTC"
    return f"{newer.nunique():,} newer windows, of {span}, are passed over: no value in them is clearly above its own noise."


# The keys of one window as a table: place, value with its error, and what has changed
# since the window before.


@dataclass(frozen=True)
class Row:
    """A key's line; `place`: which places it can have among the keys of its window, `2–4`."""

    place: str
    keys: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class WindowTable:
    """The largest keys, of `all_rows`.

    Args:
        names: of the key columns.
        heads: of the columns of numbers.
        rows: a line for each key.
        all_rows: how many keys there are.
        ranked_by: the aggregate that places are of; None: there are no places.
        among: of which records these are, in words.
        first: the line of the largest key, if it is shown.
        all_tied: no key can be told apart from any other.
        has_trends: there is more than one trigger in this window.
        has_changes: some value has clearly changed since the window before.
        stands_out: some value is larger than its own error.
        order: how rows are ordered, in words.
        ordered_key: as of the function of this name.
        main_alias: the aggregate that a picture shows; None where there are quantiles alone.
        main_column: its column; of quantiles the last.
        shown_rows: the rows as they were released.
    """

    names: tuple[str, ...]
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    all_rows: int
    ranked_by: str | None
    among: str
    first: Row | None
    all_tied: bool
    has_trends: bool
    has_changes: bool
    stands_out: bool
    order: str
    ordered_key: str | None
    main_alias: str | None
    main_column: int
    shown_rows: PublicRows


@dataclass(frozen=True)
class _Context:
    """Facts that the cells of a window are compared with; `previous_rows`: those of the window before, by key. `shares`: of each aggregate, how
    much larger true numbers of both windows may be (`known_shortfall`)."""

    names: list[str]
    newest: PublicRows
    previous_rows: Mapping[tuple[Any, ...], Mapping[Any, Any]]
    horizon: int
    shares: Mapping[str, float | None]


def table(
    window: PublicRows,
    previous_window: PublicRows | None,
    horizon: int | None,
    most_rows: int,
    reading: Reading | None = None,
) -> WindowTable:
    """Return the table of one window.

    Args:
        window: its rows, of all its triggers so far.
        previous_window: the rows of the window before it; None where there is none, or where the two cannot be compared.
        horizon: triggers of a whole window; None: there is no last one.
        most_rows: rows of the table.
        reading: as for `as_read`.
    """
    context = _context(window, previous_window, horizon)
    ordered, ranking = ranked(context.newest)
    matching_rows = as_read(ordered, reading)
    top_rows = matching_rows.with_frame(matching_rows.frame.head(most_rows))
    own_order = ordered_key(context.newest)
    if own_order:
        top_rows = top_rows.with_frame(top_rows.frame.sort_values(own_order))
    top_index = top_rows.frame.index
    ranked_by, place_ranges = places_shown(window, top_index)
    columns = _columns(window, top_rows, context, bool(place_ranges))
    heads = tuple(head for head, _ in columns)
    cells = [column for _, column in columns]
    table_lines = _lines(top_rows, cells, place_ranges, context)
    all_cells = [cell for column in cells for cell in column]
    line_by_index = dict(zip(top_index, table_lines, strict=True))
    index = ordered.frame.index
    are_all_tied = {place_ranges.get(number) for number in top_index} == {f"1–{len(index)}"}
    amounts = window.description.amounts
    main_alias = ranking or next(iter(amounts), None)
    drawn_columns = [number for number, head in enumerate(heads) if head.has_drawings]
    return WindowTable(
        names=tuple(map(printable, context.names)),
        heads=heads,
        rows=tuple(table_lines),
        all_rows=len(matching_rows.frame),
        ranked_by=ranked_by if place_ranges else None,
        among=_among(window, ranked_by) if ranked_by else "",
        first=line_by_index.get(index[0]) if len(index) else None,
        all_tied=len(index) > 1 and are_all_tied,
        has_trends=any(cell.trend for cell in all_cells),
        has_changes=any(cell.has_changed for cell in all_cells),
        stands_out=not amounts or not all(cell.small or cell.size == NONE for cell in all_cells),
        order=_order_text(window, ranking, own_order),
        ordered_key=own_order,
        main_alias=main_alias,
        main_column=amounts.index(main_alias) if main_alias else next(iter(drawn_columns), 0),
        shown_rows=top_rows,
    )


def _context(
    window: PublicRows, previous_window: PublicRows | None, horizon: int | None
) -> _Context:
    """Return what the cells of a window are compared with; arguments as for `table`."""
    names = grouped_by(window)
    previous_rows = {}
    shares = {}
    if previous_window is not None:
        records = previous_window.newest.frame.to_dict("records")
        previous_rows = {_key(row, names): row for row in records}
        for alias in window.description.amounts:
            pair = known_shortfall(window, alias), known_shortfall(previous_window, alias)
            shares[alias] = larger_share(pair)
    triggers = window.frame["trigger"]
    last_trigger = horizon or int(triggers.max() if len(triggers) else 1)
    return _Context(names, window.newest, previous_rows, last_trigger, shares)


def _columns(
    window: PublicRows, rows: PublicRows, context: _Context, has_places: bool
) -> list[tuple[Head, list[Cell]]]:
    """Return the columns of numbers: aggregates with what the bounds cap in each, then quantiles."""
    published = window.description
    caps = words.heads(published)
    trend_paths: Sequence[PublicRows | None] = [None] * len(rows.frame)
    if published.amounts and not published.once and window.frame["trigger"].nunique() > 1:
        trend_paths = paths(window, rows)
    columns = []
    for measure in measures(window):
        cells = _cells(measure, rows, trend_paths, context)
        if has_places:
            cells = _placed(measure, cells, rows, context.newest)
        among = _among(window, measure.alias)
        head = Head(printable(measure.alias), caps.get(measure.alias, ""), among=among)
        columns.append((head, cells))
    for name in published.quantiles:
        columns += quantile_columns(name, rows)
    return columns


def _lines(
    rows: PublicRows, cells: Sequence[Sequence[Cell]], spans: Mapping[Any, str], context: _Context
) -> list[Row]:
    """Return a line for each of the rows; `cells` has a list for each column."""
    lines = []
    frame = rows.frame
    records = frame.to_dict("records")
    for position, (index, row) in enumerate(zip(frame.index, records, strict=True)):
        texts = tuple(key_text(row, name, rows.description) for name in context.names)
        lines.append(Row(spans.get(index, ""), texts, tuple(column[position] for column in cells)))
    return lines


def paths(all_rows: PublicRows, rows: PublicRows) -> list[PublicRows]:
    """Return, for each of the rows, all rows of its key, in order of time."""
    names = grouped_by(rows)
    frame = all_rows.frame
    key = frame["trigger"] * 0
    if names:
        key = frame.groupby(names, dropna=False, sort=False).ngroup()
    groups = frame.sort_values(all_rows.description.release).groupby(key)
    path_by_key = {number: all_rows.with_frame(path) for number, path in groups}
    return [path_by_key[key[index]] for index in rows.frame.index]


def _cells(
    measure: Measure, rows: PublicRows, trend_paths: Sequence[PublicRows | None], context: _Context
) -> list[Cell]:
    """Return the cells of an aggregate, one for each of the rows."""
    alias = measure.alias
    published = rows.description
    drawings = intervals(*known_numbers(rows, alias), measure.within)
    cells = []
    for drawing, path, row in zip(
        drawings, trend_paths, rows.frame.to_dict("records"), strict=True
    ):
        text, small = aggregate_text(row, alias, published)
        remarks = [
            f"{ending} {text_of(row, column, published)}"
            for ending, column in published.extra_columns(alias).items()
        ]
        change = _change(row, alias, context)
        remarks += change
        way = NO_DRAWING
        if path is not None:
            triggers = path.frame["trigger"].to_numpy(np.int64)
            way = trend(triggers, *known_numbers(path, alias), context.horizon)
        is_silent = absent(row[alias]) or says_nothing(row, alias, published)
        size = NONE if is_silent else float(row[alias])
        cells.append(Cell(text, size, small, tuple(remarks), drawing, way, bool(change)))
    return cells


def _placed(
    measure: Measure, cells: Sequence[Cell], rows: PublicRows, newest: PublicRows
) -> list[Cell]:
    """Return the cells of an aggregate with the places that keys have by it; averages have none."""
    if measure.within is not None:
        return [*cells]
    index = rows.frame.index
    spans = places_shown(newest, index, measure.alias)[1]
    return [replace(cell, place=spans[i]) for i, cell in zip(index, cells, strict=True)]


def _order_text(window: PublicRows, ranking: str | None, own_order: str | None) -> str:
    """Say how the rows of a table are ordered."""
    if is_ordered(window):
        return "in the order that the query asks for"
    if own_order:
        return f"by {printable(own_order)}, upwards"
    if ranking:
        return f"by {printable(ranking)}, the largest first"
    return "the smallest error first, which is where most records are"


def places_shown(
    window: PublicRows, shown_index: pd.Index, alias: str | None = None
) -> tuple[str | None, dict[Any, str]]:
    """Return what the keys of one window are ranked by, and from which to which place each of the shown rows can be; None where they have no places.

    Args:
        window: its rows.
        shown_index: of the shown rows.
        alias: the aggregate that places are of; as `size_of` unless given.
    """
    published = window.description
    ordered, ranked_by = ranked(window.newest)
    if alias is not None:
        frame = ordered.frame.sort_values(alias, ascending=False, kind="stable")
        ordered, ranked_by = ordered.with_frame(frame), alias
    index = ordered.frame.index
    # A total is no rival of its parts, and of a prediction nobody knows how far it is off
    if not ranked_by or not published.keys or published.sets or published.predicts:
        return None, {}
    last_position = int(index.get_indexer(shown_index).max(initial=0))
    share = known_shortfall(window, ranked_by) or 0.0
    best, worst = places(*ordered.numbers(ranked_by), last_position + 1, share)
    place_ranges = zip(index[: len(best)], best, worst, strict=True)
    return ranked_by, {
        i: f"{first_place}" if first_place == last_place else f"{first_place}–{last_place}"
        for i, first_place, last_place in place_ranges
    }


def _among(window: PublicRows, alias: str) -> str:
    """Say of which records the places of an aggregate are; nothing where they are of all."""
    return "" if known_shortfall(window, alias) is not None else f" {AMONG_COUNTED}"


def known_shortfall(window: PublicRows, alias: str) -> float | None:
    """Return how much larger the true numbers of a window may be (`dpsql.view.difference.shortfall`); None: nobody knows, and places and
    differences are among the records that count."""
    published = window.description
    measure = next(each for each in published.measures if each.alias == alias)
    start = None
    if published.windows:
        if window.frame.empty:
            return None
        start = window.frame[START].iloc[0].to_pydatetime()
    return shortfall(of_window(window, start), measure, has_units(published))


def _change(row: Mapping[Any, Any], alias: str, context: _Context) -> list[str]:
    """Return a value's change since the window before; nothing where it may be noise."""
    previous_row = context.previous_rows.get(_key(row, context.names))
    published = context.newest.description
    error = published.stderr(alias)
    if previous_row is None or absent(row[alias]) or absent(previous_row[alias]):
        return []
    change = difference(
        float(row[alias]),
        row[error],
        float(previous_row[alias]),
        previous_row[error],
        between_windows(published),
    )
    smaller = min(float(row[alias]), float(previous_row[alias]))
    verdict = change.verdict(smaller, context.shares.get(alias), len(context.newest.frame))
    if verdict is None:
        return []
    half_width = Z95 * change.stderr
    arrows = "▲▼" if verdict is Of.ALL else "△▽"
    arrow = arrows[change.value < 0]
    return [f"{arrow} {amount(abs(change.value), half_width)} ± {amount(half_width, half_width)}"]


def _key(row: Mapping[Any, Any], names: list[str]) -> tuple[Any, ...]:
    return tuple(None if absent(row[name]) else row[name] for name in names)


def window_before(rows: PublicRows, window: PublicRows) -> PublicRows | None:
    """Return the rows of the newest window that had ended when this one began: sliding windows that share records are not compared."""
    if not rows.description.windows:
        return None
    older = rows.where(rows.frame[END] <= window.frame[START].iloc[0])
    return None if older.frame.empty else older.last_window
