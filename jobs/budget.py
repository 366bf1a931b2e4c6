"""`dpsql budget`: what was promised to whom."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from dpsql.jobs.options import CAPS, default_sources, json_option, secret_and_ledger, secret_option
from dpsql.jobs.terminal import note, print_json

if TYPE_CHECKING:
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret


@click.command(short_help="what was promised to whom, and what is left")
@click.option("--sources", "sources_file", metavar="FILE", type=click.Path(path_type=Path), envvar="DPSQL_SOURCES", help=CAPS)
@secret_option
@json_option
@click.option("--record", "lost", metavar="NAME", help="Write down anew what query NAME of --lake spends, after the ledger was lost.")
@click.option("--lake", "lake_folder", metavar="DIR", envvar="DPSQL_LAKE", help="The lake of --record.")
def budget(sources_file: Path | None, secret_file: Path | None, as_json: bool, lost: str | None, lake_folder: str | None) -> None:
    """Say what was promised to whom in all runs together, over 1, 7 and 30 days, and what the caps leave.

    \b
    dpsql budget
    dpsql budget --sources conf/sources.yaml --json
    """
    import dpsql
    from dpsql.privacy.budget import budgets, describe, facts

    sources_file = default_sources(sources_file)
    if lost is not None and (lake_folder is None or sources_file is None):
        raise click.UsageError("--record NAME needs --lake and --sources")
    secret, ledger = secret_and_ledger(secret_file, create=False)
    if lost is not None and lake_folder is not None and sources_file is not None:
        _record(lost, lake_folder, sources_file, secret, ledger)
    found = budgets(ledger.lines(), dpsql.load_sources(sources_file).values() if sources_file else ())
    if unchecked := ledger.unchecked():
        note(f"{unchecked} lines were sealed with another secret than this one: whether they were edited cannot be told")
    if as_json:
        print_json([facts(one) for one in found])
        return
    names = _names(ledger, [line.run_id for one in found for line in one.lines])
    click.echo("\n\n".join(describe(one, names=names) for one in found) or f"nothing was spent: {ledger.folder} has no line")
    if sources_file is None:
        note("caps are not known: name the file that declares them with --sources")


def _names(ledger: Ledger, run_ids: list[str]) -> dict[str, str]:
    """Names of the runs that live in a lake; a try has none."""
    places = {run_id: entry.place for run_id in run_ids if (entry := ledger.register.find(run_id)) is not None}
    return {run_id: PurePosixPath(place).name for run_id, place in places.items() if place}


def _record(name: str, lake_folder: str, sources_file: Path, secret: Secret, ledger: Ledger) -> None:
    import dpsql
    from dpsql.lake.lost_ledger import record_run
    from dpsql.lake.opening import check_binding
    from dpsql.lake.runs import Lake, read_run

    lake = Lake(lake_folder)
    run = read_run(lake, name)
    query = dpsql.compile(run.query_text, dpsql.load_sources(sources_file), name=name)
    check_binding(run, query, secret, lake)
    done = record_run(lake, run, query, ledger, query.source)
    note(f"run {run.run_id} " + ("is written down again" if done else "was there already"))
