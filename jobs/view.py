"""`dpsql view`: the newest histogram as a page in a browser."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.description import DUE
from dpsql.errors import ConfigError, LakeError, NothingPublished
from dpsql.files import reporting_os_errors
from dpsql.jobs.options import (
    FILE,
    INSTANT,
    caps_option,
    default_sources,
    lake_option,
    name_argument,
    secret_option,
    stop_politely,
    writable,
)
from dpsql.jobs.watch import follow

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake
    from dpsql.privacy.budget import Budget

REFRESH_SECONDS = 5
"""How often a browser loads a watched page anew."""

REWRITE_SECONDS = 15.0
"""A watched page is made anew at least so often: its lag grows while nothing is published."""


@click.command(short_help="write the newest release as a page with charts")
@name_argument
@lake_option
@click.option(
    "--out",
    "out_file",
    metavar="FILE.html",
    type=FILE,
    help="Where to write the page.  [default: NAME.html]",
)
@click.option(
    "--window",
    "window_us",
    **INSTANT,
    help="The window that starts at TIME (UTC); default: see above.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Keys in the table, the largest first.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Write the page again whenever a trigger is published, until Ctrl-C; browsers follow.",
)
@caps_option
@secret_option
def view(
    name: str,
    lake_folder: str,
    out_file: Path | None,
    window_us: int | None,
    limit: int,
    watch: bool,
    sources_file: Path | None,
    secret_file: Path | None,
) -> None:
    """Write a page with charts, error bars, every key's trend, lag and budget. One file; it needs no server and no network.

    It shows the newest finished window in which something is larger than its noise; with --watch the newest.

    Open it in a browser, or put it where others can see it: all of it is public.

    \b
    dpsql view demo --lake lake
    dpsql view demo --lake lake --out /srv/www/demo.html --watch
    """
    from dpsql.lake.runs import Lake
    from dpsql.privacy.secret import default_secret_path
    from dpsql.published.public_rows import histogram_version

    if missing := [package for package in ("jinja2",) if find_spec(package) is None]:
        raise ConfigError(
            f"dpsql view draws with {missing[0]}, which is not installed: pip install 'dpsql[notebooks]'"
        )
    lake = Lake(lake_folder)
    target = out_file or Path(f"{name}.html")
    writable(target, "--out")
    histogram_version(
        lake, name
    )  # a name that is not there is refused before anything is waited for
    ledger = secret_file or default_secret_path(os.environ)
    sources_file = default_sources(sources_file)

    def write(refresh: int | None) -> None:
        _write(
            target,
            _page_text(
                lake,
                name,
                window_us,
                watch,
                limit,
                _budget(lake, name, ledger, sources_file),
                refresh,
            ),
        )

    if not watch:
        write(None)
        click.echo(f"wrote {target}")
        return
    click.echo(f"{target} follows the run until Ctrl-C")
    with stop_politely():
        follow(lake, name, lambda: write(REFRESH_SECONDS), REWRITE_SECONDS)
    with contextlib.suppress(NothingPublished):
        write(None)


def _page_text(
    lake: Lake,
    name: str,
    window_us: int | None,
    growing: bool,
    limit: int,
    budget: Budget | None,
    refresh: int | None,
) -> str:
    from dpsql.published.public_rows import all_rows, own_reading
    from dpsql.view.page import page
    from dpsql.view.plain_table import as_histogram, listing
    from dpsql.view.standing import standing
    from dpsql.view.table import growing_aliases, one_window, passed_over
    from dpsql.view.words import STATUS, why_nothing

    history = all_rows(lake, name)
    if history.frame.empty:
        raise NothingPublished(f"query {name!r}: {why_nothing(history.description, STATUS)}")
    empty = ""
    if listed := bool(history.description.lists):
        empty = listing(history)[1]
        history = as_histogram(history)
        if history.frame.empty:
            raise NothingPublished(
                f"query {name!r}: no value is listed. How often any value came: dpsql ask {name} VALUE"
            )
    if not history.description.amounts and not history.description.quantiles:
        raise ConfigError(f"dpsql view draws values, and {name} lists none: dpsql ask {name} VALUE")
    rows = one_window(history, name, window_us, growing, growing_aliases(history))
    passed = (empty if listed else passed_over(history, rows)) if window_us is None else ""
    window = rows.frame
    frame = history.frame
    run_standing = standing(lake, name, window, budget, clock=frame[DUE].max())
    return page(
        run_standing, window, refresh, limit, frame, passed, listed, own_reading(lake, name)
    )


def _write(target: Path, text: str) -> None:
    """Write a page whole or not at all: a browser may load it at any moment."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with reporting_os_errors(f"--out {target}", ConfigError):
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def _budget(lake: Lake, name: str, secret_path: Path, sources_file: Path | None) -> Budget | None:
    """Return what the ledger knows of the run's people; None for whoever has neither the private folder nor the ledger."""
    import dpsql
    from dpsql.lake.runs import read_run
    from dpsql.privacy.budget import budgets
    from dpsql.privacy.ledger import Ledger

    try:
        run_id = read_run(lake, name).run_id
    except LakeError:
        return None
    by_unit = budgets(
        Ledger.beside(secret_path).lines(),
        dpsql.load_sources(sources_file).values() if sources_file else (),
    )
    return next(
        (budget for budget in by_unit if any(line.run_id == run_id for line in budget.lines)), None
    )
