"""Who works on a run: one process at a time, and any other may ask it to stop."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpsql.errors import ConfigError, LakeError
from dpsql.files import Place
from dpsql.scratch import home

LOCK_FILE = "running.json"
STOP_FILE = "stop"
POLL_SECONDS = 0.3


@contextmanager
def exclusive(folder: Place) -> Iterator[Callable[[], None]]:
    """Hold a run, so that no other process on this machine may work on it. The lock ends with the process, however it ends.

    Args:
        folder: the run's private folder.

    Yields:
        A call that refuses to go on once the lock's file was removed or replaced: another process may have locked the new one.

    Raises:
        LakeError: somebody else is at work.
    """
    file = _local(folder) / LOCK_FILE
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)

    def check_held() -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return
        raise LakeError(
            f"{file} was removed or replaced while this run was working, so two may run; start it again once no other is"
        )

    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LakeError(
                f"query {folder.name!r} is running already ({_process_text(folder)}); end that with `dpsql stop`, or wait"
            ) from None
        os.truncate(descriptor, 0)
        os.write(
            descriptor, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode()
        )
        yield check_held
    finally:
        os.close(descriptor)


def is_running(folder: Place) -> bool:
    """Tell whether a process on this machine works on the run."""
    try:
        descriptor = os.open(_local(folder) / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def ask_to_stop(folder: Place, wait_seconds: float) -> bool:
    """Ask the process that works on a run to end after its micro-batch.

    Args:
        folder: the run's private folder.
        wait_seconds: how long to wait until it has ended.

    Returns:
        Whether it has ended.

    Raises:
        LakeError: nobody works on the run.
    """
    if not is_running(folder):
        raise LakeError(f"query {folder.name!r} is not running")
    (_local(folder) / STOP_FILE).touch(mode=0o600)
    limit = time.monotonic() + wait_seconds
    while is_running(folder):
        if time.monotonic() > limit:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def stop_requests(folder: Place, stop: threading.Event) -> Iterator[None]:
    """Let a request to stop set `stop`; requests from before are forgotten."""
    request = _local(folder) / STOP_FILE
    request.unlink(missing_ok=True)
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_SECONDS):
            if request.exists():
                stop.set()
                return

    watcher = threading.Thread(target=watch, name="dpsql-stop", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        request.unlink(missing_ok=True)


def _local(folder: Place) -> Path:
    """Return where the lock and requests to stop are. A bucket has no locks: for a lake in one, a folder of this user and machine.

    Raises:
        ConfigError: somebody else has taken its name, and could lock or stop the run.
    """
    if isinstance(folder, Path):
        return folder
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    try:
        local_folder = home() / digest
        local_folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            f"the lock of {folder} cannot be kept in {tempfile.gettempdir()}: {problem.strerror}; set TMPDIR"
        ) from None
    return local_folder


def _process_text(folder: Place) -> str:
    try:
        lock = json.loads((_local(folder) / LOCK_FILE).read_bytes())
        return f"process {int(lock['process'])} on {lock['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
