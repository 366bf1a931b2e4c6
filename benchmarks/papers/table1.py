"""Table 1 of DP-SQLP (arXiv 2303.18086), record by record through the real steps.

    python benchmarks/papers/table1.py                        # every configuration that has no result yet, then the table and the figure
    python benchmarks/papers/table1.py --only ours-32-100     # one of them, anew
    python benchmarks/papers/table1.py --table                # from the stored results alone

10 million users, 1 million keys, about 61 million records, epsilon = 6, delta = 1e-9, one day. Records stream through `admit` and
`release` trigger by trigger; truth is the unbounded histogram, so rows that bounding drops count as error. Results are kept in
benchmarks/results/table1; the table goes to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import rich.progress  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.charts import Line, Panel, draw  # noqa: E402
from benchmarks.measure import releasing, together  # noqa: E402
from benchmarks.page import FIGURES, write  # noqa: E402
from benchmarks.papers.baselines import answering  # noqa: E402
from benchmarks.sharded import Job, Make, run  # noqa: E402
from benchmarks.workload import PAPER_KEYS, PAPER_USERS  # noqa: E402
from dpsql.compiled import Query  # noqa: E402
from dpsql.mechanisms.histogram.plan import PrivacyPlan  # noqa: E402
from dpsql.parts.key_selection import thresholds, weight_norm  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.noise.counters import column_norm, counter, path_sd  # noqa: E402

RESULTS = CHECKOUT / "benchmarks" / "results" / "table1"
RECORDS = 61_150_000
"""Expected at full size; for the progress bar only."""


@dataclass(frozen=True)
class Configuration:
    """C, T and the other options of the clause; `make`: what is done with what is admitted (a release, or the baselines)."""

    name: str
    label: str
    rows: int
    triggers: int
    options: str
    make: Make = releasing
    change: Callable[[PrivacyPlan], PrivacyPlan] = lambda plan: plan
    batches: int = 100

    def plan(self, scale: float = 1.0) -> PrivacyPlan:
        """The planner's plan, changed where the configuration says so."""
        return self.change(self.query(scale).plan)

    def query(self, scale: float = 1.0) -> Query:
        """The SQL through the planner and the accountant; the source declares the workload's own numbers of users and keys."""
        interval = f"trigger_interval = '{86_400_000 // self.triggers} milliseconds'"
        sql = f"""
            SELECT WITH DIFFERENTIAL_PRIVACY
              OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = {self.rows}, {interval}, {self.options})
              page, COUNT(*) AS views
            FROM visits
            GROUP BY window(ts, '1 day'), page
        """
        users = round(PAPER_USERS * scale)
        keys = round(PAPER_KEYS * scale)
        source = Source(
            "visits",
            "parquet",
            event_time="ts",
            privacy_unit=("user_id",),
            max_users=users,
            max_keys=keys,
        )
        return dpsql.compile(sql, {"visits": source})


def ours(rows: int, triggers: int) -> Configuration:
    """One visit per user and page counts: the declaration that fits people who open many pages once."""
    options = "max_rows_per_group = 1"
    return Configuration(
        f"ours-{rows}-{triggers}", f"dpsql, C = {rows}, T = {triggers}", rows, triggers, options
    )


def paper(triggers: int) -> Configuration:
    """The paper's algorithm: trees, rounds, no decay, c = C, half of the budget each."""
    return Configuration(
        f"paper-{triggers}",
        f"the paper's configuration, C = 32, T = {triggers}",
        32,
        triggers,
        "mechanism = PAPER",
    )


