"""One window as a table of keys: which window, which measures, the order of keys, place, value with its error, share, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.description import DUE, END, START, Measure, Published, Role
from dpsql.errors import LakeError
from dpsql.parsed_query import AggregateFunction, Reading
from dpsql.published.public_rows import newest_triggers, published_of
from dpsql.published.words import TOO_FEW, null_of
from dpsql.text import Z95
from dpsql.view import words
from dpsql.view.difference import between_windows, difference, places
from dpsql.view.drawings import Drawing, intervals, trend
from dpsql.view.reading import as_read, is_ordered
from dpsql.view.words import absent, amount, key_text, measured, printable, says_nothing, text_of

# What each aggregate of a histogram measures, as far as drawing and ranking it depends on that.
# From what its table says of itself.

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.udfs.columns import Float


def measures(rows: pd.DataFrame) -> list[Measure]:
    """Return the aggregates of a frame that have a standard error, in its order."""
    published = published_of(rows)
    measure_by_alias = {measure.alias: measure for measure in published.measures}
    return [measure_by_alias[alias] for alias in published.amounts]


def grouped_by(rows: pd.DataFrame) -> list[str]:
    """Return the key columns; of the rows of a CUBE those that some row has a value of, as all have of one level."""
    published = published_of(rows)
    return [
        name
        for name in published.keys
        if not published.sets
        or (name not in published.names(Role.SET) and rows[name].notna().any())
    ]


def levels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of a CUBE by what they are grouped by, few columns first; the total, which is grouped by none, last."""
    rows_by_level = [
        level for _, level in rows.groupby(published_of(rows).names(Role.SET), sort=False)
    ]
    return sorted(
        rows_by_level,
        key=lambda level: (not grouped_by(level), len(grouped_by(level)), grouped_by(level)),
    )


def size_of(rows: pd.DataFrame) -> str | None:
    """Return the column that says how large a key is: of people, whom bounds hardly touch; else the count or sum that stands out most of its noise.

    None where there are only averages: of few records they are noise, and the noisiest are the largest and the smallest.
    """
    published = published_of(rows)
    people = {
        measure.alias
        for measure in published.measures
        if measure.function is AggregateFunction.COUNT_DISTINCT_UNIT
    }

    def signal(alias: str) -> tuple[bool, float]:
        noise = float((rows[published.stderr(alias)].astype(float) ** 2).sum() ** 0.5)
        return alias in people, float(
            rows[alias].astype(float).abs().sum()
        ) / noise if noise > 0 else 0.0

    return max(
        (measure.alias for measure in measures(rows) if measure.within is None),
        key=signal,
        default=None,
    )


def ranked(rows: pd.DataFrame) -> tuple[pd.DataFrame, str | None]:
    """Return the rows, the largest first, and the column that says so (`size_of`).

    Where there are only averages, those with the smallest error come first: it says where most records are.
    """
    if size := size_of(rows):
        return rows.sort_values(size, ascending=False, kind="stable"), size
    published = published_of(rows)
    return (
        rows.sort_values(published.stderr(published.amounts[0]), kind="stable")
        if published.amounts
        else rows
    ), None


def growing_aliases(rows: pd.DataFrame) -> list[str]:
    """Return the aggregates that grow with the number of records; all, where there are only averages."""
    window_measures = measures(rows)
    return [measure.alias for measure in window_measures if measure.within is None] or [
        measure.alias for measure in window_measures
    ]


# Which rows of a histogram a person wants first: each window's newest trigger, finished windows
# before those that still grow.


BY_CHANCE = 0.01
"""How often a window of noise alone has, at most, a value that passes for more (Gaussian noise; `telling`)."""


def finished(rows: pd.DataFrame, clock: Any = None) -> pd.Series:
    """Tell per row whether its window had ended by the newest trigger: `clock`, or of these rows. (Late records may still change it.)"""
    if not published_of(rows).windows:
        return rows["trigger"].notna()  # a table is what it is at its newest trigger
    return rows[END] <= (rows[DUE].max() if clock is None else clock)


def in_order(
    rows: pd.DataFrame, size_column: str | None = None, keep: bool = False
) -> pd.DataFrame:
    """Return the newest finished window first, unfinished ones last; within a window the largest keys first.

    Args:
        rows: of a histogram.
        size_column: the column that says how large a key is; as `size_of` unless given, or the first aggregate.
        keep: the rows of one window stay in their order.
    """
    published = published_of(rows)
    sizes = [
        alias
        for alias in (size_column or size_of(rows), *published.amounts, *published.fitted)
        if alias and not keep
    ][:1]
    columns = ["_finished", *published.release, *sizes]
    ordered = rows.assign(_finished=finished(rows)).sort_values(
        columns, ascending=False, kind="stable"
    )
    return ordered.drop(columns="_finished")


