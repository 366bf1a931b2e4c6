"""State by reference: the engine keeps a sequence number per bucket, the lake keeps the bucket's tables as immutable Parquet files.

    ROOT/admission-16/g1/bucket=0007/000041.users.parquet

The number of buckets and the generation are in the path, so that state cut differently or restored is never mixed up. A file's
bytes depend on the tables alone: a retried micro-batch overwrites a file with itself.

Every file carries a seal, the SHA-256 of its other bytes, which is compared whenever the file is read: a damaged file would otherwise load
as another state, in which a unit has used less than it has. The seal lies between the last column and the footer, where readers of Parquet
never look. Checksums of pages would leave page headers and the footer alone.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

SCHEMA_VERSION = b"2"

VERSION_KEY = b"dpsql.state.version"
S3_ALIASES = ("s3a", "s3n")

MAGIC = b"PAR1"
SEAL = b"dpsql sha256 seal"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


class UnknownStateVersion(ValueError):
    """A state file in another version of this format: another release of dpsql wrote it."""


class DamagedState(OSError):
    """A file whose bytes are not those that were written."""


@dataclass(frozen=True)
class BucketFiles:
    """The state files of one operator.

    Args:
        root: folder of all state, as a bare path, `file://` or another URI that pyarrow knows (`s3a://` is read as `s3://`).
        operator: `admission` or `release`.
        buckets: how many buckets the operator's state is cut into.
        generation: 1 for a new run, one more after each restore.
        names: the tables that make up one bucket's state.
        fingerprints: version -> what `fingerprint` says of its files, of the bucket at hand, as far as it is known.
    """

    root: str
    operator: str
    buckets: int
    generation: int
    names: tuple[str, ...]
    fingerprints: Mapping[int, str] = field(default_factory=dict)

    def folder(self, bucket: int) -> str:
        """Return where all versions of one bucket are."""
        return f"{self.root.rstrip('/')}/{self.operator}-{self.buckets}/g{self.generation}/bucket={bucket:04d}"

    def load(self, bucket: int, sequence: int) -> dict[str, pa.Table]:
        """Return the tables of one version.

        Raises:
            FileNotFoundError: the version is not there.
            DamagedState: the bytes of a file are not those that were written, or are those of another version.
            UnknownStateVersion: a file was written in another version of this format.
        """
        system, folder = filesystem(self.folder(bucket))
        files = {
            name: _read_file(system, f"{folder}/{sequence:06d}.{name}.parquet")
            for name in self.names
        }
        version_fingerprint = fingerprint({name: digest for name, (_, digest) in files.items()})
        if self.fingerprints.get(sequence, version_fingerprint) != version_fingerprint:
            raise DamagedState(
                f"version {sequence} of the state in {folder} is another one than was listed"
            )
        return {name: table for name, (table, _) in files.items()}

    def check(
        self, bucket: int, sequence: int, all_bytes: bool = False, digests: Mapping[str, str] = {}
    ) -> None:
        """Look at one version: at the footers only, or at all bytes.

        Args:
            bucket, sequence: which version.
            all_bytes: look at all bytes.
            digests: table -> digest that the file must have, as `store` gave it; it tells a file that is whole and not the right one.

        Raises:
            FileNotFoundError, UnknownStateVersion: as `load`; DamagedState: a file is damaged, or another one.
        """
        system, folder = filesystem(self.folder(bucket))
        for name in self.names:
            path = f"{folder}/{sequence:06d}.{name}.parquet"
            if all_bytes:
                _, digest = _read_file(system, path)
                if digests.get(name, digest) != digest:
                    raise DamagedState(f"{path} is another file than the one that was listed")
                continue
            with system.open_input_file(path) as file:
                _metadata(_open_parquet(file, path).schema_arrow, path)

    def digests(self, bucket: int, sequence: int) -> dict[str, str]:
        """Return table -> digest of its file, as `store` gave it; raises as `load`."""
        system, folder = filesystem(self.folder(bucket))
        return {
            name: _read_file(system, f"{folder}/{sequence:06d}.{name}.parquet")[1]
            for name in self.names
        }

    def newest(self, bucket: int) -> int:
        """Return the newest version that is stored whole; 0 if there is none, as of a stage without state."""
        if not self.names:
            return 0
        system, folder = filesystem(self.folder(bucket))
        files = system.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        stored = {
            name: {
                int(file.base_name[: -len(end)])
                for file in files
                if file.base_name[0] != "." and file.base_name.endswith(end)
            }
            for name in self.names
            for end in (f".{name}.parquet",)
        }
        return max(set.intersection(*stored.values()), default=0)

    def store(
        self, bucket: int, sequence: int, tables: Mapping[str, pa.Table]
    ) -> tuple[int, dict[str, str]]:
        """Write one version; returns its bytes, and of each table the digest in the seal of its file. Nobody ever sees half a file."""
        if tuple(tables) != self.names:
            raise ValueError(
                f"state of {self.operator} is made of {self.names}, not {tuple(tables)}"
            )
        system, folder = filesystem(self.folder(bucket))
        make_folder(system, folder)
        stored_files = {
            name: _write(system, folder, f"{sequence:06d}.{name}.parquet", table)
            for name, table in tables.items()
        }
        return sum(size for size, _ in stored_files.values()), {
            name: digest for name, (_, digest) in stored_files.items()
        }


def fingerprint(digests: Mapping[str, str]) -> str:
    """Return the fingerprint of a version of a bucket, from the digests of its tables' files: short, for it is told to every task."""
    return hashlib.sha256(
        "".join(f"{name} {digest} " for name, digest in sorted(digests.items())).encode()
    ).hexdigest()[:16]


def filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the pyarrow file system of a bare path or a URI, and the path inside it."""
    parts = urlparse(location)
    if len(parts.scheme) <= 1:  # a bare path (or a drive letter)
        return pafs.LocalFileSystem(), location
    if parts.scheme == "file":
        return pafs.LocalFileSystem(), unquote(parts.path)
    scheme = "s3" if parts.scheme in S3_ALIASES else parts.scheme
    return pafs.FileSystem.from_uri(scheme + location[len(parts.scheme) :])


def read_table(location: str) -> pa.Table:
    """Return one state file, wherever it is kept; raises as `BucketFiles.load`."""
    return _read_file(*filesystem(location))[0]


def write_table(location: str, table: pa.Table) -> None:
    """Write a file as those of state are, with a seal, for `read_table`; its folder is there."""
    system, path = filesystem(location)
    folder, _, name = path.rpartition("/")
    _write(system, folder, name, table)


def _read_file(system: pafs.FileSystem, path: str) -> tuple[pa.Table, str]:
    """Return the table, and the digest in the seal of its file."""
    with system.open_input_file(path) as file:
        data = file.read_buffer()
    digest = _seal(data, path)
    try:
        table = _open_parquet(pa.BufferReader(data), path).read()
    except (pa.ArrowException, OSError) as problem:
        raise DamagedState(f"{path} is damaged ({type(problem).__name__})") from None
    metadata = _metadata(table.schema, path)
    if digest is None:
        raise DamagedState(f"{path} is damaged: its seal is gone")
    return table.replace_schema_metadata(metadata or None), digest


def _open_parquet(file: pa.NativeFile, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as problem:
        raise DamagedState(f"{path} is damaged ({type(problem).__name__})") from None


def _metadata(schema: pa.Schema, path: str) -> dict[bytes, bytes]:
    """Return what the writer said of the table, in this version of the format."""
    metadata = dict(schema.metadata or {})
    version = metadata.pop(VERSION_KEY, b"none")
    if version != SCHEMA_VERSION:
        raise UnknownStateVersion(
            f"state file {path}: version {version.decode(errors='replace')} is unknown; this release reads version {SCHEMA_VERSION.decode()}"
        )
    return metadata


def _sealed(content: pa.Buffer) -> tuple[pa.Buffer, str]:
    """Return a Parquet file with the SHA-256 of its bytes put before the footer, and that digest; columns stay where the footer says."""
    footer_start = _footer_at(content)
    digest = hashlib.sha256(content)
    return pa.py_buffer(
        b"".join((content[:footer_start], SEAL, digest.digest(), content[footer_start:]))
    ), digest.hexdigest()


def _seal(data: pa.Buffer, path: str) -> str | None:
    """Return the digest in the seal of a file; None if it has no seal.

    Raises:
        DamagedState: it has one, of other bytes.
    """
    end = _footer_at(data)
    seal_start = end - SEAL_BYTES
    if seal_start < 0 or bytes(data[seal_start : seal_start + len(SEAL)]) != SEAL:
        return None
    digest = hashlib.sha256(data[:seal_start])
    digest.update(data[end:])
    if digest.digest() != bytes(data[seal_start + len(SEAL) : end]):
        raise DamagedState(f"{path} is damaged: its bytes are not those that were written")
    return digest.hexdigest()


def _footer_at(data: pa.Buffer) -> int:
    """Return where the footer begins, as the end of the file says; below zero if that cannot be."""
    tail = bytes(data[max(0, data.size - 8) :])
    return data.size - 8 - int.from_bytes(tail[:4], "little") if tail[4:] == MAGIC else -1


def _write(system: pafs.FileSystem, folder: str, name: str, table: pa.Table) -> tuple[int, str]:
    # Built in memory first: an exception while streaming to an object store would still publish half a file.
    sink = pa.BufferOutputStream()
    metadata = {**(table.schema.metadata or {}), VERSION_KEY: SCHEMA_VERSION}
    stamped = table.combine_chunks().replace_schema_metadata(metadata)
    # Ids are random 64-bit numbers: dictionaries and statistics only cost time. LZ4 takes half of zstd's, for a twentieth more bytes.
    pq.write_table(stamped, sink, compression="lz4", use_dictionary=False, write_statistics=False)
    content, digest = _sealed(sink.getvalue())
    return write_whole(system, folder, name, content), digest


def write_whole(system: pafs.FileSystem, folder: str, name: str, data: pa.Buffer) -> int:
    """Write a file that nobody ever sees half of, and that is on the disk when this returns; returns its bytes."""
    if isinstance(system, pafs.LocalFileSystem):
        # A unique name: two writers on one temporary name would tear each other's file.
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
        _write_bytes(system, temporary, data)
        # Before the rename: after a power cut the new name could be there, and nothing in the file.
        sync(temporary)
        system.move(temporary, f"{folder}/{name}")
        sync(folder)
    else:
        _write_bytes(system, f"{folder}/{name}", data)
    return int(data.size)


def make_folder(system: pafs.FileSystem, folder: str) -> None:
    """Make a folder and those above it; on a local disk they are there after a power cut, too."""
    missing = [folder]
    if isinstance(system, pafs.LocalFileSystem):
        while missing[-1] and not os.path.isdir(missing[-1]):
            missing.append(os.path.dirname(missing[-1]))
    system.create_dir(folder, recursive=True)
    for parent in missing[1:]:
        sync(parent or ".")


def sync(path: str) -> None:
    """Wait until a local file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_bytes(system: pafs.FileSystem, path: str, data: pa.Buffer) -> None:
    with system.open_output_stream(path) as file:
        file.write(data)
