"""What a micro-batch of query 2 reads: each commit in exactly one listed plan, of its files the rows of one bucket; and where a restored run goes on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.errors import DataError, LakeError
from dpsql.lake import delta_tables
from dpsql.lake.catch_up import FILE, finish, open_catch_up, read_catch_up
from dpsql.lake.contributions import Contributions
from dpsql.lake.manifest import Manifest
from dpsql.lake.published_marks import PublishedMarks
from dpsql.lake.release_plans import ReleasePlans, position, read_and_noted
from dpsql.mechanisms.registry import shape
from dpsql.sources.change_feed import FeedForm
from dpsql.sources.config import Source, Sources
from dpsql.streaming.sources import resumed
from dpsql.udfs.release_plan import ReleasePlan
from dpsql.udfs.stage import Tick
from dpsql.udfs.task_files import count_values
from tests.unit.test_torn_commits import SQL

RUN = "5a" * 16
HOUR = 3_600_000_000
BUCKET_COUNT = 3
TAKES = pa.schema([("window", pa.int64()), ("key", pa.int64()), ("weight", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Contributions:
    source = Source(
        "visits", "parquet", str(tmp_path), (), None, event_time="ts", privacy_unit=("user_id",)
    )
    of = shape(dpsql.compile(SQL, Sources((source,))).plan)
    made = Contributions(
        tmp_path / "contributions", RUN, of.schedule, of.contributions, 1, BUCKET_COUNT
    )
    made.create()
    return made


@pytest.fixture
def listed(tmp_path: Path) -> Manifest:
    made = Manifest(tmp_path / "files", RUN, "release", 1)
    made.create()
    return made


def rows(table: Contributions, seed: int, size: int = 40) -> pa.Table:
    """Contributions of two eras, with the bucket of their key."""
    generator = np.random.default_rng(seed)
    window = np.sort(generator.choice([0, 65], size)) * 24 * HOUR
    key = generator.integers(-(1 << 62), 1 << 62, size)
    given = {"window": window, "key": key, "bucket": (key % table.key_buckets).astype(np.int32)}
    columns = {field.name: given.get(field.name, np.zeros(size, np.int64)) for field in table.rows}
    columns["weight"] = generator.integers(1, 99, size)
    made = {
        field.name: pa.array(columns[field.name], pa.int64())
        for field in table.rows
        if field.type == pa.int64()
    }
    made |= {
        field.name: pa.array([b"k"] * size, pa.binary())
        for field in table.rows
        if field.type == pa.binary()
    }
    return pa.table({**made, "bucket": pa.array(given["bucket"])})


def commit(table: Contributions, batch: int, given: pa.Table) -> list[str]:
    """Append rows as query 1 does; returns the files."""
    files = table.files.write(given, 0, batch)
    table.append(files, batch, count_values(given["bucket"]))
    return [file["path"] for file in files]


def test_every_commit_is_in_exactly_one_listed_plan(table: Contributions, listed: Manifest) -> None:
    first = commit(table, 0, rows(table, 0))
    table.tick_by_clock(0, HOUR, HOUR)
    plans = ReleasePlans(table, listed, None)
    one = plans.plan_for(0)
    assert one == ReleasePlan(-1, 2, tuple(first), (Tick(0, HOUR),))
    later = commit(table, 1, rows(table, 1))
    assert ReleasePlans(table, listed, None).plan_for(0) == ReleasePlan(
        -1, 3, (*first, *later), (Tick(0, HOUR),)
    )  # not listed: another one
    listed.commit(0, [], {"closed_us": HOUR, "rows": 0, **position(one.upto)})
    for known in (plans, ReleasePlans(table, listed, None)):  # the same start, and the next
        known.list(0, one)
        assert known.plan_for(0) == one
        assert known.plan_for(1) == known.plan_for(7) == ReleasePlan(2, 3, tuple(later))
    table.tick_by_clock(1, 2 * HOUR, HOUR)
    assert plans.plan_for(1) == ReleasePlan(2, 4, tuple(later), (Tick(1, 2 * HOUR),))
    plans.list(1, plans.plan_for(1))
    assert plans.plan_for(2).is_empty and not plans.plan_for(1).is_empty


def read_of(table: Contributions, plan: ReleasePlan) -> list[tuple[int, int, int]]:
    """What the tasks of query 2 say that they have read."""
    reader = table.rows_for(pa.schema([*TAKES, ("batch", pa.int64())]))
    return [
        (batch, bucket, many)
        for bucket in range(BUCKET_COUNT)
        for batch, many in count_values(reader.read(plan.files, bucket)["batch"])
    ]


def test_rows_written_are_rows_read(table: Contributions) -> None:
    """A row that is lost, read twice or read by another bucket between the queries, which nobody counted."""
    commit(table, 0, rows(table, 0))
    commit(table, 1, rows(table, 1))
    table.tick_by_clock(1, HOUR, HOUR)
    plan = table.plan(0, table.version)
    read = read_of(table, plan)
    table.check_read(plan, read)
    (batch, bucket, many), *others = read
    moved = [(batch, bucket, many - 1), (batch, bucket + 1, 1), *others]
    for wrong in (others, [*read, read[0]], moved, [(batch, bucket, many + 1), *others]):
        with pytest.raises(LakeError, match=f"the rows of micro-batch {batch} of query 1"):
            table.check_read(plan, wrong)
    replace(table, relabelled=True).check_read(plan, moved)
    replace(table, void=((batch, batch),)).check_read(plan, [e for e in others if e[0] > batch])


def test_a_restored_query_begins_where_it_was_told(table: Contributions, listed: Manifest) -> None:
    commit(table, 0, rows(table, 0))
    later = commit(table, 1, rows(table, 1))
    (start,) = position(1)["offsets"]
    assert ReleasePlans(table, listed, start).plan_for(5).files == tuple(later)
    assert read_and_noted(listed, None, start) == 2 and read_and_noted(listed, None, None) is None


def test_what_is_read_and_noted_is_what_spark_will_not_repeat(listed: Manifest) -> None:
    for batch in range(30):
        listed.commit(batch, [], {"closed_us": batch, "rows": 0, **position(10 * batch)})
    assert read_and_noted(listed, 7, None) == 71
    assert read_and_noted(listed, 29, None) == read_and_noted(listed, 500, None) == 291


def test_a_plan_has_few_files_or_one_commit(table: Contributions) -> None:
    files = [commit(table, batch, rows(table, batch)) for batch in range(4)]
    assert [len(names) for names in files] == [2] * 4
    assert (table.plan(0, 4, 1).files, table.plan(0, 4, 1).upto) == (tuple(files[0]), 1)
    assert (table.plan(0, 4, 5).files, table.plan(0, 4, 5).upto) == ((*files[0], *files[1]), 2)
    assert len(table.plan(0, 4, 8).files) == 8 and table.plan(0, 4).upto == 4


def test_files_that_were_put_together_are_not_read_again(table: Contributions) -> None:
    for batch in range(3):
        table.tick_by_clock(batch, (batch + 1) * HOUR, HOUR)
    names = commit(table, 3, rows(table, 3))
    opened = delta_tables.newest(table.path)
    whole = pa.concat_tables(
        [pq.read_table(table.path / name, partitioning=None) for name in names[:1]]
    )
    delta_tables.replace_files(
        opened, table.path, names[:1], table.files.write_era(whole, 0, 9), {"merged": 1}
    )
    plan = table.plan(-1, table.version)
    assert plan.files == tuple(names) and len(plan.ticks) == 3


def test_a_commit_that_is_gone_is_no_empty_one(table: Contributions) -> None:
    commit(table, 0, rows(table, 0))
    (table.path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(FileNotFoundError):
        table.plan(-1, 1)


def test_a_plan_is_told_as_text() -> None:
    plan = ReleasePlan(
        3, 9, ("era=1/part-0.parquet", 'era=-1/"%.parquet'), (Tick(1, -5), Tick(2, 1 << 60))
    )
    assert ReleasePlan.from_message(str(plan)) == plan
    with pytest.raises(RuntimeError, match="was not told"):
        ReleasePlan.from_message(None)


@pytest.mark.parametrize("void", [(), ((1, 1),), ((0, 0), (2, 9))])
@pytest.mark.parametrize("buckets", [BUCKET_COUNT, 5])
def test_a_bucket_reads_its_rows_and_no_others(
    table: Contributions, void: tuple[tuple[int, int], ...], buckets: int
) -> None:
    """With rows that do not count, and after the number of buckets has changed. Catches: a row twice, or never."""
    parts = [rows(table, seed) for seed in range(3)]
    names = [name for batch, part in enumerate(parts) for name in commit(table, batch, part)]
    reader = replace(
        table, key_buckets=buckets, void=void, relabelled=buckets != BUCKET_COUNT
    ).rows_for(TAKES)
    counted = [
        part
        for batch, part in enumerate(parts)
        if not any(first <= batch <= last for first, last in void)
    ]
    wanted = pa.concat_tables([part.select(TAKES.names) for part in counted])
    found = [reader.read(names, bucket) for bucket in range(buckets)]
    for bucket, part in enumerate(found):
        assert part.schema == TAKES
        assert set((part["key"].to_numpy() % buckets).tolist()) <= {bucket}
    by = [(name, "ascending") for name in TAKES.names]
    assert pa.concat_tables(found).sort_by(by).equals(wanted.sort_by(by).cast(TAKES))
    assert reader.read([], 0).schema == TAKES


class Nights:
    """A run of nightly catch-ups, as far as their numbers and ticks go."""

    def __init__(self, table: Contributions) -> None:
        self.table = table
        self.folder = table.path.parent

    def night(self, number: int, released: bool = True) -> int:
        commit(self.table, number, rows(self.table, number))
        opened = open_catch_up(
            self.folder, number * HOUR, self.table.closed_us, self.table.newest_tick, {}
        )
        assert self.table.tick(opened.number, number, opened.until_us, HOUR)
        if released:
            finish(self.folder, opened)
        return self.table.closed_us


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_lost_or_older_note_lets_no_night_pass_without_a_tick(
    table: Contributions, kept: int, tmp_path: Path
) -> None:
    """Catches: a number that has ticked is given again, and nights end well that publish nothing."""
    nights = Nights(table)
    for number in range(1, 4):
        assert nights.night(number) == number * HOUR
        if number == kept:
            shutil.copy(nights.folder / FILE, tmp_path / "older")
    (nights.folder / FILE).unlink()
    if kept:
        shutil.copy(tmp_path / "older", nights.folder / FILE)
    for number in range(4, 7):
        assert nights.night(number) == number * HOUR
    done = read_catch_up(nights.folder)
    assert done is not None and done.number == table.newest_tick == 6


def test_an_older_note_of_an_interrupted_catch_up_is_not_gone_on_with(
    table: Contributions, tmp_path: Path
) -> None:
    """One that has ticked and is not released is; it has the newest number."""
    nights = Nights(table)
    nights.night(1, released=False)
    shutil.copy(nights.folder / FILE, tmp_path / "older")
    opened = open_catch_up(nights.folder, None, table.closed_us, table.newest_tick, {})
    assert (opened.number, opened.until_us) == (1, HOUR)
    finish(nights.folder, opened)
    nights.night(2)
    shutil.copy(tmp_path / "older", nights.folder / FILE)
    assert nights.night(3) == 3 * HOUR


NEW = {3: {"rows": 5, "mark": 30}, 4: {"rows": 0}, 5: {"rows": 7, "mark": 50}}


@pytest.mark.parametrize(
    ("marks", "listed", "expected"),
    [
        (PublishedMarks(None), {}, None),
        (PublishedMarks(None), NEW, None),
        (PublishedMarks(30), NEW, 3),
        (PublishedMarks(49), NEW, 3),
        (PublishedMarks(50), NEW, 5),
        (PublishedMarks(-50), {0: {"rows": 1, "mark": -50}}, 0),
        # The newest listing is lost.
        (PublishedMarks(60), NEW, 6),
        (PublishedMarks(60), {}, 0),
        # ... and was made anew by a restore.
        (PublishedMarks(60), {**NEW, 6: {"rows": 0, "mark": 60}}, 5),
    ],
)
def test_the_newest_micro_batch_with_published_rows(
    marks: PublishedMarks, listed: dict[int, dict[str, Any]], expected: int | None
) -> None:
    assert marks.newest_batch(listed) == expected


def test_a_micro_batch_of_several_ticks_is_there_when_its_last_rows_are() -> None:
    detail = {"rows": 9, "closed_us": 70, "mark": 6}
    assert [PublishedMarks(mark).have(detail) for mark in (None, 5, 6, 7)] == [
        False,
        False,
        True,
        True,
    ]
    assert PublishedMarks(None).have({"rows": 0})


POSITION = json.dumps({"reservoirVersion": 9, "index": 0, "isStartingVersion": False})


def test_a_feed_with_a_primary_key_goes_on_at_its_last_commit() -> None:
    """Its images are replays, and ignored."""
    feed = Source(
        "accounts",
        "delta",
        "accounts",
        change_feed=FeedForm.DELTA,
        primary_key=("id",),
        options=(("startingVersion", "0"),),
    )
    assert resumed(feed, POSITION).options == (("startingVersion", "9"),)
    assert resumed(feed, None) == feed


def test_a_feed_of_copies_is_refused() -> None:
    """Catches: a commit that is read twice and whose rows count twice."""
    feed = Source("accounts", "delta", "accounts", change_feed=FeedForm.DELTA)
    assert resumed(feed, None) == feed
    with pytest.raises(
        DataError, match="without primary_key: a restored run reads the last commit again"
    ):
        resumed(feed, POSITION)
