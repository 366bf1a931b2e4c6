"""`dpsql compare`: whether a difference is real, with the error of the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dpsql.description import START
from dpsql.errors import DataError
from dpsql.jobs.options import INSTANT, json_option, lake_option, name_argument
from dpsql.jobs.terminal import note, print_json, print_table
from dpsql.view.words import TIME

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.description import Published
    from dpsql.view.difference import Difference

NEAR = 3
"""Published keys that are named when one is not found."""

NOISE = "± is 95% of the noise: of twenty differences that are none, one passes for real."
AT_MOST = "At most: how the two noises go together is not known, so their errors are added."


@click.command(short_help="whether keys, windows or triggers really differ")
@name_argument
@click.argument("keys", metavar="KEY [KEY]", nargs=-1)
@lake_option
@click.option(
    "--window",
    "window_us",
    **INSTANT,
    help="The window that starts at TIME (UTC); default: as `dpsql show`.",
)
@click.option("--by", metavar="COLUMN", help="Only this column of the SELECT list; default: all.")
@json_option
def compare(
    name: str,
    keys: tuple[str, ...],
    lake_folder: str,
    window_us: int | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Say whether a difference is real, with the error of the difference itself.

    Two keys: which is larger. One: what has changed since the trigger and the window before; so without keys, of a query that has none. A key of
    several columns is written with commas between them, a NULL as NULL. Spends nothing.

    \b
    dpsql compare demo '#en.wikipedia' '#de.wikipedia' --lake lake
    dpsql compare demo '#en.wikipedia' --lake lake
    """
    if len(keys) > 2:
        raise click.UsageError("at most two keys can be compared")
    rows = _released(name, lake_folder)
    columns = _columns(rows, name, by)
    from dpsql.published.public_rows import newest_triggers, published_of
    from dpsql.view.table import one_window

    window = one_window(rows, name, window_us)
    published = published_of(rows)
    if not published.keys:
        if keys:
            raise click.UsageError(
                f"query {name!r} has no key columns: leave {keys[0]!r} away to see what has changed"
            )
        keys = ("",)
    if not keys:
        raise click.UsageError(
            f"name a key, or two; which places keys can have: `dpsql show {name}`"
        )
    newest = newest_triggers(window)
    one = _row(newest, keys[0])
    if len(keys) == 2:
        other = _row(newest, keys[1])
        found = [_against(published, one, other, alias, keys[1], 0.0) for alias in columns]
        _print(keys[0], one, found, published, as_json)
        return
    found = [line for alias in columns for line in _changes(rows, one, alias)]
    if not found:
        raise DataError(
            f"{keys[0] or name!r} has no trigger or window before this one that it could be compared with"
        )
    _print(keys[0], one, found, published, as_json)


def _released(name: str, lake_folder: str) -> pd.DataFrame:
    from dpsql.lake.runs import Lake
    from dpsql.published.public_rows import all_rows, published_of

    lake = Lake(lake_folder)
    rows = all_rows(lake, name)
    if rows.empty:
        raise DataError(f"query {name!r} has published nothing yet")
    if published_of(rows).lists:
        raise DataError(
            f"query {name!r} publishes lists: `dpsql ask {name} --value VALUE` gives any value's count with its interval"
        )
    return rows


def _columns(rows: pd.DataFrame, name: str, by: str | None) -> list[str]:
    from dpsql.published.public_rows import published_of

    known = published_of(rows).amounts
    quantiles = published_of(rows).quantiles
    if by in quantiles or (quantiles and not known):
        raise DataError(
            f"the error of quantiles is one of ranks, so their differences have none: `dpsql show {name}` has {', '.join(quantiles)}"
        )
    if quantiles and by is None:
        note(f"not compared: {', '.join(quantiles)} (quantiles)")
    if by is None and known:
        return known
    if by is None or by not in known:
        raise DataError(
            f"query {name!r} has no column {f'{by!r} ' if by else ''}with an error; it has {', '.join(known) or 'none'}"
        )
    return [by]


def _row(newest: pd.DataFrame, key: str) -> dict[Any, Any]:
    """Return the row of a key among those of one trigger."""
    import difflib

    labels = _labels(newest)
    found = [i for i, label in enumerate(labels) if label == key]
    if len(found) == 1:
        return dict(newest.iloc[[found[0]]].to_dict("records")[0])
    if found:
        raise DataError(
            f"{len(found)} keys are written {key!r}; `dpsql show --json` tells them apart"
        )
    near = difflib.get_close_matches(key, labels, NEAR, 0.4) or sorted(labels)[:NEAR]
    raise DataError(
        f"{key!r} is not among the {len(labels):,} published keys of this window (it is missing, not zero); published are, among others, "
        f"{', '.join(repr(label) for label in near)}"
    )


