"""A list of the largest values as bytes: it travels as one value of one released row, so a window without a listed value has a row too."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int

NUMBERS = ("value", "stderr", "low", "high")


def pack(rows: pa.Table) -> bytes:
    """Rows with `key_bytes` and NUMBERS, in their order: how many, the numbers column by column, lengths, names."""
    names = rows.column("key_bytes").to_pylist()
    numbers = b"".join(rows.column(name).to_numpy().astype("<f8").tobytes() for name in NUMBERS)
    return _ints([len(names)]) + numbers + _ints([len(name) for name in names]) + b"".join(names)


def unpack(lists: list[bytes]) -> tuple[Int, pa.Table]:
    """How long each list is, and all of their rows."""
    sizes = []
    parts = [
        pa.schema(
            [("key_bytes", pa.binary()), *((name, pa.float64()) for name in NUMBERS)]
        ).empty_table()
    ]
    for given in lists:
        size = int(np.frombuffer(given, "<i8", 1)[0])
        numbers = np.frombuffer(given, "<f8", len(NUMBERS) * size, 8).reshape(len(NUMBERS), size)
        at = 8 + numbers.nbytes
        ends = at + 8 * size + np.cumsum(np.frombuffer(given, "<i8", size, at))
        starts = [at + 8 * size, *ends[:-1].tolist()] if size else []
        names = [given[low:high] for low, high in zip(starts, ends.tolist(), strict=True)]
        sizes.append(size)
        parts.append(pa.table([pa.array(names, pa.binary()), *numbers], schema=parts[0].schema))
    return np.array(sizes, np.int64), pa.concat_tables(parts).combine_chunks()


def _ints(values: list[int]) -> bytes:
    return np.array(values, "<i8").tobytes()
