"""Folders for temporary files and locks: closed, of this user alone, one per process, and gone after a hard kill."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpsql.errors import ConfigError, LakeError
from dpsql.files import ObjectPath
from dpsql.lake.running import LOCK_FILE, exclusive, is_running
from dpsql.local.connection import connect
from dpsql.scratch import closed, scratch
from dpsql.streaming.context import RunContext
from dpsql.udfs.stage import OPERATORS, RELEASE

HOLD = "import sys; from dpsql.scratch import scratch; folder = scratch(sys.argv[1]); (folder / 'rows').touch(); print(folder, flush=True)"


def held(base: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + "; input()", str(base)], stdin=-1, stdout=-1, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_closed_whatever_the_umask_and_the_same_at_every_call(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = scratch(tmp_path)
    finally:
        os.umask(before)
    assert folder == scratch(tmp_path) and folder.parent == tmp_path / f"dpsql-{os.getuid()}"
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}
    assert closed(folder / "not" / "there") and closed(folder)
    tmp_path.chmod(0o711)
    (open_one := tmp_path / "open").mkdir(mode=0o755)
    outside = [one for one in open_one.parents if not one.stat().st_mode & 0o011]
    assert closed(open_one) == bool(outside)


def test_what_a_killed_process_left_goes_at_the_next_start_and_what_is_in_use_stays(
    tmp_path: Path,
) -> None:
    killed, left = held(tmp_path)
    working, used = held(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (left / "rows").exists()
    polite, third = held(tmp_path)
    assert not left.exists() and (used / "rows").exists() and (third / "rows").exists()
    for process in (working, polite):
        process.communicate("\n")
    assert list((tmp_path / f"dpsql-{os.getuid()}").iterdir()) == []


def test_a_name_that_somebody_else_has_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"dpsql-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"not a folder of yours.*TMPDIR"):
        scratch(tmp_path)
    with pytest.raises(ConfigError, match=r"temporary files cannot be kept in /proc/none"):
        scratch("/proc/none")


def test_what_does_not_fit_into_memory_is_spilled_where_nobody_else_may_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = connect()
    folder = Path(connection.execute("SELECT current_setting('temp_directory')").fetchall()[0][0])
    connection.execute("SET memory_limit = '20MB'")
    connection.execute("SET threads = 1")
    connection.execute("CREATE TABLE t AS SELECT sha256(range::VARCHAR) AS a FROM range(400000)")
    assert list(folder.iterdir()) and closed(folder) and list(tmp_path.iterdir()) == []
    assert connect().execute("SELECT current_setting('temp_directory')").fetchall() != [
        (str(folder),)
    ]
    connection.close()
    assert not folder.exists()


LAKE = ObjectPath("s3a://bucket/lake/private/views")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_lock_of_a_lake_in_a_bucket_is_closed_to_others(temporary: Path) -> None:
    assert not is_running(LAKE)
    with exclusive(LAKE):
        assert is_running(LAKE)
        folders = [
            temporary / f"dpsql-{os.getuid()}",
            *(temporary / f"dpsql-{os.getuid()}").iterdir(),
        ]
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    assert not is_running(LAKE)


def test_a_folder_that_somebody_else_has_made_locks_nothing(temporary: Path) -> None:
    """Its owner could hold the lock for ever, or ask the run to stop."""
    (temporary / "theirs").mkdir()
    (temporary / f"dpsql-{os.getuid()}").symlink_to(temporary / "theirs")
    with pytest.raises(ConfigError, match=r"not a folder of yours.*TMPDIR"), exclusive(LAKE):
        pass
    assert list((temporary / "theirs").iterdir()) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_run_whose_lock_was_removed_goes_no_further(tmp_path: Path, again: bool) -> None:
    """Then another start gets in, before or after. Catches: two at work on one run, which release under one noise."""
    worked: list[int] = []
    with exclusive(tmp_path) as check_held:
        given: dict[str, Any] = {field.name: None for field in fields(RunContext)} | {
            "check_held": check_held
        }
        given |= {
            "engine": SimpleNamespace(
                parts={operator: SimpleNamespace(first=3) for operator in OPERATORS},
                remember_query=id,
            )
        }
        sink = RunContext(**given).remembering(RELEASE, lambda frame, batch: worked.append(batch))
        sink(SimpleNamespace(), 0)
        (tmp_path / LOCK_FILE).unlink()
        if again:
            with exclusive(tmp_path) as others:
                others()
        with pytest.raises(
            LakeError,
            match=r"running.json was removed or replaced while this run was working.*start it again",
        ):
            sink(SimpleNamespace(), 1)
    assert worked == [3]
