"""Who works on a run: the lock of a lake in a bucket is in a folder of this user, which nobody else may have made."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from dpsql.errors import ConfigError
from dpsql.files import ObjectPath
from dpsql.lake.running import exclusive, is_running

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
