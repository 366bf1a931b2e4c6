"""Many processes that take from one ledger at once, some of them killed on the way: `python -m tests.unit.ledger_crowd FOLDER SEED`. Every
process appends lines until it is refused. A part of them ends by SIGKILL at a random moment, or at a point between the check of the cap and
the line: nothing written yet, written under another name, or linked and not yet sealed or told. Prints how many lines each was granted."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from dpsql.errors import BudgetError
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Cap
from tests.unit.test_ledger import DAY, LINE, costing

CAP = Cap(epsilon=20.0, delta=1e-3, period_us=DAY)
PROCESSES = 14
SECRET = Secret(bytes(range(32)))
POINTS = (
    "os.link before",
    "os.link after",
    "json.dumps before",
    "os.write before",
    "os.write after",
)
"""Where a process kills itself: the temporary file is written, the line is there, the cap is checked, the seal is not written, or it is."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point: str, after: int) -> None:
    """The next process image is real; only the moment of its death is chosen."""
    import dpsql.privacy.ledger as module

    passed = 0

    def watched(function, before: bool):  # type: ignore[no-untyped-def]
        def called(*given, **named):  # type: ignore[no-untyped-def]
            nonlocal passed
            passed += 1
            if before and passed > after:
                die()
            done = function(*given, **named)
            if passed > after:
                die()
            return done

        return called

    name, when = point.split()
    if name.startswith("os."):
        setattr(os, name[3:], watched(getattr(os, name[3:]), when == "before"))
    else:
        module.json.dumps = watched(module.json.dumps, True)


def append_until_refused(folder: Path, number: int, start: float) -> None:
    time.sleep(max(0.0, start - time.time()))
    for i in range(10_000):
        try:
            Ledger(folder, SECRET).append(
                costing(LINE, mu2=0.1, run_id=f"{number:016x}{i:016x}"), CAP
            )
        except BudgetError:
            return


def main(folder: Path, seed: int) -> None:
    pick = random.Random(seed)
    start = time.time() + 0.3
    children = {}
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            if number < len(POINTS):
                kill_at(POINTS[number], after=seed % 3)
            append_until_refused(folder, number, start)
            os._exit(0)
        children[child] = number
    for child in [
        child for child, number in children.items() if number % 4 == 3 and number >= len(POINTS)
    ]:
        time.sleep(max(0.0, start - time.time()) + pick.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
    ended = {children[child]: os.waitpid(child, 0)[1] for child in children}
    print(*(f"{number}:{ended[number]}" for number in sorted(ended)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
