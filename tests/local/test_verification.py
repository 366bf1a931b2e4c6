"""`verify` on a lake as the Spark engine leaves it, made here without Spark; and once on a real run."""

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from dpsql import record
from dpsql.compiled import Query
from dpsql.errors import DataError, LakeError
from dpsql.lake.catch_up import CatchUp
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, write_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.opening import run_of
from dpsql.lake.restore_points import tables_of
from dpsql.lake.runs import Lake, Run, read_run
from dpsql.local import verification
from dpsql.local.spark_types import spark_only
from dpsql.local.verification import Verification, count_differences, files_not_read, verify_run
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import Clock
from tests.local.conftest import DAY, HOUR, RUN, Compile, visits
from tests.local.published import engine_of, publish

CATCH_UPS = (((0, [0]), (1, [1, 2])), DAY + 13 * HOUR), (((3, [3]),), DAY + 24 * HOUR)


@dataclass
class Published:
    lake: Lake
    run: Run
    query: Query
    secret: Secret

    @property
    def private(self) -> Path:
        return self.lake.private("visits")

    @property
    def engine(self) -> Engine:
        return engine_of(self.private)

    def listing(self, operator: str) -> Manifest:
        return Manifest(self.private / "files", RUN, operator, 1)

    def not_read(self, source: Source) -> list[str]:
        tables = tables_of(self.lake, read_run(self.lake, "visits"))
        assert tables is not None
        return files_not_read(tables, source)

    def verify(self) -> Verification:
        return verify_run(self.lake, "visits", self.run, self.query, self.secret)


@pytest.fixture
def published(compile_on: Compile, secret: Secret, tmp_path: Path) -> Published:
    """Two catch-ups over four files, published the way Spark does it."""
    query = compile_on()
    table = visits()
    folder = tmp_path / "with space" / "visits"
    folder.mkdir(parents=True)
    files = [folder / f"part-{i}.parquet" for i in range(4)]
    for i, file in enumerate(files):
        pq.write_table(table.slice(i * 1000, 1000), file)
    lake = Lake(tmp_path / "lake")
    run = run_of("visits", RUN, query, secret, "")
    publish(lake, run, query, secret, files, CATCH_UPS)
    return Published(lake, run, query, secret)


def test_a_run_is_recomputed_row_by_row(published: Published) -> None:
    found = published.verify()
    assert found.identical and found.published == found.recomputed > 20 and found.differences == 0


