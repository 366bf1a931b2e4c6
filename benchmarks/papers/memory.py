"""What windows that prove keys together are worth: keys and errors at each window's end, with `carry_windows` and without, through the real steps.

    python benchmarks/papers/memory.py streams DATA [NAME ...]     # DATA/wikiticker/events.parquet, DATA/nasa-http-day/..., DATA/online-retail/...
    python benchmarks/papers/memory.py model [DAYS]  # 50,000 keys by Zipf(1.1), 200,000 units with 5 records a day; all at the last of 24 triggers

epsilon = 6, delta = 1e-9, C = 32, COUNT(*). A key that is not shown counts as 0, a negative release as 0. `false`: keys shown without a record. Means
over the second half of the windows and the noise seeds.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

import dpsql  # noqa: E402
from dpsql.local.record_reader import RowReader  # noqa: E402
from dpsql.mechanisms.histogram.plan import PrivacyPlan  # noqa: E402
from dpsql.mechanisms.histogram.planner import make_plan  # noqa: E402
from dpsql.mechanisms.histogram.stages import bounding_parameters, grid, release_parameters  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.columns import Float, Int  # noqa: E402
from dpsql.udfs.histogram.release import ReleaseState, release  # noqa: E402
from dpsql.udfs.intake.contribution_bounding import admit  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402

SEEDS = 5


@dataclass(frozen=True)
class Case:
    """A file, its windows and triggers, bounds, the share of key selection without memory, how many windows carry over, and its share with."""

    file: str
    window: str
    trigger: str
    bounds: str
    today: float
    windows: int
    share: float | None = None


CASES = {
    "wikiticker by hours": Case(
        "wikiticker", "1 hour", "15 minutes", "max_rows_per_group = 4", 0.7, 24
    ),
    "nasa-http-day by hours": Case(
        "nasa-http-day", "1 hour", "15 minutes", "max_rows_per_group = 4", 0.7, 12
    ),
    "online-retail by 28 days": Case(
        "online-retail", "28 days", "1 day", "max_rows_per_group = 1", 0.9, 13
    ),
    "online-retail by 28 days, share 0.9": Case(
        "online-retail", "28 days", "1 day", "max_rows_per_group = 1", 0.9, 13, 0.9
    ),
}


def plan_of(window: str, trigger: str, options: str, share: float | None = None) -> PrivacyPlan:
    source = Source(
        "records",
        "parquet",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=1_000_000,
        max_keys=1_000_000,
    )
    text = f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32,
        trigger_interval = '{trigger}', {options}) key, COUNT(*) AS n FROM records GROUP BY window(ts, '{window}'), key"""
    return make_plan(dpsql.compile(text, {"records": source}).parsed, source, share)


def plans(case: Case) -> tuple[PrivacyPlan, PrivacyPlan]:
    """Without memory, and with."""
    return (
        plan_of(case.window, case.trigger, case.bounds, case.today),
        plan_of(
            case.window, case.trigger, f"{case.bounds}, carry_windows = {case.windows}", case.share
        ),
    )


def noise_key(seed: int) -> bytes:
    return hashlib.sha256(b"memory, seed %d" % seed).digest()


def figures(truth: Int, key: Int, value: Int) -> tuple[float, float, float, float]:
    """Keys, l_1, l_2 and false ones of one window; truth by key."""
    shown = np.zeros(len(truth))
    shown[key] = np.maximum(value, 0)
    error = np.abs(shown - truth)
    return (
        float(len(key)),
        float(error.sum()),
        float(np.sqrt((error**2).sum())),
        float((truth[key] == 0).sum()),
    )


