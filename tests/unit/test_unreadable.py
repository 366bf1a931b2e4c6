"""A table that cannot be read ends a start, and a restore, with its name, its file and a command."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import LakeError
from dpsql.lake import delta_tables, restore, restore_points, unreadable
from dpsql.streaming.context import RunContext, RunTables
from dpsql.udfs.stage import ADMISSION, RELEASE
from tests.unit.test_killed_sweeps import RUN, Nights


def unlink(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4] + b"PAR2")


def words(file: Path) -> None:
    """Whole, and its details are no JSON any more."""
    table = pq.read_table(file)
    pq.write_table(table.set_column(6, "detail", pa.array(["{]"] * len(table))), file)


def keys(file: Path) -> None:
    """Whole, and its details lack a field."""
    table = pq.read_table(file)
    pq.write_table(table.set_column(6, "detail", pa.array(["{}"] * len(table))), file)


@pytest.fixture
def run(tmp_path: Path) -> Nights:
    made = Nights(tmp_path / "private" / "views")
    for number in range(3):
        made.night(number)
    delta_tables._open.clear()
    return made


def check(run: Nights) -> None:
    given: dict[str, Any] = {field.name: None for field in fields(RunContext)}
    given |= {
        "folder": run.folder,
        "histogram_path": run.public.path,
        "engine": run.engine,
        "run": SimpleNamespace(run_id=RUN, beside=()),
    }
    given["tables"] = RunTables(run.contributions, run.listed[ADMISSION], run.listed[RELEASE], RUN)
    given["query"] = SimpleNamespace(source=SimpleNamespace(name="visits"))
    RunContext(**given).check()


def mend(run: Nights) -> None:
    tables = restore_points.Tables(run.folder, run.public.path, RUN, run.engine)
    with unreadable.reading(tables.folder, tables.private | tables.public):
        restore._restore_stopped(tables, None, None, False)


@pytest.mark.parametrize(
    ("damage", "start"),
    [(damage, start) for damage in (unlink, empty, flip, words) for start in (check, mend)]
    + [(keys, mend)],
)
def test_a_damaged_file_of_the_listing(
    run: Nights, damage: Callable[[Path], None], start: Callable[[Nights], None]
) -> None:
    file = max((run.folder / "files").glob("*.parquet"), key=lambda each: each.stat().st_mtime_ns)
    damage(file)
    what = (
        f"the table files at {run.folder}/files says"
        if damage in (words, keys)
        else f"{file}, a file of the table files,"
    )
    command = f"dpsql restore views --lake {run.folder.parent.parent} --new-run"
    with pytest.raises(
        LakeError, match=rf"{re.escape(what)} cannot be read \(\w+\); .*{re.escape(command)}$"
    ):
        start(run)


def test_whatever_else_cannot_be_read_is_no_reason_for_a_new_run(run: Nights) -> None:
    with (
        pytest.raises(OSError, match="No space left"),
        unreadable.reading(run.folder, {"files": run.folder / "files"}),
    ):
        raise OSError(28, "No space left")
