"""Damaged files: 300 random single-bit flips in each kind of file of state and contributions, all refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.lake.delta_rows import check_files
from udfs import bucket_state
from udfs.bucket_state import (
    SCHEMA_VERSION,
    SEAL_BYTES,
    UNSEALED_VERSION,
    VERSION_KEY,
    BucketFiles,
    DamagedFile,
    UnknownVersion,
    read_table,
)
from udfs.contribution_files import ContributionFiles

FLIPS = 300
ROWS = 2_000
TABLES = {"admission": ("users",), "release": ("groups", "pending", "seen")}
KINDS = [(operator, name) for operator, names in TABLES.items() for name in names]


def state(name: str) -> pa.Table:
    """A table of the shape of each kind of state; ids are random, so almost any flip gives another id."""
    draw = np.random.default_rng(len(name))
    ids = {column: draw.integers(-(1 << 63), 1 << 63, ROWS) for column in ("user", "key")}
    few = {column: draw.integers(0, 5, ROWS) for column in ("period", "window", "first", "step")}
    if name == "users":
        columns = {"period": few["period"], "user": ids["user"], "part": np.zeros(ROWS, np.uint8), "rows": few["step"].astype(np.int32)}
        return pa.table(columns)
    noise = pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=2 * ROWS)), 2)
    keys = pa.array([b"page %d" % number for number in range(ROWS)], pa.binary())
    return pa.table({**few, "key": ids["key"], "key_bytes": keys, "noise": noise}).replace_schema_metadata({b"closed_us": b"17"})


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def silent(path: Path, load: Callable[[], object], refusals: type[Exception] | tuple[type[Exception], ...] = DamagedFile) -> list[int]:
    """Bits whose flip is not refused. Half of them are drawn from the end: seal, footer and its length."""
    content, draw = path.read_bytes(), random.Random(path.name)
    bits, end = 8 * len(content), 8 * (SEAL_BYTES + int.from_bytes(path.read_bytes()[-8:-4], "little") + 8)
    places = [draw.randrange(bits) for _ in range(FLIPS // 2)] + [draw.randrange(bits - end, bits) for _ in range(FLIPS // 2)]
    found = []
    for bit in places:
        path.write_bytes(flipped(content, bit))
        try:
            load()
        except refusals:
            continue
        found.append(bit)
    path.write_bytes(content)
    load()
    return found


@pytest.fixture(params=KINDS, ids="-".join)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BucketFiles, Path]:
    """One version of a bucket, and the file of one of its tables."""
    operator, name = request.param
    files = BucketFiles(str(tmp_path), operator, 4, 1, TABLES[operator])
    files.store(2, 7, {name: state(name) for name in TABLES[operator]})
    return files, tmp_path / f"{operator}-4/g1/bucket=0002/000007.{name}.parquet"


def test_every_flip_in_a_state_file_is_refused(stored: tuple[BucketFiles, Path]) -> None:
    files, path = stored
    assert silent(path, lambda: files.load(2, 7)) == []
    assert silent(path, lambda: files.check(2, 7, whole=True)) == []


def test_without_seals_most_flips_are_silent(stored: tuple[BucketFiles, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The protection taken out: what the test above is about does happen."""
    files, path = stored
    monkeypatch.setattr(bucket_state, "_seal", lambda data, path: "0")
    assert len(silent(path, lambda: files.load(2, 7), (DamagedFile, UnknownVersion, UnicodeDecodeError))) > FLIPS // 4


def test_a_sealed_file_is_plain_parquet_and_a_cut_one_is_refused(stored: tuple[BucketFiles, Path]) -> None:
    files, path = stored
    assert pq.read_table(path).replace_schema_metadata(None).equals(state(path.name.split(".")[1]).replace_schema_metadata(None))
    content = path.read_bytes()
    for cut in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DamagedFile, match=r"000007\..*parquet is damaged"):
            files.load(2, 7)


def test_a_file_without_seal_is_taken_from_an_older_release_only(tmp_path: Path) -> None:
    files = BucketFiles(str(tmp_path), "admission", 4, 1, ("users",))
    files.store(2, 7, {"users": state("users")})
    path = tmp_path / "admission-4/g1/bucket=0002/000007.users.parquet"
    for version, accepted in ((UNSEALED_VERSION, True), (SCHEMA_VERSION, False)):
        pq.write_table(state("users").replace_schema_metadata({VERSION_KEY: version}), path)
        if accepted:
            assert files.load(2, 7)["users"].equals(read_table(str(path)))
        else:
            with pytest.raises(DamagedFile, match="its seal is gone"):
                files.load(2, 7)


def test_every_flip_in_a_file_of_contributions_is_refused(tmp_path: Path) -> None:
    rows = state("groups").select(["window", "key", "key_bytes"])
    schema = pa.schema([("kind", pa.int32()), ("batch", pa.int64()), *rows.schema, ("closed_us", pa.int64())]).remove_metadata()
    listed = ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(rows, bucket=3, batch=7)
    again = ContributionFiles(str(tmp_path), schema, "window", 0, 64).write(rows, bucket=3, batch=7)
    assert listed == again and len(listed) == 1  # a repeated micro-batch writes the file over itself
    path = tmp_path / listed[0]["path"]
    assert silent(path, lambda: check_files(tmp_path, [listed[0]["path"]])) == []
    path.rename(path.with_name("part-00003-5e8d0c3e-0000-4000-8000-000000000000.parquet"))
    with pytest.raises(FileNotFoundError):
        check_files(tmp_path, [listed[0]["path"]])
    check_files(tmp_path, ["era=0/part-00003-5e8d0c3e-0000-4000-8000-000000000000.parquet"])  # one of an older release
