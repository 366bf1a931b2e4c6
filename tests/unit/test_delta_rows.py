"""Rows of Delta tables: which ones, and without Python objects in Arrow's threads."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from dpsql.files import place
from dpsql.lake.delta_rows import read_rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a lake, 100% näive" / "rows"
    for part in range(3):
        rows = pa.table({"part": [part] * 4, "value": [part * 10 + i for i in range(4)]})
        write_deltalake(path, rows, partition_by=["part"], mode="append")
    return path


def test_columns_and_conditions(table: Path) -> None:
    assert sorted(read_rows(table)["value"].to_pylist()) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert read_rows(table, ["value"], pc.field("part") == 1).to_pydict() == {"value": [10, 11, 12, 13]}
    assert read_rows(place(f"file://{table}".replace("%", "%25")), ["part"]).num_rows == 12
    with pytest.raises(TableNotFoundError):
        read_rows(table / "not-there")


def test_no_python_object_reads_the_files(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that still holds one at the interpreter's end aborts the process, now and then: no test of the abort itself is certain."""

    def refused(*given: object) -> None:
        raise AssertionError("deltalake's file system in Python")

    monkeypatch.setattr(DeltaStorageHandler, "from_table", refused)
    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", refused)
    assert read_rows(table).num_rows == 12
