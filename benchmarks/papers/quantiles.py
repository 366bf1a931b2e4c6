"""Quantiles of a real table whose rows end, through both steps of a plan: online-retail, an order line is a row for 30 days, a trigger a day.

    python benchmarks/papers/quantiles.py DATA [RUNS]       DATA: a folder with `online-retail` (docs/accuracy.md)
    python benchmarks/papers/quantiles.py windows           what the last trigger of a window costs, by how many groups it shows (docs/performance.md)

Deciles of values in (0, 100); C = c = 8 rows of a customer for ever, epsilon = 6, delta = 1e-9. Rank error: how far the share of the bounded rows
at or below a released value (or below it) is from the share that was asked for; mean of all deciles, every 13th trigger from the 60th on.
Beside it the same leaves as one flat level: each leaf a counter, all the budget of the tree, its values read off in the same way.
"""

from __future__ import annotations

import cProfile
import math
import pstats
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.page import PERFORMANCE, write  # noqa: E402
from benchmarks.throughput import machine  # noqa: E402
from dpsql.mechanisms import registry  # noqa: E402
from dpsql.mechanisms.dynamic.planner import make_plan  # noqa: E402
from dpsql.mechanisms.dynamic.stages import stages  # noqa: E402
from dpsql.mechanisms.histogram.planner import make_plan as window_plan  # noqa: E402
from dpsql.mechanisms.protocol import RunFacts  # noqa: E402
from dpsql.parsed_query import AggregateFunction, Quantiles  # noqa: E402
from dpsql.udfs.columns import Bool, Float, Int, mix  # noqa: E402
from dpsql.udfs.keys import PublicGroups  # noqa: E402
from dpsql.udfs.measure import quantiles  # noqa: E402
from dpsql.udfs.measure.quantiles import LEAVES  # noqa: E402
from dpsql.udfs.noise.blt_inf import BltInf  # noqa: E402
from dpsql.udfs.stage import BEGIN, END, Clock, Tick  # noqa: E402
from tests.mechanisms.dynamic import plans  # noqa: E402
from tests.mechanisms.histogram.contract_cases import QUARTILES  # noqa: E402
from tests.property.plans import COUNT, query, source  # noqa: E402

DAY = 86_400_000_000
KEPT = 30
PARTS = 10
UPPER = 100.0
PROFILED = (
    "normals",
    "_encrypt",
    "lower_tails",
    "rounded",
    "nodes",
    "cumulated",
    "places",
    "rank_error",
)
DECILES = Quantiles("deciles", AggregateFunction.APPROX_QUANTILES, "value", (0.0, UPPER), PARTS)


