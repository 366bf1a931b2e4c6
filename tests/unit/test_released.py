"""Released rows between tasks and driver: what is read of them is what was written, whatever the triggers that are asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.streaming.released import Released, sweep
from dpsql.udfs import released_files
from dpsql.udfs.keys import encode
from dpsql.udfs.released_files import ReleasedFiles

NO_SESSION: Any = None


def rows(seed: int, size: int = 300) -> pa.Table:
    generator = np.random.default_rng(seed)
    pairs = np.sort(generator.integers(0, 12, size))
    keys = [encode([b"k%d" % key, None if key % 3 else b""]) for key in generator.integers(0, 9, size)]
    return pa.table(
        {
            "window": pa.array(pairs // 3 * 100 - 100),
            "trigger": pa.array(pairs % 3 + 1),
            "key_bytes": pa.array(keys, pa.binary()),
            "c0": pa.array(generator.integers(0, 99, size)),
            "s0": pa.array(generator.random(size)),
        }
    )


@pytest.mark.parametrize("group_bytes", [1, 2_000, 16 << 20])
def test_the_rows_of_some_triggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int) -> None:
    """Row groups of a row each, some, one. Catches: a trigger that goes over two row groups and loses rows."""
    monkeypatch.setattr(released_files, "GROUP_BYTES", group_bytes)
    given = [rows(seed) for seed in range(3)]
    folder = ReleasedFiles(str(tmp_path / "released"), 2)
    names = tuple(folder.write(part, bucket) for bucket, part in enumerate(given))
    assert (pq.ParquetFile(tmp_path / "released" / names[0]).num_row_groups > 1) == (group_bytes < 10_000)
    released = Released(NO_SESSION, tmp_path / "released", names)
    whole, columns = pa.concat_tables(given), given[0].column_names
    assert released.table().select(columns).equals(whole)
    assert {"k0", "k1"} <= set(released.table().column_names)
    everything = whole.to_pylist()
    for pairs in ({(-100, 1)}, {(-100, 1), (200, 3), (0, 2)}, {(7, 7)}, {(row["window"], row["trigger"]) for row in everything}):
        wanted = [row for row in everything if (row["window"], row["trigger"]) in pairs]
        assert released.table(pairs).select(columns).to_pylist() == wanted
    released.remove()
    released.remove()  # a start that died in between has removed some
    assert not list((tmp_path / "released").iterdir())


def test_what_an_earlier_start_has_left_is_removed(tmp_path: Path) -> None:
    sweep(tmp_path / "none")
    ReleasedFiles(str(tmp_path / "released"), 2).write(rows(0), 7)
    (tmp_path / "released" / "theirs").mkdir()
    sweep(tmp_path / "released")
    assert [left.name for left in (tmp_path / "released").iterdir()] == ["theirs"]
