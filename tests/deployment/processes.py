"""Real processes for tests: each in a session of its own, ended by its own id; afterwards no child and no open port is left."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Free ports on loopback; all are held open together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
    except OSError:
        return False
    return True


def wait_until(ready: Callable[[], bool], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """All descendants of a process, itself last. One that ends meanwhile has none."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [
                int(one) for one in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            ]
    return [grandchild for child in found for grandchild in children(child)] + [pid]


class Daemon:
    """One process of a service, with its log in a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, ready: Callable[[], bool], seconds: float = 90) -> None:
        def started() -> bool:
            assert self.alive, f"exited {self.process.returncode}: {self.log.read_text()[-2000:]}"
            return ready()

        wait_until(started, str(self.log), seconds)

    def kill(self) -> None:
        """A crash: SIGKILL for this process alone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, then what is left of its own process group; nothing of it survives."""
        family = children(self.process.pid)
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        wait_until(
            lambda: not any(running(pid) for pid in family), f"processes of {self.log.name} end", 30
        )


def running(pid: int) -> bool:
    """Whether a process is there, and not only its entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
