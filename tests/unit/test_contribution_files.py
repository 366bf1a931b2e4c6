"""Contributions as the workers write them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.udfs.contribution_files import ContributionFiles

KEYS = [0, 1, -1, (1 << 63) - 1, -(1 << 63)]


def test_contributions_go_into_one_file_per_era(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "window": [-130, -64, 0, 63, 64],
            "key": KEYS,
            "key_bytes": pa.array([b"k"] * 5, pa.binary()),
            "bucket": pa.array([1] * 5, pa.int32()),
        }
    )
    first = [("kind", pa.int32()), ("bucket", pa.int32()), ("batch", pa.int64())]
    schema = pa.schema([*first, *rows.schema.remove(3), ("closed_us", pa.int64())])
    files = ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(rows, bucket=3, batch=7)
    assert [(f["partition"], f["rows"]) for f in files] == [({"era": e}, n) for e, n in (("-3", 1), ("-1", 1), ("0", 2), ("1", 1))]
    written = [pq.read_table(tmp_path / f["path"], partitioning=None) for f in files]
    assert all(t.schema.remove_metadata() == schema and set(t["batch"].to_pylist()) == {7} for t in written)
    assert [key for t in written for key in t["key"].to_pylist()] == KEYS
    assert all((tmp_path / f["path"]).stat().st_size == f["bytes"] for f in files)


def test_no_rows_no_files(tmp_path: Path) -> None:
    schema = pa.schema([("kind", pa.int32()), ("bucket", pa.int32()), ("window", pa.int64()), ("batch", pa.int64())])
    assert ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(schema.empty_table(), 0, 0) == []
    assert not list(tmp_path.iterdir())
