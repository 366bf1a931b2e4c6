"""What a worker of Spark takes to start with each stage, beyond Spark's own worker: memory and CPU time.

The very function that Spark ships is pickled as Spark does it, loaded in a fresh process, and run on one small micro-batch.

    python benchmarks/worker_start.py        a table, medians of 5 processes each
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from dpsql.mechanisms.histogram.planner import make_plan  # noqa: E402
from dpsql.mechanisms.histogram.stages import stages  # noqa: E402
from dpsql.streaming.workers import MICRO_BATCH, shipped  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.intake.contribution_bounding import admit  # noqa: E402
from dpsql.udfs.keys import encode  # noqa: E402
from dpsql.udfs.release_plan import ReleasePlan  # noqa: E402
from dpsql.udfs.stage import ADMISSION, RELEASE, Clock, Tick  # noqa: E402
from dpsql.udfs.task_files import ContributionFiles, ContributionRows, ReleasedFiles  # noqa: E402
from dpsql.udfs.worker import MicroBatch, WorkerIntake, WorkerRelease  # noqa: E402
from tests.property.plans import COUNT, DAY, SUM, query, source  # noqa: E402

TURNS = 5

CHILD = """
import json, os, pickle, resource, sys, time
import numpy, pandas, pyarrow, pyspark.worker, pyspark.sql.streaming.state
def rss():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
before, memory, cpu = set(sys.modules), rss(), time.process_time()
what, given = sys.argv[1:3]
rows = None
if what == 'udfs':
    import dpsql.udfs.worker, dpsql.udfs.histogram.release
else:
    from pyspark.taskcontext import TaskContext
    with open(given, 'rb') as file:
        function, frame, properties = pickle.load(file), pickle.load(file), pickle.load(file)
    class State:
        exists, get, value = False, (), None
        def update(self, value):
            self.value = value
    TaskContext._getOrCreate()._localProperties = properties
    state = State()
    rows = sum(len(part) for part in function((0,), iter([frame]), state))
    assert state.value == (1,), state.value
print(json.dumps({
    'rows': rows, 'modules': sorted(set(sys.modules) - before), 'rss': rss() - memory, 'cpu': time.process_time() - cpu,
    'worker_rss': memory, 'worker_cpu': cpu}))
"""


def in_a_worker(what: str, folder: Path) -> dict[str, Any]:
    """Run a stage, or import `udfs` alone, in a process that has what Spark's own worker has: what came in by it."""
    given = folder / what
    if what != "udfs":
        function, frame, plan = STAGES[what](folder)
        told = {MICRO_BATCH: str(plan)}
        given.write_bytes(
            cloudpickle.dumps(function) + b"".join(pickle.dumps(part) for part in (frame, told))
        )
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-c", CHILD, what, str(given)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _records() -> pa.Table:
    key = encode([b"Home"])
    users = [
        int.from_bytes(hashlib.sha256(b"%d" % user).digest()[:8], "big", signed=True)
        for user in range(900)
    ]
    columns = {"user": users, "ts": [19_700 * DAY + user for user in range(900)], "key": [7] * 900}
    table = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    return pa.table(
        table | {"key_bytes": pa.array([key] * 900, pa.binary()), "a0": pa.array([1.0] * 900)}
    )


def _admission(folder: Path) -> tuple[Any, pd.DataFrame, MicroBatch]:
    stage, _ = stages(make_plan(query(aggregates=(COUNT, SUM)), source()))
    fields = [
        ("kind", pa.int32()),
        *stage.gives,
        ("bucket", pa.int32()),
        ("batch", pa.int64()),
        ("closed_us", pa.int64()),
    ]
    files = BucketFiles(str(folder / "state"), ADMISSION, 1, 1, tuple(stage.tables))
    contributions = ContributionFiles(
        str(folder / "contributions"), pa.schema(fields), "window", 0, 64 * DAY
    )
    return (
        shipped(WorkerIntake(stage, files, {}, contributions, 1, bytes(32))),
        _records().to_pandas(),
        MicroBatch(0, Clock()),
    )


def _release(folder: Path) -> tuple[Any, pd.DataFrame, ReleasePlan]:
    admission, stage = stages(make_plan(query(aggregates=(COUNT, SUM)), source()))
    records = _records().append_column("drop", pa.array(np.zeros(900, np.int8)))
    rows = admit(None, records, Clock(), admission.parameters).contributions
    rows = rows.append_column("bucket", pa.array(np.zeros(len(rows), np.int32)))
    fields = [("kind", pa.int32()), *stage.takes, ("bucket", pa.int32()), ("closed_us", pa.int64())]
    written = ContributionFiles(
        str(folder / "contributions"), pa.schema(fields), "window", 0, 64 * DAY
    ).write(rows, 0, 0)
    files = BucketFiles(str(folder / "state"), RELEASE, 1, 1, tuple(stage.tables))
    to = ReleasedFiles(str(folder / "released"), 1)
    given = ContributionRows(str(folder / "contributions"), stage.takes, 1)
    plan = ReleasePlan(-1, 1, tuple(file["path"] for file in written), (Tick(0, 19_702 * DAY),))
    return (
        shipped(WorkerRelease(stage, files, {}, given, to, bytes(32))),
        pd.DataFrame({"label": [0]}),
        plan,
    )


STAGES = {ADMISSION: _admission, RELEASE: _release}


def main() -> None:
    """Print the table."""
    print("| a worker with | modules | memory, MB | CPU, s |\n|---|---|---|---|")
    for what in ("udfs", *STAGES):
        turns = []
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as folder:
                turns.append(in_a_worker(what, Path(folder)))
        memory, cpu = (sorted(turn[name] for turn in turns)[TURNS // 2] for name in ("rss", "cpu"))
        print(f"| {what} | {len(turns[0]['modules'])} | {memory / 1e6:.0f} | {cpu:.2f} |")
    print(
        f"beyond Spark's own worker: {turns[0]['worker_rss'] / 1e6:.0f} MB, {turns[0]['worker_cpu']:.2f} CPU-s"
    )


if __name__ == "__main__":
    main()
