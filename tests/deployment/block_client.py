"""A client of Spark's block protocol, as another user of the machine would write it: the standard library, and no secret.

    python block_client.py PORT ...        prints, as one line of JSON, {block: its bytes in base64} of all that was served

Spark's servers do not look at user ids, so whom it runs as changes nothing for ports; started by root it becomes `nobody` all the same.
"""

import base64
import encodings.idna  # noqa: F401  (needed by connections, and `nobody` may not even enter the folder of this Python)
import json
import os
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

CHUNK_REQUEST = 0
CHUNK = 1
RPC_REQUEST = 3
RPC_RESPONSE = 4
OPEN_BLOCKS = 0
STREAM_HANDLE = 3
BROADCASTS = range(200)
SHUFFLES = range(8)
TASKS = range(60)
NAMES = [f"broadcast_{n}_piece0" for n in BROADCASTS] + [
    f"shuffle_{s}_{t}_0" for s in SHUFFLES for t in TASKS
]


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">qb", 9 + len(body), kind) + body


class Connection:
    """One connection to a port of which nothing is known."""

    def __init__(self, port: int, seconds: float = 1.5, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), seconds)
        self.socket.settimeout(seconds)

    def fetch(self, name: str, application: str = "a", executor: str = "e") -> bytes | None:
        """A block, or None if the server has none of this name.

        Raises:
            OSError: it answers nobody without a secret, or does not speak the protocol.
        """
        message = (
            bytes([OPEN_BLOCKS])
            + text(application)
            + text(executor)
            + struct.pack(">i", 1)
            + text(name)
        )
        self.socket.sendall(frame(RPC_REQUEST, struct.pack(">qi", 1, len(message)) + message))
        kind, body = self.answer()
        if b"SaslMessage" in body:
            raise OSError("it wants to know who asks")
        if kind != RPC_RESPONSE or len(body) < 25 or body[12] != STREAM_HANDLE:
            return None
        (stream,) = struct.unpack(">q", body[13:21])
        self.socket.sendall(frame(CHUNK_REQUEST, struct.pack(">qi", stream, 0)))
        kind, body = self.answer()
        return body[12:] if kind == CHUNK else None

    def answer(self) -> tuple[int, bytes]:
        length, kind = struct.unpack(">qb", self.read(9))
        if not 9 <= length < 1 << 28:
            raise OSError("not Spark's protocol")
        return kind, self.read(length - 9)

    def read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise OSError("closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def served(port: int, host: str = "127.0.0.1") -> dict[str, bytes]:
    """What a port hands out; a server that does not speak the protocol, or closes, hands out nothing."""
    blocks: dict[str, bytes] = {}
    try:
        connection = Connection(port, host=host)
        for name in NAMES:
            block = connection.fetch(name)
            if block is not None:
                blocks[name] = block
    except (OSError, struct.error):
        pass
    return blocks


def become_nobody() -> None:
    """Root is let in everywhere."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


if __name__ == "__main__":
    become_nobody()
    with ThreadPoolExecutor(len(sys.argv)) as threads:  # a port that says nothing is waited for
        by_port = dict(zip(sys.argv[1:], threads.map(served, map(int, sys.argv[1:])), strict=True))
    print(
        json.dumps(
            {
                f"{name} of {port}": base64.b64encode(block).decode()
                for port, found in by_port.items()
                for name, block in found.items()
            }
        )
    )
