"""What is refused has spent nothing: no line is in the ledger after it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from dpsql.jobs.cli import main
from dpsql.privacy.ledger import Ledger

SOURCES = """\
sources:
  visits:
    format: parquet
    path: visits
    schema: user_id STRING, ts TIMESTAMP, page STRING
    event_time: ts
    privacy_unit: user_id
    start: 2026-01-01
"""
BOUNDS = "epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8"
QUERY = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({}) {} FROM visits GROUP BY {}"
TABLE = QUERY.format(f"{BOUNDS}, trigger_interval = '1 day'", "page, COUNT(*) AS n", "page")
EVENT = QUERY.format("epsilon = 1, delta = 0, privacy_level = EVENT", "COUNT(*) AS n", "window(ts, '1 day')")
LISTS = QUERY.format(f"{BOUNDS}, sketch_width = 1024", "APPROX_TOP_COUNT(page, 3) AS top", "window(ts, '1 day')")


@pytest.mark.parametrize(
    ("text", "says"),
    [(TABLE, "nothing to compare with"), (EVENT, "protect rows"), (LISTS, "not there yet for sketches")],
    ids=["table", "event", "lists"],
)
def test_what_cannot_be_compared_is_refused_before_a_line_is_written(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a disclosure in the ledger that never was, for a comparison that is refused once the records are read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sources.yaml").write_text(SOURCES)
    (tmp_path / "q.sql").write_text(text)
    pd.DataFrame({"user_id": ["u"], "ts": pd.to_datetime(["2026-01-01T01:00"]).as_unit("us"), "page": ["p"]}).to_parquet(
        tmp_path / "a.parquet"
    )
    words = ["try", "q.sql", "--sources", "sources.yaml", "--secret-file", "keys/secret", "--input", "a.parquet", "--until", "2026-01-03"]
    done = CliRunner().invoke(main, [*words, "--compare"])
    assert done.exit_code == 2 and says in done.output, done.output
    assert Ledger.beside(tmp_path / "keys/secret").lines() == ()
    assert CliRunner().invoke(main, words).exit_code == 0  # without the comparison it is answered, and paid
    assert len(Ledger.beside(tmp_path / "keys/secret").lines()) == 1
