"""Rows of Delta tables, read without Spark.

Arrow's threads read the files through a file system of its own. deltalake's is a Python object, which a thread may still hold when the
interpreter ends: then the process aborts after its work is done ("terminate called without an active exception", one read in eight on a
busy machine).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dpsql.files import Place
from dpsql.lake.log_head import in_words
from dpsql.udfs.bucket_state import DamagedState, filesystem

NAMED_BY_BYTES = re.compile(r"-([0-9a-f]{64})\.parquet$")
"""Names of files that we wrote; files of other writers are used as they are."""

READERS = 8
CHECKED = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
"""A page whose bytes are not those that were written is an error, not other rows."""


def read_rows(
    location: Place, columns: Sequence[str] | None = None, condition: pc.Expression | None = None
) -> pa.Table:
    """Return rows of the newest version of a table.

    Args:
        location: of the table.
        columns: which ones; None for all.
        condition: what rows must satisfy; None for all rows.

    Raises:
        deltalake.exceptions.TableNotFoundError: no table is there.
        deltalake.exceptions.DeltaError, OSError, pyarrow.ArrowException: it cannot be read.
    """
    from deltalake import DeltaTable  # slow to import, and not every command reads tables

    files = pafs.SubTreeFileSystem(*reversed(filesystem(str(location))))
    dataset = DeltaTable(str(location)).to_pyarrow_dataset(filesystem=files)
    return dataset.to_table(
        None if columns is None else list(columns), filter=condition, fragment_scan_options=CHECKED
    )


def damage(location: Place, reads_bytes: bool) -> str | None:
    """Return which data files of a table without partitions are not as they were written, in words.

    Args:
        location: of the table; one that is not there has no files.
        reads_bytes: look at all bytes; else their number must do.
    """
    from deltalake import DeltaTable  # slow to import, and not every command reads tables

    if not DeltaTable.is_deltatable(str(location)):
        return None
    actions = pa.table(DeltaTable(str(location)).get_add_actions()).select(["path", "size_bytes"])
    system, root = filesystem(str(location))
    size_by_name = {
        file.base_name: file.size for file in system.get_file_info(pafs.FileSelector(root))
    }

    def wrong(name: str, size: int) -> str | None:
        if name not in size_by_name:
            return f"{name} is gone"
        if size_by_name[name] != size:
            return f"{name} has {size_by_name[name]:,} bytes of {size:,}"
        try:
            if reads_bytes and NAMED_BY_BYTES.search(name):
                check_files(location, [name])
            elif reads_bytes:  # of Spark: it has checksums of its pages
                pq.read_table(f"{root}/{name}", filesystem=system, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            return f"{name} has other bytes than were written"
        return None

    with ThreadPoolExecutor(READERS) as readers:
        problems = readers.map(wrong, *(column.to_pylist() for column in actions.columns))
        return in_words(location, [problem for problem in problems if problem])


def check_files(location: Place, names: Iterable[str]) -> None:
    """Refuse files of a table that are named by the SHA-256 of their bytes and have other bytes.

    Args:
        location: of the table.
        names: paths below it.

    Raises:
        FileNotFoundError: a file is not there.
        DamagedState: a file is damaged.
    """
    digests = [(name, match[1]) for name in names if (match := NAMED_BY_BYTES.search(name))]
    if digests:
        with ThreadPoolExecutor(min(READERS, len(digests))) as readers:
            list(readers.map(lambda entry: _check_file(location, *entry), digests))


def _check_file(location: Place, name: str, digest: str) -> None:
    system, folder = filesystem(str(location))
    with system.open_input_file(f"{folder}/{name}") as file:
        if hashlib.sha256(file.read_buffer()).hexdigest() != digest:
            raise DamagedState(
                f"{location}/{name} is damaged: its bytes are not those that were written"
            )
