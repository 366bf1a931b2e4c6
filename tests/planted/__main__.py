"""Plant faults in copies of the tree, one in each, and run the tests that are said to find them: `python -m tests.planted [NAME ...]`.

    python -m tests.planted --no-jvm -n 2      all that need no JVM, two at a time
    python -m tests.planted "secret"           those with this in their names

First the tests run on a copy without a fault, so that a failure of another cause is not taken for a finding. The exit code is 1 if a fault
that is said to be found is not, or one that is said not to be found is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.planted.faults import CHECKOUT, Fault, read
from tests.planted.refit import refit_list

LEFT_OUT = (
    ".git",
    ".venv",
    ".jars",
    ".*_cache",
    ".hypothesis",
    "*.egg-info",
    "build",
    "dist",
    "demo-out",
    "spark-warehouse",
)
WHERE = (
    "import dpsql.jobs, dpsql.udfs; print(dpsql.__file__, dpsql.jobs.__file__, dpsql.udfs.__file__)"
)
SECONDS = {False: 300, True: 1200}
"""A test that takes longer has not said anything."""
PASSED = 0
FAILED = 1


def main(arguments: Sequence[str]) -> int:
    """The number of faults of which the list is wrong, as an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted",
        description="Plant faults and run the tests that are said to find them.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only faults with one of these in their names"
    )
    parser.add_argument("-n", dest="at_a_time", type=int, default=1, help="so many at a time")
    parser.add_argument(
        "--jvm",
        action=argparse.BooleanOptionalAction,
        help="only those whose tests start a JVM, or none of them",
    )
    parser.add_argument(
        "--refit",
        action="store_true",
        help="rewrite edits that a change of layout, not committed yet, has moved; run nothing",
    )
    given = parser.parse_args(arguments)
    if given.refit:
        by_hand = [*refit_list()]
        print("\n".join(by_hand))
        return 1 if by_hand else 0
    chosen = [
        fault
        for fault in read()
        if given.jvm in (None, fault.jvm)
        and (not given.names or any(n in fault.breaks for n in given.names))
    ]
    if not chosen:
        parser.error("no fault has such a name")
    with tempfile.TemporaryDirectory(prefix="dpsql-planted-") as folder:
        clean = _copy(CHECKOUT, Path(folder) / "clean")
        if problem := _without_faults(clean, chosen):
            print(problem)
            return 1
        with ThreadPoolExecutor(given.at_a_time) as pool:
            wrong = [
                fault.breaks
                for fault, right in pool.map(lambda fault: _planted(fault, clean, folder), chosen)
                if not right
            ]
    print(
        f"{len(chosen)} faults; the list is wrong of {len(wrong)}"
        + "".join(f"\n  {name}" for name in wrong)
    )
    return 1 if wrong else 0


def _without_faults(clean: Path, chosen: Sequence[Fault]) -> str | None:
    """What is wrong before anything is planted: another tree is imported, or a test fails by itself."""
    found = subprocess.run(
        [sys.executable, "-c", WHERE],
        cwd=clean,
        env=_environment(clean),
        capture_output=True,
        text=True,
        check=True,
    )
    if any(not place.startswith(str(clean)) for place in found.stdout.split()):
        return f"the copy is not what is imported: {found.stdout}"
    for jvm in (False, True):
        tests = dict.fromkeys(
            test for fault in chosen if fault.jvm is jvm and fault.file for test in fault.tests
        )
        # A test that is in a file that is asked for as a whole runs once.
        tests = [test for test in tests if "::" not in test or test.split("::")[0] not in tests]
        code, said = _pytest(clean, tests, SECONDS[jvm] * 4) if tests else (PASSED, "")
        if code != PASSED:
            return f"the tests fail without a fault: {said}"
    return None


def _planted(fault: Fault, clean: Path, folder: str) -> tuple[Fault, bool]:
    """Whether the list is right of it."""
    began = time.monotonic()
    with _tree(clean, folder) as tree:
        if fault.file:
            fault.plant(tree)
        code, said = _pytest(tree, fault.tests, SECONDS[fault.jvm])
    found = (
        {FAILED: True, PASSED: False} if fault.file else {PASSED: True, FAILED: False}
    )  # by its own test, which then passes
    right = found.get(code) is fault.is_found
    verdict = {True: "found", False: "SURVIVED", None: "NO ANSWER"}[found.get(code)]
    told = "" if right else "  <- the list says otherwise"
    print(
        f"{verdict:9} {time.monotonic() - began:5.0f} s  {fault.breaks}{told}\n{'':19}{said}",
        flush=True,
    )
    return fault, right


@contextmanager
def _tree(clean: Path, folder: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        yield _copy(clean, Path(place) / "tree")


def _copy(checkout: Path, target: Path) -> Path:
    shutil.copytree(checkout, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if (jars := checkout / ".jars").exists():
        (target / ".jars").symlink_to(jars.resolve())
    return target


def _pytest(tree: Path, tests: Sequence[str], seconds: int) -> tuple[int | None, str]:
    """The exit code, and the first failing test; no code if it took too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    running = subprocess.Popen(
        command,
        cwd=tree,
        env=_environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # with the processes that it has started
        running.communicate()
        return None, f"took more than {seconds} s"
    failed = re.search(r"^(FAILED|ERROR) (\S+)", said, flags=re.MULTILINE)
    return running.returncode, failed[2] if failed else said.strip().rsplit("\n", 1)[-1]


def _environment(tree: Path) -> dict[str, str]:
    """Whatever is started in it imports from the copy, before what is installed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(tree)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
