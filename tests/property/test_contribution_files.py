"""Contributions between the two queries: every row that an intake writes is read once, by the bucket of its key."""

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.udfs import task_files
from dpsql.udfs.task_files import ContributionFiles, ContributionRows, UnsortedRows

TAKES = pa.schema([("window", pa.int64()), ("key", pa.int64()), ("number", pa.int64())])
SCHEMA = pa.schema([("kind", pa.int32()), ("bucket", pa.int32()), ("batch", pa.int64()), *TAKES])

WINDOWS = st.integers(-300, 300)
KEYS = st.integers(0, 60) | st.integers(-(1 << 63), (1 << 63) - 1)


def table(rows: list[tuple[int, int]], buckets: int) -> pa.Table:
    windows = np.array([window for window, _ in rows], np.int64)
    keys = np.array([key for _, key in rows], np.int64)
    numbers = np.arange(len(rows))
    bucket = pa.array((keys % buckets).astype(np.int32))
    return pa.table({"window": windows, "key": keys, "number": numbers, "bucket": bucket})


def cut(rows: pa.Table, edges: list[int]) -> list[pa.Table]:
    """Cut rows into the parts that different tasks write."""
    places = sorted({0, rows.num_rows, *(edge % (rows.num_rows + 1) for edge in edges)})
    return [rows.slice(a, b - a) for a, b in pairwise(places)]


@given(
    st.lists(st.tuples(WINDOWS, KEYS), max_size=80),
    st.lists(st.integers(0, 80), max_size=3),
    st.integers(1, 50),
    st.integers(1, 70),
    st.integers(1, 4),
    st.booleans(),
)
def test_contributions_come_back_once(
    rows: list[tuple[int, int]],
    edges: list[int],
    buckets: int,
    width: int,
    row_groups: int,
    relabelled: bool,
) -> None:
    """Rows of two eras in one file, buckets out of order, a bucket cut in two: each would lose rows."""
    written = table(rows, buckets)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(task_files, "MOST_ROW_GROUPS", row_groups),
    ):
        files = ContributionFiles(folder, SCHEMA, "window", 7, width)
        reports = [
            report
            for task, part in enumerate(cut(written, edges))
            for report in files.write(part, task, 3)
        ]
        for report in reports:
            eras = pq.read_table(Path(folder, report["path"]), partitioning=None)["window"]
            assert {(w - 7) // width for w in eras.to_pylist()} == {int(report["partition"]["era"])}
        reader = ContributionRows(folder, TAKES, buckets, relabelled=relabelled)
        names = [report["path"] for report in reports]
        read = [reader.read(names, bucket) for bucket in range(buckets)]
    for bucket, own in enumerate(read):
        assert set(own["key"].to_numpy() % buckets) <= {bucket}
    everything = pa.concat_tables(read).sort_by("number")
    assert everything.equals(written.drop_columns(["bucket"]).combine_chunks())


@pytest.mark.parametrize(
    ("groups", "refused"),
    [
        ([[0, 1], [2, 3]], False),
        ([[0, 1, 0], [2, 3]], True),
        ([[0, 3], [1, 2]], True),
        ([[0, 1], [1, 2]], True),
        ([[2, 3], [0, 1]], True),
    ],
)
def test_unsorted_contributions_are_refused(
    tmp_path: Path, groups: list[list[int]], refused: bool
) -> None:
    """A reader that searches an unsorted file leaves rows out and says nothing."""
    first = json.dumps([group[0] for group in groups]).encode()
    schema = SCHEMA.with_metadata({task_files.FIRST_BUCKETS: first})
    with pq.ParquetWriter(tmp_path / "file.parquet", schema) as file:
        for group in groups:
            size = len(group)
            columns = {name: [0] * size for name in SCHEMA.names} | {"bucket": group}
            file.write_table(pa.table(columns, schema=schema))
    reader = ContributionRows(str(tmp_path), TAKES, 4)
    if not refused:
        assert [reader.read(["file.parquet"], bucket).num_rows for bucket in range(4)] == [1] * 4
        return
    with pytest.raises(UnsortedRows):
        for bucket in range(4):
            reader.read(["file.parquet"], bucket)


def test_a_file_is_written_sorted(tmp_path: Path) -> None:
    """A writer of one era that trusts its caller makes a file whose rows are not found."""
    rows = pa.table({name: [0, 0] for name in SCHEMA.names} | {"bucket": [1, 0]}, schema=SCHEMA)
    with pytest.raises(UnsortedRows):
        ContributionFiles(str(tmp_path), SCHEMA, "window", 0, 64).write_era(rows, 0, 0)
