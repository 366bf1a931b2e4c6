"""Tuning bounds a sample exactly as the engine does: same drops, same sums, same weights, for every kind of window and period."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters
from dpsql.parsed_query import ParsedQuery
from dpsql.tuning import Sample, Setting, Workbench
from dpsql.tuning.bounding import Bounds
from dpsql.tuning.expected import thinned
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.intake.contribution_bounding import admit
from dpsql.udfs.stage import Clock

HOUR = 3_600_000_000
SOURCES = dpsql.config.Sources(
    (
        dpsql.Source(
            "visits",
            "parquet",
            "nowhere",
            schema="user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE",
            event_time="ts",
            privacy_unit=("user_id",),
            max_users=100_000,
            max_keys=100_000,
        ),
    )
)


def compiled(window: str = "'1 day'", **options: str) -> dpsql.Query:
    written = {"epsilon": "6", "delta": "1e-6", "privacy_unit_column": "user_id", "max_rows_contributed": "8"} | options
    clause = ", ".join(f"{name} = {value}" for name, value in written.items())
    return dpsql.compile(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({clause}) page, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, COUNT(seconds) AS x, "
        f"SUM(seconds, contribution_bounds_per_row => (0, 60)) AS s, AVG(seconds, contribution_bounds_per_row => (-5, 60)) AS m "
        f"FROM visits GROUP BY window(ts, {window}), page",
        SOURCES,
    )


def sample(rows: int = 3000) -> Sample:
    """Two days; no two records at one time, so that no tie has to be broken."""
    random = np.random.default_rng(7)
    ts = random.permutation(rows).astype(np.int64) * (48 * HOUR // rows) + 17
    seconds = np.where(random.random(rows) < 0.1, np.nan, random.exponential(30, rows))
    seconds[:3] = np.inf, -np.inf, -100.0
    keys = (random.zipf(1.5, rows) % 12).astype(np.int64) << 40
    users = (random.zipf(1.4, rows) % 150).astype(np.int64) << 20
    return Sample(ts, users, keys, (seconds,), {}, None)


def as_rows(given: Sample) -> pa.Table:
    order = np.argsort(given.ts)
    columns = {"drop": np.zeros(len(order), np.int8), "user": given.user[order], "ts": given.ts[order], "key": given.key[order]}
    columns["key_bytes"] = pa.array([b""] * len(order), pa.binary())
    return pa.table(columns | {"a0": given.arguments[0][order]})


QUERIES = {
    "tumbling": compiled(trigger_interval="'1 hour'"),
    "for ever": compiled(contribution_period="STREAM", trigger_interval="'6 hours'"),
    "sliding": compiled("'6 hours', '2 hours', '1 hour'", trigger_interval="'30 minutes'", allowed_lateness="'1 hour'"),
    "sliding for ever": compiled("'5 hours', '2 hours'", contribution_period="STREAM"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_same_as_the_engine(name: str) -> None:
    """Catches: another order of the three filters, ranks over records instead of groups, a window or a period cut elsewhere."""
    query, given = QUERIES[name], sample()
    bench = Workbench(query, given)
    for rows, per_group, groups in itertools.product((1, 4, 30), (1, 3), (1, 2, 9)):
        if max(per_group, groups) > rows:
            continue
        setting = dataclasses.replace(
            Setting.of(query.parsed), max_rows_contributed=rows, max_rows_per_group=per_group, max_groups_contributed=groups
        )
        plan = make_plan(bench.parsed(setting), query.source)
        engine = admit(None, as_rows(given), Clock(), bounding_parameters(plan))
        sums = bench._add_up(Bounds(rows, per_group, groups), plan.max_groups)
        assert sums.admitted.dropped == {reason: engine.drops[reason] for reason in sums.admitted.dropped}
        found = engine.contributions
        cells = _cells(bench, found.column("window").to_numpy(), found.column("key").to_numpy())
        for j, p in enumerate(plan.perturbations):
            exact = np.bincount(cells, found.column(f"v{j}").to_numpy() * p.grid, bench.arrangement.cells)
            assert sums.values[j] == pytest.approx(exact, abs=1e-6), p.rule
        assert plan.selection is not None
        weights = np.array((0, *plan.selection.weights)) * WEIGHT_UNIT
        exact = np.bincount(cells, found.column("weight").to_numpy() * WEIGHT_UNIT, bench.arrangement.cells)
        assert np.bincount(sums.cell, weights[sums.rank], bench.arrangement.cells) == pytest.approx(exact, abs=1e-9)
        triggers = (bench.arrangement.ts[sums.record] - sums.start) // plan.query.trigger_interval_us + 1
        own = np.bincount(found.column("trigger").to_numpy(), found.column("users").to_numpy(), plan.horizon + 1)
        assert (np.bincount(triggers, minlength=plan.horizon + 1) == own).all()


def _cells(bench: Workbench, window: np.ndarray, key: np.ndarray) -> np.ndarray:
    a = bench.arrangement
    place = {(int(start), int(a.key[record])): int(cell) for start, record, cell in zip(a.start, a.record, a.cell, strict=True)}
    return np.array([place[cell] for cell in zip(window.tolist(), key.tolist(), strict=True)])


def test_what_the_longest_bounds_drop() -> None:
    bench = Workbench(QUERIES["tumbling"], sample())
    most = bench.arrangement.longest()
    assert sum(bench.arrangement.admit(most, most.groups).dropped.values()) == 0
    for shorter in (dataclasses.replace(most, **{name: getattr(most, name) - 1}) for name in ("rows", "per_group", "groups")):
        assert sum(bench.arrangement.admit(shorter, shorter.groups).dropped.values()) > 0


def test_a_query_in_rounds_is_refused() -> None:
    with pytest.raises(dpsql.errors.ConfigError, match="leave mechanism out"):
        Workbench(compiled(mechanism="PAPER"), sample())
    with pytest.raises(dpsql.errors.ConfigError, match="each window by itself"):
        Workbench(compiled(carry_windows=3), sample())
    with pytest.raises(dpsql.errors.ConfigError, match="the query's aggregates are n, users, x, s, m"):
        Workbench(QUERIES["tumbling"], sample(), column="none")


def test_thinned_triggers_end_with_the_last() -> None:
    assert thinned(3).tolist() == [1, 2, 3]
    assert (thinned(10_000)[0], thinned(10_000)[-1], len(thinned(10_000))) == (1, 10_000, 48)


def test_settings_of_a_query() -> None:
    parsed: ParsedQuery = QUERIES["tumbling"].parsed
    bench = Workbench(QUERIES["tumbling"], sample())
    assert bench.parsed(bench.written) == parsed
    other = dataclasses.replace(bench.written, trigger_interval_us=2 * HOUR)
    assert bench.parsed(other).max_ahead_us == 2 * HOUR  # the default follows the interval
