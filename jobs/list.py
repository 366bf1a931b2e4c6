"""`dpsql list`: the queries of a lake."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import LakeError
from dpsql.jobs.options import json_option, lake_option
from dpsql.jobs.terminal import print_json, print_table
from dpsql.times import duration

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake


@click.command(name="list", short_help="the queries of a lake")
@lake_option
@json_option
def list_(lake_folder: str, as_json: bool) -> None:
    """Print the queries of a lake: what they promise, and how far they are. Run ids: --json.

    \b
    dpsql list --lake lake --json
    """
    from dpsql.lake.runs import Lake, list_queries

    lake = Lake(lake_folder)
    found = [(listed, _told(lake, listed.name)) for listed in list_queries(lake)]
    if as_json:
        print_json([{**asdict(listed), **told} for listed, told in found])
        return
    heads = ("name", "state", "source", "promise", "newest trigger", "rows")
    print_table(heads, [(q.name, q.state, *_cells(told)) for q, told in found])


def _told(lake: Lake, name: str) -> dict[str, Any]:
    """What a person asks of a query; null where nothing is published, or may not be read."""
    from dpsql.lake.published import newest_trigger  # slow to import
    from dpsql.lake.runs import read_run

    told: dict[str, Any] = dict.fromkeys(("source", "privacy_unit", "epsilon", "delta", "period_us", "newest_trigger", "rows"))
    try:
        plan = read_run(lake, name).plan
        query = plan["query"]
        period = query["window"]["size_us"] if query["window"] and query["contribution_period"] == "WINDOW" else None
        told |= {"source": query["stream"], "privacy_unit": query["privacy_unit"]}
        told |= {"epsilon": plan["epsilon"], "delta": plan["delta"], "period_us": period}
        newest, rows = newest_trigger(lake, name)
        told |= {"newest_trigger": None if newest is None else f"{newest:%Y-%m-%dT%H:%M:%SZ}", "rows": rows}
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
