"""Another user of the machine gets nothing of a job that is at work: no block, no file, no setting. Without the protection they get everything."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from dpsql import jars
from dpsql.lake.runs import Lake, read_run
from dpsql.privacy.secret import Secret
from tests.deployment.commands import CHECKOUT, SMALL_SPARK, environment
from tests.deployment.other_user import blocks_of, named, readable
from tests.deployment.processes import wait_until
from tests.deployment.spark_cluster import SUBMIT, Cluster
from tests.deployment.unprotected_run import AT_WORK
from tests.deployment.workload import UNTIL, json_lines, visits, write_files, write_query

USER = "planted-user-5e1f"
RARE_KEY = "planted-rare-page-0c77"
SECRET = bytes(range(190, 222))


def adopted(
    folder: Path, *more: str
) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, list[bytes]]]:
    """Blocks and files that a stranger reads of a live run in a session of the caller's, and the needles to look for."""
    query, sources = plant(folder)
    (folder / "tmp").mkdir()
    command = [
        sys.executable, "-m", "tests.deployment.adopted_run", str(folder), str(query), str(sources), ",".join(map(str, jars.ensure())),
    ]  # fmt: skip
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    job = subprocess.Popen(
        [*command, *more], env=environment(folder), cwd=CHECKOUT, text=True, **pipes
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
    return blocks, files, needles_of(Lake(folder / "lake"), "adopted")


def needles_of(lake: Lake, name: str) -> dict[str, list[bytes]]:
    run = read_run(lake, name)
    secret = Secret(SECRET).of_ledger(run.ledger_id)
    return {
        "noise key": [secret.noise_key(run.run_id, run.query_identity)],
        "salt": [secret.salt(run.run_id)],
        "rows": [RARE_KEY.encode()],
    }


def plant(folder: Path) -> tuple[Path, Path]:
    """The secret in its place, and the query with its sources; one record has the planted key."""
    place = folder / "secret" / "secret"
    place.parent.mkdir(parents=True)
    place.write_bytes(SECRET)
    place.chmod(0o600)
    planted = {"user_id": USER, "page": RARE_KEY, "ts": "2023-12-09T23:00:00Z", "seconds": 59.0}
    return write_query(folder, write_files(folder / "visits", json_lines([*visits(), planted])))


def found_of(job: subprocess.Popen[str], folder: Path, others: Iterable[int] = ()) -> set[str]:
    """What a stranger finds of an unprotected run, in its own processes and in others, when all is published and Spark still there."""
    at_work = folder / AT_WORK
    try:
        wait_until(lambda: at_work.exists() or job.poll() is not None, "all is published", 120)
        assert job.poll() is None, job.communicate()
        blocks = [block for pid in (job.pid, *others) for block in blocks_of(pid).values()]
        at_work.unlink()
        err = job.communicate(timeout=60)[1]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert job.returncode == 0, err
    return named(needles_of(Lake(folder / "lake"), "visits"), b"".join(blocks))


def test_an_adopted_session_serves_nothing(tmp_path: Path) -> None:
    blocks, files, _ = adopted(tmp_path)
    assert (blocks, files) == ({}, {})


def test_without_the_protection_the_same_client_finds_noise_key_salt_and_rows(
    tmp_path: Path,
) -> None:
    """The test above could not fail if its client found nothing anywhere."""
    blocks, files, needles = adopted(tmp_path, "open")
    assert named(needles, b"".join(blocks.values())) == {"noise key", "salt", "rows"}
    assert [name for name in files if "/shuffle_" in name]


def flags_of(folder: Path, sources: Path) -> list[str]:
    lake = [
        "--sources",
        str(sources),
        "--lake",
        str(folder / "lake"),
        "--secret-file",
        str(folder / "secret" / "secret"),
    ]
    return [*lake, "--until-caught-up", "--until", UNTIL, "--buckets", "1"]


def test_so_it_does_with_a_local_master_and_with_a_cluster(tmp_path: Path) -> None:
    """Nor could `test_least_privilege.py` and `test_cluster.py` fail, which ask the same client."""
    local = tmp_path / "local"
    submitted = tmp_path / "submitted"
    query, sources = plant(local)
    properties = local / "spark.conf"
    properties.write_text(
        f"{SMALL_SPARK}spark.jars {','.join(map(str, jars.ensure()))}\nspark.cleaner.referenceTracking false\n"
    )
    command = [
        sys.executable,
        "-m",
        "tests.deployment.unprotected_run",
        "run",
        str(query),
        *flags_of(local, sources),
    ]
    job = subprocess.Popen(
        [*command, "--master", "local[1]", "--properties-file", str(properties)], env=environment(local), cwd=local,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert found_of(job, local) == {"noise key", "salt", "rows"}
    query, sources = plant(submitted)
    with Cluster(
        submitted / "cluster", environment(submitted), workers=1, protected=False
    ) as cluster:
        job = cluster.start(
            SUBMIT,
            submitted,
            query,
            *flags_of(submitted, sources),
            script="tests/deployment/unprotected_run.py",
        )
        assert found_of(job, submitted, [cluster.workers[0].process.pid]) == {
            "noise key",
            "salt",
            "rows",
        }
