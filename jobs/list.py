"""`dpsql list`: the queries of a lake."""

from __future__ import annotations

from dataclasses import asdict

import click

from jobs.options import json_option, lake_option
from jobs.terminal import print_json, print_table


@click.command(name="list", short_help="the queries of a lake")
@lake_option
@json_option
def list_(lake_folder: str, as_json: bool) -> None:
    """Print the queries of a lake.

    \b
    dpsql list --lake lake --json
    """
    from dpsql.lake.runs import Lake, list_queries

    found = list_queries(Lake(lake_folder))
    if as_json:
        print_json([asdict(listed) for listed in found])
    else:
        print_table(("name", "state", "run id", "query identity"), [(q.name, q.state, q.run_id, q.query_identity) for q in found])
