"""The sketches of LazySketch (arXiv 2507.03361) with the paper's own calibration, beside ours: same stream, same epsilon and delta.

    python benchmarks/papers/lazysketch.py [figures [seeds]]    # the table in docs/accuracy.md
    python benchmarks/papers/lazysketch.py lists [draws]        # printed: lists of heavy values, by memory and epsilon
    python benchmarks/papers/lazysketch.py throughput           # the table in docs/performance.md; needs a C compiler

`figures`: average relative error (ARE) on the 15 largest of 2^20 Zipf draws over 2^20 values, in the settings of the paper's figures (b) to (f):
delta 1e-3, d = 3. The paper's algorithms in numpy, by the law of their counters' noise at the end of the stream; widths of 24 KB are 2000, 55 and
33 columns, others in proportion. Ours: level EVENT, T = 100, the planner's noise, the product's hashing and estimates, and the widest power of two
whose cells (40 bytes each) fit; the paper protects replaced events, ours added or removed ones. `lists`: Zipf draws (exponent 1.1) of 312,000 values that
everybody knows, 26.6 million of them, delta 1e-6, d = 5. Heavy are the 256 largest; a list has all values whose estimate reaches the smallest of them.
ARE is of the 256, with their estimates. `throughput`: millions of records per CPU-second by
width, d = 3: the paper's algorithms in C with 64-bit numbers for values, and the product's intake of events with encoded values, without Spark.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.page import PERFORMANCE, write  # noqa: E402
from dpsql.mechanisms.sketch.plan import SketchChoices, SketchPlan, Wanted  # noqa: E402
from dpsql.mechanisms.sketch.planner import make_plan  # noqa: E402
from dpsql.mechanisms.sketch.stages import intake, shape  # noqa: E402
from dpsql.parsed_query import ContributionPeriod, ParsedQuery, PrivacyLevel, WindowSpec  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.sketch.estimates import estimate, joint  # noqa: E402
from dpsql.udfs.sketch.hashing import CellShape  # noqa: E402
from dpsql.udfs.stage import Clock  # noqa: E402

UPDATES = UNIVERSE = 1 << 20
DELTA = 1e-3
TOP = 15
TRIGGERS = 100
CELL_BYTES = 40
COLUMNS = {"": 2000, "Lazy": 55, "Punctual": 33}
"""Of the paper at 24 KB and d = 3."""
ROOT = bytes(32)
DAY_US = 86_400_000_000
GRID = [
    *(("(b) memory", 1.3, 0.3, kb, 3) for kb in (12, 24, 48, 192)),
    *(("(c) depth", 1.3, 0.3, 8 * d, d) for d in (3, 5, 9)),
    *(("(d) skew", skew, 0.3, 24, 3) for skew in (1.1, 2.1)),
    *(("(e) epsilon", 1.1, epsilon, 24, 3) for epsilon in (0.1, 1.0)),
    *(("(f) epsilon", 2.1, epsilon, 24, 3) for epsilon in (0.1, 1.0)),
]


def stream(skew: float, seed: int, updates: int = UPDATES, universe: int = UNIVERSE) -> np.ndarray:
    """Values in order of arrival."""
    weights = np.arange(1, universe + 1.0) ** -skew
    return np.searchsorted(
        np.cumsum(weights / weights.sum()),
        np.random.default_rng([seed, int(skew * 100)]).random(updates),
    ).clip(0, universe - 1)


def paper(
    x: np.ndarray,
    top: np.ndarray,
    kind: str,
    signed: bool,
    width: int,
    depth: int,
    epsilon: float,
    g: np.random.Generator,
    universe: int = UNIVERSE,
    delta: float = DELTA,
) -> np.ndarray:
    """Estimates of the largest values by CMS, CS (kind ""), or their Lazy or Punctual versions."""
    updates = len(x)
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    rows = []
    for _ in range(depth):
        at = g.integers(0, width, universe)
        sign = g.choice([-1.0, 1.0], universe) if signed else np.ones(universe)
        cells = at[x]
        if (
            kind == "Lazy"
        ):  # column j is pushed at arrivals j, j + w, ..; what comes after its last push is not published
            pushes = (updates - np.arange(width)) // width + (np.arange(width) > 0)
            last = np.arange(width) + width * (pushes - (np.arange(width) > 0))
            kept = np.arange(1, updates + 1) <= last[cells]
            noise = np.array([int(p).bit_count() for p in pushes])
            levels = (-(-updates // width)).bit_length()
        else:
            kept = np.ones(updates, bool)
            noise = np.full(width, (updates - 1).bit_count())
            levels = updates.bit_length()
        table = np.bincount(cells[kept], weights=sign[x[kept]], minlength=width)
        if kind:
            table = table + g.normal(size=width) * sigma * np.sqrt(levels * 2 * depth) * np.sqrt(
                noise
            )
        rows.append(table[at[top]] * sign[top])
    return np.median(rows, axis=0) if signed else np.min(rows, axis=0)


def plan_of(epsilon: float, depth: int, width: int, delta: float = DELTA) -> SketchPlan:
    """One window with the stream in it."""
    asked = SketchChoices(
        level=PrivacyLevel.EVENT, value="x", wanted=(Wanted("n", 0),), depth=depth, width=width
    )
    query = ParsedQuery(
        mechanism="sketch",
        epsilon=epsilon,
        delta=delta,
        privacy_unit=(),
        contribution_period=ContributionPeriod.WINDOW,
        event_time="ts",
        window=WindowSpec(DAY_US, DAY_US, 0),
        trigger_interval_us=DAY_US // TRIGGERS,
        allowed_lateness_us=0,
        max_ahead_us=DAY_US,
        public_groups=None,
        keys=(),
        aggregates=(),
        from_sql="FROM s",
        stream="s",
        static_sources=(),
        columns_in_order=("n",),
        asked=asked,
    )
    return make_plan(query, Source("s", "parquet"))


def our_cells(
    counts: np.ndarray, epsilon: float, kb: float, depth: int, g: np.random.Generator, delta: float
) -> tuple[CellShape, np.ndarray, np.ndarray]:
    """The shape, its noisy cells at the last trigger, and where the values with these counts are."""
    width = 1 << int(math.log2(kb * 1000 / (CELL_BYTES * depth)))
    plan = plan_of(epsilon, depth, width, delta)
    of = shape(plan)
    fields = of.fields(ROOT[:16], g.integers(-(1 << 63), 1 << 63, (len(counts), 4)))
    noise = np.rint(g.normal(0, plan.cells[0].sd[-1], (depth, width))).astype(np.int64)
    cells = noise + np.stack([of.sums(fields[row], counts) for row in range(depth)])
    return of, cells, fields


def ours(
    counts: np.ndarray,
    top: np.ndarray,
    epsilon: float,
    kb: float,
    depth: int,
    g: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of the largest values: each by itself, and together with the 256 largest."""
    present = np.flatnonzero(counts)
    of, cells, fields = our_cells(counts[present], epsilon, kb, depth, g, DELTA)
    width = cells.shape[1]
    best = np.searchsorted(present, np.argsort(-counts, kind="stable")[: min(256, width // 2)])
    return estimate(of, of.scores(cells, fields[:, best[: len(top)]])).astype(float), joint(
        of, cells, fields[:, best]
    )[: len(top)]


def figures(seeds: int) -> list[str]:
    """Lines of the table of docs/accuracy.md."""
    names = [
        "CMS",
        "CS",
        "LazyCMS",
        "LazyCS",
        "PunctualCMS",
        "PunctualCS",
        "ours, median",
        "ours, joint",
    ]
    lines = [
        "| figure | skew | epsilon | KB | d | " + " | ".join(names) + " |",
        "|" + "---|" * (5 + len(names)),
    ]
    for title, skew, epsilon, kb, depth in GRID:
        found = []
        for seed in range(seeds):
            g = np.random.default_rng([seed, 7])
            x = stream(skew, seed)
            counts = np.bincount(x, minlength=UNIVERSE)
            top = np.argsort(-counts, kind="stable")[:TOP]
            each = [
                paper(
                    x,
                    top,
                    kind,
                    signed,
                    max(2, round(columns * kb / 24 * 3 / depth)),
                    depth,
                    epsilon,
                    g,
                )
                for kind, columns in COLUMNS.items()
                for signed in (False, True)
            ]
            each += ours(counts, top, epsilon, kb, depth, g)
            found.append([np.mean(np.abs(e - counts[top]) / counts[top]) for e in each])
        lines.append(
            f"| {title} | {skew} | {epsilon} | {kb} | {depth} | "
            + " | ".join(f"{v:.4f}" for v in np.mean(found, axis=0))
            + " |"
        )
    return lines


HEAVY = 256
KNOWN_VALUES = 312_000
HEAVY_DELTA = 1e-6
HEAVY_DEPTH = 5


def lists(updates: int) -> list[str]:
    """Lines of a table: what is heavy, by LazyCS and by ours, at equal memory."""
    x = stream(1.1, 3, updates, KNOWN_VALUES)
    counts = np.bincount(x, minlength=KNOWN_VALUES)
    heavy = np.argsort(-counts, kind="stable")[:HEAVY]
    everybody = np.arange(KNOWN_VALUES)
    lines = [
        "| epsilon | KB | | listed | precision | recall | ARE |",
        "|---|---|---|---|---|---|---|",
    ]
    for epsilon, kb in [*((0.3, kb) for kb in (48, 192, 768, 3072)), (0.1, 768), (1.0, 768)]:
        g = np.random.default_rng([7, int(kb), int(epsilon * 10)])
        columns = round(COLUMNS["Lazy"] * kb / 24 * 3 / HEAVY_DEPTH)
        lazy = paper(
            x, everybody, "Lazy", True, columns, HEAVY_DEPTH, epsilon, g, KNOWN_VALUES, HEAVY_DELTA
        )
        of, cells, fields = our_cells(counts, epsilon, kb, HEAVY_DEPTH, g, HEAVY_DELTA)
        told = estimate(of, of.scores(cells, fields)).astype(float)
        for name, estimates in (("LazyCS", lazy), ("ours", told)):
            found = _of_heavy(estimates, counts, heavy)
            lines.append(f"| {epsilon} | {kb:,} | {name} | {found} |")
    return lines


def _of_heavy(estimates: np.ndarray, counts: np.ndarray, heavy: np.ndarray) -> str:
    """Size of a list, its precision and recall, and the ARE of the heavy values."""
    listed = np.flatnonzero(estimates >= counts[heavy[-1]])
    right = len(np.intersect1d(listed, heavy))
    are = np.mean(np.abs(estimates[heavy] - counts[heavy]) / counts[heavy])
    return f"{len(listed):,} | {right / max(len(listed), 1):.3f} | {right / HEAVY:.3f} | {are:.3f}"


def compiled(folder: Path) -> Any:
    """The paper's algorithms in C (`benchmarks/papers/lazysketch.c`), by the machine's compiler."""
    library = folder / "lazysketch.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(
        ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"],
        check=True,
    )
    updates = ctypes.CDLL(str(library)).updates
    kinds = (
        ctypes.c_void_p,
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_double,
    )
    updates.argtypes = kinds
    updates.restype = ctypes.c_double
    return updates


def rate(work: Callable[[], object], size: int) -> float:
    """Millions of records per CPU-second, the best of three."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return size / min(spent) / 1e6


def throughput() -> list[str]:
    """Lines of the table of docs/performance.md."""
    g = np.random.default_rng(1)
    x = stream(1.3, 1)
    values = g.integers(-(1 << 63), 1 << 63, (UNIVERSE, 4))[x]
    names = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(32), UPDATES, [None, pa.py_buffer(np.ascontiguousarray(values).tobytes())]
    )
    rows = pa.table(
        {
            "drop": np.zeros(UPDATES, np.int8),
            "ts": np.zeros(UPDATES, np.int64),
            "key_bytes": names.cast(pa.binary()),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        updates = compiled(Path(folder))
        header = (
            "d",
            "w",
            "CMS",
            "LazyCMS",
            "PunctualCMS",
            "Lazy / Punctual",
            "ours",
            "ours / Punctual",
            "ours / Lazy",
        )
        lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for depth, width in [*((3, 1 << e) for e in range(6, 13)), (9, 8192)]:
            sizes = (UPDATES, UPDATES, max(1_000, min(UPDATES, 30_000_000 // (depth * width))))
            paper = [
                rate(lambda: updates(x.ctypes.data, size, depth, width, kind, 5.0), size)  # noqa: B023
                for kind, size in enumerate(sizes)
            ]
            stage = intake(plan_of(1.0, depth, width), 0)
            ours = rate(lambda: stage.step(stage.empty(), rows, Clock(), ROOT), UPDATES)  # noqa: B023
            ratios = (paper[1] / paper[2], ours / paper[2], ours / paper[1])
            shown = [f"{value:.3g}" for value in (*paper, ratios[0], ours, *ratios[1:])]
            lines.append(f"| {depth} | {width} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "lists":
        print("\n".join(lists(int(sys.argv[2]) if len(sys.argv) > 2 else 26_600_000)))
    elif len(sys.argv) > 1 and sys.argv[1] == "throughput":
        write("sketch-intake", throughput(), PERFORMANCE)
    else:
        write("sketches", figures(int(sys.argv[2]) if len(sys.argv) > 2 else 3))


if __name__ == "__main__":
    main()