def papers_accounting(plan: PrivacyPlan) -> PrivacyPlan:
    """The same algorithm with noise and thresholds as the paper accounts for them; no accountant of ours would pass it.

    epsilon is halved between selection and counts, delta split 2 : 1 (half of selection's for the thresholds); zCDP with epsilon = rho +
    2 sqrt(rho ln(1 / delta)) for both; beta for each trigger by itself, not for all of them together.
    """
    selection = plan.selection
    column = plan.columns[0]
    assert selection is not None
    epsilon = plan.epsilon / 2
    delta = plan.delta / 3
    rows = plan.query.asked.max_rows_contributed
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    norm_of_tree = column_norm(counter(selection.counter, plan.horizon))
    # Of one user's weight 1 in each of C rounds
    one_round = weight_norm(selection.weights) * norm_of_tree / math.sqrt(2 * rho)
    sd = tuple(one_round * v for v in path_sd(counter(selection.counter, plan.horizon)))
    rho_of_round = rho / rows
    epsilon_of_round = rho_of_round + 2 * math.sqrt(rho_of_round * log)
    beta = delta / (rows * (math.exp(epsilon_of_round) + 1))
    betas = (beta,) * plan.horizon
    taus = tuple(tau - selection.weights[0] for tau in thresholds(selection.weights, sd, betas, 1))
    sigma = rows * norm_of_tree / math.sqrt(2 * rho)
    counts = dataclasses.replace(column.perturbations[0], sigma=sigma)
    return dataclasses.replace(
        plan,
        selection=dataclasses.replace(
            selection, sigma=one_round, sd=sd, betas=betas, thresholds=taus
        ),
        columns=(dataclasses.replace(column, perturbations=(counts,)),),
    )


def papers_own(triggers: int) -> Configuration:
    """The paper's algorithm and the paper's accounting: what its published row should be compared with."""
    label = f"the paper's configuration and accounting, C = 32, T = {triggers}"
    return dataclasses.replace(
        paper(triggers), name=f"paper-own-{triggers}", label=label, change=papers_accounting
    )


def baselines(per_group: int, share: float) -> Configuration:
    """Both baselines at T = 100 and T = 1000; the plan's triggers are the finer ones."""
    options = f"max_rows_per_group = {per_group}"

    def split(plan: PrivacyPlan) -> PrivacyPlan:
        assert plan.selection is not None
        return dataclasses.replace(plan, selection=dataclasses.replace(plan.selection, share=share))

    return Configuration(
        f"baselines-{per_group}",
        f"baselines, C = 32, c = {per_group}",
        32,
        1000,
        options,
        answering,
        split,
    )


CONFIGURATIONS = (
    ours(32, 100),
    ours(64, 100),
    ours(32, 1000),
    ours(32, 1),
    paper(100),
    papers_own(100),
    paper(1000),
    papers_own(1000),
    baselines(32, 0.5),
    baselines(1, 0.7),
)

PAPER = {
    100: (
        ("the paper's DP-SQLP", "28,338 | 1,391 | 17,741,225 | 50,039"),
        ("the paper's baseline 1", "435 | 18,077 | 50,835,203 | 430,547"),
        ("the paper's baseline 2", "191 | 21,913 | 58,551,587 | 576,425"),
    ),
    1000: (
        ("the paper's DP-SQLP", "22,280 | 1,563 | 19,395,721 | 58,237"),
        ("the paper's baselines", "0 | 25,497 | 59,052,062 | 594,382"),
    ),
}
"""Table 1 as published; its truth is another draw of the same workload (59,052,062 records)."""


def measure(
    configuration: Configuration, scale: float = 1.0, processes: int = 2, seed: int = 1
) -> dict[str, Any]:
    """Run one configuration; figures at the end of the day and after each micro-batch, and what it took."""
    job = Job(configuration.plan(scale), scale, seed, configuration.batches)
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TimeElapsedColumn(),
        transient=True,
    ) as bar:
        task = bar.add_task(configuration.name, total=RECORDS * scale)
        results, usage = run(
            job, configuration.make, processes, lambda read: bar.update(task, completed=read)
        )
    path = [asdict(figures) for figures in together(results)]
    shown = {
        "name": configuration.name,
        "label": configuration.label,
        "rows": configuration.rows,
        "triggers": configuration.triggers,
    }
    asked = {"options": configuration.options, "scale": scale, "seed": seed, "processes": processes}
    if configuration.make is answering:
        names = [
            {k: v for k, v in each.items() if k in ("baseline", "tight", "triggers")}
            for each in results[0]
        ]
        found = {"baselines": [name | figures for name, figures in zip(names, path, strict=True)]}
    else:
        found = {"figures": path[-1], "path": path}
    # The load says whether the wall time is of an idle machine: at a load beyond the processors' number it is not.
    return (
        shown
        | asked
        | {"usage": asdict(usage) | {"load": os.getloadavg()[2]}, "made": time.strftime("%Y-%m-%d")}
        | found
    )


