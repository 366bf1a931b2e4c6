"""Released rows as they are read: what the table for people does not tell is NULL in frames, JSON and files, too, its error stays, and a column says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpsql.description import NOTE, PROPERTY, Published
from dpsql.files import replace_file
from dpsql.published.public_rows import PANDAS_ATTRIBUTES, PublicRows, frame_of
from dpsql.published.words import AT_END, TOO_FEW, is_rough, null_of, silence
from dpsql.text import Z95

if TYPE_CHECKING:
    import pandas as pd

SMALL = "smaller than its error"
ROUGH = "rough ranks"


def reader_frame(rows: PublicRows) -> pd.DataFrame:
    """Return the frame without columns and values that say nothing, and with a column of notes on its values."""
    import pandas as pd  # slow to import

    published = rows.description
    frame = rows.visible.copy()
    aliases = [*published.amounts, *published.quantiles]
    if not aliases:
        return frame
    notes = np.full(len(frame), "", object)
    for alias in aliases:
        column, limit = silence(alias, published)
        errors = frame[column].to_numpy(np.float64, na_value=np.nan)
        frame[alias] = frame[alias].mask(errors >= limit, None)
        texts = _notes(rows.with_frame(frame), alias, errors)
        notes += np.where(texts == "", "", f"; {alias}: " + texts)
    kinds = pd.ArrowDtype(pa.string())
    frame[NOTE] = pd.Series([note[2:] or None for note in notes], frame.index, kinds)
    return frame


def _notes(rows: PublicRows, alias: str, errors: np.ndarray) -> np.ndarray:
    """Return what is said of each value of an aggregate; an empty text where it stands by itself."""
    published = rows.description
    values = rows.frame[alias]
    is_null = values.isna().to_numpy()
    if alias in published.quantiles:
        windows = published.windows
        is_early = windows is not None and rows.frame["trigger"].to_numpy() < windows.triggers
        is_vague = [
            not null and is_rough(value, Z95 * error)
            for value, null, error in zip(values, is_null, errors, strict=True)
        ]
        conditions = [is_null & is_early, is_null, np.array(is_vague, bool)]
        return np.select(conditions, [AT_END, TOO_FEW, ROUGH], "").astype(object)
    null, unmeasured = null_of(alias, published)
    numbers = values.to_numpy(np.float64, na_value=np.nan)
    is_small = np.abs(numbers) < Z95 * errors * (1 - 1e-9)
    conditions = [is_null, np.isnan(errors), is_small]
    return np.select(conditions, [null, unmeasured, SMALL], "").astype(object)


def write_parquet(rows: pa.Table, published: Published, path: Path) -> None:
    """Write rows as readers have them into a file that pandas reads as `reader_frame` makes them, and others with the types of the table.

    Args:
        rows: of the table.
        published: what it says of itself; the frame that pandas reads has it.
        path: of the file.
    """
    from pyarrow.parquet import write_table  # slow to import

    frame = reader_frame(PublicRows(frame_of(rows, published), published))
    kinds = {field.name: field.type for field in rows.schema} | {NOTE: pa.string()}
    schema = pa.schema([(name, kinds[name]) for name in frame])
    table = pa.Table.from_pandas(frame, schema, preserve_index=False)
    metadata = dict(table.schema.metadata)
    metadata[PANDAS_ATTRIBUTES] = json.dumps({PROPERTY: published.text()})
    content = pa.BufferOutputStream()
    write_table(table.replace_schema_metadata(metadata), content)
    replace_file(path, content.getvalue().to_pybytes(), mode=0o666)
