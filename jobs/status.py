"""`dpsql status`: for a watchdog, and the queries of a lake."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import LakeError
from dpsql.jobs.options import SPAN, json_option, lake_option
from dpsql.jobs.terminal import print_json, print_table
from dpsql.parsed_query import ONE_TIME, ContributionPeriod
from dpsql.times import duration

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake

ALARM = 4
DAMAGED = 5


@click.command(short_help="show which runs are healthy, behind or damaged")
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
    standing = found_status(Lake(lake_folder), name, max_lag_us, max_drop_share)
    if as_json:
        print_json(asdict(standing))
    else:
        until = "nothing is released yet"
        if standing.released_us is not None and standing.lag_seconds is not None:
            until = f"released up to {datetime.fromtimestamp(standing.released_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC, {standing.lag_seconds:,.0f} s ago"
        click.echo(
            f"{name}: {standing.state}; {until}" if standing.run_id else f"{name}: {standing.state}"
        )
        for alarm in standing.alarms:
            click.echo(f"alarm: {alarm}")
    if standing.state == "damaged":
        raise SystemExit(DAMAGED)
    if standing.alarms:
        raise SystemExit(ALARM)


def _print_queries(lake: Lake, as_json: bool) -> None:
    from dpsql.lake.runs import list_queries

    queries = [(listed, _facts(lake, listed.name)) for listed in list_queries(lake)]
    if as_json:
        print_json([{**asdict(listed), **facts} for listed, facts in queries])
        return
    heads = ("name", "state", "source", "promise", "newest trigger", "rows")
    print_table(heads, [(q.name, q.state, *_cells(facts)) for q, facts in queries])


def _facts(lake: Lake, name: str) -> dict[str, Any]:
    """Return what a person asks of a query; null where nothing is published, or may not be read."""
    from dpsql.lake.runs import read_run
    from dpsql.published.public_rows import newest_trigger  # slow to import

    facts: dict[str, Any] = dict.fromkeys(
        ("source", "privacy_unit", "epsilon", "delta", "period_us", "newest_trigger", "rows")
    )
    try:
        plan = read_run(lake, name).plan
        query = plan["query"]
        period = query.get("period_us")
        if query["window"] and query["contribution_period"] == ContributionPeriod.WINDOW:
            period = query["window"]["size_us"]
        facts |= {"source": query["stream"], "privacy_unit": query["privacy_unit"]}
        facts |= {"epsilon": plan["epsilon"], "delta": plan["delta"], "period_us": period}
        newest, rows = newest_trigger(lake, name)
        is_once = query.get("event_time") == ONE_TIME
        facts |= {
            "newest_trigger": None if is_once or newest is None else f"{newest:%Y-%m-%dT%H:%M:%SZ}",
            "rows": rows,
        }
    except (LakeError, KeyError):
        pass
    return facts


def _cells(facts: dict[str, Any]) -> tuple[str, str, str, str]:
    if facts["source"] is None:
        return "", "", "", ""
    span = "for ever" if facts["period_us"] is None else f"per {duration(facts['period_us'])}"
    span = span if facts["privacy_unit"] else "for one row"
    no_time = "once" if facts["rows"] else "none yet"
    newest = (facts["newest_trigger"] or no_time).replace("T", " ").removesuffix("Z")
    return (
        facts["source"],
        f"epsilon {facts['epsilon']:g} {span}",
        newest,
        f"{facts['rows'] or 0:,}",
    )
