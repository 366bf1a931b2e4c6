"""One-time releases on Spark: one micro-batch of all records, and never another one."""

from typing import Any

import pyarrow as pa
import pytest

from dpsql.errors import ConfigError
from dpsql.lake.catch_up import is_released
from dpsql.lake.opening import open_run
from dpsql.local.verification import verify_run
from dpsql.privacy.ledger import Ledger
from dpsql.published.public_rows import read_histogram
from tests.streaming.conftest import BrokenOff, break_off, run_file

ONCE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 2)
  page, date_trunc('day', ts) AS day, COUNT(*) AS views, COUNT(DISTINCT user_id) AS people,
  AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean
FROM visits
GROUP BY page, day
"""


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by([("page", "ascending"), ("day", "ascending")]).to_pylist()


def rows_of(one: Any) -> list[dict[str, Any]]:
    return in_order(read_histogram(one.lake, "demo"))


def test_all_files_are_one_micro_batch_for_ever(
    case: Any, write: Any, visits: Any, tmp_path: Any
) -> None:
    """Catches: limits of live runs that cut the files, rows that verify does not recompute, and a second release."""
    table = visits(days=2)
    write(table, parts=7)
    one = case(ONCE, options=(("maxFilesPerTrigger", "2"),), max_users=1_000, max_keys=1_000)
    ledger = Ledger(tmp_path / "secrets" / "ledger")
    with pytest.raises(
        ConfigError, match="add --until-caught-up; to keep releasing, GROUP BY window"
    ):
        one.query.check_ends(until_caught_up=False)
    one.run_id = open_run(one.lake, "demo", one.query, one.secret, ledger, one.query.source)
    one.secret = one.secret.of_ledger(one.run_id.ledger_id)
    summary = one.go(None, ledger=ledger, buckets=(3, 2))
    assert (summary.records, summary.triggers) == (720, 1)
    released = rows_of(one)
    shuffled = table.take(pa.array(range(719, -1, -1)))
    assert released == in_order(one.locally(shuffled, one.query.until_us(None)))
    assert len(released) == 6 and set(released[0]) >= {"trigger", "trigger_time", "day"}
    verified = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
    assert (verified.identical, verified.recomputed) == (True, 7)  # one row of figures
    write(table, parts=1, first=20)
    told: list[Any] = []
    again = one.go(None, ledger=ledger, buckets=(3, 2), told=told)
    assert (again.records, again.rows, rows_of(one)) == (0, 0, released)
    assert is_released(one.private, "demo").startswith("demo was released on 2023-12-09;")
    assert [line.period for line in ledger.lines()] == ["STREAM"]


@pytest.mark.parametrize(
    "place", ["streaming.admission.AdmissionSink.__call__", "streaming.context.RunContext.release"]
)
def test_a_broken_release_reads_no_further_file(
    case: Any, write: Any, visits: Any, monkeypatch: Any, place: str
) -> None:
    """Catches: files that came after a crash, as a second micro-batch."""
    table = visits(days=1)
    write(table, parts=3)
    one = case(ONCE, max_users=1_000, max_keys=1_000)
    run_file(one)
    with monkeypatch.context() as patch, pytest.raises(BrokenOff):
        patch.setattr(f"dpsql.{place}", break_off)
        one.go(None, buckets=(2, 1))
    write(table, parts=1, first=9)
    summary = one.go(None, buckets=(2, 1))
    assert summary.rows == 3 and len(summary.not_read_names) == 1
    assert rows_of(one) == in_order(one.locally(table, one.query.until_us(None)))
