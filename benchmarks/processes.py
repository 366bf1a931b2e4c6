"""CPU and memory of a process and of all that it starts, sampled from /proc: the one way in which runs of Spark are measured.

What a parent waits for is not all: Spark's JVM ends its Python daemon without waiting for it, and so loses the CPU of every worker. Here a
process that ends counts with what it had at the last sample, unless a living parent has waited for it and counts it itself. Only what starts
and ends between two samples, without a parent that waits, is lost.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.2
TICK = os.sysconf("SC_CLK_TCK")
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
Used = dict[str, tuple[int, float]]
"""Kind (driver, jvm, workers) -> resident kB and CPU seconds so far."""


@dataclass(frozen=True)
class Process:
    """A living process; CPU seconds of its own, and of the children that it has waited for."""

    name: str
    parent: int
    session: int
    start: int
    own: float
    reaped: float
    resident: int

    @property
    def seconds(self) -> float:
        """CPU of the process and of the children that it has waited for."""
        return self.own + self.reaped


def living() -> dict[int, Process]:
    """Read all processes of the machine."""
    return {
        int(folder.name): process
        for folder in Path("/proc").glob("[0-9]*")
        if (process := _read(folder))
    }


def _read(folder: Path) -> Process | None:
    try:
        head, _, tail = (folder / "stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    ticks = [int(count) / TICK for count in fields[11:15]]
    return Process(
        head.partition("(")[2],
        int(fields[1]),
        int(fields[3]),
        int(fields[19]),
        ticks[0] + ticks[1],
        ticks[2] + ticks[3],
        int(fields[21]) * PAGE_KB,
    )


class ProcessTree:
    """What a process, all that it starts and all of its session have used; in samples."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak = 0
        """Resident kB of all together, at most; pages that processes share count in each."""
        self._members = dict[int, Process]()
        self._lost = 0.0
        self._looking = 0.0
        self._ended = Counter[str]()
        self._lock = threading.Lock()

    def sample(self) -> Used:
        """Look at all processes once. What looking costs this process itself does not count."""
        began = time.thread_time()
        with self._lock:
            members = self._find_members(living())
            self._count_ended(members)
            self._members = members
            own_cost = self._looking if self.root == os.getpid() else 0.0
            resident = Counter[str]()
            own = Counter[str](self._ended)
            for pid, process in members.items():
                resident[self._kind(pid, process)] += process.resident
                own[self._kind(pid, process)] += process.own
            self.peak = max(self.peak, resident.total())
            own["workers"] = self.seconds - own["driver"] - own["jvm"]
            own["driver"] -= own_cost
            self._looking += time.thread_time() - began
            return {kind: (resident[kind], own[kind]) for kind in ("driver", "jvm", "workers")}

    @property
    def seconds(self) -> float:
        """CPU of all, at the last sample."""
        return self._lost + sum(process.seconds for process in self._members.values())

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample meanwhile."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(STEP_SECONDS):
                self.sample()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            is_over.set()
            watching.join()

    def _find_members(self, processes: dict[int, Process]) -> dict[int, Process]:
        """Whoever descends from the root, is of its session, or was a member before its parent ended."""
        members = {
            pid: process
            for pid, process in processes.items()
            if pid == self.root
            or process.session == self.root
            or (pid in self._members and self._members[pid].start == process.start)
        }
        while found := {
            pid: process
            for pid, process in processes.items()
            if pid not in members and process.parent in members
        }:
            members |= found
        return members

    def _count_ended(self, members: dict[int, Process]) -> None:
        """Keep what ended processes have used, unless the nearest living ancestor counts it."""
        owed = Counter[int]()
        for pid, process in self._members.items():
            if pid not in members or members[pid].start != process.start:
                self._ended[self._kind(pid, process)] += process.own
                owed[self._living_ancestor(process, members)] += process.seconds
        for ancestor, seconds in owed.items():
            known = self._members.get(ancestor)
            waited_for = members[ancestor].reaped - known.reaped if known else 0.0
            self._lost += max(seconds - waited_for, 0.0)

    def _living_ancestor(self, process: Process, members: dict[int, Process]) -> int:
        """Follow parents as they were at the last sample; 0 if none is alive."""
        pid = process.parent
        while pid not in members:
            if pid not in self._members:
                return 0
            pid = self._members[pid].parent
        return pid

    def _kind(self, pid: int, process: Process) -> str:
        if pid == self.root:
            return "driver"
        return "jvm" if process.name == "java" else "workers"


@dataclass(frozen=True)
class Measured:
    """A command that has ended: what it printed, seconds of wall clock, CPU seconds and resident kB of all of its processes."""

    printed: str
    wall: float
    seconds: float
    peak: int


def measure_command(command: Sequence[str], **how: Any) -> Measured:
    """Run a command with all of its processes sampled; one that fails ends the benchmark with what it printed."""
    began = time.perf_counter()
    before = os.times()
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **how,
    )
    tree = ProcessTree(started.pid)
    with tree.sampled():
        printed, _ = started.communicate()
    wall = time.perf_counter() - began
    if started.returncode:
        raise SystemExit(printed)
    after = os.times()
    reaped = sum(after[2:4]) - sum(before[2:4])
    return Measured(printed, wall, max(tree.seconds, reaped), tree.peak)
