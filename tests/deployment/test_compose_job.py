"""The job's command in docker-compose.yml, run by sh as a container does: what it does after a kill, a wrong query and a stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deployment.commands import CHECKOUT, environment
from tests.deployment.processes import children, free_ports, running, wait_until
from tests.deployment.spark_cluster import command


class Container:
    """What Docker does with the job: it starts the command, and again when that ends, unless somebody has stopped it."""

    def __init__(self, folder: Path) -> None:
        job = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]["job"]
        self.restart = job["restart"]
        self.folder = folder
        self.refused = folder / "refused"
        self.log = folder / "log"
        master = f"spark://127.0.0.1:{free_ports(1)[0]}"
        places = {"spark://master:7077": master, "/tmp/refused": str(self.refused), "$$": "$"}
        self.words = list(job["command"])
        self.test = job["healthcheck"]["test"][1:]
        for there, here in places.items():
            self.words = [word.replace(there, here) for word in self.words]
            self.test = [word.replace(there, here) for word in self.test]
        self.environment = environment(
            folder,
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            DPSQL_LAKE=str(folder / "lake"),
            DPSQL_SOURCES=job["environment"]["DPSQL_SOURCES"],
            DPSQL_SECRET_FILE=str(folder / "secret/secret"),
        )
        self.restarts = -1
        self.start()

    def start(self) -> None:
        """Run the command."""
        self.restarts += 1
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def look(self) -> None:
        """Start the command anew if it has ended, as the file asks for."""
        assert self.restart == "unless-stopped"
        if self.process.poll() is not None:
            self.start()

    def is_healthy(self) -> bool:
        """Run the file's health check."""
        return subprocess.run(self.test, check=False).returncode == 0

    def is_at_work(self) -> bool:
        """Return whether the job is up, though its master is not."""
        self.look()
        return "trying again for 60 seconds" in self.log.read_text()

    def job(self) -> int:
        """Return the process of dpsql."""
        family = children(self.process.pid)
        return next(
            pid
            for pid in family
            if "conf-mounted/live/edits.sql" in command(pid) and "wait" not in command(pid)
        )

    def stop(self) -> int:
        """Stop it as Docker does, and return its exit code."""
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    (tmp_path / "conf-mounted").mkdir()
    live = tmp_path / "conf-mounted/live"
    live.mkdir()
    for name in ("edits.sql", "sources.yaml"):
        (live / name).write_text((CHECKOUT / "conf/live" / name).read_text())
    made = Container(tmp_path)
    yield made
    for pid in children(made.process.pid):
        if running(pid):
            os.kill(pid, signal.SIGKILL)
    made.process.wait()


def test_a_job_is_started_after_each_kill(container: Container) -> None:
    """Catches: a job that stays down after its third kill, and a stop that ends sh but not the job."""
    for kill in range(5):
        wait_until(container.is_at_work, f"the job is up after {kill} kills")
        assert container.is_healthy()
        os.kill(container.job(), signal.SIGKILL)
        assert container.process.wait(10) == 128 + signal.SIGKILL
    wait_until(container.is_at_work, "the job is up after five kills")
    assert container.restarts == 5
    job = container.job()
    assert container.stop() != 0
    assert not running(job)


def test_a_wrong_query_waits_for_a_person(container: Container) -> None:
    """Catches: a query that is tried for ever, or whose message is lost among others."""
    query = container.folder / "conf-mounted/live/edits.sql"
    right = query.read_text()
    container.stop()
    query.write_text(right.replace("max_rows_contributed", "max_row_contributed"))
    container.start()
    wait_until(container.refused.exists, "the query is refused")
    assert not container.is_healthy()
    said = container.log.read_text()
    assert "did you mean max_rows_contributed?" in said, said
    container.look()
    assert container.restarts == 1 and command(container.process.pid).startswith("sleep")
    assert container.stop() == -signal.SIGTERM
    # Mended, and the service restarted
    query.write_text(right)
    container.start()
    wait_until(container.is_at_work, "the job is up")
    assert container.is_healthy()


def test_a_stop_waits_for_a_micro_batch(container: Container) -> None:
    """Catches: a job that is killed in a micro-batch, and an exit code that is not its own."""
    container.stop()
    stand_in = container.folder / "bin/dpsql"
    stand_in.parent.mkdir()
    stand_in.write_text(
        "#!/bin/sh\ntrap 'sleep 1; echo stopped; exit 0' TERM\necho up\nwhile :; do sleep 0.1; done\n"
    )
    stand_in.chmod(0o755)
    container.environment["PATH"] = f"{stand_in.parent}:{container.environment['PATH']}"
    container.start()
    wait_until(lambda: container.log.read_text() == "up\n", "the stand-in is up")
    assert container.stop() == 0
    assert container.log.read_text() == "up\nstopped\n"
