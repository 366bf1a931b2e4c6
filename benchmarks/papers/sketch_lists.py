"""Lists of the largest values: three public streams beside the histogram, and 26.6 million draws, through the product's own steps.

    python benchmarks/papers/sketch_lists.py real DATA [seeds]    # DATA/wikiticker/events.parquet, DATA/nasa-http-day/..., DATA/online-retail/...
    python benchmarks/papers/sketch_lists.py cells DATA [seeds]
    python benchmarks/papers/sketch_lists.py heavy [draws]
    python benchmarks/papers/sketch_lists.py state

`real`: epsilon 2, delta 1e-6, 24 triggers, at most one row of a unit per value, the local engine with fresh noise for each seed. Of the list at
the last trigger: precision and recall of the k largest bounded counts (k = 50, or half of the values), the average relative error (ARE) on the 15
largest, a missing value counted as 0.
`cells`: the same streams with 5 x 4,096 listed cells and C = 16: ARE with the one-cell rule, and with noise that covers C^2 in its place; of 200
values that are drawn by their rows, and of all values, how many intervals cover the truth.
`state`: bytes of both stages' state after ten thousand and ten million values.
`heavy`: a Zipf law of exponent 1.1 over 312,000 values, single events, epsilon 0.3, delta 1e-6, T = 100; k = 256. (The trace of the paper is not
public.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pyarrow as pa  # noqa: E402

import dpsql  # noqa: E402
from dpsql.mechanisms.sketch.plan import SketchChoices, SketchLimits, Wanted  # noqa: E402
from dpsql.mechanisms.sketch.planner import make_plan  # noqa: E402
from dpsql.mechanisms.sketch.stages import intake, reading, release  # noqa: E402
from dpsql.parsed_query import ContributionPeriod, ParsedQuery, PrivacyLevel, WindowSpec  # noqa: E402
from dpsql.privacy.secret import Secret  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.columns import Float, Int  # noqa: E402
from dpsql.udfs.keys import encode  # noqa: E402
from dpsql.udfs.sketch.estimates import estimate, margins  # noqa: E402
from dpsql.udfs.sketch.hashing import digest, digests  # noqa: E402
from dpsql.udfs.sketch.reading import ListedKeys, empty_state, read_release  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402

DAY = 86_400_000_000
K = 50
LARGEST = 15
ASKED = 200
LISTED = "SELECT value FROM listed"


@dataclass(frozen=True)
class Stream:
    """A file and the window that holds all of it."""

    name: str
    window: str
    size_us: int
    start: str


STREAMS = (
    Stream("nasa-http-day", "window(ts, '1 day')", DAY, "1995-08-01"),
    Stream("wikiticker", "window(ts, '1 day')", DAY, "2015-09-12"),
    Stream(
        "online-retail", "window(ts, '374 days', '374 days', '358 days')", 374 * DAY, "2010-12-01"
    ),
)


def bounded(events: pd.DataFrame, most: int) -> pd.Series:
    """Exact counts of every unit's first so many values in order of time, each once; the largest first, ties by value."""
    first = events.sort_values("ts", kind="stable").drop_duplicates(["user_id", "key"])
    counts = first[first.groupby("user_id").cumcount() < most]["key"].value_counts()
    return (
        counts.reset_index()
        .sort_values(["count", "key"], ascending=[False, True])
        .set_index("key")["count"]
    )


def judged(found: Mapping[str, float], truth: pd.Series, k: int) -> tuple[float, float, float]:
    """Precision and recall of the k largest, ARE of the 15 largest."""
    best = sorted(found, key=lambda key: (-found[key], key))[:k]
    right = len({*best} & {*truth.index[:k]})
    errors = [
        abs(found.get(key, 0.0) - count) / count for key, count in truth.iloc[:LARGEST].items()
    ]
    return right / max(len(best), 1), right / k, float(np.mean(errors))


