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

from dpsql.udfs.columns import Bool, Int, Numbered, run_starts, run_sums, running_count
from dpsql.udfs.intake.user_state import Counted, Entries, count_entries, merge

REFUSED = 2
"""Part of the state of units: their keys of which no record counts."""
LOST = 3
"""Part of the state of units: one entry, with how many of their records do not count."""
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
    users: pa.Table, verdicts: Verdicts, limits: FigureLimits, clamped: Int
) -> tuple[pa.Table, pa.Table]:
    """Count what one micro-batch adds to the figures.

    Args:
        users: the state of units.
        verdicts: of the timely records, by period and unit and in order of arrival.
        limits: what is counted.
        clamped: what each record adds to `values_clamped`.

    Returns:
        The new state, and one row per period: `period`, and a column for each figure.
    """
    period = verdicts.keys.entries.period
    amounts: dict[str, Bool | Int] = {name: np.zeros(len(period), bool) for name in limits.figures}
    amounts["units"] = verdicts.is_first & (verdicts.rank == 1)
    if limits.most_rows:
        amounts["rows"] = verdicts.is_admitted
        users = _add_lost_rows(users, verdicts, limits.most_rows, amounts)
    if limits.most_pairs:
        amounts["pairs"] = verdicts.is_first
        users = _add_refused_pairs(users, verdicts, limits, amounts)
    if limits.clamps:
        amounts["values_clamped"] = clamped
    starts = run_starts(period)
    sums = {name: run_sums(column, starts) for name, column in amounts.items()}
    return users, pa.table({"period": period[starts], **sums})


def _add_lost_rows(
    users: pa.Table, verdicts: Verdicts, max_rows: int, amounts: dict[str, Bool | Int]
) -> pa.Table:
    """Count the records that do not count, and their units; return the new state."""
    refused = np.flatnonzero(~verdicts.is_admitted)
    entries = verdicts.keys.entries
    unit = Numbered(np.zeros(len(refused), np.int32), np.zeros(1, np.uint32))
    refused_rows = count_entries(
        users, LOST, Entries(entries.period[refused], entries.user.take(refused), unit)
    )
    is_within = refused_rows.prior_rows + refused_rows.occurrence <= max_rows
    amounts["rows_left_out"][refused] = is_within
    amounts["units_over"][refused] = ~refused_rows.is_known & (refused_rows.occurrence == 1)
    return merge(users, LOST, refused_rows, is_within)


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
    amounts["pairs_left_out"][refused] = is_within
    if not limits.most_rows:
        amounts["units_over"][refused] = is_within & (rank == 1)
    return merge(users, REFUSED, pairs, is_within, counts_rows=False)


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
