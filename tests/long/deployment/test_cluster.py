"""A standalone cluster on loopback: what is shipped is enough, and a killed worker or executor changes no row."""

import os
import re
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from dpsql.lake.runs import Lake
from dpsql.published.public_rows import read_histogram
from tests.deployment.commands import dpsql, environment
from tests.deployment.other_user import answers, blocks_of, listening, readable, shown_of
from tests.deployment.processes import children, free_ports, wait_until
from tests.deployment.spark_cluster import RUN, SUBMIT, Cluster, command
from tests.deployment.workload import UNTIL, json_lines, visits, write_files, write_query

PARTS = 3
IMPATIENT = f"""#!{sys.executable}
from dpsql.jobs.cli import main
from dpsql.streaming import executors
executors.SAY_SECONDS, executors.END_SECONDS = 5.0, 20.0
main()
"""


def committed(lake: Path) -> int:
    """Micro-batches of the first query that Spark has finished."""
    return len(
        [
            path
            for path in (lake / "private/visits/checkpoints/admission/commits").glob("*")
            if path.name.isdigit()
        ]
    )


def rows(lake: Path) -> pa.Table:
    order = [("window_start", "ascending"), ("trigger", "ascending"), ("page", "ascending")]
    return read_histogram(Lake(lake), "visits").sort_by(order)


def strangers_get_nothing(folder: Path, secret: str, jobs: list[int]) -> None:
    """No port of driver, master, workers and executors serves a block; no file is open to others; the secret stands in no command line.
    That the client would find blocks is shown in tests/long/deployment/test_other_users.py."""
    assert all(listening(children(pid)) for pid in jobs)
    for pid in jobs:
        assert blocks_of(pid) == {}
        assert secret.encode() not in shown_of(pid)
    for place in ("driver", "cluster/local"):
        assert list((folder / place).rglob("shuffle_*")) or place == "driver"
        assert readable(folder / place) == []


def test_rows_are_recomputed_after_kills(tmp_path: Path) -> None:
    """The page's spark-submit; an executor is killed after the first micro-batch, a worker after the second. `dpsql verify` recomputes
    every published row on one core, without Spark."""
    query, sources = write_query(
        tmp_path, write_files(tmp_path / "visits", json_lines(visits()), PARTS)
    )
    lake = tmp_path / "lake"
    env = environment(tmp_path)
    with Cluster(tmp_path / "cluster", env) as cluster:
        job = cluster.start(
            SUBMIT, tmp_path, query, "--sources", str(sources), "--until", UNTIL, "--buckets", "2"
        )
        try:
            wait_until(
                lambda: committed(lake) >= 1 or job.poll() is not None, "the first micro-batch", 400
            )
            assert job.poll() is None, job.communicate()
            strangers_get_nothing(
                tmp_path,
                cluster.secret,
                [job.pid, *(daemon.process.pid for daemon in (cluster.master, *cluster.workers))],
            )
            os.kill(cluster.executors()[0], signal.SIGKILL)
            wait_until(
                lambda: committed(lake) >= 2 or job.poll() is not None,
                "the second micro-batch",
                400,
            )
            assert job.poll() is None, job.communicate()
            cluster.workers[1].kill()
            out, err = job.communicate(timeout=300)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        logs = cluster.executor_logs()
    assert job.returncode == 0, err
    assert "\npublished 2 triggers with 6 rows\n" in out, out
    assert committed(lake) == PARTS
    daemons = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "cluster").glob("*.log")
    )
    assert "Successfully registered with master" in daemons
    assert cluster.secret not in daemons + logs + out + err
    # what the executors say of failed tasks shows no record
    assert "Traceback" not in logs
    assert not [user for user in ("u17", "u99") if user in logs.split()]
    verified = dpsql("verify", "visits", "--lake", str(lake), "--sources", str(sources), env=env)
    assert verified.stdout.startswith("identical: all "), verified.stdout + verified.stderr
    assert set(rows(lake)["page"].to_pylist()) == {"p0", "p1", "p2"}


def test_a_cluster_that_runs_the_programs_of_strangers_is_refused(tmp_path: Path) -> None:
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", json_lines(visits())))
    env, (port,) = environment(tmp_path), free_ports(1)
    with Cluster(tmp_path / "cluster", env, workers=0, rest=port) as cluster:
        assert answers([cluster.master.process.pid])[f"127.0.0.1:{port}"]["ran"]
        flags = ["--sources", str(sources), "--lake", str(tmp_path / "lake"), "--until-caught-up"]
        refused = dpsql(
            "run", str(query), *flags, "--master", cluster.url, env=env | cluster.settings
        )
    assert refused.returncode == 2
    assert f"runs the programs of whoever connects to its port {port}, " in refused.stderr
    assert "`spark.master.rest.enabled false`" in refused.stderr
    assert not (tmp_path / "lake").exists()  # nothing is begun or spent


