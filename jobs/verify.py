"""`dpsql verify`: a run computed once more."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from dpsql.jobs.options import (
    compiled_text,
    json_option,
    lake_option,
    name_argument,
    secret_and_ledger,
    secret_option,
    sources_option,
)
from dpsql.jobs.terminal import ProgressBar, print_gone, print_not_read, say


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
    with ProgressBar(may_be_told(query.source)) as bar:
        verification = verify_run(lake, name, run, query, secret, bar.records)
    text = f"identical: all {verification.published:,} published rows were recomputed"
    if not verification.identical:
        counts = (
            f"{verification.published:,} rows published, {verification.recomputed:,} recomputed"
        )
        text = f"NOT identical: {counts}, {verification.differences:,} differ"
    say(asdict(verification), text, as_json)
    if not as_json:
        print_gone(verification.gone, verification.gone_names, verification.from_us)
        print_not_read(verification.not_read, verification.not_read_names)
    if not verification.identical:
        raise SystemExit(1)