def store(result: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{result['name']}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


def stored() -> dict[str, dict[str, Any]]:
    """Results by name, in the order of the configurations."""
    paths = {
        configuration.name: RESULTS / f"{configuration.name}.json"
        for configuration in CONFIGURATIONS
    }
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The table of the page."""
    out = []
    for triggers in (100, 1000, 1):
        out += [
            f"**T = {triggers}**",
            "",
            "| | keys | l_inf | l_1 | l_2 | wall s | load | CPU s | peak GiB |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        out += [f"| {label} | {cells} | | | | |" for label, cells in PAPER.get(triggers, ())]
        for result in results.values():
            used = result["usage"]
            cost = f"{used['wall']:,.0f} | {used['load']:.0f} | {used['cpu']:,.0f} | {used['memory'] / 2**30:.1f}"
            if result["triggers"] == triggers and "figures" in result:
                out.append(
                    f"| {result['label']}: `{result['options']}` | {_cells(result['figures'])} | {cost} |"
                )
            for each in result.get("baselines", ()):
                if each["triggers"] == triggers:
                    label = f"baseline {each['baseline']}, {'tight' if each['tight'] else 'naive'} accounting, {result['label'].split(', ', 1)[1]}"
                    out.append(f"| {label} | {_cells(each)} | {cost} |")
        out.append("")
    return out


def _cells(figures: dict[str, float]) -> str:
    return " | ".join(f"{figures[name]:,.0f}" for name in ("keys", "l_inf", "l_1", "l_2"))


def figure(results: dict[str, dict[str, Any]]) -> None:
    """Keys and errors over the day."""
    panels = []
    shown = (
        ("keys", "Keys released", "keys"),
        ("l_1", "Errors of all keys, added up", "rows"),
        ("l_2", "Root of the sum of squared errors", "rows"),
    )
    for name, title, unit in shown:
        lines = [
            Line(
                result["label"],
                [24 * (i + 1) / len(result["path"]) for i in range(len(result["path"]))],
                [f[name] for f in result["path"]],
            )
            for result in results.values()
            if "path" in result and result["triggers"] > 1
        ]
        panels.append(Panel(title, "hour of the day", unit, lines))
    draw(FIGURES / "table1.svg", panels)


def main() -> int:
    parser = argparse.ArgumentParser(description="The paper's Table 1 through the real steps.")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="run this configuration, whatever is stored; may be repeated",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="run nothing: the table and the figure from what is stored",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="part of the paper's users and keys; below 1 nothing is stored",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    unknown = set(asked.only or ()) - {configuration.name for configuration in CONFIGURATIONS}
    if unknown:
        parser.error(
            f"{', '.join(sorted(unknown))}: not among {', '.join(c.name for c in CONFIGURATIONS)}"
        )
    found = {}
    for configuration in () if asked.table else CONFIGURATIONS:
        if configuration.name in (
            asked.only
            or set(c.name for c in CONFIGURATIONS) - set(stored() if asked.scale == 1 else ())
        ):
            found[configuration.name] = measure(configuration, asked.scale, asked.processes)
            if asked.scale == 1:
                store(found[configuration.name])
    if asked.scale == 1:
        found = stored()
        figure(found)
        write("table1", table(found))
    else:
        print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
