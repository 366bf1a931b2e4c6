"""`dpsql savepoint`: for runs that should be able to lose a piece."""

from __future__ import annotations

import click

from dpsql.jobs.options import json_option, lake_option, name_argument
from dpsql.jobs.terminal import say


@click.command(short_help="name and keep the newest state of a run")
@name_argument
@click.argument("label", required=False)
@lake_option
@json_option
def savepoint(name: str, label: str | None, lake_folder: str, as_json: bool) -> None:
    """Keep the newest state of a run under a name; it is plain Parquet.

    \b
    dpsql savepoint demo --lake lake
    dpsql savepoint demo before_upgrade --lake lake
    """
    from dpsql.lake.runs import Lake
    from dpsql.lake.savepoints import take_savepoint

    saved = take_savepoint(Lake(lake_folder), name, label)
    say(
        {"name": name, "label": saved.label, "folder": str(saved.folder)},
        f"savepoint {saved.label}: {saved.folder}",
        as_json,
    )
