"""Published marginals of a growing table: free answers with exact error bars, from the public table alone: no secret, no ledger, no private file.

Every cell of every measured table is a row of every trigger, so the rows themselves say which values keys have, which tables there are, and how
noisy each is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import Published, Role, Rows
from dpsql.errors import LakeError
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake
from dpsql.published.histogram import described, readable
from dpsql.udfs.marginals.estimates import Estimate, LeastSquares, Product, estimate


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
        """What the numbers are of."""
        runs = self.published.protects
        said = [
            f"of at most {one.max_rows:,} {'record' if one.max_rows == 1 else 'records'} of one {', '.join(one.units)}, the earliest"
            if one.units
            else "of every row whose keys have declared values, its numbers clamped"
            for one in runs
        ]
        return " and ".join(said)

    def column(self, name: str | None) -> str:
        """The column that a question is about; None: COUNT(*).

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
            said = quotients.get(name or "", ", ".join(quotients.values()))
            raise LakeError(
                f"{said} does not add up over cells, so no answer follows from it: select SUM and COUNT beside it"
            )
        if name is None and len(self.counts) == 1:
            return self.counts[0]
        shown = ", ".join(f"SUM({each})" for each in self.columns)
        raise LakeError(
            f"the published table has {'several counts' if name is None else f'no column {name!r}'}: ask for {shown}"
        )

    def estimate(self, column: str, products: Sequence[Product]) -> Estimate:
        """The best linear unbiased estimate of the sum over disjoint products, with its standard error."""
        known, tables = self.columns[column]
        return estimate(known, products, tables)


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
                f"GROUPING SETS; how often values came in a sketch: dpsql ask {name} --value VALUE"
            )
        if trigger is None:
            trigger = pc.max(read_rows(path, ["trigger"])["trigger"]).as_py()
        rows = read_rows(path, None, pc.field("trigger") == (0 if trigger is None else trigger))
    if trigger is None or not rows.num_rows:
        raise LakeError(
            f"query {name!r} has published nothing{'' if trigger is None else f' at trigger {trigger}'}"
        )
    return tables_in(rows, published)


def tables_in(rows: pa.Table, published: Published) -> PublishedMarginals:
    """The tables in the rows of one trigger."""
    quotients = {each.alias for each in published.measures if not each.additive}
    names = published.names(Role.KEY)
    aggregates = [alias for alias in published.amounts if alias not in quotients]
    keys = {
        name.lower(): sorted(
            value for value in pc.unique(rows[name]).to_pylist() if value is not None
        )
        for name in names
    }
    places = [
        pc.index_in(rows[name], value_set=pa.array(keys[name.lower()], rows[name].type))
        .fill_null(-1)
        .to_numpy()
        for name in names
    ]
    sizes = tuple(
        max(len(values), 1) for values in keys.values()
    )  # a key that no table has could as well have one value
    ids = rows[published.names(Role.SET)[0]].to_numpy()
    values = {alias: rows[alias].to_numpy() for alias in aggregates}
    errors = {alias: rows[published.of(alias, Role.STDERR)[0]].to_numpy() for alias in aggregates}
    tables = []
    variances = {alias: list[float]() for alias in aggregates}
    arrays = {alias: list[np.ndarray]() for alias in aggregates}
    for number in sorted({*ids.tolist()}):
        mine = np.flatnonzero(ids == number)
        has = tuple(key for key in range(len(names)) if not number >> (len(names) - 1 - key) & 1)
        shape = tuple(sizes[key] for key in has)
        cell = (
            np.ravel_multi_index(tuple(places[key][mine] for key in has), shape)
            if has
            else np.zeros(len(mine), np.int64)
        )
        if len(mine) != math.prod(shape) or len(np.unique(cell)) != len(mine):
            raise LakeError("the published table has not all cells of its trigger, or one twice")
        tables.append(has)
        for alias in aggregates:
            table = np.empty(len(mine))
            table[cell] = values[alias][mine]
            arrays[alias].append(table.reshape(shape))
            variances[alias].append(float(errors[alias][mine[0]]) ** 2)
    known = {
        alias: LeastSquares(sizes, tuple(tables), tuple(variances[alias])) for alias in aggregates
    }
    time = rows["trigger_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())[0].as_py()
    counts = tuple(alias for alias in aggregates if pa.types.is_integer(rows[alias].type))
    return PublishedMarginals(
        keys,
        rows["trigger"][0].as_py(),
        time,
        {alias: (known[alias], tuple(arrays[alias])) for alias in aggregates},
        counts,
        published,
    )
