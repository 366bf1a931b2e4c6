"""Static tables that are plain files: an attempt reads what the catch-up, or the live run, began with, or it is refused."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.errors import LakeError
from dpsql.sources.config import Source, Sources
from dpsql.streaming import sources
from tests.streaming.conftest import DAY, START

SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
pages.topic, COUNT(*) AS n FROM visits JOIN pages ON visits.page = pages.page GROUP BY window(ts, '1 day'), pages.topic"""


def write_pages(folder: Path, topics: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    for i, topic in enumerate(topics):
        (folder / f"part-{i}.csv").write_text(f"p{i},{topic}\n")


def test_files_that_changed_within_a_catch_up_or_a_live_run_are_refused(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    pages = tmp_path / "pages"
    write_pages(pages, ["a", "b", "a"])
    write(visits(days=1), parts=3)
    one = case(options=(("maxFilesPerTrigger", "1"),))
    table = Source("pages", "csv", str(pages), schema="page STRING, topic STRING", static=True)
    one.query = dpsql.compile(SQL, Sources((*one.query.sources.values(), table)))
    stop = threading.Event()
    assert one.go(START + DAY, stop=stop, progress=lambda report: stop.set()).stopped
    kept = json.loads((one.private / "catch_up.json").read_text())["static"]
    assert kept == sources.pins(one.spark, [table]) and len(kept["pages"]) == 64
    for change in (["a", "b", "b"], ["a", "b"], ["a", "b", "a", "c"]):
        for old in pages.iterdir():
            old.unlink()
        write_pages(pages, change)
        with pytest.raises(
            LakeError,
            match=r"static table 'pages' are not those that this run is reading: put the old ones back",
        ):
            one.go(START + DAY)
    (pages / "part-3.csv").unlink()
    write_pages(pages, ["a", "b", "a"])  # the same content again
    assert not one.go(START + DAY).stopped and len(one.histogram()) > 0
    write_pages(pages, ["a", "b", "b"])  # between two catch-ups it may change
    write(visits(days=1, first_day=1), first=3)
    assert not one.go(START + 2 * DAY).stopped
    (one.private / "live.json").write_text(
        json.dumps({"version": 1, "static": kept, "interval_us": 1_000_000})
    )
    with pytest.raises(LakeError, match="a live run keeps them"):
        one.go(START + 3 * DAY)
    (one.private / "live.json").write_text(
        json.dumps({"version": 1, "static": {}, "interval_us": 1_000_000})
    )  # begun by 27b5d01
    assert not one.go(START + 3 * DAY).stopped
