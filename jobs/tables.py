"""Tables on the terminal: histograms with errors and true values, and lists of the largest values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpsql.description import DUE, START, Published, Role
from dpsql.jobs.terminal import console
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import AT_END, TOO_FEW
from dpsql.text import Z95
from dpsql.view.difference import AMONG_COUNTED
from dpsql.view.left_out import estimates
from dpsql.view.plain_table import NO_LIST, lines_of, value_text
from dpsql.view.reading import NONE_LEFT, has_oldest_first, is_ordered
from dpsql.view.table import finished, in_order, known_shortfall, places_shown, size_order
from dpsql.view.words import (
    TIME,
    absent,
    amount,
    heads,
    key_text,
    left_out,
    marked,
    printable,
    says_nothing,
    text_of,
)

# Lists of the largest values on the terminal.

FOOT = (
    "with collisions: a 95% interval that also covers collisions with other values, for values named before looking;",
    "a value that is listed by luck is estimated too high. Any other value: dpsql ask NAME VALUE.",
)


def print_lists(
    rows: PublicRows, limit: int, all_triggers: bool = False, clock: Any = None
) -> None:
    """Print a table for every list, and what the bounds leave out in words: the newest finished window first, or all triggers, the newest first."""
    terminal = console()
    published = rows.description
    if not published.lists:
        terminal.print(NO_LIST, markup=False)
        return
    if not all_triggers:
        rows = rows.newest
    caps = heads(published)
    ended = dict(zip(rows.frame[START], finished(rows, clock), strict=True))
    for name in published.lists:
        lines = lines_of(rows, name)
        table = Table("window", "trigger", "value", box=None, pad_edge=False)
        _number(table, name, caps.get(name, ""))
        _number(table, "noise")
        _number(table, "with collisions")
        for line in lines[:limit]:
            trigger = f"{line['trigger']}{'' if ended[line[START]] else ', unfinished'}"
            value = Text(
                value_text(line["value"]), style="dim italic" if absent(line["value"]) else ""
            )
            table.add_row(f"{line[START]:{TIME}}", trigger, value, *numbers(line))
        terminal.print(table)
        if not lines:
            terminal.print(f"{name}: no value is listed.", markup=False)
        _foot(terminal, [_more(len(lines), limit)])
    _foot(terminal, [*left_out(published), *FOOT])


def numbers(line: dict[str, Any]) -> tuple[str, str, str]:
    """Return a value, 95% of its noise, and its interval."""
    is_count = isinstance(line["amount"], int)
    error = Z95 * line["stderr"]
    low, high = (
        f"{line[end]:,.0f}" if is_count else amount(line[end], error) for end in ("low", "high")
    )
    return (
        f"{line['amount']:,.0f}" if is_count else amount(line["amount"], error),
        f"± {amount(error, error, is_count)}",
        f"{low} .. {high}",
    )


# A histogram on the terminal: every value with its error, what the bounds leave out in words,
# and the true values beside it.


SMALL = "? smaller than its own error: it may well be nothing."
VAGUE = "? quantiles: their ranks are off by more than half the step from one to the next."
BELOW_ZERO = "Below zero is noise: leave it in when you add rows up, or sums come out too large."
MISSING = "A key that is missing is not zero: dpsql explain QUERY.sql --missing"
PLACES = "Each place holds with 95% of the noise; keys that share places cannot be told apart."


def print_histogram(
    rows: PublicRows,
    limit: int,
    all_triggers: bool = False,
    clock: Any = None,
    window: PublicRows | None = None,
) -> None:
    """Print a table with a 95% error on every cell; `?` marks a value that is smaller than its own error.

    Args:
        rows: of the histogram.
        limit: how many are printed.
        all_triggers: all triggers, the newest first; else each window's newest.
        clock: the newest trigger of all windows, where these are not all of them.
        window: all rows of the only window, among which these have places.
    """
    published = rows.description
    if not published.names(Role.VALUE):
        print_lists(rows, limit, all_triggers, clock)
        return
    ordered = _newest_first(rows) if all_triggers else in_order(rows.newest)
    top_rows = ordered.frame.head(limit)
    table = _table(published)
    caps = heads(published)
    for column in published.display_columns:
        _number(table, column.name, caps.get(column.name, ""))
    ranked_by, places = places_shown(window, top_rows.index) if window else (None, {})
    if ranked_by:
        _number(table, "place", _of_places(window, ranked_by))
    ended = finished(rows, clock)
    is_small = dict.fromkeys((False, True), False)
    for index, row in zip(top_rows.index, top_rows.to_dict("records"), strict=True):
        cells = [text_of(row, column, published) for column in published.display_columns]
        for column, cell in zip(published.display_columns, cells, strict=True):
            is_small[column.name in published.quantiles] |= cell.startswith("?")
        place = [places.get(index, "")] if ranked_by else []
        table.add_row(*_place(row, published, bool(ended[index])), *map(_dimmed, cells), *place)
    terminal = console()
    terminal.print(table)
    has_negative = bool((top_rows[published.amounts].fillna(0) < 0).to_numpy().any())
    sentences = (
        (NONE_LEFT, rows.frame.empty),
        (SMALL, is_small[False]),
        (VAGUE, is_small[True]),
        (BELOW_ZERO, has_negative),
        *((sentence, True) for sentence in left_out(published, estimates(rows))),
        (PLACES, bool(ranked_by)),
        (MISSING, published.selects),
        (_more(len(ordered.frame), limit), True),
    )
    _foot(terminal, [sentence for sentence, applies in sentences if applies])


def _of_places(window: PublicRows | None, ranked_by: str) -> str:
    """Say by what keys have places, and of which records."""
    by = f"by {printable(ranked_by)}"
    if window is None or known_shortfall(window, ranked_by) is not None:
        return by if window and len(window.description.amounts) > 1 else ""
    return f"{by} {AMONG_COUNTED}"


def _newest_first(rows: PublicRows) -> PublicRows:
    """Sort by window, the newest first unless the query says otherwise, and trigger, and within a release by size unless the query has an order."""
    published = rows.description
    order = {column: has_oldest_first(rows) and column == START for column in published.release}
    order |= {} if is_ordered(rows) else size_order(rows)
    return rows.with_frame(
        rows.frame.sort_values([*order], ascending=[*order.values()], kind="stable")
    )


def _dimmed(cell: str) -> Text:
    says_little = cell.startswith(("?", "NULL", TOO_FEW, AT_END))
    return Text(cell, style="dim" if says_little else "")


def print_comparison(
    comparison: Mapping[str, Any], limit: int, figures: Sequence[str] = ()
) -> None:
    """Print private and true values, key by key, then in a sentence for each aggregate what the difference is made of; `figures`: of what the
    limits left out, in words."""
    from dpsql.local.comparison import SIDES  # slow to import

    compared = PublicRows.of_frame(comparison["compared"])
    published = compared.description
    aggregates = list(comparison["columns"])
    rows = in_order(compared, size_column=f"{aggregates[0]}_true").frame
    table = _table(published)
    caps = heads(published)
    ended = finished(compared)
    for alias in aggregates:
        _number(table, alias, caps.get(alias, ""))
        _number(table, "true")
        _number(table, "off")
    for index, row in zip(rows.index[:limit], rows.head(limit).to_dict("records"), strict=True):
        missing = row[SIDES] == "left_only"
        cells = [cell for alias in aggregates for cell in _compared(row, alias, missing, published)]
        table.add_row(*_place(row, published, bool(ended[index])), *cells)
    terminal = console()
    terminal.print(table)
    windows = f" in {comparison['windows']:,} window{'' if comparison['windows'] == 1 else 's'}"
    released_share = (
        f"{comparison['keys_kept']:,} of {comparison['keys']:,} groups"
        f"{'' if published.once else windows} are released."
    )
    sentences = [_sentence(alias, made_of) for alias, made_of in comparison["made_of"].items()]
    for line in (released_share, *sentences):
        terminal.print(line, markup=False)
    _foot(terminal, [*left_out(published, figures), _more(len(rows), limit)])


def _sentence(alias: str, made_of: Mapping[str, float]) -> str:
    name = printable(alias)
    if "typical" in made_of:
        return f"{name}: a released value is typically {made_of['typical']:.3g} off; noise alone is typically {made_of['noise']:.2g}."
    if not made_of:
        return f"{name}: there is nothing to compare."
    took = made_of["bounds"]
    bounds = f"the contribution bounds {'took' if took > 0 else 'added'} about {abs(took):.0%}"
    if abs(took) <= made_of["bounds_error"]:
        bounds = "the contribution bounds took less than the noise lets one see"
    return f"{name}: of all that is truly there, missing keys hold {made_of['missing']:.0%}, {bounds}, noise is about {made_of['noise']:.1%}."


def _table(published: Published) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in () if published.once else ("window" if published.windows else "time", "trigger"):
        table.add_column(name)
    for key in published.keys:
        table.add_column(Text(printable(key)), overflow="fold")
    return table


def _number(table: Table, name: str, cap: str = "") -> None:
    head = Text(printable(name))
    if cap:
        head.append(f"\n{cap}", style="dim")
    table.add_column(head, justify="right")


def _place(row: Mapping[Any, Any], published: Published, ended: bool) -> list[str | Text]:
    keys: list[str | Text] = [
        Text(key_text(row, key, published), style="dim italic" if absent(row[key]) else "")
        for key in published.keys
    ]
    if published.once:
        return keys
    trigger = "" if absent(row["trigger"]) else f"{row['trigger']:.0f}"
    return [
        f"{row[START if published.windows else DUE]:{TIME}}",
        trigger if ended else f"{trigger}, unfinished",
        *keys,
    ]


def _compared(
    row: Mapping[Any, Any], alias: str, missing: bool, published: Published
) -> tuple[Text, Text, Text]:
    value = row[alias]
    true = row[f"{alias}_true"]
    true_text = Text(
        "NULL"
        if absent(true)
        else f"{true:,.6g}"
        if isinstance(true, float) and abs(true) < 1e6
        else f"{true:,.0f}"
    )
    if missing:
        return Text("missing", style="dim"), true_text, Text("")
    difference = ""
    if not (absent(value) or absent(true) or says_nothing(row, alias, published)):
        error = Z95 * row[published.stderr(alias)]
        difference = amount(value - true, error, isinstance(value, Integral))
    return _dimmed(marked(row, alias, published)), true_text, Text(difference)


def _foot(terminal: Console, lines: Sequence[str]) -> None:
    for line in lines:
        if line:
            terminal.print(line, style="dim", markup=False)


def _more(rows: int, limit: int) -> str:
    return f"{rows - limit:,} more rows: --limit {rows}" if rows > limit else ""
