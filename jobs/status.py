"""`dpsql status`: for a watchdog, and the queries of a lake."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import LakeError
from dpsql.jobs.options import SPAN, json_option, lake_option
from dpsql.jobs.terminal import print_json, print_table
from dpsql.times import duration

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake

ALARM = 4
DAMAGED = 5


@click.command(
    short_help="is it at work, how far behind, is anything damaged; without a name: the queries of a lake"
)
@click.argument("name", metavar="[NAME]", required=False)
@lake_option
@click.option("--max-lag", "max_lag_us", **SPAN, help="More behind than this is an alarm.")
@click.option(
    "--max-drop-share",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="More of the newest micro-batch dropped is an alarm.",
)
@json_option
def status(
    name: str | None,
    lake_folder: str,
    max_lag_us: int | None,
    max_drop_share: float | None,
    as_json: bool,
) -> None:
    """Say how a run stands; without a name the queries of the lake, what they promise, and how far they are (run ids: --json).

    Exit code 0: all is well; 4: an alarm, or the lake cannot be reached; 5: something is damaged. Needs no Spark and no secret.

    It tells no exact total: those are in the run's status.json, for the operator alone.

    \b
    dpsql status --lake lake
    dpsql status demo --lake lake
    dpsql status demo --lake lake --max-lag '30 minutes'
    """
    from dpsql.lake.runs import Lake
    from dpsql.lake.status import status as found_status

    if name is None:
        if max_lag_us is not None or max_drop_share is not None:
            raise click.UsageError("--max-lag and --max-drop-share are of one run: name it")
        _print_queries(Lake(lake_folder), as_json)
        return
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


def _print_queries(lake: Lake, as_json: bool) -> None:
    from dpsql.lake.runs import list_queries

    found = [(listed, _told(lake, listed.name)) for listed in list_queries(lake)]
    if as_json:
        print_json([{**asdict(listed), **told} for listed, told in found])
        return
    heads = ("name", "state", "source", "promise", "newest trigger", "rows")
    print_table(heads, [(q.name, q.state, *_cells(told)) for q, told in found])


def _told(lake: Lake, name: str) -> dict[str, Any]:
    """Return what a person asks of a query; null where nothing is published, or may not be read."""
    from dpsql.lake.runs import read_run
    from dpsql.published.public_rows import newest_trigger  # slow to import

    told: dict[str, Any] = dict.fromkeys(
        ("source", "privacy_unit", "epsilon", "delta", "period_us", "newest_trigger", "rows")
    )
    try:
        plan = read_run(lake, name).plan
        query = plan["query"]
        period = (
            query["window"]["size_us"]
            if query["window"] and query["contribution_period"] == "WINDOW"
            else None
        )
        told |= {"source": query["stream"], "privacy_unit": query["privacy_unit"]}
        told |= {"epsilon": plan["epsilon"], "delta": plan["delta"], "period_us": period}
        newest, rows = newest_trigger(lake, name)
        told |= {
            "newest_trigger": None if newest is None else f"{newest:%Y-%m-%dT%H:%M:%SZ}",
            "rows": rows,
        }
    except (LakeError, KeyError):
        pass
    return told


def _cells(told: dict[str, Any]) -> tuple[str, str, str, str]:
    if told["source"] is None:
        return "", "", "", ""
    span = "for ever" if told["period_us"] is None else f"per {duration(told['period_us'])}"
    span = span if told["privacy_unit"] else "for one row"
    newest = (told["newest_trigger"] or "none yet").replace("T", " ").removesuffix("Z")
    return told["source"], f"epsilon {told['epsilon']:g} {span}", newest, f"{told['rows'] or 0:,}"
