"""The two real steps over a workload, with buckets of users and of keys shared out among processes.

Each process draws the whole stream, admits the records of its own user buckets and releases its own key buckets; in between it hands
what it admitted for the others' keys over, in files, as the engine hands them over in the `contributions` table. Buckets do not know
of each other, so the released rows are the same for any number of processes and buckets.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from benchmarks.workload import DAY, SLICES, Workload, identifiers, records
from dpsql.local.feeder import split
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import bounding_parameters
from dpsql.udfs.columns import Bool, Int
from dpsql.udfs.intake.contribution_bounding import admit
from dpsql.udfs.stage import Clock


@dataclass(frozen=True)
class Job:
    """A plan over a workload. batches: micro-batches, each followed by a tick that closes its part of the day."""

    plan: PrivacyPlan
    scale: float
    seed: int
    batches: int

    @property
    def buckets(self) -> int:
        """Buckets of users, and of keys: small enough for the processor's caches, and few where there is little to do."""
        return max(2, round(16 * self.scale))


@dataclass(frozen=True)
class Usage:
    """Wall and CPU seconds of the whole, and the sum of the processes' peaks of resident memory, in bytes."""

    wall: float
    cpu: float
    memory: int


class Consumer(Protocol):
    """What one process does with the contributions to its keys."""

    def take(self, batch: int, contributions: pa.Table, closed_us: int, truth: Int) -> None:
        """One micro-batch, and what the keys' unbounded counts are after it."""

    def result(self) -> Any:
        """Sent to the parent at the end."""


Make = Callable[[Job, int, int, Bool], Consumer]
"""(job, number of the process, processes, which keys are its own) -> consumer; a plain function of a module."""


def run(
    job: Job, make: Make, processes: int, progress: Callable[[int], None]
) -> tuple[list[Any], Usage]:
    """The results of all processes in order; `progress` is told how many records have been read. One process: this one."""
    start = time.perf_counter()
    if processes == 1:
        before = _cpu_seconds()
        result = _share(job, make, 0, 1, lambda contributions, _: contributions, progress)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return [result], Usage(time.perf_counter() - start, _cpu_seconds() - before, peak * 1024)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    results: dict[int, Any] = {}
    cpu = 0.0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        tempfile.TemporaryDirectory(prefix="contributions-") as folder,
        contextlib.ExitStack() as stack,
    ):
        pipes: dict[Connection, int] = {}
        for number in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(job, make, number, processes, Path(folder), barrier, theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            stack.callback(process.join)
            pipes[ours] = number
        while len(results) < processes:
            for pipe in wait(list(pipes)):
                kind, *said = pipe.recv()  # type: ignore[union-attr]
                if kind == "read":
                    progress(said[0])
                elif kind == "failed":
                    raise RuntimeError(said[0])
                else:
                    results[pipes.pop(pipe)] = said[0]  # type: ignore[call-overload]
                    cpu = cpu + said[1]
                    memory = memory + said[2]
    return [results[number] for number in range(processes)], Usage(
        time.perf_counter() - start, cpu, memory * 1024
    )


def _work(
    job: Job,
    make: Make,
    number: int,
    processes: int,
    folder: Path,
    barrier: Barrier,
    parent: Connection,
) -> None:
    try:
        pa.set_cpu_count(1)
        exchange = Exchange(number, processes, job.buckets, folder, barrier)
        result = _share(
            job,
            make,
            number,
            processes,
            exchange,
            lambda read: parent.send(("read", read)) if number == 0 else None,
        )
        parent.send(
            ("done", result, _cpu_seconds(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        )
    except BaseException:
        barrier.abort()
        parent.send(("failed", traceback.format_exc()))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _share(
    job: Job,
    make: Make,
    number: int,
    processes: int,
    exchange: Callable[[pa.Table, int], pa.Table],
    progress: Callable[[int], None],
) -> Any:
    workload = Workload.of(job.scale, job.seed)
    bounding = bounding_parameters(job.plan)
    ids = identifiers(np.arange(workload.keys))
    consumer = make(job, number, processes, _owner(ids, job.buckets, processes) == number)
    states: list[pa.Table | None] = [None] * job.buckets
    truth = np.zeros(workload.keys, np.int64)
    for batch in range(job.batches):
        first, last = (SLICES * b // job.batches for b in (batch, batch + 1))
        user, key, ts = workload.slices(first, last)
        truth += np.bincount(key, minlength=len(truth))
        mine = _owner(identifiers(user), job.buckets, processes) == number
        parts = []
        # Nothing that still comes has a closed trigger, so the bounds see the clock of the tick before.
        clock = Clock(DAY * first // SLICES)
        for bucket, rows in split(records(user[mine], key[mine], ts[mine]), "user", job.buckets):
            admission = admit(states[bucket], rows, clock, bounding)
            states[bucket] = admission.state
            parts.append(admission.contributions)
        contributions = exchange(pa.concat_tables(parts), batch)
        consumer.take(batch, contributions, DAY * last // SLICES, truth)
        progress(int(workload.edges[last]))
    return consumer.result()


def _owner(ids: Int, buckets: int, processes: int) -> Int:
    return ids % buckets % processes


@dataclass(frozen=True)
class Exchange:
    """Hands over what belongs to other processes' keys; returns what belongs to one's own."""

    number: int
    processes: int
    buckets: int
    folder: Path
    barrier: Barrier

    def __call__(self, admitted: pa.Table, batch: int) -> pa.Table:
        """One micro-batch; waits for all processes."""
        owner = _owner(admitted.column("key").to_numpy(), self.buckets, self.processes)
        others = [other for other in range(self.processes) if other != self.number]
        for other in others:
            _write(
                admitted.filter(pa.array(owner == other)),
                self.folder / f"{batch}-{self.number}-{other}",
            )
        parts = [admitted.filter(pa.array(owner == self.number))]
        self.barrier.wait(timeout=1800)
        for other in others:
            path = self.folder / f"{batch}-{other}-{self.number}"
            with pa.OSFile(str(path)) as file:
                parts.append(pa.ipc.open_file(file).read_all())
            path.unlink()
        return pa.concat_tables(parts)


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def by_bucket(contributions: pa.Table, batch: int, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The contributions of every key bucket that has any, with their arrival batch."""
    rows = contributions.append_column(
        "batch", pa.array(np.full(contributions.num_rows, batch, np.int64))
    )
    return split(rows, "key", buckets)
