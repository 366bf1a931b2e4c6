"""`dpsql show`: what a query has published, as a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from jobs.options import UtcTime, json_option, lake_option, name_argument
from jobs.terminal import note, print_histogram, print_json, records

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROWS = 20
POLL_SECONDS = 1.0


@click.command(short_help="the newest histogram as a table")
@name_argument
@lake_option
@click.option("--window", "window_us", metavar="TIME", type=UtcTime(), help="The window that starts at TIME (UTC); default: the newest.")
@click.option("--all", "every", is_flag=True, help="Every window and trigger.")
@click.option("--limit", type=click.IntRange(1), default=SHOWN_ROWS, show_default=True, help="Rows to print; --json prints all.")
@click.option("--watch", is_flag=True, help="Print it again whenever a trigger is published, until Ctrl-C.")
@json_option
def show(name: str, lake_folder: str, window_us: int | None, every: bool, limit: int, watch: bool, as_json: bool) -> None:
    """Print the newest histogram: each value with its 95% error.

    \b
    dpsql show page_views --lake lake
    dpsql show page_views --lake lake --window 2026-01-31
    dpsql show page_views --lake lake --watch
    """
    if every and window_us is not None:
        raise click.UsageError("--all and --window exclude each other")
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    if watch:
        _watched(lake_folder, name, lambda: _print(name, lake_folder, _rows(name, lake_folder, window_us, every), limit))
        return
    rows = _rows(name, lake_folder, window_us, every)
    if as_json:
        print_json({"name": name, "live": list(_notes(name, lake_folder)), "rows": records(rows)})
    else:
        _print(name, lake_folder, rows, limit)


def _print(name: str, lake_folder: str, rows: pd.DataFrame, limit: int) -> None:
    print_histogram(rows, limit)
    if notes := _notes(name, lake_folder):
        click.echo("; ".join(notes))


def _notes(name: str, lake_folder: str) -> tuple[str, ...]:
    from dpsql.lake.published import live_notes
    from dpsql.lake.runs import Lake

    return live_notes(Lake(lake_folder), name)


def _rows(name: str, lake_folder: str, window_us: int | None, every: bool) -> pd.DataFrame:
    """What `show` prints."""
    from dpsql.frames import frame_of
    from dpsql.lake.published import one_window
    from dpsql.lake.runs import Lake, newest, read_histogram

    lake = Lake(lake_folder)
    if every:
        return frame_of(read_histogram(lake, name))
    return one_window(newest(lake, name), name, window_us)


def _watched(lake_folder: str, name: str, show: Callable[[], None]) -> None:
    """Show now, and after every commit to the histogram; Ctrl-C ends it, and that is a success.

    Args:
        lake_folder, name: the query.
        show: prints what there is.

    Raises:
        LakeError: no such query, or its tables cannot be read.
    """
    from dpsql.lake.runs import Lake, histogram_version

    lake, shown = Lake(lake_folder), None
    try:
        while True:
            version = histogram_version(lake, name)
            if version != shown:
                if version:
                    click.clear()
                    show()
                elif shown is None:
                    note(f"{name} has published nothing yet; waiting for its first trigger")
                shown = version
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return
