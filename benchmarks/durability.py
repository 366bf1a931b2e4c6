"""Is everything on the disk before the commit that names it, and what does that cost? Watched from outside, with strace.

    python benchmarks/durability.py [--count 9] [--folder DIR]

A process writes micro-batches as a run does: 8 state files of 0.8 MB, the commit that lists them, 8 files of contributions, their commit, a tick,
a release, and the sweep after it. strace notes every file that gets its name, every commit and every fsync. Printed are commits that came before
the fsync of a file that they name (or of its folder), commits that were not synced before the next one, and, without strace, the time of a
micro-batch on this disk with its syncs and without any: the difference is what they cost (at most 50 ms are allowed).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from pyspark.sql import types as T  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.throughput import machine  # noqa: E402
from dpsql.lake import compaction, delta_tables, retention  # noqa: E402
from dpsql.lake.contributions import Contributions  # noqa: E402
from dpsql.lake.manifest import Manifest  # noqa: E402
from dpsql.lake.sorted_file import sorted_file  # noqa: E402
from dpsql.mechanisms.registry import shape  # noqa: E402
from dpsql.sources.config import Source, Sources  # noqa: E402
from dpsql.streaming.published_table import PublishedTable  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.stage import ADMISSION, StateFile  # noqa: E402

BUCKETS = 8
STATE_ROWS = 60_000
ROWS = 2_000
HOUR = 3_600_000_000
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""
SYSTEM_CALLS = "openat,rename,renameat,renameat2,link,linkat,fsync,fdatasync"
ERA_US = 64 * HOUR


def main() -> int:
    """Watch, then measure; 1 if something was not on the disk in time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=9, help="micro-batches")
    parser.add_argument(
        "--folder", type=Path, help="where to write; by default in the temporary folder"
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unsynced", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        if given.unsynced:
            os.fsync = lambda descriptor: None
        print(f"{statistics.median(work(given.work, given.count)):.6f}")
        return 0
    if shutil.which("strace") is None:
        print("strace is missing (apt-get install strace): nothing was watched", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(dir=given.folder)).resolve()
    again = [sys.executable, __file__, "--count", str(given.count), "--work"]
    calls = folder / "calls"
    subprocess.run(
        [
            "strace",
            "-f",
            "--seccomp-bpf",
            "-y",
            "-e",
            f"trace={SYSTEM_CALLS}",
            "-s",
            "512",
            "-o",
            calls,
            *again,
            folder / "watched",
        ],
        check=True,
    )
    found = watched(calls.read_text(errors="replace").splitlines(), str(folder / "watched"))
    synced, unsynced = (
        1000
        * float(
            subprocess.run(
                [*again, folder / name, *flags], check=True, capture_output=True, text=True
            ).stdout.split()[-1]
        )
        for name, flags in (("timed", ()), ("unsynced", ("--unsynced",)))
    )
    print(
        f"{machine()}: {found.commits} commits name {found.files} files; not on the disk in time: {len(found.late)}"
    )
    print(
        f"a micro-batch of {BUCKETS} state files, {BUCKETS} files of contributions and 2 commits: {synced:.0f} ms, without syncs {unsynced:.0f} ms: "
        f"they cost {synced - unsynced:.0f} ms (medians of {given.count})"
    )
    for what in found.late:
        print(f"late: {what}")
    return 1 if found.late or not found.commits else 0


def work(folder: Path, count: int) -> list[float]:
    """Micro-batches, each with a tick and a release; seconds of each without these two."""
    source = Source(
        name="visits",
        format="parquet",
        path="visits",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=1000,
        max_keys=1000,
    )
    query = dpsql.compile(SQL, Sources((source,)))
    plan = query.plan
    # Small bounds, so that there is something to merge and to remove.
    compaction.MANY_FILES = 2
    compaction.LOG_COMMITS = 3
    compaction.KEPT_HOURS = 0
    retention.VACUUM_HOURS = 0
    contributions = Contributions(
        folder / "contributions",
        "5a" * 16,
        shape(plan).schedule,
        shape(plan).contributions,
        1,
        BUCKETS,
    )
    histogram = PublishedTable(
        folder / "histogram",
        "5a" * 16,
        plan.query,
        shape(plan),
        (T.StringType(),),
        query.published,
        "described",
    )
    manifest = Manifest(folder / "files", "5a" * 16, ADMISSION, 1)
    state = BucketFiles(str(folder / "state"), ADMISSION, BUCKETS, 1, ("users",))
    for table in (contributions, histogram, manifest):
        table.create()
    chance = np.random.default_rng(1)
    seconds = []
    for batch in range(count):
        users = pa.table(
            {name: chance.integers(0, 1 << 62, STATE_ROWS) for name in ("user", "fingerprint")}
        )
        at = pa.array(np.full(ROWS, batch * ERA_US))
        rows = pa.table({
            field.name: at if field.name == "window" else pa.array([b"k"] * ROWS, field.type) if field.name == "key_bytes"
            else pa.array(np.arange(ROWS), pa.int64()).cast(field.type) for field in contributions.rows
        }).append_column("bucket", pa.array(np.zeros(ROWS, np.int32)))  # fmt: skip
        began = time.monotonic()
        files = []
        written = []
        for bucket in range(BUCKETS):
            size, digests = state.store(bucket, batch + 1, {"users": users})
            files.append(StateFile(bucket, batch + 1, size, {"sha256": digests}))
            written += contributions.files.write(rows, bucket, batch)
        manifest.commit(batch, files, {"rows": ROWS * BUCKETS})
        contributions.append(written, batch, [(0, ROWS * BUCKETS)])
        seconds.append(time.monotonic() - began)
        contributions.tick_by_clock(batch, (batch + 1) * ERA_US, 0)
        _publish(histogram, batch)
        contributions.forget(batch * ERA_US)
        compaction.tidy_contributions(contributions, contributions.version)
        compaction.tidy_public(histogram.path, histogram.application)
        retention.compact(manifest.path)
        compaction.shorten(manifest.path)
    return seconds


def _publish(histogram: PublishedTable, batch: int) -> None:
    """What `delta_tables.append_frame` does with the rows of a tick."""
    columns = {one.name: one.dataType.typeName() for one in histogram.schema}
    filled = {
        "timestamp": pa.array([batch * HOUR], pa.timestamp("us", "UTC")),
        "string": pa.array(["k"]),
        "double": pa.array([1.0]),
    }
    integers = {"integer": pa.array([batch], pa.int32()), "long": pa.array([batch], pa.int64())}
    row = pa.table({name: (filled | integers)[kind] for name, kind in columns.items()})
    delta_tables.append_files(
        histogram.path, [sorted_file(histogram.path, row)], {histogram.application: batch}
    )


@dataclass
class Watched:
    """What strace saw.

    Args:
        commits, files: how many there were.
        late: what was not on the disk when it should have been.
    """

    commits: int = 0
    files: int = 0
    late: list[str] = field(default_factory=list)


CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) = (\d+)(?:<(.*?)>)?")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"\d+<([^>]*)>")
COMMIT = re.compile(r"(.*)/_delta_log/(\d{20})\.json")


