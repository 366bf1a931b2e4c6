"""The rows that a query's HAVING, ORDER BY and LIMIT choose, window by window. The table keeps all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsql.frames import has_windows

if TYPE_CHECKING:
    import pandas as pd

ROW = "dpsql_row"


def is_ordered(document: Mapping[str, Any] | None) -> bool:
    """Whether the query says how rows are ordered."""
    return bool(_reading(document).get("order"))


def as_read(rows: pd.DataFrame, document: Mapping[str, Any] | None) -> pd.DataFrame:
    """The rows of each window and trigger that are shown, in their order; all of them where the query does not say.

    Args:
        rows: of a histogram.
        document: of the plan, from a run's `run.json` or `Query.document`; None where it cannot be read.
    """
    reading = _reading(document)
    if not reading or rows.empty:
        return rows
    import duckdb
    import numpy as np
    import pyarrow as pa

    table = pa.Table.from_pandas(rows, preserve_index=False).append_column(ROW, pa.array(np.arange(len(rows))))
    release = "window_start, trigger" if has_windows(rows) else "trigger"
    order = ", ".join([*reading.get("order", ()), ROW])
    text = f"SELECT {ROW} FROM released WHERE {reading.get('condition') or 'true'}"
    if reading.get("limit"):
        text += f" QUALIFY row_number() OVER (PARTITION BY {release} ORDER BY {order}) <= {int(reading['limit'])}"
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        connection.register("released", table)
        chosen = connection.execute(f"{text} ORDER BY {release}, {order}").fetchnumpy()[ROW]
    return rows.iloc[np.asarray(chosen, np.int64)]


def _reading(document: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict((document or {}).get("reading", {}))
