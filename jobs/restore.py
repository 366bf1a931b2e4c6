"""`dpsql restore`: for runs that lost a piece."""

from __future__ import annotations

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
from dpsql.jobs.terminal import say

if TYPE_CHECKING:
    from dpsql.lake.runs import Lake


@click.command(short_help="repair a stopped run")
@name_argument
@lake_option
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    help="Cut the state of users, and of keys, into this many parts.",
)
@click.option(
    "--to",
    "label",
    metavar="LABEL",
    help="Go back to a savepoint.  [default: the newest state that is whole]",
)
@click.option(
    "--checkpoints", is_flag=True, help="Recreate Spark's checkpoints, even where they look whole."
)
@click.option(
    "--new-run",
    is_flag=True,
    help="End the run and begin a new one under its name; costs a ledger line.",
)
@click.option(
    "--ledger",
    "lost_ledger",
    is_flag=True,
    help="Write down again what the run spends, after the ledger was lost; nothing else.",
)
@sources_option
@secret_option
@json_option
def restore(
    name: str,
    lake_folder: str,
    buckets: int | None,
    label: str | None,
    checkpoints: bool,
    new_run: bool,
    lost_ledger: bool,
    sources_file: Path,
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """Repair a stopped run: recreate checkpoints, listings or state. Nothing is published.

    \b
    dpsql restore demo --lake lake
    dpsql restore demo --lake lake --buckets 16
    dpsql restore demo --lake lake --new-run
    dpsql restore demo --lake lake --ledger
    """
    from dpsql.lake.runs import Lake, read_run

    lake = Lake(lake_folder)
    if lost_ledger:
        if buckets or label or checkpoints or new_run:
            raise ConfigError(
                "--ledger touches the ledger alone: leave --buckets, --to, --checkpoints and --new-run away"
            )
        _write_down(lake, name, sources_file, secret_file, as_json)
        return
    if new_run:
        if buckets or label or checkpoints:
            raise ConfigError(
                "--new-run begins with no state: leave --buckets, --to and --checkpoints away"
            )
        from dpsql.lake.new_run import begin_new_run, finish_new_run

        secret, ledger = secret_and_ledger(secret_file, create=False)
        run = finish_new_run(lake, name)
        if run is None:
            query = compiled_text(read_run(lake, name).query_text, sources_file, name)
            run = begin_new_run(lake, name, query, secret, ledger)
        text = f"{name} is a new run now, {run.run_id}, with a ledger line of its own; windows with a published trigger stay closed"
        say({"name": name, "run_id": run.run_id, "new_run": True}, text, as_json)
        return
    from dpsql.lake.restore import restore as restore_run

    restored = restore_run(lake, name, (buckets, buckets) if buckets else None, label, checkpoints)
    document = {
        "listed": list(restored.listed),
        "batches": dict(restored.batches),
        "mended": list(restored.mended),
    }
    lines = [
        *restored.mended,
        *(f"{operator}: its newest state is listed again" for operator in restored.listed),
    ]
    for operator, batch in restored.batches.items():
        since = f"after micro-batch {batch}" if batch >= 0 else "from the beginning"
        lines.append(f"{operator}: continues {since}")
    say(
        {"name": name, "new_run": False, **document},
        "\n".join(lines or ["nothing is missing: start the run as it is"]),
        as_json,
    )


def _write_down(
    lake: Lake, name: str, sources_file: Path, secret_file: Path | None, as_json: bool
) -> None:
    from dpsql.lake.lost_ledger import record_run
    from dpsql.lake.opening import check_binding
    from dpsql.lake.runs import read_run

    secret, ledger = secret_and_ledger(secret_file, create=False)
    run = read_run(lake, name)
    query = compiled_text(run.query_text, sources_file, name)
    check_binding(run, query, secret, lake)
    is_recorded = record_run(lake, run, query, ledger, query.source)
    text = f"run {run.run_id} " + ("is written down again" if is_recorded else "was there already")
    say(
        {"name": name, "run_id": run.run_id, "new_run": False, "written": is_recorded},
        text,
        as_json,
    )
