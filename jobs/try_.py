"""`dpsql try`: a query on files, without a JVM."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import ConfigError
from dpsql.jobs.options import (
    FILE,
    INSTANT,
    check_wait,
    compiled,
    files_by_source,
    json_option,
    query_argument,
    refuse_own_input,
    secret_and_ledger,
    secret_option,
    sources_option,
    writable,
)
from dpsql.jobs.show import SHOWN_ROWS
from dpsql.jobs.terminal import ProgressBar, note, note_totals, paid_output, print_json, records

if TYPE_CHECKING:
    from dpsql import Query
    from dpsql.local.feeder import TryResult

EXACT = "It would show what single people have done, and no epsilon covers that."
INPUT = "Files or folders with the records of the stream, or of source NAME"


@click.command(name="try", short_help="answer a query on local files, without Spark")
@query_argument
@sources_option
@secret_option
@click.option(
    "--input",
    "inputs",
    metavar="[NAME=]FILE",
    multiple=True,
    help=f"{INPUT}; repeatable.  [default: as in --sources]",
)
@click.option("--output", metavar="FILE.parquet", type=FILE, help="Where to write the histogram.")
@click.option(
    "--compare",
    is_flag=True,
    help="Also the true histogram and the errors: only of data that you may look at.",
)
@click.option(
    "--until", "until_us", **INSTANT, help="Release triggers up to TIME (UTC).  [default: now]"
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=SHOWN_ROWS,
    show_default=True,
    help="Rows to print; --json and --output have all.",
)
@json_option
def try_(
    query_file: Path,
    sources_file: Path,
    secret_file: Path | None,
    inputs: tuple[str, ...],
    output: Path | None,
    compare: bool,
    until_us: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Run a query over files with the local engine: no JVM, fresh noise, a ledger line of its own.

    Prints the newest trigger of every window, the newest finished window first.

    \b
    dpsql try conf/queries/demo.sql --until 2015-09-13
    dpsql try conf/queries/demo.sql --input wiki=conf/demo/wiki/part-000.parquet --input wiki=conf/demo/wiki/part-001.parquet --compare
    """
    from dpsql.files import reason
    from dpsql.local.feeder import try_query
    from dpsql.local.last_read import forget_last_read
    from dpsql.privacy.budget import budget_of, spent_facts, spent_text
    from dpsql.privacy.ledger import cap_for
    from dpsql.privacy.origin import origin_of
    from dpsql.privacy.totals import may_be_told
    from dpsql.published.reader_frames import write_parquet

    query = compiled(query_file, sources_file)
    files = files_by_source(inputs, query)
    until_us = query.until_us(until_us, "--until")
    _check(query, files, output, compare)
    is_long = check_wait(query, until_us, "--until TIME")
    if until_us is None and not is_long and query.shape.schedule.replayed:
        note(
            "without --until there are rows up to now, with or without records; of stored data that end earlier write --until TIME"
        )
    secret, ledger = secret_and_ledger(secret_file)
    run_id = secrets.token_hex(16)
    ledger_id = ledger.own_id()
    source = query.source
    origin = origin_of(source, ledger_id, files.get(source.name, ()), query.protects)
    purpose = "compare" if compare else "try"
    ledger.append(query.line(run_id, purpose, origin), cap_for(source, query.protects))
    if secret.path is not None:
        forget_last_read(secret.path)
    may_tell = may_be_told(source, compare)
    with ProgressBar(may_tell) as bar:
        trial = try_query(
            query,
            files,
            run_id=run_id,
            secret=secret.of_ledger(ledger_id),
            until_us=until_us,
            progress=bar.records,
            compare=compare,
        )
    counts_file = _write_last_read(secret.path, source.name, trial)
    note_totals(source, trial.records, trial.drops, compare, counts_file)
    budget = budget_of(ledger.lines(), source, query.protects)
    query_limit = source.policy.max_epsilon_per_query
    note(spent_text(budget, f"sources.{source.name}.cap", query_limit))
    is_written = False
    if output is not None:
        try:
            write_parquet(trial.table, query.published, output)
            is_written = True
            note(f"wrote {len(trial.table)} rows to {output}")
        except OSError as problem:
            note(f"{output} cannot be written ({reason(problem)}), so the rows are printed")
            limit = max(limit, len(trial.table))
    with paid_output():
        if as_json:
            drops = {"drops": trial.drops} if may_tell else {}
            head = {"run_id": run_id, "query_identity": query.plan.identity}
            print_json(head | drops | _document(query, trial) | {"budget": spent_facts(budget)})
        else:
            _print(query, trial, limit, counts_file, is_written)


def _check(
    query: Query, files: Mapping[str, Sequence[Path]], output: Path | None, compare: bool
) -> None:
    """Refuse what cannot be read, written or compared, before anything is spent."""
    from dpsql.local.comparison import check_comparable
    from dpsql.local.record_reader import check_input

    if output is not None and output.suffix != ".parquet":
        raise ConfigError(f"--output {output}: the name must end in .parquet")
    if output is not None:
        writable(output, "--output")
    if compare:
        refuse_own_input(query, files.get(query.parsed.stream), "--compare", EXACT)
        check_comparable(query)
    check_input(query, files)


def _write_last_read(secret_file: Path | None, source: str, trial: TryResult) -> str:
    """Tell the owner of a secret exactly what was read, in a file beside it; return its name, nothing if there is none."""
    from dpsql.files import reason
    from dpsql.local.last_read import last_read_file, write_last_read

    if secret_file is None:
        return ""
    file = last_read_file(secret_file)
    try:
        write_last_read(file, source, trial)
    except OSError as problem:
        note(f"{file} cannot be written ({reason(problem)}), so what was dropped is not reported")
        return ""
    return str(file)


def _document(query: Query, trial: TryResult) -> dict[str, Any]:
    """Return the released rows, and what the comparison says, as JSON values."""
    from dpsql.published.public_rows import PublicRows
    from dpsql.view.reading import NONE_LEFT, as_read

    released = PublicRows.of_frame(trial.histogram)
    rows = records(as_read(released, query.reading).frame, query.published)
    if not rows and not released.frame.empty:
        note(NONE_LEFT)
    left_out = {"left_out": released.left_out}
    if not trial.comparison:
        return {"rows": rows, **left_out}
    # the two histograms say what is compared
    comparison = {name: value for name, value in trial.comparison.items() if name != "compared"}
    comparison["true_histogram"] = records(comparison["true_histogram"])
    return {"comparison": comparison, "rows": rows, **left_out}


def _print(query: Query, trial: TryResult, limit: int, counts_file: str, is_written: bool) -> None:
    """Print the comparison, or the released rows unless they are in a file."""
    from dpsql.jobs.tables import print_comparison, print_histogram  # slow to import
    from dpsql.published.public_rows import PublicRows
    from dpsql.view.left_out import estimates
    from dpsql.view.reading import as_read
    from dpsql.view.words import why_nothing

    if trial.comparison:
        print_comparison(trial.comparison, limit, estimates(PublicRows.of_frame(trial.histogram)))
    elif trial.histogram.empty:
        for sentence in (
            why_nothing(query.published, counts_file),
            *estimates(PublicRows.of_frame(trial.histogram)),
        ):
            click.echo(sentence)
    elif not is_written:
        print_histogram(as_read(PublicRows.of_frame(trial.histogram), query.reading), limit)
