"""Files of released rows, read back by other tools."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpsql.description import NOTE
from dpsql.jobs.cli import main
from dpsql.published.public_rows import PublicRows, frame_of
from dpsql.published.reader_frames import reader_frame, write_parquet
from tests.published.test_readers import query_and_rows
from tests.unit.workplace import SOURCES, place

KINDS = ("smallest", "table_quantiles", "sketch_user", "marginals_rollup")
SIZES = (0, 1, 99)
KEYS = {
    "number": "BIGINT",
    "price": "DECIMAL(20,4)",
    "day": "DATE",
    "is_new": "BOOLEAN",
    "raw": "BINARY",
}
QUERY = f"""\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
  {", ".join(KEYS)}, APPROX_QUANTILES(seconds, 4, contribution_bounds_per_row => (0, 9)) AS quarters
FROM visits GROUP BY window(ts, '1 day'), {", ".join(KEYS)}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_written_rows_come_back(kind: str, tmp_path: Path) -> None:
    """Catches: a name of a type that pandas writes and cannot read; a type that is lost where a column is empty."""
    query, every = query_and_rows(kind)
    for rows in (every.slice(0, size) for size in SIZES):
        path = tmp_path / f"{len(rows)}.parquet"
        write_parquet(rows, query.published, path)
        frame = reader_frame(PublicRows(frame_of(rows, query.published), query.published))
        kinds = {field.name: field.type for field in rows.schema} | {NOTE: pa.string()}
        assert pq.read_schema(path).equals(pa.schema([(name, kinds[name]) for name in frame]))
        read_back = duckdb.read_parquet(str(path)).to_arrow_table().select(rows.column_names)
        for row, original in zip(read_back.to_pylist(), rows.to_pylist(), strict=True):
            assert row == {name: original[name] if row[name] is not None else None for name in row}
        read = pd.read_parquet(path)
        pd.testing.assert_frame_equal(read, frame, check_dtype=False)
        assert PublicRows.of_frame(read).description == query.published
        frame.to_parquet(path)  # as users do with the rows of an answer
        pd.testing.assert_frame_equal(pd.read_parquet(path), frame, check_dtype=False)


def test_output_of_try_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: keys that lose digits or turn into other types on their way through the file."""
    monkeypatch.chdir(place(tmp_path / "work"))
    schema = "user_id STRING, ts TIMESTAMP, page STRING, seconds DOUBLE"
    Path("conf/sources.yaml").write_text(
        SOURCES.replace(schema, f"{schema}, {', '.join(map(' '.join, KEYS.items()))}")
    )
    Path("keys.sql").write_text(QUERY)
    large = (1 << 62) + 1
    groups = [(large, Decimal("1.2500"), date(2026, 1, 1), True, b"\xff\x00"), (None,) * 5]
    types = (pa.int64(), pa.decimal128(20, 4), pa.date32(), pa.bool_(), pa.binary())
    keys = {
        name: pa.array([groups[n % 2][i] for n in range(2000)], types[i])
        for i, name in enumerate(KEYS)
    }
    times = pa.array([1_767_225_600_000_000] * 2000, pa.timestamp("us", "UTC"))
    units = pa.array([f"u{n}" for n in range(2000)])
    pq.write_table(
        pa.table(
            {
                "user_id": units,
                "ts": times,
                "page": units,
                "seconds": pa.array([5.0] * 2000),
                **keys,
            }
        ),
        "visits.parquet",
    )
    words = [
        "try",
        "keys.sql",
        "--input",
        "visits.parquet",
        "--until",
        "2026-01-03",
        "--output",
        "keys.parquet",
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    read = pd.read_parquet("keys.parquet").iloc[-2:]
    found = {
        tuple(None if pd.isna(value) else value for value in row)
        for row in read[[*KEYS]].itertuples(index=False)
    }
    assert found == set(groups)
    assert all(
        len(quarters) == 5 and all(0 <= value <= 9 for value in quarters)
        for quarters in read["quarters"]
    )
    in_sql = duckdb.sql(
        f"SELECT {', '.join(KEYS)}, len(quarters) FROM 'keys.parquet' ORDER BY trigger DESC LIMIT 2"
    ).fetchall()
    assert {row[:5] for row in in_sql} == set(groups) and {row[5] for row in in_sql} == {5}
