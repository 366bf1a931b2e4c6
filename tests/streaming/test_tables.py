"""A table without windows in a lake: a second catch-up goes on where the first ended, and everything is recomputed."""

from typing import Any

import pytest

from dpsql.errors import InputError
from dpsql.lake.catch_up import read_catch_up
from dpsql.local.verification import verify_run
from dpsql.published.frames import newest_triggers
from dpsql.published.histogram import all_rows, newest, read_histogram
from dpsql.schedule import AT_ONCE

DAY = 86_400_000_000
START = 19_700 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 day')
  page, COUNT(*) AS views FROM visits GROUP BY page
"""


def test_a_table_grows_over_two_catch_ups(case: Any, write: Any, visits: Any) -> None:
    """Catches: state, grid or noise that begins anew with a start; a trigger released twice or never; a start that would not end."""
    write(visits())
    one = case(SQL, start_us=START)
    with pytest.raises(InputError, match="at most 100,000 are"):
        one.go(START + (AT_ONCE + 1) * DAY)
    assert read_catch_up(one.private) is None
    assert one.go(START + 2 * DAY).triggers == 2
    write(visits(users=240), first=1)
    assert one.go(START + 5 * DAY).triggers == 3
    rows = read_histogram(one.lake, "demo")
    assert rows.column_names == ["trigger", "trigger_time", "page", "views", "views_stderr"]
    assert sorted(zip(rows["trigger"].to_pylist(), rows["page"].to_pylist(), strict=True)) == [
        (trigger, f"p{page}") for trigger in range(1, 6) for page in range(3)
    ]
    assert verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical
    last = newest(one.lake, "demo")
    assert set(last["trigger"]) == {5} and len(newest_triggers(all_rows(one.lake, "demo"))) == len(last) == 3
