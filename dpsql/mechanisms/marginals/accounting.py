"""The accountant of marginals: what their numbers cost, by a loop of its own over tables and definitions. It knows neither planner nor shares.

Beside the sum of squares it checks what the proof asks (docs/privacy/marginals.md, theorem 25): no table is there twice, so that no two sums
have the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

from dpsql.errors import AccountingError
from dpsql.mechanisms.marginals.plan import CubeChoices, MarginalsPlan, MeasuredSum, MeasuredTable
from dpsql.parsed_query import ContributionPeriod, CounterName
from dpsql.privacy.cost import (
    Cost,
    Overlap,
    PrivacyLevel,
    check_promise,
    gaussian_delta,
    of_periods_together,
)
from dpsql.privacy.noise_costs import (
    VALUES,
    check_that_rows_may_end,
    column_norm,
    factorisation,
    longest_vector,
)
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.release import ClosingKeys
from dpsql.udfs.noise.blt_inf import BltInf


def account(plan: MarginalsPlan, source: Source) -> Cost:
    """Return what a plan costs one privacy unit, or one row, for ever.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    query = plan.query
    choices = plan.query.asked
    _check_period(plan)
    _check_tables(plan.tables, len(choices.domains))
    _check_sums(plan)
    squares = _squares_that_end if plan.changes else _squares_that_stay
    mu = math.sqrt(math.fsum([*squares(plan, _norms(plan)), _session_squared(plan)]))
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
    if plan.period:
        return of_periods_together(mu**2, lambda periods: periods * ids)
    return Cost(PrivacyLevel.USER, mu**2, 0.0, ids, Overlap.STREAM, mu**2, ids)


def _check_period(plan: MarginalsPlan) -> None:
    is_stream = plan.query.contribution_period is ContributionPeriod.STREAM
    if is_stream != (plan.period is None) or plan.periods.length < 1:
        raise AccountingError("a table has one contribution period, or where its rows end a length")


def _session_squared(plan: MarginalsPlan) -> float:
    """Return what all paid answers together may spend of mu^2: the filter of `dpsql.published.paid` lets no more pass, whatever is asked and when."""
    if not plan.session_share:
        return 0.0
    if plan.closing or plan.changes or not 0 < plan.session_share < 1:
        raise AccountingError("paid answers are of tables that grow, whose cells do not close")
    return plan.session_share * plan.mu**2


def _squares_that_stay(plan: MarginalsPlan, norms: list[float]) -> Iterator[float]:
    """Yield for each sum the squared shift that one unit can cause by rows that stay, in units of the noise."""
    row_squares = [_rows_squared(plan.query.asked, table) for table in plan.tables]
    yield from (_squared(measured, row_squares, norms) for measured in plan.sums)


def _rows_squared(choices: CubeChoices, table: MeasuredTable) -> int:
    """Bound the sum of squares of one unit's rows in the cells of a table: the most rows in one
    cell times all rows."""
    return _in_a_cell(choices, table) * min(
        choices.max_rows_contributed, choices.max_rows_per_group * choices.max_groups_contributed
    )


def _in_a_cell(choices: CubeChoices, table: MeasuredTable) -> int:
    """Bound one unit's rows in a cell of a table; where rows end those at one time.

    A cell of the table holds all cells of all keys that agree with it on its own keys: of these a unit is in G at most, c rows in each.
    """
    merged_cells = math.prod(
        len(domain.values) for key, domain in enumerate(choices.domains) if key not in table.keys
    )
    return min(
        choices.max_rows_contributed,
        choices.max_rows_per_group * choices.max_groups_contributed,
        choices.max_rows_per_group * merged_cells,
    )


def _squares_that_end(plan: MarginalsPlan, norms: list[float]) -> Iterator[float]:
    """Yield for each aggregate and table the squared shift that one unit can cause by rows that it begins in one period, in units of the noise.

    Versions of a slot of a cell of all keys are never there at once, in no table: they add up in squares, 2 f^2 each (docs/privacy/dynamic.md, the spell
    lemma). The slots that are in one cell of a table add up by Cauchy.
    """
    choices = plan.query.asked
    if plan.closing or not plan.query.privacy_unit:
        raise AccountingError("rows that end are a unit's, and their cells do not close")
    if choices.max_triggers is not None:
        check_that_rows_may_end(choices.max_triggers)
    for place, (table, norm) in enumerate(zip(plan.tables, norms, strict=True)):
        versions = 2 * norm**2 * _in_a_cell(choices, table) * choices.max_rows_contributed
        for _, sums in plan.columns:
            sigmas = [measured.sigmas[place] for measured in sums]
            sum_by_sum = math.fsum(
                _height_that_ends(measured) / sigma**2
                for measured, sigma in zip(sums, sigmas, strict=True)
            )
            as_vector = longest_vector(sums, sigmas)
            yield versions * (sum_by_sum if as_vector is None else min(sum_by_sum, as_vector))


