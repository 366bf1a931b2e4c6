"""What was promised to the people of a ledger in all its runs together, and what a cap leaves (`dpsql budget`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.cost import DAY_US, Cost, total
from dpsql.privacy.curve import epsilon_of, total_mu
from dpsql.privacy.ledger import Line, cost_in_period, protects_other_unit, remarks
from dpsql.sources.config import Cap, Source
from dpsql.text import number
from dpsql.times import duration

EVENT = PrivacyLevel.EVENT
PERIODS = (1, 7, 30)
ROWS = (1, 10, 100)
"""Rows of one person, in the totals of runs that protect one row."""
COMPARE = "compare"
"""Kind of a try that showed exact values."""
MOST_EPSILON = 20.0
"""No query may ask for more."""


@dataclass(frozen=True)
class Total:
    """Taking part in any `days` days (UTC) in a row is (epsilon, delta)-protected in all runs together (privacy/index.md, theorem 4)."""

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
        units: the columns that name its people, per source of a run; of a declared source where nothing was spent.
        lines: its runs, oldest first.
        totals: over any 1, 7 and 30 days (UTC) in a row; of level EVENT over 1, 10 and 100 rows.
        cap: None where none is declared.
        remarks: what was declared on purpose, or changed (`dpsql.privacy.ledger.remarks`).
        protects: the level of its runs; those of the other level are a budget of their own.
        rows_only: of level USER, how many runs on the name protect rows only, and what these cost so many rows of one person.
        unit, first_unit: where earlier runs on the name protect other columns of the same records, this budget's columns and theirs. Their runs
            are not in this budget, and a cap is theirs. Else empty.
    """

    ledger: str
    units: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[Line, ...]
    totals: tuple[Total, ...]
    cap: CapState | None
    remarks: tuple[str, ...] = ()
    protects: PrivacyLevel = PrivacyLevel.USER
    rows_only: tuple[int, tuple[Total, ...]] = (0, ())
    unit: tuple[str, ...] = ()
    first_unit: tuple[str, ...] = ()


def budgets(lines: Sequence[Line], sources: Iterable[Source] = ()) -> tuple[Budget, ...]:
    """Return one Budget per ledger name, level and privacy unit, by name: those with runs, and those that the sources declare a cap for."""
    streams = [source for source in sources if not source.static]
    caps = {
        (source.ledger, level): cap
        for source in streams
        for level in PrivacyLevel
        if (cap := source.cap_of(level))
    }
    names = sorted(
        {(line.ledger, line.cost.protects) for line in lines} | set(caps),
        key=lambda name: (name[0], name[1] is EVENT),
    )
    result = list[Budget]()
    for name, level in names:
        declared = [
            (source.name, source.privacy_unit) for source in streams if source.ledger == name
        ]
        on_ledger = tuple(line for line in lines if line.ledger == name)
        of_level = tuple(line for line in on_ledger if line.cost.protects is level)
        of_rows = (
            tuple(line for line in on_ledger if line.cost.protects is EVENT)
            if level is not EVENT
            else ()
        )
        first, *more_units = _by_unit(of_level)
        result.append(_budget(name, level, first.lines, caps.get((name, level)), declared, of_rows))
        for unit in more_units:
            budget = _budget(name, level, unit.lines, None, [], of_rows)
            result.append(replace(budget, unit=unit.columns, first_unit=first.columns))
    return tuple(result)


def budget_of(lines: Sequence[Line], source: Source, level: PrivacyLevel) -> Budget:
    """Return the budget of the units of one source, at one level."""
    on_ledger = [
        budget
        for budget in budgets(lines, (source,))
        if budget.ledger == source.ledger and budget.protects is level
    ]
    of_unit = [budget for budget in on_ledger if set(budget.unit) == set(source.privacy_unit)]
    unspent = Budget(source.ledger, ((source.name, source.privacy_unit),), (), (), None)
    return (of_unit or on_ledger or [unspent])[0]


