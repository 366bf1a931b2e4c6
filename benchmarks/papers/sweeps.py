"""What each setting does to keys, l_1 and l_2, one at a time around the defaults, on every stream: why the defaults are what they are.

    python benchmarks/papers/sweeps.py DATA    # the folders of real_streams.py
    python benchmarks/papers/sweeps.py DATA --constants

The tables go to docs/accuracy.md. The second holds the two constants that only the data could choose against the best pair for all streams.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.measure import Figures  # noqa: E402
from benchmarks.page import write  # noqa: E402
from benchmarks.papers.real_streams import (  # noqa: E402
    DAY,
    STREAMS,
    Exact,
    Stream,
    path_of,
    plan_of,
    read,
    released,
)
from benchmarks.workload import SLICES, Workload, records  # noqa: E402
from dpsql.mechanisms.histogram.plan import PrivacyPlan, ReleaseRule  # noqa: E402
from dpsql.parsed_query import CounterName  # noqa: E402
from dpsql.parts.key_selection import SELECTION_DECAY, SELECTION_SHARE, thresholds  # noqa: E402

TRIGGERS = 100
SEEDS = 3
SCALE = 0.05
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
DECAYS = (0.25, 0.5, 0.75)

Change = Callable[[PrivacyPlan], PrivacyPlan]


@dataclass(frozen=True)
class Setting:
    """One way to run a stream: C, other options, and what is changed in the finished plan."""

    label: str
    rows: int = 32
    options: tuple[tuple[str, float | str], ...] = ()
    asked: tuple[tuple[str, Any], ...] = ()
    change: Change = lambda plan: plan


def last_trigger(share: float) -> Change:
    """Another share of the thresholds' failure probability for the last trigger."""

    def change(plan: PrivacyPlan) -> PrivacyPlan:
        assert plan.selection is not None
        total = sum(plan.selection.betas)
        betas = (total * (1 - share) / (plan.horizon - 1),) * (plan.horizon - 1) + (total * share,)
        taus = thresholds(
            plan.selection.weights,
            plan.selection.sd,
            betas,
            plan.query.asked.min_privacy_units_per_group,
        )
        return dataclasses.replace(
            plan, selection=dataclasses.replace(plan.selection, betas=betas, thresholds=taus)
        )

    return change


def one(name: str, *values: float) -> list[Setting]:
    """The values of one option."""
    return [Setting(f"`{name} = {value:g}`", options=((name, value),)) for value in values]


def fixed(name: str, what: str, *values: float) -> list[Setting]:
    """The values of one constant."""
    return [Setting(f"{what} {value:g}", asked=((name, value),)) for value in values]


SETTINGS: tuple[tuple[str, list[Setting]], ...] = (
    ("defaults", [Setting("defaults")]),
    ("share of mu^2 for key selection", fixed("share", "share", 0.5, 0.6, 0.8, 0.9)),
    ("decay of selection weights", fixed("decay", "decay", 0, 0.25, 0.75, 1)),
    ("C", [Setting(f"`max_rows_contributed = {c}`", rows=c) for c in (8, 16, 64, 128)]),
    ("c", one("max_rows_per_group", 1, 2, 4, 8)),
    ("G", one("max_groups_contributed", 1, 2, 4, 8, 16)),
    (
        "share of beta for the last trigger",
        [
            Setting(f"{share:.0%} of beta at the last trigger", change=last_trigger(share))
            for share in (0.01, 0.25, 0.75, 0.9)
        ],
    ),
    (
        "counter and release rule",
        [
            Setting(
                "the paper's tree",
                asked=(
                    ("counter", CounterName.HONAKER),
                    ("share", SELECTION_SHARE),
                    ("decay", SELECTION_DECAY),
                ),
            ),
            Setting("the paper's rounds", asked=(("release", ReleaseRule.RESELECT),)),
            Setting("`mechanism = PAPER`", options=(("mechanism", "PAPER"),)),
        ],
    ),
)