def telling(rows: pd.DataFrame, aggregates: Sequence[str]) -> pd.Series:
    """Tell per row whether its window has a value above its own noise. Of many noisy values some are large: the more there are, the larger one must be."""
    last = newest_triggers(rows)
    values = last[list(aggregates)].to_numpy(np.float64, na_value=np.nan)
    errors = last[[published_of(rows).stderr(alias) for alias in aggregates]].to_numpy(
        np.float64, na_value=np.nan
    )
    largest = np.divide(
        np.abs(values), errors, out=np.zeros_like(values), where=(errors > 0) & np.isfinite(values)
    ).max(axis=1)
    windows = last[[START]].assign(largest=largest).groupby(START)["largest"].agg(["max", "size"])
    # P(|N| > z) <= exp(-z^2 / 2), of which a union bound makes that of all values
    enough = windows["max"] > np.sqrt(2 * np.log(windows["size"] * len(aggregates) / BY_CHANCE))
    return rows[START].map(enough)


def one_window(
    rows: pd.DataFrame,
    name: str,
    window_us: int | None,
    growing: bool = False,
    aliases: Sequence[str] = (),
) -> pd.DataFrame:
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
    if not published_of(rows).windows:
        if window_us is not None:
            raise LakeError(f"query {name!r} has no windows: leave --window away")
        return rows
    if window_us is None:
        ended = rows[finished(rows)]
        chosen = rows if growing or ended.empty else ended
        if aliases and not growing and (tells := telling(chosen, aliases)).any():
            chosen = chosen[tells]
        return chosen[chosen[START] == chosen[START].max()]
    window_rows = rows[rows[START].astype("datetime64[us, UTC]").astype("int64") == window_us]
    if window_rows.empty:
        raise LakeError(
            f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are"
        )
    return window_rows


def passed_over(rows: pd.DataFrame, window: pd.DataFrame) -> str:
    """Return what is said of the finished windows that are newer than the one that is shown; nothing where there are none."""
    if not published_of(rows).windows:
        return ""
    newer = rows[finished(rows) & (rows[START] > window[START].iloc[0])][START]
    if newer.empty:
        return ""
    if newer.nunique() == 1:
        return f"A newer window, that of {newer.min():%Y-%m-%d %H:%M} UTC, is passed over: no value in it is clearly above its own noise."
    span = f"{newer.min():%Y-%m-%d %H:%M} to {newer.max():%Y-%m-%d %H:%M} UTC"
    return f"{newer.nunique():,} newer windows, of {span}, are passed over: no value in them is clearly above its own noise."


# The keys of one window as a table: place, value with its error, share, and what has changed
# since the window before.


NONE = -1e300
"""The size of a NULL: below all."""


