"""A run whose commits said micro-batches, as those of 27b5d01 do, goes on with commits that count triggers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
from deltalake import DeltaTable

from dpsql.errors import DpsqlError
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import rows_mark
from dpsql.lake.restore import restore
from dpsql.local.verification import verify_run
from dpsql.streaming.published_table import PublishedTable

DAY = 86_400_000_000
START = 19_700 * DAY


class BrokenOff(DpsqlError):
    pass


@contextmanager
def as_it_was(publishes: bool = True) -> Iterator[None]:
    """Marks and listings of 27b5d01; without `publishes` a job dies between the listing and the rows."""
    commit, newest = Manifest.commit, dict[str, int]()

    def commit_without_mark(self: Manifest, batch: int, files: Any, detail: Mapping[str, Any]) -> None:
        newest["batch"] = batch
        commit(self, batch, files, {name: value for name, value in detail.items() if name != "mark"})

    def broken(*given: Any, **named: Any) -> None:
        raise BrokenOff

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "commit", commit_without_mark)
        patch.setattr("dpsql.streaming.context.triggers_mark", lambda run_id, generation: rows_mark(run_id, "release", generation))
        patch.setattr(PublishedTable, "triggers", lambda self, closed_us: newest["batch"])
        if not publishes:
            patch.setattr(PublishedTable, "publish", broken)
        yield


def marks(case: Any) -> list[int | None]:
    table = DeltaTable(case.lake.histogram("demo"))
    return [table.transaction_version(f"{case.run_id.run_id}/release/g1/{name}") for name in ("rows", "triggers")]


def test_it_goes_on_wherever_it_was_broken_off(case: Any, write: Any, visits: Any) -> None:
    days = [visits(days=1, first_day=day) for day in range(3)]
    whole, one = case(), case()
    for day, rows in enumerate(days):
        write(rows, first=day)
        whole.go(START + (day + 1) * DAY)
    folder = one.folder
    later = [folder / f"part-{day:03d}.parquet" for day in (1, 2)]
    aside = [path.rename(folder.parent / path.name) for path in later]
    with as_it_was():
        one.go(START + DAY)
    assert marks(one) == [0, None]
    aside[0].rename(later[0])
    with as_it_was(publishes=False), pytest.raises(BrokenOff):
        one.go(START + 2 * DAY)
    assert DeltaTable(one.lake.histogram("demo")).version() == 1
    one.go(START + 2 * DAY)
    assert marks(one) == [0, (START + 2 * DAY) // (DAY // 2)]
    assert DeltaTable(one.lake.histogram("demo")).version() == 2
    aside[1].rename(later[1])
    one.go(START + 3 * DAY)
    assert one.histogram() == whole.histogram()
    assert verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical
    # Nothing seems lost, and what is lost is found by either kind of mark.
    (one.private / "run.json").write_text(json.dumps({"version": 1, **asdict(one.run_id)}))
    assert restore(one.lake, "demo").batches == {}
    shutil.rmtree(one.private / "checkpoints/release")
    assert restore(one.lake, "demo").batches == {"release": 2}
    assert one.go(START + 3 * DAY).rows == 0
    assert one.histogram() == whole.histogram()
