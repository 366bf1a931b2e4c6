"""Value bytes of a key (`dpsql.udfs.keys`) as values of its type."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Value bytes of a column in its type; NULL stays NULL.

    Args:
        values: binary, as `dpsql.udfs.keys.decode` gives them.
        kind: the type that readers see.
    """
    if pa.types.is_date(kind):
        return values.cast(pa.string()).cast(pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return values.cast(pa.string()).cast(pa.int64()).cast(kind)
    if pa.types.is_boolean(kind):
        return pc.equal(values, pa.scalar(b"true"))
    if pa.types.is_binary(kind):
        return values
    text = _valid_text(values)
    return text if pa.types.is_string(kind) else text.cast(kind)


def _valid_text(values: pa.Array) -> pa.Array:
    """UTF-8 text; bytes that are none become U+FFFD, as in every reader of the lake."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in values.to_pylist()
            ],
            pa.string(),
        )
