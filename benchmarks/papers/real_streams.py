"""Three public streams through the local engine: the figures of Table 1 beside other libraries', and errors over time.

    python benchmarks/papers/real_streams.py DATA    # DATA/wikiticker/events.parquet, DATA/nasa-http-day/..., DATA/online-retail/...

Every file has `user_id, key, ts`. epsilon = 6, delta = 1e-9, COUNT(*) by key; truth is the exact, unbounded histogram; an unreleased key
counts as 0, a negative release as 0. Means over noise seeds. Tables and figures go to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
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

import dpsql  # noqa: E402
from benchmarks.charts import Line, Panel, draw  # noqa: E402
from benchmarks.measure import Figures  # noqa: E402
from benchmarks.page import FIGURES, write  # noqa: E402
from dpsql.local.record_reader import RowReader  # noqa: E402
from dpsql.mechanisms.histogram.plan import PrivacyPlan  # noqa: E402
from dpsql.mechanisms.histogram.planner import make_plan  # noqa: E402
from dpsql.mechanisms.histogram.stages import bounding_parameters, grid, release_parameters  # noqa: E402
from dpsql.parsed_query import changed  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.columns import Float, Int  # noqa: E402
from dpsql.udfs.histogram.release import release  # noqa: E402
from dpsql.udfs.intake.contribution_bounding import admit  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402

SEEDS = 5
PAPER = "mechanism = PAPER"
FOREVER = 1 << 61


@dataclass(frozen=True)
class Stream:
    """A file, the window that holds all of it, and bounds that fit what its users do."""

    name: str
    window: str
    size_us: int
    bounds: str
    peers: tuple[tuple[str, str], ...]


DAY = 86_400_000_000
STREAMS = (
    Stream(
        "wikiticker",
        "window(ts, '1 day')",
        DAY,
        "",
        (
            ("PipelineDP 0.3.1, one release at the end", "19 / 9,742 / 29,251 / 12,483"),
            ("OpenDP 0.16.0, one release at the end", "24 / 9,403 / 15,426 / 9,591"),
            ("Tumult Analytics 0.21.0, one release at the end", "15 / 9,422 / 17,319 / 9,635"),
            ("PipelineDP (PLD accountant) repeated at T = 24", "9 / 9,742 / 30,718 / 12,534"),
            ("PipelineDP (PLD accountant) repeated at T = 100", "4 / 9,742 / 32,533 / 12,651"),
            ("any library repeated at T = 100, tight accounting", "5 / 9,742 / 23,806 / 10,265"),
        ),
    ),
    Stream("nasa-http-day", "window(ts, '1 day')", DAY, "max_rows_per_group = 4", ()),
    Stream(
        "online-retail",
        "window(ts, '374 days', '374 days', '358 days')",
        374 * DAY,
        "max_rows_per_group = 1",
        (
            (
                "PipelineDP 0.3.1 (PLD accountant), one release at the end",
                "576 / 1,614 / 348,178 / 9,775",
            ),
            ("OpenDP 0.16.0, one release at the end", "89 / 1,445 / 386,069 / 10,728"),
            ("Tumult Analytics 0.21.0, one release at the end", "15 / 1,456 / 400,986 / 11,617"),
            ("PipelineDP (PLD accountant) repeated at T = 24", "12 / 1,665 / 402,853 / 11,802"),
            ("PipelineDP (PLD accountant) repeated at T = 100", "0 keys"),
            ("any library repeated at T = 100, tight accounting", "2 / 1,691 / 405,687 / 12,023"),
        ),
    ),
)


def plan_of(
    stream: Stream,
    triggers: int,
    rows: int,
    options: str,
    share: float | None = None,
    decay: float | None = None,
    **asked: Any,
) -> PrivacyPlan:
    """The plan of the stream's query; `share`, `decay`, `asked`: what the planner fixes, otherwise."""
    source = Source(
        stream.name,
        "parquet",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=1_000_000,
        max_keys=1_000_000,
    )
    sql = f"""
        SELECT WITH DIFFERENTIAL_PRIVACY
          OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = {rows},
                   trigger_interval = '{stream.size_us // triggers} microseconds'{options and ", " + options})
          key, COUNT(*) AS n
        FROM `{stream.name}` GROUP BY {stream.window}, key
    """
    return make_plan(
        changed(dpsql.compile(sql, {stream.name: source}).parsed, **asked), source, share, decay
    )


