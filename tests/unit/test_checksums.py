"""Damaged files: random single-bit flips in each kind of file of state and contributions of every mechanism, all refused."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.lake.contributions import Contributions
from dpsql.lake.delta_rows import check_files
from dpsql.mechanisms import registry
from dpsql.udfs import bucket_state
from dpsql.udfs.bucket_state import (
    SCHEMA_VERSION,
    SEAL_BYTES,
    VERSION_KEY,
    BucketFiles,
    DamagedState,
    UnknownStateVersion,
)
from dpsql.udfs.intake import user_state
from tests.unit.test_contract import CASES, stages_of

FLIPS = 60
"""In each kind of file: all kinds together find what lets one flip in a thousand pass with 95%."""

ROWS = 2_000
FIRST = {mechanism: plan for mechanism, plan in reversed(CASES.values())}
"""The first plan of each mechanism."""
KINDS = {
    f"{name} {stage.operator} {table}": (stage, table)
    for name, plan in FIRST.items()
    for stage in stages_of(name, plan)
    for table in stage.tables
}


def filled(schema: pa.Schema) -> pa.Table:
    """A table with such columns; ids are random, so almost any flip gives another id."""
    draw = np.random.default_rng(len(schema))
    return pa.table([_column(field, draw) for field in schema], schema=schema)


def _column(field: pa.Field, draw: np.random.Generator, rows: int = ROWS) -> pa.Array:
    if pa.types.is_binary(field.type):
        return pa.array([b"page %d" % number for number in range(rows)], field.type)
    if pa.types.is_fixed_size_list(field.type):
        width = field.type.list_size
        return pa.FixedSizeListArray.from_arrays(
            _column(field.type.field(0), draw, rows * width), type=field.type
        )
    if pa.types.is_floating(field.type):
        return pa.array(draw.normal(size=rows), field.type)
    whole = field.name in ("user", "key")
    return pa.array(
        draw.integers(-(1 << 63), 1 << 63, rows) if whole else draw.integers(0, 5, rows), field.type
    )


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def silent(
    path: Path,
    load: Callable[[], object],
    refusals: type[Exception] | tuple[type[Exception], ...] = DamagedState,
) -> list[int]:
    """Bits whose flip is not refused. Half of them are drawn from the end: seal, footer and its length."""
    content = path.read_bytes()
    draw = random.Random(path.name)
    bits = 8 * len(content)
    end = 8 * (SEAL_BYTES + int.from_bytes(path.read_bytes()[-8:-4], "little") + 8)
    places = [draw.randrange(bits) for _ in range(FLIPS // 2)] + [
        draw.randrange(bits - end, bits) for _ in range(FLIPS // 2)
    ]
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


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BucketFiles, Path]:
    """One version of a bucket, and the file of one of its tables."""
    stage, name = KINDS[request.param]
    files = BucketFiles(str(tmp_path), stage.operator, 4, 1, tuple(stage.tables))
    files.store(2, 7, {each: filled(table.schema) for each, table in stage.empty().items()})
    return files, tmp_path / f"{stage.operator}-4/g1/bucket=0002/000007.{name}.parquet"


def test_every_flip_in_a_state_file_is_refused(stored: tuple[BucketFiles, Path]) -> None:
    files, path = stored
    assert silent(path, lambda: files.load(2, 7)) == []
    assert silent(path, lambda: files.check(2, 7, all_bytes=True)) == []


def test_without_seals_most_flips_are_silent(
    stored: tuple[BucketFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection taken out: what the test above is about does happen."""
    files, path = stored
    monkeypatch.setattr(bucket_state, "_seal", lambda data, path: "0")
    assert (
        len(
            silent(
                path,
                lambda: files.load(2, 7),
                (DamagedState, UnknownStateVersion, UnicodeDecodeError),
            )
        )
        > FLIPS // 4
    )


def test_a_sealed_file_is_plain_parquet_and_a_cut_one_is_refused(
    stored: tuple[BucketFiles, Path],
) -> None:
    files, path = stored
    assert (
        pq.read_table(path)
        .replace_schema_metadata(None)
        .equals(files.load(2, 7)[path.name.split(".")[1]].replace_schema_metadata(None))
    )
    content = path.read_bytes()
    for cut in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DamagedState, match=r"000007\..*parquet is damaged"):
            files.load(2, 7)


def test_a_file_without_seal_is_refused(tmp_path: Path) -> None:
    users = filled(user_state.empty_state().schema)
    files = BucketFiles(str(tmp_path), "admission", 4, 1, ("users",))
    files.store(2, 7, {"users": users})
    path = tmp_path / "admission-4/g1/bucket=0002/000007.users.parquet"
    pq.write_table(users.replace_schema_metadata({VERSION_KEY: SCHEMA_VERSION}), path)
    with pytest.raises(DamagedState, match="its seal is gone"):
        files.load(2, 7)


@pytest.mark.parametrize("mechanism", FIRST)
def test_every_flip_in_a_file_of_contributions_is_refused(mechanism: str, tmp_path: Path) -> None:
    plan = FIRST[mechanism]
    rows = filled(stages_of(mechanism, plan)[0].gives.append(pa.field("bucket", pa.int32())))
    table = Contributions(
        tmp_path,
        "5a" * 16,
        registry.shape(plan).schedule,
        rows.schema.remove(len(rows.schema) - 1),
        1,
        4,
    )
    listed = table.files.write(rows, bucket=3, batch=7)
    assert (
        listed == table.files.write(rows, bucket=3, batch=7) and len(listed) == 1
    )  # a repeated micro-batch writes the file over itself
    path = tmp_path / listed[0]["path"]
    assert silent(path, lambda: check_files(tmp_path, [listed[0]["path"]])) == []
    old = path.with_name("part-00003-5e8d0c3e-0000-4000-8000-000000000000.parquet")
    path.rename(old)
    with pytest.raises(FileNotFoundError):
        check_files(tmp_path, [listed[0]["path"]])
    check_files(tmp_path, [str(old.relative_to(tmp_path))])  # one of another writer
