"""The log of paid answers: price and answer of every ask in a file of its own, beside the ledger and so outside of the lake."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from dpsql import record
from dpsql.errors import LakeError
from dpsql.files import create_file, reporting_os_errors
from dpsql.privacy.secret import Secret

VERSION = 1
PRICE_BITS = 96


@dataclass(frozen=True)
class PaidCell:
    """One answer of an ask.

    Args:
        cell: values of the keys of GROUP BY.
        question: SHA-256 of what is counted, however it was written.
        sigma: of its noise; the exact count is rounded with it to `noisy`.
        noisy: exact count and noise.
        value, stderr: combined with what was known before.
    """

    cell: dict[str, str | int]
    question: str
    sigma: float
    noisy: int
    value: float
    stderr: float


@dataclass(frozen=True)
class PaidAsk:
    """A line of the log: one ask at one trigger, whose price is spent.

    `total`: all asks up to this one, in 2^-96 of mu^2. `seal`: only the secret's owner can make it.
    """

    seq: int
    run_id: str
    trigger: int
    text: str
    cells: tuple[PaidCell, ...]
    total: int
    seal: str = ""


def price(rows: int, sigma: float) -> int:
    """Return the squared shift that one privacy unit can cause in a count, in units of its noise: (rows / sigma)^2 in 2^-96, rounded up.

    Args:
        rows: the most rows that count of one privacy unit.
        sigma: of the noise.
    """
    squared_shift = Fraction(rows) ** 2 / Fraction(sigma) ** 2
    return math.ceil(squared_shift * 2**PRICE_BITS)


def total_price(asks: Sequence[PaidAsk]) -> int:
    """Return what asks have cost together, in 2^-96 of mu^2."""
    return asks[-1].total if asks else 0


@dataclass(frozen=True)
class AskLog:
    """The asks of one run: numbered files that are never changed, beside the ledger and so outside of the lake.

    Args:
        folder: `ledger/asks/RUN_ID`.
        secret: seals them.
    """

    folder: Path
    secret: Secret
    _checked: list[PaidAsk] = field(default_factory=list, compare=False, repr=False)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the log, so that no other process on this machine asks meanwhile."""
        with reporting_os_errors(str(self.folder), LakeError):
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(exist_ok=True, mode=0o700)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def asks(self, run_id: str) -> list[PaidAsk]:
        """Return all asks, oldest first.

        Raises:
            LakeError: one is missing, damaged or edited.
        """
        names = sorted(
            (path.name for path in self.folder.glob("*.json")), key=lambda n: (len(n), n)
        )
        if names != [self._path(seq).name for seq in range(1, len(names) + 1)]:
            raise LakeError(
                f"{self.folder}: an ask is missing; put it back: nothing is paid before it is known what was spent"
            )
        for seq, name in enumerate(names[len(self._checked) :], start=len(self._checked) + 1):
            ask = record.load(self.folder / name, PaidAsk, VERSION)
            if ask is None or (ask.seq, ask.run_id) != (seq, run_id) or self._seal(ask) != ask.seal:
                raise LakeError(
                    f"{self.folder / name} was edited after it was written; {record.PUT_BACK}"
                )
            self._checked.append(ask)
        return self._checked[: len(names)]

    def add(self, ask: PaidAsk) -> PaidAsk:
        """Log an ask; from then on its price is spent.

        Raises:
            LakeError: another process has logged one under its number, or the folder cannot be written.
        """
        sealed = replace(ask, seal=self._seal(ask))
        with reporting_os_errors(str(self.folder), LakeError):
            create_file(self._path(ask.seq), record.content(sealed, VERSION))
        return sealed

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:06d}.json"

    def _seal(self, ask: PaidAsk) -> str:
        return self.secret.seal(record.content(replace(ask, seal=""), VERSION))
