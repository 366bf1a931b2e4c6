"""Benchmarks count every process of a run: those that are waited for, those that nobody waits for, and those whose parent has ended."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.processes import ProcessTree, measure_command

WORKERS = """
import os, signal, sys, time

def burn(seconds, folder):
    while time.process_time() < seconds:
        sum(range(1000))
    with open(f"{folder}/{os.getpid()}", "w") as file:
        file.write(str(time.process_time()))
    time.sleep(0.3)  # so that a sample sees all of it
    os._exit(0)

kind, folder = sys.argv[1:]
if kind == "ignored":  # the kernel reaps, and no parent gets their CPU
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(3):
    if kind == "short":  # most of them between two samples
        for _ in range(4):
            if not (pid := os.fork()):
                while time.process_time() < 0.1:
                    sum(range(1000))
                with open(f"{folder}/{os.getpid()}", "w") as file:
                    file.write(str(time.process_time()))
                os._exit(0)
            os.waitpid(pid, 0)
    elif not (pid := os.fork()):
        if kind == "orphans" and os.fork():  # its parent ends, as Spark's JVM does before its daemon
            time.sleep(0.3)
            os._exit(0)
        burn(0.25, folder)
    elif kind != "ignored":
        os.waitpid(pid, 0)
time.sleep(0.8 if kind in ("ignored", "orphans") else 0)
"""


@pytest.mark.parametrize("kind", ["waited for", "short", "ignored", "orphans"])
def test_workers_that_end_are_counted(tmp_path: Path, kind: str) -> None:
    """Catches: only the CPU of children that a parent has waited for, or of those that are alive at the end."""
    before = os.times()
    measured = measure_command([sys.executable, "-c", WORKERS, kind, str(tmp_path)])
    truth = sum(float(path.read_text()) for path in tmp_path.iterdir())
    assert truth > 0.7
    assert truth * 0.9 < measured.seconds < truth * 1.1 + 0.3
    waited_for = sum(os.times()[2:4]) - sum(before[2:4])
    assert (waited_for < truth / 2) is (kind in ("ignored", "orphans"))
    assert 5_000 < measured.peak < 500_000


def test_a_process_is_sampled_from_inside() -> None:
    tree = ProcessTree(os.getpid())
    before = tree.sample()
    assert set(before) == {"driver", "jvm", "workers"}
    assert before["driver"][1] == pytest.approx(sum(os.times()[:2]), abs=0.1)
    for _ in range(40):
        used = tree.sample()
    assert used["driver"][1] == pytest.approx(before["driver"][1], abs=0.1)


def test_a_command_that_fails_says_what_it_printed() -> None:
    with pytest.raises(SystemExit, match="broken"):
        measure_command([sys.executable, "-c", "print('broken'); raise SystemExit(3)"])
