"""Whether the broker or the object store of a source answers, asked before anything is spent. Who may read there, Spark finds out."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable

from dpsql.config import Source
from dpsql.errors import DataError
from dpsql.files import bucket_problem

SERVERS = "kafka.bootstrap.servers"
PATIENCE, PAUSE = 10.0, 1.0
"""Seconds: a broker that is started beside the run may take a moment."""


def check_reachable(sources: Iterable[Source], buckets: bool) -> None:
    """Refuse a source at an address where nobody answers.

    Args:
        sources: of a query.
        buckets: Spark reaches buckets as we do, by the environment alone, so those can be asked for, too.

    Raises:
        DataError: names the address, and where it is declared.
    """
    for source in sources:
        servers = next((value for name, value in source.options if name.lower() == SERVERS), "")
        if source.format == "kafka" and servers and (problems := _brokers(servers)):
            raise DataError(
                f"source {source.name!r}: no Kafka broker answers at {'; '.join(problems)}. Is `{SERVERS}` right at "
                f"sources.{source.name}.options, and may this machine reach it?"
            )
        path = source.path or ""
        ours = buckets and re.match("s3[an]?://", path) and not any("fs.s3" in name for name, _ in source.options)
        if ours and (problem := bucket_problem(path)):
            raise DataError(f"source {source.name!r}: {path} at sources.{source.name}.path: {problem}")


def _brokers(servers: str) -> list[str]:
    """What is wrong with each; nothing as soon as one answers."""
    end = time.monotonic() + PATIENCE
    while True:
        problems = []
        for server in servers.split(","):
            host, _, port = server.strip().rpartition("://")[2].rpartition(":")
            if not port.isdigit():
                return []  # Kafka's client says what it wants
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE / 2).close()
                return []
            except (OSError, OverflowError, UnicodeError) as problem:
                problems.append(f"{host}:{port} ({getattr(problem, 'strerror', None) or 'no answer'})")
        if time.monotonic() > end:
            return problems
        time.sleep(PAUSE)
