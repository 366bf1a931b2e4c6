"""The budget ledger: one line (a small JSON file) per run, in the secret's folder, never changed and never removed.

A line is checked against its source's cap and appended in one optimistic step: read all lines, add up, create the next number; if
somebody else created that number first, begin again. So two runs can never both take the last of a budget. A line is written before
any data is read; a restarted run has its line already and spends nothing.

Guarantee: with a cap (epsilon, delta, period), one privacy unit's taking part in one period (counted from 1970-01-01 UTC) is
(epsilon, delta)-protected in all runs of the ledger together (docs/privacy.md, theorem 4). Each run is mu-Gaussian-DP per contribution period plus a failure
probability (threshold and hash); how many contribution periods a cap's period touches is counted exactly (`Line.charges`).

`ledger/runs` is the register of run ids (`dpsql.run_register`).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpsql.config import Cap, Source
from dpsql.errors import BudgetError
from dpsql.new_file import create_file
from dpsql.privacy_plan import PrivacyPlan
from dpsql.query import ContributionPeriod
from dpsql.run_register import RunRegister

SCHEMA_VERSION = 1
MAX_LINES = 999_999
REGISTER = "runs"


@dataclass(frozen=True)
class Line:
    """What one run may spend on one privacy unit in one contribution period.

    Args:
        ledger, source, unit: whose budget: the ledger's name, the source's name, the privacy unit's columns.
        period: `WINDOW` or `STREAM`; when the allowance renews.
        size_us, offset_us: the contribution period's grid, in microseconds (of no meaning for `STREAM`).
        mu2: square of the Gaussian-DP parameter mu.
        delta_threshold, delta_hash: probability of a failure of key selection and of the hashes.
        epsilon, delta: as the query declares them.
        query_identity, run_id: which plan, which run.
        kind: `run`, `try` or `local` (`dpsql.run_local`).
        created: UTC time, ISO 8601.
    """

    ledger: str
    source: str
    unit: tuple[str, ...]
    period: str
    size_us: int
    offset_us: int
    mu2: float
    delta_threshold: float
    delta_hash: float
    epsilon: float
    delta: float
    query_identity: str
    run_id: str
    kind: str
    created: str
    version: int = SCHEMA_VERSION

    def charges(self, period_us: int) -> int:
        """How many contribution periods of this run one period of `period_us` can touch, at most."""
        if self.period == ContributionPeriod.STREAM:
            return 1
        # A period starts at k * period_us, so its place in the contribution grid is -offset modulo gcd; the last such place touches most.
        step = math.gcd(period_us, self.size_us)
        start = self.size_us - step + -self.offset_us % step
        return -(-(start + period_us) // self.size_us)


def line_of(plan: PrivacyPlan, source: Source, run_id: str, kind: str) -> Line:
    """The ledger line of a new run, dated now."""
    window = plan.query.window
    return Line(
        ledger=source.ledger,
        source=source.name,
        unit=source.privacy_unit,
        period=plan.query.contribution_period.value,
        size_us=window.size_us,
        offset_us=window.offset_us,
        mu2=plan.mu**2,
        delta_threshold=plan.delta_threshold,
        delta_hash=plan.delta_hash,
        epsilon=plan.epsilon,
        delta=plan.delta,
        query_identity=plan.identity,
        run_id=run_id,
        kind=kind,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@dataclass(frozen=True)
class Ledger:
    """The lines below one folder (`ledger/000001.json`, ...)."""

    folder: Path

    @classmethod
    def beside(cls, secret_path: str | Path) -> Ledger:
        """The ledger that belongs to a secret file."""
        return cls(Path(secret_path).parent / "ledger")

    def lines(self) -> tuple[Line, ...]:
        """All lines, oldest first.

        Raises:
            BudgetError: a line is missing, unreadable or of an unknown version; nothing may be spent until it is restored.
        """
        try:
            names = [name for name in os.listdir(self.folder) if not name.startswith(".") and name != REGISTER]
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise BudgetError(f"ledger {self.folder}: {problem.strerror}") from None
        # Read by number: while others append, a listing may have a line and miss the one before it.
        newest = max((int(name[:6]) for name in names if re.fullmatch(r"\d{6}\.json", name)), default=0)
        foreign = sorted(set(names) - {_name(number) for number in range(1, newest + 1)})
        if foreign:
            raise BudgetError(f"ledger {self.folder}: {foreign[0]} is no line; move it away")
        return tuple(_read(self.folder / _name(number)) for number in range(1, newest + 1))

    @property
    def register(self) -> RunRegister:
        """What the runs of this ledger have published, and where."""
        return RunRegister(self.folder / REGISTER)

    def has(self, run_id: str) -> bool:
        """Whether a run has its line.

        Raises:
            BudgetError: as `lines`.
        """
        return any(line.run_id == run_id for line in self.lines())

    def append(self, line: Line, cap: Cap | None) -> int:
        """Check the cap and write the line; returns its number.

        Raises:
            BudgetError: with this run the ledger's runs would spend more than the cap; nothing was written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            while True:
                before = self.lines()
                if any(other.run_id == line.run_id for other in before):
                    raise BudgetError(f"ledger {self.folder}: run {line.run_id} has its line already; a run id is used once")
                if cap is not None:
                    _check(before, line, cap)
                number = len(before) + 1
                if number > MAX_LINES:
                    raise BudgetError(f"ledger {self.folder}: full ({MAX_LINES} lines)")
                try:
                    create_file(self.folder / _name(number), json.dumps(asdict(line), indent=1).encode() + b"\n")
                except FileExistsError:
                    continue  # another run took this number: its line counts too
                return number
        except OSError as problem:
            raise BudgetError(f"ledger {self.folder}: {problem.strerror}") from None


