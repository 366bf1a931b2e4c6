"""What `explain --missing` says of thresholds is what the noise does, and it needs no data."""

import numpy as np
from scipy.stats import norm

import dpsql
import dpsql.sources.config
from dpsql.mechanisms.histogram.missing_keys import facts, units_needed, why_missing
from dpsql.mechanisms.histogram.plan import PrivacyPlan

SOURCES = dpsql.sources.config.Sources(
    (
        dpsql.Source(
            "visits",
            "parquet",
            "x",
            schema="user_id STRING, page STRING, ts TIMESTAMP",
            event_time="ts",
            privacy_unit=("user_id",),
        ),
    )
)


def plan(extra: str = "", key: str = "page, ") -> PrivacyPlan:
    group = "window(ts, '1 day')" + (", page" if key else "")
    return dpsql.compile(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 8, "
        f"trigger_interval = '1 hour'{extra}) {key}COUNT(*) AS views FROM visits GROUP BY {group}",
        SOURCES,
    ).plan


def test_half_and_nearly_all_pass_with_so_many_units() -> None:
    """Catches: the threshold of another trigger, a one-sided quantile of another share, weights in other units."""
    made = plan()
    assert made.selection is not None
    rows = units_needed(made, count=24)
    assert [row.trigger for row in rows] == list(range(1, 25))
    first = made.selection.weights[0] / 2**20
    for row in rows:
        tau = made.selection.thresholds[row.trigger - 1] / 2**20
        sd = made.selection.sd[row.trigger - 1]
        for units, share in ((row.half, 0.5), (row.units_95, 0.95)):
            assert (
                norm.cdf((units * first - tau) / sd)
                >= share
                > norm.cdf(((units - 1) * first - tau) / sd)
            )
    assert [row.trigger for row in units_needed(made)][:: len(units_needed(made)) - 1] == [1, 24]


def test_a_least_number_of_units_is_the_least() -> None:
    assert all(
        row.half >= 500 and row.units_95 >= 500
        for row in units_needed(plan(", min_privacy_units_per_group = 500"))
    )
    assert "fewer than 500 units it never passes" in why_missing(
        plan(", min_privacy_units_per_group = 500")
    )


def test_the_words_and_the_facts() -> None:
    text = why_missing(plan())
    said = facts(plan())
    assert max(map(len, text.splitlines())) <= 140
    for row in said["users_needed"]:
        assert f"{row['half_pass']} units" in text and f"{row['95_percent_pass']} units" in text
    assert "Nothing says how close a key came" in text
    assert np.allclose(said["weight_of_a_users_nth_key"], [1, 2**-0.5, 3**-0.5, 0.5], atol=1e-5)


def test_without_selection_nothing_is_missing() -> None:
    declared = dict(
        schema="user_id STRING, ts TIMESTAMP",
        event_time="ts",
        privacy_unit=("user_id",),
        start_us=0,
    )
    start = dpsql.sources.config.Sources((dpsql.Source("visits", "parquet", "x", **declared),))
    one = dpsql.compile(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 1) "
        "COUNT(*) AS n FROM visits GROUP BY window(ts, '1 day')",
        start,
    )
    assert "none is missing" in why_missing(one.plan) and facts(one.plan)["users_needed"] == []
