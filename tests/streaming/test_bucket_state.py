"""State files: the same bytes for the same tables, never half a file, never another version."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.udfs.bucket_state import BucketFiles, DamagedState, filesystem

TABLE = pa.table(
    {
        "user": pa.array([1, -(1 << 63)]),
        "noise": pa.FixedSizeListArray.from_arrays(pa.array([0.1, 0.2, 0.3, 0.4]), 2),
    }
)


def files(root: Path | str) -> BucketFiles:
    return BucketFiles(str(root), "release", 16, 2, ("groups", "pending"))


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    tables = {
        "groups": TABLE.replace_schema_metadata({b"closed_us": b"-5"}),
        "pending": TABLE.slice(0, 0),
    }
    size, digests = files(tmp_path).store(7, 41, tables)
    found = files(tmp_path).load(7, 41)
    assert all(found[name].equals(table) for name, table in tables.items())
    assert {name: table.schema.metadata for name, table in found.items()} == {
        "groups": {b"closed_us": b"-5"},
        "pending": None,
    }
    paths = sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    )
    assert paths == [
        "release-16/g2/bucket=0007/000041.groups.parquet",
        "release-16/g2/bucket=0007/000041.pending.parquet",
    ]
    files(tmp_path).check(7, 41, all_bytes=True, digests=digests)
    with pytest.raises(
        DamagedState, match=r"000041.groups.parquet is another file than the one that was listed"
    ):
        files(tmp_path).check(7, 41, all_bytes=True, digests={"groups": digests["pending"]})
    assert size == sum((tmp_path / path).stat().st_size for path in paths)


def test_a_retry_overwrites_a_file_with_itself(tmp_path: Path) -> None:
    whole = TABLE
    chunked = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 1)])
    path = tmp_path / "release-16/g2/bucket=0000/000001.groups.parquet"
    contents = []
    for table in (whole, chunked, whole):
        files(tmp_path).store(0, 1, {"groups": table, "pending": table})
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_a_missing_version_is_loud(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files(tmp_path).load(0, 1)


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    files(tmp_path).store(0, 1, {"groups": TABLE, "pending": TABLE})
    pq.write_table(TABLE, tmp_path / "release-16/g2/bucket=0000/000001.groups.parquet")
    with pytest.raises(ValueError, match="is unknown; this release reads version"):
        files(tmp_path).load(0, 1)


def test_all_tables_of_a_bucket_are_stored_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is made of"):
        files(tmp_path).store(0, 1, {"groups": TABLE})


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_paths_and_uris(tmp_path: Path, form: str) -> None:
    root = form.format(tmp_path / ("a b" if form == "{}" else "a%20b"))
    files(root).store(0, 1, {"groups": TABLE, "pending": TABLE})
    assert (tmp_path / "a b" / "release-16").is_dir()
    assert files(root).load(0, 1)["groups"].equals(TABLE)


def test_hadoops_names_of_s3_are_understood() -> None:
    for scheme in ("s3a", "s3n", "s3"):
        system, path = filesystem(f"{scheme}://bucket/a/b?region=eu-west-1")
        assert (system.type_name, path) == ("s3", "bucket/a/b")
