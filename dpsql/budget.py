"""What was promised to the people of a ledger in all its runs together, and what a cap leaves (`dpsql budget`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpsql.calibration import epsilon_of, total_mu
from dpsql.config import Cap, Source
from dpsql.explainer import duration, number
from dpsql.ledger import Line, spent

DAY_US = 86_400_000_000
PERIODS = (1, 7, 30)
MOST_EPSILON = 20.0
"""No query may ask for more."""


@dataclass(frozen=True)
class Total:
    """Taking part in a period of `days` days is (epsilon, delta)-protected in all runs together (privacy.md, theorem 4)."""

    days: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class CapState:
    """A cap, what is spent of it, and what one more run may ask for.

    Args:
        epsilon, delta, days: the cap.
        spent_epsilon: what all runs cost at the cap's delta; infinite where the failures alone exceed it.
        spent_share: part of the Gaussian budget mu^2 that is spent.
        left_epsilon: the largest epsilon of one more run with the newest run's window and delta.
    """

    epsilon: float
    delta: float
    days: float
    spent_epsilon: float
    spent_share: float
    left_epsilon: float


@dataclass(frozen=True)
class Budget:
    """All that one ledger name has spent.

    Args:
        ledger: its name.
        units: the columns that name its people, per source.
        lines: its runs, oldest first.
        totals: over 1, 7 and 30 days, counted from 1970-01-01 UTC.
        cap: None where none is declared.
    """

    ledger: str
    units: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[Line, ...]
    totals: tuple[Total, ...]
    cap: CapState | None


def budgets(lines: Sequence[Line], sources: Iterable[Source] = ()) -> tuple[Budget, ...]:
    """One Budget per ledger name, by name: those with runs, and those that the sources declare a cap for."""
    streams = [source for source in sources if not source.static]
    caps = {source.ledger: source.cap for source in streams if source.cap}
    names = sorted({line.ledger for line in lines} | set(caps))
    declared = {name: [(source.name, source.privacy_unit) for source in streams if source.ledger == name] for name in names}
    return tuple(_budget(name, tuple(line for line in lines if line.ledger == name), caps.get(name), declared[name]) for name in names)


def facts(budget: Budget) -> dict[str, Any]:
    """A budget under stable names (`dpsql budget --json`); null is unlimited."""
    cap = budget.cap
    return {
        "ledger": budget.ledger,
        "privacy_units": [{"source": source, "columns": list(columns)} for source, columns in budget.units],
        "totals": [{"days": t.days, "epsilon": _finite(t.epsilon), "delta": t.delta} for t in budget.totals],
        "cap": {name: _finite(getattr(cap, name)) for name in CapState.__dataclass_fields__} if cap else None,
        "runs": [
            {
                "run_id": line.run_id,
                "kind": line.kind,
                "source": line.source,
                "created": line.created,
                "epsilon": line.epsilon,
                "delta": line.delta,
                "per": _per(line),
                "query_identity": line.query_identity,
            }
            for line in budget.lines
        ],
    }


def describe(budget: Budget, shown: int = 10) -> str:
    """The same in sentences; of the runs the newest `shown`."""
    units = "; ".join(f"{', '.join(columns)} of {source}" for source, columns in budget.units)
    count = len(budget.lines)
    text = [f"Ledger {budget.ledger}: {count} run{'' if count == 1 else 's'}. Who is protected: {units}."]
    if count:
        text.append("  Whether one of them took part in a period is hidden, in all these runs together, up to")
        for total in budget.totals:
            days = f"{total.days} day{'' if total.days == 1 else 's'}"
            text.append(
                f"    {days:<8} epsilon {number(total.epsilon) if total.epsilon < math.inf else 'unlimited'}, delta {total.delta:.2g}"
            )
    text += _cap_lines(budget)
    text += [f"  {line.created[:10]}  {line.kind:<5}  {line.run_id}  {_promise(line)}" for line in budget.lines[-shown:]]
    if count > shown:
        text.append(f"  and {count - shown} older ones: --json has all")
    return "\n".join(text)


def _budget(name: str, lines: tuple[Line, ...], cap: Cap | None, declared: list[tuple[str, tuple[str, ...]]]) -> Budget:
    units = dict.fromkeys([*((line.source, line.unit) for line in lines), *declared])
    totals = tuple(_total(lines, days) for days in PERIODS) if lines else ()
    return Budget(name, tuple(units), lines, totals, _cap_state(lines, cap) if cap else None)


def _total(lines: Sequence[Line], days: int) -> Total:
    """Joint Gaussian accounting; delta is the sum of what the runs declare, each as often as its periods are touched."""
    charges = [line.charges(days * DAY_US) for line in lines]
    mu, failures = spent(lines, Cap(0.0, 0.0, days * DAY_US))
    delta = math.fsum(line.delta * n for line, n in zip(lines, charges, strict=True))
    return Total(days, _epsilon(mu, delta - failures), delta)


def _cap_state(lines: Sequence[Line], cap: Cap) -> CapState:
    mu, failures = spent(lines, cap)
    rest = cap.delta - failures
    whole = total_mu(cap.epsilon, rest) ** 2 if rest > 0 else 0.0
    share = min(1.0, mu**2 / whole) if whole else 1.0
    return CapState(cap.epsilon, cap.delta, cap.period_us / DAY_US, _epsilon(mu, rest), share, _left(lines, cap, mu, failures))


def _left(lines: Sequence[Line], cap: Cap, mu: float, failures: float) -> float:
    if lines:
        newest = lines[-1]
        times, fails, delta = newest.charges(cap.period_us), newest.delta_threshold + newest.delta_hash, newest.delta
    else:
        times, fails, delta = 1, 0.0, cap.delta
    rest = cap.delta - failures - times * fails
    mu2 = total_mu(cap.epsilon, rest) ** 2 - mu**2 if rest > 0 else 0.0
    if mu2 <= 0:
        return 0.0
    # a little less, so that the ledger really accepts it
    return min(MOST_EPSILON, _epsilon(math.sqrt(mu2 / times), delta - fails) * (1 - 1e-6))


def _epsilon(mu: float, delta: float) -> float:
    if mu == 0:
        return 0.0
    return epsilon_of(mu, delta) if 0 < delta < 1 else math.inf


def _cap_lines(budget: Budget) -> list[str]:
    cap = budget.cap
    if cap is None:
        return ["  No cap is declared: nothing limits further runs."]
    days = f"{cap.days:g} day{'' if cap.days == 1 else 's'}"
    lines = [f"  Cap: epsilon {cap.epsilon:g}, delta {cap.delta:g} per {days}."]
    if budget.lines:
        used = f"epsilon {number(cap.spent_epsilon)}" if cap.spent_epsilon < math.inf else "more than its delta"
        like = f"with the newest one's window and delta ({_per(budget.lines[-1])}, {budget.lines[-1].delta:g})"
        lines.append(f"  Spent of it: {used}, which is {cap.spent_share:.0%} of what noise may cost.")
        left = f"up to epsilon {number(cap.left_epsilon)}" if cap.left_epsilon else "no more"
        lines.append(f"  Left: one more run {like} may ask for {left}.")
    return lines


def _per(line: Line) -> str:
    return "for ever" if line.period == "STREAM" else f"per {duration(line.size_us)}"


def _promise(line: Line) -> str:
    return f"{line.source}: epsilon {line.epsilon:g}, delta {line.delta:g} {_per(line)}"


def _finite(value: float) -> float | None:
    return value if value < math.inf else None