def rows_of(
    stream: Stream, events: pd.DataFrame, selected: str, options: str, secret: Secret, keys: Path
) -> pd.DataFrame:
    """The newest trigger of a fresh run."""
    start = pd.Timestamp(stream.start, tz="UTC").value // 1000
    source = Source(
        stream.name,
        "parquet",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=100_000,
        max_keys=100_000,
        start_us=start,
    )
    listed = Source("listed", "parquet", path=str(keys), static=True)
    sql = f"""
        SELECT WITH DIFFERENTIAL_PRIVACY
          OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_per_group = 1,
                   trigger_interval = '{stream.size_us // 24} microseconds', {options})
          {selected} FROM `{stream.name}` GROUP BY {stream.window}{", key" if selected.startswith("key") else ""}
    """
    query = dpsql.compile(sql, {stream.name: source, "listed": listed})
    rows = dpsql.run_local(query, events, secret, until_us=start + stream.size_us)
    return rows[rows["trigger"] == 24]


def real(data: Path, seeds: int) -> None:
    """The table of three streams."""
    public = "public_groups = (SELECT key FROM listed), "
    with tempfile.TemporaryDirectory() as folder:
        for stream in STREAMS:
            secret = Secret.load(Path(folder) / stream.name / "secret")  # a ledger of its own
            events = pd.read_parquet(data / stream.name / "events.parquet")[
                ["user_id", "key", "ts"]
            ]
            keys = Path(folder) / f"{stream.name}.parquet"
            events[["key"]].drop_duplicates().to_parquet(keys)
            for most in (16, 1):
                truth = bounded(events, most)
                k = min(K, len(truth) // 2)
                rows = f"max_rows_contributed = {most}"
                wide = "sketch_width = 8192"
                cases = {
                    "histogram, unknown": ("key, COUNT(*) AS n", rows),
                    "sketch 9 x 8192, unknown": (
                        f"APPROX_TOP_COUNT(key, {k}) AS n",
                        f"{rows}, {wide}",
                    ),
                    "histogram, listed": ("key, COUNT(*) AS n", public + rows),
                    "sketch 9 x 8192, listed": (
                        f"APPROX_TOP_COUNT(key, {k}) AS n",
                        f"{public}{rows}, {wide}",
                    ),
                }
                print(
                    f"{stream.name}, C = {most}: {len(truth):,} values, k = {k}, the largest {truth.iloc[0]:,}, the last of k {truth.iloc[k - 1]:,}"
                )
                for name, (selected, options) in cases.items():
                    made = [
                        counted(rows_of(stream, events, selected, options, secret, keys))
                        for _ in range(seeds)
                    ]
                    p, r, are = np.mean([judged(each, truth, k) for each in made], axis=0)
                    print(
                        f"  {name:26s} precision {p:.2f}  recall {r:.2f}  ARE {are:.3f}", flush=True
                    )


def one_cell_rule(data: Path, seeds: int) -> None:
    """The rule leaves a unit's colliding values out of a row; without it one unit could move a cell by C, and the noise would have to cover d C^2."""
    most = 16
    depth = 5
    width = 4_096
    for stream in STREAMS:
        events = pd.read_parquet(data / stream.name / "events.parquet")[
            ["user_id", "key", "ts"]
        ].sort_values("ts", kind="stable")
        truth = bounded(events, most)
        asked = SketchChoices(
            level=PrivacyLevel.USER,
            value="key",
            wanted=(Wanted("top", 50),),
            depth=depth,
            width=width,
            bounds=SketchLimits(most, 1, most),
        )
        plan = make_plan(
            query(asked, LISTED, epsilon=2.0, triggers=24),
            Source(stream.name, "parquet", event_time="ts", privacy_unit=("user_id",)),
        )
        worst = dataclasses.replace(
            plan.cells[0],
            sigma=plan.cells[0].sigma * math.sqrt(most),
            sd=tuple(4 * sd for sd in plan.cells[0].sd),
        )
        users = np.unique(events["user_id"].to_numpy().astype(str), return_inverse=True)[1]
        keys = pa.array([encode([str(key).encode()]) for key in events["key"]], pa.binary())
        ts = np.sort(
            np.random.default_rng(0).choice(DAY, len(events), replace=False)
        )  # one window: the order is what counts
        rows = pa.table(
            {
                "drop": np.zeros(len(ts), np.int8),
                "user": users.astype(np.int64),
                "ts": ts,
                "key_bytes": keys,
            }
        )
        names = [encode([str(key).encode()]) for key in truth.index]
        for name, each in (
            ("one-cell rule", plan),
            ("C^2", dataclasses.replace(plan, cells=(worst,))),
        ):
            admission = intake(each, 0)
            closing = release(each, 0)
            errors = []
            covered = []
            done = admission.step(
                admission.empty(), rows.select(admission.takes.names), Clock(), bytes(32)
            ).rows
            for seed in range(seeds):
                given = done.append_column("batch", pa.array(np.zeros(done.num_rows, np.int64)))
                last = closing.step(
                    closing.empty(), given, [Tick(0, DAY)], hashlib.sha256(b"%d" % seed).digest()
                ).rows
                last = last.filter(pa.array(last.column("trigger").to_numpy() == 24)).sort_by("row")
                cells = np.stack(
                    [np.frombuffer(row, "<i8") for row in last.column("payload").to_pylist()]
                )
                of = reading(each).shape
                some = digests(pa.array([digest(one) for one in names], pa.binary(32)))
                found = estimate(
                    of,
                    of.scores(cells, of.fields(admission.parameters.hash_key(bytes(32), 0), some)),
                )
                counts = truth.to_numpy()
                errors.append(np.mean(np.abs(found - counts)[:LARGEST] / counts[:LARGEST]))
                (below, above), g = margins(of, cells), np.random.default_rng(seed)
                covers = (found - below <= counts) & (counts <= found + above)
                covered.append(
                    (
                        covers[g.choice(len(counts), ASKED, p=counts / counts.sum())].mean(),
                        covers.mean(),
                    )
                )
            by_rows, of_all = np.mean(covered, axis=0)
            print(
                f"{stream.name}: ARE {np.mean(errors):.3f} with {name}; intervals cover {by_rows:.3f} by rows, {of_all:.3f} of all",
                flush=True,
            )


def state_of(values: int) -> tuple[int, int]:
    """Bytes of state of intake and release after so many values of single events, of which none is listed."""
    asked = SketchChoices(
        level=PrivacyLevel.EVENT,
        value="source",
        wanted=(Wanted("cells", 0),),
        depth=9,
        width=8_192,
        bounds=None,
    )
    plan = make_plan(
        query(asked), Source("packets", "parquet", event_time="ts", max_keys=10_000_000)
    )
    admission = intake(plan, 0)
    closing = release(plan, 0)
    state = (admission.empty(), closing.empty())
    size = 1_000_000
    for batch, low in enumerate(range(0, values, size)):
        names = pa.array([b"%d" % i for i in range(low, min(values, low + size))], pa.binary())
        rows = pa.table(
            {
                "drop": np.zeros(len(names), np.int8),
                "ts": np.full(len(names), batch, np.int64),
                "key_bytes": names,
            }
        )
        taken = admission.step(state[0], rows.select(admission.takes.names), Clock(), bytes(32))
        given = taken.rows.append_column("batch", pa.array(np.full(taken.rows.num_rows, batch)))
        last = low + size >= values  # half of the window is closed: its cells are open, with noise
        closed = closing.step(state[1], given, [Tick(batch, DAY // 2)] if last else [], bytes(32))
        state = (taken.state, closed.state)
    first, second = (sum(table.nbytes for table in tables.values()) for tables in state)
    return first, second


def counted(rows: pd.DataFrame) -> dict[str, float]:
    """Value -> count of a histogram or of a list."""
    if "key" in rows.columns:
        return dict(zip(rows["key"].astype(str), rows["n"].astype(float), strict=True))
    return {str(each["value"]): float(each["count"]) for each in rows["n"].iloc[0]}


def heavy(draws: int, values: int = 312_000, skew: float = 1.1, k: int = 256) -> None:
    """Lists of single events: 9 x 16,384 with listed values, 17 x 8,192 with unknown ones."""
    weights = np.arange(1, values + 1.0) ** -skew
    g = np.random.default_rng(3)
    counts = g.multinomial(draws, weights / weights.sum())
    truth = np.argsort(-counts, kind="stable")
    names = pa.array([b"%d" % i for i in range(values)], pa.binary())
    stream = g.permutation(np.repeat(np.arange(values, dtype=np.int32), counts))
    for depth, width, groups in ((9, 16_384, LISTED), (17, 8_192, None)):
        asked = SketchChoices(
            level=PrivacyLevel.EVENT,
            value="source",
            wanted=(Wanted("top", 2_000),),
            depth=depth,
            width=width,
            bounds=None,
        )
        plan = make_plan(
            query(asked, groups), Source("packets", "parquet", event_time="ts", max_keys=1_000_000)
        )
        admission = intake(plan, 0)
        closing = release(plan, 0)
        parts = []
        size = 1_000_000
        for batch, low in enumerate(range(0, draws, size)):
            some = stream[low : low + size]
            ts = (low + np.arange(len(some))) * (DAY // draws)
            rows = pa.table(
                {
                    "drop": pa.array(np.zeros(len(some), np.int8)),
                    "ts": ts,
                    "key_bytes": names.take(pa.array(some)),
                }
            )
            done = admission.step({}, rows.select(admission.takes.names), Clock(), bytes(32)).rows
            parts.append(done.append_column("batch", pa.array(np.full(done.num_rows, batch))))
        noise_key = hashlib.sha256(b"heavy %d" % depth).digest()
        last = closing.step(
            closing.empty(), pa.concat_tables(parts), [Tick(len(parts), DAY)], noise_key
        ).rows
        last = last.filter(
            pa.array(
                (last.column("trigger").to_numpy() == 100) | (last.column("kind").to_numpy() != 0)
            )
        )
        listed = None
        if groups:
            words = digests(
                pa.array([digest(name) for name in names.to_pylist()], pa.binary(32))
            ).tolist()
            listed = ListedKeys(
                tuple((a, b, c, d) for a, b, c, d in words), tuple(names.to_pylist())
            )
        p = reading(plan, listed)
        shown = read_release(empty_state(), last, p, bytes(32))
        found = [int(name) for name in shown.lists.column("key_bytes").to_pylist()]
        best = {*truth[:k].tolist()}
        recall = len(best & {*found}) / k
        print(
            f"{depth} x {width:,}{' listed' if groups else ''}: {len(found):,} listed; of the {k} largest {recall:.3f} listed, "
            f"first {k}: {len(best & {*found[:k]}) / k:.3f}"
        )
        coverage(p, shown.sketches, names, counts)


def coverage(p: object, sketches: pa.Table, names: pa.Array, counts: Int) -> None:
    """Of values named before looking: by what was brought, and uniformly."""
    last = sketches.filter(pa.array(sketches.column("trigger").to_numpy() == 100)).sort_by("row")
    cells = np.stack([np.frombuffer(row, "<i8") for row in last.column("cells").to_pylist()])
    shape, g = p.shape, np.random.default_rng(11)  # type: ignore[attr-defined]
    below, above = margins(shape, cells)
    pick: Mapping[str, Callable[[], Int]] = {
        "by records": lambda: g.choice(len(counts), 5_000, replace=False, p=counts / counts.sum()),
        "of all values": lambda: g.integers(0, len(counts), 20_000),
    }
    for name, drawn in pick.items():
        at = drawn()
        some = digests(
            pa.array([digest(one) for one in names.take(pa.array(at)).to_pylist()], pa.binary(32))
        )
        found: Float = estimate(
            shape, shape.scores(cells, shape.fields(last.column("hash_key")[0].as_py(), some))
        )
        covers = (found - below <= counts[at]) & (counts[at] <= found + above)
        print(f"  intervals of values drawn {name}: {covers.mean():.4f} cover")


def query(
    asked: SketchChoices, groups: str | None = None, epsilon: float = 0.3, triggers: int = 100
) -> ParsedQuery[SketchChoices]:
    """One day."""
    return ParsedQuery(
        mechanism="sketch",
        epsilon=epsilon,
        delta=1e-6,
        privacy_unit=("user_id",) if asked.bounds else (),
        contribution_period=ContributionPeriod.WINDOW,
        event_time="ts",
        window=WindowSpec(DAY, DAY, 0),
        trigger_interval_us=DAY // triggers,
        allowed_lateness_us=0,
        max_ahead_us=DAY,
        public_groups=groups,
        keys=(),
        aggregates=(),
        from_sql="FROM packets",
        stream="packets",
        static_sources=(),
        columns_in_order=("top",),
        asked=asked,
    )


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "real":
        real(Path(rest[0]), int((rest[1:] or ["5"])[0]))
    elif what == "cells":
        one_cell_rule(Path(rest[0]), int((rest[1:] or ["5"])[0]))
    elif what == "state":
        for values in (10_000, 10_000_000):
            print(
                f"{values:,} values: {state_of(values)} bytes of state (intake, release)",
                flush=True,
            )
    else:
        heavy(int((rest or ["26600000"])[0]))


if __name__ == "__main__":
    main()
