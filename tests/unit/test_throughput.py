"""The benchmarks of speed, as far as they go without a JVM: their stream, their table, and one point of the growth."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.growth import Load, cost, steady
from benchmarks.stream_files import INTERVAL_US, START_US, Stream
from benchmarks.throughput import costs


def test_a_file_is_an_interval_in_order_and_always_the_same(tmp_path: Path) -> None:
    stream = Stream(users=300, keys=50, rows=2000)
    files = sorted(stream.write(tmp_path / "a", 3).iterdir())
    again = sorted(stream.write(tmp_path / "b", 3).iterdir())
    for number, (one, other) in enumerate(zip(files, again, strict=True)):
        table = pq.read_table(one)
        assert table.equals(pq.read_table(other))
        ts = table["ts"].cast(pa.int64()).to_numpy()
        assert (ts[1:] >= ts[:-1]).all()
        assert (
            START_US + number * INTERVAL_US
            <= ts[0]
            <= ts[-1]
            < START_US + (number + 1) * INTERVAL_US
        )
    # Spark reads files in order of age.
    assert [path.stat().st_mtime for path in files] == sorted(
        path.stat().st_mtime for path in files
    )
    pages = pq.read_table(files[0])["page"].value_counts().field("counts").to_numpy()
    assert len(pages) <= 50 and pages.max() > 2 * pages.mean()


def test_costs_are_differences_and_the_first_half_does_not_count(tmp_path: Path) -> None:
    noted = [
        {
            "what": what,
            "batch": n,
            "time": float(n * n),
            "used": {"jvm": [1000, 10.0 * n], "workers": [500, 1.0 * n]},
            "peak": 1500,
            "state": 7 * n,
        }
        for n, what in enumerate(["started", "batch", "batch", "batch", "batch", "silent"])
    ]
    (tmp_path / "run.json").write_text(json.dumps(noted))
    found = costs(tmp_path / "run.json", "batch")
    assert [(c.wall, c.jvm, c.python, c.cpu, c.memory, c.state) for c in found] == [
        (5.0, 10.0, 1.0, 11.0, 1500 * 1024, 7),
        (7.0, 10.0, 1.0, 11.0, 1500 * 1024, 7),
    ]
    assert [c.wall for c in costs(tmp_path / "run.json", "silent")] == [9.0]


@pytest.mark.parametrize(
    "load",
    [
        Load(keys=50, users=200, rows=2000, triggers=12, windows=3),
        Load(keys=50, users=200, rows=2000),
    ],
)
def test_a_point_of_the_growth(load: Load) -> None:
    seconds, written = cost(load)
    assert seconds > 0 and written > 0


def test_a_whole_window_of_the_growth() -> None:
    """A state with another table, which ended the benchmark at its first trigger."""
    lines, _ = steady(Load(keys=50, users=40, rows=400, triggers=20))
    assert len(lines) == 7
