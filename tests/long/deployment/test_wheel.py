"""The wheel runs Spark, and every command works from the wheel alone."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.unit.test_wheel import CHECKOUT, NEEDS_EXTRA, bare, dp, installed, wheel

__all__ = ["bare", "installed", "wheel"]

QUANTILES = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-8, privacy_unit_column = user_id, max_rows_contributed = 8)
  key AS channel, APPROX_QUANTILES(value, 2, contribution_bounds_per_row => (-500, 500)) AS middle
FROM wiki GROUP BY window(ts, '1 day'), channel
"""
RUN = "--sources here/conf/sources.yaml --until-caught-up --until 2015-09-13 --master local[2]"
AFTER_A_RUN = (
    "show demo", "show demo --json", "show middle", "show middle --json", "show wiki_top", "show wiki_top --json", "show lake/public/middle",
    "compare demo #en.wikipedia #de.wikipedia", "ask wiki_top #en.wikipedia", "status", "verify middle --sources here/conf/sources.yaml",
    "savepoint demo", "restore demo", "budget --sources here/conf/sources.yaml",
)  # fmt: skip


def _environment(folder: Path) -> dict[str, str]:
    """A home of its own, with a link to the jars of the checkout, so that nothing is fetched again."""
    (folder / "cache" / "dpsql").mkdir(parents=True)
    (folder / "cache" / "dpsql" / "jars").symlink_to(CHECKOUT / ".jars")
    home = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DPSQL_SECRET_FILE": str(folder / "keys" / "secret"),
        "DPSQL_LAKE": "lake",
    }
    return home | {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def test_a_wheel_runs_spark(installed: Path, tmp_path: Path) -> None:
    """Its own settings and pinned jars, from the cache of the user."""
    own = _environment(tmp_path)
    dp(installed, tmp_path, "init", "here")
    done = dp(installed, tmp_path, "run", "here/conf/queries/demo.sql", *shlex.split(RUN), **own)
    assert done.returncode == 0, done.stderr
    assert "#en.wikipedia" in dp(installed, tmp_path, "show", "demo", **own).stdout
    assert dp(installed, tmp_path, "view", "demo", **own).stdout == "wrote demo.html\n"
    assert (tmp_path / "demo.html").stat().st_size > 100_000


def test_every_command_works_after_a_run_without_extras(bare: Path, tmp_path: Path) -> None:
    """Catches: a module that only an extra brings, in a command or in a worker of Spark; a reader that fails on quantiles or lists."""
    own = (
        os.environ
        | _environment(tmp_path)
        | {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(bare)}
    )

    def ran(words: str) -> subprocess.CompletedProcess[str]:
        command = [str(bare.with_name("dpsql")), *words.split()]
        return subprocess.run(
            command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )

    assert ran("init here").returncode == 0
    (tmp_path / "middle.sql").write_text(QUANTILES)
    for query in ("here/conf/queries/demo.sql", "here/conf/queries/wiki_top.sql", "middle.sql"):
        done = ran(f"run {query} {RUN}")
        assert done.returncode == 0, done.stderr
    assert {words: done.stderr for words in AFTER_A_RUN if (done := ran(words)).returncode} == {}
    refused = ran("view demo")
    assert (refused.returncode, refused.stderr) == (2, NEEDS_EXTRA)
