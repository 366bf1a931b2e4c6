"""What tuning expects of a setting is what the engine does, for every kind of window and period."""

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.local.comparison import Truth
from dpsql.local.feeder import LATEST_US, run_batches
from dpsql.local.spark_types import SparkType
from dpsql.parsed_query import ParsedQuery
from dpsql.tuning import Sample, Setting, Workbench
from dpsql.tuning.expected import thinned
from dpsql.udfs.keys import encode

HOUR = 3_600_000_000
RUNS = 6
SOURCES = dpsql.sources.config.Sources(
    (
        dpsql.Source(
            "visits",
            "parquet",
            "nowhere",
            schema="user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE",
            **{
                "event_time": "ts",
                "privacy_unit": ("user_id",),
                "max_users": 100_000,
                "max_keys": 100_000,
            },
        ),
    )
)


def compiled(window: str = "'1 day'", **options: str) -> dpsql.Query:
    written = {
        "epsilon": "6",
        "delta": "1e-6",
        "privacy_unit_column": "user_id",
        "max_rows_contributed": "8",
    } | options
    clause = ", ".join(f"{name} = {value}" for name, value in written.items())
    return dpsql.compile(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({clause}) page, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, COUNT(seconds) AS x, "
        f"SUM(seconds, contribution_bounds_per_row => (0, 60)) AS s, AVG(seconds, contribution_bounds_per_row => (-5, 60)) AS m "
        f"FROM visits GROUP BY window(ts, {window}), page",
        SOURCES,
    )


def sample(rows: int = 20_000) -> Sample:
    random = np.random.default_rng(7)
    ts = random.permutation(rows).astype(np.int64) * (48 * HOUR // rows) + 17
    seconds = np.where(random.random(rows) < 0.1, np.nan, random.exponential(30, rows))
    seconds[:3] = np.inf, -np.inf, -100.0
    keys = random.zipf(1.5, rows) % 12
    users = (random.zipf(1.4, rows) % 3000).astype(np.int64) << 20
    columns = {
        "drop": np.zeros(rows, np.int8),
        "user": users,
        "ts": ts,
        "key": keys.astype(np.int64) << 40,
    }
    key_bytes = pa.array([encode([b"%d" % key]) for key in keys], pa.binary())
    return Sample(pa.table(columns | {"key_bytes": key_bytes, "a0": seconds}), {}, None)


QUERIES = {
    "tumbling": compiled(trigger_interval="'1 hour'"),
    "for ever": compiled(contribution_period="STREAM", trigger_interval="'6 hours'"),
    "sliding": compiled(
        "'6 hours', '2 hours', '1 hour'",
        trigger_interval="'30 minutes'",
        allowed_lateness="'1 hour'",
    ),
    "sliding for ever": compiled("'5 hours', '2 hours'", contribution_period="STREAM"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_expected_is_what_the_engine_does(name: str) -> None:
    """Catches: weights or units of another trigger or window, a value without its centre, noise of another trigger, a truth with bounds."""
    query = QUERIES[name]
    given = sample()
    expected = Workbench(query, given).measure(Setting.of_query(query.parsed))
    runs = []
    for number in range(RUNS):
        truth = Truth(query, LATEST_US)
        facts = query.facts(None)
        keys = [SparkType("string")]
        batches = truth.watch([given.rows])
        noise_key = bytes([number]) * 32
        done = run_batches(
            query.plan,
            batches,
            noise_key=noise_key,
            key_types=keys,
            until_us=LATEST_US,
            facts=facts,
        )
        runs.append(truth.compare(done.histogram, done.drops, keys))
    assert dict(expected.dropped) == {
        reason: runs[0]["dropped"][reason] for reason in expected.dropped
    }
    assert sum(expected.dropped.values()) > 0
    assert expected.keys == runs[0]["keys"]
    assert expected.keys_kept == pytest.approx(
        np.mean([run["keys_kept"] for run in runs]), rel=0.04
    )
    for alias, norm in itertools.product(("n", "users", "x", "s"), ("l_1", "l_2")):
        found = np.mean([run["columns"][alias][norm] for run in runs])
        assert expected.columns[alias][norm] == pytest.approx(found, rel=0.04), (alias, norm)
    averages = [run["compared"] for run in runs]  # missing keys included
    found = np.mean(
        [(each["m"] - each["m_true"]).abs().fillna(each["m_true"].abs()).sum() for each in averages]
    )
    assert expected.columns["m"]["l_1"] == pytest.approx(
        found, rel=0.4
    )  # of a handful of values it is a guess


def test_what_the_longest_bounds_drop() -> None:
    """Nothing; and a record, where one of them is shorter."""
    bench = Workbench(QUERIES["tumbling"], sample())
    longest = dataclasses.replace(bench.written, **bench.longest)
    assert sum(bench.measure(longest).dropped.values()) == 0
    for name, most in bench.longest.items():
        assert (
            sum(bench.measure(dataclasses.replace(longest, **{name: most - 1})).dropped.values())
            > 0
        ), name


def test_a_query_in_rounds_is_refused() -> None:
    with pytest.raises(dpsql.errors.ConfigError, match="leave mechanism out"):
        Workbench(compiled(mechanism="PAPER"), sample())
    with pytest.raises(dpsql.errors.ConfigError, match="each window by itself"):
        Workbench(compiled(carry_windows=3), sample())
    with pytest.raises(
        dpsql.errors.ConfigError, match="the query's aggregates are n, users, x, s, m"
    ):
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
