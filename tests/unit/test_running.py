"""Who works on a run: the lock of a lake in a bucket is in a folder of this user, which nobody else may have made."""

import os
import tempfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpsql.errors import ConfigError, LakeError
from dpsql.files import ObjectPath
from dpsql.lake.running import LOCK_FILE, exclusive, is_running
from dpsql.streaming.context import RunContext
from dpsql.udfs.stage import OPERATORS, RELEASE

LAKE = ObjectPath("s3a://bucket/lake/private/views")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_lock_of_a_lake_in_a_bucket_is_closed_to_others(temporary: Path) -> None:
    assert not is_running(LAKE)
    with exclusive(LAKE):
        assert is_running(LAKE)
        folders = [temporary / f"dpsql-{os.getuid()}", *(temporary / f"dpsql-{os.getuid()}").iterdir()]
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
        given: dict[str, Any] = {field.name: None for field in fields(RunContext)} | {"check_held": check_held}
        given |= {"engine": SimpleNamespace(parts={operator: SimpleNamespace(first=3) for operator in OPERATORS}, remember_query=id)}
        sink = RunContext(**given).remembering(RELEASE, lambda frame, batch: worked.append(batch))
        sink(SimpleNamespace(), 0)
        (tmp_path / LOCK_FILE).unlink()
        if again:
            with exclusive(tmp_path) as others:
                others()
        with pytest.raises(LakeError, match=r"running.json was removed or replaced while this run was at work.*start it again"):
            sink(SimpleNamespace(), 1)
    assert worked == [3]
