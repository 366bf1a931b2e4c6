"""A setting that Spark itself refuses."""

import os
import socket
from pathlib import Path

import pytest

from tests.unit.test_misuse import SOURCES, SQL


@pytest.mark.jvm
def test_a_port_in_use(tmp_path: Path) -> None:
    """Spark says much of its own; the last line is ours."""
    import subprocess
    import sys

    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sources.yaml").write_text(SOURCES)
    (tmp_path / "views.sql").write_text(SQL)
    (tmp_path / "conf" / "visits").mkdir()
    checkout = Path(__file__).resolve().parents[2]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "spark.conf").write_text(
            f"spark.driver.port {taken.getsockname()[1]}\nspark.port.maxRetries 0\n"
        )
        words = [
            "-m",
            "dpsql.jobs.cli",
            "run",
            "views.sql",
            "--lake",
            "lake",
            "--properties-file",
            "spark.conf",
        ]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "Spark cannot listen on the port or address that its settings name (sparkDriver)"
    )
    assert "Traceback" not in done.stderr and done.stdout == ""
