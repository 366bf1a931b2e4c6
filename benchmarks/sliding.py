"""Sliding windows on models of the streams that Retroactive Grouping was published with, by the product's own steps.

    python benchmarks/sliding.py [montreal | worldcup] [epsilon] [noise keys]

Squared error of a released histogram (mean over panes; w = 15, first windows as partial sums) as a share of that of PANES. The models are
generated, not the paper's data: `montreal` has the paper's 342 stations and 504 panes of 20 minutes, `worldcup` a weighted sample of
88,762 URLs over 528 panes of 4 hours. Data seed 20150912, noise keys 1..n.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import numpy as np

from dpsql.mechanisms.sliding.asked import PaneGrouping, Smoothing
from dpsql.mechanisms.sliding.planner import make_plan
from dpsql.mechanisms.sliding.stages import measurements
from dpsql.parsed_query import changed
from tests.mechanisms.sliding.queries import EVENT, SOURCE, windows
from udfs.sliding.measurement import Measurement, new_bins
from udfs.sliding.panes import Cells

SEED = 20150912
W = 15
SLIDE_US = 60_000_000


def montreal(panes: int = 504, bins: int = 342, total: int = 8_107_643) -> np.ndarray:
    """A week of a transit network: service from 5:30 to 1:00, two peaks on working days, stations between home and work."""
    g = np.random.default_rng(SEED)
    size, work = np.exp(g.normal(0, 1.0, bins)), g.beta(0.7, 0.7, bins)
    t = np.arange(panes)
    hour, day = (t % 72) / 3.0, t // 72

    def peak(centre: float, width: float) -> np.ndarray:
        return np.exp(-0.5 * ((hour - centre) / width) ** 2)[:, None]

    service = ((hour >= 5.5) | (hour < 1.0)).astype(float)
    workday = peak(8, 1.0) * (1.6 * (1 - work) + 0.3) + peak(17, 1.3) * (1.6 * work + 0.5) + 0.35 * peak(13, 4) + 0.15 * peak(22, 2)
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
    volume = 0.05 + 0.25 / (1 + np.exp(-(day - 38) / 4)) + np.where((day > 42) & (day < 78), 0.7 * np.exp(-(((day - 60) / 16) ** 2)), 0)
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


def stream(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(panes, bins) of counts, and how many bins each stands for."""
    if name == "montreal":
        x = montreal()
        return x, np.ones(x.shape[1])
    x = worldcup()
    kept = np.unique(np.concatenate([np.arange(500), np.arange(500, x.shape[1], 40)]))
    return x[:, kept].astype(np.int64), np.where(kept < 500, 1.0, 40.0)


def ways(epsilon: float) -> dict[str, Measurement]:
    """The measurements of four plans for one COUNT at level EVENT."""
    event = changed(windows(EVENT, W), epsilon=epsilon)
    retroactive: dict[str, Any] = {"grouping": PaneGrouping.RETROACTIVE, "smoothing": Smoothing.NONE}
    asked = {
        "PANES": event,
        "RETROACTIVE, the paper's": changed(event, **retroactive, revise=False, rescue=False),
        "RETROACTIVE": changed(event, **retroactive),
        "PLANNED": changed(event, grouping=PaneGrouping.PLANNED),
    }
    return {name: measurements(make_plan(each, SOURCE))[0] for name, each in asked.items()}


def errors(m: Measurement, x: np.ndarray, weights: np.ndarray, seed: int) -> np.ndarray:
    """Squared errors of the sums, of the sums clipped at 0, of the smoothed sums (NaN: none), mean over panes."""
    key, ids = hashlib.sha256(b"sliding %d" % seed).digest(), np.arange(x.shape[1]) * 7919 + 1
    bins, true, found = new_bins(m.columns, x.shape[1]), np.zeros(x.shape[1]), np.zeros(3)
    for pane, exact in enumerate(x):
        true += exact - (x[pane - W] if pane >= W else 0)
        window = m.close(bins, exact.astype(np.int64), pane, Cells(key, ids, pane * SLIDE_US, SLIDE_US, 1))
        smoothed = np.full(len(true), np.nan) if window.smoothed is None else window.smoothed
        found += [float(np.sum(weights * (shown - true) ** 2)) for shown in (window.value, np.maximum(window.value, 0), smoothed)]
    return found / len(x)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "montreal"
    epsilon = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    keys = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    x, weights = stream(name)
    print(f"{name}: {x.shape[0]} panes, {x.shape[1]} bins for {weights.sum():.0f}, epsilon {epsilon:g}, {keys} noise keys")
    print("| | sums | clipped at 0 | smoothed | ms a pane |\n|---|---|---|---|---|")
    base = 0.0
    for label, m in ways(epsilon).items():
        began = time.process_time()
        found = np.mean([errors(m, x, weights, seed) for seed in range(1, keys + 1)], axis=0)
        spent = (time.process_time() - began) / keys / len(x) * 1e3
        base = base or float(found[0])
        print(f"| {label} | " + " | ".join("" if np.isnan(v) else f"{v / base:.3f}" for v in found) + f" | {spent:.1f} |", flush=True)


if __name__ == "__main__":
    main()
