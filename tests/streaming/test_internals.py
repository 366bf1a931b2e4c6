"""Canaries: each says in one line which of Spark's or Delta's internals has changed, and who needs it. They are for the day on which a
version moves. What they find is looked at in `dpsql.streaming.internals` and in the module they name."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import Schema
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.util import _load_from_socket

from dpsql.lake import delta_tables
from dpsql.lake.hadoop_checksums import differs
from dpsql.lake.sorted_file import sorted_file
from dpsql.lake.spark_checkpoint import LOG_HEADER, Checkpoint
from dpsql.scratch import scratch
from dpsql.streaming import internals, workers
from dpsql.streaming import rows as native
from dpsql.streaming.session import CATCH_UP, RUN, run_session
from tests.deployment.processes import free_ports


@contextmanager
def canary(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is told in one line."""
    try:
        yield
    except Exception as problem:  # a py4j error is long, and an assertion says nothing
        first = str(problem).strip().splitlines()[:1]
        pytest.fail(
            f"{what} has changed ({type(problem).__name__}: {first[0] if first else ''})",
            pytrace=False,
        )


def test_a_canary_says_it_in_one_line(spark: SparkSession) -> None:
    with (
        pytest.raises(
            pytest.fail.Exception, match=r"^ExpressionUtils, for `native`, has changed \(.*\)$"
        ) as told,
        canary("ExpressionUtils, for `native`,"),
    ):
        internals.static_call(spark, "java.lang.NoSuchClass", "none", '"long"', [])
    assert len(str(told.value).splitlines()) == 1


def test_columns_and_plans(spark: SparkSession) -> None:
    frame = spark.range(3)
    with canary("ExpressionUtils or Column, for `native`,"):
        back = internals.column_of(spark, internals.expression_of(spark, F.col("id") + 1))
        assert [row[0] for row in frame.select(back).collect()] == [1, 2, 3]
    with canary("Dataset.ofRows or QueryExecution.analyzed, for `totality`,"):
        plan = internals.analyzed(frame.where("id > 0"))
        assert str(plan.nodeName()) == "Filter"
        assert internals.frame_of(spark, plan).count() == 2
    with canary("PythonUtils.toSeq, for `totality`,"):
        assert internals.sequence(spark, [1, 2]).size() == 2


def test_footers(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "a.parquet")
    with canary("ParquetFileReader, for `footers`,"):
        (schema,) = internals.parquet_schemas(spark, [str(tmp_path / "a.parquet")])
        assert schema.splitlines()[1] == "  optional int64 t (TIMESTAMP(NANOS,false));"


def test_static_methods(spark: SparkSession) -> None:
    given = [(bytes([i]) * i,) for i in range(40)]
    frame = spark.createDataFrame(given, T.StructType([T.StructField("b", T.BinaryType())]))
    with canary(
        "StaticInvoke, commons-codec or ByteArray.getPrefix, for ids (`native.digest_prefix`),"
    ):
        found = [row[0] for row in frame.select(native.digest_prefix(spark, F.col("b"))).collect()]
        assert found == [
            int.from_bytes(hashlib.sha256(b).digest()[:8], "big", signed=True) for (b,) in given
        ]
    with canary("commons-lang3's ArrayUtils, for keys (`native.joined`),"):
        found = [
            bytes(row[0])
            for row in frame.select(native.joined(spark, [F.col("b"), F.col("b")])).collect()
        ]
        assert found == [b + b for (b,) in given]


def test_the_hash_of_groups(spark: SparkSession) -> None:
    with canary("the placement of groups, for speed alone (`spreading`),"):
        for buckets in (4, 7):
            labels = spark.createDataFrame(
                [(label,) for label in workers.labels(buckets)], "label INT"
            )
            placed = labels.select(F.expr(f"pmod(hash(label), {buckets})")).collect()
            assert [row[0] for row in placed] == list(range(buckets))


