"""Makes the archive of old runs. It was run once, in a checkout of commit 27b5d01, and refuses to run with any other product:

    git worktree add --detach OLD 27b5d01
    cd OLD
    PYTHONPATH=.:HERE python -m tests.old_runs.make

The runs of a new commit belong into an archive of their own, beside this one: an old one is never made anew with new code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from click.testing import CliRunner

import dpsql
import udfs
from tests.conftest import SMALL
from tests.old_runs.archive import MADE_AT, pack
from tests.old_runs.cases import CASES, COMMIT, NAME, Case, bring, catch_up, day, lose, prepare, published, start, then, visits, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODIFIED = 1_709_250_000
"""Time of change of the first file; each later one is a minute younger."""


def main() -> None:
    """Make every case, pack them, and let the same code continue each."""
    _check_commit()
    from dpsql import jars
    from dpsql.streaming.session import session

    spark = session("local[2]", {**SMALL, "spark.jars": ",".join(map(str, jars.ensure()))})
    here = Path(MADE_AT)
    shutil.rmtree(here, ignore_errors=True)
    for name, case in CASES.items():
        folder = here / name
        prepare(folder, case)
        MADE.get(name, catch_ups)(spark, folder, case)
        # Continued in a copy at the very same place, so that nothing has to be moved for it.
        shutil.copytree(folder, here / "aside")
        go_on(spark, folder, case)
        rows = published(folder)
        shutil.rmtree(folder)
        (here / "aside").rename(folder)
        before = published(folder)
        pq.write_table(rows, folder / "expected.parquet", compression="zstd")
        print(f"{name}: {before.num_rows} rows published, {rows.num_rows} when continued", flush=True)
    pack([here / name for name in CASES])
    shutil.rmtree(here)
    spark.stop()


def catch_ups(spark: SparkSession, folder: Path, case: Case) -> None:
    """Two catch-ups; the second brings late records too."""
    bring_day(folder, case, 0)
    catch_up(spark, folder, day(0.5))
    bring_day(folder, case, 1)
    catch_up(spark, folder, day(1.5))
    keep_next(folder, case)


def restored(spark: SparkSession, folder: Path, case: Case) -> None:
    """Checkpoints are lost after the first catch-up, and restored with other buckets; then a second."""
    bring_day(folder, case, 0)
    catch_up(spark, folder, day(0.5))
    lose(folder, "checkpoints")
    command("restore", NAME, "--lake", str(folder / "lake"), "--buckets", "3")
    bring_day(folder, case, 1)
    catch_up(spark, folder, day(1.5))
    keep_next(folder, case)


def saved(spark: SparkSession, folder: Path, case: Case) -> None:
    """As `catch_ups`, and a savepoint of the end."""
    catch_ups(spark, folder, case)
    command("savepoint", NAME, case.savepoint, "--lake", str(folder / "lake"))


def live(spark: SparkSession, folder: Path, case: Case) -> None:
    """Started live, fed for some triggers, and asked to stop."""
    from dpsql.streaming.live import LiveOptions

    handle = start(spark, folder, live=LiveOptions(interval_us=1_000_000), buckets=(2, 2))
    for number in range(8):
        now = datetime.now(UTC)
        write(case, folder / "visits", number, visits(number, now - timedelta(seconds=1), now, users=30))
        time.sleep(1.3)
    time.sleep(3)
    assert handle.stop().stopped
    # Well after the last trigger of a record that it has read.
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
    for number in (8, 9):
        rows = visits(number, begin + timedelta(seconds=3 * (number - 8)), begin + timedelta(seconds=3 * (number - 7)), users=30)
        write(case, folder / "next", number, rows, time.time() + number)
    _write_then(folder, begin + timedelta(seconds=30))


MADE: dict[str, Callable[..., None]] = {"restored": restored, "savepoint": saved, "live": live}


def bring_day(folder: Path, case: Case, number: int, to: str = "visits") -> None:
    """Two files of one day, the younger with records of the day before."""
    rows = visits(number, day(number), day(number + 1))
    late = visits(100 + number, day(number - 1), day(number), users=10) if number else []
    write(case, folder / to, 2 * number, rows[::2], MODIFIED + 120 * number)
    write(case, folder / to, 2 * number + 1, rows[1::2] + late, MODIFIED + 120 * number + 60)


def keep_next(folder: Path, case: Case) -> None:
    """What the run has not seen: another day, and then silence up to the last trigger of all windows."""
    bring_day(folder, case, 2, "next")
    _write_then(folder, day(4))


def go_on(spark: SparkSession, folder: Path, case: Case) -> None:
    """Continue a run as the tests do."""
    if case.savepoint:
        lose(folder, "checkpoints", "state")
        command("restore", NAME, "--lake", str(folder / "lake"), "--to", case.savepoint)
    bring(folder)
    catch_up(spark, folder, then(folder))


def command(*words: str) -> None:
    """A command of the command line."""
    from jobs.cli import main as dpsql_command

    done = CliRunner().invoke(dpsql_command, words)
    assert done.exit_code == 0, done.output


def _write_then(folder: Path, until: datetime) -> None:
    (folder / "then.json").write_text(json.dumps(until.isoformat()))


def _check_commit() -> None:
    product = Path(dpsql.__file__).resolve().parents[1]
    asked = ("rev-parse", "HEAD"), ("status", "--porcelain")
    commit, changes = (subprocess.run(["git", *words], cwd=product, check=True, capture_output=True, text=True).stdout for words in asked)
    if not commit.startswith(COMMIT) or changes.strip() or Path(udfs.__file__).resolve().parents[1] != product:
        sys.exit(f"{product} is not an unchanged checkout of {COMMIT}: see the head of this file")


if __name__ == "__main__":
    main()
