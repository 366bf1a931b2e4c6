"""Intakes without state: what tasks make of the records they read adds up to what one step makes of all."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.mechanisms.sketch.mechanism import SKETCH
from dpsql.mechanisms.sliding.mechanism import SLIDING
from dpsql.udfs import task_intake
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.contribution_files import ContributionFiles
from dpsql.udfs.sketch.partial import KEY, add_cells
from dpsql.udfs.stage import Clock, Stage, StateFile
from dpsql.udfs.task_intake import Gathered, TaskIntake
from dpsql.udfs.worker import FILE_COLUMNS, MicroBatch
from tests.contract import LATEST, START, records
from tests.mechanisms.sketch import contract_cases as sketches
from tests.mechanisms.sliding import contract_cases as windows

INTAKES: dict[str, Stage[Clock]] = {
    "cells": SKETCH.stages(sketches.PLANS["events, only asked"], sketches.FACTS)[0],
    "cells of unknown values": SKETCH.stages(sketches.PLANS["events, unknown"], sketches.FACTS)[0],
    "panes": SLIDING.stages(windows.PLANS["events"], windows.FACTS)[0],
}
KEY_OF_RUN = bytes(range(32))
HOUR = 3_600_000_000
NOW = Clock(START + 2 * HOUR, START + 40 * HOUR)


def gathered(stage: Stage[Clock], rows: pa.Table, cuts: Sequence[int], folder: Path) -> tuple[StateFile, pa.Table]:
    """One bucket, to which some tasks give what they made."""
    tasks, told = TaskIntake(stage, 1, KEY_OF_RUN), str(MicroBatch(3, NOW))
    edges, out = [0, *cuts, rows.num_rows], []
    for task, (low, high) in enumerate(pairwise(edges)):
        given = rows.slice(low, high - low).select([name for name in stage.takes.names if name != "drop"])
        out += list(tasks.run(given.combine_chunks().to_batches(max_chunksize=50), task, told))
    names = [name for name in tasks.output.names if name != "bucket"]
    frames = [batch.to_pandas()[names] for batch in out]
    schema = pa.schema([("kind", pa.int32()), ("bucket", pa.int32()), *stage.gives, ("batch", pa.int64()), ("closed_us", pa.int64())])
    to = ContributionFiles(str(folder), schema, "window", START, 1 << 40)
    work = Gathered(stage.gives, BucketFiles(str(folder), "admission", 1, 1, ()), {}, to, 2)
    file, reported = work.run(0, frames, 0, told)
    assert reported.schema == FILE_COLUMNS and not reported.num_rows
    return file, pa.concat_tables([pq.read_table(folder / each["path"], partitioning=None) for each in file.counted["files"]])


def sums(rows: pa.Table) -> Counter[Any]:
    """What contributions say together: of every cell or key its sum, and which values are candidates from when on."""
    out = Counter[Any]()
    for row in rows.to_pylist():
        at = (row["window"], row.get("trigger"))
        if row.get("form") == KEY:
            out[at[0], row["payload"]] = min(row["trigger"], out[at[0], row["payload"]] or 99)
        elif "form" in row:
            cells = np.zeros(8192, np.int64)
            add_cells(cells, row["form"], row["payload"])
            out.update({(*at, row["row"], int(j)): int(cells[j]) for j in np.flatnonzero(cells)})
        else:
            out.update({(*at, row["key"], name): row[name] for name in rows.column_names if name[0] == "v"})
    return Counter({key: count for key, count in out.items() if count})


def late(stage: Stage[Clock]) -> pa.Table:
    """Records of which some are too late, and some too far ahead."""
    return records(stage, 7, 400, START - 3 * HOUR, LATEST)


@pytest.mark.parametrize("name", INTAKES)
def test_tasks_add_up(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = INTAKES[name]
    rows = late(stage)
    whole = stage.step(stage.empty(), rows.select(stage.takes.names), NOW, KEY_OF_RUN)
    one, many = gathered(stage, rows, [], tmp_path / "one"), gathered(stage, rows, [1, 90, 91, 300], tmp_path / "many")
    monkeypatch.setattr(task_intake, "AT_ONCE", 60)
    pieces = gathered(stage, rows, [200], tmp_path / "pieces")
    want = sums(whole.rows)
    assert len(want) > 20
    for file, made in (one, many, pieces):
        assert sums(made) == want
        assert file.counted["drops"] == whole.counted["drops"] and sum(file.counted["drops"].values()) > 20
        assert file.counted["rows"] == made.num_rows and file.bytes == 0


def test_a_task_without_records_says_nothing() -> None:
    assert not list(TaskIntake(INTAKES["cells"], 4, KEY_OF_RUN).run([], 0, str(MicroBatch(0, NOW))))


def test_a_null_and_a_forgotten_clock_are_refused() -> None:
    stage = INTAKES["panes"]
    work = TaskIntake(stage, 4, KEY_OF_RUN)
    given = late(stage).select([name for name in stage.takes.names if name != "drop"])
    with pytest.raises(RuntimeError, match="not told its micro-batch"):
        list(work.run(given.to_batches(), 0, None))
    broken = given.set_column(given.column_names.index("ts"), "ts", pa.array([None] * given.num_rows, pa.int64()))
    with pytest.raises(TypeError, match="NULL"):
        list(work.run(broken.to_batches(), 0, str(MicroBatch(0, NOW))))
    assert KEY_OF_RUN.hex() not in repr(work) and repr(KEY_OF_RUN) not in repr(work)
