"""Kill runs of sliding windows for ever at random, and compare what they leave with an uninterrupted run, which `dpsql verify` recomputes.

    python -m tests.crash.sliding [--kills 20] [--seed 1]

Two queries: one that protects rows, with smoothing; one that protects units, with correlated noise and bounds in the intake.
"""

import argparse
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.udfs.sliding.state import TABLES
from tests.crash.kill import NAME, Stage, at_random, differences, left, whole_run

EVENTS = "epsilon = 1, delta = 0, privacy_level = EVENT"
UNITS = (
    "epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 3, max_rows_per_group = 2, max_groups_contributed = 2"
)


def sql(options: str) -> str:
    """Six hours, every two."""
    listed = "public_groups = (SELECT page FROM pages)"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}, {listed}) page, COUNT(*) AS views FROM visits"
    return f"{text} GROUP BY window(ts, '6 hours', '2 hours'), page"


class EventStage(Stage):
    """As `Stage`, for rows."""

    sql: ClassVar[str] = sql(EVENTS)
    sources: ClassVar[str] = """
sources:
  visits:
    format: parquet
    path: visits
    event_time: ts
    start: 2100-01-01
    options: {maxFilesPerTrigger: 1}
  pages: {format: parquet, path: pages, static: true}
"""
    tables: ClassVar[Mapping[str, Sequence[str]]] = {"admission": (), "release": tuple(TABLES)}

    def prepare(self) -> None:
        """With the list of pages, one of which nobody visits."""
        (self.folder / "pages").mkdir(parents=True)
        pq.write_table(pa.table({"page": [f"p{i}" for i in range(5)]}), self.folder / "pages" / "pages.parquet")
        super().prepare()


class UnitStage(EventStage):
    """For units."""

    sql: ClassVar[str] = sql(UNITS)
    sources: ClassVar[str] = EventStage.sources.replace("    start:", "    privacy_unit: user_id\n    start:")
    tables: ClassVar[Mapping[str, Sequence[str]]] = {"admission": ("users",), "release": tuple(TABLES)}


def verified(stage: Stage, lake: Path) -> str:
    given = [sys.executable, "-m", "dpsql.jobs.cli", "verify", NAME, "--lake", str(lake), "--sources", "sources.yaml"]
    given += ["--secret-file", str(stage.secret(lake))]
    done = subprocess.run(given, cwd=stage.folder, env=stage.own_environment(), capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def main(kinds: Mapping[str, type[Stage]], about: str, folder: str) -> int:
    """Kill runs of some kinds, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(folder), help="made anew; everything is below it")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--catch-ups", type=int, default=2)
    parser.add_argument("--only", choices=kinds, help="one of the kinds")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    wrong = False
    for name, kind in ((name, kinds[name]) for name in kinds if given.only in (None, name)):
        stage, kills = kind(given.folder.resolve() / name, given.catch_ups), Counter[str]()
        stage.prepare()
        whole, lake = whole_run(stage), stage.lake("random")
        at_random(stage, lake, given.kills, random.Random(given.seed), kills)
        unlike, said = differences(left(whole), left(lake)), verified(stage, lake)
        cells = len(left(whole)["histogram"])
        print(f"{name}: {kills['at random']} kills; {cells} published rows; differences: {', '.join(unlike) or 'none'}; {said}", flush=True)
        wrong |= bool(unlike) or not said.startswith("identical") or not cells
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main({"events": EventStage, "units": UnitStage}, __doc__, "crash-out-sliding"))
