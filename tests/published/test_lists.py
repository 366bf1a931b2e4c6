"""Lists of a sketch as people are shown them: the newest window first, and what the bounds leave out at the head and below, as of any number."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dpsql.compiled import compile_query
from dpsql.frame_query import Answer
from dpsql.jobs.tables import print_lists
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import PublicRows
from dpsql.sources.config import Source, Sources
from tests.local.conftest import DAY, HOUR, SCHEMA, visits

SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8,
{} sketch_width = 1024, trigger_interval = INTERVAL 6 HOURS) {} FROM visits GROUP BY window(ts, '6 hours')"""
GROUPS = "max_rows_per_group = 3, max_groups_contributed = 2,"
COUNT = "APPROX_TOP_COUNT(page, 3)"
SUM = "APPROX_TOP_SUM(page, seconds, 3, contribution_bounds_per_row => (0, 60))"
WINDOWS = ["2024-02-29 18:00", "2024-02-29 12:00", "2024-02-29 06:00", "2024-02-29 00:00"]


@pytest.mark.parametrize(
    ("bounds", "column", "head", "counts"),
    [
        ("", COUNT, "at most 8 each", "at most 8 records in a window"),
        (
            GROUPS,
            COUNT,
            "at most 3 each",
            "at most 8 records in a window, 3 per value, in at most 2 values",
        ),
        ("", SUM, "0 to 60, at most 8 each", "at most 8 records in a window"),
    ],
)
def test_lists_are_shown_with_their_bounds_and_the_newest_window_first(
    bounds: str,
    column: str,
    head: str,
    counts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches: a sentence about averages below numbers that bounds can only make smaller; a cap of all records called that of a value."""
    pq.write_table(visits(), tmp_path / "visits.parquet")
    facts = {
        "privacy_unit": ("user_id",),
        "event_time": "ts",
        "start_us": DAY,
        "max_users": 1000,
        "max_keys": 1000,
    }
    source = Source("visits", "parquet", str(tmp_path), schema=SCHEMA, **facts)  # type: ignore[arg-type]
    query = compile_query(SQL.format(bounds, f"{column} AS top"), Sources((source,)))
    given = {"visits": [tmp_path / "visits.parquet"]}
    rows = try_query(
        query, given, run_id="0" * 32, secret=Secret(b"s" * 32), until_us=DAY + 24 * HOUR
    ).histogram
    answer = Answer(rows, query, {})
    print_lists(PublicRows.of_frame(rows), 100)
    for text in (repr(answer), capsys.readouterr().out):
        listed = re.findall(
            r"^ *\d* *(2024-02-29 ..:..) .*?(/p\d+) .*?([\d,]{2,})(?:\.\d)? ", text, re.MULTILINE
        )
        assert list(dict.fromkeys(window for window, *_ in listed)) == WINDOWS, text
        assert (
            head in text
            and f"One user_id counts with {counts}. What is beyond is left out" in text
            and "verages" not in text
        )
        shown = {(window, page): int(number.replace(",", "")) for window, page, number in listed}
        for row in rows.to_dict("records"):
            for entry in row["top"]:
                number = entry.get("count", entry.get("sum"))
                assert shown[
                    f"{row['window_start']:%Y-%m-%d %H:%M}", entry["value"]
                ] == pytest.approx(number, abs=60)
