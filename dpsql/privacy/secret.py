"""The secret: 32 random bytes from which every run's noise and salt are derived.

It lives outside the lake (by default in `~/.config/dpsql/secret`), is made on first use, and is never logged, printed or pickled:
workers get the subkeys of one run only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from dpsql.errors import SecretError
from dpsql.files import create_file

SECRET_BYTES = 32


def default_secret_path(environ: Mapping[str, str]) -> Path:
    """Return where the secret is: `DPSQL_SECRET_FILE`, else below `XDG_CONFIG_HOME`, else `~/.config/dpsql/secret`."""
    if named := environ.get("DPSQL_SECRET_FILE"):
        return Path(named)
    config_home = environ.get("XDG_CONFIG_HOME", "")
    # the XDG standard says that a relative path there is to be ignored
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "dpsql" / "secret"


class Secret:
    """32 bytes that can derive keys but cannot be seen.

    Guarantee: what the methods return says nothing about the secret or about one another (HMAC-SHA256 with separate messages).
    """

    __slots__ = ("_ledger_id", "_value", "path")

    def __init__(self, value: bytes, path: Path | None = None, ledger_id: str = "") -> None:
        if len(value) != SECRET_BYTES:
            raise SecretError(f"a secret has exactly {SECRET_BYTES} bytes, not {len(value)}")
        self._value = bytes(value)
        self.path = path  # of the file; the ledger is beside it
        self._ledger_id = ledger_id

    @classmethod
    def load(cls, path: str | Path, create: bool = True) -> Secret:
        """Read the secret, or make it when the file does not exist (two starters at once get the same one).

        Raises:
            SecretError: no file and `create` is off; readable by group or others; somebody else's; not a plain file; wrong length.
        """
        path = Path(path)
        try:
            if create and not os.path.lexists(path):
                _create(path)
            return cls(_read_bytes(path), path)
        except FileNotFoundError:
            hint = (
                "it is a link to nothing"
                if path.is_symlink()
                else "no such file; name the right one with --secret-file"
            )
            raise SecretError(f"secret {path}: {hint}") from None
        except (OSError, ValueError) as problem:
            if isinstance(problem, SecretError):
                raise
            reason = (
                "a part of its path is a file, not a folder"
                if isinstance(problem, FileExistsError | NotADirectoryError)
                else None
            )
            raise SecretError(
                f"secret {path}: {reason or getattr(problem, 'strerror', None) or problem}"
            ) from None

    def check(self) -> str:
        """Return a value that tells two secrets apart and says nothing else."""
        return self._derive(b"dpsql/1/check")[:16].hex()

    def of_ledger(self, ledger_id: str) -> Secret:
        """Return the same secret for the runs of one ledger: under another ledger the same run id
        has another noise and another salt.

        Args:
            ledger_id: as in the run's `run.json` or ledger line.
        """
        return Secret(self._value, self.path, ledger_id)

    def noise_key(self, run_id: str, plan_identity: str) -> bytes:
        """Return the 32-byte key of all noise of one run of one plan."""
        return self._derive(self._of_run(b"noise", run_id) + b"|" + plan_identity.encode())

    def salt(self, run_id: str) -> bytes:
        """Return the 16-byte salt of one run's user and key ids."""
        return self._derive(self._of_run(b"salt", run_id))[:16]

    def seal(self, content: bytes) -> str:
        """Return a value that only the secret's owner can make for a content (`dpsql.privacy.seals`)."""
        return self._derive(b"dpsql/1/seal|" + content).hex()

    def _of_run(self, label: bytes, run_id: str) -> bytes:
        if not self._ledger_id:
            return b"dpsql/1/" + label + b"|" + run_id.encode()
        return b"dpsql/2/" + label + b"|" + self._ledger_id.encode() + b"|" + run_id.encode()

    def fingerprint(self, digest: bytes) -> str:
        """Return a value that tells two inputs apart and says nothing of them to anybody without the secret."""
        return self._derive(b"dpsql/1/input|" + digest).hex()

    def _derive(self, message: bytes) -> bytes:
        return hmac.new(self._value, message, hashlib.sha256).digest()

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is never pickled or copied: hand over the subkeys of one run")


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):  # another starter was faster: its secret is the one
        create_file(path, secrets.token_bytes(SECRET_BYTES))


def _read_bytes(path: Path) -> bytes:
    if path.is_symlink() and path.lstat().st_uid not in (os.geteuid(), 0):
        raise SecretError(f"secret {path}: the link belongs to another user")
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a named pipe must not hang us
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(f"secret {path}: not a plain file")
        if status.st_uid != os.geteuid():
            raise SecretError(
                f"secret {path}: belongs to another user (uid {status.st_uid}); use your own with --secret-file"
            )
        if status.st_mode & 0o077:
            raise SecretError(
                f"secret {path}: group or others can read it (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}"
            )
        if status.st_size != SECRET_BYTES:
            raise SecretError(
                f"secret {path}: has {status.st_size} bytes, not {SECRET_BYTES}; restore the right file (a new secret is a new noise)"
            )
        return os.read(descriptor, SECRET_BYTES + 1)
    finally:
        os.close(descriptor)
