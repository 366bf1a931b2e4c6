"""Whole runs on Spark: what is published, of windows and of tables without any, what is told of a start, and what changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dpsql.errors import DpsqlError, InputError, ReleaseConflict
from dpsql.lake.catch_up import read_catch_up
from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import newest_events
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import all_rows, newest, read_histogram
from dpsql.schedule import AT_ONCE
from tests.streaming.conftest import DAY, START
from tests.sweeps import some

END = START + 30 * DAY


def micros(time: Any) -> int:
    return round(time.timestamp() * 1_000_000)


def everything(case: Any) -> dict[str, bytes]:
    """Every file of a run but Spark's own and the catch-up's number."""
    roots = [Path(case.lake.root)]
    skipped = ("checkpoints", "catch_up.json", "_delta_log", ".crc")
    paths = [
        path
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and not any(part in str(path) for part in skipped)
    ]
    return {str(path): path.read_bytes() for path in paths}


def test_a_run_publishes_what_the_steps_release(case: Any, write: Any, visits: Any) -> None:
    write(visits())
    one = case()
    told: list[Any] = []
    summary = one.go(told=told)
    rows = one.histogram()
    assert rows == one.of_local_engine(visits())
    assert {row["page"] for row in rows} == {"p0", "p1", "p2"}
    assert (summary.records, summary.rows, summary.dropped, summary.stopped) == (
        720,
        len(rows),
        {},
        False,
    )
    assert summary.triggers == len({(row["window_start"], row["trigger"]) for row in rows})
    assert (told[-1].stage, told[-1].records, told[-1].rows) == ("done", 720, len(rows))
    for row in rows:
        assert micros(row["window_end"]) == micros(row["window_start"]) + DAY
        assert (
            micros(row["trigger_time"]) == micros(row["window_start"]) + row["trigger"] * DAY // 2
        )
    assert list(rows[0]) == [
        *(
            "window_start",
            "window_end",
            "trigger",
            "trigger_time",
            "page",
            "views",
            "views_stderr",
            "total",
            "total_stderr",
        )
    ]


def test_many_rows_are_written_by_spark_and_are_the_same(
    case: Any, write: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(visits())
    large = case()
    monkeypatch.setattr("dpsql.streaming.published_table.DRIVER_ROWS", 0)
    monkeypatch.setattr("dpsql.streaming.published_table.ROWS_PER_FILE", 5)
    large.go()
    assert large.histogram() == large.of_local_engine(visits())
    histogram = DeltaTable(large.lake.histogram("demo"))
    assert len(histogram.file_uris()) > 1
    for uri in histogram.file_uris():
        rows = pq.read_table(uri, columns=["window_start", "trigger", "page"])
        assert rows.equals(
            rows.sort_by(
                [("window_start", "ascending"), ("trigger", "ascending"), ("page", "ascending")]
            )
        )
    files = [
        uri for uri in DeltaTable(large.private / "contributions").file_uris() if "era=-" not in uri
    ]
    for uri in files:
        group = pq.ParquetFile(uri).metadata.row_group(0)
        encodings = {
            group.column(i).path_in_schema: group.column(i).encodings
            for i in range(group.num_columns)
        }
        assert not [name for name in encodings["key"] if "DICTIONARY" in name]


def test_starting_again_changes_nothing(case: Any, write: Any, visits: Any) -> None:
    write(visits())
    one = case()
    one.go()
    before = everything(one)
    for until_us in (END, None):
        summary = one.go(until_us)
        assert (summary.records, summary.rows) == (0, 0)
        later = everything(one)
        assert {path: later[path] for path in before if "/public/" in path} == {
            path: before[path] for path in before if "/public/" in path
        }
        assert not [
            path for path in set(later) - set(before) if "/public/" in path or "admission" in path
        ]
    assert DeltaTable(one.lake.histogram("demo")).version() == 1
    with pytest.raises(InputError, match="lies before 20"):
        one.go(END - 1)
    # Everybody may read the histogram, and nobody the rest.
    public = [path for path in one.lake.histogram("demo").rglob("*") if path.is_file()]
    assert public and all(path.stat().st_mode & 0o044 == 0o044 for path in public)
    assert one.private.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("parts", "buckets"), some([(3, (5, 3)), (5, (2, 2))], 2))
def test_cuts_and_buckets_do_not_matter(
    case: Any, write: Any, visits: Any, parts: int, buckets: tuple[int, int]
) -> None:
    table = visits(users=130)
    write(table, parts)
    one = case(options=(("maxFilesPerTrigger", "1"),))
    one.go(buckets=buckets)
    assert one.histogram() == one.of_local_engine(table)
    assert len(list(Path(one.private, "checkpoints/admission/commits").glob("[0-9]"))) == parts


def test_later_data_is_released_by_a_later_catch_up(case: Any, write: Any, visits: Any) -> None:
    """Cut by ticks between days: the same rows as all at once."""
    first = visits(days=1)
    second = visits(days=1, first_day=1)
    write(first)
    one = case()
    one.go(START + DAY)
    assert {micros(row["window_start"]) for row in one.histogram()} == {START}
    write(second, first=1)
    # no trigger lies between these two: the day is read, and released later
    between = one.go(START + DAY + 1)
    assert (between.records, between.rows, between.dropped) == (360, 0, {})
    one.go(END)
    assert one.histogram() == one.of_local_engine(pa.concat_tables([first, second]))


def test_late_records_find_their_window_closed(case: Any, write: Any, visits: Any) -> None:
    write(visits(days=1))
    one = case()
    one.go(START + DAY)
    before = one.histogram()
    write(visits(days=1), first=1)
    assert one.go(END).dropped == {"window_closed": 360}
    assert one.histogram() == before


def test_records_ahead_of_the_clock_are_dropped(case: Any, write: Any, visits: Any) -> None:
    write(visits(days=3))
    one = case()
    summary = one.go(START + DAY)
    # max_ahead is one trigger interval: the first half of the second day is taken
    second = sum(
        value - START <= DAY // 2 for value in visits(days=1)["ts"].cast(pa.int64()).to_pylist()
    )
    assert summary.dropped == {"too_far_ahead": 360 + 360 - second}
    assert {micros(row["window_start"]) for row in one.histogram()} == {START}


def test_an_empty_input_gives_an_empty_histogram(case: Any, write: Any, visits: Any) -> None:
    write(visits().slice(0, 0))
    one = case()
    summary = one.go()
    assert (summary.records, summary.rows) == (0, 0)
    assert one.histogram() == []
    assert [field.name for field in DeltaTable(one.lake.histogram("demo")).schema().fields][4:] == [
        *("page", "views", "views_stderr", "total", "total_stderr")
    ]


def test_a_published_trigger_is_never_published_otherwise(
    case: Any, write: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other input under the same run: the noise would cancel out, so the run stops."""
    monkeypatch.setattr("dpsql.lake.preflight.check", lambda *given: None)
    write(visits(days=1))
    write(visits(days=1, users=200), folder="other")
    one = case()
    other = case(folder="other")
    one.go()
    again = case(folder="other")
    other.lake.root.mkdir(parents=True, exist_ok=True)
    one.lake.histogram("demo").parent.rename(other.lake.histogram("demo").parent)
    before = other.histogram()
    with pytest.raises(ReleaseConflict, match="nothing was written"):
        other.go()
    assert other.histogram() == before
    # the same input is published already, just so
    again.lake.root.mkdir(parents=True, exist_ok=True)
    other.lake.histogram("demo").parent.rename(again.lake.histogram("demo").parent)
    write(visits(days=1), folder="other")
    assert again.go().rows == 0
    assert again.histogram() == before


