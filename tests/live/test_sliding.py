"""A live run that protects rows: stopped, and started again."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.sources.config import Source, Sources
from tests.live.test_live_job import TRIGGER, Case, case, until

__all__ = ["case"]

PANES = 3
SQL = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 1, delta = 0, privacy_level = EVENT, public_groups = (SELECT page FROM pages))
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '{PANES * TRIGGER} seconds', '{TRIGGER} seconds'), page
"""
PAGES = ["never", "p0", "p1"]


def test_a_run_of_rows_goes_on_where_it_ended(case: Case, tmp_path: Path) -> None:
    """Every window once, of every listed page, also those that closed while nothing ran; the local engine makes all of them again."""
    pq.write_table(pa.table({"page": PAGES}), tmp_path / "pages.parquet")
    pages = Source(
        name="pages", format="parquet", path=str(tmp_path / "pages.parquet"), static=True
    )
    case.query = dpsql.compile(SQL, Sources((replace(case.query.source, privacy_unit=()), pages)))
    for _ in range(2):
        before = len(case.rows())
        handle = case.start()
        until(lambda before=before: len(case.rows()) >= before + 3 * len(PAGES))
        assert handle.stop().stopped
    rows = case.rows()
    windows = sorted({window for window, _, _ in rows})
    assert windows == list(range(case.query.source.start_us // 1_000_000, windows[-1] + 1, TRIGGER))
    assert [(window, page) for window, _, page in rows] == [
        (window, page) for window in windows for page in PAGES
    ]
    found = case.verified()
    assert found.identical and found.published == len(rows) >= 6 * len(PAGES)
