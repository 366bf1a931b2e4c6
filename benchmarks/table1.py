"""Table 1 of DP-SQLP (arXiv 2303.18086), record by record through the real steps.

    python benchmarks/table1.py                        # every configuration that has no result yet, then the table and the figure
    python benchmarks/table1.py --only ours-32-100     # one of them, anew
    python benchmarks/table1.py --table                # from the stored results alone

10 million users, 1 million keys, about 61 million records, epsilon = 6, delta = 1e-9, one day. Records stream through `admit` and
`release` trigger by trigger; truth is the unbounded histogram, so rows that bounding drops count as error. Results are kept in
benchmarks/results/table1; the table goes to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import rich.progress  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.measure import releasing, together  # noqa: E402
from benchmarks.sharded import Job, run  # noqa: E402
from benchmarks.workload import PAPER_KEYS, PAPER_USERS  # noqa: E402
from dpsql.compiled import Query  # noqa: E402
from dpsql.config import Source  # noqa: E402

RESULTS = CHECKOUT / "benchmarks" / "results" / "table1"
RECORDS = 61_150_000
"""Expected at full size; for the progress bar only."""


@dataclass(frozen=True)
class Configuration:
    """One row of the table: C, T and the other options of the clause."""

    name: str
    label: str
    rows: int
    triggers: int
    options: str
    batches: int = 100

    def query(self, scale: float = 1.0) -> Query:
        """The SQL through the planner and the accountant; the source declares the workload's own numbers of users and keys."""
        interval = f"trigger_interval = '{86_400_000 // self.triggers} milliseconds'"
        sql = f"""
            SELECT WITH DIFFERENTIAL_PRIVACY
              OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = {self.rows}, {interval}, {self.options})
              page, COUNT(*) AS views
            FROM visits
            GROUP BY window(ts, '1 day'), page
        """
        users, keys = round(PAPER_USERS * scale), round(PAPER_KEYS * scale)
        source = Source("visits", "parquet", event_time="ts", privacy_unit=("user_id",), max_users=users, max_keys=keys)
        return dpsql.compile(sql, {"visits": source})


def ours(rows: int, triggers: int, share: float, decay: float) -> Configuration:
    """One visit per user and page counts: the declaration that fits people who open many pages once."""
    options = f"max_rows_per_group = 1, group_selection_share = {share}, selection_weight_decay = {decay}"
    return Configuration(f"ours-{rows}-{triggers}", f"dpsql, C = {rows}, T = {triggers}", rows, triggers, options)


def paper(triggers: int) -> Configuration:
    """The paper's algorithm: trees, rounds, no decay, c = C, half of the budget each."""
    options = "counter = HONAKER, release = RESELECT, selection_weight_decay = 0, group_selection_share = 0.5"
    return Configuration(f"paper-{triggers}", f"the paper's configuration, C = 32, T = {triggers}", 32, triggers, options)


CONFIGURATIONS = (
    ours(32, 100, 0.7, 0.75),
    ours(64, 100, 0.7, 0.75),
    ours(32, 1000, 0.7, 1.0),
    ours(32, 1, 0.7, 1.0),
    paper(100),
    paper(1000),
)


def measure(configuration: Configuration, scale: float = 1.0, processes: int = 2, seed: int = 1) -> dict[str, object]:
    """Run one configuration; figures at the end of the day and after each micro-batch, and what it took."""
    job = Job(configuration.query(scale).plan, scale, seed, configuration.batches)
    with rich.progress.Progress(*rich.progress.Progress.get_default_columns(), rich.progress.TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task(configuration.name, total=RECORDS * scale)
        results, usage = run(job, releasing, processes, lambda read: bar.update(task, completed=read))
    path = [asdict(figures) for figures in together(results)]
    shown = {"name": configuration.name, "label": configuration.label, "rows": configuration.rows, "triggers": configuration.triggers}
    asked = {"options": configuration.options, "scale": scale, "seed": seed, "processes": processes}
    return shown | asked | {"figures": path[-1], "usage": asdict(usage), "path": path, "made": time.strftime("%Y-%m-%d")}


def store(result: dict[str, object]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{result['name']}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="The paper's Table 1 through the real steps.")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this configuration, whatever is stored")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the paper's users and keys; below 1 nothing is stored")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    for configuration in CONFIGURATIONS:
        if asked.only is None or configuration.name in asked.only:
            result = measure(configuration, asked.scale, asked.processes)
            print(result["name"], result["figures"], result["usage"], flush=True)
            if asked.scale == 1:
                store(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
