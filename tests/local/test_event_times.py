"""Event times as numbers and texts: what each unit makes of its numbers, and what is said of a column that is no time."""

from __future__ import annotations

import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import ConfigError, DataError, LakeError, QueryError
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader
from dpsql.privacy.declaration import check_declaration, declaration
from dpsql.sources.config import Source, load_sources
from dpsql.sources.time_units import PER_SECOND
from tests.local.conftest import CLAUSE, DAY, visits

FIRST_US = int(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000
LAST_US = 253_402_300_800 * 1_000_000 - 1
"""The years 1 to 9999, not by the product's own constants."""

LIMITS = [FIRST_US * 1000, (LAST_US + 1) * 1000]
WHOLE = [0, 1, -1, -999, -1000, -1001, 999, 1000, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), None]
WHOLE += [
    edge * count // 10**9 + step
    for edge in LIMITS
    for count in PER_SECOND.values()
    for step in (-1, 0, 1)
    if -(2**63) <= edge * count // 10**9 + step < 2**63
]
REAL = [0.5, -0.5, 1e-9, -1e-9, 1.9999999, 1e308, -1e308, float("nan"), float("inf"), None]
REAL += [float("-inf"), 1709253000.123456, 253402300799.9999, 253402300800.0, 1e18, -1e17]
TEXTS = ["2024-02-29 12:00:00.5", "2024-02-29T12:00:00Z", "0001-01-01", "10:30", "x", "", None]


def expected(value: float | None, unit: str) -> int | None:
    """Floor of the exact number, or of one product of doubles."""
    if value is None or value != value or abs(value) == float("inf"):
        return None
    if isinstance(value, int):
        us = Fraction(value) * 1_000_000 // PER_SECOND[unit]
    else:
        scale = {"seconds": 1e6, "milliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1.0}
        product = value * scale[unit] if unit != "nanoseconds" else value / 1e3
        if abs(product) > 1e18:
            return None
        us = Fraction(product).__floor__()
    return int(us) if FIRST_US <= us <= LAST_US else None


def read(column: pa.Array, unit: str, kind: str) -> list[int | None]:
    """The times of a column, in microseconds."""
    source = Source("d", "parquet", schema=f"Ms {kind}", event_time="ms", event_time_unit=unit)
    connection = connect()
    chunk = InputReader(connection, source).frame(pa.table({"Ms": column}))
    assert [(name, str(type_)) for name, type_ in chunk.table.columns] == [("ms", "TIMESTAMP")]
    times = connection.sql(f'SELECT epoch_us(ms) AS us FROM "{chunk.table.view}"').fetchall()
    return [us for (us,) in times]


@pytest.mark.parametrize("unit", PER_SECOND)
def test_numbers_are_rounded_down(unit: str) -> None:
    """Catches: a rest before 1970 that is cut off, a product that overflows, a year 10000."""
    whole = pa.array(WHOLE, pa.int64())
    assert read(whole, unit, "BIGINT") == [expected(value, unit) for value in WHOLE]
    real = pa.array(REAL, pa.float64())
    assert read(real, unit, "DOUBLE") == [expected(value, unit) for value in REAL]


def test_texts_have_a_date() -> None:
    """Catches: a time without a date, which has today's on Spark."""
    noon = DAY + 43_200_000_000
    assert read(pa.array(TEXTS), "text", "STRING") == [
        noon + 500_000,
        noon,
        FIRST_US,
        None,
        None,
        None,
        None,
    ]


YAML = """sources:
  d: {format: csv, path: in, schema: "u STRING, ms %s, k STRING", event_time: %s, privacy_unit: u, max_users: 1000, max_keys: 1000}
"""
SQL = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} k, COUNT(*) AS n FROM d GROUP BY window(ms, '1 day'), k".replace(
    "user_id", "u"
)


def declared(tmp_path: Path, kind: str, event_time: str) -> dpsql.Query:
    (tmp_path / "sources.yaml").write_text(YAML % (kind, event_time))
    return dpsql.compile(SQL, load_sources(tmp_path / "sources.yaml"))


