"""Released rows on their way from the tasks of query 2 to the driver, which publishes them and removes the files.

Their names are known from the reports alone, so what a task that failed has left is never read; the next start removes it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.udfs.bucket_state import filesystem, make_folder
from dpsql.udfs.keys import decode

GROUP_BYTES = 16 << 20
"""Of a row group: rows come by window and trigger, and the driver takes a tick at a time."""


@dataclass(frozen=True)
class ReleasedFiles:
    """A private folder.

    Args:
        path: of it.
        keys: how many key columns there are.
    """

    path: str
    keys: int

    def write(self, rows: pa.Table, bucket: int) -> str:
        """Write the rows that a bucket releases, with a column `k0`, `k1`, ... for every part of the key; returns the name of the file.

        It need not be on the disk: after a power cut the micro-batch is done again.
        """
        for i, column in enumerate(decode(rows["key_bytes"], self.keys)):
            rows = rows.append_column(f"k{i}", column)
        system, folder = filesystem(self.path)
        make_folder(system, folder)
        name = f"{bucket:04d}-{uuid.uuid4().hex}.parquet"
        with system.open_output_stream(f"{folder}/{name}") as file:
            size = max(1, GROUP_BYTES * rows.num_rows // max(1, rows.nbytes))
            pq.write_table(
                rows.combine_chunks(),
                file,
                row_group_size=size,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
        return name
