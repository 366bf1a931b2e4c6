"""Settings that would let others read salt, noise key or rows are refused before anything is bound; and how settings reach Spark."""

import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsql.errors import ConfigError
from dpsql.jobs.run_query import spark_properties
from dpsql.streaming import protection, session


@pytest.mark.parametrize("name", protection.SETTINGS)
def test_a_protection_that_is_off_is_refused(name: str) -> None:
    protection.check_settings({})
    protection.check_settings({name: "TRUE"})
    with pytest.raises(ConfigError, match=rf"^{name} is false: .*start it with `{name} true`"):
        protection.check_settings({name: "false"})


def test_tls_may_take_the_place_of_encryption_by_the_secret() -> None:
    protection.check_settings({protection.NETWORK: "false", protection.TLS: "true"})
    with pytest.raises(ConfigError, match=r"spark\.authenticate is false"):
        protection.check_settings({protection.AUTHENTICATE: "false", protection.TLS: "true"})


def test_event_logs_go_where_not_everybody_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        protection, "closed", lambda path, mode_bits: not path.stat().st_mode & mode_bits
    )  # pytest's own folders are closed
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}"}
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"exact totals: chmod 700 {tmp_path}$"):
        protection.check_settings(settings)
    protection.check_settings(settings | {"spark.eventLog.enabled": "false"})
    protection.check_settings(settings | {"spark.eventLog.dir": "hdfs://host/logs"})
    tmp_path.chmod(0o750)
    protection.check_settings(settings)


@pytest.mark.parametrize(
    ("master", "itself"),
    [
        *((own, True) for own in ("local", "local[2]", "yarn", "k8s://https://h:1")),
        ("spark://h:1", False),
        ("local-cluster[1,1,1]", False),
    ],
)
def test_who_makes_the_secret(master: str, itself: bool) -> None:
    assert protection.makes_secret(master) is itself


class Context:
    """A session of the caller's, as far as it is looked at."""

    def __init__(
        self,
        folder: Path,
        authenticated: bool = True,
        disk: bool = True,
        network: bool = False,
        master: str = "local[2]",
    ) -> None:
        security = SimpleNamespace(
            isAuthenticationEnabled=lambda: authenticated,
            isEncryptionEnabled=lambda: network,
            isSslRpcEnabled=lambda: False,
            getIOEncryptionKey=lambda: SimpleNamespace(isDefined=lambda: disk),
        )
        blocks = SimpleNamespace(
            diskBlockManager=lambda: SimpleNamespace(localDirs=lambda: [folder])
        )
        environment = SimpleNamespace(securityManager=lambda: security, blockManager=lambda: blocks)
        configured = SimpleNamespace(getBoolean=lambda *_: False)
        context = SimpleNamespace(
            env=lambda: environment, getConf=lambda: configured, master=lambda: master
        )
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))
        self._jvm = SimpleNamespace(
            py4j=SimpleNamespace(GatewayServer=SimpleNamespace(turnLoggingOff=lambda: None))
        )


def test_an_adopted_session_without_a_protection_is_refused_by_its_name(tmp_path: Path) -> None:
    for name, given in {
        protection.AUTHENTICATE: Context(tmp_path, authenticated=False),
        protection.DISK: Context(tmp_path, disk=False),
        protection.NETWORK: Context(tmp_path, master="spark://h:1"),
    }.items():
        with pytest.raises(
            ConfigError, match=rf"^this Spark session was started without {name}: .*`{name} true`"
        ):
            protection.protect(given)  # type: ignore[arg-type]
    protection.protect(Context(tmp_path, network=True, master="local[1]"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        (
            {"spark://a:1": 6066},
            r"^the master spark://a:1 runs .* to its port 6066, .*`spark\.master\.rest\.enabled false`",
        ),
        ({"spark://a:1": None, "spark://b:2": 7}, r"^the master spark://b:2 runs .* port 7, "),
        ({}, r"^spark://a:1,b:2 does not say whether"),
        ({"spark://b:2": None}, None),
    ],
)
def test_a_master_that_runs_the_programs_of_strangers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ports: dict[str, int | None],
    message: str | None,
) -> None:
    """Asked of every one of several masters, of which one may be down."""
    monkeypatch.setattr(protection.internals, "submission_port", lambda _, master: ports[master])
    there = Context(tmp_path, network=True, master="spark://a:1,b:2")
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        protection.protect(there)  # type: ignore[arg-type]