def _labels(rows: pd.DataFrame) -> list[str]:
    from dpsql.published.public_rows import published_of
    from dpsql.view.words import absent, printable

    names = published_of(rows).keys
    records = rows[names].to_dict("records")  # without pandas' own NULL
    return [
        ",".join("NULL" if absent(row[name]) else printable(row[name]) for name in names)
        for row in records
    ]


def _against(
    published: Published,
    one: Mapping[Any, Any],
    other: Mapping[Any, Any],
    alias: str,
    name: str,
    correlation: float | None,
) -> tuple[str, str, float, Difference | None]:
    """(column, with what, its value, the difference); no difference where a value is NULL or not measured."""
    from dpsql.view.difference import difference
    from dpsql.view.words import absent

    error = published.stderr(alias)
    if any(absent(row[column]) for row in (one, other) for column in (alias, error)):
        return alias, name, float("nan"), None
    value = float(other[alias])
    return (
        alias,
        name,
        value,
        difference(float(one[alias]), float(one[error]), value, float(other[error]), correlation),
    )


def _changes(
    rows: pd.DataFrame, one: Mapping[Any, Any], alias: str
) -> list[tuple[str, str, float, Difference | None]]:
    """Since the trigger before in this window, and since the window before at the same trigger, or its newest."""
    from dpsql.published.public_rows import published_of
    from dpsql.view.difference import between_triggers, between_windows

    published = published_of(rows)
    windows = published.windows
    same = rows[rows[START] == one[START]] if windows else rows
    found = []
    earlier = _only(same[same["trigger"] < one["trigger"]], one)
    if earlier is not None:
        correlation = between_triggers(
            published, alias, int(one["trigger"]), int(earlier["trigger"])
        )
        found.append(
            _against(published, one, earlier, alias, f"trigger {earlier['trigger']}", correlation)
        )
    if windows:
        before = rows[rows[START] < one[START]]
        before = before[before[START] == before[START].max()]
        twin = _only(before[before["trigger"] <= one["trigger"]], one)
        if twin is not None:
            when = f"{twin[START]:{TIME}}" + (
                "" if twin["trigger"] == one["trigger"] else f", trigger {twin['trigger']}"
            )
            found.append(_against(published, one, twin, alias, when, between_windows(published)))
    return found


def _only(rows: pd.DataFrame, one: Mapping[Any, Any]) -> dict[Any, Any] | None:
    """Return the newest row of the same key; None where it is missing."""
    from dpsql.published.public_rows import published_of
    from dpsql.view.words import absent

    for name in published_of(rows).keys:
        rows = rows[
            rows[name].isna() if absent(one[name]) else (rows[name] == one[name]).fillna(False)
        ]
    return (
        dict(rows.iloc[[int(rows["trigger"].argmax())]].to_dict("records")[0])
        if len(rows)
        else None
    )


def _print(
    key: str,
    one: Mapping[Any, Any],
    found: Sequence[tuple[str, str, float, Difference | None]],
    published: Published,
    as_json: bool,
) -> None:
    from dpsql.published.words import TOO_FEW
    from dpsql.text import Z95
    from dpsql.view.words import amount, left_out

    if as_json:
        print_json([_told(key, one, *line) for line in found])
        return
    place = (
        f"window {one[START]:{TIME}}, trigger {one['trigger']}"
        if published.windows
        else f"trigger {one['trigger']}"
    )
    click.echo(f"{key or 'all records'}: {place}")
    lines = []
    for alias, name, value, made in found:
        if made is None:
            lines.append(
                (
                    alias,
                    name,
                    "",
                    "",
                    "",
                    f"nothing to compare: a value is not measured, or NULL: {TOO_FEW}",
                )
            )
            continue
        error = Z95 * made.stderr
        verdict = ("larger" if made.value > 0 else "smaller") if made.real() else "may be noise"
        bar = f"{'at most ' if made.at_most else ''}± {amount(error, error)}"
        this, that = (amount(number, error) for number in (float(one[alias]), value))
        lines.append((alias, name, this, that, f"{amount(made.value, error)} {bar}", verdict))
    print_table(("column", "against", "this", "that", "difference", ""), lines)
    bounded = [AT_MOST] if any(made and made.at_most for *_, made in found) else []
    for sentence in (
        NOISE,
        *bounded,
        *left_out(published)[1:],
    ):  # what no error covers: keys can differ in what bounds leave out
        click.echo(sentence)


def _told(
    key: str, one: Mapping[Any, Any], alias: str, name: str, value: float, made: Difference | None
) -> dict[str, Any]:
    told = {"key": key, "trigger": int(one["trigger"]), "column": alias, "against": name}
    if made is None:
        return told | {"difference": None}
    return told | {
        "value": float(one[alias]),
        "other": value,
        "difference": made.value,
        "stderr": made.stderr,
        "at_most": made.at_most,
        "real": made.real(),
    }
