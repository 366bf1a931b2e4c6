"""More neighbouring inputs whose public bytes are compared: other mechanisms, rows that Spark writes, a job that dies between two ticks."""

import json
import shutil
from dataclasses import asdict
from typing import Any

import pytest

from dpsql.errors import LakeError
from dpsql.lake.restore import restore
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.published_table import PublishedTable
from tests.streaming.conftest import BrokenOff
from tests.streaming.test_public_bytes import (
    END,
    EVENTS,
    SQL,
    TABLE,
    TICKS,
    catch_up,
    live,
    private_files,
    public,
    work,
)


def test_neighbouring_runs_for_ever(case: Any, write: Any) -> None:
    """One row more where rows are protected: what is shown of its pane differs, and no more is shown. A unit more of a table: nothing does."""
    without, same, more = (
        catch_up(case, write, world, EVENTS) for world in ("without", "0", "1 of days")
    )
    assert [private_files(one) - private_files(without) for one in (same, more)] == [0, 1]
    assert len(without.histogram()) > 2_000
    for one in (same, more):  # smoothed values are functions of all panes before
        assert (
            1
            <= sum(
                row["views"] != other["views"]
                for row, other in zip(one.histogram(), without.histogram(), strict=True)
            )
            <= 3
        )
        assert public(one) != public(without)
        assert public(one, rows_too=True) == public(without, rows_too=True)
    without, more = (catch_up(case, write, world, TABLE) for world in ("without", "30 of days"))
    assert private_files(more) == private_files(without) + 30
    assert set(read_histogram(without.lake, "demo")["page"].to_pylist()) == {"p0", "p1", "p2"}
    assert public(more) == public(without)


def test_a_job_that_dies_between_two_ticks_of_one_micro_batch(
    case: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tick is a commit of its own. Catches: ticks that are lost, or published twice, and `verify` that counts half a micro-batch."""
    whole = live(case, write, "without")
    for restored in (False, True):
        one = case(SQL, folder="without")
        commits = list[int]()
        publish = PublishedTable.publish

        def broken(
            self: PublishedTable,
            rows: Any,
            closed_us: int,
            due: Any,
            every: bool,
            commits: list[int] = commits,
            publish: Any = publish,
        ) -> None:
            if commits:
                raise BrokenOff
            publish(self, rows, closed_us, due, every)
            commits.append(closed_us)

        with monkeypatch.context() as patch, pytest.raises(BrokenOff):
            patch.setattr(PublishedTable, "publish", broken)
            work(one, behind=True)
        assert commits == [TICKS[0]]
        assert {row["trigger_time"] for row in one.histogram()} < {
            row["trigger_time"] for row in whole.histogram()
        }
        with pytest.raises(LakeError, match="nothing is released yet"):
            verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
        if restored:
            (one.private / "run.json").write_text(json.dumps({"version": 1, **asdict(one.run_id)}))
            shutil.rmtree(one.private / "checkpoints/release")
            assert restore(one.lake, "demo").batches == {"release": -1}
        one.go(END)
        assert one.histogram() == whole.histogram()
        after = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
        assert after.identical and after.published == len(whole.histogram())


def test_neighbouring_catch_ups_that_spark_writes(
    case: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsql.streaming.published_table.DRIVER_ROWS", 0)
    monkeypatch.setattr("dpsql.streaming.published_table.ROWS_PER_FILE", 5)
    without, with_u = (catch_up(case, write, world) for world in ("without", "1000"))
    assert len(list(without.lake.histogram("demo").glob("*.parquet"))) == -(
        -len(without.histogram()) // 5
    )
    assert public(with_u) == public(without)
