"""The sample as columns: the records that the query's FROM makes of files, read by the local engine's own reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.compiled import Query
from dpsql.errors import DataError
from dpsql.local.record_reader import RowReader, frame_table
from dpsql.local.sources import source_files
from dpsql.udfs.columns import plain_rows
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.stage import NO_RECORD

NO_SALT = bytes(16)
"""Ids need no secret here: nothing leaves the process."""

MOST_RECORDS = 20_000_000
"""Above it a sample takes more memory and time than it is worth: fewer users say the same."""


@dataclass(frozen=True)
class Sample:
    """Records in the order of the files.

    Args:
        rows: as the intake takes them.
        drops: records that are no records, by reason (malformed, without a time, ...).
        public: the listed groups of a query without key selection.
    """

    rows: pa.Table
    drops: dict[str, int]
    public: PublicGroups | None

    @property
    def users(self) -> int:
        """The number of different privacy units."""
        return len(np.unique(self.rows["user"].to_numpy()))


def read_sample(
    query: Query,
    inputs: Mapping[str, Sequence[Path]],
    progress: Callable[[int], None] | None = None,
) -> Sample:
    """Read the records of a sample.

    Args:
        query: from `dpsql.compile`.
        inputs: files or folders by source name.
        progress: told how many records were read.

    Raises:
        DataError: a file is missing, unreadable or does not fit the query; or there is no record in it.
    """
    reader = RowReader(query.plan, query.sources, NO_SALT, inputs)
    tables = []
    count = 0
    files = source_files(query.source, inputs)
    reader.check(files)
    for rows in reader.files(files):
        tables.append(rows)
        count += rows.num_rows
        if count > MOST_RECORDS:
            raise DataError(
                f"the sample has over {MOST_RECORDS:,} records: take the records of fewer users, and say --scale"
            )
        if progress:
            progress(count)
    where = f" ({', '.join(map(os.fspath, files[:3]))})"
    return _sample(query, reader, tables, where)


def frame_sample(query: Query, frame: Any, schema: str | None = None) -> Sample:
    """Return the records of a frame as a sample.

    Args:
        query: from `dpsql.compile` or `Session.plan`.
        frame: with the columns of the source.
        schema: types of columns of Python objects (default: those of the source).

    Raises:
        DataError: the frame does not fit the query, or has no record of it.
    """
    records = frame_table(query, frame, schema)
    reader = RowReader(query.plan, query.sources, NO_SALT, {})
    return _sample(query, reader, [plain_rows(reader.frame(records))])


def _sample(query: Query, reader: RowReader, tables: Sequence[pa.Table], where: str = "") -> Sample:
    rows = pa.concat_tables(tables) if tables else None
    code = rows["drop"].to_numpy() if rows is not None else np.zeros(0, np.int8)
    drops = {
        reason: int((code == number).sum()) for number, reason in enumerate(NO_RECORD, start=1)
    }
    if rows is None or not (code == 0).any():
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in drops.items() if count)
        columns = ", ".join(f"`{name}`" for name in reader.misfits if name)
        raise DataError(
            f"the sample{where} has no record of `{query.parsed.stream}` that the query reads: {reasons or 'it is empty'}"
            f"{columns and f'; not of its type: column {columns}'}"
        )
    rows = rows.filter(code == 0).combine_chunks()
    public = reader.public_groups(query.source)
    if public is not None:
        listed = np.isin(rows["key"].to_numpy(), np.array(public.keys, np.int64))
        drops["not_a_public_group"] = int((~listed).sum())
        rows = rows.filter(listed).combine_chunks()
    return Sample(rows, drops, public)
