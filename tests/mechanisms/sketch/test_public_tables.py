"""The table of cells is looked after as the histogram is: its loss is told, its torn commit put aside, its many small files become few."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

import dpsql
from dpsql.errors import LakeError, ReleaseConflict
from dpsql.lake import compaction, delta_tables, preflight, restore
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, Part, write_engine
from dpsql.lake.marks import triggers_mark
from dpsql.lake.opening import open_run
from dpsql.lake.restore_points import Tables
from dpsql.lake.runs import Lake, Run, cells_path, public_tables, read_run
from dpsql.lake.sorted_file import sorted_file
from dpsql.lake.status import status
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.rows import CELLS
from dpsql.sources.config import Source, Sources
from dpsql.streaming.sketch_tables import unpublished
from dpsql.udfs.stage import OPERATORS

RUN = "5a" * 16
HOUR = 3_600_000_000
MARK = triggers_mark(RUN, 1)
LISTS = pa.schema([("trigger", pa.int32())])
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8,
    max_rows_per_group = 2, trigger_interval = '4 hours') {wanted} FROM visits GROUP BY window(ts, '1 day')"""


def append(path: Path, mark: int, width: int = 8) -> None:
    """One tick, of cells or of lists."""
    if path.name.endswith(".sketch"):
        times = {name: [mark * HOUR] for name in ("window_start", "window_end", "trigger_time")}
        numbers = {"trigger": [mark], "row": [0]}
        rows = pa.table(
            {
                **times,
                **numbers,
                "cells": [[mark * width + i for i in range(width)]],
                "hash_key": [b"k"],
            },
            schema=CELLS,
        )
    else:
        rows = pa.table({"trigger": [mark]}, schema=LISTS)
    delta_tables.append_files(path, [sorted_file(path, rows)], {MARK: mark})


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """A run of sketches with two ticks in both public tables."""
    folder = tmp_path / "lake/private/top"
    histogram = tmp_path / "lake/public/top"
    plan = {"query": {"window": {"offset_us": 0}, "trigger_interval_us": HOUR}}
    run = Run(
        "top",
        RUN,
        "identity",
        "check",
        "SELECT",
        plan,
        "2026-01-01",
        "sketch",
        (0, HOUR),
        {},
        beside=("sketch",),
    )
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    for path, schema in {
        folder / "contributions": LISTS,
        folder / "files": LISTS,
        histogram: LISTS,
        cells_path(histogram): CELLS,
    }.items():
        delta_tables.create(path, Schema.from_arrow(schema))
    beside = {"sketch": cells_path(histogram)}
    engine = Engine(folder, (2, 2), {operator: Part() for operator in OPERATORS})
    write_engine(engine, dict.fromkeys(OPERATORS, "x"))
    made = Tables(folder, histogram, RUN, engine, beside)
    for mark in (1, 2):
        for path in reversed(made.public.values()):
            append(Path(str(path)), mark)
    return made


def lose(path: Any) -> None:
    path.rename(path.with_name("elsewhere"))


def test_a_run_knows_its_tables(tmp_path: Path) -> None:
    for wanted, beside in {
        "COUNT_SKETCH(page) AS cells": {"sketch"},
        "COUNT(*) AS views": {"left_out"},
    }.items():
        source = Source(
            name="visits",
            format="parquet",
            path="v",
            schema="user_id STRING, page STRING, ts TIMESTAMP",
            event_time="ts",
        )
        source = replace(source, privacy_unit=("user_id",), start_us=0)
        lake = Lake(tmp_path / "".join(beside))
        ledger = Ledger(tmp_path / f"ledger-{min(beside)}")
        query = dpsql.compile(SQL.format(wanted=wanted), Sources((source,)))
        open_run(lake, "top", query, Secret(bytes(range(32))), ledger, query.source)
        assert set(public_tables(lake.histogram("top"), read_run(lake, "top"))) == {
            "histogram",
            *beside,
        }
        left = cells_path(
            lake.histogram("gone")
        )  # cells of a run whose other tables are lost: no other run may take its name
        delta_tables.create(left, Schema.from_arrow(CELLS))
        with pytest.raises(LakeError, match="gone"):
            open_run(lake, "gone", query, Secret(bytes(range(32))), ledger, query.source)


