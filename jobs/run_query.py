"""The streaming job, for spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/run_query.py QUERY.sql --sources S.yaml --lake DIR [--until-caught-up]

`make setup` writes the jar paths into the properties file: a script cannot add jars to a Spark that has started.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if __package__ in (
    None,
    "",
):  # run as a script: its own folder is on the path, the checkout or --py-files zip may not be
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from dpsql.errors import ConfigError
from dpsql.jobs.options import (
    FILE,
    INSTANT,
    SPAN,
    STOPPED,
    Command,
    check_wait,
    compiled,
    json_option,
    lake_option,
    one_line_errors,
    query_argument,
    secret_and_ledger,
    secret_option,
    sources_option,
    stop_politely,
    writable,
)
from dpsql.jobs.terminal import ProgressBar, note, note_totals, print_json, print_not_read
from dpsql.privacy.totals import may_be_told, without_totals
from dpsql.text import plural

if TYPE_CHECKING:
    from dpsql import Query
    from dpsql.lake.runs import Lake, Run
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret
    from dpsql.sources.config import Source
    from dpsql.streaming.progress import Summary


CREDENTIAL = re.compile(r"secret(?!\.file)|password|token|access\.?key", re.IGNORECASE)
"""In names of settings; what Spark itself redacts."""
OTHER_STORE = re.compile(r"fs\.s3a\.(?!path\.style)|fs\.default")
"""In names of settings: Spark looks for buckets, or paths, where we do not."""
OTHER_SETTINGS = {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"}
"""Variables of the environment: folders whose files may have such settings."""


@dataclass(frozen=True)
class RunFlags:
    """The flags that `dpsql run` and the spark-submit script share."""

    query_file: Path
    sources_file: Path
    lake_folder: str
    secret_file: Path | None
    name: str | None
    until_caught_up: bool
    until_us: int | None
    interval_us: int | None
    retention_us: int
    buckets: int | None
    accept_clock: bool
    accept_folder: bool
    untested_spark: bool
    log: Path | None
    metrics: Path | None
    as_json: bool


def run_options(command: Command) -> Command:
    """Hand the shared flags over as one RunFlags."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        shared = {name: given.pop(name) for name in RunFlags.__dataclass_fields__}
        return command(flags=RunFlags(**shared), **given)

    buckets = "Parts that users, and keys, are hashed to; fixed once a run has begun.  [default: two per core, of keys one]"
    interval = (
        "It divides the trigger interval.  [default: about a tenth of it, 1 second to 1 minute]"
    )
    options = (
        query_argument,
        sources_option,
        lake_option,
        secret_option,
        click.option("--name", help="The query's name in the lake.  [default: the file's]"),
        click.option(
            "--until-caught-up",
            is_flag=True,
            help="Release the stored input, then stop; without it the job runs live.",
        ),
        click.option(
            "--until",
            "until_us",
            **INSTANT,
            help="Close triggers of stored input up to TIME (UTC); records that come later are dropped once their window is closed.  [default: now]",
        ),
        click.option(
            "--interval",
            "interval_us",
            **SPAN,
            help=f"Live: how often to look for input.  {interval}",
        ),
        click.option(
            "--retention",
            "retention_us",
            **SPAN,
            default="7 days",
            show_default=True,
            help="How long the contributions of closed windows are kept.",
        ),
        click.option(
            "--accept-clock",
            is_flag=True,
            help="Live: the clock is right, though the newest trigger closed days ago.",
        ),
        click.option(
            "--accept-folder",
            is_flag=True,
            help="Live: the folder of the source is right, though it is empty.",
        ),
        click.option(
            "--untested-spark",
            is_flag=True,
            help="Go on with a Spark of a version that was not tested.",
        ),
        click.option("--buckets", type=click.IntRange(1, 4096), help=buckets),
        click.option(
            "--log",
            metavar="FILE",
            type=FILE,
            help="Append a JSON line to FILE for every event: exact totals, for the operator.",
        ),
        click.option(
            "--metrics",
            metavar="FILE",
            type=FILE,
            help="Keep the totals in FILE as Prometheus reads them.",
        ),
        json_option,
    )
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def start(flags: RunFlags, master: str | None, properties: Mapping[str, str]) -> None:
    """Check everything that needs no Spark, start it, and run the query.

    Raises:
        DpsqlError: the query, configuration, secret, lake or budget does not allow it; nothing has been read.
    """
    from dpsql.lake.catch_up import is_released
    from dpsql.lake.opening import check_may_begin, keep_spark_output, open_run, spark_output
    from dpsql.lake.runs import Lake, has_begun
    from dpsql.streaming.spark_home import UNTESTED, check_spark

    properties = {**properties, UNTESTED: "true"} if flags.untested_spark else properties
    query = _checked_query(flags)
    if master is not None:
        check_spark(master, os.environ, note)
        from dpsql.streaming.protection import check_settings

        check_settings(properties)
    lake = Lake(flags.lake_folder)
    name = flags.name or flags.query_file.stem
    is_new = not has_begun(lake, name)
    _check_input(query, flags, is_new, master is not None and not _has_other_settings(properties))
    secret, ledger = secret_and_ledger(flags.secret_file)
    bind = functools.partial(open_run, lake, name, query, secret, ledger, query.source)
    with stop_politely():
        if is_new:
            is_new_lake = not (lake.root / "private").exists()
            check_may_begin(lake, name, query, ledger, query.source)
            if is_new_lake:
                note(f"new lake {lake.root}: it has no runs yet")
        else:
            run = bind()
            if query.parsed.once and (released := is_released(lake.private(name), name)):
                _print_released(released, str(lake.histogram(name)), flags.as_json)
                return
        log_file = spark_output(lake, name)
        spark = start_session(master, properties, log_file)
        from dpsql.streaming.failures import stopping
        from dpsql.streaming.first_look import check_fits

        with stopping(spark):
            if is_new:
                check_fits(spark, query, is_live=not flags.until_caught_up)
                run = bind()
            keep_spark_output(log_file, lake, name)
            # For all that is written from here on; the histogram is opened by name.
            os.umask(0o077)
            _run_and_report(flags, spark, query, run, lake, secret, ledger)