def read(path: Path) -> tuple[Int, Float, Int]:
    """Units, values, event times; values that are positive."""
    table = pq.read_table(path / "events.parquet")
    unit = np.unique(np.asarray(table["user_id"].to_pylist()), return_inverse=True)[1]
    value = table["value"].to_numpy(zero_copy_only=False).astype(np.float64)
    ts = table["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    kept = np.isfinite(value) & (value > 0)
    return unit[kept], value[kept], ts[kept]


def rank_error(counts: Int, place: Int) -> Float:
    """Of the values up to each of some leaves, from 1; a share within an atom is right."""
    upto = np.concatenate([[0], np.cumsum(counts)]) / max(int(counts.sum()), 1)
    shares = np.arange(1, len(place) + 1) / (len(place) + 1)
    return np.maximum(0.0, np.maximum(upto[place - 1] - shares, shares - upto[place]))


def flat(
    counts: Int, deviation: float, parts: int, chance: np.random.Generator
) -> tuple[Int, Bool]:
    """Places in one level of noisy leaves, and whether there is a value, by its noisy counts; shape of counts (groups, LEAVES)."""
    sums = (
        np.cumsum(
            counts + np.rint(chance.normal(0, deviation, counts.shape)).astype(np.int64), axis=1
        )
        * quantiles.WHOLE
    )
    return quantiles.places(sums, parts), sums[:, -1] > 0


def last_trigger(groups: int, profile: cProfile.Profile | None = None) -> tuple[float, float]:
    """(CPU seconds, GB with the state) of the tick that closes a window of so many listed groups with 20 values each."""
    before = resident("VmRSS")
    chance = np.random.default_rng(groups)
    start = 19_700 * DAY
    key = np.sort(chance.choice(1 << 40, groups, replace=False))
    size = 21 * groups
    listed = PublicGroups(tuple(key.tolist()), tuple(b"%d" % one for one in key), start)
    plan = window_plan(
        query(public_groups="SELECT page FROM pages", aggregates=(COUNT, QUARTILES)), source()
    )
    release = registry.mechanism_named("histogram").stages(plan, RunFacts(listed))[1]
    group = np.repeat(np.arange(groups), 21)
    leaf = chance.integers(1, LEAVES + 1, size) * (np.arange(size) % 21 > 0)
    table: dict[str, Any] = {name: np.zeros(size, np.int64) for name in release.takes.names}
    table |= {
        "window": np.full(size, start),
        "trigger": np.full(size, 24),
        "key": key[group],
        "leaf": leaf,
    }
    table |= {
        "key_bytes": pa.array(listed.key_bytes).take(pa.array(group)),
        "v0": np.where(leaf > 0, 0, 20),
        "v1": np.sign(leaf),
    }
    rows = pa.table(table).select(release.takes.names)
    state = release.step(release.empty(), rows, [Tick(0, start + DAY - 1)], bytes(32)).state
    none = rows.schema.empty_table()
    began = time.process_time()
    del rows, table, group, leaf
    Path("/proc/self/clear_refs").write_text("5")
    tick = [Tick(1, start + DAY)], bytes(32)
    shown = (profile.runcall if profile else lambda step, *given: step(*given))(
        release.step, state, none, *tick
    ).rows
    assert shown.num_rows == groups
    return time.process_time() - began, resident("VmHWM") - before


def resident(what: str) -> float:
    """GB of this process: now (VmRSS), or the most since it was asked to forget (VmHWM)."""
    return next(
        int(line.split()[1]) / 1e6
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(what)
    )


def windows() -> None:
    """Write costs and profile into docs/performance.md."""
    pa.set_cpu_count(1)
    lines = [
        f"{machine()}; one core.",
        "",
        "| groups | CPU-s | CPU-ms a group | memory, state included |",
        "|---|---|---|---|",
    ]
    last_trigger(1)
    for groups in (1_000, 10_000, 100_000):
        seconds, memory = last_trigger(groups)
        lines.append(
            f"| {groups:,} | {seconds:.1f} | {1e3 * seconds / groups:.2f} | {memory:.2f} GB |"
        )
    profile = cProfile.Profile()
    last_trigger(10_000, profile)
    spent = {
        name: most
        for (file, _, name), (_, _, _, most, _) in pstats.Stats(profile).stats.items()
        if "udfs" in file
    }  # type: ignore[attr-defined]
    whole = max(spent.values())
    lines += ["", "| function, with what it calls | share of 10,000 groups |", "|---|---|"]
    write(
        "window-quantiles",
        [*lines, *(f"| `{name}` | {spent[name] / whole:.0%} |" for name in PROFILED)],
        PERFORMANCE,
    )


def main() -> None:
    """Print the errors of both, and what the tree says of its own."""
    if sys.argv[1] == "windows":
        return windows()
    data = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    unit, value, ts = read(data / "online-retail")
    start = int(ts.min()) // DAY * DAY
    last = int((ts.max() - start) // DAY) + 1
    bounds = {"max_rows_contributed": 8, "max_rows_per_group": 8, "trigger_interval_us": DAY}
    plan = make_plan(
        plans.query(feed=plans.FEED, keys=(), aggregates=(DECILES,), **bounds),
        plans.source(start_us=start),
    )
    intake, release = stages(plan, PublicGroups((0,), (b"",), start))
    size = len(unit)
    table: dict[str, Any] = {
        "drop": np.zeros(2 * size, np.int8),
        "user": np.tile(mix(unit).view(np.int64), 2),
        "row": np.tile(np.arange(size), 2),
    }
    table |= {
        "seq": np.repeat([0, 1], size),
        "ts": np.concatenate([ts, ts + KEPT * DAY]),
        "key": np.zeros(2 * size, np.int64),
    }
    table |= {
        "kind": np.repeat(np.array([BEGIN, END], np.int8), size),
        "key_bytes": pa.array([b""] * (2 * size)),
        "a0": np.tile(value, 2),
    }
    added = intake.step(
        intake.empty(), pa.table(table).select(intake.takes.names), Clock(start, int(ts.max())), b""
    ).rows
    added = added.append_column("batch", pa.array(np.zeros(added.num_rows, np.int64)))
    counts = np.zeros((last + 1, LEAVES), np.int64)
    trigger, leaf, sign = (added.column(name).to_numpy() for name in ("trigger", "leaf", "v0"))
    counted = (leaf > 0) & (trigger <= last)
    np.add.at(counts, (trigger[counted], leaf[counted] - 1), sign[counted])
    counts = np.cumsum(counts, axis=0)
    looked = range(60, last + 1, 13)
    alone = int(((ts <= start + last * DAY) & (ts + KEPT * DAY > start + last * DAY)).sum())
    print(
        f"online-retail: {size:,} rows, {last} triggers; at the last {alone:,} rows are there, {int(counts[last].sum()):,} count"
    )
    (tree,), began = plan.trees, time.process_time()
    found = [
        release.step(
            release.empty(), added, [Tick(0, start + last * DAY)], number.to_bytes(32, "big")
        )
        for number in range(1, runs + 1)
    ]
    seconds = (time.process_time() - began) / runs / last
    errors = []
    levels = []
    said = []
    none = 0
    for number, run in enumerate(found):
        chance = np.random.default_rng(number)
        rows = {row["trigger"]: row for row in run.rows.to_pylist()}
        for now in looked:
            values = np.array([rows[now][f"c0_{k}"] for k in range(1, PARTS)])
            none += bool(np.isnan(values).any())
            if not np.isnan(values).any():
                errors.append(
                    rank_error(counts[now], np.rint(values / UPPER * LEAVES).astype(np.int64))
                )
                said.append(rows[now]["s0"])
            deviation = (
                tree.sigma / math.sqrt(quantiles.LEVELS) * math.sqrt(BltInf().path_variance(now))
            )
            levels.append(
                rank_error(counts[now], flat(counts[now][None], deviation, PARTS, chance)[0][0])
            )
    megabytes = found[0].state["nodes"].nbytes / 1e6
    print(
        f"  rank error against the rows that count: tree {np.mean(errors):.4f} (worst decile {np.mean(errors, axis=0).max():.4f}),",
        end=" ",
    )
    print(
        f"flat {np.mean(levels):.4f}, {np.mean(levels) / np.mean(errors):.1f} times as large; {none} of {len(levels)} were NULL"
    )
    print(
        f"  rank_stderr {np.mean(said):.4f}; {1e3 * seconds:.1f} ms of CPU a trigger and key, {megabytes:.2f} MB of noise state a key"
    )


if __name__ == "__main__":
    main()