def test_a_unit_is_declared(tmp_path: Path) -> None:
    """Catches: a compiler, an explanation or a run that does not know of it."""
    query = declared(tmp_path, "BIGINT", "{column: MS, unit: milliseconds}")
    assert (query.source.event_time, query.source.event_time_unit) == ("ms", "milliseconds")
    assert "`ms` as milliseconds since 1970 (UTC)" in query.explain()
    other = declared(tmp_path, "BIGINT", "{column: ms, unit: seconds}")
    with pytest.raises(LakeError, match=r"event_time\.unit"):
        check_declaration(declaration(query.source), other.source, "d")
    assert "since 1970" not in declared(tmp_path, "DATE", "ms").explain()
    for kind, event_time, words in (
        ("BIGINT", "ms", "write `event_time: {column: ms, unit: milliseconds}`"),
        ("STRING", "ms", "write `event_time: {column: ms, unit: text}`"),
        (
            "STRING",
            "{column: ms, unit: seconds}",
            "`unit: seconds` is for whole numbers and DOUBLE",
        ),
        ("TIMESTAMP", "{column: ms, unit: text}", "`unit: text` is for STRING"),
    ):
        with pytest.raises((QueryError, DataError), match=words):
            declared(tmp_path, kind, event_time)
    for event_time, words in (
        ("{column: ms, unit: minutes}", "`unit` must be seconds or milliseconds"),
        ("{column: ms}", "`unit` is missing"),
        ("{unit: seconds}", "`column` is missing"),
        ("{column: ms, unit: text, zone: UTC}", "zone"),
    ):
        (tmp_path / "sources.yaml").write_text(YAML % ("BIGINT", event_time))
        with pytest.raises(ConfigError, match=words):
            load_sources(tmp_path / "sources.yaml")


FRAME = visits().to_pandas()
TIMES: list[tuple[Any, str | None]] = [
    (FRAME["ts"].astype("int64") // 1000, "milliseconds"),
    (FRAME["ts"].astype("int64") / 1e6, "seconds"),
    (FRAME["ts"].astype("int64"), "microseconds"),
    (FRAME["ts"].astype("int64") * 1000, "nanoseconds"),
    (FRAME["ts"].astype("string"), "text"),
    (FRAME["ts"].dt.date.astype(pd.ArrowDtype(pa.date32())), None),
]


@pytest.mark.parametrize("number", range(len(TIMES)))
def test_frames_have_units(number: int, secret: Any) -> None:
    """A DATE is its midnight. Catches: a unit that `dpsql.query` takes and does not hand on."""
    column, unit = TIMES[number]
    sql = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} page, COUNT(*) AS n FROM v GROUP BY window(ts, '1 day'), page"
    frame = FRAME.assign(ts=column)
    answer = dpsql.query(sql, frame, unit="user_id", time="ts", time_unit=unit, secret=secret)
    assert set(answer.rows["window_start"]) == {pd.Timestamp("2024-02-29", tz="UTC")}
    assert answer.dropped["null_event_time"] == 0


@pytest.mark.parametrize(
    ("column", "unit", "words"),
    [
        (1, None, "type BIGINT, not TIMESTAMP: say what it counts since 1970, like time_unit="),
        ("x", None, r"type STRING, not TIMESTAMP, .* like schema='ts TIMESTAMP'"),
        ("x", "seconds", "type STRING, and `unit: seconds` is for whole numbers and DOUBLE"),
        (1, "minutes", "time_unit='minutes': write one of seconds, milliseconds"),
        (datetime.timedelta(1), None, r"type duration\[us\], not TIMESTAMP"),
    ],
)
def test_other_times_of_frames_are_refused(
    column: Any, unit: str | None, words: str, secret: Any
) -> None:
    """Catches: advice about a file that is not there."""
    sql = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} page, COUNT(*) AS n FROM v GROUP BY window(ts, '1 day'), page"
    frame = FRAME.assign(ts=column)
    with pytest.raises((DataError, ConfigError), match=words) as told:
        dpsql.query(sql, frame, unit="user_id", time="ts", time_unit=unit, secret=secret)
    assert "source" not in str(told.value) and "yaml" not in str(told.value)