def spent_text(budget: Budget, cap_place: str, query_limit: float | None = None) -> str:
    """Say in one line what was spent so far on the units of a budget; from the ledger alone.

    Args:
        budget: with a run.
        cap_place: where a cap is declared.
        query_limit: the epsilon that a policy lets one query ask for; None: any.
    """
    count = len(budget.lines)
    over_all_records = sum(line.period == "STREAM" for line in budget.lines)
    runs = f"{count:,} run{'' if count == 1 else 's'}"
    if over_all_records:
        part = f"{over_all_records:,} over all records"
        runs += " over all records" if over_all_records == count else f" ({part})"
    if cap := budget.cap:
        length = f"{cap.days:g} day{'' if cap.days == 1 else 's'}" if cap.days else "row"
        epsilon_text = (
            number(cap.spent_epsilon) if cap.spent_epsilon < math.inf else "more than all"
        )
        total_text = f"together epsilon {epsilon_text} of {cap.epsilon:g} in any {length} (at the cap's delta {cap.delta:g}, not at the query's)"
        return f"Spent so far on these units: {runs}, {total_text}; the next run {_next_text(cap, query_limit)}"
    first, *_, last = budget.totals
    word = "row" if budget.protects is EVENT else "day"
    costs = f"epsilon {_epsilon_text(first)} in any {first.days} {word}, {_epsilon_text(last)} in any {last.days} {word}s"
    return f"Spent so far on these units: {runs}, {costs}; no budget cap ({cap_place})"


def _next_text(cap: CapState, query_limit: float | None) -> str:
    """Say what one more run may ask for by a cap and a policy."""
    if not cap.left_epsilon:
        return "is refused"
    if query_limit is not None and query_limit < cap.left_epsilon:
        return f"may ask for up to epsilon {query_limit:g}, by the policy"
    return f"may ask for up to epsilon {number(cap.left_epsilon)}"


def spent_facts(budget: Budget) -> dict[str, Any]:
    """Return the same under stable names; null is unlimited."""
    document = facts(budget)
    forever = sum(line.period == "STREAM" for line in budget.lines)
    counts = {"runs": len(budget.lines), "for_ever": forever}
    return counts | {name: document[name] for name in ("totals", "cap")}


