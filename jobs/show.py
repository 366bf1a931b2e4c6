"""`dpsql show`: what a query has published, as a table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from dpsql.description import DUE, START
from dpsql.jobs.options import INSTANT, json_option, optional_lake
from dpsql.jobs.terminal import note, print_json, print_table, records
from dpsql.jobs.watch import follow

if TYPE_CHECKING:
    from dpsql.description import Published
    from dpsql.lake.runs import Lake
    from dpsql.parsed_query import Reading
    from dpsql.published.public_rows import PublicRows

SHOWN_ROWS = 20


@click.command(short_help="print the newest release")
@click.argument("name", metavar="NAME|TABLE")
@optional_lake
@click.option(
    "--window",
    "window_us",
    **INSTANT,
    help="The window that starts at TIME (UTC); default: see above.",
)
@click.option("--all", "all_triggers", is_flag=True, help="Every window and trigger.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=SHOWN_ROWS,
    show_default=True,
    help="Rows to print; --json prints all.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Print the newest window whenever a trigger is published, until Ctrl-C.",
)
@json_option
def show(
    name: str,
    lake_folder: str | None,
    window_us: int | None,
    all_triggers: bool,
    limit: int,
    watch: bool,
    as_json: bool,
) -> None:
    """Print a window's newest histogram, each value with its 95% error.

    It is the newest finished window that has a value above its own noise; with --json the newest finished one, with --watch the newest.
    A published TABLE is shown from its folder alone, wherever that is: a path with a / in it. It says whom it protects, and what its columns are.

    \b
    dpsql show demo --lake lake
    dpsql show demo --lake lake --window 2015-09-12
    dpsql show demo --lake lake --watch
    dpsql show copies/demo.sketch
    """
    from dpsql.lake.runs import Lake
    from dpsql.published.public_rows import open_table

    if all_triggers and window_us is not None:
        raise click.UsageError("--all and --window exclude each other")
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    # A name has letters, digits, _ and - only, so whatever has another character is a path.
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        lake: Lake = open_table(name)
    elif lake_folder is None:
        raise click.UsageError(
            f"Missing option '--lake': {name!r} is the name of a query; the folder of a table is written with a /: ./{name}"
        )
    else:
        lake = Lake(lake_folder)
    selection = _Selection(lake, name, window_us, all_triggers, growing=watch)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            follow(lake, name, lambda: _print(selection, limit))
    elif as_json:
        print_json(_document(selection))
    else:
        _print(selection, limit)


@dataclass(frozen=True)
class _Selection:
    """The part of a histogram that is asked for; `growing` takes the newest window, finished or not."""

    lake: Lake
    name: str
    window_us: int | None
    all_triggers: bool
    growing: bool

    def rows(self) -> PublicRows:
        """Read all windows, with every trigger or the newest."""
        from dpsql.published.public_rows import all_rows, newest

        return (all_rows if self.all_triggers else newest)(self.lake, self.name)

    def chosen(self, rows: PublicRows, columns: Sequence[str] = ()) -> PublicRows:
        """Return the rows of one window, or all; `columns` tell whether a window says anything."""
        from dpsql.view.plain_table import listing
        from dpsql.view.table import one_window

        if self.all_triggers:
            return rows
        if rows.description.lists and self.window_us is None and not self.growing:
            rows, note_text = listing(rows)
            if note_text:
                note(note_text)
        return one_window(rows, self.name, self.window_us, self.growing, columns)


def _document(selection: _Selection) -> dict[str, Any]:
    from dpsql.published import words
    from dpsql.published.public_rows import own_reading
    from dpsql.view.left_out import estimates, of_shown_windows
    from dpsql.view.reading import NONE_LEFT, as_read
    from dpsql.view.standing import live_notes
    from dpsql.view.words import left_out

    condition = own_reading(selection.lake, selection.name)
    rows = as_read(selection.chosen(selection.rows()), condition)
    published = rows.description
    return {
        "name": selection.name,
        "live": list(live_notes(selection.lake, selection.name)),
        "errors": [
            *[NONE_LEFT] * rows.frame.empty,
            *left_out(published, estimates(rows)),
            *_unread(condition, published),
        ],
        "left_out": of_shown_windows(rows),
        "promises": [asdict(run) for run in published.protects],
        "columns": dict(words.columns(published)),
        "rows": records(rows.frame, published),
    }


def _print(selection: _Selection, limit: int) -> None:
    from dpsql.jobs.tables import print_histogram  # slow to import
    from dpsql.lake.running import is_running
    from dpsql.published import words
    from dpsql.published.public_rows import PublicTable, own_reading
    from dpsql.times import now_us
    from dpsql.view.left_out import estimates
    from dpsql.view.reading import as_read
    from dpsql.view.standing import live_notes
    from dpsql.view.table import growing_aliases, passed_over
    from dpsql.view.words import STATUS, next_trigger, why_nothing

    lake = selection.lake
    rows = selection.rows()
    published = rows.description
    if selection.growing:
        click.clear()
    if isinstance(lake, PublicTable):
        for sentence in words.promises(published):
            click.echo(sentence)
        print_table(("column", "is"), words.columns(published))
        click.echo()
    if rows.frame.empty:
        for sentence in (why_nothing(published, STATUS), *estimates(rows)):
            click.echo(sentence)
        if is_running(lake.private(selection.name)):
            click.echo(
                f"It is running; the next trigger is at {next_trigger(published, now_us())}."
            )
        return
    chosen = selection.chosen(rows, growing_aliases(rows) if published.amounts else ())
    condition = own_reading(lake, selection.name)
    readable = as_read(chosen, condition)
    clock = rows.frame[DUE].max()
    window = None if selection.all_triggers else chosen
    print_histogram(readable, limit, selection.all_triggers, clock, window)
    if (
        not selection.all_triggers
        and selection.window_us is None
        and (passed := passed_over(rows, chosen))
    ):
        click.echo(passed)
    for sentence in (*_unfinished(rows, readable), *_unread(condition, published)):
        click.echo(sentence)
    if notes := live_notes(lake, selection.name):
        click.echo("; ".join(notes))


def _unfinished(rows: PublicRows, visible: PublicRows) -> Iterator[str]:
    """Yield a sentence for each unfinished window that is not shown; there is none without windows."""
    from dpsql.view.table import finished
    from dpsql.view.words import TIME

    growing = rows.frame[~finished(rows)]
    for start, window in growing.groupby(START) if len(growing) else ():
        if (visible.frame[START] == start).any():
            continue
        more = f"{window[DUE].max():{TIME}}; --window {start:%Y-%m-%dT%H:%M:%S}"
        yield f"unfinished: the window of {start:{TIME}}, so far up to {more}"


def _unread(condition: Reading | None, published: Published) -> list[str]:
    """Return what is said to them of a condition that is not public."""
    from dpsql.view.reading import PRIVATE

    return [PRIVATE] if published.reading.private and condition is None else []
