"""A standalone cluster on loopback: what is shipped is enough, and a killed worker or executor changes no row."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pyarrow as pa

from dpsql.lake.published import read_histogram
from dpsql.lake.runs import Lake
from tests.deployment.commands import dpsql, environment
from tests.deployment.other_user import blocks_of, listening, readable, shown_of
from tests.deployment.processes import children, wait_until
from tests.deployment.spark_cluster import SECRET, Cluster
from tests.deployment.workload import UNTIL, json_lines, visits, write_files, write_query

PARTS = 3


def committed(lake: Path) -> int:
    """Micro-batches of the first query that Spark has finished."""
    return len([path for path in (lake / "private/visits/checkpoints/admission/commits").glob("*") if path.name.isdigit()])


def rows(lake: Path) -> pa.Table:
    order = [("window_start", "ascending"), ("trigger", "ascending"), ("page", "ascending")]
    return read_histogram(Lake(lake), "visits").sort_by(order)


def strangers_get_nothing(folder: Path, jobs: list[int]) -> None:
    """No port of driver, master, workers and executors serves a block; no file is open to others; the secret stands in no command line.

    That the client would find blocks is shown in tests/long/deployment/test_other_users.py.
    """
    assert all(listening(children(pid)) for pid in jobs)
    for pid in jobs:
        assert blocks_of(pid) == {}
        assert SECRET.encode() not in shown_of(pid)
    for place in ("driver", "cluster/local"):
        assert list((folder / place).rglob("shuffle_*")) or place == "driver"
        assert readable(folder / place) == []


def test_rows_are_recomputed_after_kills(tmp_path: Path) -> None:
    """spark-submit to a master; an executor is killed after the first micro-batch, a worker after the second.

    `dpsql verify` recomputes every published row on one core, without Spark.
    """
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", json_lines(visits()), PARTS))
    lake, env = tmp_path / "lake", environment(tmp_path)
    with Cluster(tmp_path / "cluster", env) as cluster:
        flags = ["--sources", str(sources), "--lake", str(lake), "--until-caught-up", "--until", UNTIL, "--buckets", "2"]
        job = cluster.submit(tmp_path, "jobs/run_query.py", str(query), *flags)
        try:
            wait_until(lambda: committed(lake) >= 1 or job.poll() is not None, "the first micro-batch", 400)
            assert job.poll() is None, job.communicate()
            strangers_get_nothing(tmp_path, [job.pid, *(daemon.process.pid for daemon in (cluster.master, *cluster.workers))])
            os.kill(cluster.executors()[0], signal.SIGKILL)
            wait_until(lambda: committed(lake) >= 2 or job.poll() is not None, "the second micro-batch", 400)
            assert job.poll() is None, job.communicate()
            cluster.workers[1].kill()
            out, err = job.communicate(timeout=300)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        logs = cluster.executor_logs()
    assert job.returncode == 0, err
    # Spark counts the input of a map task again that it repeats for a lost executor; the rows below are exact.
    told = re.search(r"^read ([\d,]+) records$\n^published 2 triggers with 6 rows$", out, re.MULTILINE)
    assert told and int(told[1].replace(",", "")) >= 360, out
    assert committed(lake) == PARTS
    daemons = "".join(path.read_text(errors="replace") for path in (tmp_path / "cluster").glob("*.log"))
    assert "Successfully registered with master" in daemons
    assert SECRET not in daemons + logs + out + err
    # what the executors say of failed tasks shows no record
    assert "Traceback" not in logs
    assert not [user for user in ("u17", "u99") if user in logs.split()]
    verified = dpsql("verify", "visits", "--lake", str(lake), "--sources", str(sources), env=env)
    assert verified.stdout.startswith("identical: all "), verified.stdout + verified.stderr
    assert set(rows(lake)["page"].to_pylist()) == {"p0", "p1", "p2"}
