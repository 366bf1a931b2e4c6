"""Keys beside a NULL keep their types: in files, JSON, tables, DataFrames and charts, and in the true histogram."""

import json
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.compiled import Query
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import frame_of, newest
from dpsql.view import charts
from tests.described import described
from tests.local.conftest import DAY

WIDE = [2**53, 2**53 + 1, None]
KEYS = {
    "k": pa.int64(),
    "small": pa.int32(),
    "price": pa.decimal128(12, 2),
    "nobody": pa.string(),
    "ok": pa.bool_(),
    "day": pa.date32(),
}
SQL = f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
{", ".join(KEYS)}, COUNT(*) AS n FROM visits GROUP BY window(ts, '1 day'), {", ".join(KEYS)}"""
SOURCES = """sources:
  visits:
    format: parquet
    path: visits.parquet
    event_time: ts
    privacy_unit: user_id
    max_users: 1000
    max_keys: 1000
    public: true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100 users for each of three keys; in the last one all columns are NULL."""
    monkeypatch.chdir(tmp_path)
    columns = {
        "k": WIDE,
        "small": [7, -7, None],
        "price": [Decimal("1.50"), Decimal("0.00"), None],
        "nobody": [None] * 3,
    }
    columns |= {
        "ok": [True, False, None],
        "day": [pa.scalar(i, pa.int32()).cast(pa.date32()).as_py() for i in (0, 1)] + [None],
    }
    table = pa.table({name: pa.array(values * 100, KEYS[name]) for name, values in columns.items()})
    table = table.append_column("user_id", pa.array([f"u{i}" for i in range(300)]))
    table = table.append_column("ts", pa.array([DAY] * 300, pa.timestamp("us", "UTC")))
    pq.write_table(table, tmp_path / "visits.parquet")
    (tmp_path / "sources.yaml").write_text(SOURCES)
    (tmp_path / "q.sql").write_text(SQL)
    return tmp_path


@pytest.fixture
def query(folder: Path) -> Query:
    return dpsql.compile(SQL, dpsql.load_sources(folder / "sources.yaml"))


def tried(*flags: str) -> str:
    done = CliRunner().invoke(
        main, ["try", "q.sql", "--sources", "sources.yaml", "--secret-file", "secret", *flags]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_file_has_the_types_of_the_keys(folder: Path) -> None:
    tried("--output", "out.parquet")
    found = pq.read_table("out.parquet")
    assert {name: found.schema.field(name).type for name in KEYS} == KEYS
    assert set(found["k"].to_pylist()) == set(WIDE)
    assert [found.schema.field(name).type for name in ("trigger", "n", "n_stderr")] == [
        pa.int32(),
        pa.int64(),
        pa.float64(),
    ]


def test_json_and_the_table_have_integers(folder: Path) -> None:
    document = json.loads(tried("--json", "--compare"))
    for rows in (document["rows"], document["comparison"]["true_histogram"]):
        assert {row["k"] for row in rows} == set(WIDE)
        assert all(type(row["k"]) in (int, type(None)) for row in rows)
        assert {(row["small"], row["price"], row["ok"]) for row in rows} == {
            (7, "1.50", True),
            (-7, "0.00", False),
            (None, None, None),
        }
    assert all(str(key) in tried() for key in WIDE[:2])


def test_each_true_key_meets_its_private_one(folder: Path) -> None:
    """Catches: a key with NULLs that is not found again, and so counts as an error of 100."""
    assert json.loads(tried("--json", "--compare"))["comparison"]["columns"]["n"]["l_inf"] < 50


def test_frames_and_charts(query: Query, folder: Path) -> None:
    secret = Secret(b"s" * 32, folder / "secret")
    frame = dpsql.run_local(
        query, pq.read_table("visits.parquet"), secret, until_us=DAY + 86_400_000_000
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    assert {name: table.schema.field(name).type for name in KEYS} == KEYS
    assert frame_of(table, query.published).equals(frame)
    assert sorted(frame["k"].dropna()) == WIDE[:2]
    assert frame["n"].dtype == "int64"
    assert frame["trigger"].dtype == "int32"
    for chart in (charts.bars(frame, "n"), charts.growth(frame, "n")):
        assert "9007199254740993" in _texts(chart)


@pytest.mark.usefixtures("folder")
def test_the_newest_release_of_a_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"window_start": pa.array([DAY] * 3, pa.timestamp("us", "UTC")), "trigger": [1, 1, 1]}
    columns |= {"k": WIDE, "n": [5, 6, 7], "n_stderr": [1.0] * 3}
    monkeypatch.setattr("dpsql.published.public_rows.read_histogram", lambda *_: pa.table(columns))
    monkeypatch.setattr("dpsql.published.public_rows.described", lambda _: described(columns))
    assert newest(Lake("lake"), "q").frame["k"].tolist() == [*WIDE[:2], pd.NA]


def _texts(chart: charts.Chart) -> str:
    """What stands at the bars, or above the panels."""
    return " ".join(
        text
        for axes in chart.axes
        for text in (
            axes.get_title(loc="left"),
            *(label.get_text() for label in axes.get_yticklabels()),
        )
    )
