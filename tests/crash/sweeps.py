"""Kill catch-ups inside of the sweep at their end, a night each, and look whether anything is lost by it.

    python -m tests.crash.sweeps             every point, a night each and one more: about 20 starts

Windows of a minute, so that eras of contributions go every night, and bounds so small that every night has something to merge and to
remove. What is published must be what an uninterrupted run publishes, `dpsql verify` must recompute it, a run with a lost checkpoint must
restore, and the lake must not have grown by what was broken off.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from tests.crash.kill import CHECKOUT, NAME, START, Stage, broken, left
from tests.crash.points import SWEEP_POINTS

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, contribution_period = STREAM, max_rows_contributed = 40)
  page, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 minute'), page
"""
KILLED = -9


class Nights(Stage):
    """A catch-up a day, whose windows are forgotten by the next."""

    sql: ClassVar[str] = SQL

    def command(self, lake: Path, number: int) -> list[str]:
        """One night."""
        until = (START + timedelta(days=number, hours=12)).strftime("%Y-%m-%dT%H:%M")
        return self.job(lake, ["--until-caught-up", "--until", until, "--retention", "1 hour"])

    def nights(self, lake: Path, points: list[str], bring: bool) -> list[str]:
        """A night each, killed there and started again; what is wrong."""
        wrong = []
        for number, point in enumerate(points):
            if bring:
                self.bring(number)
            if point:
                code = self.start(self.command(lake, number), point)
                wrong += [] if code == KILLED else [f"{point}: ended with {code}, not killed"]
                wrong += [f"{point}: {problem}" for problem in broken(lake, only_newest=True)]
                print(f"night {number + 1}, {point}: {'killed, lake in order' if not wrong else wrong[-1]}", flush=True)
            if (code := self.start(self.command(lake, number))) != 0:
                return [*wrong, f"night {number + 1} ended with {code}; see {self.folder / 'log'}"]
        return wrong

    def dpsql(self, *words: str) -> str:
        """What another command says, errors too."""
        command = [sys.executable, "-m", "jobs.cli", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.own_environment(), capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def verified(self, lake: Path) -> bool:
        """Whether everything that is published can be recomputed."""
        said = self.dpsql("verify", NAME, "--lake", str(lake), "--sources", "sources.yaml", "--secret-file", str(self.secret(lake)))
        return "identical" in said


def files(lake: Path) -> int:
    """All files of the run but those of Spark's own checkpoints, which it tidies in the background."""
    return sum(1 for path in lake.rglob("*") if path.is_file() and "checkpoints" not in path.parts)


def run(stage: Nights, points: list[str], spare: int) -> list[str]:
    """Kill at these points, a night each; what is wrong then.

    Args:
        stage: made anew.
        points: the last nights of the run; those before are undisturbed.
        spare: how many nights come before the first kill.
    """
    stage.environment = {"CRASH_OFTEN": "1"}
    stage.prepare()
    whole, lake = stage.lake("whole"), stage.lake("killed")
    nights = [""] * spare + points
    # Both see the files of a night when it comes.
    wrong = stage.nights(lake, nights, bring=True)
    shutil.rmtree(stage.folder / "visits")
    (stage.folder / "visits").mkdir()
    wrong += stage.nights(whole, [""] * len(nights), bring=True)
    if wrong:
        return wrong
    if left(whole)["histogram"] != left(lake)["histogram"]:
        wrong.append("another histogram")
    if not stage.verified(lake):
        wrong.append("verify does not recompute it")
    if files(lake) > 1.2 * files(whole):
        wrong.append(f"{files(lake)} files, where an undisturbed run has {files(whole)}")
    shutil.rmtree(lake / f"private/{NAME}/checkpoints/release")
    said = stage.dpsql("restore", NAME, "--lake", str(lake))
    if "release: goes on after" not in said or stage.start(stage.command(lake, len(nights) - 1)) != 0 or not stage.verified(lake):
        wrong.append(f"a lost checkpoint: {said}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "crash-out", help="made anew; everything is below it")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    wrong = run(Nights(given.folder.resolve(), 0), list(SWEEP_POINTS), spare=4)
    print(f"{len(SWEEP_POINTS)} kills; {'; '.join(wrong) or 'no difference'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