def sweep(data: Path) -> list[str]:
    """One table: a line per setting, a column per stream; keys / l_1 / l_2 at the last of 100 triggers, C = 32."""
    inputs: list[tuple[Stream, pa.Table, dict[str, float | str]]] = [
        (stream, read(stream, data / stream.name / "events.parquet"), {}) for stream in STREAMS
    ]
    synthetic = Stream("workload", "window(ts, '1 day')", DAY, "", ())
    # One row a user and key is what one would declare for this stream; see the first table.
    inputs.append(
        (synthetic, records(*Workload.of(SCALE).slices(0, SLICES)), {"max_rows_per_group": 1})
    )
    out = [
        f"| | {' | '.join(stream.name for stream, _, _ in inputs)} |",
        "|---" * (len(inputs) + 1) + "|",
    ]
    exact = {
        stream.name: Exact.of(rows, plan_of(stream, TRIGGERS, 32, "")) for stream, rows, _ in inputs
    }
    for title, settings in SETTINGS:
        if len(settings) > 1:
            out.append(f"| **{title}** |" + " |" * len(inputs))
        for setting in settings:
            cells = []
            for stream, rows, base in inputs:
                options = ", ".join(
                    f"{name} = {value}" for name, value in (base | dict(setting.options)).items()
                )
                plan = setting.change(
                    plan_of(stream, TRIGGERS, setting.rows, options, **dict(setting.asked))
                )
                seeds = range(SEEDS if stream is not synthetic else 1)
                if plan.query.asked.release is ReleaseRule.RESELECT and stream is synthetic:
                    cells.append("")
                    continue
                f = path_of(
                    exact[stream.name],
                    [_kept(run) for run in released(plan, rows, exact[stream.name], seeds)],
                )[-1]
                cells.append(f"{f.keys:,.0f} / {f.l_1:,.0f} / {f.l_2:,.0f}")
            out.append(f"| {setting.label} | {' | '.join(cells)} |")
            print(out[-1], flush=True)
    return out


def constants(data: Path) -> list[str]:
    """Share of mu^2 and decay, one pair for all, at the last of T triggers, beside the best of each stream and T."""
    pairs = [(share, decay) for share in SHARES for decay in DECAYS]
    found: dict[tuple[str, int], dict[tuple[float, float], Figures]] = {}
    for stream in STREAMS:
        rows = read(stream, data / stream.name / "events.parquet")
        for triggers in (1, 24, 100):
            exact = Exact.of(rows, plan_of(stream, triggers, 32, stream.bounds))
            found[stream.name, triggers] = {
                (share, decay): path_of(
                    exact, [_kept(run) for run in released(plan, rows, exact, range(SEEDS))]
                )[-1]
                for share, decay in pairs
                for plan in [plan_of(stream, triggers, 32, stream.bounds, share=share, decay=decay)]
            }
            print(stream.name, triggers, flush=True)
    best = min(pairs, key=lambda pair: sum(math.log(each[pair].l_1) for each in found.values()))
    ours = (SELECTION_SHARE, SELECTION_DECAY)
    assert best == ours, best  # else the planner has the wrong ones
    out = [f"| | {ours[0]:g}, {ours[1]:g}: best for all | best of each | |", "|---|---|---|---|"]
    for (name, triggers), each in found.items():
        mine = min(pairs, key=lambda pair: each[pair].l_1)
        cells = [f"{f.keys:,.0f} / {f.l_1:,.0f} / {f.l_2:,.0f}" for f in (each[ours], each[mine])]
        lost = f"{each[ours].l_1 / each[mine].l_1 - 1:+.1%} of l_1"
        out.append(
            f"| {name}, T = {triggers} | {' | '.join(cells)} | {mine[0]:g}, {mine[1]:g}: {lost} |"
        )
    return out


def _kept(shown: np.ndarray) -> np.ndarray:
    """The newest release of each key so far: with rounds a key has none at some triggers."""
    at = np.maximum.accumulate(
        np.where(np.isnan(shown), -1, np.arange(len(shown))[:, None]), axis=0
    )
    return np.where(at >= 0, np.take_along_axis(shown, np.maximum(at, 0), axis=0), np.nan)


def main() -> int:
    parser = argparse.ArgumentParser(description="What each setting does on each stream.")
    parser.add_argument("data", type=Path, help="folder with one folder per stream")
    parser.add_argument("--constants", action="store_true", help="the two constants alone")
    given = parser.parse_args()
    write(
        *(
            ("constants", constants(given.data))
            if given.constants
            else ("sweeps", sweep(given.data))
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