def watched(lines: Iterable[str], root: str) -> Watched:
    """Go through the system calls in their order.

    A file is named by the commit of its own table that comes next, a state file by the next commit of `files`. It is on the disk when it has
    been synced, under whatever name, and its folder after it got its name.
    """
    found, waiting = Watched(), dict[str, set[str]]()  # file -> what has still to be synced
    unsynced = dict[str, set[str]]()
    unnamed = set[str]()
    for name, arguments, result in _calls(lines):
        paths = [
            path
            for path in (QUOTED.findall(arguments) if name != "openat" else [result])
            if path.startswith(root)
        ]
        if name in ("fsync", "fdatasync"):
            path = next(iter(DESCRIPTOR.findall(arguments)), "")
            unnamed.discard(path)
            for needs in (*waiting.values(), *unsynced.values()):
                needs.discard(path)
        elif name == "openat" and paths and "O_CREAT" in arguments:
            unnamed.add(paths[0])  # has bytes that are nowhere yet
            _named(paths[0], {paths[0]}, waiting)
        elif name != "openat" and len(paths) == 2:
            old, new = paths
            waiting.pop(old, None)
            # Synced before under its old name, or it has to be under its new one.
            _named(new, {new} if old in unnamed else set(), waiting)
            if committed := COMMIT.fullmatch(new):
                _commit(found, committed[1], committed[2], waiting, unsynced)
                unsynced[new] = {new, new.rpartition("/")[0]}
    return found


def _calls(lines: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """(system call, arguments, path of the result) of every call that went well; calls that another thread has interrupted are put together."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest.removesuffix("<unfinished ...>")
            continue
        if rest.startswith("<... "):
            rest = begun.pop(process, "") + rest.partition("resumed>")[2]
        if call := CALL.match(rest):
            yield call[1], call[2], call[4] or ""


def _named(path: str, needs: set[str], waiting: dict[str, set[str]]) -> None:
    name = path.rpartition("/")[2]
    if name.endswith(".parquet") and not name.startswith("."):
        waiting[path] = needs | {path.rpartition("/")[0]}


def _commit(
    found: Watched,
    table: str,
    version: str,
    waiting: dict[str, set[str]],
    unsynced: dict[str, set[str]],
) -> None:
    """A commit has got its name: what it names has to be on the disk, and so the commits before it."""
    found.commits += 1
    of = f"{Path(table).name} {int(version)}"
    for path in [path for path in waiting if _is_of(path, table)]:
        found.files += 1
        if needs := waiting.pop(path):
            found.late.append(
                f"{of} names {Path(path).name}, and not synced is {', '.join(sorted(Path(one).name for one in needs))}"
            )
    for path, needs in unsynced.items():
        if needs:
            found.late.append(
                f"{of} came before {path.split('/')[-3]} {int(Path(path).stem)} was synced"
            )
    counted = Counter(found.late)
    found.late = list(counted)
    unsynced.clear()


def _is_of(path: str, table: str) -> bool:
    return "_delta_log" not in path and (
        path.startswith(f"{table}/") or (table.endswith("/files") and "/state/" in path)
    )


if __name__ == "__main__":
    sys.exit(main())