def _height_that_ends(measured: MeasuredSum) -> float:
    """Return the squared height of a version in one sum; of both signs they add up."""
    if measured.rule not in VALUES:
        return 1.0
    lower = measured.lower * measured.grid
    upper = measured.upper * measured.grid
    return lower**2 + upper**2 if lower < 0 < upper else max(lower**2, upper**2)


def _norms(plan: MarginalsPlan) -> list[float]:
    """Return the norm of what a row moves in each table: of a cell that closes one draw, of another one all triggers from its own on."""
    last = plan.query.asked.max_triggers
    norm = column_norm(BltInf()) if last is None else factorisation(CounterName.BLT, last)[0]
    if plan.closing is None:
        return [norm] * len(plan.tables)
    _check_closing(plan, plan.closing)
    closing = frozenset(plan.closing.keys)
    return [1.0 if closing <= frozenset(table.keys) else norm for table in plan.tables]


TEXTS: Mapping[str, str] = {
    "text of minute": "%Y-%m-%d %H:%M:00",
    "text of hour": "%Y-%m-%d %H:00:00",
    "text of day": "%Y-%m-%d 00:00:00",
}


def _check_closing(plan: MarginalsPlan, closing: ClosingKeys) -> None:
    """Check that values that close have times of one trigger alone, minute by minute or hour by hour."""
    choices = plan.query.asked
    functions = [dict(choices.cuts).get(key, "") for key in closing.keys]
    if choices.max_triggers is None or not functions or not all(functions):
        raise AccountingError("cells close where keys cut the time of a run that ends")
    domains = [choices.domains[key] for key in closing.keys]
    has_minutes = any(function.endswith("minute") for function in functions)
    step = timedelta(minutes=1) if has_minutes else timedelta(hours=1)
    interval = timedelta(microseconds=plan.query.trigger_interval_us)
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=plan.start_us)
    times = [start + number * interval for number in range(choices.max_triggers)]
    for number, time in enumerate(times, start=1):
        while time < times[number - 1] + interval:
            texts = [str(_value_of(function, time)) for function in functions]
            place = _place_of(texts, domains)
            if place is not None and closing.triggers[place] != number:
                raise AccountingError(
                    f"records of {', '.join(texts)} come after their cells have closed"
                )
            time = min(time - _since(time, step) + step, times[number - 1] + interval)


def _place_of(texts: list[str], domains: list[Domain]) -> int | None:
    """Return the place of values among all combinations; None: a record with them counts nowhere."""
    place = 0
    for text, domain in zip(texts, domains, strict=True):
        if text not in domain.values and not domain.other:
            return None
        is_named = text in domain.values
        last = len(domain.values) - 1
        place = place * (last + 1) + (domain.values.index(text) if is_named else last)
    return place


def _since(time: datetime, step: timedelta) -> timedelta:
    """Return how long ago the last step of the clock was."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) % step


def _value_of(function: str, time: datetime) -> object:
    if function == "date":
        return time.date()
    if function == "dayofyear":
        return (time.date() - date(time.year, 1, 1)).days + 1
    if function in TEXTS:
        return time.strftime(TEXTS[function])
    return getattr(time, "day" if function == "dayofmonth" else function)


def _squared(measured: MeasuredSum, row_squares: list[int], norms: list[float]) -> float:
    """Return the squared shift over all tables that one unit can cause in one sum, in units of its noise."""
    largest = (
        max(-measured.lower * measured.grid, measured.upper * measured.grid, 0.0)
        if measured.rule in VALUES
        else 1.0
    )
    return math.fsum(
        rows * (largest * norm / sigma) ** 2
        for rows, norm, sigma in zip(row_squares, norms, measured.sigmas, strict=True)
    )


def _check_sums(plan: MarginalsPlan) -> None:
    """Check that sums are over rows, and that each has noise in every table."""
    if [measured.noise_stream for measured in plan.sums] != list(range(1, len(plan.sums) + 1)):
        raise AccountingError("sums must be mechanisms 1, 2, ...: equal numbers share their noise")
    for measured in plan.sums:
        if measured.rule not in ("rows", "valid", *VALUES):
            raise AccountingError(
                f"rule {measured.rule} is unknown to the accountant: it is no sum over rows"
            )
        if len(measured.sigmas) != len(plan.tables) or not min(measured.sigmas) > 0:
            raise AccountingError("every table needs noise")


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
