"""What each setting does to keys, l_1 and l_2, one at a time around the defaults, on every stream: why the defaults are what they are.

    python benchmarks/sweeps.py DATA    # the folders of real_streams.py

The table goes to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.page import write  # noqa: E402
from benchmarks.real_streams import DAY, STREAMS, Exact, Stream, path_of, plan_of, read, released  # noqa: E402
from benchmarks.workload import SLICES, Workload, records  # noqa: E402
from dpsql.mechanisms.histogram.calibration import thresholds  # noqa: E402
from dpsql.mechanisms.histogram.plan import PrivacyPlan  # noqa: E402

TRIGGERS, SEEDS, SCALE = 100, 3, 0.05

Change = Callable[[PrivacyPlan], PrivacyPlan]


@dataclass(frozen=True)
class Setting:
    """One way to run a stream: C, other options, and what is changed in the finished plan."""

    label: str
    rows: int = 32
    options: tuple[tuple[str, float | str], ...] = ()
    change: Change = lambda plan: plan


def last_trigger(share: float) -> Change:
    """Another share of the thresholds' failure probability for the last trigger."""

    def change(plan: PrivacyPlan) -> PrivacyPlan:
        assert plan.selection is not None
        total = sum(plan.selection.betas)
        betas = (total * (1 - share) / (plan.horizon - 1),) * (plan.horizon - 1) + (total * share,)
        taus = thresholds(plan.selection.weights, plan.selection.sd, betas, plan.query.asked.min_privacy_units_per_group)
        return dataclasses.replace(plan, selection=dataclasses.replace(plan.selection, betas=betas, thresholds=taus))

    return change


def one(name: str, *values: float) -> list[Setting]:
    """The values of one option."""
    return [Setting(f"`{name} = {value:g}`", options=((name, value),)) for value in values]


SETTINGS: tuple[tuple[str, list[Setting]], ...] = (
    ("defaults", [Setting("defaults")]),
    ("share of mu^2 for key selection", one("group_selection_share", 0.5, 0.6, 0.8, 0.9)),
    ("decay of selection weights", one("selection_weight_decay", 0, 0.25, 0.75, 1)),
    ("C", [Setting(f"`max_rows_contributed = {c}`", rows=c) for c in (8, 16, 64, 128)]),
    ("c", one("max_rows_per_group", 1, 2, 4, 8)),
    ("G", one("max_groups_contributed", 1, 2, 4, 8, 16)),
    (
        "share of beta for the last trigger",
        [Setting(f"{share:.0%} of beta at the last trigger", change=last_trigger(share)) for share in (0.01, 0.25, 0.75, 0.9)],
    ),
    (
        "counter and release rule",
        [
            Setting("`counter = SQRT`", options=(("counter", "SQRT"),)),
            Setting("`counter = HONAKER`", options=(("counter", "HONAKER"),)),
            Setting("`release = RESELECT`", options=(("release", "RESELECT"),)),
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
    inputs.append((synthetic, records(*Workload.of(SCALE).slices(0, SLICES)), {"max_rows_per_group": 1}))
    out = [f"| | {' | '.join(stream.name for stream, _, _ in inputs)} |", "|---" * (len(inputs) + 1) + "|"]
    exact = {stream.name: Exact.of(rows, plan_of(stream, TRIGGERS, 32, "")) for stream, rows, _ in inputs}
    for title, settings in SETTINGS:
        if len(settings) > 1:
            out.append(f"| **{title}** |" + " |" * len(inputs))
        for setting in settings:
            cells = []
            for stream, rows, base in inputs:
                options = ", ".join(f"{name} = {value}" for name, value in (base | dict(setting.options)).items())
                plan = setting.change(plan_of(stream, TRIGGERS, setting.rows, options))
                seeds = range(SEEDS if stream is not synthetic else 1)
                if setting.options and setting.options[0][0] == "release" and stream is synthetic:
                    cells.append("")
                    continue
                f = path_of(exact[stream.name], [_kept(run) for run in released(plan, rows, exact[stream.name], seeds)])[-1]
                cells.append(f"{f.keys:,.0f} / {f.l_1:,.0f} / {f.l_2:,.0f}")
            out.append(f"| {setting.label} | {' | '.join(cells)} |")
            print(out[-1], flush=True)
    return out


def _kept(shown: np.ndarray) -> np.ndarray:
    """The newest release of each key so far: with rounds a key has none at some triggers."""
    at = np.maximum.accumulate(np.where(np.isnan(shown), -1, np.arange(len(shown))[:, None]), axis=0)
    return np.where(at >= 0, np.take_along_axis(shown, np.maximum(at, 0), axis=0), np.nan)


def main() -> int:
    parser = argparse.ArgumentParser(description="What each setting does on each stream.")
    parser.add_argument("data", type=Path, help="folder with one folder per stream")
    write("sweeps", sweep(parser.parse_args().data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
