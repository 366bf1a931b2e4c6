"""What anybody can read in a lake, compared byte by byte between neighbouring inputs: it may differ in published rows and nowhere else. One
unit sends records that nobody else's depend on, into 0, 1 and 1,000 further private files."""

import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.lake.event_log import EventLog
from dpsql.streaming.admission import Clocks
from dpsql.streaming.context import run_context
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.progress import Tally
from dpsql.udfs.stage import Clock

MINUTE = 60_000_000
DAY = 1440 * MINUTE
START = 19_700 * DAY
ERA = 64 * MINUTE
FILES = 1_000
END = START + 100 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, contribution_period = STREAM, max_rows_contributed = 1100,
    trigger_interval = INTERVAL 1 MINUTE, allowed_lateness = INTERVAL 1 MINUTE)
  page, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '1 minute'), page
"""
TICKS = (START + MINUTE, START + 3 * MINUTE, END)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DIGEST = re.compile(r"-[0-9a-f]{64}")
LAKE = re.compile(r"lake[0-9]+")
TIMES = {"timestamp", "modificationTime", "createdTime", "inCommitTimestamp", "lastUpdated"}
EXACT = {"window_start", "window_end", "trigger", "trigger_time", "page"}
OF_ROWS = {
    "size",
    "stats",
    "tableSizeBytes",
    "fileSizeHistogram",
    "histogramOpt",
    "numOutputBytes",
    "sizeInBytes",
}


def of(unit: str, page: str, ts: int) -> dict[str, Any]:
    return {"user_id": unit, "page": page, "ts": ts}


COMMON = [
    of(f"u{i}", f"p{page}", START + minute * MINUTE + 100 * i + page)
    for minute in range(3)
    for i in range(200)
    for page in range(3)
]
WORLDS = {
    "without": [],
    "0": [of("u", "p0", START + 7)],
    "1": [of("u", "mine", START + 3 * ERA)],
    "1000": [of("u", "mine", START + (3 + i) * ERA) for i in range(FILES)],
    "1 of days": [of("u", "mine", START + 3 * 60 * ERA)],
    "30 of days": [of("u", "mine", START + (3 + i) * 60 * ERA) for i in range(30)],
}
"""What the unit adds; the last two are for queries with triggers of an hour."""

EVENTS = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 0, privacy_level = EVENT)
  COUNT(*) AS views FROM visits GROUP BY window(ts, '3 hours', '1 hour')
"""
TABLE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 40, trigger_interval = INTERVAL 1 HOUR)
  page, COUNT(*) AS views FROM visits GROUP BY page
"""


def visits(world: str) -> pa.Table:
    rows = pa.Table.from_pylist(sorted([*COMMON, *WORLDS[world]], key=lambda row: row["ts"]))
    return rows.set_column(2, "ts", rows["ts"].cast(pa.timestamp("us", "UTC")))


def masked(value: Any, rows_too: bool) -> Any:
    """JSON of a log without times, random names and the test's folder; `rows_too`: without what follows from the rows either."""
    if isinstance(value, dict):
        left = {
            key: masked(item, rows_too)
            for key, item in value.items()
            if not (rows_too and key in OF_ROWS)
        }
        # Spark lists all files in the order of their random names.
        return {
            key: 0 if key in TIMES else sorted(item, key=json.dumps) if key == "allFiles" else item
            for key, item in left.items()
        }
    if isinstance(value, list):
        return [masked(item, rows_too) for item in value]
    if isinstance(value, str) and value[:1] == "{":
        return masked(json.loads(value), rows_too)
    return LAKE.sub("lake", named(value, rows_too)) if isinstance(value, str) else value


def named(text: str, rows_too: bool) -> str:
    """Without random names; a name's digest follows from the rows."""
    text = UUID.sub("random", text)
    return DIGEST.sub("-digest", text) if rows_too else text


