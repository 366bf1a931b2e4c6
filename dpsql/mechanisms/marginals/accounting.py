"""The accountant of marginals: what their numbers cost, by a loop of its own over tables and definitions. It knows neither planner nor shares.

Beside the sum of squares it checks what the proof asks (docs/privacy/marginals.md, theorem 25): no table is there twice, so that no two sums
have the same noise.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta

from dpsql.errors import AccountingError
from dpsql.mechanisms.marginals.plan import CubeChoices, MarginalsPlan, MeasuredSum, MeasuredTable
from dpsql.parsed_query import ContributionPeriod, CounterName
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, check_promise, gaussian_delta
from dpsql.privacy.noise_costs import VALUES, column_norm, factorisation
from dpsql.sources.config import Source
from dpsql.udfs.marginals.release import ClosingKey
from dpsql.udfs.noise.blt_inf import BltInf


def account(plan: MarginalsPlan, source: Source) -> Cost:
    """Return what a plan costs one privacy unit, or one row, for ever.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    query = plan.query
    choices = plan.query.asked
    if query.contribution_period is not ContributionPeriod.STREAM:
        raise AccountingError("a growing table has one contribution period, STREAM")
    if [measured.noise_stream for measured in plan.sums] != list(range(1, len(plan.sums) + 1)):
        raise AccountingError("sums must be mechanisms 1, 2, ...: equal numbers share their noise")
    _check_tables(plan.tables, len(choices.domains))
    norms = _norms(plan)
    row_squares = [_rows_squared(choices, table) for table in plan.tables]
    mu = math.sqrt(math.fsum(_squared(measured, row_squares, norms) for measured in plan.sums))
    noise = gaussian_delta(mu, plan.epsilon)
    ids = source.max_users / 2.0**64
    if not query.privacy_unit:
        if {
            choices.max_rows_contributed,
            choices.max_rows_per_group,
            choices.max_groups_contributed,
        } != {1}:
            raise AccountingError("one row has no unit: it is one row, of one cell of each table")
        ids = 0.0  # no id is asked
    check_promise(plan, {"mu": mu, "delta_noise": noise, "delta_hash": ids, "delta": noise + ids})
    if not query.privacy_unit:
        return Cost(PrivacyLevel.EVENT, mu**2, 0.0, 0.0, Overlap.EVENTS, mu**2, 0.0)
    return Cost(PrivacyLevel.USER, mu**2, 0.0, ids, Overlap.STREAM, mu**2, ids)


def _rows_squared(choices: CubeChoices, table: MeasuredTable) -> int:
    """Bound the sum of squares of one unit's rows in the cells of a table: the most rows in one
    cell times all rows.

    A cell of the table holds all cells of all keys that agree with it on its own keys: of these a unit is in G at most, c rows in each.
    """
    merged_cells = math.prod(
        len(domain.values) for key, domain in enumerate(choices.domains) if key not in table.keys
    )
    in_a_cell = min(
        choices.max_rows_contributed,
        choices.max_rows_per_group * choices.max_groups_contributed,
        choices.max_rows_per_group * merged_cells,
    )
    return in_a_cell * min(
        choices.max_rows_contributed, choices.max_rows_per_group * choices.max_groups_contributed
    )


def _norms(plan: MarginalsPlan) -> list[float]:
    """Return the norm of what a row moves in each table: of a cell that closes one draw, of another one all triggers from its own on."""
    last = plan.query.asked.max_triggers
    norm = column_norm(BltInf()) if last is None else factorisation(CounterName.BLT, last)[0]
    if plan.closing is None:
        return [norm] * len(plan.tables)
    _check_closing(plan, plan.closing)
    return [1.0 if plan.closing.key in table.keys else norm for table in plan.tables]


def _check_closing(plan: MarginalsPlan, closing: ClosingKey) -> None:
    """Check that a value that closes has times of one trigger alone, minute by minute, hour by hour or day by day."""
    choices = plan.query.asked
    functions = [function for key, function in choices.cuts if key == closing.key]
    if choices.max_triggers is None or not functions:
        raise AccountingError("cells close where a key cuts the time of a run that ends")
    values = choices.domains[closing.key].values
    other_place = len(values) - 1 if choices.domains[closing.key].other else None
    step = timedelta(minutes=1) if functions[0] == "minute" else timedelta(hours=1)
    interval = timedelta(microseconds=plan.query.trigger_interval_us)
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=plan.start_us)
    times = [start + number * interval for number in range(choices.max_triggers)]
    for number, time in enumerate(times, start=1):
        while time < times[number - 1] + interval:
            text = str(_value_of(functions[0], time))
            place = values.index(text) if text in values else other_place
            if place is not None and closing.triggers[place] != number:
                raise AccountingError(f"records of {text} come after its cells have closed")
            time = min(time - _since(time, step) + step, times[number - 1] + interval)


def _since(time: datetime, step: timedelta) -> timedelta:
    """Return how long ago the last step of the clock was."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) % step


def _value_of(function: str, time: datetime) -> object:
    if function == "date":
        return time.date()
    if function == "dayofyear":
        return (time.date() - date(time.year, 1, 1)).days + 1
    return getattr(time, "day" if function == "dayofmonth" else function)


def _squared(measured: MeasuredSum, row_squares: list[int], norms: list[float]) -> float:
    """Return the squared shift over all tables that one unit can cause in one sum, in units of its noise."""
    if measured.rule not in ("rows", "valid", *VALUES):
        raise AccountingError(
            f"rule {measured.rule} is unknown to the accountant: it is no sum over rows"
        )
    if len(measured.sigmas) != len(row_squares) or not all(sigma > 0 for sigma in measured.sigmas):
        raise AccountingError("every table needs noise")
    largest = (
        max(-measured.lower * measured.grid, measured.upper * measured.grid, 0.0)
        if measured.rule in VALUES
        else 1.0
    )
    return math.fsum(
        rows * (largest * norm / sigma) ** 2
        for rows, norm, sigma in zip(row_squares, norms, measured.sigmas, strict=True)
    )


def _check_tables(tables: tuple[MeasuredTable, ...], keys: int) -> None:
    """Check what theorem 25 asks of tables."""
    key_sets = [frozenset(table.keys) for table in tables]
    if (
        not tables
        or len({*key_sets}) != len(key_sets)
        or any(
            len(key_set) != len(table.keys) for key_set, table in zip(key_sets, tables, strict=True)
        )
    ):
        raise AccountingError(
            "a table is measured twice, or a key is in it twice: equal cells share their noise"
        )
    for table in tables:
        bits = sum(2 ** (keys - 1 - key) for key in range(keys) if key not in table.keys)
        if any(not 0 <= key < keys for key in table.keys) or table.grouping_id != bits:
            raise AccountingError(
                f"a table's grouping id is {table.grouping_id}, and its keys say {bits}"
            )
