"""Published marginals: answers with exact error bars, and tables fitted to them. No secret, no ledger, no private file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import (
    PROPERTY,
    Column,
    Fit,
    Protects,
    Published,
    Role,
    Rows,
    parse_description,
)
from dpsql.errors import DataError, LakeError
from dpsql.files import Place
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake
from dpsql.parsed_query import AS_RELEASED
from dpsql.published import words
from dpsql.published.public_rows import described, readable
from dpsql.published.rows import TIME
from dpsql.times import duration
from dpsql.udfs.marginals.cells import closes
from dpsql.udfs.marginals.estimates import Estimate, LeastSquares, Product, estimate
from dpsql.udfs.marginals.synthetic import Fitted, draw, fit, marginal

# Published marginals of a table: free answers with exact error bars, from the public
# table alone: no secret, no ledger, no private file.

# Every cell of every measured table is a row of every trigger, so the rows themselves say which
# values keys have, which tables there are, and how noisy each is. A cell that is not closed yet has
# no record and no row: it is taken for a 0 as noisy as the others, so errors are at most too large
# (docs/privacy/marginals.md, theorem 34).


OPEN_CELL = -1
"""Stands for the row of a cell that has none yet."""


@dataclass(frozen=True, eq=False)
class PublishedMarginals:
    """The tables of one trigger.

    Args:
        keys: every key with its values, in order.
        trigger: which.
        time_us: when it was due, microseconds since 1970 UTC.
        columns: name of a column that adds up -> what is known of its noise, and its noisy tables.
        counts: the columns of whole numbers.
        published: what the table says of itself.
    """

    keys: Mapping[str, Sequence[str | int]]
    trigger: int
    time_us: int
    columns: Mapping[str, tuple[LeastSquares, tuple[np.ndarray, ...]]]
    counts: tuple[str, ...]
    published: Published

    @property
    def bound(self) -> str:
        """The records that the numbers are of."""
        return " and ".join(map(_bound, self.published.protects))

    def column(self, name: str | None) -> str:
        """Return the column that a question is about; None: COUNT(*).

        Raises:
            LakeError: there is none, or several.
        """
        if name in self.columns:
            return str(name)
        quotients = {
            each.alias: f"{each.alias} ({each.function})"
            for each in self.published.measures
            if not each.additive
        }
        if name in quotients or not self.columns:
            names = quotients.get(name or "", ", ".join(quotients.values()))
            raise LakeError(
                f"{names} does not add up over cells, so no answer follows from it: select SUM and COUNT next to it"
            )
        if name is None and len(self.counts) == 1:
            return self.counts[0]
        sums_text = ", ".join(f"SUM({each})" for each in self.columns)
        raise LakeError(
            f"the published table has {'several counts' if name is None else f'no column {name!r}'}: ask for {sums_text}"
        )

    def estimate(self, column: str, products: Sequence[Product]) -> Estimate:
        """Return the best linear unbiased estimate of the sum over disjoint products, with its standard error."""
        known, tables = self.columns[column]
        return estimate(known, products, tables)


def _bound(run: Protects) -> str:
    if not run.units:
        return "of every row whose keys have declared values, its numbers clamped"
    word = "row version" if run.rows_end else "record"
    period = f" in {duration(run.period_us)}" if run.period_us else ""
    many = "" if run.max_rows == 1 else "s"
    return f"of at most {run.max_rows:,} {word}{many} of one {', '.join(run.units)}{period}, the earliest"


def open_marginals(lake: Lake, name: str, trigger: int | None = None) -> PublishedMarginals:
    """Read the tables of one trigger.

    Args:
        lake, name: of the query.
        trigger: None: the newest.

    Raises:
        LakeError: there is no such query or trigger, it cannot be read, or it has no sets of keys.
    """
    with readable(path := lake.histogram(name)):
        published = described(path)
        if published.rows is not Rows.CUBE:
            raise LakeError(
                f"query {name!r} publishes no sets of keys: a question in SQL and a synthetic table are of a query with CUBE, ROLLUP or "
                f"GROUPING SETS; how often values came in a sketch: dpsql ask {name} VALUE"
            )
        if trigger is None:
            trigger = pc.max(read_rows(path, ["trigger"])["trigger"]).as_py()
        rows = read_rows(path, None, pc.field("trigger") == (0 if trigger is None else trigger))
    if trigger is None or not rows.num_rows:
        raise LakeError(
            f"query {name!r} has published nothing{'' if trigger is None else f' at trigger {trigger}'}"
        )
    return tables_in(rows, published)


def newest_tables(rows: pa.Table, published: Published) -> PublishedMarginals:
    """Return the tables of the newest trigger in released rows.

    Raises:
        LakeError: they have no sets of keys, or there are none.
    """
    if published.rows is not Rows.CUBE:
        raise LakeError(
            "the query has no sets of keys: a question in SQL is of CUBE, ROLLUP or GROUPING SETS"
        )
    if not rows.num_rows:
        raise LakeError("the query has released nothing")
    is_newest = pc.equal(rows["trigger"], pc.max(rows["trigger"]))
    return tables_in(rows.filter(is_newest), published)


def tables_in(rows: pa.Table, published: Published) -> PublishedMarginals:
    """Return the tables in the rows of one trigger."""
    quotients = {measure.alias for measure in published.measures if not measure.additive}
    names = published.names(Role.KEY)
    aggregates = [alias for alias in published.amounts if alias not in quotients]
    keys = {name.lower(): _known_values(rows[name]) for name in names}
    # A key that no table has could as well have one value.
    sizes = tuple(max(len(values), 1) for values in keys.values())
    places = [
        pc.index_in(rows[name], value_set=pa.array(keys[name.lower()], rows[name].type))
        .fill_null(-1)
        .to_numpy()
        for name in names
    ]
    ids = rows[published.names(Role.SET)[0]].to_numpy()
    tables = []
    for grouping_id in sorted({*ids.tolist()}):
        bits = [grouping_id >> (len(names) - 1 - key) & 1 for key in range(len(names))]
        table_keys = tuple(key for key, bit in enumerate(bits) if not bit)
        shape = tuple(sizes[key] for key in table_keys)
        row_numbers = np.flatnonzero(ids == grouping_id)
        of_table = tuple(places[key][row_numbers] for key in table_keys)
        cells = (
            np.ravel_multi_index(of_table, shape) if shape else np.zeros(len(row_numbers), np.int64)
        )
        closing = published.sets.closing if published.sets else ()
        tables.append(
            (table_keys, _rows_of_cells(cells, shape, row_numbers, _axes(closing, table_keys)))
        )
    time = rows["trigger_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())[0].as_py()
    return PublishedMarginals(
        keys,
        rows["trigger"][0].as_py(),
        time,
        {alias: _noisy_tables(rows, published, alias, tables, sizes) for alias in aggregates},
        tuple(alias for alias in aggregates if pa.types.is_integer(rows[alias].type)),
        published,
    )


def _known_values(key: pa.ChunkedArray) -> list[Any]:
    """Return the values of a key in order; NULL is none."""
    return sorted(value for value in pc.unique(key).to_pylist() if value is not None)


def _axes(closing: tuple[int, ...], table_keys: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a table that say which cells are open; none where all cells have rows."""
    if not closes(closing, table_keys):
        return ()
    return tuple(table_keys.index(key) for key in closing)


