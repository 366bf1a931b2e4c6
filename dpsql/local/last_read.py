"""What the newest `dpsql try` has read and dropped, exactly, in a file for the owner of the secret alone.

Whoever reads the secret can take the noise off every release, and whoever runs `try` reads the records: the file shows them nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql import record

if TYPE_CHECKING:
    from dpsql.local.feeder import TryResult

VERSION = 1


@dataclass(frozen=True, repr=False)
class LastRead:
    """The newest reading of a source.

    Args:
        source: its name.
        records: how many were read.
        dropped: how many of them were dropped, by reason.
        malformed_columns: of the malformed ones, the first column that did not fit, or the field of a message that is missing or odd.
        malformed_lines: malformed ones that are no record of the format at all, or too long.
    """

    source: str
    records: int
    dropped: Mapping[str, int]
    malformed_columns: Mapping[str, int]
    malformed_lines: int


def last_read_file(secret_file: Path) -> Path:
    """Return the file beside a secret: `keys/secret.last-read.json`."""
    return secret_file.with_name(f"{secret_file.name}.last-read.json")


def forget_last_read(secret_file: Path) -> None:
    """Remove what an earlier `try` has written: of one that fails it would tell something else."""
    with suppress(OSError):
        last_read_file(secret_file).unlink(missing_ok=True)


def write_last_read(file: Path, source: str, trial: TryResult) -> None:
    """Replace the file by what one `try` has read; it is for its owner alone (mode 0600)."""
    columns = dict(trial.misfits)
    lines = columns.pop("", 0)
    record.write(file, LastRead(source, trial.records, trial.drops, columns, lines), VERSION)
