"""`dpsql show` and `dpsql list`: what a lake has published."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jobs.options import UtcTime, json_option, lake_option, name_argument
from jobs.terminal import print_histogram, print_json, print_table, records
from jobs.watching import watched

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROWS = 20


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
        watched(lake_folder, name, lambda: _print(name, lake_folder, _rows(name, lake_folder, window_us, every), limit))
        return
    rows = _rows(name, lake_folder, window_us, every)
    if as_json:
        print_json({"name": name, "live": list(_notes(name, lake_folder)), "rows": records(rows)})
    else:
        _print(name, lake_folder, rows, limit)


@click.command(name="list", short_help="the queries of a lake")
@lake_option
@json_option
def list_(lake_folder: str, as_json: bool) -> None:
    """Print the queries of a lake.

    \b
    dpsql list --lake lake --json
    """
    from dpsql.lake import Lake, list_queries

    found = list_queries(Lake(lake_folder))
    if as_json:
        print_json([asdict(listed) for listed in found])
    else:
        print_table(("name", "state", "run id", "query identity"), [(q.name, q.state, q.run_id, q.query_identity) for q in found])


def _print(name: str, lake_folder: str, rows: pd.DataFrame, limit: int) -> None:
    print_histogram(rows, limit)
    if notes := _notes(name, lake_folder):
        click.echo("; ".join(notes))


def _notes(name: str, lake_folder: str) -> tuple[str, ...]:
    from dpsql.lake import Lake
    from dpsql.published import live_notes

    return live_notes(Lake(lake_folder), name)


def _rows(name: str, lake_folder: str, window_us: int | None, every: bool) -> pd.DataFrame:
    """What `show` prints."""
    from dpsql.frames import frame_of
    from dpsql.lake import Lake, newest, read_histogram
    from dpsql.published import one_window

    lake = Lake(lake_folder)
    if every:
        return frame_of(read_histogram(lake, name))
    return one_window(newest(lake, name), name, window_us)
