"""State by reference: the engine keeps a sequence number per bucket, the lake keeps the bucket's tables as immutable Parquet files.

    ROOT/admission-16/g1/bucket=0007/000041.users.parquet

The number of buckets and the generation are in the path, so that state cut differently or restored is never mixed up. A file's
bytes depend on the tables alone: a retried micro-batch overwrites a file with itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

SCHEMA_VERSION = b"1"
VERSION_KEY = b"dpsql.state.version"
S3_ALIASES = ("s3a", "s3n")


class UnknownVersion(ValueError):
    """A state file in another version of this format: another release of dpsql wrote it."""


@dataclass(frozen=True)
class BucketFiles:
    """The state files of one operator.

    Args:
        root: folder of all state, as a bare path, `file://` or another URI that pyarrow knows (`s3a://` is read as `s3://`).
        operator: `admission` or `release`.
        buckets: how many buckets the operator's state is cut into.
        generation: 1 for a new run, one more after each restore.
        names: the tables that make up one bucket's state.
    """

    root: str
    operator: str
    buckets: int
    generation: int
    names: tuple[str, ...]

    def folder(self, bucket: int) -> str:
        """Where all versions of one bucket are."""
        return f"{self.root.rstrip('/')}/{self.operator}-{self.buckets}/g{self.generation}/bucket={bucket:04d}"

    def load(self, bucket: int, sequence: int) -> dict[str, pa.Table]:
        """The tables of one version.

        Raises:
            FileNotFoundError: the version is not there.
            UnknownVersion: a file was written in another version of this format.
        """
        system, folder = filesystem(self.folder(bucket))
        return {name: _read(system, f"{folder}/{sequence:06d}.{name}.parquet") for name in self.names}

    def check(self, bucket: int, sequence: int) -> None:
        """Look at the footers of one version only.

        Raises:
            FileNotFoundError, UnknownVersion: as `load`; pyarrow.ArrowInvalid: a file is damaged.
        """
        system, folder = filesystem(self.folder(bucket))
        for name in self.names:
            with system.open_input_file(f"{folder}/{sequence:06d}.{name}.parquet") as file:
                _metadata(pq.ParquetFile(file).schema_arrow, name)

    def newest(self, bucket: int) -> int:
        """The newest version that is stored whole; 0 if there is none."""
        system, folder = filesystem(self.folder(bucket))
        found = system.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        stored = {
            name: {int(file.base_name[: -len(end)]) for file in found if file.base_name[0] != "." and file.base_name.endswith(end)}
            for name in self.names
            for end in (f".{name}.parquet",)
        }
        return max(set.intersection(*stored.values()), default=0)

    def store(self, bucket: int, sequence: int, tables: Mapping[str, pa.Table]) -> int:
        """Write one version; returns its bytes. Nobody ever sees half a file."""
        if tuple(tables) != self.names:
            raise ValueError(f"state of {self.operator} is made of {self.names}, not {tuple(tables)}")
        system, folder = filesystem(self.folder(bucket))
        system.create_dir(folder, recursive=True)
        return sum(_write(system, folder, f"{sequence:06d}.{name}.parquet", table) for name, table in tables.items())


def filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """The pyarrow file system of a bare path or a URI, and the path inside it."""
    parts = urlparse(location)
    if len(parts.scheme) <= 1:  # a bare path (or a drive letter)
        return pafs.LocalFileSystem(), location
    if parts.scheme == "file":
        return pafs.LocalFileSystem(), unquote(parts.path)
    scheme = "s3" if parts.scheme in S3_ALIASES else parts.scheme
    return pafs.FileSystem.from_uri(scheme + location[len(parts.scheme) :])


def read_table(location: str) -> pa.Table:
    """One state file, wherever it is kept; raises as `BucketFiles.load`."""
    return _read(*filesystem(location))


def _read(system: pafs.FileSystem, path: str) -> pa.Table:
    with system.open_input_file(path) as file:
        table = pq.ParquetFile(file).read()
    return table.replace_schema_metadata(_metadata(table.schema, path) or None)


def _metadata(schema: pa.Schema, path: str) -> dict[bytes, bytes]:
    """What the writer said of the table, besides the version of this format."""
    metadata = dict(schema.metadata or {})
    found = metadata.pop(VERSION_KEY, None)
    if found != SCHEMA_VERSION:
        raise UnknownVersion(
            f"state file {path}: version {found.decode(errors='replace') if found else 'none'} is unknown; "
            f"this release reads version {SCHEMA_VERSION.decode()}"
        )
    return metadata


def _write(system: pafs.FileSystem, folder: str, name: str, table: pa.Table) -> int:
    # Built in memory first: an exception while streaming to an object store would still publish half a file.
    sink = pa.BufferOutputStream()
    metadata = {**(table.schema.metadata or {}), VERSION_KEY: SCHEMA_VERSION}
    stamped = table.combine_chunks().replace_schema_metadata(metadata)
    # Ids are random 64-bit numbers: dictionaries and statistics only cost time. LZ4 takes half of zstd's, for a twentieth more bytes.
    pq.write_table(stamped, sink, compression="lz4", use_dictionary=False, write_statistics=False)
    return write_whole(system, folder, name, sink.getvalue())


def write_whole(system: pafs.FileSystem, folder: str, name: str, data: pa.Buffer) -> int:
    """Write a file that nobody ever sees half of; returns its bytes."""
    if isinstance(system, pafs.LocalFileSystem):
        # A unique name: two writers on one temporary name would tear each other's file.
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
        _write_bytes(system, temporary, data)
        system.move(temporary, f"{folder}/{name}")
    else:
        _write_bytes(system, f"{folder}/{name}", data)
    return int(data.size)


def _write_bytes(system: pafs.FileSystem, path: str, data: pa.Buffer) -> None:
    with system.open_output_stream(path) as file:
        file.write(data)
