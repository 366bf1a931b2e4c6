"""Folders for what a process needs on disk only while it runs: closed to other users, and gone afterwards, also after a hard kill.

    BASE/dpsql-1000                 mode 0700, one per user
    BASE/dpsql-1000/run-k3v9x2ab    of one process, which holds a lock on it for as long as it lives

The lock ends with the process, however it ends; whoever comes next removes the folders that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from dpsql.errors import ConfigError

PREFIX = "run-"

_held: dict[tuple[int, Path], tuple[Path, int]] = {}
"""(process, base) -> its folder, and the descriptor that holds the lock."""


def scratch(base: str | Path | None = None) -> Path:
    """Return a folder of this process, mode 0700, below a folder of this user; the same one at every call.

    Args:
        base: where; default: the system's temporary folder.

    Raises:
        ConfigError: BASE cannot be written, or somebody else has taken the name.
    """
    base = Path(base or tempfile.gettempdir()).absolute()
    folder_and_lock = _held.get(
        (os.getpid(), base)
    )  # a forked child has its parent's lock, but not its folder
    if folder_and_lock is None or not folder_and_lock[0].is_dir():
        folder_and_lock = _held[os.getpid(), base] = _take(base)
        atexit.register(_remove, os.getpid(), folder_and_lock[0])
    return folder_and_lock[0]


def home(base: str | Path | None = None) -> Path:
    """Return the folder of this user, mode 0700. Nobody else may have made it: its owner could open it again.

    Args:
        base: where; default: the system's temporary folder.

    Raises:
        ConfigError: somebody else has taken the name.
        OSError: BASE cannot be written.
    """
    base = Path(base or tempfile.gettempdir()).absolute()
    folder = base / f"dpsql-{os.getuid()}"
    base.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise ConfigError(
                f"{folder}: not a folder of yours, and temporary files may not be there; name another folder with TMPDIR"
            ) from None
    folder.chmod(0o700)  # whatever the umask, and whatever it was
    return folder


def closed(folder: str | Path, mode_bits: int = 0o011) -> bool:
    """Tell whether a folder, or one on the way to it, lets nobody pass but its owner.

    Args:
        folder: need not be there.
        mode_bits: the bits of those who may not pass; default: group and others.
    """
    folder = Path(folder).resolve()
    return any(
        ancestor.exists() and not ancestor.stat().st_mode & mode_bits
        for ancestor in (folder, *folder.parents)
    )


def _take(base: Path) -> tuple[Path, int]:
    try:
        home_folder = home(base)
        gate = os.open(home_folder, os.O_RDONLY)
        try:
            fcntl.flock(
                gate, fcntl.LOCK_EX
            )  # between the making of a folder and its lock nobody may sweep
            for leftover in home_folder.glob(PREFIX + "*"):
                _sweep(leftover)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home_folder))
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            os.close(gate)
    except OSError as problem:
        raise ConfigError(
            f"temporary files cannot be kept in {base}: {problem.strerror}; name another folder with TMPDIR"
        ) from None
    return folder, lock


def _sweep(folder: Path) -> None:
    """Remove a folder whose process has ended."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
