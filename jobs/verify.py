"""`dpsql verify`: a run computed once more."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.errors import ConfigError
from dpsql.jobs.options import (
    compiled_text,
    json_option,
    lake_option,
    name_argument,
    secret_and_ledger,
    secret_option,
    sources_option,
)
from dpsql.jobs.run_query import spark_properties, start_session
from dpsql.jobs.terminal import ProgressBar, print_gone, print_not_admitted, print_not_read, say

if TYPE_CHECKING:
    from dpsql.compiled import Query
    from dpsql.local.verification import AsParquet

MASTER = "local[*]"


@click.command(short_help="recompute a run and compare every published row")
@name_argument
@lake_option
@sources_option
@secret_option
@json_option
def verify(
    name: str, lake_folder: str, sources_file: Path, secret_file: Path | None, as_json: bool
) -> None:
    """Recompute a run from its source with the local engine and compare every published row; publishes nothing.

    Exit code 1 when a row differs.

    \b
    dpsql verify demo --lake lake
    """
    from dpsql.lake.opening import check_binding
    from dpsql.lake.runs import Lake, read_run
    from dpsql.local.verification import verify_run
    from dpsql.privacy.totals import may_be_told

    lake = Lake(lake_folder)
    run = read_run(lake, name)
    query = compiled_text(run.query_text, sources_file, name)
    secret, _ = secret_and_ledger(secret_file, create=False)
    check_binding(run, query, secret, lake)
    as_parquet = spark_reader(query)
    with ProgressBar(may_be_told(query.source)) as bar:
        verification = verify_run(lake, name, run, query, secret, bar.records, as_parquet)
    text = f"identical: all {verification.published:,} published rows of its tables were recomputed"
    if not verification.published + verification.recomputed:
        text = "nothing is compared: no row is published, and none was recomputed"
    if not verification.identical:
        counts = (
            f"{verification.published:,} rows published, {verification.recomputed:,} recomputed"
        )
        text = f"NOT identical: {counts}, {verification.differences:,} differ"
    say(asdict(verification), text, as_json)
    if not as_json:
        print_gone(verification.gone, verification.gone_names, verification.from_us)
        print_not_admitted(verification.not_admitted, verification.not_admitted_names)
        print_not_read(verification.not_read, verification.not_read_names)
    if not verification.identical:
        raise SystemExit(1)


def spark_reader(query: Query) -> AsParquet | None:
    """Start Spark where a run has read files that Spark alone reads; None where it is not needed.

    Raises:
        ConfigError: there is no Java.
    """
    from dpsql.local.verification import spark_reads

    names = (query.parsed.stream, *query.parsed.static_sources)
    formats = {query.sources[name].format for name in names if spark_reads(query.sources[name])}
    if not formats:
        return None
    from dpsql.streaming.spark_home import check_spark
    from dpsql.streaming.typed_rows import TypedRows

    try:
        check_spark(MASTER, os.environ)
    except ConfigError as problem:
        formats_text = " and ".join(sorted(form.upper() for form in formats))
        raise ConfigError(
            f"verify of a run over {formats_text} lets Spark read its files. {problem}"
        ) from None
    return TypedRows(start_session(MASTER, spark_properties(None)))
