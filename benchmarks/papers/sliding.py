"""Sliding windows on models of the streams that Retroactive Grouping was published with, by the product's own steps.

    python benchmarks/papers/sliding.py [montreal | worldcup | FILE.parquet:pane seconds:bins] [epsilon] [noise keys]
    python benchmarks/papers/sliding.py --figures [STREAM ...]     writes docs/figures/sliding-STREAM.svg, of both models unless others are named
    python benchmarks/papers/sliding.py --state [BINS [PANES [WAY]]]     bytes of state after 100 and 5,000 panes, time of a pane; 40 minutes for 88,762 bins
    python benchmarks/papers/sliding.py --times [EVENTS [BINS]]     CPU time of a pane by its events and by its bins, intake and release
    python benchmarks/papers/sliding.py --window-sqrt   standard errors of WINDOW_SQRT, up to pane 100,000

Squared error of a released histogram (mean over panes; w = 15, first windows as partial sums) as a share of that of PANES. The models are
generated, not the paper's data: `montreal` has the paper's 342 stations and 504 panes of 20 minutes, `worldcup` a weighted sample of
88,762 URLs over 528 panes of 4 hours. A file has columns key and ts; its most frequent keys are the bins. Data seed 20150912, noise keys 1..n.
Other mechanisms: `benchmarks/papers/sliding_rivals.py`.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import dpsql  # noqa: E402
from benchmarks.charts import Line, Panel, draw  # noqa: E402
from benchmarks.papers.sliding_rivals import RIVALS, error  # noqa: E402
from dpsql.mechanisms.sliding.planner import make_plan  # noqa: E402
from dpsql.mechanisms.sliding.stages import measurements, stages  # noqa: E402
from dpsql.parsed_query import changed  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.keys import PublicGroups  # noqa: E402
from dpsql.udfs.measure.output_columns import OutputColumn  # noqa: E402
from dpsql.udfs.noise.window_sqrt import coefficients, response  # noqa: E402
from dpsql.udfs.sliding.panes import Measurement, PaneCells, Panes, new_bins  # noqa: E402
from dpsql.udfs.sliding.release import SlidingParameters, release_windows  # noqa: E402
from dpsql.udfs.stage import RELEASE, Clock, Stage, Tick  # noqa: E402
from tests.mechanisms.sliding.queries import SOURCE, SQRT, windows  # noqa: E402

SEED = 20150912
W = 15
SQL = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {}, delta = 0, privacy_level = EVENT, public_groups = (SELECT channel FROM channels){})
      channel, COUNT(*) AS edits
    FROM wiki GROUP BY window(ts, '{} minutes', '1 minute'), channel
"""
SOURCES = {"wiki": SOURCE, "channels": Source("channels", "parquet", path="channels", static=True)}
SLIDE_US = 60_000_000


def montreal(panes: int = 504, bins: int = 342, total: int = 8_107_643) -> np.ndarray:
    """A week of a transit network: service from 5:30 to 1:00, two peaks on working days, stations between home and work."""
    g = np.random.default_rng(SEED)
    size = np.exp(g.normal(0, 1.0, bins))
    work = g.beta(0.7, 0.7, bins)
    t = np.arange(panes)
    hour = (t % 72) / 3.0
    day = t // 72

    def peak(centre: float, width: float) -> np.ndarray:
        return np.exp(-0.5 * ((hour - centre) / width) ** 2)[:, None]

    service = ((hour >= 5.5) | (hour < 1.0)).astype(float)
    workday = (
        peak(8, 1.0) * (1.6 * (1 - work) + 0.3)
        + peak(17, 1.3) * (1.6 * work + 0.5)
        + 0.35 * peak(13, 4)
        + 0.15 * peak(22, 2)
    )
    weekend = 0.45 * peak(13, 4) + 0.2 * peak(22, 2)
    rate = np.where((day < 5)[:, None], workday, weekend) * service[:, None] * size
    rate *= np.exp(g.normal(0, 0.10, rate.shape))
    return g.poisson(rate * total / rate.sum())