@dataclass(frozen=True)
class Cell:
    """A released value, remarks on it, its drawing and its way there.

    `size` orders the column; `small`: the value is below its own error; `has_changed`: clearly, since the window before.
    """

    text: str
    size: float
    small: bool
    remarks: tuple[str, ...]
    interval: Drawing
    trend: Drawing
    has_changed: bool = False


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
        heads: aggregates, and what the bounds cap in each.
        rows: a line for each key.
        all_rows: how many keys there are.
        ranked_by: the aggregate that places are of; None: there are no places.
        first: the line of the largest key, if it is shown.
        all_tied: no key can be told apart from any other.
        has_trends: there is more than one trigger in this window.
        has_changes: some value has clearly changed since the window before.
        stands_out: some value is larger than its own error.
        order: how rows are ordered, in words.
    """

    names: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    all_rows: int
    ranked_by: str | None
    first: Row | None
    all_tied: bool
    has_trends: bool
    has_changes: bool
    stands_out: bool
    order: str


@dataclass(frozen=True)
class _Context:
    """Facts that the cells of a window are compared with; `previous_rows`: those of the window before, by key."""

    published: Published
    names: list[str]
    newest: pd.DataFrame
    previous_rows: Mapping[tuple[Any, ...], Mapping[Any, Any]]
    horizon: int


def table(
    window: pd.DataFrame,
    previous_window: pd.DataFrame | None,
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
    measure_names = measures(window)
    context = _context(window, previous_window, horizon)
    ordered, ranking = ranked(context.newest)
    matching_rows = as_read(ordered, reading)
    top_rows = matching_rows.head(most_rows)
    ranked_by, place_ranges = places_shown(window, top_rows)
    has_trends = bool(measure_names) and window["trigger"].nunique() > 1
    trend_paths = _paths(window, top_rows, context) if has_trends else [None] * len(top_rows)
    cells = [_cells(measure, top_rows, trend_paths, context) for measure in measure_names]
    quantile_names = context.published.quantiles
    cells += [_range_cells(name, top_rows, context.published) for name in quantile_names]
    table_lines = _lines(top_rows, cells, place_ranges, context)
    all_cells = [cell for column in cells for cell in column]
    line_by_index = dict(zip(top_rows.index, table_lines, strict=True))
    are_all_tied = {place_ranges.get(index) for index in top_rows.index} == {f"1–{len(ordered)}"}
    return WindowTable(
        names=tuple(map(printable, context.names)),
        heads=_heads(context.published),
        rows=tuple(table_lines),
        all_rows=len(matching_rows),
        ranked_by=ranked_by if place_ranges else None,
        first=line_by_index.get(ordered.index[0]) if len(ordered) else None,
        all_tied=len(ordered) > 1 and are_all_tied,
        has_trends=has_trends,
        has_changes=any(cell.has_changed for cell in all_cells),
        stands_out=not measure_names
        or not all(cell.small or cell.size == NONE for cell in all_cells),
        order=_order_text(window, ranking),
    )


def _context(
    window: pd.DataFrame, previous_window: pd.DataFrame | None, horizon: int | None
) -> _Context:
    """Return what the cells of a window are compared with; arguments as for `table`."""
    names = grouped_by(window)
    newest = newest_triggers(window)
    previous_rows = {}
    if previous_window is not None:
        previous_newest = newest_triggers(previous_window)
        previous_rows = {_key(row, names): row for row in previous_newest.to_dict("records")}
    last_trigger = horizon or int(newest["trigger"].max() if len(newest) else 1)
    return _Context(published_of(window), names, newest, previous_rows, last_trigger)


def _heads(published: Published) -> tuple[tuple[str, str], ...]:
    """Return the aggregates, those with numbers first, and what the bounds cap in each."""
    caps = words.heads(published)
    aliases = [*published.amounts, *published.quantiles]
    return tuple((printable(alias), caps.get(alias, "")) for alias in aliases)


def _lines(
    rows: pd.DataFrame, cells: Sequence[Sequence[Cell]], spans: Mapping[Any, str], context: _Context
) -> list[Row]:
    """Return a line for each of the rows; `cells` has a list for each column."""
    lines = []
    records = rows.to_dict("records")
    for position, (index, row) in enumerate(zip(rows.index, records, strict=True)):
        texts = tuple(key_text(row, name, context.published) for name in context.names)
        lines.append(Row(spans.get(index, ""), texts, tuple(column[position] for column in cells)))
    return lines


def _paths(
    window: pd.DataFrame, rows: pd.DataFrame, context: _Context
) -> list[pd.DataFrame | None]:
    """Return, for each of the rows, all that its key has released in the window, by trigger."""
    names = context.names
    key = (
        window.groupby(names, dropna=False, sort=False).ngroup() if names else window["trigger"] * 0
    )
    # pandas groups are pairs, and no mapping
    paths = {number: path for number, path in window.sort_values("trigger").groupby(key)}  # noqa: C416
    return [paths.get(key[index]) for index in rows.index]


def _cells(
    measure: Measure, rows: pd.DataFrame, paths: Sequence[pd.DataFrame | None], context: _Context
) -> list[Cell]:
    """Return the cells of an aggregate, one for each of the rows."""
    alias = measure.alias
    published = context.published
    has_shares = measure.has_shares and context.names and not published.sets
    total = _total(context.newest, alias) if has_shares else (0.0, 0.0)
    drawings = intervals(*_floats(rows, alias), measure.within)
    cells = []
    for drawing, path, row in zip(drawings, paths, rows.to_dict("records"), strict=True):
        error = row[published.stderr(alias)]
        text, small = measured(row[alias], error, null_of(alias, published))
        if says_nothing(alias, error, published):
            text = TOO_FEW
            small = True
        remarks = [
            f"{ending} {text_of(row, column, published)}"
            for ending, column in published.extra_columns(alias).items()
        ]
        change = _change(row, alias, context)
        remarks += [*_share(row, alias, total, error), *change]
        way = Drawing()
        if path is not None:
            triggers = path["trigger"].to_numpy(np.int64)
            way = trend(triggers, *_floats(path, alias), context.horizon, measure.within)
        size = NONE if absent(row[alias]) else float(row[alias])
        cells.append(Cell(text, size, small, tuple(remarks), drawing, way, bool(change)))
    return cells


def _range_cells(name: str, rows: pd.DataFrame, published: Published) -> list[Cell]:
    """Return the cells of a column of quantiles, one for each of the rows."""
    column = next(column for column in published.display_columns if column.name == name)
    return [
        Cell(text_of(row, column, published), NONE, False, (), Drawing(), Drawing())
        for row in rows.to_dict("records")
    ]


def _order_text(window: pd.DataFrame, ranking: str | None) -> str:
    """Say how the rows of a table are ordered."""
    if is_ordered(window):
        return "in the order that the query asks for"
    if ranking:
        return f"by {printable(ranking)}, the largest first"
    return "the smallest error first, which is where most records are"


def places_shown(window: pd.DataFrame, top_rows: pd.DataFrame) -> tuple[str | None, dict[Any, str]]:
    """Return what the keys of one window are ranked by, and from which to which place each of the shown rows can be; None where they have no places."""
    published = published_of(window)
    ordered, ranked_by = ranked(newest_triggers(window))
    # A total is no rival of its parts, and of a prediction nobody knows how far it is off
    if not ranked_by or not published.keys or published.sets or published.predicts:
        return None, {}
    best, worst = places(
        *_floats(ordered, ranked_by),
        int(ordered.index.get_indexer(top_rows.index).max(initial=0)) + 1,
    )
    place_ranges = zip(ordered.index[: len(best)], best, worst, strict=True)
    return ranked_by, {
        i: f"{first_place}" if first_place == last_place else f"{first_place}–{last_place}"
        for i, first_place, last_place in place_ranges
    }


def _total(newest: pd.DataFrame, alias: str) -> tuple[float, float]:
    """Return the sum of a column, and the standard deviation of its noise."""
    values, stderrs = _floats(newest, alias)
    return float(np.nansum(values)), float(np.sqrt((stderrs**2).sum()))


def _share(
    row: Mapping[Any, Any], alias: str, total: tuple[float, float], stderr: float
) -> list[str]:
    """Return `31% of all published`, with the digits that the noise of part and whole leaves; nothing where that is larger than the share."""
    total_value, total_noise = total
    if absent(row[alias]) or total_value <= 0:
        return []
    share = row[alias] / total_value
    variance = (stderr / total_value) ** 2 * (1 - 2 * share) + (
        share * total_noise / total_value
    ) ** 2
    error = Z95 * max(0.0, variance) ** 0.5
    return [f"{share:.{0 if error >= 0.005 else 1}%} of all published"] if share > error else []


def _change(row: Mapping[Any, Any], alias: str, context: _Context) -> list[str]:
    """Return a value's change since the window before; nothing where it may be noise."""
    previous_row = context.previous_rows.get(_key(row, context.names))
    error = context.published.stderr(alias)
    if previous_row is None or absent(row[alias]) or absent(previous_row[alias]):
        return []
    change = difference(
        float(row[alias]),
        row[error],
        float(previous_row[alias]),
        previous_row[error],
        between_windows(context.published),
    )
    if not change.real(len(context.newest)):
        return []
    half_width = Z95 * change.stderr
    arrow = "▲" if change.value > 0 else "▼"
    return [f"{arrow} {amount(abs(change.value), half_width)} ± {amount(half_width, half_width)}"]


def _floats(rows: pd.DataFrame, alias: str) -> tuple[Float, Float]:
    """Return values and their standard deviations; NaN for NULL."""
    return rows[alias].to_numpy(np.float64, na_value=np.nan), rows[
        published_of(rows).stderr(alias)
    ].to_numpy(np.float64, na_value=np.nan)


def _key(row: Mapping[Any, Any], names: list[str]) -> tuple[Any, ...]:
    return tuple(None if absent(row[name]) else row[name] for name in names)


def window_before(rows: pd.DataFrame, window: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows of the newest window that had ended when this one began: sliding windows that share records are not compared."""
    if not published_of(rows).windows:
        return None
    older = rows[rows[END] <= window[START].iloc[0]]
    return None if older.empty else older[older[START] == older[START].max()]
