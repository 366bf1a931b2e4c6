"""What a worker imports for a step: the very function that Spark ships, unpickled and run in a process of its own.

A worker should know rows, not budgets: `udfs` and the scientific packages that Spark's own worker and `udfs` need. Today it imports more,
because the shipped functions are defined in `dpsql.streaming`; each such module stands below with its reason.

    python -m tests.unit.test_worker_imports        memory and CPU time of each step, beside a worker that imports `udfs` alone
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
import pytest
from pyspark import cloudpickle

from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.streaming import admission, release
from tests.property.plans import COUNT, DAY, SUM, query, source
from udfs.bucket_state import BucketFiles
from udfs.contribution_files import ContributionFiles
from udfs.histogram import group_state, user_state
from udfs.histogram.contribution_bounding import Clock, admit
from udfs.keys import encode
from udfs.stage import ADMISSION, RELEASE

CHECKOUT = Path(__file__).resolve().parents[2]

MAY = {"charset_normalizer", "cryptography", "numpy", "pandas", "pyarrow", "pyspark", "scipy", "scipy.linalg", "scipy.special", "udfs"}
"""What a step needs, and what these bring. Of scipy its parts count; names with an underscore are the insides of packages."""

SHIPPED_FROM = "the shipped function and what it calls are defined here"
OF_THE_SINK = "the driver's sink stands in the module of the shipped function"
TOO_MUCH = {
    SHIPPED_FROM: """dpsql dpsql.streaming dpsql.streaming.admission dpsql.streaming.release dpsql.streaming.clocks
        dpsql.streaming.spreading dpsql.streaming.wire""",
    OF_THE_SINK: """arro3 deltalake typing_extensions dpsql.errors dpsql.mechanisms dpsql.mechanisms.histogram
        dpsql.mechanisms.histogram.plan dpsql.parsed_query dpsql.lake.runs dpsql.lake.delta_rows dpsql.files dpsql.lake.checkpoints dpsql.lake.contributions
        dpsql.lake.runs.delta_tables dpsql.lake.hadoop_checksums dpsql.streaming.histogram dpsql.lake.manifest
        dpsql.lake.read_files dpsql.lake.sorted_file""",
}
"""Why a worker imports what it should not: budgets, planner and accountant among it. This list only shrinks."""
LISTED = {name for names in TOO_MUCH.values() for name in names.split()}

CHILD = """
import json, os, pickle, resource, sys, time
import numpy, pandas, pyarrow, pyspark.worker, pyspark.sql.streaming.state
def rss():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
before, memory, cpu = set(sys.modules), rss(), time.process_time()
what, given = sys.argv[1:3]
rows = None
if what == 'udfs':
    import udfs.bucket_state, udfs.histogram.contribution_bounding, udfs.histogram.release
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
    """Run a step, or import `udfs` alone, in a process that has what Spark's own worker has: what came in by it."""
    given = folder / what
    if what != "udfs":
        function, frame = STEPS[what](folder)
        parts = (function, frame, _told())
        given.write_bytes(cloudpickle.dumps(parts[0]) + b"".join(pickle.dumps(part) for part in parts[1:]))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", CHILD, what, str(given)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def foreign(modules: list[str]) -> set[str]:
    """What a step may not import: our own modules by name, others by package (of scipy: by its part)."""
    found = set()
    for module in modules:
        package, *parts = module.split(".")
        if package == "dpsql":
            found.add(module)
        elif package not in sys.stdlib_module_names and not package.startswith("_"):
            part = parts[0] if parts else ""
            found.add(f"scipy.{part}" if package == "scipy" and part and not part.startswith("_") and part != "version" else package)
    return found - MAY


def _told() -> dict[str, str]:
    from dpsql.streaming.clocks import PROPERTY

    return {PROPERTY: f"0,{-(1 << 62)},{1 << 62}"}


