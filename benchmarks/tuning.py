"""How good is what `dpsql tune` recommends? Tuned on half of the users, judged on the others, against a finer grid.

python benchmarks/tuning.py EVENTS.parquet QUERY.sql [--sources FILE] [--part 0.5] [--draws 3]

EVENTS.parquet is the input of the query's stream and has its privacy unit as a column. The users are split by a hash. The grid has other
values of C, c and G than the search; its best point and the recommendation are then run with fresh noise on the local engine.
With --part 0.1 a tenth of the users is the sample and tuning is told the scale.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np

import dpsql
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from dpsql.tuning import Setting, Workbench, edited, read_sample, search
from dpsql.tuning.search import steps_up_to

FINE = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    17,
    20,
    24,
    28,
    34,
    40,
    48,
    57,
    68,
    80,
    96,
    114,
    135,
    160,
    190,
    226,
    270,
    380,
    540,
    760,
    1080,
    2160,
)
FILLED = (0.4, 0.55, 0.7, 0.85, 1.0)
MOST = 400
"""Larger bounds are on no grid: with a few thousand users they are far from useful."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("events", type=Path)
    parser.add_argument("query", type=Path)
    parser.add_argument("--sources", default="conf/sources.yaml")
    parser.add_argument("--part", type=float, default=0.5, help="share of the users in the sample")
    parser.add_argument(
        "--draws", type=int, default=3, help="runs of the engine for each of the two settings"
    )
    given = parser.parse_args()
    print(
        json.dumps(
            judge(
                given.events,
                given.query.read_text(),
                dpsql.load_sources(given.sources),
                given.part,
                given.draws,
            ),
            indent=1,
        )
    )


def judge(
    events: Path,
    text: str,
    sources: dpsql.Sources,
    part: float = 0.5,
    draws: int = 3,
    most: int = MOST,
) -> dict[str, object]:
    query = dpsql.compile(text, sources)
    with tempfile.TemporaryDirectory() as folder:
        sample, rest = split(events, query.parsed.privacy_unit, part, Path(folder))
        started = time.process_time()
        bench = Workbench(
            query, read_sample(query, {query.parsed.stream: [sample]}), (1 - part) / part
        )
        recommended = search(bench)
        seconds = time.process_time() - started
        others = Workbench(query, read_sample(query, {query.parsed.stream: [rest]}))
        best, points = best_of_grid(others, most)
        settings = {
            "as written": others.written,
            "recommended": recommended,
            "best of the grid": best,
        }
        measured = {
            name: {"expected": _errors(others, setting), **dataclasses.asdict(setting)}
            for name, setting in settings.items()
        }
        for name in ("recommended", "best of the grid") if draws else ():
            measured[name]["engine"] = run(
                dpsql.compile(edited(others, settings[name]), sources), rest, Path(folder), draws
            )
    ratio = others.cost(recommended) / others.cost(best)
    return {
        "users": others.sample.users,
        "points": points,
        "tuning_cpu_seconds": round(seconds, 1),
        "ratio": round(ratio, 4),
    } | measured


def split(events: Path, unit: tuple[str, ...], part: float, folder: Path) -> tuple[Path, Path]:
    """The records of a share of the users, and those of the others."""
    paths = folder / "sample.parquet", folder / "rest.parquet"
    of = ", ".join(f'"{column}"' for column in unit)
    for path, condition in zip(paths, ("<", ">="), strict=True):
        chosen = f"hash({of}) % 1000000 {condition} {round(part * 1e6)}"
        pattern = f"{events}/*.parquet" if events.is_dir() else str(events)
        duckdb.sql(
            f"COPY (SELECT * FROM read_parquet('{pattern}') WHERE {chosen}) TO '{path}' (FORMAT parquet)"
        )
    return paths


def best_of_grid(bench: Workbench, most: int = MOST) -> tuple[Setting, int]:
    """The least expected error of a full grid of bounds."""
    costs = {setting: bench.cost(setting) for setting in _bounds(bench, bench.written, most)}
    return min(costs, key=lambda each: costs[each]), len(costs)


def _bounds(bench: Workbench, start: Setting, limit: int) -> Iterator[Setting]:
    most = bench.longest
    seen = set()
    for groups in steps_up_to(min(most["max_groups_contributed"], limit), FINE):
        for per_group in steps_up_to(min(most["max_rows_per_group"], limit), FINE):
            for filled in FILLED:
                rows = min(
                    max(groups, per_group, round(filled * groups * per_group)),
                    most["max_rows_contributed"],
                )
                if (rows, per_group, groups) not in seen and max(groups, per_group) <= rows:
                    seen.add((rows, per_group, groups))
                    yield dataclasses.replace(
                        start,
                        max_rows_contributed=rows,
                        max_rows_per_group=per_group,
                        max_groups_contributed=groups,
                    )


def _errors(bench: Workbench, setting: Setting) -> dict[str, object]:
    m = bench.measure(setting)
    shares = {
        alias: round(column["l_1"] / column["true"], 4) for alias, column in m.columns.items()
    }
    return {
        "cost": round(m.cost, 4),
        "keys_kept": round(m.keys_kept, 1),
        "keys": m.keys,
        "l_1 / true": shares,
    }


def run(query: dpsql.Query, rest: Path, folder: Path, draws: int) -> dict[str, object]:
    """Mean l_1 as a share of the truth, and keys kept, of the real engine."""
    kept = []
    errors = []
    for _ in range(draws):
        secret = Secret.load(folder / secrets.token_hex(4) / "secret")
        done = try_query(
            query,
            {query.parsed.stream: [rest]},
            run_id=secrets.token_hex(16),
            secret=secret,
            compare=True,
        )
        assert done.comparison is not None
        true = done.comparison["true_histogram"]
        kept.append(done.comparison["keys_kept"])
        errors.append(
            {
                alias: each["l_1"] / float(true[alias].abs().sum())
                for alias, each in done.comparison["columns"].items()
            }
        )
    shares = {
        alias: round(float(np.mean([each[alias] for each in errors])), 4) for alias in errors[0]
    }
    return {
        "cost": round(float(np.mean(list(shares.values()))), 4),
        "keys_kept": round(float(np.mean(kept)), 1),
        "l_1 / true": shares,
    }


if __name__ == "__main__":
    main()
