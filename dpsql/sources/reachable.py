"""Whether a source is there: its broker or object store answers, its folder exists; asked before anything is spent. Who may read, Spark finds out."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from time import monotonic, sleep

from dpsql.errors import DataError, Unreachable
from dpsql.files import bucket_problem, reason
from dpsql.sources.config import Source
from dpsql.sources.reader_options import FILE_FORMATS
from dpsql.text import without_credentials

SERVERS = "kafka.bootstrap.servers"
PATIENCE = 10.0
PAUSE = 1.0
"""Seconds: a broker that is started beside the run may take a moment."""


def check_reachable(sources: Iterable[Source], as_here: bool) -> None:
    """Refuse a source at an address where nobody answers, or at a path where nothing is.

    Args:
        sources: of a query.
        as_here: Spark finds buckets and paths as we do, by the environment alone, so those can be asked for, too.

    Raises:
        DataError: names the address, and where it is declared (Unreachable: a broker, which may answer later).
    """
    for source in sources:
        servers = next((value for name, value in source.options if name.lower() == SERVERS), "")
        if source.format == "kafka" and servers and (problems := _brokers(servers)):
            raise Unreachable(
                f"source {source.name!r}: no Kafka broker answers at {'; '.join(problems)}. Is `{SERVERS}` right at "
                f"sources.{source.name}.options, and may this machine reach it?"
            )
        if as_here and source.path and (problem := _path_problem(source, source.path)):
            raise DataError(
                f"source {source.name!r}: {without_credentials(source.path)} at sources.{source.name}.path: {problem}"
            )


def _path_problem(source: Source, path: str) -> str:
    if re.match("s3[an]?://", path):
        return "" if any("fs.s3" in name for name, _ in source.options) else bucket_problem(path)
    local = re.sub("^file:/+", "/", path)
    if (
        local.startswith("/")
        and source.format in (*FILE_FORMATS, "delta")
        and not re.search(r"[*?\[\]{}\\%]", local)
    ):  # else a pattern
        try:
            os.stat(local)
        except OSError as problem:
            return reason(problem)
    return ""


def _brokers(servers: str) -> list[str]:
    """Return what is wrong with each; nothing as soon as one answers."""
    end = monotonic() + PATIENCE
    while True:
        problems = []
        for server in servers.split(","):
            host, _, port = server.strip().rpartition("://")[2].rpartition(":")
            if not port.isdigit():
                return []  # Kafka's client says what it wants
            try:
                socket.create_connection(
                    (host.strip("[]"), int(port)), timeout=PATIENCE / 2
                ).close()
                return []
            except (OSError, OverflowError, UnicodeError) as problem:
                problems.append(
                    f"{host}:{port} ({getattr(problem, 'strerror', None) or 'no answer'})"
                )
        if monotonic() > end:
            return problems
        sleep(PAUSE)
