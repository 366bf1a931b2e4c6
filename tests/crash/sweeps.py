"""Catch-ups whose sweeps are killed, and runs that are damaged, saved and restored right after: nothing is lost by any of it.

    python -m tests.crash.sweeps [--nights 24] [--seed 1]

A night is a catch-up in this process; the sweep at its end is done by another one, which dies by SIGKILL before a change of the lake that is drawn.
Then, also drawn: a savepoint, taken before the sweep; a damage; and what the refused start says is done, to the letter. In the end the histogram
must be that of a run without nights, and `dpsql verify` must recompute it.
"""

import argparse
import json
import pickle
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpsql.errors import LakeError
from dpsql.jobs.cli import main as cli
from dpsql.lake import retention
from dpsql.lake.runs import read_run
from dpsql.lake.savepoints import take_savepoint
from dpsql.local.verification import verify_run
from dpsql.streaming import session
from dpsql.streaming.live import LiveOptions

CHECKOUT = Path(__file__).resolve().parents[2]
HOUR = 3_600_000_000
DAY = 86_400_000_000
START = 19_700 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '15 minutes'), page
"""
BOUNDS = {"MANY_FILES": 2, "LOG_COMMITS": 3, "KEPT_HOURS": 0, "VACUUM_HOURS": 0}
"""So small that each night has something to merge, to cut and to remove."""
CHANGES = 40
"""A sweep makes about so many changes of the lake then."""


KEPT: dict[Path, bytes] = {}
"""What a backup has of the files that were cut."""


def cut(path: Path) -> None:
    KEPT[path] = path.read_bytes()
    path.write_bytes(KEPT[path][: len(KEPT[path]) // 2])


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.name)


DAMAGES: dict[str, Callable[[Any], None]] = {
    "nothing": lambda one: None,
    "checkpoint of admission": lambda one: [
        shutil.rmtree(path) for path in one.private.glob("checkpoints/admission*")
    ],
    "checkpoint of release": lambda one: [
        shutil.rmtree(path) for path in one.private.glob("checkpoints/release*")
    ],
    "state of release": lambda one: cut(
        max(
            one.private.glob("state/release-*/g*/bucket=*/*.groups.parquet"),
            key=lambda path: path.stat().st_mtime,
        )
    ),
    "commit of contributions": lambda one: cut(
        newest(one.private / "contributions/_delta_log", "*.json")
    ),
    "commit of files": lambda one: cut(newest(one.private / "files/_delta_log", "*.json")),
    "commit of the histogram": lambda one: cut(
        newest(one.lake.histogram("demo") / "_delta_log", "*.json")
    ),
}  # type: ignore[dict-item]


def bring(folder: Path, night: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        (f"u{user}", f"p{page}", START + night * DAY + hour * HOUR + user * 3 + page)
        for hour in range(3)
        for user in range(40)
        for page in range(3)
    ]
    user, page, at = zip(*rows, strict=True)
    table = pa.table(
        {
            "user_id": pa.array(user),
            "page": pa.array(page),
            "ts": pa.array(at, pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, folder / f"part-{night:03d}.parquet")


def killed_nights(
    one: Any, nights: int, chance: random.Random, scratch: Path, tell: Callable[[str], None]
) -> None:
    """Go through the nights; raises where something is not as it should be.

    Args:
        one: the run, a `tests.streaming.conftest.Case`.
        nights: how many.
        chance: draws.
        scratch: for the sweeps that are to be killed.
        tell: is told of each night.
    """
    # Which `dpsql run` writes first.
    (one.private / "run.json").write_text(json.dumps({"version": 1, **asdict(one.run_id)}))
    damages = (chance.sample(list(DAMAGES), len(DAMAGES)) * nights)[:nights]
    for night, damage in enumerate(damages):
        saved = chance.random() < 0.5
        at = chance.randrange(CHANGES)
        died = list[bool]()

        def killed(
            self: Any,
            label: str = f"night{night}" if saved else "",
            at: int = at,
            died: list[bool] = died,
        ) -> None:
            if label:
                take_savepoint(one.lake, "demo", label)
            scratch.write_bytes(pickle.dumps((self, BOUNDS)))
            died.append(_dies(scratch, at))

        bring(one.folder, night)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(retention.Retention, "after_catch_up", killed)
            done = _go(one, night)
        DAMAGES[damage](one)
        if saved and damage == "nothing":
            done = f"{done}{_repaired(f'restore demo --lake {one.lake.root} --to night{night}')}"
        tell(
            f"night {night + 1}: {'killed before' if died == [True] else 'done with less than'} change {at + 1}; {damage}; {saved=}; {done}"
        )
    bring(one.folder, nights)
    tell(f"the last night: {_go(one, nights)}")


def reference(one: Any, nights: int) -> None:
    """The same input in one catch-up, and nothing happens to it."""
    one.go(START + (nights + 1) * DAY, buckets=(2, 2), live=LiveOptions(retention_us=2 * DAY))


def _dies(scratch: Path, at: int) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.broken_off", scratch, str(at)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def _go(one: Any, night: int) -> str:
    """A catch-up; if it is refused, what it says is done, and it is started again."""

    def start() -> None:
        one.go(START + (night + 1) * DAY, buckets=(2, 2), live=LiveOptions(retention_us=2 * DAY))

    before = _published(one)
    told = ""
    for _ in range(3):
        try:
            start()
            return told
        except LakeError as refused:
            command = re.search(r"run: dpsql (restore demo --lake \S+)$", str(refused))
            assert command, refused
            assert _published(one) in (before, None), "something was published"
            told += _repaired(command[1])
    raise AssertionError(f"refused again and again: {told}")


def _repaired(words: str) -> str:
    """Do what a message says. Of a commit before which nothing is left, as after a sweep that had ended, it says that it is to be put back."""
    done = CliRunner().invoke(cli, shlex.split(words))
    told = done.output.replace("\n", "; ")
    if "leave --to away" in told:
        # The sweep has removed what query 2 would begin with.
        return _repaired(words.partition(" --to")[0])
    if done.exit_code:
        lost = re.match(
            r"(\S+) is damaged, and what was before it is gone: nothing was touched. Put it back as it was, or ",
            told,
        )
        assert lost, told
        Path(lost[1]).write_bytes(KEPT[Path(lost[1])])
        return "put back; "
    return told


def _published(one: Any) -> Any:
    """None while the table cannot be read."""
    try:
        return one.histogram()
    except LakeError:
        return None


def same(one: Any, whole: Any) -> bool:
    """Whether both have published the same bits, which can be recomputed."""
    run = read_run(one.lake, "demo")
    assert len(one.histogram()) > 3
    return bool(
        one.histogram() == whole.histogram()
        and verify_run(one.lake, "demo", run, one.query, one.secret).identical
    )


def main() -> int:
    from tests.conftest import SMALL
    from tests.streaming.conftest import case_of

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = session.session("local[2]", SMALL)
        one, whole = (case_of(spark, folder, SQL, lake) for lake in ("lake1", "lake2"))
        killed_nights(
            one,
            given.nights,
            random.Random(given.seed),
            folder / "sweep",
            lambda text: print(text, flush=True),
        )
        reference(whole, given.nights)
        equal = same(one, whole)
        print(
            f"{given.nights} nights, {len(one.histogram())} rows: {'no difference' if equal else 'another histogram'}"
        )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