def _rows_of_cells(
    cells: np.ndarray, shape: tuple[int, ...], row_numbers: np.ndarray, closing: tuple[int, ...]
) -> np.ndarray:
    """Return the row of each cell of a table; -1: the cell is open.

    Args:
        cells: of each row.
        shape: of the table.
        row_numbers: of each row in the trigger's rows.
        closing: axes whose values together close.

    Raises:
        LakeError: a cell has two rows, or has none and is not open: others of its closing values have some.
    """
    row = np.full(math.prod(shape), OPEN_CELL)
    row[cells] = row_numbers
    other_axes = tuple(axis for axis in range(len(shape)) if axis not in closing)
    is_closed = (row.reshape(shape) != OPEN_CELL).all(axis=other_axes)
    many_closed = int(is_closed.sum()) * math.prod(shape[axis] for axis in other_axes)
    if len(np.unique(cells)) != len(cells) or len(cells) != many_closed:
        raise LakeError("the published table has not all cells of its trigger, or one twice")
    return row


def _noisy_tables(
    rows: pa.Table,
    published: Published,
    alias: str,
    tables: Sequence[tuple[tuple[int, ...], np.ndarray]],
    sizes: tuple[int, ...],
) -> tuple[LeastSquares, tuple[np.ndarray, ...]]:
    """Return what is known of the noise of a column, and its noisy tables.

    Args:
        rows: of one trigger.
        published: what the table says of itself.
        alias: of the column.
        tables: the keys of each table, and the number of each cell's row.
        sizes: number of values of each key.
    """
    values = rows[alias].to_numpy().astype(np.float64)
    errors = rows[published.columns_of(alias, Role.STDERR)[0]].to_numpy()
    variances = tuple(float(errors[row_numbers.max()]) ** 2 for _, row_numbers in tables)
    model = LeastSquares(sizes, tuple(keys for keys, _ in tables), variances)
    arrays = [
        np.where(row_numbers == OPEN_CELL, 0.0, values[row_numbers]).reshape(
            [sizes[key] for key in keys]
        )
        for keys, row_numbers in tables
    ]
    return model, tuple(arrays)


