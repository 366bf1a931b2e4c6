"""What keeps a run's salt, noise key and rows from other users of the machine and of the network, while Spark has them.

Without `spark.authenticate` Spark hands every block (broadcasts with salt and noise key, shuffled rows) to whoever connects to a port of it.
Its local folders have the modes of the umask, and py4j logs every command that it sends.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.logger import PySparkLogger

from dpsql.errors import ConfigError
from dpsql.scratch import closed
from dpsql.streaming import internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTHENTICATE = "spark.authenticate"
NETWORK = "spark.network.crypto.enabled"
DISK = "spark.io.encryption.enabled"
SETTINGS = {AUTHENTICATE: "true", NETWORK: "true", DISK: "true"}
SECRET = "spark.authenticate.secret"
TLS = "spark.ssl.rpc.enabled"
"""In place of `NETWORK`, for those who have certificates."""

OTHERS = 0o001
LOGGERS = (
    "py4j.clientserver",
    "py4j.java_gateway",
    "SQLQueryContextLogger",
    "DataFrameQueryContextLogger",
)
"""Python's loggers: py4j's commands carry pickled functions with the noise key, and pyspark's own log of errors the text of queries."""


def makes_secret(master: str) -> bool:
    """Tell whether Spark makes the secret of such a master itself; a standalone cluster has one that its operator made."""
    return re.fullmatch(r"local(\[.*\])?|yarn|k8s://.*", master) is not None


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that take a protection away, before anything is bound or spent.

    Raises:
        ConfigError: one of `SETTINGS` is off, or other users may enter the folder of the event log.
    """
    for name in SETTINGS:
        if settings.get(name, "true").lower() != "true" and not (
            name == NETWORK and settings.get(TLS, "").lower() == "true"
        ):
            raise ConfigError(
                f"{name} is {settings[name]}: Spark would serve salt, noise key and rows to others; {_remedy(name)}"
            )
    if settings.get("spark.eventLog.enabled", "").lower() == "true":
        check_event_log(settings.get("spark.eventLog.dir", "file:///tmp/spark-events"))


def check_event_log(place: str) -> None:
    """Refuse a local folder of event logs that everybody may enter: they have exact totals, and Spark opens its files to the group.

    Raises:
        ConfigError: somebody else may enter.
    """
    parts = urlsplit(place)
    if parts.scheme in ("", "file") and not closed(
        path := Path(unquote(parts.path)), mode_bits=OTHERS
    ):
        raise ConfigError(
            f"spark.eventLog.dir is {path}, which everybody may enter, and event logs have exact totals: chmod 700 {path}"
        )


def protect(spark: SparkSession) -> None:
    """Check what cannot be changed in a session that is there, and close what can: its local folders, the log of py4j.

    Raises:
        ConfigError: it was started without a protection; the message names the setting.
    """
    context = internals.java_context(spark)
    security = context.env().securityManager()
    configured = context.getConf()
    local = str(context.master()).startswith("local")
    protections = {
        AUTHENTICATE: security.isAuthenticationEnabled(),
        NETWORK: local or security.isEncryptionEnabled() or security.isSslRpcEnabled(),
        DISK: security.getIOEncryptionKey().isDefined(),
    }
    for name, is_on in protections.items():
        if not is_on:
            raise ConfigError(
                f"this Spark session was started without {name}: others could read salt, noise key or rows; {_remedy(name)}"
            )
    check_submissions(spark, str(context.master()))
    if configured.getBoolean("spark.eventLog.enabled", False):
        check_event_log(configured.get("spark.eventLog.dir", "file:///tmp/spark-events"))
    for folder in context.env().blockManager().diskBlockManager().localDirs():
        close(Path(str(folder)))
    hush(spark)


def check_submissions(spark: SparkSession, master: str) -> None:
    """Refuse a standalone cluster that runs the programs of whoever connects: they could read its secret, and with that all that it keeps.

    Raises:
        ConfigError: a master takes programs over HTTP, and the message has the line to write; or none says whether it does.
    """
    if not master.startswith("spark://"):
        return
    ports = {}
    for address in master.removeprefix("spark://").split(","):
        with suppress(Exception):  # one of several may be down; it keeps no application then
            ports[address] = internals.submission_port(spark, f"spark://{address}")
    if not ports:
        raise ConfigError(
            f"{master} does not say whether it runs the programs of whoever connects: is it of another version of Spark?"
        )
    for address, port in ports.items():
        if port is not None:
            raise ConfigError(
                f"the master spark://{address} runs the programs of whoever connects to its port {port}, without {SECRET}: write "
                "`spark.master.rest.enabled false` into its conf/spark-defaults.conf and restart it (docs/deployment.md, Cluster)"
            )


def close(folder: Path) -> None:
    """Take a folder of this process and all folders in it away from group and others.

    Those within, too: whoever has opened one of them before needs no way through the upper one.

    Raises:
        ConfigError: it stays open.
    """
    try:
        folder.chmod(0o700)
        for place, _, _ in os.walk(folder):
            Path(place).chmod(0o700)
    except OSError as problem:
        raise ConfigError(
            f"Spark's local folder {folder} cannot be closed to other users: {problem.strerror}"
        ) from None


def hush(spark: SparkSession) -> None:
    """Keep py4j and pyspark from logging what passes between Python and the JVM."""
    for name in LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_nothing)  # pyspark needs loggers of its own class
    internals.jvm_of(spark).py4j.GatewayServer.turnLoggingOff()


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _remedy(name: str) -> str:
    with_secret = (
        f" (a standalone cluster also needs {SECRET}; docs/deployment.md)"
        if name == AUTHENTICATE
        else ""
    )
    return f"start it with `{name} true`{with_secret}"
