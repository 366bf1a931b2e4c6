"""The command line as users start it, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

SMALL_SPARK = """
spark.sql.shuffle.partitions 1
spark.ui.enabled false
spark.driver.memory 1g
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m
"""
"""Settings that make small runs fast, not other."""


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DPSQL_", "AWS_", "SPARK_"))
    }
    given = {
        "XDG_CONFIG_HOME": str(home / "config"),
        "PYTHONPATH": str(CHECKOUT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    return kept | given | more


def dpsql(
    *arguments: str, env: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpsql.jobs.cli", *arguments]
    return subprocess.run(
        command,
        env=dict(env),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