def test_class_path_and_context(spark: SparkSession, tmp_path: Path) -> None:
    with canary("the thread's class loader, for the check of Delta and s3a (`session`),"):
        assert internals.has_class(spark, internals.DELTA_EXTENSION)
        assert not internals.has_class(spark, "org.example.NoSuchClass")
    with canary("the package of Spark's checkpoint files, for speed (`session.RUN`),"):
        assert internals.has_class(spark, internals.CHECKPOINT_FILES)
    with canary(
        "SecurityManager or DiskBlockManager, for what other users may see (`protection`),"
    ):
        environment = internals.java_context(spark).env()
        assert environment.securityManager().isAuthenticationEnabled()
        assert environment.securityManager().getIOEncryptionKey().isDefined()
        assert all(
            Path(str(folder)).is_dir()
            for folder in environment.blockManager().diskBlockManager().localDirs()
        )
    with canary(
        "SparkHadoopUtil.isGlobPath or the session's Hadoop settings, for paths (`sources`),"
    ):
        path, system = internals.hadoop_path(spark, str(tmp_path))
        assert system.exists(path) and not internals.is_pattern(spark, path)
        assert internals.is_pattern(spark, internals.hadoop_path(spark, f"{tmp_path}/*.parquet")[0])


def test_a_master_says_where_it_takes_submissions(spark: SparkSession) -> None:
    jvm, (port, rest) = internals.jvm_of(spark), free_ports(2)
    for wanted in (None, rest):
        conf = internals.java_context(spark).conf().clone()
        conf.set("spark.master.rest.enabled", str(wanted is not None).lower()).set(
            "spark.master.rest.port", str(rest)
        )
        with canary(
            "Master or its BoundPortsRequest, for who may run programs on a cluster (`protection`),"
        ):
            started = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint(
                "127.0.0.1", port, 0, conf
            )._1()
            try:
                assert internals.submission_port(spark, f"spark://127.0.0.1:{port}") == wanted
            finally:
                started.shutdown()
                started.awaitTermination()


def test_python_and_jvm_meet_in_a_folder_of_ours(spark: SparkSession) -> None:
    """A port that waits for one of the two takes whoever comes first: a stranger would end the run."""
    with canary("spark.python.unix.domain.socket.dir (`session.SOCKETS_IN`),"):
        connection = spark.range(3)._jdf.collectToPython()  # what every `collect` begins with
        assert Path(connection[0]).parent == scratch()
        with _load_from_socket(connection, CPickleSerializer()) as rows:
            assert [*rows]
        assert Path(spark.sparkContext._accumulatorServer.server_address).parent == scratch()


def test_settings_by_name(spark: SparkSession) -> None:
    """Spark takes any name: a setting that is gone would say nothing."""
    elsewhere = (
        "spark.databricks.delta.",
        "spark.sql.streaming.checkpointFileManagerClass",
    )  # Spark reads the latter as Hadoop's
    ours = {name for name in (*RUN, *CATCH_UP) if not name.startswith(elsewhere)}
    assert sorted(name for name in ours if not spark.conf.isModifiable(name)) == [], (
        "settings that this Spark does not know"
    )


class Idle(StreamingQueryListener):
    """Notes the polls that find nothing."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:
        """A poll has found nothing."""
        self.seen.append(event.timestamp)

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do."""


