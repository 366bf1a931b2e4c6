"""`dpsql compare`: whether a difference is real, with the error of the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dpsql.description import START, Role
from dpsql.errors import DataError
from dpsql.jobs.options import INSTANT, json_option, lake_option, name_argument
from dpsql.jobs.terminal import note, print_json, print_table
from dpsql.view.words import TIME

if TYPE_CHECKING:
    from dpsql.description import Published
    from dpsql.published.public_rows import PublicRows
    from dpsql.view.difference import Difference, Of

    Comparison = tuple[str, str, float, Difference | None, Of | None]

NEAR = 3
"""Published keys that are named when one is not found."""

NOISE = "± is 95% of the noise: of twenty differences that are none, one passes for real."
AT_MOST = "At most: how the two noises go together is not known, so their errors are added."


@click.command(short_help="tell whether keys, windows or triggers really differ")
@name_argument
@click.argument("keys", metavar="KEY [KEY]", nargs=-1)
@lake_option
@click.option(
    "--window",
    "window_us",
    **INSTANT,
    help="The window that starts at TIME (UTC); default: as `dpsql show`.",
)
@click.option(
    "--by", "column", metavar="COLUMN", help="Only this column of the SELECT list; default: all."
)
@json_option
def compare(
    name: str,
    keys: tuple[str, ...],
    lake_folder: str,
    window_us: int | None,
    column: str | None,
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
    columns = _columns(rows.description, name, column)
    from dpsql.view.table import known_shortfall, one_window

    window = one_window(rows, name, window_us)
    published = rows.description
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
    row = _row(window.newest, keys[0])
    if len(keys) == 2:
        other_row = _row(window.newest, keys[1])
        comparisons = [
            _against(published, row, other_row, alias, keys[1], 0.0, known_shortfall(window, alias))
            for alias in columns
        ]
        _print(keys[0], row, comparisons, window, as_json)
        return
    comparisons = [line for alias in columns for line in _changes(rows, row, alias)]
    if not comparisons:
        raise DataError(
            f"{keys[0] or name!r} has no trigger or window before this one that it could be compared with"
        )
    _print(keys[0], row, comparisons, window, as_json)


def _released(name: str, lake_folder: str) -> PublicRows:
    from dpsql.lake.runs import Lake
    from dpsql.published.public_rows import all_rows

    rows = all_rows(Lake(lake_folder), name)
    if rows.frame.empty:
        raise DataError(f"query {name!r} has published nothing yet")
    if rows.description.lists:
        raise DataError(
            f"query {name!r} publishes lists: `dpsql ask {name} VALUE` gives any value's count with its interval"
        )
    return rows


def _columns(published: Published, name: str, column: str | None) -> list[str]:
    amounts = published.amounts
    quantiles = published.quantiles
    if column in quantiles or (quantiles and not amounts):
        raise DataError(
            f"the error of quantiles is one of ranks, so their differences have none: `dpsql show {name}` has {', '.join(quantiles)}"
        )
    if quantiles and column is None:
        note(f"not compared: {', '.join(quantiles)} (quantiles)")
    if column is None and amounts:
        return amounts
    if column is None or column not in amounts:
        raise DataError(
            f"query {name!r} has no column {f'{column!r} ' if column else ''}with an error; it has {', '.join(amounts) or 'none'}"
        )
    return [column]


def _row(newest: PublicRows, key: str) -> dict[Any, Any]:
    """Return the row of a key among those of one trigger."""
    import difflib

    labels = _labels(newest)
    matches = [i for i, label in enumerate(labels) if label == key]
    if len(matches) == 1:
        return dict(newest.frame.iloc[matches].to_dict("records")[0])
    if matches:
        raise DataError(
            f"{len(matches)} keys are written {key!r}; `dpsql show --json` tells them apart"
        )
    near = difflib.get_close_matches(key, labels, NEAR, 0.4) or sorted(labels)[:NEAR]
    raise DataError(
        f"{key!r} is not among the {len(labels):,} published keys of this window (it is missing, not zero); published are, among others, "
        f"{', '.join(repr(label) for label in near)}"
    )


def _labels(rows: PublicRows) -> list[str]:
    from dpsql.view.words import absent, printable

    names = rows.description.keys
    records = rows.frame[names].to_dict("records")  # without pandas' own NULL
    return [
        ",".join("NULL" if absent(row[name]) else printable(row[name]) for name in names)
        for row in records
    ]


def _against(
    published: Published,
    row: Mapping[Any, Any],
    other_row: Mapping[Any, Any],
    alias: str,
    name: str,
    correlation: float | None,
    share: float | None,
) -> Comparison:
    """Compare a column of two rows; `share`: of `dpsql.view.difference.shortfall`.

    Returns:
        The column, with what it is compared, that one's value, and the difference: None where a value is NULL, says
        nothing or is not measured; and of which records it is one.
    """
    from dpsql.view.difference import difference
    from dpsql.view.words import absent, says_nothing

    error = published.stderr(alias)
    if any(
        absent(each[alias]) or absent(each[error]) or says_nothing(each, alias, published)
        for each in (row, other_row)
    ):
        return alias, name, float("nan"), None, None
    own_value = float(row[alias])
    value = float(other_row[alias])
    change = difference(own_value, float(row[error]), value, float(other_row[error]), correlation)
    return alias, name, value, change, change.verdict(min(own_value, value), share)


def _changes(rows: PublicRows, row: Mapping[Any, Any], alias: str) -> list[Comparison]:
    """Compare with the trigger before in this window, and with the window before at the same trigger, or its newest."""
    from dpsql.view.difference import between_triggers, between_windows, larger_share
    from dpsql.view.table import known_shortfall

    published = rows.description
    windows = published.windows
    frame = rows.frame
    is_earlier = frame["trigger"] < row["trigger"]
    if windows:
        is_earlier &= frame[START] == row[START]
    comparisons = []
    earlier = _only(rows.where(is_earlier), row)
    if earlier is not None:
        correlation = between_triggers(
            published, alias, int(row["trigger"]), int(earlier["trigger"])
        )
        comparisons.append(
            _against(
                published, row, earlier, alias, f"trigger {earlier['trigger']}", correlation, None
            )
        )
    if windows:
        window_before = rows.where(frame[START] < row[START]).last_window
        is_due = window_before.frame["trigger"] <= row["trigger"]
        twin = _only(window_before.where(is_due), row)
        if twin is not None:
            when = f"{twin[START]:{TIME}}" + (
                "" if twin["trigger"] == row["trigger"] else f", trigger {twin['trigger']}"
            )
            correlation = between_windows(published)
            pair = (rows.where(frame[START] == start) for start in (row[START], twin[START]))
            share = larger_share(known_shortfall(window, alias) for window in pair)
            comparisons.append(_against(published, row, twin, alias, when, correlation, share))
    return comparisons


def _only(candidates: PublicRows, row: Mapping[Any, Any]) -> dict[Any, Any] | None:
    """Return the newest row of the same key; None where it is missing."""
    from dpsql.view.words import absent

    frame = candidates.frame
    for name in candidates.description.keys:
        values = frame[name]
        frame = frame[values.isna() if absent(row[name]) else (values == row[name]).fillna(False)]
    if frame.empty:
        return None
    return dict(frame.iloc[[int(frame["trigger"].argmax())]].to_dict("records")[0])


def _print(
    key: str,
    row: Mapping[Any, Any],
    comparisons: Sequence[Comparison],
    window: PublicRows,
    as_json: bool,
) -> None:
    from dpsql.published.words import TOO_FEW
    from dpsql.text import Z95
    from dpsql.view.left_out import estimates
    from dpsql.view.words import amount, left_out

    published = window.description

    if as_json:
        print_json([_document(key, row, *line) for line in comparisons])
        return
    place = (
        f"window {row[START]:{TIME}}, trigger {row['trigger']}"
        if published.windows
        else f"trigger {row['trigger']}"
    )
    subject = key or "all records"
    click.echo(subject if published.once else f"{subject}: {place}")
    lines = []
    for alias, name, value, difference, scope in comparisons:
        if difference is None:
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
        error = Z95 * difference.stderr
        verdict = _verdict(scope, difference.value, published)
        bar = f"{'at most ' if difference.at_most else ''}± {amount(error, error)}"
        own_text, other_text = (amount(number, error) for number in (float(row[alias]), value))
        lines.append(
            (alias, name, own_text, other_text, f"{amount(difference.value, error)} {bar}", verdict)
        )
    print_table(("column", "against", "this", "that", "difference", ""), lines)
    bounded = (
        [AT_MOST]
        if any(difference and difference.at_most for *_, difference, _ in comparisons)
        else []
    )
    for sentence in (
        NOISE,
        *bounded,
        *left_out(published, estimates(window))[1:],
    ):  # what no error covers: keys can differ in what bounds leave out
        click.echo(sentence)


def _verdict(scope: Of | None, value: float, published: Published) -> str:
    """Say whether a difference is real, and of which records it is one."""
    from dpsql.view.difference import AMONG_COUNTED, Of

    if scope is None:
        return "may be noise"
    direction = "larger" if value > 0 else "smaller"
    if scope is Of.ALL:
        return direction
    run = published.protects[-1] if published.protects else None
    keys = ", ".join(published.names(Role.KEY))
    limits = ""
    if run and run.units and run.max_groups and keys:
        limits = f" (at most {run.max_groups:,} values of {keys} per {', '.join(run.units)})"
    return f"{direction} {AMONG_COUNTED}{limits}"


def _document(
    key: str,
    row: Mapping[Any, Any],
    alias: str,
    name: str,
    value: float,
    difference: Difference | None,
    scope: Of | None,
) -> dict[str, Any]:
    document = {"key": key, "trigger": int(row["trigger"]), "column": alias, "against": name}
    if difference is None:
        return document | {"difference": None}
    return document | {
        "value": float(row[alias]),
        "other": value,
        "difference": difference.value,
        "stderr": difference.stderr,
        "at_most": difference.at_most,
        "real": difference.real(),
        "of": scope,
    }