def spent(lines: Sequence[Line], cap: Cap) -> tuple[float, float]:
    """(mu, delta) of one privacy unit in one period of the cap: `mu` of the Gaussian part, `delta` of the failures."""
    mu2 = math.fsum(line.mu2 * line.charges(cap.period_us) for line in lines)
    failures = math.fsum((line.delta_threshold + line.delta_hash) * line.charges(cap.period_us) for line in lines)
    return math.sqrt(mu2), failures


def _check(before: Sequence[Line], line: Line, cap: Cap) -> None:
    from dpsql.accountant import gaussian_delta  # here, because it is slow to import and most runs have no cap

    shared = [other for other in before if other.ledger == line.ledger]
    mu, failures = spent([*shared, line], cap)
    total = gaussian_delta(mu, cap.epsilon) + failures
    if not total <= cap.delta:  # so that NaN is refused too
        mu_before, failures_before = spent(shared, cap)
        raise BudgetError(
            f"ledger {line.ledger!r}: this run (epsilon {line.epsilon:g}, delta {line.delta:g}) would exceed the cap of "
            f"epsilon {cap.epsilon:g}, delta {cap.delta:g} per {cap.period_us / 86_400_000_000:g} days: "
            f"with the {len(shared)} runs before, delta at epsilon {cap.epsilon:g} would be {total:.3g} "
            f"(mu {mu_before:.4g} -> {mu:.4g}, threshold and hash {failures_before:.3g} -> {failures:.3g}); "
            f"ask for a smaller epsilon, or raise the cap at sources.{line.source}.cap"
        )


def _name(number: int) -> str:
    return f"{number:06d}.json"


def _read(path: Path) -> Line:
    try:
        given = json.loads(path.read_bytes())
        version = given["version"]
        if version != SCHEMA_VERSION:
            raise BudgetError(
                f"ledger line {path}: version {version!r} was written by another release of dpsql; this one reads version {SCHEMA_VERSION}"
            )
        line = Line(**{**given, "unit": tuple(given["unit"])})
        _check_types(line, given)
    except FileNotFoundError:
        raise BudgetError(f"ledger line {path} is lost; put it back: nothing can be spent before it is known what was spent") from None
    except OSError as problem:
        raise BudgetError(f"ledger line {path}: {problem.strerror}") from None
    except BudgetError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BudgetError(f"ledger line {path}: not readable; put back the original file (a line says what was spent)") from None
    return line


def _check_types(line: Line, given: dict[str, Any]) -> None:
    """A damaged number must not make a budget look larger."""
    if set(given) != {field.name for field in fields(Line)}:
        raise ValueError
    amounts = (line.mu2, line.delta_threshold, line.delta_hash, line.size_us)
    whole = all(isinstance(amount, int) and not isinstance(amount, bool) for amount in (line.size_us, line.offset_us))
    positive = all(isinstance(amount, int | float) and 0 <= amount < math.inf for amount in amounts) and line.size_us > 0
    texts = (line.ledger, line.source, line.query_identity, line.run_id, line.kind, line.created, *line.unit)
    if not all(isinstance(text, str) for text in texts) or not whole or not positive or line.period not in tuple(ContributionPeriod):
        raise ValueError
