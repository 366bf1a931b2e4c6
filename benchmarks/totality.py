"""Every function, cast and operator of the dialect, with every type of its arguments, over extreme values on both engines.

    python benchmarks/totality.py                         # all: 40 minutes on one core, 4 GiB
    python benchmarks/totality.py --function date_trunc   # one function (several: repeat it)
    python benchmarks/totality.py --part 1/4              # every fourth expression

One and two arguments: every combination of types and, over them, of values; three and four: combinations drawn at random. Spark computes
them without generated code, which is quicker here; a tenth also with it. Prints one line per step, and each expression at which a job would
end; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from tests import totality  # noqa: E402
from tests.local.test_totality import PLAIN, Extremes  # noqa: E402

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Expressions of the dialect over extreme values.")
    parser.add_argument("--function", action="append", help="only calls of this function")
    parser.add_argument("--part", default="1/1", help="like 2/4: the second of four parts")
    asked = parser.parse_args()
    which, parts = (int(number) for number in asked.part.split("/"))

    def chosen(expressions: Sequence[str]) -> list[str]:
        wanted = [e for e in expressions if not asked.function or e.split("(")[0] in asked.function]
        return wanted[which - 1 :: parts]

    steps = (
        ("one", chosen([*totality.CRITICAL, *totality.of_one_argument()])),
        ("two", chosen(totality.of_two_arguments())),
        ("two", chosen(totality.of_more_arguments())),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = totality.write(Path(folder))
        return 1 if local(path, chosen) + spark(path, steps) else 0


def local(path: Path, chosen: Callable[[Sequence[str]], list[str]]) -> int:
    """The local engine: everything that it takes."""
    extremes = Extremes(path)
    wrong = 0
    for view, expressions in (
        ("one", totality.of_one_argument(PLAIN)),
        ("two", totality.of_two_arguments(PLAIN)),
    ):
        taken, failing = extremes.failures(chosen(expressions), view)
        wrong += told(f"locally, {view}", taken, failing)
    return wrong


def spark(path: Path, steps: Sequence[tuple[str, list[str]]]) -> int:
    """Spark, with and without generated code."""
    from dpsql import jars
    from dpsql.streaming.session import run_session, session
    from dpsql.streaming.totality import guarded

    os.environ["TZ"] = "UTC"
    time.tzset()
    settings = {
        "spark.jars": ",".join(map(str, jars.ensure())),
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
    }
    started = session("local[2]", settings)
    wrong = 0
    quick = run_session(started, 1)
    for key, value in INTERPRETED.items():
        quick.conf.set(key, value)
    usual = run_session(started, 1)
    for one in (quick, usual):
        totality.views(one, path)
    for view, expressions in steps:
        fitting = totality.accepted(quick, expressions, view)
        wrong += told(
            f"Spark, {view}", len(fitting), totality.failures(quick, fitting, view, guarded)
        )
        wrong += told(
            f"Spark with generated code, {view}",
            len(fitting[::10]),
            totality.failures(usual, fitting[::10], view, guarded),
        )
    started.stop()
    return wrong


def told(where: str, tried: int, failing: Sequence[str]) -> int:
    """One line, and the expressions that fail."""
    print(
        f"{where}: {tried:,} expressions, {len(failing)} end a job or leave the years 1 to 9999",
        flush=True,
    )
    for expression in failing:
        print(f"  {expression}", file=sys.stderr)
    return len(failing)


if __name__ == "__main__":
    sys.exit(main())
