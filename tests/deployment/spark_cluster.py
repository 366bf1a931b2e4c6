"""A standalone Spark cluster from the installed pyspark, as docs/deployment.md says: one master and workers on loopback, each a process of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.deployment.commands import CHECKOUT, SMALL_SPARK
from tests.deployment.processes import Daemon, children, free_ports, listens, running, wait_until

SHARE, RUN, SUBMIT, COMPOSE = re.findall(
    r"^```\n(.*?)^```$",
    (CHECKOUT / "docs/deployment.md").read_text().partition("\n## Cluster\n")[2],
    re.MULTILINE | re.DOTALL,
)[:4]
"""Commands of the page: the settings that all processes share, the two ways to run a query, and what is done with docker-compose.yml."""
DAEMON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.worker.timeout=10"


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found and found.origin
    return Path(found.origin).parent


class Cluster:
    """A master and workers with one core each, for a `with` block; afterwards no process and no port of them is left."""

    def __init__(
        self,
        root: Path,
        environment: dict[str, str],
        workers: int = 2,
        protected: bool = True,
        rest: int = 0,
    ) -> None:
        self.root = root
        self.count = workers
        self.protected = protected
        self.rest = rest
        self.port = free_ports(1)[0]
        self.url = f"spark://127.0.0.1:{self.port}"
        self.settings = {"SPARK_CONF_DIR": str(root / "conf")}
        """Where the secret is: master, workers and whoever submits have the same."""
        self.submitters = environment
        self.environment = (
            environment
            | self.settings
            | {
                "SPARK_HOME": str(spark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": DAEMON,
                "SPARK_WORKER_DIR": str(root / "work"),
                "SPARK_LOCAL_DIRS": str(root / "local"),
                "PYSPARK_PYTHON": sys.executable,
            }
        )
        # What the workers run comes from the driver: they know no checkout.
        self.environment.pop("PYTHONPATH", None)

    def __enter__(self) -> Cluster:
        (self.root / "conf").mkdir(parents=True)
        subprocess.run(["sh", "-c", SHARE], env=os.environ | self.settings, check=True)
        text = (settings := self.root / "conf" / "spark-defaults.conf").read_text()
        self.secret = text.split()[-1]
        if not self.protected:
            text = text.replace("spark.authenticate true\nspark.network.crypto.enabled true\n", "")
        if self.rest:
            text = text.replace(
                "rest.enabled false", f"rest.enabled true\nspark.master.rest.port {self.rest}"
            )
        settings.write_text(text)
        self.master = self._daemon("master", "--port", str(self.port))
        self.master.wait_for(lambda: "New state: ALIVE" in self.master.log.read_text())
        self.workers = [
            self._daemon(f"worker{i}", "--cores", "1", "--memory", "1500m", self.url)
            for i in range(self.count)
        ]
        for worker in self.workers:
            worker.wait_for(
                lambda log=worker.log: "Successfully registered with master" in log.read_text()
            )  # type: ignore[misc]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        family = [
            pid for daemon in (*self.workers, self.master) for pid in children(daemon.process.pid)
        ]
        for daemon in (*self.workers, self.master):
            daemon.stop()
        wait_until(
            lambda: not any(running(pid) for pid in family), "executors end with their workers", 60
        )
        assert not listens(self.port)

    def start(
        self, commands: str, folder: Path, query: Path, *flags: str, script: str = ""
    ) -> subprocess.Popen[str]:
        """`RUN` or `SUBMIT` in a folder, with this cluster, a query of ours, the lake `folder/lake` and more flags.

        Args:
            script: of the checkout, in the place of the one that the page submits.
        """
        properties = folder / "more.conf"
        local = "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\nspark.executor.memory 700m\n"
        local += "spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
        properties.write_text(
            f"{SMALL_SPARK}{local}spark.local.dir {folder / 'driver'}\nspark.cleaner.referenceTracking false\n"
        )
        commands = commands.replace(
            "spark-defaults.conf\n",
            f"spark-defaults.conf && cat {properties} >> spark-defaults.conf &&\n",
            1,
        )
        for there, here in (
            ("spark://master:7077", self.url),
            ("conf/queries/demo.sql", str(query)),
            ("/mnt/lake", str(folder / "lake")),
        ):
            assert there in commands
            commands = commands.replace(there, here)
        if script:
            commands = re.sub(r'"\$\(.*\)"', str(CHECKOUT / script), commands)
        return subprocess.Popen(
            ["sh", "-c", f"{commands.rstrip()} {shlex.join(flags)}"],
            env=self.submitters | {"PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"} | self.settings,
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        return [
            pid
            for worker in self.workers
            for pid in children(worker.process.pid)[:-1]
            if "CoarseGrainedExecutorBackend" in command(pid)
        ]

    def executor_logs(self) -> str:
        return "".join(
            path.read_text(errors="replace") for path in (self.root / "work").glob("app-*/*/std*")
        )

    def _daemon(self, name: str, *arguments: str) -> Daemon:
        kind = "master.Master" if name == "master" else "worker.Worker"
        command = [
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        return Daemon(
            [*command, *arguments], self.root / f"{name}.log", self.environment, self.root
        )


def command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