# Synthetic tables: fitted to published marginals alone, and published beside them. No secret, no
# ledger, no private file.

# `DIR/public/NAME.synthetic` has `trigger, trigger_time`, the keys, and under the name of the
# count a weight: the sum of the weights is the noisy
# total. Rows are appended, a trigger at a time.

ENDING = "synthetic"
MARK = "synthetic"
MAX_CELLS = 2**22
MAX_ROWS = 10_000_000


@dataclass(frozen=True)
class Misfit:
    """How far the synthetic table is from one published table: keys, cells, the noise of a cell, and the rms difference in units of it."""

    keys: tuple[str, ...]
    cells: int
    stderr: float
    off: float


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A synthetic table of one trigger: what it is of, its rows as published, their total weight, and where it fits badly."""

    source: Published
    column: str
    trigger: int
    rows: pa.Table
    total: float
    misfits: tuple[Misfit, ...]


def synthetic_path(histogram: Place) -> Place:
    """Return the synthetic table beside the public table of a query: `NAME.synthetic`."""
    return histogram.parent / f"{histogram.name}.{ENDING}"


def synthesize(marginals: PublishedMarginals, column: str, rows: int | None = None) -> Synthetic:
    """Fit a table to the marginals of one trigger.

    Args:
        marginals: what is published.
        column: a count.
        rows: draw so many rows of equal weight; None: a row for every cell, with its weight.

    Raises:
        DataError: the column is no count, there are too many cells or rows, or the noisy total is not positive.

    Guarantee:
        A function of the public table alone, the drawn rows too: it costs nothing. Biased, without a bound.
    """
    if column not in marginals.counts:
        raise DataError(
            f"{column} may be negative, and weights are not: give a count ({', '.join(marginals.counts) or 'the query has none'})"
        )
    model, tables = marginals.columns[column]
    if (cells := math.prod(model.sizes)) > MAX_CELLS:
        raise DataError(
            f"the keys have {cells:,} combinations of values, and a synthetic table has at most {MAX_CELLS:,}: group by fewer keys"
        )
    if rows is not None and not 0 < rows <= MAX_ROWS:
        raise DataError(f"{rows:,} rows are asked for: give 1 to {MAX_ROWS:,}")
    fitted = fit(model, tables)
    total = float(fitted.weights.sum())
    if not total > 0:
        raise DataError(
            f"the noisy total at trigger {marginals.trigger} is not positive, so there is no table that fits: try a later trigger"
        )
    chosen = (
        np.arange(cells) if rows is None else draw(fitted.weights, rows, _seed(marginals, column))
    )
    weights = fitted.weights.ravel() if rows is None else np.full(rows, total / rows)
    return Synthetic(
        marginals.published,
        column,
        marginals.trigger,
        _rows(marginals, column, chosen, weights),
        total,
        _misfits(marginals, column, fitted),
    )


def of_fit(published: Published, fit: Fit) -> Published:
    """Return what a table says of itself that is fitted to one of sets of keys, which says what is given. It has one kind of rows only."""
    columns = [
        replace(column, name=column.name.lower())
        for column in published.columns
        if column.role in (Role.TIME, Role.KEY)
    ]
    return replace(
        published,
        rows=Rows.SYNTHETIC,
        columns=(*columns, Column(fit.column, Role.VALUE, fit.column)),
        measures=tuple(each for each in published.measures if each.alias == fit.column),
        noise=None,
        reading=AS_RELEASED,
        sets=None,
        fit=fit,
    )


def publish(path: Place, name: str, synthetic: Synthetic, rows: int | None) -> bool:
    """Append a synthetic table to the Delta table at a path, which is made unless it is there.

    Args:
        path: of the Delta table.
        name: the query's.
        synthetic: what to append.
        rows: as it was made.

    Returns:
        False if its trigger already exists: then nothing was written.

    Raises:
        LakeError: another table is there, or it cannot be written.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    from dpsql.lake import delta_tables  # opens tables

    description = of_fit(synthetic.source, Fit(name, synthetic.column, rows))
    try:
        delta_tables.create(
            path,
            Schema.from_arrow(synthetic.rows.schema),
            properties=description.properties,
            description=words.table_description(description),
            comments=dict(words.columns(description)),
        )
        stored = parse_description(
            DeltaTable(str(path)).metadata().configuration.get(PROPERTY, "{}")
        )
        if stored is None or stored.fit != description.fit:
            mismatch = (
                f"has other rows ({stored.fit})"
                if stored and stored.fit
                else "is no synthetic table"
            )
            raise LakeError(
                f"{path}: the table there {mismatch}: name another place with --synthetic DIR"
            )
        if stored != description:  # another run has published since
            delta_tables.set_properties(path, description.properties, {})
            delta_tables.describe(path, words.table_description(description))
        return delta_tables.append(path, synthetic.rows, {MARK: synthetic.trigger})
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(
            f"{path}: cannot be written ({type(problem).__name__}); try again, or name another place with --synthetic DIR"
        ) from None