def test_local_folders_of_an_adopted_session_are_closed_with_all_that_is_in_them(
    tmp_path: Path,
) -> None:
    within = tmp_path / "blockmgr" / "0c"
    within.mkdir(parents=True)
    for folder in (within.parent, within):
        folder.chmod(0o755)
    protection.protect(Context(within.parent))  # type: ignore[arg-type]
    assert [folder.stat().st_mode & 0o777 for folder in (within.parent, within)] == [0o700, 0o700]
    with pytest.raises(ConfigError, match="cannot be closed"):
        protection.protect(Context(tmp_path / "gone"))  # type: ignore[arg-type]


def test_py4j_logs_no_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    protection.protect(Context(tmp_path))  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG):
        for name in protection.LOGGERS:
            logging.getLogger(name).debug("Command to send: c\nnoise key")
    assert caplog.text == ""


def test_pyspark_logs_no_text_of_a_query() -> None:
    """In a process of its own: pyspark's logger writes to the error stream of the moment when it is made."""
    code = """
from types import SimpleNamespace
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.base import QueryContextType
from dpsql.streaming import protection
server = SimpleNamespace(turnLoggingOff=lambda: None)
if {hushed}:
    protection.hush(SimpleNamespace(_jvm=SimpleNamespace(py4j=SimpleNamespace(GatewayServer=server))))
for kind in QueryContextType:
    context = SimpleNamespace(contextType=lambda: kind, callSite=lambda: "a.py:1", fragment=lambda: "SELECT secret")
    AnalysisException("SELECT secret", contexts=[context])._log_exception()
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code.format(hushed=hushed)],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for hushed in (False, True)
    ]
    assert said[0].count("SELECT secret") >= 2
    assert said[1] == ""


def test_settings_reach_a_new_jvm_by_a_file_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    assert session._local_folders({})["spark.local.dir"].startswith(
        f"{tmp_path}/dpsql-{os.getuid()}/run-"
    )
    with monkeypatch.context() as patched:
        patched.setattr(session, "scratch", lambda *_: Path('/a "b"'))
        java = shlex.split(
            session._temporary_files({session.JAVA_OPTIONS: "-Dmine=1"})[session.JAVA_OPTIONS]
        )
    assert java == [
        '-Djava.io.tmpdir=/a "b"',
        '-Dio.netty.native.workdir=/a "b"',
        "-XX:+PerfDisableSharedMem",
        "-Dmine=1",
    ]
    with session._by_file({"spark.a": " b\\c=d\ne", "spark.f#": "1"}):
        words = os.environ["PYSPARK_SUBMIT_ARGS"].split()
        assert words[:2] == ["--load-spark-defaults", "--properties-file"] and words[3:] == [
            "--verbose",
            "pyspark-shell",
        ]
        file = Path(words[2])
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == "spark.a=\\ b\\\\c\\=d\\ne\nspark.f\\#=1\n"
        assert "SPARK_LOCAL_DIRS" not in os.environ
    assert not file.exists()
    assert (os.environ["PYSPARK_SUBMIT_ARGS"], os.environ["SPARK_LOCAL_DIRS"]) == (
        "--verbose pyspark-shell",
        str(tmp_path),
    )


@pytest.mark.parametrize(
    "form",
    [
        "--properties-file mine.conf pyspark-shell",
        "--verbose --properties-file=mine.conf pyspark-shell",
    ],
)
def test_another_properties_file_is_refused_by_its_cause(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Spark takes one file: ours would not be read, and what it protects be missed later without a word of why."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", form)
    with (
        pytest.raises(
            ConfigError,
            match=r"^PYSPARK_SUBMIT_ARGS has --properties-file, .*`dpsql run --properties-file",
        ),
        session._by_file({}),
    ):
        pass
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == form


def test_a_standalone_cluster_without_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SparkContext", SimpleNamespace(_ensure_initialized=lambda: None))
    monkeypatch.setattr(session, "SparkConf", lambda: SimpleNamespace(contains=lambda _: False))
    with pytest.raises(
        ConfigError,
        match=r"^spark://h:1 needs spark\.authenticate\.secret, the same as its master and workers have",
    ):
        session._started({"spark.master": "spark://h:1"}, None)


def test_a_properties_file_with_a_credential_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.conf"
    path.write_text("spark.authenticate.secret abc\nspark.jars x.jar\n")
    path.chmod(0o644)
    with pytest.raises(
        ConfigError,
        match=rf"others may read it, and it has spark.authenticate.secret: chmod 600 {path}",
    ):
        spark_properties(path)
    path.chmod(0o600)
    assert spark_properties(path)["spark.authenticate.secret"] == "abc"
