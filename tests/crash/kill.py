"""Kill the real job with SIGKILL again and again, and compare what it leaves with an uninterrupted run.

    python -m tests.crash.kill                every named point at every catch-up, then at random: about 70 starts
    python -m tests.crash.kill --kills 40     more at random

Each start is `dpsql run` in a session of its own. It is killed at the next point, and the start after it has to go on from there; both
lakes have one run id and one secret, so they must end with equal bits. (Two lakes with one run id are for this comparison only.)
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.lake.delta_rows import read_rows
from tests.conftest import SMALL
from tests.crash.points import POINTS, kill_session, members

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "demo"
# In the future: then the clock of a catch-up is its --until, whenever it is started.
START = datetime(2100, 1, 1, tzinfo=UTC)
BUCKETS = 2
FILES = 2
"""Files, and micro-batches, of every catch-up."""

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 3, trigger_interval = INTERVAL 12 HOURS)
  page, COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits
GROUP BY window(ts, '1 day'), page
"""
SOURCES = """
sources:
  visits:
    format: parquet
    path: visits
    event_time: ts
    privacy_unit: user_id
    options: {maxFilesPerTrigger: 1}
"""


TABLES = {"admission": ("users",), "release": ("groups", "pending", "seen")}
"""Of the state of each operator."""


