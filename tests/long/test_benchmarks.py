"""Benchmarks that start Spark, at a tiny size: none may die unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TINY = {
    "throughput": "--streams small --engines count dpsql --rows 2000 --batches 4 --warm 4 --silent 1 --no-page",
    "triggers": "--rows 1000 --users 500 --turns 4 --silent 2 --paused 2 --pause 1",
}


@pytest.mark.jvm
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_benchmark_prints_its_table(tmp_path: Path, name: str) -> None:
    command = [sys.executable, str(CHECKOUT / "benchmarks" / f"{name}.py"), *TINY[name].split()]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) >= 4 and len({len(cells) for cells in rows}) == 1
