"""What another user of the machine gets from a job: blocks by the network, files, command lines. Searched by whoever planted something."""

import base64
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.deployment.processes import children

FRAME = b"LZ4Block"
CLIENT = Path(__file__).with_name("block_client.py")
PORT_CLIENT = Path(__file__).with_name("port_client.py")


def listening(processes: Iterable[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    sockets = {found for pid in processes for found in _sockets(pid)}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def _sockets(pid: int) -> list[str]:
    found = []
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if name := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                found.append(name[1])
    except OSError:
        pass  # it has ended
    return found


def _is_jvm(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False  # it has ended


def blocks_of(pid: int) -> dict[str, bytes]:
    """All blocks that a process and its children serve to a stranger, decompressed. The client becomes `nobody` where it may, and has
    nothing but the standard library. Spark's blocks are served by JVMs; the Python servers beside them are left in peace, because that of
    the accumulators takes one connection at a time."""
    ports = listening(one for one in children(pid) if _is_jvm(one))
    if not ports:
        return {}
    command = [sys.executable, "-I", "-S", str(CLIENT), *map(str, ports)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {name: plain(base64.b64decode(block)) for name, block in json.loads(done.stdout).items()}


def answers(processes: Iterable[int]) -> dict[str, dict[str, Any]]:
    """What a stranger gets of every port of some processes (`port_client.py`), by its place."""
    places = [f"127.0.0.1:{port}" for port in listening(processes)]
    done = subprocess.run(
        [sys.executable, "-S", str(PORT_CLIENT), *places],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(json.loads(done.stdout))


def plain(block: bytes) -> bytes:
    """A block with its LZ4 frames opened (and as it is, for those that have none)."""
    codec = pa.Codec("lz4_raw")
    parts = []
    at = block.find(FRAME)
    while at >= 0:
        method, size, whole = (
            block[at + 8] & 0xF0,
            *(int.from_bytes(block[at + k : at + k + 4], "little") for k in (9, 13)),
        )
        content = block[at + 21 : at + 21 + size]
        parts.append(
            content
            if method == 0x10
            else codec.decompress(content, whole).to_pybytes()
            if whole
            else b""
        )
        at = block.find(FRAME, at + 21 + size)
    return block + b"".join(parts)


def readable(folder: Path) -> list[Path]:
    """The files below a folder (whose own way is taken as open) that others may read: their own bits and those of every folder on the way."""
    found = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if _mode(here / name) & 0o011]
        found += [here / name for name in names if _mode(here / name) & 0o044]
    return found


def _mode(path: Path) -> int:
    try:
        found = path.lstat().st_mode
    except OSError:
        return 0  # gone meanwhile
    return found if stat.S_ISDIR(found) or stat.S_ISREG(found) else 0


def shown_of(pid: int) -> bytes:
    """What everybody sees of a process and its children: command lines; and their environments where the mode lets others read them."""
    parts = []
    for process in children(pid):
        for name in ("cmdline", "environ"):
            path = Path(f"/proc/{process}/{name}")
            try:
                if path.stat().st_mode & 0o004:
                    parts.append(path.read_bytes())
            except OSError:
                continue
    return b"\n".join(parts)


def named(needles: Mapping[str, Iterable[bytes]], content: bytes) -> set[str]:
    """Which of the needles are in some bytes."""
    return {name for name, given in needles.items() if any(one in content for one in given)}