@dataclass
class Stage:
    """A folder with a query, its input and its lakes. Catch-up number n (from 0) brings two more files and closes day n, one day after the
    newest record of the catch-up before: so windows, users and keys live on from one catch-up to the next."""

    folder: Path
    catch_ups: int
    environment: dict[str, str] = field(default_factory=dict)
    sql: ClassVar[str] = SQL
    sources: ClassVar[str] = SOURCES
    tables: ClassVar[Mapping[str, Sequence[str]]] = TABLES
    cell: ClassVar[tuple[str, ...]] = ("window_start", "trigger", "page")
    points: ClassVar[Iterable[str]] = tuple(POINTS)

    @property
    def arrivals(self) -> Path:
        """Where the files come in, so many with each catch-up."""
        return self.folder / "visits"

    def prepare(self) -> None:
        """Write the query, the sources and the secret, and begin the run that all lakes share."""
        import dpsql
        from dpsql.lake.opening import open_run
        from dpsql.lake.runs import Lake
        from dpsql.privacy.ledger import Ledger
        from dpsql.privacy.secret import Secret

        (self.folder / "visits").mkdir(parents=True)
        (self.folder / "query.sql").write_text(self.sql)
        (self.folder / "sources.yaml").write_text(self.sources)
        jars = dict(
            line.split()
            for line in (CHECKOUT / "conf" / "spark-defaults.conf").read_text().splitlines()
            if line.startswith("spark.jars")
        )
        settings = SMALL | jars | {"spark.sql.warehouse.dir": str(self.folder / "warehouse")}
        (self.folder / "spark.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items())
        )
        secret_file = self.secret(self.folder / "seed")
        secret = Secret.load(secret_file)
        query = dpsql.compile(self.sql, dpsql.load_sources(self.folder / "sources.yaml"))
        open_run(
            Lake(self.folder / "seed"),
            NAME,
            query,
            secret,
            Ledger.beside(secret_file),
            query.source,
        )

    def lake(self, name: str) -> Path:
        """A lake in which the run has begun and nothing else has happened."""
        return self.copy(self.folder / "seed", name)

    def copy(self, lake: Path, name: str) -> Path:
        """The same run in another lake, with its own copy of secret and ledger: each believes that it is the only one."""
        from dpsql.privacy.ledger import Ledger

        twin = self.folder / name
        shutil.copytree(lake, twin)
        shutil.copytree(self.secret(lake).parent, self.secret(twin).parent)
        ledger = Ledger.beside(self.secret(twin))
        (ledger.folder / "home").unlink()  # else it would be known for a copy
        register = ledger.register
        (entry,) = register.folder.glob("*.json")
        published = register.find(entry.stem)
        assert published is not None
        entry.unlink()
        register.add(replace(published, place=str(twin / "private" / NAME)))
        return twin

    def secret(self, lake: Path) -> Path:
        return lake.with_name(f"{lake.name}-secret") / "secret"

    def bring(self, number: int) -> None:
        """The files of a catch-up, in order of event time."""
        day = START + timedelta(days=number)
        rows = [
            {
                "user_id": f"u{user}",
                "page": f"p{page}",
                "ts": day + timedelta(seconds=60 * (user * 4 + page)),
                "seconds": float(page),
            }
            for user in range(120)
            for page in range(4)
        ]
        table = pa.Table.from_pylist(rows)
        table = table.set_column(2, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
        size = -(-table.num_rows // FILES)
        for part in range(FILES):
            path = self.folder / "visits" / f"part-{number * FILES + part:03d}.parquet"
            pq.write_table(table.slice(part * size, size), path)
            os.utime(path, (1_700_000_000 + number * FILES + part,) * 2)

    def wrong(self, lake: Path, number: int) -> list[str]:
        """What is wrong with a lake at any moment of a catch-up, also right after a kill."""
        return broken(lake, tables=self.tables, cell=self.cell)

    def missing(self, lake: Path) -> list[str]:
        """What the last catch-up should have left, and has not."""
        return [] if left(lake)["histogram"] else ["no row is published"]

    def command(self, lake: Path, number: int) -> list[str]:
        until = (START + timedelta(days=number, hours=12)).strftime("%Y-%m-%dT%H:%M")
        return self.job(lake, ["--until-caught-up", "--until", until])

    def job(self, lake: Path, how: list[str]) -> list[str]:
        """The real job, from the command line."""
        options = [
            "--sources",
            "sources.yaml",
            "--lake",
            str(lake),
            "--secret-file",
            str(self.secret(lake)),
            "--name",
            NAME,
        ]
        small = [
            "--buckets",
            str(BUCKETS),
            "--master",
            "local[2]",
            "--properties-file",
            "spark.conf",
        ]
        return [sys.executable, "-m", "dpsql.jobs.cli", "run", "query.sql", *options, *how, *small]

    def own_environment(self) -> dict[str, str]:
        python_path = os.pathsep.join([str(CHECKOUT / "tests" / "crash" / "site"), str(CHECKOUT)])
        own = {
            "PYTHONPATH": python_path,
            "PYSPARK_PYTHON": sys.executable,
            "TZ": "UTC",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        return {**os.environ, **own, **self.environment}

    def start(
        self,
        command: list[str],
        point: str = "",
        bucket: int = 0,
        after_seconds: float | None = None,
    ) -> int:
        """Run a command in a session of its own, to its end or to its death; returns its exit code (-9: killed)."""
        environment = {**self.own_environment(), "CRASH_POINT": point, "CRASH_BUCKET": str(bucket)}
        with (self.folder / "log").open("ab") as log:
            log.write(f"\n--- {point} {bucket} {after_seconds}\n".encode())
            log.flush()
            child = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = child.wait(after_seconds if after_seconds is not None else 600)
            except subprocess.TimeoutExpired:
                kill_session(child.pid)
                code = child.wait()
        deadline = time.monotonic() + 30
        while left := members(child.pid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(left)} processes outlived their job")
            kill_session(child.pid)
            time.sleep(0.02)
        return code


def left(lake: Path) -> dict[str, Any]:
    """State files byte by byte, tables as sorted rows: what must not depend on any kill."""
    private = lake / "private" / NAME
    state = private / "state"
    found: dict[str, Any] = {
        f"state {path.relative_to(state)}": path.read_bytes()
        for path in sorted(state.rglob("[0-9]*.parquet"))
    }
    tables = {"manifest": private / "files", "contributions": private / "contributions"}
    for name, path in (
        tables | {"histogram": lake / "public" / NAME, "cells": lake / "public" / f"{NAME}.sketch"}
    ).items():
        rows = read_rows(path).to_pylist() if (path / "_delta_log").is_dir() else []
        # The id of the Delta table is drawn anew for every lake.
        found[name] = sorted(
            re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", repr(row)) for row in rows
        )
    return found


def broken(
    lake: Path,
    only_newest: bool = False,
    tables: Mapping[str, Sequence[str]] = TABLES,
    cell: Sequence[str] = Stage.cell,
) -> list[str]:
    """What is wrong with a lake at any moment, also right after a kill."""
    private = lake / "private" / NAME
    wrong = []
    if (private / "files" / "_delta_log").is_dir():
        rows = [row for row in read_rows(private / "files").to_pylist() if row["bucket"] >= 0]
        # A live run throws old versions away; the newest is what it goes on from.
        newest = {
            (row["operator"], row["bucket"]): row["sequence"]
            for row in sorted(rows, key=lambda row: row["sequence"])
        }
        for row in rows:
            if only_newest and row["sequence"] < newest[row["operator"], row["bucket"]]:
                continue
            folder = (
                private
                / "state"
                / f"{row['operator']}-{BUCKETS}"
                / f"g{row['generation']}"
                / f"bucket={row['bucket']:04d}"
            )
            for path in [
                folder / f"{row['sequence']:06d}.{name}.parquet" for name in tables[row["operator"]]
            ]:
                try:
                    pq.read_table(path)
                except FileNotFoundError:
                    wrong.append(f"{path.relative_to(private)} is listed and missing")
                except pa.ArrowException:
                    wrong.append(f"{path.relative_to(private)} is listed and torn")
    if (lake / "public" / NAME / "_delta_log").is_dir():
        rows = read_rows(lake / "public" / NAME, list(cell)).to_pylist()
        twice = [
            cell
            for cell, count in Counter(tuple(row.values()) for row in rows).items()
            if count > 1
        ]
        wrong += [f"{len(twice)} cells are published twice"] if twice else []
    return wrong


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what two lakes have not in common."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def verified(stage: Stage, lake: Path) -> str:
    given = [
        sys.executable,
        "-m",
        "dpsql.jobs.cli",
        "verify",
        NAME,
        "--lake",
        str(lake),
        "--sources",
        "sources.yaml",
    ]
    given += ["--secret-file", str(stage.secret(lake))]
    done = subprocess.run(
        given,
        cwd=stage.folder,
        env=stage.own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip()


def main(kinds: Mapping[str, type[Stage]], about: str, folder: str) -> int:
    """Kill runs of some kinds, each in a folder of its own: at its points, if it has any, then at random."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(folder), help="made anew; everything is below it"
    )
    parser.add_argument("--catch-ups", type=int, default=2)
    parser.add_argument("--kills", type=int, default=12, help="at random, of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=kinds, help="one of the kinds")
    parser.add_argument("--only", default="", help="points whose name begins so")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    failed = False
    for name, kind in ((name, kinds[name]) for name in kinds if given.kind in (None, name)):
        stage = kind(given.folder.resolve() / name, given.catch_ups)
        kills = Counter[str]()
        stage.prepare()
        # The killed run first gets the files of a catch-up when it comes to it, as the whole one does.
        whole = stage.lake("whole")
        lake = stage.lake("killed")
        shuffled = stage.lake("random")
        for number in range(stage.catch_ups):
            stage.bring(number)
            ended(stage, whole, number)
            for turn, point in enumerate(
                point for point in stage.points if point.startswith(given.only)
            ):
                code = stage.start(
                    stage.command(lake, number), point, bucket=(number + turn) % BUCKETS
                )
                look(stage, lake, number, point, code)
                if code != -9:
                    raise RuntimeError(f"{point}: ended with {code}, not killed")
                kills[point] += 1
            ended(stage, lake, number)
        at_random(stage, shuffled, given.kills, random.Random(given.seed), kills)
        unlike = (
            differences(left(whole), left(lake))
            + differences(left(whole), left(shuffled))
            + stage.missing(lake)
        )
        said = verified(stage, lake)
        print(
            "\n| point | kills |\n|---|---|",
            *(f"| {point} | {count} |" for point, count in kills.items()),
            sep="\n",
        )
        print(
            f"\n{name}: {kills.total()} kills; {len(left(whole)['histogram'])} rows; wrong: {', '.join(unlike) or 'nothing'}; {said}",
            flush=True,
        )
        failed |= bool(unlike) or not said.startswith("identical")
    return int(failed)


def ended(stage: Stage, lake: Path, number: int) -> None:
    """Go through a catch-up to its end."""
    if (code := stage.start(stage.command(lake, number))) != 0:
        raise RuntimeError(f"catch-up {number + 1} ended with {code}; see {stage.folder / 'log'}")


def look(stage: Stage, lake: Path, number: int, point: str, code: int) -> None:
    """After a kill, or where one came too late."""
    if wrong := stage.wrong(lake, number):
        raise RuntimeError("; ".join(wrong))
    print(
        f"catch-up {number + 1}, {point}: {'killed' if code == -9 else 'was done before'}, lake in order",
        flush=True,
    )


def at_random(
    stage: Stage, lake: Path, kills: int, chance: random.Random, counted: Counter[str]
) -> None:
    """The same run killed at random moments, of a whole start's length; what is stored is read file by file as before."""
    saved = sorted(stage.arrivals.iterdir())
    aside = stage.folder / "aside"
    aside.mkdir()
    for path in saved:
        path.rename(aside / path.name)
    seconds = 20.0
    for number in range(stage.catch_ups):
        for path in sorted(aside.iterdir())[:FILES]:
            path.rename(stage.arrivals / path.name)
        for _ in range(-(-kills // stage.catch_ups)):
            code = stage.start(
                stage.command(lake, number), after_seconds=chance.uniform(0.2, 1.0) * seconds
            )
            counted["at random"] += code == -9
            look(stage, lake, number, "at random", code)
        began = time.monotonic()
        ended(stage, lake, number)
        seconds = time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main({"windows": Stage}, __doc__, "crash-out"))
