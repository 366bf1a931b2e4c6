"""`dpsql explain`: what a query promises, and how noisy it is."""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.jobs.options import compiled, json_option, query_argument, sources_option
from dpsql.jobs.terminal import print_json


@click.command(short_help="print the privacy guarantee and the noise of a query; reads no data")
@query_argument
@sources_option
@click.option(
    "--missing",
    is_flag=True,
    help="Instead: why a key may be missing, and how many units it takes at each trigger.",
)
@json_option
def explain(query_file: Path, sources_file: Path, missing: bool, as_json: bool) -> None:
    """Say what a query promises and how noisy it will be: no Spark, no data, nothing spent.

    \b
    dpsql explain conf/queries/demo.sql
    dpsql explain conf/queries/demo.sql --missing
    dpsql explain conf/queries/demo.sql --json
    """

    query = compiled(query_file, sources_file)
    if as_json:
        print_json(query.missing_json() if missing else query.explain_json())
    else:
        click.echo(query.why_missing() if missing else query.explain(), nl=False)