def test_a_lost_table_is_told_by_status_start_and_restore(tables: Tables, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert "sketch" not in str(status(lake, "top", now_us=12 * HOUR).alarms)
    preflight.check_beside(tables.folder, tables.public, MARK)
    lose(tables.other_public["sketch"])
    with pytest.raises(LakeError, match=r"the table sketch at .*top\.sketch is lost"):
        preflight.check(tables.engine, tables.public, {}, {})
    with pytest.raises(
        LakeError,
        match=r"the table sketch at .*top\.sketch is lost: `dpsql restore` cannot recreate it",
    ):
        restore._restore_stopped(tables, None, None, checkpoints=False)
    found = status(lake, "top", now_us=12 * HOUR)
    assert "the table sketch at" in str(found) and "is lost" in str(found)


def test_cells_that_end_before_the_lists_are_refused(tables: Tables) -> None:
    """An older copy put back: the ticks in between count as published, and their cells would never come."""
    append(Path(str(tables.histogram)), 3)
    with pytest.raises(
        LakeError, match=r"the table sketch at .* lacks ticks that the histogram has"
    ):
        preflight.check_beside(tables.folder, tables.public, MARK)
    append(Path(str(tables.other_public["sketch"])), 3)
    append(
        Path(str(tables.other_public["sketch"])), 4
    )  # written first: a kill between the two leaves this
    preflight.check_beside(tables.folder, tables.public, MARK)


def tear(path: Any) -> Path:
    newest = max((path / "_delta_log").glob("0*.json"))
    newest.write_bytes(newest.read_bytes()[:40])
    return Path(newest)


def test_a_torn_commit_is_put_aside_where_it_comes_again(tables: Tables) -> None:
    cells = tables.other_public["sketch"]
    append(Path(str(cells)), 3)
    torn = tear(cells)
    with pytest.raises(LakeError, match=r"the newest commit of the table sketch, is damaged; "):
        preflight.check_logs(tables.engine, tables.public)
    (said,) = restore._mend_logs(tables)
    assert (
        said.startswith("sketch: its newest commit was damaged; it is kept in")
        and not torn.exists()
    )
    preflight.check_logs(tables.engine, tables.public)
    preflight.check_beside(tables.folder, tables.public, MARK)
    assert sorted(read_rows(cells)["trigger"].to_pylist()) == [1, 2]


def test_a_torn_commit_whose_lists_are_published_is_refused(tables: Tables) -> None:
    torn = tear(tables.other_public["sketch"])
    content = torn.read_bytes()
    with pytest.raises(
        LakeError, match="the public table has the tick whose rows the table sketch has lost"
    ):
        restore._mend_logs(tables)
    assert torn.read_bytes() == content
    # Where both have lost it, both are put aside, and the tick comes again.
    tear(tables.histogram)
    assert len(restore._mend_logs(tables)) == 2
    preflight.check_beside(tables.folder, tables.public, MARK)


def test_many_ticks_leave_few_files_and_the_same_cells(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lists and of cells; and merged files of cells stay small enough for memory."""
    monkeypatch.setattr(compaction, "MANY_FILES", 6)
    cells = Path(str(tables.other_public["sketch"]))
    counts = []
    for mark in range(3, 60):
        append(cells, mark)
        compaction.tidy_public(cells, MARK)
        counts.append(len(DeltaTable(str(cells)).file_uris()))
    assert max(counts) <= 8
    rows = read_rows(cells).sort_by("trigger")
    assert rows["trigger"].to_pylist() == list(range(1, 60))
    assert rows["cells"].to_pylist() == [[mark * 8 + i for i in range(8)] for mark in range(1, 60)]
    assert delta_tables.mark(cells, MARK) == 59


def test_merging_stops_at_what_fits_in_memory(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MANY_FILES", 6)
    cells = Path(str(tables.other_public["sketch"]))
    for mark in range(3, 13):
        append(cells, mark, width=1000)
    monkeypatch.setattr(compaction, "MOST_BYTES", 4 * 8000)
    compaction.tidy_public(cells, MARK)
    assert len(DeltaTable(str(cells)).file_uris()) == 12 - 5  # two small ones and four become one
    monkeypatch.setattr(compaction, "SMALL_BYTES", 1)
    assert compaction.small_files(cells) == []


def test_cells_that_a_restored_run_has_published_do_not_come_twice(tables: Tables) -> None:
    """A kill between the two commits of a tick, then a restore: another mark, the same triggers. Equal ones are left out, others refused."""
    cells = tables.other_public["sketch"]
    there = read_rows(cells, CELLS.names)
    assert unpublished(cells, there).num_rows == 0
    later = there.set_column(
        there.column_names.index("trigger"),
        CELLS.field("trigger"),
        pa.array([7, 8], CELLS.field("trigger").type),
    )
    found = unpublished(cells, pa.concat_tables([there, later]))
    assert (
        sorted(found.column("trigger").to_pylist()) == [7, 8] and found.schema.names == CELLS.names
    )
    assert unpublished(cells, later).equals(later)
    wrong = there.set_column(
        there.column_names.index("cells"),
        CELLS.field("cells"),
        pa.array([[0] * 8] * 2, CELLS.field("cells").type),
    )
    with pytest.raises(ReleaseConflict, match="would be others"):
        unpublished(cells, wrong)
