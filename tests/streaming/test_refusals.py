"""Lakes, checkpoints and settings that do not belong together: refused before anything is touched."""

import json
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import InputError, LakeError
from dpsql.lake.event_log import DAMAGED, FILE, newest_events
from dpsql.lake.runs import Lake
from dpsql.udfs.bucket_state import VERSION_KEY
from tests.streaming.conftest import DAY, SQL, START, case_of


def files(one: Any) -> dict[str, bytes]:
    """All but what the operator is told of starts (`dpsql.lake.event_log`)."""
    return {
        str(path): path.read_bytes()
        for path in Path(one.lake.root).rglob("*")
        if path.is_file() and path.name != FILE
    }


@pytest.fixture(scope="module")
def first(spark: Any, visits: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that has released a day, made once: a refusal touches nothing and asks nothing of Spark."""
    base = tmp_path_factory.mktemp("first")
    (base / "visits").mkdir()
    pq.write_table(visits(days=1), base / "visits" / "part-000.parquet")
    one = case_of(spark, base, SQL, "lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpsql.times.time.time_ns", lambda: START * 1000)
        one.go(START + DAY)
    return one


@pytest.fixture
def done(first: Any, tmp_path: Path) -> Any:
    lake = Lake(tmp_path / "lake")
    shutil.copytree(first.lake.root, lake.root)
    return replace(first, lake=lake)


@pytest.mark.parametrize("operator", ["admission", "release"])
def test_a_deleted_checkpoint_is_refused_before_anything_is_touched(
    done: Any, operator: str
) -> None:
    shutil.rmtree(done.private / "checkpoints" / operator)
    before = files(done)
    with pytest.raises(
        LakeError, match=rf"checkpoint .*{operator} is lost; nothing was touched.*dpsql restore"
    ):
        done.go()
    assert files(done) == before


def test_a_foreign_checkpoint_is_refused(done: Any) -> None:
    metadata = done.private / "checkpoints" / "admission" / "metadata"
    metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
    metadata.with_name(".metadata.crc").unlink()
    with pytest.raises(LakeError, match="belongs to another run"):
        done.go()


def test_an_older_checkpoint_is_refused(case: Any, write: Any, visits: Any) -> None:
    write(visits(days=1), 2)
    one = case(options=(("maxFilesPerTrigger", "1"),))
    one.go(START + DAY)
    for path in (one.private / "checkpoints" / "admission").glob("*/*1*"):
        path.unlink()
    with pytest.raises(
        LakeError, match="ends at micro-batch 0, but the lake has rows of micro-batch 1"
    ):
        one.go()


def test_lost_tables_and_files_are_refused(done: Any) -> None:
    for name, path in {
        "contributions": done.private / "contributions",
        "histogram": done.lake.histogram("demo"),
    }.items():
        path.rename(done.private / "aside")
        with pytest.raises(LakeError, match=f"the table {name} .* is lost"):
            done.go()
        (done.private / "aside").rename(path)
    (done.private / "engine.json").unlink()
    with pytest.raises(LakeError, match=r"engine.json is lost"):
        done.go()


def test_a_start_names_published_files_that_are_not_as_they_were_written_and_goes_on(
    done: Any,
) -> None:
    (path,) = Path(done.lake.histogram("demo")).glob("*.parquet")
    told = list[str]()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    done.go(progress=lambda report: told.append(report.warning or ""))
    assert any(f"{path.name} has other bytes than were written" in line for line in told)
    assert path.name in newest_events(done.private)[f"alarm/{DAMAGED}"]["text"]


def test_damaged_small_files_are_refused(done: Any) -> None:
    for name in ("engine.json", "catch_up.json"):
        path = done.private / name
        good = path.read_text()
        for bad in ("{", "[]", json.dumps({"version": 99}), json.dumps({"version": 1})):
            path.write_text(bad)
            with pytest.raises(LakeError, match=name):
                done.go()
        path.write_text(good)


def test_other_bucket_counts_are_refused(done: Any) -> None:
    with pytest.raises(LakeError, match=r"is cut into \(4, 2\) buckets"):
        done.go(buckets=(2, 2))


def test_lost_damaged_and_foreign_state_files_are_refused(done: Any) -> None:
    path = next((done.private / "state").rglob("000001.users.parquet"))
    good = path.read_bytes()
    path.unlink()
    with pytest.raises(
        LakeError,
        match=r"version 1 of the state in .*bucket=\d+ is lost; nothing was touched.*dpsql restore demo --lake ",
    ):
        done.go()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(LakeError, match="is damaged; nothing was touched"):
        done.go()
    path.write_bytes(good)
    pq.write_table(pq.read_table(path).replace_schema_metadata({VERSION_KEY: b"99"}), path)
    with pytest.raises(
        LakeError,
        match=r"version 99 is unknown; this release reads version 2; nothing was touched\. Go on with the release",
    ):
        done.go()


def test_a_stop_ends_after_the_micro_batch_and_the_next_start_goes_on(
    case: Any, write: Any, visits: Any
) -> None:
    write(visits(days=1), 3)
    whole = case(options=(("maxFilesPerTrigger", "1"),))
    cut = case(options=(("maxFilesPerTrigger", "1"),))
    whole.go()
    stop = threading.Event()
    first = cut.go(stop=stop, progress=lambda report: stop.set())
    assert first.stopped
    assert first.records < 360
    with pytest.raises(
        InputError,
        match="an interrupted catch-up until 2024-01-08T00:00:00Z has to be finished first",
    ):
        cut.go(START + 31 * DAY)
    rest = cut.go(None)
    assert not rest.stopped
    assert first.records + rest.records == 360
    assert cut.histogram() == whole.histogram() != []


def test_columns_of_one_name_are_refused(case: Any, write: Any) -> None:
    write(
        pa.table(
            {
                "user_id": ["u"],
                "page": ["p"],
                "ts": pa.array([START], pa.timestamp("us", "UTC")),
                "seconds": [1.0],
            }
        )
    )
    sql = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
      page AS n_stderr, COUNT(*) AS n
    FROM visits GROUP BY window(ts, '1 day'), n_stderr
    """
    with pytest.raises(InputError, match="n_stderr"):
        case(sql).go()