def _check_input(query: Query, flags: RunFlags, is_new: bool, reads_as_here: bool) -> None:
    """Refuse sources that are not there, and of a new run what can be seen of them without Spark."""
    from dpsql.compiled import UNTIL
    from dpsql.sources.reachable import check_reachable

    sources = [query.sources[each] for each in (query.parsed.stream, *query.parsed.static_sources)]
    check_reachable(sources, as_here=reads_as_here)
    if is_new:
        check_wait(query, flags.until_us, UNTIL)
        if reads_as_here:
            _check_first_files(sources)


def _checked_query(flags: RunFlags) -> Query:
    """Compile the query, and refuse flags that do not go with it before anything is spent."""
    from dpsql.schedule import polling_interval

    if flags.until_us is not None and not flags.until_caught_up:
        raise ConfigError(
            "--until needs --until-caught-up: a live run releases every trigger when its time has come"
        )
    query = compiled(flags.query_file, flags.sources_file)
    query.until_us(flags.until_us, "--until")
    query.check_ends(flags.until_caught_up)
    if not flags.until_caught_up:
        polling_interval(query.shape.schedule, flags.interval_us)
    for flag, path in (("--log", flags.log), ("--metrics", flags.metrics)):
        if path is not None:
            writable(path, flag)
    return query


def _has_other_settings(properties: Mapping[str, str]) -> bool:
    """Tell whether Spark may find files elsewhere than this process does."""
    return not OTHER_SETTINGS.isdisjoint(os.environ) or any(map(OTHER_STORE.search, properties))


def _check_first_files(sources: Sequence[Source]) -> None:
    """Look at the first files of sources, as far as that needs no Spark."""
    from dpsql.local.first_look import check_files

    for source in sources:
        check_files(source)


def needs_s3(flags: RunFlags) -> bool:
    """Tell whether the lake or a declared source is in a bucket."""
    sources = flags.sources_file.read_text() if flags.sources_file.is_file() else ""
    return flags.lake_folder.startswith("s3a:") or "s3a://" in sources


