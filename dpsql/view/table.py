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


def measures(rows: pd.DataFrame) -> list[Measure]:
    """Return the aggregates of a frame that have a standard error, in its order."""
    published = published_of(rows)
    known = {each.alias: each for each in published.measures}
    return [known[alias] for alias in published.amounts]


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
    found = [level for _, level in rows.groupby(published_of(rows).names(Role.SET), sort=False)]
    return sorted(
        found, key=lambda level: (not grouped_by(level), len(grouped_by(level)), grouped_by(level))
    )


def size_of(rows: pd.DataFrame) -> str | None:
    """Return the column that says how large a key is: of people, whom bounds hardly touch; else the count or sum that stands out most of its noise.

    None where there are only averages: of few records they are noise, and the noisiest are the largest and the smallest.
    """
    published = published_of(rows)
    people = {
        each.alias
        for each in published.measures
        if each.function is AggregateFunction.COUNT_DISTINCT_UNIT
    }

    def signal(alias: str) -> tuple[bool, float]:
        noise = float((rows[published.stderr(alias)].astype(float) ** 2).sum() ** 0.5)
        return alias in people, float(
            rows[alias].astype(float).abs().sum()
        ) / noise if noise > 0 else 0.0

    return max(
        (each.alias for each in measures(rows) if each.within is None), key=signal, default=None
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


def counted(rows: pd.DataFrame) -> list[str]:
    """Return the aggregates that grow with the number of records; all, where there are only averages."""
    of = measures(rows)
    return [each.alias for each in of if each.within is None] or [each.alias for each in of]


# Which rows of a histogram a person wants first: each window's newest trigger, finished windows
# before those that still grow.

if TYPE_CHECKING:
    import pandas as pd

BY_CHANCE = 0.01
"""How often a window of noise alone has, at most, a value that passes for more (Gaussian noise; `telling`)."""


def finished(rows: pd.DataFrame, clock: Any = None) -> pd.Series:
    """Per row whether its window had ended by the newest trigger: `clock`, or of these rows. (Late records may still change it.)"""
    if not published_of(rows).windows:
        return rows["trigger"].notna()  # a table is what it is at its newest trigger
    return rows[END] <= (rows[DUE].max() if clock is None else clock)


def in_order(rows: pd.DataFrame, by: str | None = None, keep: bool = False) -> pd.DataFrame:
    """Return the newest finished window first, unfinished ones last; within a window the largest keys first.

    Args:
        rows: of a histogram.
        by: the column that says how large a key is; as `size_of` unless given, or the first aggregate.
        keep: the rows of one window stay in their order.
    """
    published = published_of(rows)
    sizes = [
        each
        for each in (by or size_of(rows), *published.amounts, *published.fitted)
        if each and not keep
    ][:1]
    columns = ["_finished", *published.release, *sizes]
    ordered = rows.assign(_finished=finished(rows)).sort_values(
        columns, ascending=False, kind="stable"
    )
    return ordered.drop(columns="_finished")


def telling(rows: pd.DataFrame, aggregates: Sequence[str]) -> pd.Series:
    """Per row whether its window has a value above its own noise. Of many noisy values some are large: the more there are, the larger one must be."""
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
    of: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the rows of one window; all there are where there are no windows.

    Args:
        rows: of all windows.
        name: of the query.
        window_us: where the window starts, microseconds since 1970 UTC; None: the newest one that is finished, or, where none is, the newest.
        growing: the newest one, finished or not.
        of: aggregates, one of which is above its own noise in the window that is chosen, if there is such a one.

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
        if of and not growing and (tells := telling(chosen, of)).any():
            chosen = chosen[tells]
        return chosen[chosen[START] == chosen[START].max()]
    kept = rows[rows[START].astype("datetime64[us, UTC]").astype("int64") == window_us]
    if kept.empty:
        raise LakeError(
            f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are"
        )
    return kept


def passed_over(rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Return what is said of the finished windows that are newer than the one that is shown; nothing where there are none."""
    if not published_of(rows).windows:
        return ""
    newer = rows[finished(rows) & (rows[START] > shown[START].iloc[0])][START]
    if newer.empty:
        return ""
    if newer.nunique() == 1:
        return f"A newer window, that of {newer.min():%Y-%m-%d %H:%M} UTC, is passed over: no value in it is clearly above its own noise."
    span = f"{newer.min():%Y-%m-%d %H:%M} to {newer.max():%Y-%m-%d %H:%M} UTC"
    return f"{newer.nunique():,} newer windows, of {span}, are passed over: no value in them is clearly above its own noise."


# The keys of one window as a table: place, value with its error, share, and what has changed
# since the window before.

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.udfs.columns import Float


NONE = -1e300
"""The size of a NULL: below all."""


@dataclass(frozen=True)
class Cell:
    """A released value, what is said beside it, its drawing and its way there; `small`: below its own error; `size` orders the column."""

    text: str
    size: float
    small: bool
    beside: tuple[str, ...]
    interval: Drawing
    trend: Drawing


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
        by: what places are of; None: there are no places.
        first: the line of the largest key, if it is shown.
        together: no key can be told apart from any other.
        has_trends: there is more than one trigger in this window.
        has_changes: some value has clearly changed since the window before.
        stands_out: some value is larger than its own error.
        order: how rows are ordered, in words.
    """

    names: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    all_rows: int
    by: str | None
    first: Row | None
    together: bool
    has_trends: bool
    has_changes: bool
    stands_out: bool
    order: str


def table(
    window: pd.DataFrame,
    before: pd.DataFrame | None,
    horizon: int | None,
    most_rows: int,
    reading: Reading | None = None,
) -> WindowTable:
    """Return the table of one window.

    Args:
        window: its rows, of all its triggers so far.
        before: the rows of the window before it; None where there is none, or where the two cannot be compared.
        horizon: triggers of a whole window; None: there is no last one.
        most_rows: rows of the table.
        reading: as for `as_read`.
    """
    published = published_of(window)
    names = grouped_by(window)
    of = measures(window)
    last = newest_triggers(window)
    ordered, ranking = ranked(last)
    kept = as_read(ordered, reading)
    order = (
        f"by {printable(ranking)}, the largest first"
        if ranking
        else "the smallest error first, which is where most records are"
    )
    if is_ordered(window):
        order = "in the order that the query asks for"
    shown = kept.head(most_rows)
    by, spans = places_shown(window, shown)
    key = (
        window.groupby(names, dropna=False, sort=False).ngroup() if names else window["trigger"] * 0
    )
    has_trends = bool(of) and window["trigger"].nunique() > 1
    paths = (
        {number: path for number, path in window.sort_values("trigger").groupby(key)}
        if has_trends
        else {}
    )
    older = (
        {}
        if before is None
        else {_key(row, names): row for row in newest_triggers(before).to_dict("records")}
    )
    whole = {
        each.alias: _whole(last, each.alias)
        for each in of
        if each.has_shares and names and not published.sets
    }
    ranges = [column for column in published.shown if column.name in published.quantiles]
    drawn = {each.alias: intervals(*_floats(shown, each.alias), each.within) for each in of}
    lines = []
    has_changes = False
    for at, (index, row) in enumerate(zip(shown.index, shown.to_dict("records"), strict=True)):
        cells = []
        for each in of:
            said = [
                f"{ending} {text_of(row, column, published)}"
                for ending, column in published.beside(each.alias).items()
            ]
            change = _change(row, older.get(_key(row, names)), each, published, len(last))
            has_changes |= bool(change)
            said += [*_share(row, each, whole, published), *change]
            error = row[published.stderr(each.alias)]
            text, small = measured(row[each.alias], error, null_of(each.alias, published))
            text, small = (
                (TOO_FEW, True) if says_nothing(each.alias, error, published) else (text, small)
            )
            path = paths.get(key[index])
            way = Drawing()
            if path is not None:
                way = trend(
                    path["trigger"].to_numpy(np.int64),
                    *_floats(path, each.alias),
                    horizon or int(last["trigger"].max()),
                    each.within,
                )
            size = NONE if absent(row[each.alias]) else float(row[each.alias])
            cells.append(Cell(text, size, small, tuple(said), drawn[each.alias][at], way))
        cells += [
            Cell(text_of(row, column, published), NONE, False, (), Drawing(), Drawing())
            for column in ranges
        ]
        texts = tuple(key_text(row, name, published) for name in names)
        lines.append(Row(spans.get(index, ""), texts, tuple(cells)))
    caps = words.heads(published)
    heads = tuple(
        (printable(alias), caps.get(alias, ""))
        for alias in (*(each.alias for each in of), *published.quantiles)
    )
    first = next(
        (line for index, line in zip(shown.index, lines, strict=True) if index == ordered.index[0]),
        None,
    )
    return WindowTable(
        tuple(map(printable, names)),
        heads,
        tuple(lines),
        len(kept),
        by if spans else None,
        first,
        len(ordered) > 1 and {spans.get(index) for index in shown.index} == {f"1–{len(ordered)}"},
        has_trends,
        has_changes,
        not of or not all(cell.small or cell.size == NONE for line in lines for cell in line.cells),
        order,
    )


def places_shown(window: pd.DataFrame, shown: pd.DataFrame) -> tuple[str | None, dict[Any, str]]:
    """Return what the keys of one window are ranked by, and from which to which place each of the shown rows can be; None where they have no places."""
    published = published_of(window)
    ordered, by = ranked(newest_triggers(window))
    # A total is no rival of its parts, and of a prediction nobody knows how far it is off
    if not by or not published.keys or published.sets or published.predicts:
        return None, {}
    best, worst = places(
        *_floats(ordered, by), int(ordered.index.get_indexer(shown.index).max(initial=0)) + 1
    )
    ends = zip(ordered.index[: len(best)], best, worst, strict=True)
    return by, {i: f"{one}" if one == other else f"{one}–{other}" for i, one, other in ends}


def _whole(last: pd.DataFrame, alias: str) -> tuple[float, float]:
    """Return the sum of a column, and the standard deviation of its noise."""
    values, stderrs = _floats(last, alias)
    return float(np.nansum(values)), float(np.sqrt((stderrs**2).sum()))


def _share(
    row: Mapping[Any, Any],
    of: Measure,
    whole: Mapping[str, tuple[float, float]],
    published: Published,
) -> list[str]:
    """`31% of all published`, with the digits that the noise of part and whole leaves; nothing where that is larger than the share."""
    total, noise = whole.get(of.alias, (0.0, 0.0))
    if absent(row[of.alias]) or total <= 0:
        return []
    share = row[of.alias] / total
    stderr = row[published.stderr(of.alias)] / total
    error = Z95 * max(0.0, stderr**2 * (1 - 2 * share) + (share * noise / total) ** 2) ** 0.5
    return [f"{share:.{0 if error >= 0.005 else 1}%} of all published"] if share > error else []


def _change(
    row: Mapping[Any, Any],
    older: Mapping[Any, Any] | None,
    of: Measure,
    published: Published,
    keys: int,
) -> list[str]:
    alias = of.alias
    error = published.stderr(of.alias)
    if older is None or absent(row[alias]) or absent(older[alias]):
        return []
    found = difference(
        float(row[alias]), row[error], float(older[alias]), older[error], between_windows(published)
    )
    if not found.real(keys):
        return []
    off = Z95 * found.stderr
    return [
        f"{'▲' if found.value > 0 else '▼'} {amount(abs(found.value), off)} ± {amount(off, off)}"
    ]


def _floats(rows: pd.DataFrame, alias: str) -> tuple[Float, Float]:
    """Values and their standard deviations; NaN for NULL."""
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
