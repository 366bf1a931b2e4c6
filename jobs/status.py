"""`dpsql status`: for a watchdog."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

from dpsql.jobs.options import Duration, json_option, lake_option, name_argument
from dpsql.jobs.terminal import print_json

ALARM, DAMAGED = 4, 5


@click.command(short_help="is it at work, how far behind, is anything damaged")
@name_argument
@lake_option
@click.option("--max-lag", "max_lag_us", metavar="TIME", type=Duration(), help="More behind than this is an alarm.")
@click.option("--max-drop-share", type=click.FloatRange(0, 1), metavar="SHARE", help="More of the newest micro-batch dropped is an alarm.")
@json_option
def status(name: str, lake_folder: str, max_lag_us: int | None, max_drop_share: float | None, as_json: bool) -> None:
    """Say how a run stands. Exit code 0: all is well; 4: an alarm, or the lake cannot be reached; 5: something is damaged. Needs no Spark and no secret.

    It tells no exact total: those are in the run's status.json, for the operator alone.

    \b
    dpsql status demo --lake lake
    dpsql status demo --lake lake --max-lag '30 minutes'
    """
    from dpsql.lake.runs import Lake
    from dpsql.lake.status import status as found_status

    found = found_status(Lake(lake_folder), name, max_lag_us, max_drop_share)
    if as_json:
        print_json(asdict(found))
    else:
        until = "nothing is released yet"
        if found.released_us is not None and found.lag_seconds is not None:
            until = f"released up to {datetime.fromtimestamp(found.released_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC, {found.lag_seconds:,.0f} s ago"
        click.echo(f"{name}: {found.state}; {until}" if found.run_id else f"{name}: {found.state}")
        for alarm in found.alarms:
            click.echo(f"alarm: {alarm}")
    if found.state == "damaged":
        raise SystemExit(DAMAGED)
    if found.alarms:
        raise SystemExit(ALARM)
