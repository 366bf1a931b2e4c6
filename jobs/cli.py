"""The command line: `dpsql init | explain | tune | try | run | verify | show | ask | synthesize | compare | status | view | list | stop | budget |
restore | savepoint`.

Only this folder reads argv, the environment and signals. What a command needs is imported when it runs, so that `explain` starts without
pyspark or duckdb.
"""

from __future__ import annotations

import click

from jobs.ask import ask
from jobs.budget import budget
from jobs.compare import compare
from jobs.explain import explain
from jobs.init import init
from jobs.list import list_
from jobs.options import Commands
from jobs.restore import restore
from jobs.run import run
from jobs.savepoint import savepoint
from jobs.show import show
from jobs.status import status
from jobs.stop import stop
from jobs.synthesize import synthesize
from jobs.try_ import try_
from jobs.tune import tune
from jobs.verify import verify
from jobs.view import view


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
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
    ask,
    budget,
    compare,
    explain,
    init,
    list_,
    restore,
    run,
    savepoint,
    show,
    status,
    stop,
    synthesize,
    try_,
    tune,
    verify,
    view,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
