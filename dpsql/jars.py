"""The jars that Spark needs besides its own, resolved once by the Ivy that pyspark ships.

    python -m dpsql.jars conf/spark-defaults.conf        fetch them and write the properties file for spark-submit
    python -m dpsql.jars conf/spark-defaults.conf s3     the same with those for s3a://

`conf/ivy.xml` names them by configuration and `conf/jars.sha256` pins their bytes. They are kept in `.jars` of the checkout; where dpsql was
installed as a wheel, in `~/.cache/dpsql/jars` (`XDG_CACHE_HOME`).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from dpsql.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parent.parent
IN_CHECKOUT = (CHECKOUT / "conf" / "ivy.xml").is_file()
CONF = CHECKOUT / "conf" if IN_CHECKOUT else Path(__file__).resolve().parent / "conf"
SPARK = "spark"
S3 = "s3"
BROKER = "broker"
"""Configurations: what every run needs (with Kafka and Avro), what s3a:// needs besides, and a Kafka broker for tests."""


def ensure(*configurations: str, target: str | Path | None = None) -> list[Path]:
    """Return the jars of some configurations (default: `spark`), fetched unless they are there; safe when two processes call it at once.

    Args:
        configurations: `SPARK`, `S3`, `BROKER`.
        target: the folder to keep them in; see above.

    Raises:
        ConfigError: no ivy.xml, no java, no network, or a jar whose bytes are not the pinned ones.
    """
    target = Path(target or _kept_in()).resolve()
    return [
        jar
        for configuration in configurations or (SPARK,)
        for jar in _ensure(configuration, target)
    ]


def _ensure(configuration: str, target: Path) -> list[Path]:
    stamp = target / f"done-{configuration}"
    stamp_text = _stamp_text()
    jars = sorted(target / name for name in _pins() if name.startswith(f"{configuration}/"))
    if _is_fetched(stamp, stamp_text, jars):
        return jars
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_fetched(
            stamp, stamp_text, jars
        ):  # the process that had the lock may have fetched them
            _retrieve(target, configuration)
            _verify(jars)
            partial = stamp.with_suffix(".new")
            partial.write_text(stamp_text)
            partial.replace(stamp)
    return jars


def properties_text(jars: list[Path]) -> str:
    """Return the Spark settings of conf/spark-defaults.template, with the jars, this Python and this place."""
    text = (CONF / "spark-defaults.template").read_text()
    return (
        text.replace("@JARS@", ",".join(map(str, jars)))
        .replace("@PYTHON@", sys.executable)
        .replace("@CONF@", str(CONF))
    )


def write_properties(path: Path, jars: list[Path]) -> None:
    """Write the spark-submit properties file from its template."""
    partial = path.with_name(path.name + ".new")
    partial.write_text(properties_text(jars))
    partial.replace(path)


def _kept_in() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return CHECKOUT / ".jars" if IN_CHECKOUT else Path(cache).expanduser() / "dpsql" / "jars"


def _stamp_text() -> str:
    try:
        return (CONF / "ivy.xml").read_text() + (CONF / "jars.sha256").read_text()
    except OSError:
        raise ConfigError(
            f"{CONF / 'ivy.xml'}: not found: it belongs to dpsql; install dpsql again"
        ) from None


def _is_fetched(stamp: Path, stamp_text: str, jars: list[Path]) -> bool:
    return (
        stamp.is_file() and stamp.read_text() == stamp_text and all(jar.is_file() for jar in jars)
    )


def _pins() -> dict[str, str]:
    """Return digests by configuration and file name, in the form of `sha256sum`."""
    lines = (CONF / "jars.sha256").read_text().splitlines()
    return {
        name: digest
        for digest, name in (line.split() for line in lines if line and not line.startswith("#"))
    }


def _retrieve(target: Path, configuration: str) -> None:
    command = [
        *(
            _java(),
            "-jar",
            str(_ivy()),
            "-warn",
            "-settings",
            str(CONF / "ivysettings.xml"),
            "-cache",
            str(target / "cache"),
        ),
        *("-ivy", str(CONF / "ivy.xml"), "-confs", configuration, "-types", "jar", "bundle"),
        *("-retrieve", str(target / "[conf]" / "[artifact]-[revision].[ext]")),
    ]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise ConfigError(
            f"{command[0]}: {problem.strerror}; install Java 17 or 21 or set JAVA_HOME"
        ) from None
    if process.returncode:
        tail = "\n".join((process.stdout + process.stderr).splitlines()[-15:])
        raise ConfigError(
            f"the jars of {CONF / 'ivy.xml'} could not be fetched; is the network there? Ivy says:\n{tail}"
        )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _ivy() -> Path:
    pyspark = importlib.util.find_spec("pyspark")  # without importing it
    jars = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else Path()
    ivy = next(iter(sorted(jars.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise ConfigError(
            "Spark is not installed: pip install 'dpsql[spark]', or run `make setup` in a checkout"
        )
    return ivy


def _verify(jars: list[Path]) -> None:
    for jar in jars:
        digest = hashlib.sha256(jar.read_bytes()).hexdigest() if jar.is_file() else "missing"
        if digest != _pins()[f"{jar.parent.name}/{jar.name}"]:
            raise ConfigError(
                f"{jar}: its SHA-256 is {digest}, not the one in {CONF / 'jars.sha256'}; it was not used"
            )


def main(arguments: list[str]) -> int:
    """Fetch the jars; with a file name, also write the properties file. Further arguments are configurations to add."""
    try:
        jars = ensure(SPARK, *arguments[1:])
        if arguments:
            write_properties(Path(arguments[0]), jars)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