def test_strangers_get_nothing_of_a_live_run_and_it_ends_when_its_master_has_forgotten_it(
    tmp_path: Path,
) -> None:
    """The page's `dpsql run`, live. Every port of driver, master, worker and executor is asked to run, to kill and to tell something. That
    the client would find something is shown above. A master that was killed and started anew knows no application, and takes its executors
    away: Spark would wait for others for ever."""
    today = [
        visit | {"ts": f"{datetime.now(UTC):%Y-%m-%d}{visit['ts'][10:]}"} for visit in visits()
    ]
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", json_lines(today)))
    env = environment(tmp_path)
    lake = ["--lake", str(tmp_path / "lake")]
    with Cluster(tmp_path / "cluster", env, workers=1) as cluster:
        (tmp_path / "dpsql").write_text(IMPATIENT)
        (tmp_path / "dpsql").chmod(0o700)
        job = cluster.start(
            RUN.replace(" --until-caught-up", ""), tmp_path, query, "--sources", str(sources)
        )
        try:
            wait_until(
                lambda: committed(tmp_path / "lake") >= 1 or job.poll() is not None,
                "the backlog",
                200,
            )
            assert job.poll() is None, job.communicate()
            processes = {
                "driver": job.pid,
                "master": cluster.master.process.pid,
                "worker": cluster.workers[0].process.pid,
            }
            for name, pid in processes.items():
                asked = answers(children(pid))
                assert name != "driver" or len(asked) == 4, (
                    "RPC, blocks, and py4j's two: all else between Python and JVM goes by files"
                )
                for place, got in asked.items():
                    print(
                        f"{name} {place}: {got['is']}, {len(got['pages'])} pages, {len(got['blocks'])} blocks"
                    )
                    assert not got["ran"] and not got["blocks"], (name, place)
                    assert not re.findall(rf"{cluster.secret}|\bu17\b", str(got["pages"])), (
                        name,
                        place,
                    )
            assert len(cluster.executors()) == 1 and job.poll() is None, "a stranger has killed it"
            cluster.master.kill()
            cluster.master = cluster._daemon("master", "--port", str(cluster.port))
            out, err = job.communicate(timeout=200)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    assert job.returncode == 1, out + err
    assert (
        "warning: this run has no executor: " in err
        and "the same command continues from there" in err
    ), err
    failed = dpsql("status", "visits", *lake, env=env)
    assert failed.returncode == 4 and failed.stdout.startswith("visits: failed;"), failed.stdout


def test_a_live_run_without_its_cluster_stops_at_once(tmp_path: Path) -> None:
    """Catches: a machine that shuts down, and kills the run after its grace, since its micro-batch waits for executors."""
    today = [
        visit | {"ts": f"{datetime.now(UTC):%Y-%m-%d}{visit['ts'][10:]}"} for visit in visits()
    ]
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", json_lines(today)))
    env = environment(tmp_path)
    lake = tmp_path / "lake"
    live = RUN.replace(" --until-caught-up", "")
    with Cluster(tmp_path / "cluster", env, workers=1) as cluster:
        job = cluster.start(
            live, tmp_path, query, "--sources", str(sources), "--interval", "2 seconds"
        )
        try:
            checkpoints = lake / "private/visits/checkpoints"
            released = checkpoints / "release/commits/0"
            wait_until(lambda: released.exists() or job.poll() is not None, "a release", 200)
            assert job.poll() is None, job.communicate()
            for pid in cluster.executors():
                os.kill(pid, signal.SIGKILL)
            cluster.workers[0].kill()
            cluster.master.kill()
            (tmp_path / "visits/late.json").write_bytes(json_lines(today)[0])
            wait_until((checkpoints / "admission/offsets/1").exists, "a micro-batch that waits", 60)
            time.sleep(2)
            driver = next(pid for pid in children(job.pid) if "/dpsql run" in command(pid))
            began = time.monotonic()
            os.kill(driver, signal.SIGTERM)
            out, err = job.communicate(timeout=200)
            took = time.monotonic() - began
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    assert job.returncode == 0, out + err
    assert "stopped; the same command continues from here" in err, err
    assert took < 30, took
    flags = ["--lake", str(lake), "--sources", str(sources)]
    again = dpsql("run", str(query), *flags, "--until-caught-up", "--master", "local[1]", env=env)
    assert again.returncode == 0, again.stderr
    verified = dpsql("verify", "visits", *flags, env=env)
    assert verified.stdout.startswith("identical: all "), verified.stdout + verified.stderr