def spark_properties(properties_file: Path | None, s3: bool = False) -> dict[str, str]:
    """Return the settings of a properties file; by default the checkout's (or its template), with the jars that the run needs.

    Raises:
        ConfigError: the jars cannot be fetched, a line is not `name value`, or others may read a credential.
    """
    from dpsql import jars

    path = properties_file or jars.CONF / "spark-defaults.conf"
    fetched = jars.ensure(jars.SPARK, *([jars.S3] if s3 else [])) if properties_file is None else []
    text = path.read_text() if path.exists() else jars.properties_text(fetched)
    open_to_others = path.exists() and path.stat().st_mode & 0o077
    properties = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        setting = re.fullmatch(
            r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.+)", line.strip()
        )  # as Java reads a properties file
        if setting is None:
            raise ConfigError(f"{path}:{number}: not a setting; write it as `name value`")
        properties[setting[1]] = setting[2]
        if open_to_others and CREDENTIAL.search(setting[1]):
            raise ConfigError(
                f"{path}: others may read it, and it has {setting[1]}: chmod 600 {path}"
            )
    if properties_file is None:
        properties["spark.jars"] = ",".join(map(str, fetched))
    return properties


def start_session(
    master: str | None, properties: Mapping[str, str], log_file: Path | None = None
) -> Any:
    """Start Spark, or find the one that spark-submit has started (`master` is None); its files are for this user alone."""
    from dpsql.streaming.session import session

    if master is not None:  # else spark-submit has started it
        note("starting Spark ...")
    old_umask = os.umask(0o077)  # Spark and its workers keep it
    try:
        return session(master, properties, log_file)
    finally:
        os.umask(old_umask)


def _run_and_report(
    flags: RunFlags, spark: Any, query: Query, run: Run, lake: Lake, secret: Secret, ledger: Ledger
) -> None:
    """Run the query until it has caught up or is stopped, and print what it has released."""
    from dpsql.lake.event_log import FILE as STATUS_FILE
    from dpsql.streaming.job import LiveOptions
    from dpsql.streaming.job import run as run_job

    with ProgressBar(may_be_told(query.source)) as bar:
        summary = run_job(
            spark,
            query,
            run,
            lake,
            secret,
            until_caught_up=flags.until_caught_up,
            until_us=flags.until_us,
            buckets=(flags.buckets, flags.buckets) if flags.buckets else None,
            live=LiveOptions(
                flags.interval_us, flags.retention_us, flags.accept_clock, flags.accept_folder
            ),
            progress=bar.stage,
            ledger=ledger,
            log=flags.log,
            metrics=flags.metrics,
        )
    status_file = str(lake.private(run.name) / STATUS_FILE)
    note_totals(query.source, summary.records, summary.dropped, counts_file=status_file)
    _print_summary(
        summary,
        str(lake.histogram(run.name)),
        f"dpsql show {run.name} --lake {flags.lake_folder}",
        flags.as_json,
    )


def _print_released(text: str, histogram: str, as_json: bool) -> None:
    """Say that a one-time release was made before."""
    if as_json:
        note(text)
        print_json({"histogram": histogram, "triggers": 0, "rows": 0})
    else:
        click.echo(text)


def _print_summary(summary: Summary, histogram: str, next_command: str, as_json: bool) -> None:
    if summary.stopped:
        note(STOPPED)
    if as_json:
        print_json({**without_totals(asdict(summary)), "histogram": histogram})
        return
    triggers = plural(summary.triggers, "trigger")
    click.echo(f"published {triggers} with {plural(summary.rows, 'row')}")
    if summary.overruns:
        click.echo(
            f"polls that could not be made when due: {summary.overruns:,}; choose a longer --interval (dpsql show says more)"
        )
    print_not_read(summary.not_read, summary.not_read_names)
    click.echo(f"histogram: {histogram}")
    if summary.rows:
        click.echo(f"next: {next_command}")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@run_options
def main(flags: RunFlags, debug: bool) -> None:
    """Run a query in the Spark that spark-submit has started."""
    with one_line_errors(debug):
        start(flags, None, {})


if __name__ == "__main__":
    main()
