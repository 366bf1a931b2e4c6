"""Kill a live job with SIGKILL at named points of its ticks, releases and clean-up, and recompute what it has published.

    python -m tests.crash.live

A live run follows the wall clock, so no second run has the same ticks. What it leaves is held against `dpsql verify`, which computes every
published row anew from the files and the listed clocks, bit by bit; and no trigger of a published key may be missing or there twice.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from benchmarks.soak import SOURCES, Generator
from dpsql.lake.delta_rows import read_rows
from tests.crash.kill import NAME, Stage, broken
from tests.crash.points import LIVE_POINTS

WINDOW = 1
HORIZON = 8
"""Seconds, triggers: 64 windows are an era, so one is deleted every minute."""
SQL = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '{WINDOW} second',
    allowed_lateness = '{(HORIZON - 1) * WINDOW} seconds')
  page, COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits GROUP BY window(ts, '{WINDOW} second'), page
"""
OFTEN = {"CRASH_OFTEN": "1"}
"""Clean up after every release instead of once a minute, and compact short lists."""


class LiveStage(Stage):
    """As `Stage`, for a live run."""

    sql = SQL
    sources = SOURCES

    def live(self, lake: Path) -> list[str]:
        """`dpsql run` without an end."""
        return self.job(lake, ["--interval", "1 second", "--retention", "1 second"])

    def ends_well(self, lake: Path) -> bool:
        """Start it once more, let it publish, and end it by `dpsql stop`."""
        before = triggers(lake)
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                self.live(lake),
                cwd=self.folder,
                env=self.own_environment() | OFTEN,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while child.poll() is None and len(triggers(lake)) < len(before) + 3:
            time.sleep(0.5)
        self.words(lake, "stop")
        return child.wait(120) == 0

    def words(self, lake: Path, command: str) -> str:
        """What another command says of the run."""
        flags = (
            ["--sources", "sources.yaml", "--secret-file", str(self.secret(lake))]
            if command == "verify"
            else []
        )
        given = [sys.executable, "-m", "dpsql.jobs.cli", command, NAME, "--lake", str(lake), *flags]
        done = subprocess.run(
            given,
            cwd=self.folder,
            env=self.own_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stdout or done.stderr).strip()


def triggers(lake: Path) -> Counter[tuple[int, int, str]]:
    """(window second, trigger, page) -> how often it is published."""
    if not (lake / "public" / NAME / "_delta_log").is_dir():
        return Counter()
    rows = read_rows(lake / "public" / NAME, ["window_start", "trigger", "page"]).to_pylist()
    return Counter(
        (round(row["window_start"].timestamp()), row["trigger"], row["page"]) for row in rows
    )


def missing(published: Counter[tuple[int, int, str]]) -> int:
    """Triggers that are not there although the page has appeared in the window before and the grid has come further."""
    newest = max(window + trigger * WINDOW for window, trigger, _ in published)
    first: dict[tuple[int, str], int] = {}
    for window, trigger, page in published:
        first[window, page] = min(trigger, first.get((window, page), trigger))
    due = (
        (window, trigger, page)
        for (window, page), began in first.items()
        for trigger in range(began, min(HORIZON, (newest - window) // WINDOW) + 1)
    )
    return sum(cell not in published for cell in due)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("crash-out-live"),
        help="made anew; everything is below it",
    )
    parser.add_argument("--rounds", type=int, default=1, help="kills at each point")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    stage = LiveStage(given.folder.resolve(), 0)
    stage.prepare()
    lake = stage.lake("live")
    generator = Generator(stage.folder / "visits", 100, (10_000, 0))
    generator.start()
    began = time.monotonic()
    kills = 0
    for turn, name in enumerate(list(LIVE_POINTS) * given.rounds):
        stage.environment = OFTEN
        code = stage.start(stage.live(lake), name, bucket=turn % 2)
        wrong = broken(lake, only_newest=True) + (
            [] if code == -9 else [f"ended with {code}, not killed"]
        )
        print(f"{name}: {'; '.join(wrong) or 'killed, lake in order'}", flush=True)
        if wrong:
            return 1
        kills += 1
    ended = stage.ends_well(lake)
    generator.stop.set()
    published = triggers(lake)
    said = stage.words(lake, "verify")
    print(
        f"\n{kills} kills at {len(LIVE_POINTS)} points in {timedelta(seconds=round(time.monotonic() - began))}; {sum(published.values())} rows "
        f"published, {missing(published)} missing; {said}"
    )
    return (
        0
        if ended
        and said.startswith("identical")
        and not missing(published)
        and not broken(lake, only_newest=True)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