def worldcup(panes: int = 528, bins: int = 88_762, total: int = 1_352_804_107) -> np.ndarray:
    """88 days of a web site: few URLs with most requests, growing towards the matches, day and night, bursts, URLs that come and go."""
    g = np.random.default_rng(SEED)
    popularity = 1.0 / (np.arange(1, bins + 1) + 20.0) ** 1.35
    t = np.arange(panes)
    day = t / 6.0
    volume = (
        0.05
        + 0.25 / (1 + np.exp(-(day - 38) / 4))
        + np.where((day > 42) & (day < 78), 0.7 * np.exp(-(((day - 60) / 16) ** 2)), 0)
    )
    volume = volume * np.array([0.35, 0.4, 0.9, 1.6, 1.7, 1.05])[t % 6]
    volume = volume * np.where((day > 42) & (t % 6 >= 3), np.exp(g.normal(0, 0.45, panes)), 1.0)
    start = np.where(g.random(bins) < 0.5, 0, g.integers(0, 500, bins))
    length = np.where(g.random(bins) < 0.5, panes, g.geometric(1 / 80, bins))
    start[:100], length[:100] = 0, panes
    x = np.empty((panes, bins), np.float32)
    level = g.normal(0, 0.5, bins).astype(np.float32)
    for i in range(panes):
        level = 0.9 * level + np.sqrt(1 - 0.81) * 0.5 * g.normal(size=bins).astype(np.float32)
        x[i] = volume[i] * popularity * ((i >= start) & (i < start + length)) * np.exp(level)
    scale = total / sum(float(row.sum()) for row in x)
    for i in range(panes):
        x[i] = g.poisson(x[i] * scale)
    return x