def _seed(marginals: PublishedMarginals, column: str) -> bytes:
    """Derive 32 bytes from what is released."""
    digest = hashlib.sha256(f"{MARK}/{column}/{marginals.trigger}".encode())
    for table in marginals.columns[column][1]:
        digest.update(np.ascontiguousarray(table, "<f8").tobytes())
    return digest.digest()


def _rows(
    marginals: PublishedMarginals, column: str, cells: np.ndarray, weights: np.ndarray
) -> pa.Table:
    """Return rows as published: a cell and a weight each. A key that no measured table has is NULL: nothing is known of it."""
    columns = {
        "trigger": pa.array(np.full(len(cells), marginals.trigger, np.int64)),
        "trigger_time": pa.array(np.full(len(cells), marginals.time_us, np.int64)).cast(TIME),
    }
    places = np.unravel_index(cells, marginals.columns[column][0].sizes)
    for (key, values), place in zip(marginals.keys.items(), places, strict=True):
        kind = pa.int64() if values and isinstance(values[0], int) else pa.string()
        key_values: list[str | int | None] = [*values] or [None]
        columns[key] = pa.array(key_values, kind).take(place)
    return pa.table(columns | {column: pa.array(weights, pa.float64())})


def _misfits(marginals: PublishedMarginals, column: str, fitted: Fitted) -> tuple[Misfit, ...]:
    model, tables = marginals.columns[column]
    names = list(marginals.keys)
    misfits = []
    for keys, variance, table in zip(model.tables, model.variances, tables, strict=True):
        deviation = math.sqrt(
            float(np.mean((marginal(fitted.weights, keys) - table) ** 2)) / variance
        )
        misfits.append(
            Misfit(tuple(names[key] for key in keys), table.size, math.sqrt(variance), deviation)
        )
    return tuple(misfits)