def test_much_that_is_dropped_warns_once(
    case: Callable[..., Any], write: Callable[..., None], visits: Callable[..., pa.Table]
) -> None:
    rows = visits(users=800)
    write(rows.set_column(0, "user_id", pa.nulls(rows.num_rows, pa.string())), parts=2)
    reports: list[Any] = []
    case(options=(("maxFilesPerTrigger", "1"),)).go(told=reports)
    warnings = [report.warning for report in reports if report.warning]
    assert (
        len(warnings) == 1 and "more than 20%" in warnings[0] and "null privacy unit" in warnings[0]
    )


def test_what_ended_a_start(
    case: Callable[..., Any],
    write: Callable[..., None],
    visits: Callable[..., pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(visits(users=4))
    run = case()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Contributions, "append", full)
    with pytest.raises(DpsqlError):
        run.go()
    assert newest_events(run.private)["end"]["failed"] == "DpsqlError"


TABLE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 day')
  page, COUNT(*) AS views FROM visits GROUP BY page
"""


def test_a_table_grows_over_two_catch_ups(case: Any, write: Any, visits: Any) -> None:
    """Catches: state, grid or noise that begins anew with a start; a trigger released twice or never; a start that would not end."""
    write(visits())
    one = case(TABLE, start_us=START)
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
    last = newest(one.lake, "demo").frame
    assert (
        set(last["trigger"]) == {5}
        and len(all_rows(one.lake, "demo").newest.frame) == len(last) == 3
    )