class OfUnit(NamedTuple):
    """The runs that add up for one unit, and its columns, where another unit of the same records is protected, too."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def _by_unit(lines: tuple[Line, ...]) -> list[OfUnit]:
    """Return all runs; or, where some protect other columns of the same records, for each unit those that add up for it."""
    kinds = list({(line.source, line.unit, line.origin.reads): line for line in lines}.values())
    conflicting = [kind for kind in kinds if any(protects_other_unit(kind, peer) for peer in kinds)]
    units = {frozenset(kind.unit): kind.unit for kind in reversed(conflicting)}
    if not units:
        return [OfUnit((), lines)]
    groups = []
    for columns in reversed(units.values()):
        of_unit = [kind for kind in conflicting if set(kind.unit) == set(columns)]
        adding_up = tuple(
            line for line in lines if not any(protects_other_unit(line, kind) for kind in of_unit)
        )
        groups.append(OfUnit(columns, adding_up))
    return groups


def facts(budget: Budget) -> dict[str, Any]:
    """Return a budget under stable names (`dpsql budget --json`); null is unlimited."""
    cap = budget.cap
    return {
        "ledger": budget.ledger,
        "privacy_level": str(budget.protects),
        "privacy_units": [
            {"source": source, "columns": list(columns)} for source, columns in budget.units
        ],
        "totals": _totals(budget.totals, "rows" if budget.protects is EVENT else "days"),
        "rows_only": {"runs": budget.rows_only[0], "totals": _totals(budget.rows_only[1], "rows")},
        "cap": {name: _finite(getattr(cap, name)) for name in CapState.__dataclass_fields__}
        if cap
        else None,
        "other_unit": {"columns": list(budget.first_unit)} if budget.first_unit else None,
        "remarks": list(budget.remarks),
        "runs": [
            {
                "run_id": line.run_id,
                "kind": line.kind,
                "source": line.source,
                "created": line.created,
                "epsilon": line.declared_epsilon,
                "delta": line.declared_delta,
                "per": _per(line),
                "query_identity": line.query_identity,
                "exact_values_shown": line.kind == COMPARE,
                "reads": list(line.origin.reads),
            }
            for line in budget.lines
        ],
    }


def _totals(totals: Sequence[Total], count_name: str) -> list[dict[str, Any]]:
    return [{count_name: t.days, "epsilon": _finite(t.epsilon), "delta": t.delta} for t in totals]


def describe(budget: Budget, run_limit: int = 10, names: Mapping[str, str] | None = None) -> str:
    """Describe a budget in sentences; of the runs the newest `run_limit`, by name where a run id
    has one in `names`."""
    called = names or {}
    units = "; ".join(f"{', '.join(columns)} of {source}" for source, columns in budget.units)
    count = len(budget.lines)
    event = budget.protects is EVENT
    protected = (
        f"one row of {', '.join(source for source, _ in budget.units)}, not one person"
        if event
        else units
    )
    text = [
        f"Ledger {budget.ledger}: {count} run{'' if count == 1 else 's'}. Who is protected: {protected}."
    ]
    if count:
        question = (
            "Whether this many rows of one person exist"
            if event
            else "Whether one of them took part in any this many days in a row (UTC)"
        )
        text.append(f"  {question} is hidden, in all these runs together, up to")
        for t in budget.totals:
            days = f"{t.days} {'row' if event else 'day'}{'' if t.days == 1 else 's'}"
            text.append(f"    {days:<8} epsilon {_epsilon_text(t)}, delta {t.delta:.2g}")
        if not event and any(t.days == 7 and t.epsilon > MOST_EPSILON for t in budget.totals):
            text.append(
                f"  CAREFUL: more than epsilon {MOST_EPSILON:g} in 7 days promises little to somebody active all the time."
            )
    if (rows_only := budget.rows_only)[0]:
        rows, costs = (
            " / ".join(texts)
            for texts in zip(*((f"{t.days}", _epsilon_text(t)) for t in rows_only[1]), strict=True)
        )
        delta = f" (delta {rows_only[1][-1].delta:.2g})" if rows_only[1][-1].delta else ""
        text.append(
            f"  {rows_only[0]} run{' protects' if rows_only[0] == 1 else 's protect'} rows only: a person with {rows} rows there in that time pays "
            f"epsilon {costs}{delta} more, which no total here has."
        )
    text += _apart_lines(budget) if budget.first_unit else _cap_lines(budget)
    text += [f"  Note: {remark}." for remark in budget.remarks]
    if shown_exactly := sum(line.kind == COMPARE for line in budget.lines):
        text.append(
            f"  {shown_exactly} of these runs showed exact values next to the private ones (kind compare): no epsilon covers those."
        )
    text += [
        f"  {line.created[:10]}  {line.kind:<5}  {called.get(line.run_id, line.run_id)}  {_promise(line)}"
        for line in budget.lines[-run_limit:]
    ]
    if count > run_limit:
        text.append(f"  and {count - run_limit} older ones: --json has all")
    return "\n".join(text)


def _budget(
    name: str,
    level: PrivacyLevel,
    lines: tuple[Line, ...],
    cap: Cap | None,
    declared: list[tuple[str, tuple[str, ...]]],
    row_lines: tuple[Line, ...],
) -> Budget:
    units = dict.fromkeys([(line.source, line.unit) for line in lines] or declared)
    total_of, many = (_rows, ROWS) if level is EVENT else (_total, PERIODS)
    totals = tuple(total_of(lines, n) for n in many) if lines else ()
    rows = tuple(_rows(row_lines, n) for n in ROWS) if row_lines else ()
    return Budget(
        name,
        tuple(units),
        lines,
        totals,
        _cap_state(lines, cap) if cap else None,
        remarks(lines),
        level,
        (len(row_lines), rows),
    )


def _total(lines: Sequence[Line], days: int) -> Total:
    """Return what all runs cost together; delta is what they declare for their noise, as often as their periods are touched, and their failures."""
    most = [line.charges_in_days(days) for line in lines]
    together = total(line.cost.periods(n) for line, n in zip(lines, most, strict=True))
    noise = math.fsum(
        (line.declared_delta - line.cost.failure) * n for line, n in zip(lines, most, strict=True)
    )
    return Total(days, together.epsilon + _epsilon(together.mu, noise), noise + together.failure)


def _rows(lines: Sequence[Line], rows: int) -> Total:
    """Return what all runs cost together for so many rows of one person."""
    together = total((line.cost.periods(rows) for line in lines), EVENT)
    noise = math.fsum(line.declared_delta - line.cost.failure for line in lines)
    return Total(rows, together.epsilon + _epsilon(together.mu, noise), noise + together.failure)


def _cap_state(lines: Sequence[Line], cap: Cap) -> CapState:
    spent_cost = cost_in_period(lines, cap)
    delta_left = cap.delta - spent_cost.failure
    mu2_limit = (
        total_mu(cap.epsilon - spent_cost.epsilon, delta_left) ** 2
        if delta_left > 0 and cap.epsilon > spent_cost.epsilon
        else 0.0
    )
    share = max(
        spent_cost.epsilon / cap.epsilon,
        spent_cost.mu2 / mu2_limit if mu2_limit else float(spent_cost.mu2 > 0),
    )
    if spent_cost.mu2 == 0 and delta_left < 0:
        share = 1.0
    state = (
        spent_cost.epsilon + _epsilon(spent_cost.mu, delta_left) if delta_left >= 0 else math.inf
    )
    return CapState(
        cap.epsilon,
        cap.delta,
        cap.period_us / DAY_US,
        state,
        min(1.0, share),
        _epsilon_left(lines, cap, spent_cost),
    )


def _epsilon_left(lines: Sequence[Line], cap: Cap, spent_cost: Cost) -> float:
    room = cap.epsilon - spent_cost.epsilon
    if lines:
        newest = lines[-1]
        within = newest.cost_within(cap.period_us)
        fails = newest.cost.failure
        delta = newest.declared_delta
        # How much one more run of its kind costs of the cap for what it costs one period.
        times = within.mu2 / newest.cost.mu2 if newest.cost.mu2 else 1.0
        delta_left = cap.delta - spent_cost.failure - within.failure
        if (
            newest.cost.mu2 == 0 and newest.cost.epsilon > 0
        ):  # pure: no delta is asked for, and epsilons add up
            return (
                max(0.0, min(MOST_EPSILON, room * newest.cost.epsilon / within.epsilon))
                if spent_cost.mu2 == 0 and delta_left >= 0
                else 0.0
            )
    else:
        times = 1.0
        fails = 0.0
        delta = cap.delta
        delta_left = cap.delta
        if delta == 0:
            return min(MOST_EPSILON, room)
    mu2 = total_mu(room, delta_left) ** 2 - spent_cost.mu2 if delta_left > 0 and room > 0 else 0.0
    if mu2 <= 0:
        return 0.0
    # a little less, so that the ledger really accepts it
    return min(MOST_EPSILON, _epsilon(math.sqrt(mu2 / times), delta - fails) * (1 - 1e-6))


def _epsilon(mu: float, delta: float) -> float:
    if mu == 0:
        return 0.0
    return epsilon_of(mu, delta) if 0 < delta < 1 else math.inf


def _apart_lines(budget: Budget) -> list[str]:
    """Return what these totals do not say of the unit that earlier runs protect."""
    first = ", ".join(budget.first_unit)
    mine = ", ".join(budget.unit)
    return [
        f"  Not in these totals: other runs on this ledger, which protect {first} of the same records. A {first} with 10 {mine} pays for each of",
        f"  the 10, and no cap bounds that. A cap of the ledger is of {first}, and accepts no further run that protects {mine}.",
    ]


def _cap_lines(budget: Budget) -> list[str]:
    cap = budget.cap
    if cap is None:
        return ["  No cap is declared: nothing limits further runs."]
    days = f"{cap.days:g} day{'' if cap.days == 1 else 's'}" if cap.days else "row"
    epoch_text = ", counted from Thursday, 1970-01-01" if cap.days > 1 else ""
    lines = [f"  Cap: epsilon {cap.epsilon:g}, delta {cap.delta:g} per {days}{epoch_text}."]
    if budget.lines:
        used = (
            f"epsilon {number(cap.spent_epsilon)}"
            if cap.spent_epsilon < math.inf
            else "more than its delta"
        )
        like = f"with the newest one's window and delta ({_per(budget.lines[-1])}, {budget.lines[-1].declared_delta:g})"
        lines.append(
            f"  Spent of it: {used}, which is {cap.spent_share:.0%} of what noise may cost."
        )
        remainder = f"up to epsilon {number(cap.left_epsilon)}" if cap.left_epsilon else "no more"
        lines.append(f"  Left: one more run {like} may ask for {remainder}.")
    return lines


def _per(line: Line) -> str:
    if line.cost.protects is EVENT:
        return "per row"
    return "for ever" if line.period == "STREAM" else f"per {duration(line.size_us)}"


def _promise(line: Line) -> str:
    exact = "; exact values were shown" if line.kind == COMPARE else ""
    return f"{line.source}: epsilon {line.declared_epsilon:g}, delta {line.declared_delta:g} {_per(line)}{exact}"


def _epsilon_text(total: Total) -> str:
    return number(total.epsilon) if total.epsilon < math.inf else "unlimited"


def _finite(value: float) -> float | None:
    return value if value < math.inf else None
