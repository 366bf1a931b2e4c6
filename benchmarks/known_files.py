"""What files that were read long ago cost each micro-batch: our own code, without Spark's listing of the folder and its own log.

    python benchmarks/known_files.py [--files 500000] [--batches 40]

A run as it stands after so many micro-batches of a file each: Spark's log of its file source, and the run's own list. Then some more micro-batches:
what query 1's sink asks of both. Prints CPU-seconds of the start, and of a micro-batch (median and largest: Spark writes its whole log anew with
every tenth).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.throughput import machine  # noqa: E402
from dpsql.lake.manifest import Manifest  # noqa: E402
from dpsql.lake.read_files import ReadFiles  # noqa: E402
from dpsql.lake.spark_checkpoint import Checkpoint  # noqa: E402
from dpsql.udfs.stage import ADMISSION, StateFile  # noqa: E402

LISTED_TOGETHER = 1_000


def main() -> None:
    """Make the run, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, manifest = [_entry(number) for number in range(given.files)], Manifest(folder / "files", "5a" * 16, ADMISSION, 1)
        checkpoint = Checkpoint(folder / "checkpoint")
        for part in ("offsets", "sources/0"):
            (checkpoint.path / part).mkdir(parents=True)
        _plan(checkpoint, given.files - 1, log, compact=True)
        manifest.create()
        for first in range(0, given.files, LISTED_TOGETHER):
            paths = [json.loads(entry)["path"] for entry in log[first : first + LISTED_TOGETHER]]
            manifest.commit(first, [StateFile(0, first + 1, 1, {})], {"files": paths})
        began = time.process_time()
        read = ReadFiles(manifest.path, (), "")
        start, each = time.process_time() - began, []
        for batch in range(given.files, given.files + given.batches):
            log.append(_entry(batch))
            _plan(checkpoint, batch, log, compact=(batch + 1) % 10 == 0)
            began = time.process_time()
            position = checkpoint.position(batch)
            read.refuse_again(position["files"], batch)
            read.add(position["files"])
            each.append(time.process_time() - began)
            assert len(position["files"]) == 1
        print(
            f"{machine()}; {given.files:,} files: a start {start:.2f} CPU-s; a micro-batch {statistics.median(each):.4f}, at most {max(each):.4f}"
        )


def _entry(number: int) -> str:
    return json.dumps(
        {"path": f"file:///data/visits/part-{number:09d}.parquet", "timestamp": 1_700_000_000_000 + number, "batchId": number}
    )


def _plan(checkpoint: Checkpoint, batch: int, log: list[str], compact: bool) -> None:
    """What Spark writes before a micro-batch of one file."""
    (checkpoint.path / f"offsets/{batch}").write_text(
        "v1\n" + json.dumps({"batchTimestampMs": 0}) + "\n" + json.dumps({"logOffset": batch})
    )
    entries = log if compact else log[-1:]
    (checkpoint.path / f"sources/0/{batch}{'.compact' if compact else ''}").write_text("\n".join(["v1", *entries]))


if __name__ == "__main__":
    main()