def read(stream: Stream, path: Path) -> pa.Table:
    """The records of a file, ids and all."""
    plan = plan_of(stream, 24, 32, "")
    source = Source(stream.name, "parquet", event_time="ts", privacy_unit=("user_id",))
    return pa.concat_tables(
        RowReader(plan, {stream.name: source}, bytes(16), {}).files([path])
    ).combine_chunks()


@dataclass(frozen=True)
class Exact:
    """Of each key (in order of id) after each trigger: records and distinct users; and the keys' ids and bytes."""

    counts: Int
    users: Int
    names: list[bytes]

    @classmethod
    def of(cls, rows: pa.Table, plan: PrivacyPlan) -> Exact:
        """Count everything, without bounds."""
        key, at, number = (
            np.asarray(a)
            for a in np.unique(
                rows.column("key").to_numpy(), return_index=True, return_inverse=True
            )
        )
        ts = rows.column("ts").to_numpy()
        cells = grid(plan)
        trigger = cells.own_trigger(ts, cells.latest_window(ts)) - 1
        counts = np.zeros((plan.horizon, len(key)), np.int64)
        np.add.at(counts, (trigger, number), 1)
        order = np.lexsort((ts, number, rows.column("user").to_numpy()))
        who = rows.column("user").to_numpy()[order]
        what = number[order]
        first = np.append(True, (who[1:] != who[:-1]) | (what[1:] != what[:-1]))
        users = np.zeros_like(counts)
        np.add.at(users, (trigger[order[first]], what[first]), 1)
        return cls(
            counts.cumsum(axis=0),
            users.cumsum(axis=0),
            rows.column("key_bytes").take(pa.array(at)).to_pylist(),
        )


def released(plan: PrivacyPlan, rows: pa.Table, exact: Exact, seeds: Iterable[int]) -> list[Float]:
    """Per noise seed: the newest released value of each key after each trigger, NaN before the first."""
    admission = admit(None, rows, Clock(), bounding_parameters(plan))
    contributions = admission.contributions.append_column(
        "batch", pa.array(np.zeros(admission.contributions.num_rows, np.int64))
    )
    position = {name: i for i, name in enumerate(exact.names)}
    out = []
    for seed in seeds:
        noise_key = hashlib.sha256(b"real streams, seed %d" % seed).digest()
        found = release(
            None, contributions, [Tick(0, FOREVER)], release_parameters(plan), noise_key
        ).rows
        shown = np.full(exact.counts.shape, np.nan)
        keys = [position[name] for name in found.column("key_bytes").to_pylist()]
        shown[found.column("trigger").to_numpy() - 1, keys] = found.column("c0").to_numpy()
        out.append(shown)
    return out


def path_of(exact: Exact, runs: Sequence[Float]) -> list[Figures]:
    """Figures after each trigger, means over the runs."""
    out = []
    for trigger, counts in enumerate(exact.counts):
        each = [Figures.of(counts, run[trigger]) for run in runs]
        means = (
            float(np.mean([getattr(f, name) for f in each]))
            for name in ("keys", "l_inf", "l_1", "l_2")
        )
        out.append(Figures(*means))
    return out


