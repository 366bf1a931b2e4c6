"""`dpsql stop`: the end of a running job."""

from __future__ import annotations

import click

from dpsql.errors import DpsqlError
from dpsql.jobs.options import json_option, lake_option, name_argument
from dpsql.jobs.terminal import say


@click.command(short_help="end a running job after its micro-batch")
@name_argument
@lake_option
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0),
    default=600,
    show_default=True,
    help="Seconds to wait for its end.",
)
@json_option
def stop(name: str, lake_folder: str, wait_seconds: float, as_json: bool) -> None:
    """End a running job after its micro-batch; starting it again continues from there.

    \b
    dpsql stop demo --lake lake
    """
    from dpsql.lake.running import ask_to_stop
    from dpsql.lake.runs import Lake, read_run

    lake = Lake(lake_folder)
    read_run(lake, name)
    if not ask_to_stop(lake.private(name), wait_seconds):
        raise DpsqlError(
            f"{name} is asked to stop and has not ended within {wait_seconds:g} seconds; it will after its micro-batch"
        )
    say({"name": name, "state": "stopped"}, f"{name} has stopped", as_json)
