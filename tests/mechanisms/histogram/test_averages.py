"""Averages of a generated table: their bars hold the truth, short ones and long ones, and what says nothing is never first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql.parsed_query import Reading
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import TOO_FEW
from dpsql.sources.config import Source, Sources
from dpsql.text import Z95
from dpsql.view.reading import as_read
from dpsql.view.table import in_order, table
from tests.property.plans import HOUR

KEYS = 2500
WIDTHS = {"rating": 100.0, "spread": 50.0}
"""What the bounds of values allow: almost all averages lie near the lower one."""
RUN_ID = "5a" * 16
LOWEST = 200
UNTIL = int(pd.Timestamp("2026-01-02", tz="UTC").value // 1000) + HOUR
SCHEMA = "user_id STRING, page STRING, stars DOUBLE, ts TIMESTAMP"
VISITS = Source(
    name="visits",
    format="parquet",
    path="visits",
    schema=SCHEMA,
    event_time="ts",
    privacy_unit=("user_id",),
)
OPTIONS = "OPTIONS (epsilon = 3, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1, min_privacy_units_per_group = 1)"
STARS = "stars, contribution_bounds_per_row => (0, 100)"
TEXT = (
    f"SELECT WITH DIFFERENTIAL_PRIVACY {OPTIONS} page, AVG({STARS}) AS rating, STDDEV_POP({STARS}) AS spread "
    "FROM visits GROUP BY window(ts, '1 day'), page"
)


def stars() -> pd.DataFrame:
    """Keys of 10 to 1,000 people: with few of them, an average is noise."""
    generator = np.random.default_rng(11)
    sizes = np.rint(10 * 100 ** generator.random(KEYS)).astype(int)
    high = generator.beta(12, 0.8, KEYS)
    key = np.repeat(np.arange(KEYS), sizes)
    return pd.DataFrame(
        {
            "user_id": [f"u{i}" for i in range(len(key))],
            "page": pd.Series(key).map("p{}".format),
            "stars": generator.binomial(5, high[key]).astype(float),
            "ts": pd.Timestamp("2026-01-01 06:00", tz="UTC"),
        }
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> PublicRows:
    """Rows of all keys that were selected, with what is true of them."""
    frame = stars()
    query = dpsql.compile(TEXT, Sources((VISITS,)))
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    rows = dpsql.run_local(
        query, frame, Secret(bytes(range(32))), RUN_ID, until_us=UNTIL, ledger=ledger
    )
    values = frame.groupby("page")["stars"]
    page = rows["page"].astype(str)
    truths = {"rating_true": page.map(values.mean()), "spread_true": page.map(values.std(ddof=0))}
    return PublicRows.of_frame(rows.assign(**truths))


def says_something(rows: pd.DataFrame, name: str) -> pd.Series:
    return 2 * Z95 * rows[f"{name}_stderr"] < 0.999 * WIDTHS[name]


def holds(rows: pd.DataFrame, name: str) -> pd.Series:
    distance = (rows[name] - rows[f"{name}_true"]).abs()
    return distance <= Z95 * rows[f"{name}_stderr"] + 1e-9


@pytest.mark.parametrize(("name", "least"), [("rating", 0.92), ("spread", 0.87)])
def test_bars_hold_the_truth_short_and_long(released: PublicRows, name: str, least: float) -> None:
    """In each fifth of those that say something. Catches: bars that are cut to the bounds, which are short where they are wrong."""
    rows = released.frame
    assert len(rows) > 2300 and holds(rows, name).mean() >= 0.95
    told = rows[says_something(rows, name)]
    fifths = pd.qcut(told[f"{name}_stderr"], 5, labels=False)
    shares = holds(told, name).groupby(fifths).mean()
    assert len(told) > 0.4 * len(rows) and shares.min() >= least, shares.tolist()


def test_bars_of_the_lowest_averages_hold_the_truth(released: PublicRows) -> None:
    """Catches: bars that are cut to the bounds: three in ten of the first rows of ORDER BY were wrong."""
    lowest = released.frame.sort_values("rating").head(LOWEST)
    assert holds(lowest, "rating").mean() >= 0.92


@pytest.mark.parametrize("order", ['"rating" NULLS FIRST', '"rating" DESC', '"spread" DESC'])
def test_a_row_that_says_nothing_is_never_first(released: PublicRows, order: str) -> None:
    """Catches: an order by the middle of the bounds, and a NULL that is the smallest."""
    name = order.split('"')[1]
    frame = released.frame.copy()
    silent = np.flatnonzero(~says_something(frame, name))
    frame.loc[frame.index[silent[0]], [name, f"{name}_stderr"]] = np.nan
    rows = replace(released, frame=frame)
    for chosen in (
        as_read(rows, Reading(order=(order,))),
        as_read(rows, Reading(order=(order,), limit=len(frame) - len(silent))),
    ):
        tells = says_something(chosen.frame, name).to_numpy()
        assert tells[: len(frame) - len(silent)].all() and len(silent) > 100
    assert len(as_read(rows, Reading(order=(order,))).frame) == len(frame)


def test_averages_alone_begin_with_the_smallest_error(released: PublicRows) -> None:
    """In every table that people see. Catches: the largest first, which is the noisiest or the middle of the bounds."""
    tells = says_something(in_order(released.newest).frame, "rating")
    assert tells.iloc[: tells.sum()].all()
    texts = [row.cells[0].text for row in table(released, None, None, len(tells)).rows]
    assert [text != TOO_FEW for text in texts] == tells.tolist()
