"""`dpsql budget`: what was promised to whom."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import click

from dpsql.jobs.options import (
    caps_option,
    default_sources,
    json_option,
    secret_and_ledger,
    secret_option,
)
from dpsql.jobs.terminal import note, print_json


@click.command(short_help="show the privacy budget spent and left")
@caps_option
@secret_option
@json_option
def budget(sources_file: Path | None, secret_file: Path | None, as_json: bool) -> None:
    """Say what was promised to whom in all runs together, over 1, 7 and 30 days, and what the caps leave.

    \b
    dpsql budget
    dpsql budget --sources conf/sources.yaml --json
    """
    import dpsql
    from dpsql.privacy.budget import budgets, describe, facts

    sources_file = default_sources(sources_file)
    _, ledger = secret_and_ledger(secret_file, create=False)
    by_unit = budgets(
        ledger.lines(), dpsql.load_sources(sources_file).values() if sources_file else ()
    )
    if unchecked := ledger.unchecked():
        note(
            f"{unchecked} lines were sealed with another secret than this one: whether they were edited cannot be told"
        )
    if as_json:
        print_json([facts(one) for one in by_unit])
        return
    runs = {line.run_id: ledger.register.find(line.run_id) for one in by_unit for line in one.lines}
    names = {
        run_id: PurePosixPath(run.place).name
        for run_id, run in runs.items()
        if run is not None and run.place
    }  # a try has no place
    click.echo(
        "\n\n".join(describe(one, names=names) for one in by_unit)
        or f"nothing was spent: {ledger.folder} has no line"
    )
    if sources_file is None:
        note("caps are not known: name the file that declares them with --sources")