def public(case: Any, rows_too: bool = False) -> list[Any]:
    """Everything below the public folder: the log in its order with the files that it adds, then the names of all files. Files that begin
    with a dot are Hadoop's checksums of the bytes of others, times among them."""
    root = Path(case.lake.root, "public")
    out: list[Any] = []
    for path in sorted(
        path for path in (root / "demo/_delta_log").iterdir() if not path.name.startswith(".")
    ):
        for line in map(json.loads, path.read_text().splitlines()):
            out.append((path.name, masked(line, rows_too)))
            if "add" in line:
                out.append(content(root / "demo" / line["add"]["path"], rows_too))
    return [*out, sorted(named(str(path.relative_to(root)), rows_too) for path in root.rglob("*"))]


def content(path: Path, rows_too: bool) -> Any:
    if of_name := DIGEST.search(path.name):
        assert of_name[0] == f"-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    if not rows_too:
        return path.read_bytes()
    table = pq.read_table(path)
    metadata = pq.read_metadata(path)
    exact = [name for name in table.column_names if name in EXACT]
    return (
        table.select(exact).to_pydict(),
        metadata.num_row_groups,
        metadata.metadata,
        metadata.created_by,
    )


def catch_up(case: Any, write: Any, world: str, sql: str = SQL) -> Any:
    write(visits(world), folder=world)
    one = case(sql, folder=world, start_us=None if sql == SQL else START)
    one.go(
        END, buckets=(1, 1), live=LiveOptions(retention_us=1 << 60)
    )  # its private files are counted afterwards
    return one


def live(case: Any, write: Any, world: str, behind: bool = False) -> Any:
    write(visits(world), folder=world)
    one = case(SQL, folder=world)
    work(one, behind)
    return one


def work(one: Any, behind: bool) -> None:
    """Admitted, and then ticked and released by the parts of a live run, without its waiting; `behind`: all ticks are there before the release."""
    tally = Tally(None, EventLog(one.private, one.run_id.run_id, "demo"))
    job = run_context(
        one.spark,
        one.query,
        one.run_id,
        one.lake,
        one.secret,
        (1, 1),
        tally,
        threading.Event(),
        None,
        lambda: None,
    )
    job.check()
    with job.queries({}) as queries:
        sink = job.admission_sink(
            Clocks({}, lambda batch: Clock()), queries.numbers, lambda batch, clock: None
        )
        assert job.drain(
            "admission", queries.admission, job.remembering("admission", sink), job.was_read
        )
    with job.releasing(queries) as release_up_to:
        for closed_us in TICKS:
            job.tables.contributions.tick_by_clock(0, closed_us, closed_us)
            assert behind or release_up_to(closed_us)
        assert release_up_to(TICKS[-1])
        job.stop.set()


def private_files(case: Any) -> int:
    return len(
        [
            path
            for path in Path(case.private, "contributions").rglob("*.parquet")
            if "era=-" not in str(path)
        ]
    )


def test_neighbouring_catch_ups(case: Any, write: Any) -> None:
    runs = {world: catch_up(case, write, world) for world in ("without", "0", "1", "1000")}
    files = {world: private_files(one) for world, one in runs.items()}
    assert {world: count - files["without"] for world, count in files.items()} == {
        "without": 0,
        "0": 0,
        "1": 1,
        "1000": FILES,
    }
    assert len({row["trigger_time"] for row in runs["without"].histogram()}) > 2
    # The key that nobody else has is not published, so nothing differs at all.
    assert public(runs["1"]) == public(runs["without"])
    assert public(runs["1000"]) == public(runs["without"])
    # Here a published count differs.
    assert public(runs["0"]) != public(runs["without"])
    assert public(runs["0"], rows_too=True) == public(runs["without"], rows_too=True)


def test_neighbouring_live_runs(case: Any, write: Any) -> None:
    runs = {world: live(case, write, world) for world in ("without", "0", "1", "1000")}
    without = runs["without"]
    assert len(list(Path(without.lake.histogram("demo"), "_delta_log").glob("*.json"))) == 1 + len(
        TICKS
    )
    assert public(runs["1"]) == public(without)
    assert public(runs["1000"]) == public(without)
    assert public(runs["0"]) != public(without)
    assert public(runs["0"], rows_too=True) == public(without, rows_too=True)
    # Nor does it show how many ticks were released together: after a crash, or when many files have made Spark cut between them.
    assert public(live(case, write, "without", behind=True)) == public(without)
