"""A private histogram of a frame, beside DuckDB's exact GROUP BY: processes in turn, CPU of the call and peak of the process.

python benchmarks/frames.py                       # five rounds; writes a table of docs/performance.md
python benchmarks/frames.py --before CHECKOUT     # also another checkout, and `dpsql try` of a million Parquet rows with both
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.environ.get("FRAMES_CHECKOUT", str(CHECKOUT)))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

UNITS = 1_000_000
KEYS = 1_000
DAY_US = 86_400_000_000
BEGIN_US = 1_700_006_400_000_000
EXACT = "SELECT item, count(DISTINCT user_id), count(*), sum(value) FROM visits GROUP BY item"
PRIVATE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, "
    "max_rows_contributed = 16, max_rows_per_group = 4, max_groups_contributed = 8) item, "
    "COUNT(DISTINCT user_id) AS users, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, 100)) AS total "
    "FROM visits GROUP BY {}item"
)
WINDOW = "window(ts, '1 day'), "
CASES = {
    "1M": (1_000_000, ""),
    "10M": (10_000_000, ""),
    "10M, units as text": (10_000_000, "text"),
    "10M, in no order": (10_000_000, "unordered"),
    "10M, one release": (10_000_000, "release"),
}


def frame(rows: int, kind: str) -> pa.Table:
    """A million units, a thousand keys of which the first are the most frequent, one day."""
    generator = np.random.default_rng(7)
    unit = pa.array(generator.integers(0, UNITS, rows))
    if kind == "text":
        unit = pa.array([f"user{number:07}" for number in range(UNITS)]).take(unit)
    item = (generator.pareto(1, rows) * 20).astype(np.int64) % KEYS
    ts = generator.integers(0, DAY_US, rows)
    if kind != "unordered":
        ts.sort()
    return pa.table(
        {
            "user_id": unit,
            "ts": pa.array(BEGIN_US + ts, pa.timestamp("us")),
            "item": pa.array([f"item {number}" for number in range(KEYS)]).take(pa.array(item)),
            "value": generator.random(rows) * 100,
        }
    )


def exact(records: pa.Table) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.register("visits", records)
    connection.sql(EXACT).fetchall()


def private(records: pa.Table, window: str) -> None:
    import dpsql

    dpsql.query(
        PRIVATE.format(window),
        records,
        unit="user_id",
        secret=Path(os.environ["FRAMES_SECRET"]),
        **({"time": "ts", "until": "2023-11-17"} if window else {}),
    )


def measure(engine: str, rows: int, kind: str) -> dict[str, float]:
    """One call in this process; a small one comes first, as a notebook has had one."""
    records = frame(rows, kind)
    run = exact if engine == "exact" else private
    arguments = () if engine == "exact" else ("" if kind == "release" else WINDOW,)
    run(records.slice(0, 1000), *arguments)
    start = time.process_time()
    run(records, *arguments)
    cpu = time.process_time() - start
    return {"cpu": cpu, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def in_process(checkout: Path, folder: Path, *arguments: str) -> dict[str, float]:
    """What a process of its own measures."""
    environment = os.environ | {
        "FRAMES_CHECKOUT": str(checkout),
        "FRAMES_SECRET": str(folder / f"secret-{checkout.name}" / "secret"),
        "PYTHONPATH": str(checkout),
    }
    command = [sys.executable, __file__, "--one", *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=-1, stderr=-3, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tried(checkout: Path, folder: Path) -> dict[str, float]:
    """CPU of `dpsql try` of a million Parquet rows, the whole process."""
    from benchmarks.processes import measure_command  # of this checkout, not of the other

    (folder / "sources.yaml").write_text(
        "sources:\n  visits: {format: parquet, path: visits, event_time: ts, max_users: 2000000, max_keys: 2000, privacy_unit: user_id}\n"
    )
    (folder / "q.sql").write_text(PRIVATE.format(WINDOW))
    command = [sys.executable, "-m", "dpsql.jobs.cli", "try", "q.sql", "--sources", "sources.yaml"]
    command += ["--until", "2023-11-17", "--json"]
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "DPSQL_SECRET_FILE": str(folder / f"secret-{checkout.name}" / "secret"),
    }
    return {"cpu": measure_command(command, cwd=folder, env=environment).seconds}


def main() -> None:
    """Measure in turn and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--before", type=Path, help="another checkout, measured too")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "ROWS", "KIND"))
    given = parser.parse_args()
    if given.one:
        engine, rows, kind = given.one
        print(json.dumps(measure(engine, int(rows), kind)))
        return
    lines = [
        "| rows | exact GROUP BY, CPU-s | dpsql, CPU-s | times | peak memory, GB |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in given.cases:
            rows, kind = CASES[case]
            turns = [
                [
                    in_process(CHECKOUT, folder, engine, str(rows), kind)
                    for engine in ("exact", "dpsql")
                ]
                for _ in range(given.rounds)
            ]
            cpu = [statistics.median(turn[i]["cpu"] for turn in turns) for i in (0, 1)]
            peak = [statistics.median(turn[i]["peak"] for turn in turns) for i in (0, 1)]
            lines.append(
                f"| {case} | {cpu[0]:.1f} | {cpu[1]:.1f} | {cpu[1] / cpu[0]:.1f} | {peak[0]:.2f}, {peak[1]:.2f} |"
            )
            print(lines[-1], flush=True)
        if given.before:
            (folder / "visits").mkdir()
            pq.write_table(frame(1_000_000, ""), folder / "visits" / "a.parquet")
            both = [
                [tried(checkout, folder)["cpu"] for checkout in (given.before, CHECKOUT)]
                for _ in range(given.rounds)
            ]
            old, new = (statistics.median(turn[i] for turn in both) for i in (0, 1))
            print(
                f"`dpsql try`, 1M Parquet rows, whole process: {old:.1f} before, {new:.1f} now: {new / old:.2f}"
            )
    if not given.no_page:
        from benchmarks.page import PERFORMANCE, write

        write("frames", lines, PERFORMANCE)


if __name__ == "__main__":
    main()
