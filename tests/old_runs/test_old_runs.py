"""Runs that commit 27b5d01 has left: this code verifies, shows and continues them, to the rows that 27b5d01 itself would have published.

Catches: another plan identity, other noise, ids or salt, a state file, checkpoint, table, ledger or register that is read otherwise.
"""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpsql.privacy.ledger import Ledger
from jobs.cli import main
from tests.frozen import digest
from tests.old_runs.archive import ARCHIVE, MADE_AT, NOT_KEPT, unpack
from tests.old_runs.cases import CASES, NAME, PATIENCE, bring, catch_up, compiled, lose, published, start, then

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def dpsql(folder: Path, command: str, *words: str, inputs: bool = False) -> str:
    """A command about the run of a case, as one would type it."""
    own = ["--secret-file", str(folder / "config" / "secret"), *(["--sources", str(folder / "sources.yaml")] if inputs else [])]
    lake = [] if command == "budget" else ["--lake", str(folder / "lake")]
    done = CliRunner().invoke(main, [command, *words, *lake, *(own if inputs or command == "budget" else [])])
    assert done.exit_code == 0, done.output
    return done.output


def verified(folder: Path) -> dict[str, Any]:
    """What `dpsql verify` says of the rows."""
    told = json.loads(dpsql(folder, "verify", NAME, "--json", inputs=True))
    return {name: told[name] for name in ("identical", "published", "recomputed", "differences")}


def ledger_lines(folder: Path) -> dict[str, bytes]:
    """The lines of the ledger, byte by byte; the register beside them may learn what is published since."""
    return {path.name: path.read_bytes() for path in sorted((folder / "config" / "ledger").glob("[0-9]*.json"))}


def continued(spark: SparkSession, folder: Path, savepoint: str) -> None:
    """The new files, and a catch-up; lost pieces first, where the case is about them."""
    if savepoint:
        lose(folder, "checkpoints", "state")
        assert "admission: goes on after micro-batch 3\n" in dpsql(folder, "restore", NAME, "--to", savepoint)
    bring(folder)
    assert catch_up(spark, folder, then(folder)).records > 0


def goes_on_as_it_was_promised(folder: Path, before: dict[str, bytes]) -> None:
    """The rows of 27b5d01, nothing spent, and a replay that agrees."""
    rows, expected = published(folder), pq.read_table(folder / "expected.parquet")
    assert rows.to_pylist() == expected.to_pylist()
    assert digest(rows) == digest(expected)
    assert ledger_lines(folder) == before
    assert len(Ledger.beside(folder / "config" / "secret").lines()) == len(before) == 1
    assert verified(folder) == {"identical": True, "published": rows.num_rows, "recomputed": rows.num_rows, "differences": 0}


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_as_it_was_left(tmp_path: Path, name: str) -> None:
    folder = unpack(name, tmp_path / "with a space")
    rows, before = published(folder), ledger_lines(folder)
    run = json.loads((folder / "lake" / "private" / NAME / "run.json").read_text())
    assert compiled(folder).plan.identity == run["query_identity"]
    assert verified(folder) == {"identical": True, "published": rows.num_rows, "recomputed": rows.num_rows, "differences": 0}
    (listed,) = json.loads(dpsql(folder, "list", "--json"))
    assert (listed["run_id"], listed["query_identity"]) == (run["run_id"], run["query_identity"])
    assert run["run_id"] in dpsql(folder, "budget", "--json")
    assert json.loads(dpsql(folder, "show", NAME, "--json"))
    assert dpsql(folder, "restore", NAME) == "nothing is lost: the run can go on as it is\n"
    assert ledger_lines(folder) == before
    # What it was continued to is more than what it had published, and those rows are among it.
    expected = pq.read_table(folder / "expected.parquet").to_pylist()
    assert [row for row in expected if row in rows.to_pylist()] == rows.to_pylist()
    assert len(expected) > rows.num_rows + 4


@pytest.mark.parametrize("name", CASES)
def test_it_is_unpacked_in_another_place_as_if_it_had_been_made_there(tmp_path: Path, name: str) -> None:
    """Catches: a path that was forgotten, and files whose times of change are not those that Spark has noted."""
    folder = unpack(name, tmp_path / "with a space")
    left = [path for path in folder.rglob("*") if path.is_file() and MADE_AT.encode() in path.read_bytes()]
    assert left == []
    assert not [path for path in folder.rglob("*") if path.name in NOT_KEPT]
    seen = {}
    for log in (folder / "lake" / "private" / NAME / "checkpoints").glob("admission*/sources/0/[0-9]*"):
        seen |= {entry["path"]: entry["timestamp"] for entry in map(json.loads, log.read_text().splitlines()[1:])}
    inputs = {path: path.stat().st_mtime_ns // 1_000_000 for path in (folder / "visits").iterdir()}
    assert {Path(unquote(urlsplit(uri).path)): changed for uri, changed in seen.items()} == inputs


def test_the_archive_is_small_and_nobodys() -> None:
    assert ARCHIVE.stat().st_size < 200_000
    with tarfile.open(ARCHIVE) as archive:
        for entry in archive:
            assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
            assert entry.name.split("/")[0] in CASES


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_to_the_same_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folder = unpack(name, tmp_path)
    before = ledger_lines(folder)
    continued(spark, folder, CASES[name].savepoint)
    goes_on_as_it_was_promised(folder, before)


def test_the_live_run_goes_on_live(spark: SparkSession, tmp_path: Path) -> None:
    """All its windows are over by now: when the clock of this start has passed, there are the same rows."""
    from dpsql.streaming.live import LiveOptions

    folder = unpack("live", tmp_path)
    before, expected = ledger_lines(folder), pq.read_table(folder / "expected.parquet")
    bring(folder)
    handle = start(spark, folder, live=LiveOptions(interval_us=1_000_000))
    limit = time.monotonic() + PATIENCE
    while handle.running and published(folder).num_rows < expected.num_rows and time.monotonic() < limit:
        time.sleep(0.5)
    assert handle.stop().stopped
    goes_on_as_it_was_promised(folder, before)
