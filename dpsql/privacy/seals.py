"""Seals: how a ledger notices that a line was edited or that its end is gone, and the id that tells it from every other ledger.

    ledger/seals        dpsql-ledger 1 ID
                        000001 CHECK SEAL
                        000002 CHECK SEAL

One row per line, in order, only ever added to. CHECK tells which secret has sealed; SEAL is its keyed digest of the ledger's id, the row
before, the line's number and its bytes. So a changed line or row does not fit, nor does a line of another ledger or another number, and a
row without its line says that the line is gone. Whoever adds a line seals it before anything is read under it; a process that dies between
the two has spent nothing, and the next one seals what it finds. Lines that were written without the secret are
sealed as found.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import BudgetError
from dpsql.files import create_file, reporting_os_errors
from dpsql.privacy.secret import Secret

FILE = "seals"
HEAD = re.compile(rb"dpsql-ledger 1 ([0-9a-f]{32})")
ROW = re.compile(rb"(\d{6}) ([0-9a-f]{32}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Seals:
    """The content of `ledger/seals`: the ledger's id, and the row of every sealed line from the
    first on."""

    ledger_id: str
    rows: tuple[bytes, ...] = ()

    def edited(self, lines: Sequence[bytes], secret: Secret) -> tuple[int, ...]:
        """Return numbers of lines that are not as this secret has sealed them."""
        own_check = secret.check().encode()
        previous_row = _head(self)
        numbers = []
        for number, (row, line) in enumerate(zip(self.rows, lines, strict=False), start=1):
            if row[7:39] == own_check and row != _row(
                self.ledger_id, previous_row, number, line, secret
            ):
                numbers.append(number)
            previous_row = row
        return tuple(numbers)

    def missing_lines(self, lines: int) -> range:
        """Return numbers of sealed lines beyond the newest of `lines` lines."""
        return range(lines + 1, len(self.rows) + 1)

    def of_others(self, secret: Secret) -> int:
        """Return how many lines another secret has sealed, so that nobody here can tell whether they are as written."""
        return sum(row[7:39] != secret.check().encode() for row in self.rows)


def read_seals(folder: Path) -> Seals | None:
    """Return the seals of a ledger; None where it has none yet.

    Raises:
        BudgetError: the file is damaged.
    """
    with (
        reporting_os_errors(str(folder / FILE), BudgetError),
        contextlib.suppress(FileNotFoundError),
    ):
        return _parsed((folder / FILE).read_bytes(), folder / FILE)
    return None


def without_original(folder: Path) -> str:
    """Say how to begin a new ledger where no copy of a damaged one is left."""
    move = shlex.join(("mv", str(folder), f"{folder}.damaged"))
    return (
        f"If there is none, begin a new ledger: `{move}`, then `dpsql restore NAME --lake DIR --ledger` "
        "for each run in a lake, which writes down what it spends. Tries, and runs without a lake, are "
        "then counted no more"
    )


def make_seals(folder: Path, lines: Sequence[bytes], secret: Secret) -> Seals:
    """Give a ledger its id, and seal the lines that it has as they are; where another process was faster, its id is the one.

    Raises:
        BudgetError: the file is damaged.
        OSError: the folder cannot be written.
    """
    proposed = _with_rows(Seals(secrets.token_hex(16)), lines, secret)
    with contextlib.suppress(FileExistsError):
        create_file(
            folder / FILE, b"".join(row + b"\n" for row in (_head(proposed), *proposed.rows))
        )
    seals = read_seals(folder)
    assert seals is not None
    return seals


def seal_lines(folder: Path, line_bytes: Callable[[int], bytes | None], secret: Secret) -> None:
    """Seal every line that has no seal yet. One process at a time; the row is on disk when this returns.

    Args:
        folder: the ledger's.
        line_bytes: the bytes of a line by its number; None after the newest.
        secret: seals.

    Raises:
        BudgetError: the file is damaged.
        OSError: it cannot be written.
    """
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        content = _read_all(descriptor)
        length = content.rfind(b"\n") + 1
        os.truncate(descriptor, length)  # what a process has left that died while it wrote
        sealed_lines = _parsed(content[:length], folder / FILE)
        new: list[bytes] = []
        while (line := line_bytes(len(sealed_lines.rows) + len(new) + 1)) is not None:
            new.append(line)
        rows = _with_rows(sealed_lines, new, secret).rows[len(sealed_lines.rows) :]
        os.write(descriptor, b"".join(row + b"\n" for row in rows))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parsed(content: bytes, path: Path) -> Seals:
    head, *rows = content.split(b"\n")[:-1] or [
        b""
    ]  # the last piece is empty, or was never finished
    head_match = HEAD.fullmatch(head)
    numbered = [ROW.fullmatch(row) for row in rows]
    if head_match is None or any(
        row is None or int(row[1]) != i for i, row in enumerate(numbered, start=1)
    ):
        remedy = f"put back the original file (it says which lines the ledger has had). {without_original(path.parent)}"
        raise BudgetError(f"{path}: damaged; {remedy}")
    return Seals(head_match[1].decode(), tuple(rows))


def _with_rows(seals: Seals, lines: Sequence[bytes], secret: Secret) -> Seals:
    rows = [*seals.rows]
    for line in lines:
        rows.append(
            _row(seals.ledger_id, rows[-1] if rows else _head(seals), len(rows) + 1, line, secret)
        )
    return Seals(seals.ledger_id, tuple(rows))


def _row(ledger_id: str, previous_row: bytes, number: int, line: bytes, secret: Secret) -> bytes:
    sealed = b"|".join(
        (
            ledger_id.encode(),
            previous_row,
            b"%06d" % number,
            hashlib.sha256(line).hexdigest().encode(),
        )
    )
    return b"%06d %s %s" % (number, secret.check().encode(), secret.seal(sealed).encode())


def _head(seals: Seals) -> bytes:
    return b"dpsql-ledger 1 " + seals.ledger_id.encode()


def _read_all(descriptor: int) -> bytes:
    content = b""
    while piece := os.pread(descriptor, 1 << 20, len(content)):
        content += piece
    return content
