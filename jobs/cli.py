"""The command line: `dpsql init | explain | tune | try | run | verify | show | ask | compare | status | view | stop | budget |
restore | savepoint`.

Only this folder reads argv, the environment and signals. What a command needs is imported when it runs, so that `explain` starts without
pyspark or duckdb.
"""

from __future__ import annotations

import click

from dpsql.jobs.ask import ask
from dpsql.jobs.budget import budget
from dpsql.jobs.compare import compare
from dpsql.jobs.explain import explain
from dpsql.jobs.init import init
from dpsql.jobs.options import Commands
from dpsql.jobs.restore import restore
from dpsql.jobs.run import run
from dpsql.jobs.savepoint import savepoint
from dpsql.jobs.show import show
from dpsql.jobs.status import status
from dpsql.jobs.stop import stop
from dpsql.jobs.try_ import try_
from dpsql.jobs.tune import tune
from dpsql.jobs.verify import verify
from dpsql.jobs.view import view


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="dpsql")
def main(debug: bool) -> None:
    """Private histograms of a stream, from one SQL query.

    \b
    dpsql explain conf/queries/demo.sql
    dpsql try conf/queries/demo.sql --until 2015-09-13
    dpsql run conf/queries/demo.sql --lake lake --until-caught-up --until 2015-09-13
    dpsql show demo --lake lake
    """


for command in (
    init,
    explain,
    tune,
    try_,
    run,
    stop,
    status,
    show,
    compare,
    view,
    verify,
    budget,
    savepoint,
    restore,
    ask,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
