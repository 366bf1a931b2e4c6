"""Quantiles in windows: what is released at a window's last trigger, its noise, its charge, and that nothing is kept."""

from __future__ import annotations

import html
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import AccountingError
from dpsql.local.feeder import Feeder, MemoryState
from dpsql.mechanisms import registry
from dpsql.mechanisms.histogram.accounting import check
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.protocol import RunFacts
from dpsql.published.words import TOO_FEW
from dpsql.text import Z95
from dpsql.udfs.measure import quantiles
from dpsql.udfs.stage import Clock
from tests import contract
from tests.mechanisms.histogram.contract_cases import QUARTILES
from tests.property.plans import COUNT, DAY, HOUR, query, source

BOUNDS = {"max_rows_contributed": 2000, "max_rows_per_group": 2000, "max_groups_contributed": 2000}
START = contract.START + DAY
ROWS = 4000


def plan_of(**changes: Any) -> PrivacyPlan:
    given = (
        {"public_groups": "SELECT page FROM pages", "aggregates": (QUARTILES, COUNT)}
        | BOUNDS
        | changes
    )
    return make_plan(query(**given), source())


def released(
    plan: PrivacyPlan, sigma: float, seed: int = 3, kept: MemoryState | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, Feeder]:
    """(released rows, records of listed keys by window, the feeder) of one day in four micro-batches, with another sigma of the trees."""
    intake, release = registry.mechanism_named("histogram").stages(
        plan, RunFacts(contract.listed())
    )
    of = tuple(replace(q, sigma=sigma) for q in release.parameters.quantiles)
    release = replace(release, parameters=replace(release.parameters, quantiles=of))
    rows = contract.records(intake, seed, ROWS, START, START + DAY)
    feeder = Feeder(
        (intake, release), contract.NOISE_KEY, stores=(MemoryState(1), kept or MemoryState(1))
    )
    out = []
    for number in range(4):
        feeder.micro_batch(
            rows.slice(number * ROWS // 4, ROWS // 4), Clock(START - 1, contract.LATEST)
        )
    for until in (START + 5 * HOUR, START + 2 * DAY):
        out += feeder.tick(until)
    there = rows.to_pandas()
    there = there[there["key"].isin(contract.listed().keys)].assign(
        window=(there["ts"] - START) // DAY * DAY + START
    )
    return pa.concat_tables(out).to_pandas(), there, feeder


def test_without_noise_they_are_those_of_the_records_at_the_last_trigger_alone() -> None:
    """Catches: leaves of another window or micro-batch, counts that are taken before late triggers, a group without a record that has values."""
    plan = plan_of()
    kept = MemoryState(1)
    rows, there, feeder = released(plan, sigma=1e-9, kept=kept)
    names = [f"c0_{k}" for k in range(5)]
    assert rows[rows["trigger"] < plan.horizon][[*names, "s0"]].isna().all(axis=None)
    last = rows[(rows["trigger"] == plan.horizon) & (rows["window"] == START)].set_index(
        "key_bytes"
    )
    seen = 0
    grid = 60 / quantiles.LEAVES
    for name, values in there.groupby("key_bytes")["a0"]:
        edges = np.sort(np.maximum(np.ceil(values.clip(0, 60) / grid), 1)) * grid
        expected = [0, *(edges[math.ceil(len(edges) * k / 4) - 1] for k in (1, 2, 3)), 60]
        assert last.loc[name, names].tolist() == pytest.approx(expected)
        seen += 1
    assert (
        seen == 6
        and last.loc[contract.listed().key_bytes[list(contract.listed().keys).index(77)], names]
        .isna()
        .all()
    )
    assert kept.load(0, feeder.sequence["release"][0])["leaves"].num_rows == 0


def test_ranks_are_as_far_off_as_is_said() -> None:
    """At least 93% of edges within 1.96 of the printed error, which is of the worst edge; and it is not three times too large."""
    plan = plan_of(
        max_rows_contributed=40, max_rows_per_group=40, max_groups_contributed=40, epsilon=20.0
    )
    inside = []
    ratio = []
    for seed in range(12):
        rows, there, _ = released(plan, sigma=3.0, seed=seed)
        last = rows[
            (rows["trigger"] == plan.horizon) & (rows["window"] == START) & rows["s0"].notna()
        ].set_index("key_bytes")
        for name, values in there.groupby("key_bytes")["a0"]:
            if name not in last.index or len(values) < 200:
                continue
            of = last.loc[name]
            clipped = np.sort(values.clip(0, 60))
            for k in (1, 2, 3):
                low, high = (
                    np.searchsorted(clipped, of[f"c0_{k}"] - half, side="right") / len(clipped)
                    for half in (60 / quantiles.LEAVES, 0)
                )
                off = max(low - k / 4, k / 4 - high, 0.0)
                inside.append(off <= 1.96 * of["s0"] + 1 / len(clipped))
                ratio.append(off / of["s0"])
    assert (
        len(inside) > 100 and np.mean(inside) >= 0.93 and np.sqrt(np.mean(np.square(ratio))) > 1 / 3
    )


@pytest.mark.parametrize("secret", range(8))
def test_noise_does_not_look_like_quantiles(secret: int, tmp_path: Path) -> None:
    """Of a hundred people all have the value 20. Catches: three digits of pure noise, of which nobody says so."""
    times = pd.Timestamp("2026-01-05", tz="UTC")
    frame = pd.DataFrame({"u": range(100), "k": "a", "v": 20.0, "ts": times})
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u, max_rows_contributed = 1) k, "
        "APPROX_QUANTILES(v, 4, contribution_bounds_per_row => (0, 1000)) AS q FROM t GROUP BY window(ts, '1 day'), k"
    )
    answer = dpsql.query(text, frame, unit="u", time="ts", secret=tmp_path / "secret")
    shown = [repr(answer), html.unescape(answer._repr_html_())]
    for row in answer.rows.to_dict("records"):
        is_true = row["q"] is not None and all(abs(value - 20) < 1 for value in row["q"][1:-1])
        marks = ("? 0, ", TOO_FEW)
        assert is_true or all(any(mark in text for mark in marks) for text in shown), (
            shown,
            Z95 * row["q_rank_stderr"],
        )


def test_a_tree_has_less_error_than_leaves_alone() -> None:
    """Beside as many COUNTs of leaves at 24 triggers, from the same share of the budget."""
    plan = plan_of(aggregates=(QUARTILES,))
    (tree,) = plan.trees
    flat = make_plan(
        query(**BOUNDS, public_groups="SELECT page FROM pages", aggregates=(COUNT,)), source()
    ).perturbations[0]
    of_half = math.sqrt(quantiles.LEAVES * 0.25) * flat.sd[-1]
    assert quantiles.rows_error(4, tree.sigma) < of_half / 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"sigma": 1 / math.sqrt(3)},
        {"levels": 2},
        {"fan_out": 64},
        {"releases": 24},
        {"noise_stream": 2},
    ],
)
def test_a_tree_that_costs_more_than_it_says_is_refused(wrong: dict[str, float]) -> None:
    """Planted: one level for three, a tree that is not the released one, nodes that are released at every trigger, noise that is another's."""
    plan = plan_of(aggregates=(COUNT, QUARTILES, COUNT))
    column = plan.columns[1]
    (tree,) = column.perturbations
    changed = {
        name: value * tree.sigma if name == "sigma" else value for name, value in wrong.items()
    }
    columns = (
        plan.columns[0],
        replace(column, perturbations=(replace(tree, **changed),)),
        plan.columns[2],
    )
    with pytest.raises(AccountingError):
        check(replace(plan, columns=columns), source())
