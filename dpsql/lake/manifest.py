"""The private table `files`: which state files belong to which micro-batch, and what that micro-batch had read.

It is committed before the rows of its micro-batch: a Delta transaction covers one table, and the other order could leave released rows
whose user counts are not in any listed state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.udfs.stage import StateFile

BATCH_ROW = -1
"""Bucket of the row that describes the micro-batch as a whole."""

SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("generation", pa.int32()),
        ("batch", pa.int64()),
        ("bucket", pa.int32()),
        ("sequence", pa.int64()),
        ("bytes", pa.int64()),
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True)
class Manifest:
    """The listed state files of one operator of one run.

    Args:
        path: the Delta table.
        run_id: of the run.
        operator: `admission` or `release`.
        generation: as in the files' paths.
    """

    path: Place
    run_id: str
    operator: str
    generation: int

    def create(self) -> None:
        """Make the table unless it is there."""
        delta_tables.create(self.path, Schema.from_arrow(SCHEMA))

    @property
    def newest_batch(self) -> int | None:
        """The newest micro-batch that changed state; None before the first."""
        return delta_tables.mark(self.path, self._application)

    def commit(self, batch: int, files: Sequence[StateFile], detail: Mapping[str, Any]) -> None:
        """List the files of a micro-batch and its `detail`; listing it again changes nothing."""
        written_files = [file for file in files if file.bytes]
        rows = [
            self._row(batch, file.bucket, file.sequence, file.bytes, _listed_report(file.counted))
            for file in written_files
        ]
        rows.append(
            self._row(batch, BATCH_ROW, 0, sum(file.bytes for file in written_files), detail)
        )
        delta_tables.append(
            self.path, pa.Table.from_pylist(rows, SCHEMA), {self._application: batch}
        )

    def pointers(self, until: int | None = None) -> dict[int, int]:
        """Return, for each bucket, the version of its state after the newest micro-batch listed, or after `until`."""
        newest: dict[int, int] = {}
        if self.newest_batch is not None:
            condition = self._own_rows & (pc.field("bucket") != BATCH_ROW)
            condition = condition if until is None else condition & (pc.field("batch") <= until)
            table = read_rows(self.path, ["bucket", "sequence"], condition)
            for bucket, sequence in zip(
                table["bucket"].to_pylist(), table["sequence"].to_pylist(), strict=True
            ):
                newest[bucket] = max(sequence, newest.get(bucket, 0))
        return newest

    def digests(self, versions: Mapping[int, int]) -> dict[int, dict[str, str]]:
        """Return, for each bucket and table, the digest of its file, as listed for these versions (bucket -> version)."""
        if self.newest_batch is None:
            return {}
        # Not all rows: there is one of every bucket and micro-batch, and digests take most of their room.
        condition = (pc.field("bucket") != BATCH_ROW) & pc.field("sequence").isin(
            sorted(set(versions.values()))
        )
        table = read_rows(self.path, ["bucket", "sequence", "detail"], self._own_rows & condition)
        rows = zip(
            *(table[name].to_pylist() for name in ("bucket", "sequence", "detail")), strict=True
        )
        listed = (
            (bucket, detail)
            for bucket, sequence, detail in rows
            if versions.get(bucket) == sequence
        )
        return {bucket: json.loads(detail).get("sha256", {}) for bucket, detail in listed}

    def batches(
        self, batch: int | None = None, since: int | None = None
    ) -> dict[int, dict[str, Any]]:
        """Return, for each batch, its `detail`, of every micro-batch listed, of those from a number on, or of one of them."""
        if self.newest_batch is None:
            return {}
        condition = self._own_rows & (pc.field("bucket") == BATCH_ROW)
        condition = condition if batch is None else condition & (pc.field("batch") == batch)
        condition = condition if since is None else condition & (pc.field("batch") >= since)
        table = read_rows(self.path, ["batch", "detail"], condition)
        return {row["batch"]: json.loads(row["detail"]) for row in table.to_pylist()}

    def history(self) -> Iterator[tuple[int, dict[str, Any], dict[int, int]]]:
        """Yield (batch, its `detail`, bucket -> version of its state after it) of every micro-batch listed, newest first."""
        if self.newest_batch is None:
            return
        table = read_rows(self.path, ["batch", "bucket", "sequence"], self._own_rows)
        details = read_rows(
            self.path, ["batch", "detail"], self._own_rows & (pc.field("bucket") == BATCH_ROW)
        )
        detail_of = dict(
            zip(details["batch"].to_pylist(), details["detail"].to_pylist(), strict=True)
        )
        batch, bucket, sequence = (
            table[name].to_numpy() for name in ("batch", "bucket", "sequence")
        )
        batch_rows = np.flatnonzero(bucket == BATCH_ROW)
        order = np.lexsort((sequence, bucket))
        order = order[bucket[order] != BATCH_ROW]
        for row in batch_rows[np.argsort(batch[batch_rows])][::-1]:
            upto = order[batch[order] <= batch[row]]
            last = (
                upto[np.append(bucket[upto[1:]] != bucket[upto[:-1]], True)] if len(upto) else upto
            )
            pointers = dict(zip(bucket[last].tolist(), sequence[last].tolist(), strict=True))
            yield int(batch[row]), json.loads(detail_of[int(batch[row])]), pointers

    @property
    def _own_rows(self) -> pc.Expression:
        return (pc.field("operator") == self.operator) & (pc.field("generation") == self.generation)

    @property
    def _application(self) -> str:
        return files_mark(self.run_id, self.operator, self.generation)

    def _row(
        self, batch: int, bucket: int, sequence: int, size: int, detail: Mapping[str, Any]
    ) -> dict[str, Any]:
        text = json.dumps(detail, separators=(",", ":"), sort_keys=True)
        return dict(
            zip(
                SCHEMA.names,
                (self.operator, self.generation, batch, bucket, sequence, size, text),
                strict=True,
            )
        )


def _listed_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of the report of a bucket."""
    return {name: report[name] for name in ("drops", "sha256") if report.get(name)}


def files_mark(run_id: str, operator: str, generation: int) -> str:
    """Return the mark whose version is the newest micro-batch that is listed."""
    return f"{run_id}/{operator}/g{generation}/files"
