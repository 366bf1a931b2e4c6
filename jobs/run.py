"""`dpsql run`: a query on a Spark of its own."""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.jobs.run_query import RunFlags, needs_s3, run_options, spark_properties, start


@click.command(short_help="run a query on Spark: live, or over the stored input")
@run_options
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs, like spark://host:7077.",
)
@click.option(
    "--properties-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Spark settings, as for spark-submit.  [default: conf/spark-defaults.conf of the checkout]",
)
def run(flags: RunFlags, master: str, properties_file: Path | None) -> None:
    """Run a query on Spark and publish its histogram in the lake: live, or of stored input with --until-caught-up.

    A live job ends after its micro-batch on Ctrl-C, SIGTERM or `dpsql stop`; the same command continues it.

    \b
    dpsql run conf/queries/demo.sql --lake lake
    dpsql run conf/queries/demo.sql --lake lake --until-caught-up --until 2015-09-13
    dpsql run conf/queries/demo.sql --lake lake --until-caught-up --until 2015-09-13 --name saturday
    """
    start(flags, master, spark_properties(properties_file, needs_s3(flags)))
