"""A source or a lake at an address where nobody answers: one line with the address, exit code 2 (of a broker 1), within seconds, nothing spent
and nothing made."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpsql.errors import DataError
from dpsql.jobs.cli import main
from dpsql.sources import reachable
from dpsql.sources.config import Source
from dpsql.sources.reachable import check_reachable
from dpsql.text import without_credentials
from tests.deployment.object_store import ObjectStore

NOBODY = "127.0.0.1:1"
AWAY = f"http://{NOBODY}"
NO_BROKER = f"no Kafka broker answers at {NOBODY} (Connection refused). Is `kafka.bootstrap.servers` right at"
NO_BUCKET = (
    "'visits': s3a://wrong/visits at sources.visits.path: the object store says NO_SUCH_BUCKET"
)
SOURCES = """\
sources:
  visits:
    {}
    schema: user_id STRING, ts TIMESTAMP, page STRING
    event_time: ts
    privacy_unit: user_id
    max_users: 1000
    max_keys: 1000
"""
BUCKET = "format: parquet\n    path: s3a://{}/visits"
FOLDER = "format: parquet\n    path: visits"
BROKER = "format: kafka\n    value_format: json\n    options: {{kafka.bootstrap.servers: '{}', subscribe: visits}}"
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> None:
    monkeypatch.setattr(reachable, "PATIENCE", 0.5)
    for name, value in {**store.environment, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("declared", "lake", "endpoint", "says"),
    [
        (BROKER.format(NOBODY), "lake", None, NO_BROKER),
        (
            BROKER.format("nowhere.invalid:9"),
            "lake",
            None,
            "no Kafka broker answers at nowhere.invalid:9 (",
        ),
        (
            BUCKET.format("lake"),
            "lake",
            AWAY,
            "s3a://lake/visits at sources.visits.path: the object store is not reached (Failed to",
        ),
        (FOLDER, "lake", None, "visits at sources.visits.path: No such file or directory"),
        (BUCKET.format("me:pw@wrong"), "lake", None, NO_BUCKET),
        (
            BUCKET.format("wrong"),
            "lake",
            None,
            "s3a://wrong/visits at sources.visits.path: the object store says NO_SUCH_BUCKET",
        ),
        (
            FOLDER,
            "s3a://lake/lake",
            AWAY,
            "lake s3a://lake/lake: the object store is not reached (Failed to connect to 127.0.0.1",
        ),
        (
            FOLDER,
            "s3a://wrong/lake",
            None,
            "lake s3a://wrong/lake: the object store says NO_SUCH_BUCKET",
        ),
    ],
)
def test_nobody_answers(
    declared: str,
    lake: str,
    endpoint: str | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    done = run(tmp_path, declared, lake, monkeypatch)
    # A broker may answer later
    assert (
        done.exit_code == (1 if "no Kafka broker" in says else 2)
        and says in done.output
        and done.output.count("\n") <= 1
    ), done.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "q.sql",
        "sources.yaml",
        "spark.conf",
    }  # no secret, no ledger, no lake


def run(folder: Path, declared: str, lake: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        "dpsql.jobs.run_query.start_session", lambda *_: pytest.fail("Spark is started")
    )
    Path("q.sql").write_text(SQL)
    Path("sources.yaml").write_text(SOURCES.format(declared))
    Path("spark.conf").touch()
    words = [
        "run",
        "q.sql",
        "--sources",
        "sources.yaml",
        "--secret-file",
        "keys/secret",
        "--lake",
        lake,
        "--properties-file",
        "spark.conf",
    ]
    return CliRunner().invoke(main, [*words, "--until-caught-up"])


def test_one_broker_that_answers_is_enough_and_it_may_come_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = Source(
            "visits",
            "kafka",
            options=(("kafka.bootstrap.servers", f"{NOBODY}, PLAINTEXT://127.0.0.1:{port}"),),
        )
        reachable.check_reachable([source], as_here=True)
    with pytest.raises(DataError, match=f"answers at {NOBODY} .*; 127.0.0.1:{port} "):
        reachable.check_reachable([source], as_here=True)
    late = socket.socket()
    late.bind(("127.0.0.1", 0))
    monkeypatch.setattr(reachable, "sleep", lambda _: late.listen())
    with late:
        source = Source(
            "visits",
            "kafka",
            options=(("kafka.bootstrap.servers", f"127.0.0.1:{late.getsockname()[1]}"),),
        )
        reachable.check_reachable([source], as_here=True)


@pytest.mark.parametrize(
    "path", ["/nowhere/*.parquet", "/nowhere/{a,b}", "hdfs://host/nowhere", "memory"]
)
def test_a_path_that_only_spark_can_look_up_is_left_to_spark(path: str) -> None:
    check_reachable(
        [Source("visits", "parquet", path), Source("pages", "other", "/nowhere")], as_here=True
    )
    check_reachable([Source("visits", "parquet", "/nowhere")], as_here=False)
    with pytest.raises(
        DataError,
        match=r"'visits': file:/nowhere at sources\.visits\.path: No such file or directory",
    ):
        check_reachable([Source("visits", "delta", "file:/nowhere")], as_here=True)


@pytest.mark.parametrize(
    "address",
    [
        "s3a://me:p/w@bucket/visits",
        "s3a://bucket/visits?key=pw",
        "s3a://me:pw@bucket/visits?a=pw&b=/pw",
    ],
)
def test_credentials_in_an_address_are_not_printed(address: str) -> None:
    assert without_credentials(address) == "s3a://bucket/visits"
    for plain in (
        "/data/a:b@c",
        "abfss://visits@account.dfs.core.windows.net/a",
        "/data/day?.parquet",
        "s3a://bucket/day=?/x",
    ):
        assert without_credentials(plain) == plain


def test_a_bucket_that_spark_reaches_otherwise_is_left_to_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches: a source refused that Spark's own settings would have found."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{NOBODY}")
    reachable.check_reachable([Source("visits", "parquet", "s3a://lake/visits")], as_here=False)
    reachable.check_reachable(
        [Source("visits", "parquet", "s3a://lake/visits", options=(("fs.s3a.endpoint", "x"),))],
        as_here=True,
    )
