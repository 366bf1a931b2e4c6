"""The command line: `dpsql init | explain | tune | try | run | verify | show | status | view | list | stop | budget | restore | savepoint`.

Only this folder reads argv, the environment and signals. What a command needs is imported when it runs, so that `explain` starts without
pyspark or duckdb.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import ConfigError, DpsqlError
from jobs.options import (
    Commands,
    UtcTime,
    compiled,
    json_option,
    lake_option,
    name_argument,
    query_argument,
    refuse_own_input,
    secret_and_ledger,
    secret_option,
    sources_option,
    writable,
)
from jobs.recovery import restore, savepoint
from jobs.run_query import RunFlags, run_options, start
from jobs.showing import SHOWN_ROWS, list_, show
from jobs.spending import budget
from jobs.starting import init
from jobs.status import status
from jobs.terminal import (
    ProgressBar,
    note,
    print_comparison,
    print_dropped,
    print_gone,
    print_histogram,
    print_json,
    print_not_read,
    records,
)
from jobs.tune import tune
from jobs.view import view

if TYPE_CHECKING:
    from dpsql import Query

EXACT = "It would show what single people have done, and no epsilon covers that."
INPUT = "Files or folders with the records of the stream, or of source NAME"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="dpsql")
def main(debug: bool) -> None:
    """Private histograms of a stream, from one SQL query.

    \b
    dpsql explain conf/queries/page_views.sql
    dpsql try conf/queries/page_views.sql --input visits.parquet
    dpsql run conf/queries/page_views.sql --lake lake --until-caught-up
    dpsql show page_views --lake lake
    """


@main.command(short_help="on Spark: live, or the stored input")
@run_options
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs, like spark://host:7077.")
@click.option(
    "--properties-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Spark settings, as for spark-submit.  [default: conf/spark-defaults.conf of the checkout]",
)
def run(flags: RunFlags, master: str, properties_file: Path | None) -> None:
    """Run a query on Spark and publish its histogram in the lake: live, or of stored input with --until-caught-up.

    A live job ends after its micro-batch on Ctrl-C, SIGTERM or `dpsql stop`; the same command goes on.

    \b
    dpsql run conf/queries/page_views.sql --lake lake
    dpsql run conf/queries/page_views.sql --lake lake --until-caught-up
    dpsql run conf/queries/page_views.sql --lake lake --until-caught-up --until 2026-02-01 --name january
    """
    from jobs.run_query import needs_s3, spark_properties

    start(flags, master, spark_properties(properties_file, needs_s3(flags)))


@main.command(short_help="what a query promises and how noisy it is; no data")
@query_argument
@sources_option
@click.option("--missing", is_flag=True, help="Instead: why a key may be missing, and how many units it takes at each trigger.")
@json_option
def explain(query_file: Path, sources_file: Path, missing: bool, as_json: bool) -> None:
    """Say what a query promises and how noisy it will be: no Spark, no data, nothing spent.

    \b
    dpsql explain conf/queries/page_views.sql
    dpsql explain conf/queries/page_views.sql --missing
    dpsql explain conf/queries/page_views.sql --json
    """
    from dpsql import missing_keys

    query = compiled(query_file, sources_file)
    if as_json:
        print_json(missing_keys.facts(query.plan) if missing else query.explain_json())
    else:
        click.echo(missing_keys.why_missing(query.plan) if missing else query.explain(), nl=False)


@main.command(name="try", short_help="on local files, without a JVM")
@query_argument
@sources_option
@secret_option
@click.option("--input", "inputs", metavar="[NAME=]FILE", multiple=True, help=f"{INPUT}; repeatable.  [default: as in --sources]")
@click.option("--output", metavar="FILE.parquet", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the histogram.")
@click.option("--compare", is_flag=True, help="Also the true histogram and the errors: only of data that you may look at.")
@click.option("--until", "until_us", metavar="TIME", type=UtcTime(), help="Release triggers up to TIME (UTC).  [default: now]")
@json_option
def try_(
    query_file: Path,
    sources_file: Path,
    secret_file: Path | None,
    inputs: tuple[str, ...],
    output: Path | None,
    compare: bool,
    until_us: int | None,
    as_json: bool,
) -> None:
    """Run a query over files with the local engine: no JVM, fresh noise, a ledger line of its own.

    \b
    dpsql try conf/queries/page_views.sql --input visits.parquet
    dpsql try conf/queries/page_views.sql --input visits=day1.csv --input visits=day2.csv --compare
    """
    from dpsql.ledger import line_of
    from dpsql.local.engine import try_query
    from dpsql.local.input_check import check_input
    from dpsql.origin import origin_of

    query = compiled(query_file, sources_file)
    files = files_by_source(inputs, query)
    if output is not None and output.suffix != ".parquet":
        raise ConfigError(f"--output {output}: the name must end in .parquet")
    if output is not None:
        writable(output, "--output")  # before anything is spent
    if compare:
        refuse_own_input(query, files.get(query.parsed.stream), "--compare", EXACT)
    check_input(query, files)
    secret, ledger = secret_and_ledger(secret_file)
    run_id, ledger_id, source = secrets.token_hex(16), ledger.own_id(), query.source
    origin = origin_of(source, ledger_id, files.get(source.name, ()))
    ledger.append(line_of(query.plan, source, run_id, "compare" if compare else "try", origin), source.cap)
    bound = secret.of_ledger(ledger_id)
    with ProgressBar() as bar:
        result = try_query(query, files, run_id=run_id, secret=bound, until_us=until_us, progress=bar.records, compare=compare)
    if output is not None:
        result.histogram.to_parquet(output, index=False)
        note(f"wrote {len(result.histogram)} rows to {output}")
    if as_json:
        comparison = {"comparison": _comparison(result.comparison)} if result.comparison else {}
        head = {"run_id": run_id, "query_identity": query.plan.identity, "drops": result.drops}
        print_json({**head, **comparison, "rows": records(result.histogram)})
        return
    if output is None:
        print_histogram(result.histogram, SHOWN_ROWS)
    print_dropped(result.drops)
    if result.comparison:
        print_comparison(result.comparison)


@main.command(short_help="recompute a run and compare every published row")
@name_argument
@lake_option
@sources_option
@secret_option
@json_option
def verify(name: str, lake_folder: str, sources_file: Path, secret_file: Path | None, as_json: bool) -> None:
    """Recompute a run from its source with the local engine and compare every published row; publishes nothing.

    Exit code 1 when a row differs.

    \b
    dpsql verify page_views --lake lake
    """
    import dpsql
    from dpsql.lake import Lake, check_binding, read_run
    from dpsql.local.verification import verify_run

    lake = Lake(lake_folder)
    found = read_run(lake, name)
    query = dpsql.compile(found.query_text, dpsql.load_sources(sources_file), name=name)
    secret, _ = secret_and_ledger(secret_file, create=False)
    check_binding(found, query, secret, lake)
    with ProgressBar() as bar:
        verification = verify_run(lake, name, found, query, secret, bar.records)
    if as_json:
        print_json(asdict(verification))
    elif verification.identical:
        click.echo(f"identical: all {verification.published:,} published rows were recomputed")
    else:
        counted = f"{verification.published:,} rows published, {verification.recomputed:,} recomputed"
        click.echo(f"NOT identical: {counted}, {verification.differences:,} differ")
    if not as_json:
        print_gone(verification.gone, verification.gone_names, verification.from_us)
        print_not_read(verification.not_read, verification.not_read_names)
    if not verification.identical:
        raise SystemExit(1)


@main.command(short_help="end a running job after its micro-batch")
@name_argument
@lake_option
@click.option("--wait", "wait_seconds", type=click.FloatRange(0), default=600, show_default=True, help="Seconds to wait for its end.")
@json_option
def stop(name: str, lake_folder: str, wait_seconds: float, as_json: bool) -> None:
    """End a running job after its micro-batch; starting it again goes on from there.

    \b
    dpsql stop page_views --lake lake
    """
    from dpsql.lake import Lake, read_run
    from dpsql.running import ask_to_stop

    lake = Lake(lake_folder)
    read_run(lake, name)
    if not ask_to_stop(lake.private(name), wait_seconds):
        raise DpsqlError(f"{name} is asked to stop and has not ended within {wait_seconds:g} seconds; it will after its micro-batch")
    if as_json:
        print_json({"name": name, "state": "stopped"})
    else:
        click.echo(f"{name} has stopped")


def _comparison(comparison: dict[str, Any]) -> dict[str, Any]:
    return {**comparison, "true_histogram": records(comparison["true_histogram"])}


def files_by_source(given: tuple[str, ...], query: Query, flag: str = "--input") -> dict[str, list[Path]]:
    """`NAME=FILE` or `FILE` (the stream) to files by source; what is not there is refused before anything is spent."""
    from dpsql.local.inputs import source_files

    stream, sources = query.parsed.stream, (query.parsed.stream, *query.parsed.static_sources)
    files: dict[str, list[Path]] = {}
    for text in given:
        head, equals, tail = text.partition("=")
        named = bool(equals) and head.lower() in sources
        if equals and not named and not Path(text).exists():
            raise ConfigError(f"{flag} {text}: no such file, and no such source: the query reads {', '.join(sources)}")
        files.setdefault(head.lower() if named else stream, []).append(Path(tail if named else text))
    for name in {stream, *files}:
        source_files(query.sources[name], files)
    return files


for command in (init, tune, show, status, list_, view, budget, restore, savepoint):
    main.add_command(command)


if __name__ == "__main__":
    main()