def test_the_files_of_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Three files, three micro-batches; `restore` writes such files itself, so the format of the source's log is not harmless."""
    session = run_session(spark, 1)
    source = tmp_path / "input"
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text(f'{{"x": {number}}}\n')
    stream = session.readStream.schema("x INT").option("maxFilesPerTrigger", 1).json(str(source))
    seen: list[int] = []

    def go(path: Path) -> list[int]:
        seen.clear()
        writer = stream.writeStream.foreachBatch(
            lambda frame, batch: seen.extend(row.x for row in frame.collect())
        )
        writer.option("checkpointLocation", str(path)).trigger(
            availableNow=True
        ).start().awaitTermination()
        return sorted(seen)

    assert go(tmp_path / "checkpoint") == [0, 1, 2]
    with canary("the text of Spark's offsets, commits or metadata, for `checkpoints`,"):
        assert (checkpoint.newest_batch, checkpoint.newest_commit, checkpoint.oldest_commit) == (
            2,
            2,
            0,
        )
        assert (
            re.fullmatch(r"[0-9a-f-]{36}", checkpoint.query_id or "")
            and checkpoint.time_us(2) > 1_700_000_000_000_000
        )
        assert json.loads(checkpoint.position(1)["offsets"][0]) == {"logOffset": 1}
        assert checkpoint.damaged() is None
    with canary("the log of Spark's file source, for `checkpoints`,"):
        log = (checkpoint.path / "sources/0/1").read_text().splitlines()
        assert log[0] == LOG_HEADER and set(json.loads(log[1])) == {"path", "timestamp", "batchId"}
        assert {Path(path).name for path in checkpoint.files()} == {"0.json", "1.json", "2.json"}
    with canary("Hadoop's checksums, for damaged checkpoints (`hadoop_checksums`),"):
        assert (checkpoint.path / "offsets/.1.crc").exists() and not differs(
            tmp_path / "checkpoint/offsets/1"
        )
    with canary(
        "that a file source passes over what is in its own log, for `restore` (`Checkpoint.skip_files`),"
    ):
        restored = Checkpoint(tmp_path / "restored")
        read = checkpoint.position(1, after_batch=-1)
        restored.skip_files(dict(zip(read["files"], read["times"], strict=True)))
        assert len(go(tmp_path / "restored")) == 1


def test_the_source_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    session = run_session(spark, 1)
    delta_tables.create(
        path, Schema.from_json(T.StructType([T.StructField("x", T.LongType())]).json())
    )
    import pyarrow as pa

    for number in range(3):
        delta_tables.append_files(
            path, [sorted_file(path, pa.table({"x": [number]}))], {"rows": number}
        )
    seen = list[int]()
    idle = Idle()

    def go() -> list[int]:
        seen.clear()
        stream = (
            session.readStream.format("delta")
            .option("startingVersion", "0")
            .option("ignoreDeletes", "true")
            .load(str(path))
        )
        writer = stream.writeStream.foreachBatch(
            lambda frame, batch: seen.extend(row.x for row in frame.collect())
        )
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        return seen

    assert go() == [0, 1, 2]
    with canary("the offsets of Delta's source, for restore and retention,"):
        offset = json.loads(Checkpoint(tmp_path / "checkpoint").position(0)["offsets"][0])
        assert (offset["reservoirVersion"], offset["index"], offset["isStartingVersion"]) == (
            4,
            -1,
            False,
        )
    with canary("transaction marks of deltalake as Delta for Spark sees them,"):
        assert (
            '{"txn":{"appId":"rows","version":2}}'
            in (path / "_delta_log" / f"{3:020d}.json").read_text()
        )
        assert SparkTable.forPath(session, str(path)).toDF().count() == 3
    with canary("that Delta's source passes over commits without new rows, for `compaction`,"):
        from deltalake import DeltaTable

        table = DeltaTable(str(path))
        names = pa.table(table.get_add_actions())["path"].to_pylist()
        delta_tables.replace_files(
            table, path, names, sorted_file(path, pa.table({"x": [0, 1, 2]})), {"merged": 4}
        )
        assert go() == []
    with canary("onQueryIdle, for the ticks of live runs (`microbatches`),"):
        session.streams.addListener(idle)
        stream = session.readStream.format("delta").load(str(path))
        query = (
            stream.writeStream.foreachBatch(lambda frame, batch: None)
            .option("checkpointLocation", str(tmp_path / "idle"))
            .start()
        )
        try:
            query.processAllAvailable()
            for _ in range(100):
                if idle.seen:
                    break
                query.awaitTermination(0.1)
        finally:
            query.stop()
            session.streams.removeListener(idle)
        assert idle.seen
