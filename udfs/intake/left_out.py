"""Figures of what the contribution limits leave out of one bucket's records: sums over units, each held within a bound of its own.

Guarantee: in one contribution period a unit adds at most 1 to `units` and to `units_over`, what counts of it to `pairs` and `rows`, at most
`most_pairs` to `pairs_left_out`, `most_rows` to `rows_left_out`, and to `values_clamped` records that count and one for each group. What it
adds is a function of its own timely records of the period and of the clocks of their micro-batches, and adding never takes anything back.
Source: docs/privacy/histogram.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Bool, Int, Numbered, run_starts, run_sums, running_count, sort_order
from dpsql.udfs.intake.user_state import (
    LOST,
    REFUSED,
    Counted,
    Entries,
    count_entries,
    merge,
    whole_users,
)

FIGURES = (
    "units",
    "units_over",
    "pairs",
    "pairs_left_out",
    "rows",
    "rows_left_out",
    "values_clamped",
)
FIGURES_KEY = 0
"""In contributions of figures `key` is this, which says where they are added up, and `key_bytes` has the figure's number among `FIGURES`."""
BEFORE_TRIGGERS = 0
"""Their `trigger`: numbers of triggers begin with 1, so no record's contribution has it."""


@dataclass(frozen=True)
class FigureLimits:
    """The most that one unit adds in one period: `most_pairs` left out, where pairs of a unit and a key are counted (else 0), and `most_rows`
    left out, where rows are (else 0); `clamps`: values, or sums of a unit in a group, are held within bounds."""

    most_pairs: int
    most_rows: int
    clamps: bool = False

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that are counted."""
        pairs = FIGURES[2:4] if self.most_pairs else ()
        rows = FIGURES[4:6] if self.most_rows else ()
        return (*FIGURES[:2], *pairs, *rows, *FIGURES[6:] * self.clamps)


@dataclass(frozen=True)
class Verdicts:
    """Records of one micro-batch, counted against the keys of their units; one value per record.

    `keys`: as they were counted; `is_admitted`: the record counts; `is_first`: it is the first of its key that does; `rank`: of the key
    among the unit's.
    """

    keys: Counted
    is_admitted: Bool
    is_first: Bool
    rank: Int


def add_figures(
    users: pa.Table, verdicts: Verdicts, lost_rows: Entries, limits: FigureLimits, clamped: Int
) -> tuple[pa.Table, pa.Table]:
    """Count what one micro-batch adds to the figures.

    Args:
        users: the state of units.
        verdicts: of the timely records, by period and unit and in order of arrival.
        lost_rows: further records, of units that had no row left before.
        limits: what is counted.
        clamped: what each record adds to `values_clamped`.

    Returns:
        The new state, and rows of periods: `period`, and a column for each figure.
    """
    period = verdicts.keys.entries.period
    amounts: dict[str, Bool | Int] = {"units": verdicts.is_first & (verdicts.rank == 1)}
    tables = []
    if limits.most_rows:
        amounts["rows"] = verdicts.is_admitted
        users, losses = _add_lost_rows(users, verdicts, lost_rows, limits)
        tables.append(losses)
    if limits.most_pairs:
        amounts["pairs"] = verdicts.is_first
        users = _add_refused_pairs(users, verdicts, limits, amounts)
    if limits.clamps:
        amounts["values_clamped"] = clamped
    tables.append(_by_period(period, amounts, limits))
    return users, pa.concat_tables(tables)


def _by_period(period: Int, amounts: dict[str, Bool | Int], limits: FigureLimits) -> pa.Table:
    """Add up amounts of records, sorted by period; figures that are not among them are 0."""
    starts = run_starts(period)
    nothing = np.zeros(len(period), bool)
    sums = {name: run_sums(amounts.get(name, nothing), starts) for name in limits.figures}
    return pa.table({"period": period[starts], **sums})


def _add_lost_rows(
    users: pa.Table, verdicts: Verdicts, lost_rows: Entries, limits: FigureLimits
) -> tuple[pa.Table, pa.Table]:
    """Count the records that do not count, and their units; return the new state, and both by period."""
    entries = verdicts.keys.entries
    positions = np.flatnonzero(~verdicts.is_admitted)
    period = np.concatenate([lost_rows.period, entries.period[positions]])
    numbers = np.concatenate([lost_rows.user.numbers, entries.user.numbers[positions]])
    order = sort_order(period, numbers)
    losses = whole_users(period[order], Numbered(numbers[order], entries.user.values))
    tally = count_entries(users, LOST, losses)
    is_within = tally.prior_rows + tally.occurrence <= limits.most_rows
    is_new_unit = ~tally.is_known & (tally.occurrence == 1)
    amounts: dict[str, Bool | Int] = {"rows_left_out": is_within, "units_over": is_new_unit}
    return merge(users, LOST, tally, is_within), _by_period(losses.period, amounts, limits)


def _add_refused_pairs(
    users: pa.Table, verdicts: Verdicts, limits: FigureLimits, amounts: dict[str, Bool | Int]
) -> pa.Table:
    """Count the keys of which no record counts, and where rows are not counted their units; return the new state."""
    keys = verdicts.keys
    counting = np.bincount(keys.pair, verdicts.is_admitted, len(keys.heads)) > 0
    refused = np.flatnonzero(~(keys.is_known | counting[keys.pair]))
    entries = keys.entries
    period = entries.period[refused]
    user = entries.user.take(refused)
    pairs = count_entries(users, REFUSED, Entries(period, user, entries.fingerprint.take(refused)))
    is_new = ~pairs.is_known & (pairs.occurrence == 1)
    rank = pairs.user_entries + running_count(is_new, run_starts(period, user.numbers))
    is_within = is_new & (rank <= limits.most_pairs)
    amounts["pairs_left_out"] = flag_records(refused, is_within, len(keys.pair))
    if not limits.most_rows:
        amounts["units_over"] = flag_records(refused, is_within & (rank == 1), len(keys.pair))
    return merge(users, REFUSED, pairs, is_within, counts_rows=False)


def flag_records(positions: Int, flags: Bool, size: int) -> Bool:
    """Return flags of some of so many records; of the others none is set."""
    all_flags = np.zeros(size, bool)
    all_flags[positions] = flags
    return all_flags


def figure_contributions(left_out: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the figures of a micro-batch as contributions in the columns of `schema`: `users` is the amount; those that are 0 are left out."""
    parts = [schema.empty_table()]
    for name in left_out.column_names[1:]:
        amounts = left_out.filter(pc.greater(left_out[name], 0))
        columns = {field.name: np.zeros(amounts.num_rows, np.int64) for field in schema}
        columns |= {"window": amounts["period"], "users": amounts[name]}
        columns["trigger"] = np.full(amounts.num_rows, BEFORE_TRIGGERS)
        columns["key"] = np.full(amounts.num_rows, FIGURES_KEY)
        number = bytes([FIGURES.index(name)])
        columns["key_bytes"] = pa.array([number] * amounts.num_rows, pa.binary())
        parts.append(pa.table(columns, schema))
    return pa.concat_tables(parts)