def stream(case: Case, data: Path, plan: PrivacyPlan) -> Float:
    """(seed, window, figure)."""
    source = Source("records", "parquet", event_time="ts", privacy_unit=("user_id",))
    file = data / case.file / "events.parquet"
    rows = pa.concat_tables(
        RowReader(plan, {"records": source}, bytes(16), {}).files([file])
    ).combine_chunks()
    cells = grid(plan)
    window = cells.latest_window(rows.column("ts").to_numpy())
    first = int(window.min())
    last = int(window.max())
    key, at, number = np.unique(
        rows.column("key").to_numpy(), return_index=True, return_inverse=True
    )
    place = {
        name: i for i, name in enumerate(rows.column("key_bytes").take(pa.array(at)).to_pylist())
    }
    truth = np.zeros(((last - first) // cells.slide_us + 1, len(key)), np.int64)
    np.add.at(truth, ((window - first) // cells.slide_us, number), 1)
    given = admit(None, rows, Clock(), bounding_parameters(plan)).contributions
    given = given.append_column("batch", pa.array(np.zeros(given.num_rows, np.int64)))
    out = []
    for seed in range(SEEDS):
        tick = Tick(0, last + cells.horizon * cells.trigger_us)
        found = release(None, given, [tick], release_parameters(plan), noise_key(seed)).rows
        ends = found.filter(pa.array(found.column("trigger").to_numpy() == cells.horizon))
        of = (ends.column("window").to_numpy() - first) // cells.slide_us
        keys = np.array([place[name] for name in ends.column("key_bytes").to_pylist()], np.int64)
        value = ends.column("c0").to_numpy()
        out.append([figures(truth[v], keys[of == v], value[of == v]) for v in range(len(truth))])
    return np.array(out)


def model(plan: PrivacyPlan, days: int, keys: int = 50_000) -> Float:
    """(1, day, figure): a stationary stream, day by day."""
    chance = np.random.default_rng(7)
    cells = grid(plan)
    rate = 1 / np.arange(1, keys + 1) ** 1.1
    rate = rate / rate.sum() * 1e6
    assert plan.selection
    weight = float(np.mean(plan.selection.weights[:5]))
    p = release_parameters(plan)
    state = None
    out = []
    for day in range(days):
        count = chance.poisson(rate)
        key = np.flatnonzero(count)
        state, found = _day(state, day * cells.slide_us, key, count[key], weight, plan, p)
        names = np.array([int(name) for name in found.column("key_bytes").to_pylist()], np.int64)
        out.append(figures(count, names, found.column("c0").to_numpy()))
    return np.array([out])


def _day(
    state: ReleaseState | None,
    window: int,
    key: Int,
    count: Int,
    weight: float,
    plan: PrivacyPlan,
    p: object,
) -> tuple[ReleaseState, pa.Table]:
    ones = np.ones(len(key), np.int64)
    columns = {
        "window": window * ones,
        "trigger": plan.horizon * ones,
        "key": key,
        "key_bytes": pa.array([b"%d" % k for k in key], pa.binary()),
    }
    sums = {
        "weight": np.rint(count * weight).astype(np.int64),
        "users": count,
        "v0": count,
        "batch": 0 * ones,
    }
    done = release(
        state, pa.table(columns | sums), [Tick(0, window + grid(plan).window_us)], p, noise_key(0)
    )  # type: ignore[arg-type]
    rows = done.rows
    return done.state, rows.filter(pa.array(rows.column("trigger").to_numpy() == plan.horizon))


def line(label: str, found: Float) -> str:
    means = found[:, found.shape[1] // 2 :].mean(axis=(0, 1))
    keys, l_1, l_2, false = means
    return f"| {label} | {keys:,.1f} | {l_1:,.0f} | {l_2:,.1f} | {false:.1f} |"


def main(arguments: list[str]) -> None:
    """Print the table."""
    print("| stream | keys | l_1 | l_2 | false |\n|---|---|---|---|---|")
    if arguments[0] == "model":
        days = int(arguments[1]) if len(arguments) > 1 else 28
        case = Case("", "1 day", "1 hour", "max_rows_per_group = 1", 0.7, 28)
        for label, plan in zip(("today", "28 windows"), plans(case), strict=True):
            start = time.process_time()
            found = model(plan, days)
            print(
                line(f"model, {label}, days {days // 2 + 1} to {days}", found),
                f" {time.process_time() - start:.0f} CPU-s",
                flush=True,
            )
            print(
                "  keys by day:",
                ", ".join(
                    f"{day + 1}: {found[0, day, 0]:,.0f}"
                    for day in range(days)
                    if day + 1 in (1, 2, 4, 7, 14, days)
                ),
            )
        return
    for name in arguments[2:] or CASES:
        case = CASES[name]
        for label, plan in zip(("today", f"{case.windows} windows"), plans(case), strict=True):
            print(line(f"{name}, {label}", stream(case, Path(arguments[1]), plan)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
