"""Where files are, in a folder or under a prefix of a bucket, and how small ones are made: whole or not at all.

A local place is a `pathlib.Path`. An `ObjectPath` has the part of its interface that lakes need, so that the code reads the same. Endpoint,
region and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...), which pyarrow, deltalake and
Spark's s3a all read: they are in no setting, no message and no file of ours.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dpsql.errors import DpsqlError

if TYPE_CHECKING:
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class ObjectPath:
    """An object, or a prefix that stands for a folder, as a URI like `s3a://bucket/lake`. A write is one request: whole or not at all."""

    uri: str

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.uri.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part of the URI."""
        return self.uri.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """All but the last part."""
        return ObjectPath(self.uri.rstrip("/").rpartition("/")[0])

    def exists(self) -> bool:
        """Tell whether this is an object, or a prefix of one."""
        return self._is() != "NotFound"

    def is_file(self) -> bool:
        """Tell whether this is an object."""
        return self._is() == "File"

    def is_dir(self) -> bool:
        """Tell whether this is a prefix of an object."""
        return self._is() == "Directory"

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield what is directly below.

        Raises:
            FileNotFoundError: nothing is there.
        """
        import pyarrow.fs as pafs

        system, path = _open_store(self.uri)
        for info in system.get_file_info(pafs.FileSelector(path)):
            yield self / str(info.base_name)

    def read_bytes(self) -> bytes:
        """Return the bytes of the object.

        Raises:
            FileNotFoundError: it is not there.
        """
        system, path = _open_store(self.uri)
        with system.open_input_file(path) as file:
            return bytes(file.read())

    def read_text(self) -> str:
        """Return the object as UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> int:
        """Put the object in place of what was there."""
        system, path = _open_store(self.uri)
        with system.open_output_stream(path) as file:
            file.write(content)
        return len(content)

    def unlink(self) -> None:
        """Remove the object from its store."""
        system, path = _open_store(self.uri)
        system.delete_file(path)

    def _is(self) -> str:
        system, path = _open_store(self.uri)
        return str(system.get_file_info(path).type.name)


def _open_store(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the store of an object, and the object's path in it."""
    from dpsql.udfs.bucket_state import filesystem  # slow to import, and most lakes are folders

    return filesystem(uri)


Place = Path | ObjectPath


def reason(problem: Exception) -> str:
    """Return what went wrong, in a few words: the system's, or the object store's error code (its text may name an account)."""
    if unreached := re.search(r"curlCode: .*Details: (.+)", str(problem)):
        return f"the object store is not reached ({unreached[1]}): is AWS_ENDPOINT_URL right, and may this machine reach it?"
    code = re.search(r"AWS Error ([A-Z_]+)", str(problem))
    return getattr(problem, "strerror", None) or (
        f"the object store says {code[1]}" if code else type(problem).__name__
    )


@contextmanager
def reporting_os_errors(where: str, error: type[DpsqlError]) -> Iterator[None]:
    """Turn what can be neither read nor written there into one line: where, and why."""
    try:
        yield
    except OSError as problem:
        raise error(f"{where}: {reason(problem)}") from None


def bucket_problem(uri: str) -> str:
    """Return why there is no such bucket, in a few words: nobody answers, or it is not there. Nothing where the store answers anything else."""
    try:
        there = place("/".join(uri.split("/")[:3])).exists()
    except OSError as problem:
        return reason(problem) if "curlCode" in str(problem) else ""
    return "" if there else "the object store says NO_SUCH_BUCKET"


def place(location: str | Path) -> Place:
    """Return a bare path or `file:` URI as a Path, any other URI as an ObjectPath."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(location)):
        system, path = _open_store(str(location))
        return Path(path) if system.type_name == "local" else ObjectPath(str(location))
    return Path(location)


def replace_file(path: Place, content: bytes, mode: int = 0o600) -> None:
    """Replace a small file as a whole: after a crash it is the old one or the new one."""
    if isinstance(path, ObjectPath):
        path.write_bytes(content)
        return
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except (
        OSError
    ):  # on a full disk, a file written at every micro-batch would leave as many behind
        partial.unlink(missing_ok=True)
        raise


def create_file(path: Path, content: bytes) -> None:
    """Make a file (mode 0600) that is on disk, whole, when this returns.

    It is written under another name and linked: of two callers at once exactly one succeeds.

    Raises:
        FileExistsError: the file already exists; it was not touched.
        OSError: the folder cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Claim:
    """A small file, whole and on disk, that is made once: of several who make it the first one does.

    In a bucket it is the first commit of a Delta table, which is put only if there is none.
    """

    place: Place

    def __str__(self) -> str:
        return str(self.place)

    def create(self, content: bytes) -> None:
        """Make the file, unless somebody has."""
        if isinstance(self.place, Path):
            with suppress(FileExistsError):
                create_file(self.place, content)
            return
        import pyarrow as pa  # slow to import, as these are
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        schema = Schema.from_arrow(pa.schema([("claimed", pa.bool_())]))
        try:
            DeltaTable.create(str(self), schema, mode="error", description=content.decode())
        except DeltaError:
            self.read_bytes()  # not only "it is there": of two at once the second one's commit fails

    def read_bytes(self) -> bytes:
        """Return the content that the first one gave.

        Raises:
            FileNotFoundError: nobody has made the file.
        """
        if isinstance(self.place, Path):
            return self.place.read_bytes()
        from deltalake import DeltaTable  # slow to import

        if not DeltaTable.is_deltatable(str(self)):
            raise FileNotFoundError
        return DeltaTable(str(self)).metadata().description.encode()

    def remove(self) -> None:
        """Remove the file, and its folder if nothing is in it."""
        with suppress(OSError):
            if isinstance(self.place, Path):
                self.place.unlink()
                self.place.parent.rmdir()
            else:
                (self.place / "_delta_log" / f"{0:020d}.json").unlink()
