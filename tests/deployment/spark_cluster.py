"""A standalone Spark cluster from the installed pyspark: one master and workers on loopback, each a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from dpsql import jars
from tests.deployment.commands import CHECKOUT, SMALL_SPARK
from tests.deployment.processes import Daemon, children, free_ports, listens, running, wait_until

SECRET = "planted-cluster-secret-77b1"
DAEMON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.worker.timeout=10"


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found and found.origin
    return Path(found.origin).parent


class Cluster:
    """A master and workers with one core each, for a `with` block; afterwards no process and no port of them is left."""

    def __init__(self, root: Path, environment: dict[str, str], workers: int = 2, protected: bool = True, rest: int = 0) -> None:
        self.root, self.count, self.protected = root, workers, protected
        self.rest = f"true\nspark.master.rest.port {rest}" if rest else "false"
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
        settings = self.root / "conf" / "spark-defaults.conf"
        settings.touch(mode=0o600)
        protection = "spark.authenticate true\nspark.network.crypto.enabled true\n" if self.protected else ""
        closed = f"spark.master.rest.enabled {self.rest}\nspark.ui.killEnabled false\n"
        settings.write_text(f"{protection}{closed}spark.authenticate.secret {SECRET}\n")
        self.master = self._daemon("master", "--port", str(self.port))
        self.master.wait_for(lambda: "New state: ALIVE" in self.master.log.read_text())
        self.workers = [self._daemon(f"worker{i}", "--cores", "1", "--memory", "1500m", self.url) for i in range(self.count)]
        for worker in self.workers:
            worker.wait_for(lambda log=worker.log: "Successfully registered with master" in log.read_text())  # type: ignore[misc]
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        family = [pid for daemon in (*self.workers, self.master) for pid in children(daemon.process.pid)]
        for daemon in (*self.workers, self.master):
            daemon.stop()
        wait_until(lambda: not any(running(pid) for pid in family), "executors end with their workers", 60)
        assert not listens(self.port)

    def submit(self, folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
        """spark-submit in a folder, for a script of the checkout; its driver has `folder/driver` for itself."""
        properties = folder / "spark.conf"
        local = "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\nspark.executor.memory 700m\n"
        local += "spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
        local += f"spark.local.dir {folder / 'driver'}\nspark.cleaner.referenceTracking false\n"
        properties.write_text(f"{SMALL_SPARK}{local}spark.jars {','.join(map(str, jars.ensure()))}\n")
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", self.url, "--load-spark-defaults"]
        pythons = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return subprocess.Popen(
            [*submit, "--properties-file", str(properties), str(CHECKOUT / script), *arguments],
            env=self.submitters | pythons | self.settings, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        return [
            pid for worker in self.workers for pid in children(worker.process.pid)[:-1] if "CoarseGrainedExecutorBackend" in command(pid)
        ]

    def executor_logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self.root / "work").glob("app-*/*/std*"))

    def _daemon(self, name: str, *arguments: str) -> Daemon:
        kind = "master.Master" if name == "master" else "worker.Worker"
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0"]
        return Daemon([*command, *arguments], self.root / f"{name}.log", self.environment, self.root)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