def of_file(path: str, seconds: int, bins: int) -> np.ndarray:
    """Counts of the most frequent keys of a Parquet file."""
    table = pq.read_table(path, columns=["key", "ts"]).drop_null()
    pane = table["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() // (seconds * 1_000_000)
    names, number, often = np.unique(
        table["key"].to_numpy(zero_copy_only=False).astype(str),
        return_inverse=True,
        return_counts=True,
    )
    place = np.full(len(names), -1)
    kept = np.argsort(-often, kind="stable")[:bins]
    place[kept] = np.arange(len(kept))
    x = np.zeros((int(pane.max() - pane.min()) + 1, len(kept)), np.int64)
    inside = place[number] >= 0
    np.add.at(x, (pane[inside] - pane.min(), place[number][inside]), 1)
    return x


def stream(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(panes, bins) of counts, and how many bins each stands for."""
    if ":" in name:
        path, seconds, bins = name.rsplit(":", 2)
        x = of_file(path, int(seconds), int(bins))
        return x, np.ones(x.shape[1])
    if name == "montreal":
        x = montreal()
        return x, np.ones(x.shape[1])
    x = worldcup()
    kept = np.unique(np.concatenate([np.arange(500), np.arange(500, x.shape[1], 40)]))
    return x[:, kept].astype(np.int64), np.where(kept < 500, 1.0, 40.0)


def ways(epsilon: float, w: int = W) -> dict[str, Measurement]:
    """Our measurement and the paper's for one COUNT at level EVENT."""
    asked = {"PANES": "", "RETROACTIVE, the paper's": ", mechanism = PAPER"}
    return {
        name: measurements(dpsql.compile(SQL.format(epsilon, more, w), SOURCES).plan)[0]
        for name, more in asked.items()
    }


def errors(m: Measurement, x: np.ndarray, weights: np.ndarray, seed: int, w: int = W) -> np.ndarray:
    """Squared errors of the sums, of the sums clipped at 0, of the smoothed sums (NaN: none), mean over panes."""
    key = hashlib.sha256(b"sliding %d" % seed).digest()
    ids = np.arange(x.shape[1]) * 7919 + 1
    bins = new_bins(m.columns, x.shape[1])
    true = np.zeros(x.shape[1])
    found = np.zeros(3)
    for pane, exact in enumerate(x):
        true += exact - (x[pane - w] if pane >= w else 0)
        window = m.close(
            bins, exact.astype(np.int64), pane, PaneCells(key, ids, pane * SLIDE_US, SLIDE_US, 1)
        )
        smoothed = np.full(len(true), np.nan) if window.smoothed is None else window.smoothed
        found += [
            float(np.sum(weights * (shown - true) ** 2))
            for shown in (window.value, np.maximum(window.value, 0), smoothed)
        ]
    return found / len(x)


def table(name: str, epsilon: float, keys: int) -> None:
    """One line per way to measure."""
    x, weights = stream(name)
    print(
        f"{name}: {x.shape[0]} panes, {x.shape[1]} bins for {weights.sum():.0f}, epsilon {epsilon:g}, {keys} noise keys"
    )
    print("| | sums | clipped at 0 | smoothed | ms a pane |\n|---|---|---|---|---|")
    base = 0.0
    for label, m in ways(epsilon).items():
        began = time.process_time()
        found = np.mean([errors(m, x, weights, seed) for seed in range(1, keys + 1)], axis=0)
        spent = (time.process_time() - began) / keys / len(x) * 1e3
        base = base or float(found[0])
        print(
            f"| {label} | "
            + " | ".join("" if np.isnan(v) else f"{v / base:.3f}" for v in found)
            + f" | {spent:.1f} |",
            flush=True,
        )
    for rival in RIVALS:
        each = [
            error(rival, x, weights, epsilon, W, seed)
            for seed in range(1, 2 if rival == "all 0" else keys + 1)
        ]
        print(f"| {rival} | {float(np.mean(each)) / base:.4g} | | | |", flush=True)


CURVES = {
    "PANES": ("PANES", 0),
    "PANES, smoothed": ("PANES", 2),
    "the paper's RG": ("RETROACTIVE, the paper's", 0),
}
OTHERS = {"BA": "BA", "FAST, drift 1": "FAST, drift 1", "PeGaSus": "PeGaSus"}


def panel(
    title: str,
    label: str,
    x: np.ndarray,
    weights: np.ndarray,
    points: Sequence[tuple[float, float, int, int]],
) -> Panel:
    """Root mean squared error of a bin's window along (place on the axis, epsilon, w, panes)."""
    lines: dict[str, list[float]] = {name: [] for name in (*CURVES, *OTHERS)}
    for _, epsilon, w, panes in points:
        part = x[:panes]
        found = ways(epsilon, w)
        of = {way: errors(m, part, weights, 1, w) for way, m in found.items()}
        for name, (way, column) in CURVES.items():
            lines[name].append(float(np.sqrt(of[way][column] / weights.sum())))
        for name, rival in OTHERS.items():
            lines[name].append(
                float(np.sqrt(error(rival, part, weights, epsilon, w, 1) / weights.sum()))
            )
        print(f"{title}, {label}: epsilon {epsilon:g}, w {w}, {panes} panes", flush=True)
    curves = [Line(name, [point[0] for point in points], y) for name, y in lines.items()]
    return Panel(
        title,
        label,
        "root mean squared error of a count",
        curves,
        log=True,
        log_x=label == "epsilon",
    )


def figures(folder: Path = Path(__file__).parents[2] / "docs" / "figures") -> None:
    """The paper's figures 3 to 5: error against epsilon, against panes of a window, against panes of the stream."""
    for asked in sys.argv[2:] or ("montreal", "worldcup"):
        x, weights = stream(asked)
        panes = len(x)
        file = Path(asked.split(":")[0])
        name = file.parent.name or file.stem
        axes: dict[str, list[tuple[float, float, int, int]]] = {
            "epsilon": [
                (epsilon, epsilon, W, panes) for epsilon in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
            ],
            "panes of a window (epsilon 0.1)": [
                (float(w), 0.1, w, panes) for w in (5, 10, 15, 20, 25, 30)
            ],
            "panes of the stream (epsilon 0.1)": [
                (float(n), 0.1, W, n)
                for n in (*(n for n in (100, 200, 300, 400) if n < panes), panes)
            ],
        }
        draw(
            folder / f"sliding-{name}.svg",
            [panel(name, label, x, weights, points) for label, points in axes.items()],
        )


def state() -> None:
    """State of 88,762 bins: Arrow bytes, and as a state file, after 100 and 5,000 panes; CPU time of a pane by the whole release step."""
    given = [int(argument) for argument in sys.argv[2:4]]
    bins, panes = given + [88_762, 5_000][len(given) :]
    early = min(100, panes // 2)
    x = worldcup(panes=100, bins=bins)
    print(
        f"| | bytes of a bin, {early} panes | {panes:,} panes | file, {early} panes | {panes:,} panes | ms a pane |\n|---|---|---|---|---|---|"
    )
    sqrt = changed(windows(SQRT, W), epsilon=0.1)
    of = {**ways(0.1), "WINDOW_SQRT": measurements(make_plan(sqrt, SOURCE))[0]}
    of = {label: of[label] for label in sys.argv[4:5] or of}
    for label, m in of.items():
        grown = run_for(m, x, panes, early)
        sizes = [(kept.nbytes / x.shape[1], file_size(kept)) for kept, _ in grown]
        cells = [
            f"{sizes[0][0]:.0f}",
            f"{sizes[1][0]:.0f}",
            f"{sizes[0][1] / 1e3:,.0f} kB",
            f"{sizes[1][1] / 1e3:,.0f} kB",
        ]
        print(f"| {label} | " + " | ".join(cells) + f" | {grown[1][1]:.0f} |", flush=True)


def run_for(m: Measurement, x: np.ndarray, panes: int, marks: int) -> list[tuple[pa.Table, float]]:
    """The bins after `marks` and after all panes, through the release step, with the mean CPU time of a pane in ms; x is repeated."""
    bins = x.shape[1]
    names = tuple(b"%08d" % i for i in range(bins))
    p = SlidingParameters(
        Panes(SLIDE_US, W, 0),
        (m,),
        (0,),
        (OutputColumn("count", (0,), (1.0,), ()),),
        tuple(range(bins)),
        names,
    )
    kept = None
    out = list[tuple[pa.Table, float]]()
    began = time.process_time()
    done = 0
    for pane in range(panes):
        key = np.flatnonzero(x[pane % len(x)])
        rows = {
            "window": np.full(len(key), pane * SLIDE_US),
            "key": key,
            "v0": x[pane % len(x)][key].astype(np.int64),
        }
        rows["batch"] = np.full(len(key), pane)
        kept = release_windows(
            kept, pa.table(rows), [Tick(pane, (pane + 1) * SLIDE_US)], p, bytes(range(32))
        ).state
        done += 1
        if pane + 1 in (marks, panes):
            out.append((kept.bins, (time.process_time() - began) / done * 1e3))
            began = time.process_time()
            done = 0
    return out


def times() -> None:
    """CPU time of a pane through both steps: with more events, then with more bins. The median of the panes after the first window."""
    given = [int(argument) for argument in sys.argv[2:4]]
    most_events, most_bins = given + [1_000_000, 1_000_000][len(given) :]
    loads = [(n, most_bins // 100) for n in _tens(most_events)]
    loads += [(most_events // 10, n) for n in _tens(most_bins)]
    print("| events of a pane | bins | way | intake, ms | release, ms |\n|---|---|---|---|---|")
    for events, bins in loads:
        public = PublicGroups(tuple(range(bins)), tuple(b"%08d" % i for i in range(bins)), 0)
        sqrt = SQL.format(0.1, "", W).replace("delta = 0,", "delta = 1e-9,")
        for label, sql in (
            ("PANES", SQL.format(0.1, "", W)),
            ("RETROACTIVE, the paper's", SQL.format(0.1, ", mechanism = PAPER", W)),
            ("WINDOW_SQRT", sqrt),
        ):
            plan = dpsql.compile(sql, SOURCES).plan
            taken = list(_panes(*stages(plan, public), events, bins))
            intake, release = np.median(taken[W:], axis=0)
            print(f"| {events:,} | {bins:,} | {label} | {intake:.1f} | {release:.1f} |", flush=True)


def _panes(
    intake: Stage[Clock], release: Stage[Sequence[Tick]], events: int, bins: int
) -> Iterator[tuple[float, float]]:
    """CPU milliseconds of intake and release, pane by pane; bins are equally likely."""
    state = release.empty()
    for pane in range(W + 5):
        chance = np.random.default_rng([SEED, pane])
        columns = {
            "drop": np.zeros(events, np.int8),
            "ts": pane * SLIDE_US + chance.integers(0, SLIDE_US, events),
            "key": chance.integers(0, bins, events),
            "key_bytes": pa.array([b""] * events, pa.binary()),
        }
        records = pa.table(columns).select(intake.takes.names)
        began = time.process_time()
        sums = intake.step({}, records, Clock(pane * SLIDE_US), b"").rows
        admitted = time.process_time()
        rows = sums.append_column("batch", pa.array(np.full(len(sums), pane)))
        ticks = [Tick(pane, (pane + 1) * SLIDE_US)]
        state = release.step(state, rows.select(release.takes.names), ticks, bytes(range(32))).state
        yield 1e3 * (admitted - began), 1e3 * (time.process_time() - admitted)


def _tens(most: int) -> list[int]:
    return [most // 100, most // 10, most]


def file_size(bins: pa.Table) -> int:
    """Bytes of a state file, as a run writes it."""
    with tempfile.TemporaryDirectory() as folder:
        return BucketFiles(folder, RELEASE, 1, 1, ("bins",)).store(0, 1, {"bins": bins})[0]


def window_sqrt() -> None:
    """Standard error of a window per unit of 1 / mu, by pane; and the largest deviation from the last one from some panes on."""
    print(
        "| panes of a window | at pane 100,000 | from pane 100 on | 200 | 400 |\n|---|---|---|---|---|"
    )
    for w in (15, 60):
        c = np.array(coefficients(w))
        long = np.zeros(100_001)
        b = response(w, coefficients(w)).window
        long[: min(len(b), len(long))] = b[: len(long)]
        sd = np.linalg.norm(c) * np.sqrt(np.cumsum(long**2))
        off = [
            f"{100 * float(np.max(np.abs(sd[begin:] / sd[-1] - 1))):.2f}%"
            for begin in (100, 200, 400)
        ]
        print(f"| {w} | {sd[-1]:.4f} | " + " | ".join(off) + " |")


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else "montreal"
    commands = {
        "--figures": figures,
        "--state": state,
        "--times": times,
        "--window-sqrt": window_sqrt,
    }
    if asked in commands:
        commands[asked]()
        return
    table(
        asked,
        float(sys.argv[2]) if len(sys.argv) > 2 else 0.1,
        int(sys.argv[3]) if len(sys.argv) > 3 else 1,
    )


if __name__ == "__main__":
    main()
