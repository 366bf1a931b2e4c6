"""The rows that a query's HAVING, ORDER BY and LIMIT choose, window by window. The table keeps all."""

from __future__ import annotations

import math

from dpsql.description import START, Published
from dpsql.parsed_query import Reading
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import silence

ROW = "dpsql_row"
NONE_LEFT = "No released row meets the query's HAVING."
PRIVATE = "The query has a condition (HAVING) that is not public, because it may name somebody: rows that it leaves out are shown, too."


def is_ordered(rows: PublicRows) -> bool:
    """Tell whether the query says how the rows of a window are ordered."""
    return bool(_split_order(rows.description.reading)[1])


def has_oldest_first(rows: PublicRows) -> bool:
    """Tell whether the query orders windows by their starts, upwards."""
    return any("DESC" not in text for text in _split_order(rows.description.reading)[0])


def _split_order(reading: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the order of windows, and of the rows in each."""
    count = sum(text.startswith(f'"{START}"') for text in reading.order[:1])
    return reading.order[:count], reading.order[count:]


def _last_if_silent(orders: tuple[str, ...], published: Published) -> list[str]:
    """Return an order in which rows whose value says nothing come last, whichever way it goes."""
    texts = []
    for order in orders:
        for alias in (*published.amounts, *published.quantiles):
            column, limit = silence(alias, published)
            if order.startswith(f'"{alias}"') and math.isfinite(limit):
                texts.append(f'("{column}" IS NULL OR "{column}" >= {limit!r})')
        texts.append(order)
    return texts


def as_read(rows: PublicRows, private_reading: Reading | None = None) -> PublicRows:
    """Return the rows of each window and trigger that are shown, in their order; all of them where the query does not say.

    Args:
        rows: of a histogram.
        private_reading: of who may read the query; else a condition that is not public leaves no row out.
    """
    frame = rows.frame
    reading = private_reading or rows.description.reading
    if frame.empty or (reading.condition, reading.order, reading.limit) == (None, (), None):
        return rows
    import duckdb
    import numpy as np
    import pyarrow as pa

    table = pa.Table.from_pandas(frame, preserve_index=False).append_column(
        ROW, pa.array(np.arange(len(frame)))
    )
    release = ", ".join(rows.description.release) or "1"
    window_order, row_order = _split_order(reading)
    order = ", ".join([*_last_if_silent(row_order, rows.description), ROW])
    text = f"SELECT {ROW} FROM released WHERE {reading.condition or 'true'}"
    if reading.limit:
        text += f" QUALIFY row_number() OVER (PARTITION BY {release} ORDER BY {order}) <= {int(reading.limit)}"
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        connection.register("released", table)
        order = ", ".join([*window_order, *rows.description.release, order])
        chosen = connection.execute(f"{text} ORDER BY {order}").fetchnumpy()[ROW]
    return rows.with_frame(frame.iloc[np.asarray(chosen, np.int64)])