def _records() -> tuple[Any, pa.Table]:
    plan = make_plan(query(aggregates=(COUNT, SUM)), source())
    key = encode([b"Home"])
    users = [int.from_bytes(hashlib.sha256(b"%d" % user).digest()[:8], "big", signed=True) for user in range(900)]
    columns = {"user": users, "ts": [19_700 * DAY + user for user in range(900)], "key": [7] * 900}
    table = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    return plan, pa.table(table | {"key_bytes": pa.array([key] * 900, pa.binary()), "a0": pa.array([1.0] * 900)})


def _admission(folder: Path) -> tuple[Any, pd.DataFrame]:
    plan, rows = _records()
    parameters = bounding_parameters(plan)
    columns = admission.contribution_columns(parameters, len(plan.arguments))
    fields = [("kind", pa.int32()), *columns, ("bucket", pa.int32()), ("batch", pa.int64()), ("closed_us", pa.int64())]
    step = admission.AdmissionStep(
        BucketFiles(str(folder / "state"), ADMISSION, 1, 1, tuple(user_state.TABLES)),
        ContributionFiles(str(folder / "contributions"), pa.schema(fields), 0, 64 * DAY),
        parameters,
        1,
        len(plan.arguments),
        {},
    )
    return admission._spark_function(step), rows.to_pandas()


def _release(folder: Path) -> tuple[Any, pd.DataFrame]:
    plan, rows = _records()
    admitted = admit(
        None, rows.append_column("drop", pa.array(np.zeros(len(rows), np.int8))), Clock(), bounding_parameters(plan)
    ).contributions
    columns = admitted.schema.remove_metadata()
    step = release.ReleaseStep(
        BucketFiles(str(folder / "state"), RELEASE, 1, 1, tuple(group_state.TABLES)),
        release_parameters(plan),
        columns,
        1,
        bytes(32),
        {},
    )
    frame = admitted.to_pandas().assign(kind=np.int32(0), batch=np.int64(0), closed_us=np.int64(0))
    tick = frame.iloc[:1].assign(kind=np.int32(1), closed_us=np.int64(19_702 * DAY))
    return release._spark_function(step), pd.concat([frame, tick])


STEPS = {"admission": _admission, "release": _release}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came in by each step, and by `udfs` alone."""
    return {what: in_a_worker(what, tmp_path_factory.mktemp(what)) for what in ("udfs", *STEPS)}


def test_a_step_imports_udfs_and_what_is_listed(found: dict[str, dict[str, Any]]) -> None:
    for name in STEPS:
        assert found[name]["rows"] >= (1 if name == "admission" else 2)  # a report of the bucket, and released rows
        assert "udfs.bucket_state" in found[name]["modules"]
        assert foreign(found[name]["modules"]) - LISTED == set(), "a worker imports what it did not import before"


def test_the_list_only_shrinks(found: dict[str, dict[str, Any]]) -> None:
    everything = {module for step in STEPS for module in foreign(found[step]["modules"])}
    assert LISTED - everything == set(), "no worker imports these any more: take them from the list"


def test_udfs_alone_import_nothing_foreign(found: dict[str, dict[str, Any]]) -> None:
    assert "udfs.histogram.release" in found["udfs"]["modules"]
    assert foreign(found["udfs"]["modules"]) == set()


def main() -> None:
    """Print the table."""
    print("| a worker with | modules | memory, MB | CPU, s |\n|---|---|---|---|")
    for what in ("udfs", *STEPS):
        with tempfile.TemporaryDirectory() as folder:
            turns = [in_a_worker(what, Path(folder) if i == 0 else Path(tempfile.mkdtemp(dir=folder))) for i in range(5)]
        memory, cpu = (sorted(turn[name] for turn in turns)[2] for name in ("rss", "cpu"))
        print(f"| {what} | {len(turns[0]['modules'])} | {memory / 1e6:.0f} | {cpu:.2f} |")
    print(f"beyond Spark's own worker: {turns[0]['worker_rss'] / 1e6:.0f} MB, {turns[0]['worker_cpu']:.2f} CPU-s")


if __name__ == "__main__":
    main()
