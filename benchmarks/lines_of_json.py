"""What `dpsql run` and `dpsql try` cost over lines of JSON, beside another commit of dpsql.

    git worktree add OLD COMMIT && ln -s $PWD/.jars OLD/
    python benchmarks/lines_of_json.py OLD [LINES] [ROUNDS]

CPU of whole commands, in turn: the driver, the JVM and Spark's Python workers. The query reads four of eight columns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.processes import processes  # noqa: E402

SOURCES = """\
sources:
  d:
    format: json
    path: in
    schema: "u STRING, ts TIMESTAMP, k STRING, v DOUBLE, n BIGINT, url STRING, agent STRING, country STRING"
    event_time: ts
    privacy_unit: u
    max_users: 1000000
    max_keys: 1000
"""
QUERY = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-8, privacy_unit_column = u, max_rows_contributed = 8)
  k, COUNT(*) AS n, SUM(v, contribution_bounds_per_row => (0, 10)) AS total FROM d GROUP BY window(ts, '1 day'), k
"""
COMMANDS = {
    "run": "run q.sql --sources s.yaml --secret-file {0}/secret --lake {0}/lake --until-caught-up --until 2024-03-03",
    "try": "try q.sql --sources s.yaml --secret-file {0}/secret --until 2024-03-03",
}
FILES = 8
STEP_SECONDS = 0.05


def write_input(folder: Path, lines: int) -> None:
    """Write lines of eight columns into some files."""
    (folder / "in").mkdir()
    (folder / "s.yaml").write_text(SOURCES)
    (folder / "q.sql").write_text(QUERY)
    for number in range(FILES):
        with open(folder / "in" / f"{number}.json", "w") as file:
            for i in range(number, lines, FILES):
                row = {
                    "u": f"u{i % 50_000}",
                    "ts": f"2024-03-01T{i % 24:02}:{i % 60:02}:00Z",
                    "k": f"k{i % 40}",
                    "v": i % 1000 / 100,
                    "n": i,
                    "url": f"https://example.org/pages/{i % 977}?from=mail",
                    "agent": "Mozilla/5.0 (X11; Linux x86_64)",
                    "country": "NZ",
                }
                file.write(f"{json.dumps(row)}\n")


def cpu_seconds(command: str, checkout: Path, folder: Path) -> float:
    """Return the CPU of a command and of all processes that it starts."""
    place = Path(tempfile.mkdtemp(dir=folder))
    words = [sys.executable, "-m", "dpsql.jobs.cli", *COMMANDS[command].format(place).split()]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TZ": "UTC"}
    started = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    seconds = 0.0
    while started.poll() is None:
        used = processes(started.pid)
        seconds = max(seconds, sum(cpu for _, cpu in used.values()))
        time.sleep(STEP_SECONDS)
    assert started.stdout is not None
    said = started.stdout.read().decode()
    if started.returncode:
        raise SystemExit(said)
    return seconds


def main() -> None:
    """Print the medians of both commits and what one costs of the other."""
    old = Path(sys.argv[1]).resolve()
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else 400_000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder, lines)
        for command in COMMANDS:
            pairs = []
            for _ in range(rounds):
                pairs.append(
                    (cpu_seconds(command, old, folder), cpu_seconds(command, CHECKOUT, folder))
                )
                print(command, *(f"{seconds:.1f}" for seconds in pairs[-1]), flush=True)
            before = median(pair[0] for pair in pairs)
            after = median(pair[1] for pair in pairs)
            ratios = [new / other for other, new in pairs]
            print(
                f"{command}: {before:.1f} and {after:.1f} CPU-s, {after / before:.2f} times "
                f"(pairs {min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