def test_what_only_spark_computes_is_said_to_be_beyond_verify(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: the advice that is meant for `dpsql try`, to run the query on Spark."""
    monkeypatch.setattr(verification, "RowReader", lambda *_: spark_only("parse_url"))
    with pytest.raises(
        LakeError,
        match="`parse_url` runs on Spark only, so `dpsql verify` cannot recompute the rows of visits",
    ) as caught:
        published.verify()
    assert "dpsql run" not in str(caught.value)


def test_one_changed_bit_is_found(published: Published) -> None:
    table = read_rows(published.lake.histogram("visits"))
    values = table.column("time_spent").to_numpy().copy()
    values[3] = values[3] + 2.0**-20
    write_deltalake(
        published.lake.histogram("visits"),
        table.set_column(9, "time_spent", pa.array(values)),
        mode="overwrite",
    )
    found = published.verify()
    assert not found.identical and found.differences == 2 and found.published == found.recomputed


def test_rows_too_few_or_twice_are_found(published: Published) -> None:
    table = read_rows(published.lake.histogram("visits"))
    write_deltalake(
        published.lake.histogram("visits"),
        pa.concat_tables([table.slice(2), table.slice(5, 1)]),
        mode="overwrite",
    )
    assert published.verify().differences == 3


def test_what_a_live_job_is_publishing_waits_for_the_next_time(published: Published) -> None:
    """The second tick's micro-batch is not noted as finished: its rows may be there, or not yet."""
    whole = published.verify()
    (published.private / "checkpoints/release/commits/1").unlink()
    found = published.verify()
    assert found.identical and 0 < found.published < whole.published
    table = read_rows(published.lake.histogram("visits"))
    older = table.filter(
        pc.less_equal(
            table["trigger_time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), CATCH_UPS[0][1]
        )
    )
    write_deltalake(published.lake.histogram("visits"), older, mode="overwrite")
    assert published.verify() == found


def test_what_is_published_is_verified_before_spark_notes_it(published: Published) -> None:
    """A live job notes a release when the next one begins, perhaps a day later. Catches: leaving out its rows, and saying that all are right."""
    whole = published.verify()
    table = DeltaTable(published.lake.histogram("visits"))
    (published.private / "checkpoints/release/commits/1").unlink()
    assert published.verify().published < whole.published
    properties = CommitProperties(app_transactions=[Transaction(f"{RUN}/release/g1/triggers", 700)])
    write_deltalake(
        table,
        read_rows(published.lake.histogram("visits")).slice(0, 0),
        mode="append",
        commit_properties=properties,
    )
    assert published.verify() == whole


def test_rows_of_a_trigger_that_no_tick_has_closed_are_found(published: Published) -> None:
    table = read_rows(published.lake.histogram("visits"))
    later = pc.add(table["trigger_time"], pa.scalar(10 * DAY, pa.duration("us")))
    later = table.set_column(
        table.column_names.index("trigger_time"),
        "trigger_time",
        later.cast(table["trigger_time"].type),
    ).slice(0, 1)
    write_deltalake(published.lake.histogram("visits"), later, mode="append")
    assert published.verify().differences == 1


def test_a_source_file_that_is_gone(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(str(published.query.source.path)).parent / "with space" / "visits"
    (folder / "part-1.parquet").unlink()
    told = r"1 files that the run has read are gone \(part-1\.parquet\), and no row of a window that starts at 2024-.* UTC or later is published"
    with pytest.raises(DataError, match=told):
        published.verify()
    # With an allowance for the whole stream no row is independent of it.
    parsed = replace(published.query.parsed, contribution_period=ContributionPeriod.STREAM)
    stream = replace(
        published.query, parsed=parsed, plan=replace(published.query.plan, query=parsed)
    )
    with pytest.raises(
        DataError, match=r"\(part-1\.parquet\), and every later row depends on them"
    ):
        replace(published, query=stream).verify()


def test_a_source_file_that_was_changed(published: Published) -> None:
    file = (
        Path(str(published.query.source.path)).parent / "with space" / "visits" / "part-2.parquet"
    )
    pq.write_table(visits().slice(0, 1000), file)
    with pytest.raises(DataError, match=r"part-2\.parquet: was changed after the run had read it"):
        published.verify()


def test_a_file_that_was_read_twice(published: Published) -> None:
    """As a run of an earlier release may have done, where the file's modification time was renewed."""
    file = (
        Path(str(published.query.source.path)).parent / "with space" / "visits" / "part-1.parquet"
    )
    published.listing("admission").commit(
        7, [], {"files": [file.as_uri()], "clock": asdict(Clock(0, 0))}
    )
    with pytest.raises(
        DataError,
        match=r"with space/visits/part-1\.parquet was read twice: micro-batches 1 and 7\. .*--new-run",
    ):
        published.verify()
    # Not where a restored run has read it again under another number: then the first time does not count.
    write_engine(replace(published.engine, void=((7, 9),)), {})
    assert published.verify().identical


def test_files_that_were_not_read_are_counted_and_named(published: Published) -> None:
    folder = Path(str(published.query.source.path))
    folder.mkdir()
    for i in range(12):
        (folder / f"late-{i:02d}.parquet").touch()
    (folder / "_SUCCESS").touch()
    found = published.verify()
    assert found.identical and found.not_read == 12
    assert found.not_read_names == tuple(str(folder / f"late-{i:02d}.parquet") for i in range(10))
    source = replace(published.query.source, options=(("pathGlobFilter", "{late-1*,none}"),))
    assert [Path(name).name for name in published.not_read(source)] == [
        "late-10.parquet",
        "late-11.parquet",
    ]


def test_files_of_which_nothing_was_admitted_are_counted_and_named(published: Published) -> None:
    """Catches: "identical" where whole micro-batches were malformed for one engine; files of a micro-batch that is at work."""
    checkpoint = published.private / "checkpoints/admission"
    later = Path(str(published.query.source.path)) / "later.parquet"
    entry = {"path": later.as_uri(), "timestamp": 1, "batchId": 9}
    (checkpoint / "sources/0/9").write_text(f"v1\n{json.dumps(entry)}")
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(exist_ok=True)
    for batch, last in ((7, 3), (8, 9)):
        (checkpoint / f"offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset": {last}}}')
    (checkpoint / "commits/7").touch()
    assert (published.verify().not_admitted, published.verify().not_read) == (0, 0)
    (checkpoint / "commits/8").touch()
    found = published.verify()
    assert found.identical and found.not_admitted_names == (str(later),)


def test_a_run_that_has_lost_sparks_checkpoint_of_its_source(published: Published) -> None:
    """The list of files is in the lake, too. Catches: an internal error."""
    whole = published.verify()
    shutil.rmtree(published.private / "checkpoints/admission")
    assert published.verify() == whole
    log = published.private / "checkpoints"
    log.rename(published.private / "elsewhere")
    assert published.not_read(published.query.source) == []


def test_sparks_log_of_files_is_read_once_and_may_be_compacted_meanwhile(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth file of it repeats all before. Catches: reading them all, and a live run that removes them."""
    log = published.private / "checkpoints/admission/sources/0"
    (log / "3").rename(log / "9.compact")
    later = Path(str(published.query.source.path)) / "later.parquet"
    later.parent.mkdir()
    later.touch()
    (log / "8.compact").write_text("v1\nno entry")
    (log / "10").write_text(
        "v1\n" + json.dumps({"path": later.as_uri(), "timestamp": 1, "batchId": 10})
    )
    read = list[str]()
    original = Path.read_text

    def read_text(path: Path, *given: Any, **named: Any) -> str:
        if path.parent == log:
            read.append(path.name)
            if len(read) == 1:
                path.rename(path.with_name("11.compact"))
                path.with_name("11.compact").write_text(
                    original(path.with_name("10")).replace(
                        "v1", original(path.with_name("11.compact")), 1
                    )
                )
        return original(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert published.not_read(published.query.source) == []
    assert read == ["9.compact", "11.compact"]


def test_damaged_ticks_are_refused(published: Published) -> None:
    ticks = (
        published.private / "contributions" / f"era={NO_CLOCK}" / f"part-00000-{'5a' * 32}.parquet"
    )
    ticks.parent.mkdir()
    ticks.write_bytes(b"not what was written")
    action = AddAction(
        f"{ticks.parent.name}/{ticks.name}", 20, {}, 0, True, json.dumps({"numRecords": 1})
    )
    table = DeltaTable(published.private / "contributions")
    table.create_write_transaction([action], "append", table.schema(), [])
    with pytest.raises(
        LakeError,
        match=rf"{ticks.name} is damaged: its bytes are not those that were written; put back the original file",
    ):
        published.verify()


def test_another_secret_or_query_is_refused(published: Published) -> None:
    published.secret = Secret(b"t" * 32)
    with pytest.raises(LakeError, match="another secret"):
        published.verify()


@pytest.mark.parametrize("name", ["engine.json", "catch_up.json"])
def test_a_damaged_small_file_is_named(published: Published, name: str) -> None:
    """What a restore has changed is known from it. Catches: going on as if nothing had been restored."""
    (published.private / name).write_text("{")
    with pytest.raises(LakeError, match=rf"{name}"):
        published.verify()
    (published.private / "engine.json").unlink()
    with pytest.raises(LakeError, match=r"was never started, or its engine\.json is lost"):
        published.verify()


def test_an_interrupted_catch_up_is_to_be_finished_first(published: Published) -> None:
    record.write(published.private / "catch_up.json", CatchUp(3, 0, 0, False, {}), 1)
    with pytest.raises(LakeError, match="interrupted"):
        published.verify()


def test_before_the_first_tick_there_is_nothing_to_verify(published: Published) -> None:
    rows = pa.Table.from_pylist([{"kind": 0, "batch": 0, "closed_us": 0, "window": 0, "bucket": 0}])
    write_deltalake(str(published.private / "contributions"), rows, mode="overwrite")
    with pytest.raises(LakeError, match="no trigger has passed yet"):
        published.verify()


def test_a_stream_that_is_not_made_of_files(published: Published) -> None:
    published.listing("admission").commit(9, [], {"offsets": ["{}"], "clock": {}})
    with pytest.raises(DataError, match="only runs over files can be verified"):
        published.verify()


def test_differences_are_of_bits() -> None:
    a = pa.table({"x": [0.0, 1.0, None], "k": ["a", None, "b"]})
    assert count_differences(a, a.take(pa.array([2, 0, 1]))) == 0
    assert count_differences(a, a.set_column(0, "x", pa.array([-0.0, 1.0, None]))) == 2
    assert count_differences(a, a.select(["k"])) == 6


def test_a_run_of_spark_is_identical(
    spark: SparkSession, compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    from dpsql.lake.opening import open_run
    from dpsql.privacy.ledger import Ledger
    from dpsql.streaming.job import run as run_on_spark

    query = compile_on(options=(("maxFilesPerTrigger", "1"),))
    table = visits()
    lake = Lake(tmp_path / "lake")
    run = open_run(lake, "visits", query, secret, Ledger(tmp_path / "ledger"), query.source)
    (tmp_path / "visits").mkdir()
    for i in range(2):
        for j in range(2):
            pq.write_table(
                table.slice((2 * i + j) * 1000, 1000), tmp_path / "visits" / f"part-{i}{j}.parquet"
            )
        run_on_spark(
            spark,
            query,
            run,
            lake,
            secret,
            until_caught_up=True,
            until_us=DAY + (13 + 11 * i) * HOUR,
            buckets=(2, 3),
        )
    found = verify_run(lake, "visits", run, query, secret)
    assert found.identical and found.published > 20
