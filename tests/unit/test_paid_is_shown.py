"""What was paid for is on the screen or on the disk; where it could be on neither, nothing is paid."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from dpsql.jobs.cli import main
from dpsql.privacy.secret import default_secret_path
from dpsql.progress import show_note
from tests.unit.workplace import DAY, place

KEY = "東京"
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6, privacy_unit_column = user_id)
page, COUNT(DISTINCT user_id) AS people FROM visits GROUP BY window(ts, '1 day'), page"""
TRY = ["try", "q.sql", "--input", "v.parquet", "--until", "2026-01-02"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = place(tmp_path / "work")
    monkeypatch.chdir(folder)
    Path("q.sql").write_text(SQL)
    units = [f"u{number}" for number in range(500)]
    visits = pd.DataFrame({"user_id": units, "ts": pd.Timestamp(DAY), "page": KEY})
    visits.to_parquet("v.parquet")
    return folder


def ledger_lines() -> int:
    return len(list((default_secret_path(os.environ).parent / "ledger").glob("*.json")))


@pytest.mark.parametrize("charset", ["cp1252", "ascii"])
@pytest.mark.parametrize("flags", [[], ["--json"], ["--compare"], ["--compare", "--json"]])
def test_output_never_fails_for_a_character(work: Path, charset: str, flags: list[str]) -> None:
    """Catches: a paid answer that ends in an error of encoding."""
    done = CliRunner(charset=charset).invoke(main, [*TRY, *flags])
    assert done.exit_code == 0, done.output
    escaped = KEY.encode("unicode_escape").decode()
    assert escaped in done.stdout
    if "--json" in flags:
        assert json.loads(done.stdout)["rows"][0]["page"] == KEY


@pytest.mark.parametrize("place_name", ["full", "closed"])
def test_answers_that_stdout_cannot_take_go_to_stderr(work: Path, place_name: str) -> None:
    """Catches: an answer that is lost with a full disk or a pipe that nobody reads."""
    if place_name == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        unread, output = os.pipe()
        os.close(unread)
    command = [sys.executable, "-m", "dpsql.jobs.cli", *TRY]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)
    text = done.stderr.decode()
    assert done.returncode == 1 and KEY in text and "±" in text, text


def test_rows_that_no_file_takes_are_printed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: rows that are lost where the disk fills up after they are paid for."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dpsql.published.reader_frames.replace_file", fail)
    done = CliRunner().invoke(main, [*TRY, "--output", "rows.parquet"])
    assert done.exit_code == 0 and "the rows are printed" in done.stderr
    assert KEY in done.stdout and not Path("rows.parquet").exists()


def test_nothing_is_paid_where_no_file_can_be_written(work: Path) -> None:
    """Catches: epsilon that is spent before a full disk is met."""
    command = [sys.executable, "-m", "dpsql.jobs.cli", *TRY, "--output", "rows.parquet"]
    limit = 40_000  # a disk that has room for a ledger line, and for no file of rows
    done = subprocess.run(
        command,
        stderr=subprocess.PIPE,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 2 and b"rows.parquet: cannot write" in done.stderr, done.stderr
    assert ledger_lines() == 0


def test_notes_end_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: an answer that is lost since stderr is closed or cannot encode a name."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    show_note(KEY)
    sys.stderr.close()
    show_note("closed")
