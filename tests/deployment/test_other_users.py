"""Another user of the machine gets nothing of a job that is at work: no block, no file, no setting. Without the protection they get everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpsql import jars
from dpsql.lake.runs import Lake, read_run
from dpsql.privacy.secret import Secret
from tests.deployment.commands import CHECKOUT, environment
from tests.deployment.other_user import blocks_of, named, readable
from tests.deployment.workload import json_lines, visits, write_files, write_query

USER, RARE_KEY = "planted-user-5e1f", "planted-rare-page-0c77"
SECRET = bytes(range(190, 222))
pytestmark = pytest.mark.jvm


def adopted(folder: Path, *more: str) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, list[bytes]]]:
    """Blocks and files that a stranger reads of a live run in a session of the caller's, and the needles to look for."""
    for name in ("secret", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "secret" / "secret").write_bytes(SECRET)
    (folder / "secret" / "secret").chmod(0o600)
    planted = {"user_id": USER, "page": RARE_KEY, "ts": "2023-12-09T23:00:00Z", "seconds": 59.0}
    query, sources = write_query(folder, write_files(folder / "visits", json_lines([*visits(), planted])))
    command = [
        sys.executable,
        "-m",
        "tests.deployment.adopted_run",
        str(folder),
        str(query),
        str(sources),
        ",".join(map(str, jars.ensure())),
    ]
    job = subprocess.Popen(
        [*command, *more],
        env=environment(folder),
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        said = job.stdout.readline()
        assert said == "ready\n", said + job.communicate()[1]
        blocks = blocks_of(job.pid)
        files = {str(path): path.read_bytes() for path in readable(folder / "tmp")}
    finally:
        err = job.communicate("\n", timeout=120)[1]
    assert job.returncode == 0, err
    run = read_run(Lake(folder / "lake"), "adopted")
    secret = Secret(SECRET).of_ledger(run.ledger_id)
    return blocks, files, {
        "noise key": [secret.noise_key(run.run_id, run.query_identity)],
        "salt": [secret.salt(run.run_id)],
        "rows": [RARE_KEY.encode()],
    }  # fmt: skip


def test_an_adopted_session_serves_nothing(tmp_path: Path) -> None:
    blocks, files, _ = adopted(tmp_path)
    assert (blocks, files) == ({}, {})


def test_without_the_protection_the_same_client_finds_noise_key_salt_and_rows(tmp_path: Path) -> None:
    """The test above could not fail if its client found nothing anywhere."""
    blocks, files, needles = adopted(tmp_path, "open")
    assert named(needles, b"".join(blocks.values())) == {"noise key", "salt", "rows"}
    assert [name for name in files if "/shuffle_" in name]
