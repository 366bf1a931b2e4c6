"""What Spark needs of this machine, checked before a run is bound and a ledger line is written: Java, one Spark, a master that answers."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic, sleep

from dpsql.errors import ConfigError, Unreachable

JAVA_VERSIONS = (17, 21)
LAST_PORT = 65_535
ANSWER_SECONDS = 5.0
PAUSE_SECONDS = 1.0
MASTER_SECONDS = 60.0
"""How long one address of a master may take to answer, the pause before all are asked again, and how long that goes on."""

TESTED_SPARK = "4.2"
UNTESTED = "spark.dpsql.untestedSpark"
"""Set to true, another Spark is tried."""


def check_spark(
    master: str, environment: Mapping[str, str], tell: Callable[[str], None] = lambda text: None
) -> None:
    """Refuse a machine on which Spark would not start, in one line.

    Args:
        master: as of `--master`.
        environment: the process's.
        tell: is given a line before a master is tried again.

    Raises:
        ConfigError: Java is missing or of another version; SPARK_HOME is another Spark; the master is no address.
        Unreachable: nobody answers at the master.
    """
    _check_spark_home(environment.get("SPARK_HOME"))
    _check_java(environment.get("JAVA_HOME"))
    _check_master(master, tell)


def check_version(spark_version: str, is_accepted: bool) -> None:
    """Refuse a Spark that nothing here was tested with: this release uses parts of it that change without notice (state, checkpoints)."""
    if not is_accepted and ".".join(spark_version.split(".")[:2]) != TESTED_SPARK:
        raise ConfigError(
            f"this is Spark {spark_version}, and dpsql was tested with {TESTED_SPARK} alone: use that, or try this one with --untested-spark "
            f"({UNTESTED}=true), first on a run that may be lost"
        )


def _check_java(home: str | None) -> None:
    java = str(Path(home) / "bin" / "java") if home else "java"
    remedy = "install a JRE 17 or 21 (Debian, Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME to one"
    try:
        java_output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False
        ).stderr
    except OSError:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "Java is missing"
        raise ConfigError(f"{where}: {remedy}") from None
    match = re.search(r' version "(\d+)', java_output)  # like: openjdk version "17.0.15" 2025-04-15
    if match is None or int(match[1]) not in JAVA_VERSIONS:
        raise ConfigError(
            f"{java} is Java {match[1] if match else 'of an unknown version'}, and Spark needs 17 or 21: {remedy}"
        )


def _check_spark_home(home: str | None) -> None:
    """Refuse another Spark in SPARK_HOME: PySpark obeys it, and an older one fails late and strangely."""
    try:
        pyspark_version = version("pyspark")
    except PackageNotFoundError:
        raise ConfigError(
            "Spark is not installed: pip install 'dpsql[spark]', or run `make setup` in a checkout"
        ) from None
    if home is None:
        return
    core_jar = (
        next((Path(home) / "jars").glob("spark-core_*.jar"), None) if Path(home).is_dir() else None
    )
    if core_jar is None:
        raise ConfigError(
            f"SPARK_HOME is {home}, where there is no Spark: unset it, and the Spark that came with pyspark is taken"
        )
    home_version = core_jar.stem.rpartition("-")[2]
    if home_version != pyspark_version:
        raise ConfigError(
            f"SPARK_HOME is {home}, which is Spark {home_version}; dpsql runs on {pyspark_version}: unset SPARK_HOME, or name a Spark {pyspark_version}"
        )


def _check_master(master: str, tell: Callable[[str], None]) -> None:
    """Refuse a standalone master that does not answer; one that is started next to the run may take a moment."""
    if re.fullmatch(r"local(\[.*\])?|local-cluster\[.*\]|yarn|k8s://.+", master):
        return
    parts = re.fullmatch(r"spark://([^,/]+:\d+(?:,[^,/]+:\d+)*)", master)
    addresses = parts[1].split(",") if parts else []
    if not addresses or any(int(address.rpartition(":")[2]) > LAST_PORT for address in addresses):
        raise ConfigError(
            f"--master {master}: write it like local[2], spark://host:7077, yarn or k8s://https://host:6443"
        )
    end = monotonic() + MASTER_SECONDS
    is_told = False
    while reasons := _silent(addresses):
        silent = f"--master {master}: no answer there ({'; '.join(reasons)})"
        if monotonic() >= end:
            raise Unreachable(f"{silent}; start the master, or leave --master away")
        if not is_told:
            tell(f"{silent}; trying again for {MASTER_SECONDS:.0f} seconds")
            is_told = True
        sleep(PAUSE_SECONDS)


def _silent(addresses: Sequence[str]) -> list[str]:
    """Return why each address does not answer; nothing as soon as one does."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        except (OSError, UnicodeError) as problem:
            reasons.append(getattr(problem, "strerror", None) or str(problem))
        else:
            return []
    return reasons
