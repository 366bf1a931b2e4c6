"""A run as an operator starts it, but with the protection taken out: what a stranger then finds shows that the tests' client can find it.

python -m tests.deployment.unprotected_run run QUERY ...        `dpsql run`, in a Spark of its own
spark-submit unprotected_run.py QUERY ...                       the script for spark-submit

Before Spark ends, the file `at_work` is made in the working folder, and it is waited until that is gone.
"""

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dpsql.streaming import protection, session

AT_WORK = "at_work"


def take_out() -> None:
    """From here on no session of this process is protected, and none is refused for that."""
    protection.check_settings = protection.protect = lambda _: None  # type: ignore[assignment]
    session.SESSION |= dict.fromkeys(protection.SETTINGS, "false")


def wait_at_the_end() -> None:
    stop = SparkSession.stop

    def stopped(spark: Any) -> None:
        at_work = Path(AT_WORK)
        at_work.touch()
        while at_work.exists():
            time.sleep(0.1)
        stop(spark)

    SparkSession.stop = stopped  # type: ignore[method-assign]


if __name__ == "__main__":
    take_out()
    wait_at_the_end()
    if session.GATEWAY in os.environ:
        from dpsql.jobs.run_query import main
    else:
        from dpsql.jobs.cli import main
    main()