def appearances(exact: Exact, runs: Sequence[Float]) -> tuple[float, float, float]:
    """Medians over all keys that appear: exact users then, relative error then, relative error at the last trigger."""
    users = []
    then = []
    last = []
    for run in runs:
        seen = ~np.isnan(run)
        keys = np.flatnonzero(seen.any(axis=0))
        at = seen.argmax(axis=0)[keys]
        counts = exact.counts
        users.append(exact.users[at, keys])
        then.append(np.abs(run[at, keys] - counts[at, keys]) / counts[at, keys])
        last.append(np.abs(run[-1, keys] - counts[-1, keys]) / counts[-1, keys])
    return tuple(
        float(np.median(np.concatenate(part))) if len(np.concatenate(part)) else float("nan")
        for part in (users, then, last)
    )  # type: ignore[return-value]


def line(label: str, f: Figures) -> str:
    return f"| {label} | {f.keys:,.0f} | {f.l_inf:,.0f} | {f.l_1:,.0f} | {f.l_2:,.0f} |"


def tables(data: Path, show: bool = True) -> list[str]:
    """The tables of the page; draws the figures."""
    out: list[str] = []
    soon = [
        "| stream | T | users when a key appears | relative error then | at the end |",
        "|---|---|---|---|---|",
    ]
    for stream in STREAMS:
        rows = read(stream, data / stream.name / "events.parquet")
        out += [
            f"**{stream.name}** ({rows.num_rows:,} records)",
            "",
            "| | keys | l_inf | l_1 | l_2 |",
            "|---|---|---|---|---|",
        ]
        lines: dict[str, list[Figures]] = {}
        for triggers in (1, 24, 100):
            asked = {
                "defaults": "",
                f"`{stream.bounds}`" if stream.bounds else "defaults": stream.bounds,
                f"`{PAPER}`": PAPER,
            }
            for label, options in asked.items():
                plan = plan_of(stream, triggers, 32, options)
                exact = Exact.of(rows, plan)
                runs = released(plan, rows, exact, range(SEEDS))
                path = path_of(exact, runs)
                out.append(line(f"dpsql, C = 32, T = {triggers}, {label}", path[-1]))
                if triggers > 1:
                    lines[f"T = {triggers}, {label.strip('`')}"] = path
                if triggers > 1 and options == stream.bounds:
                    users, then, last = appearances(exact, runs)
                    soon.append(
                        f"| {stream.name} | {triggers} | {users:.0f} | {then:.0%} | {last:.0%} |"
                    )
                if triggers == 100 and options == stream.bounds:
                    lines["the exact histogram"] = [
                        Figures(
                            float((counts > 0).sum()),
                            float(counts.max()),
                            float(counts.sum()),
                            float(np.sqrt((counts**2).sum())),
                        )
                        for counts in exact.counts
                    ]
        out += [
            f"| {label} | {' | '.join(cells) if len(cells) == 4 else '0 | | |'} |"
            for label, cells in _peers(stream)
        ]
        out.append("")
        _figure(stream, lines)
    return [
        *out,
        "How soon a key appears and how wrong it is then (medians over keys and seeds, with the bounds above):",
        "",
        *soon,
    ]


def _peers(stream: Stream) -> list[tuple[str, list[str]]]:
    return [(label, figures.split(" / ")) for label, figures in stream.peers]


def _figure(stream: Stream, lines: dict[str, list[Figures]]) -> None:
    keys = []
    errors = []
    for label, path in lines.items():
        hours = [100 * (i + 1) / len(path) for i in range(len(path))]
        keys.append(Line(label, hours, [f.keys for f in path]))
        errors.append(Line(label, hours, [f.l_1 for f in path]))
    percent = "percent of the window"
    titles = (
        f"{stream.name}: keys released",
        "Errors of all keys, added up (exact: all records so far)",
    )
    draw(
        FIGURES / f"{stream.name}.svg",
        [
            Panel(
                titles[0],
                percent,
                "keys",
                keys,
                stream.name != "wikiticker" and max(keys[-1].y) > 200,
            ),
            Panel(titles[1], percent, "records", errors),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Three public streams through the local engine.")
    parser.add_argument("data", type=Path, help="folder with one folder per stream")
    write("streams", tables(parser.parse_args().data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
