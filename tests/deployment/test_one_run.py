"""One run as an operator starts it, over planted totals: what Spark adds to what is given out, and where its JVM writes meanwhile."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dpsql
from dpsql import jars
from dpsql.jobs.status import ALARM
from dpsql.lake.event_log import FILE
from tests.deployment.commands import SMALL_SPARK, environment
from tests.deployment.processes import children
from tests.local.test_exact_totals import RECORDS, SOURCE, UNTIL, Seen, listed, plant
from tests.observed import check_line


def written(pid: int, ours: tuple[Path, ...]) -> set[str]:
    """What a process and its children hold open or mapped in the system's temporary folder, besides what is ours. The JVMs that only say how to
    start Spark's, or their version, know nothing of a run."""
    found = set[str]()
    for process in children(pid):
        try:
            if re.search(
                rb"launcher[.]Main|-version", Path(f"/proc/{process}/cmdline").read_bytes()
            ):
                continue
            links = [os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()]
            links += re.findall(r"(?m) (/tmp/.*)$", Path(f"/proc/{process}/maps").read_text())
        except OSError:
            continue  # it has ended
        found |= {
            link
            for link in links
            if link.startswith("/tmp/")
            and not any(Path(link).is_relative_to(each) for each in ours)
        }
    return found


def test_spark_gives_out_no_total_and_leaves_nothing_beside_the_scratch_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: totals in what Spark logs or reports; libraries, counters and folders of the JVM in a temporary folder that others share."""
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sources.yaml").write_text(SOURCE)
    (tmp_path / "spark.conf").write_text(
        f"{SMALL_SPARK}spark.jars {','.join(map(str, jars.ensure()))}\n"
    )
    (temporary := tmp_path / "tmp").mkdir()
    query = ("--sources", "sources.yaml")
    secret = ("--secret-file", str(tmp_path / "keys/secret"))
    files = (
        "--log",
        "log",
        "--metrics",
        "metrics",
        "--properties-file",
        "spark.conf",
        "--master",
        "local[1]",
        "--buckets",
        "1",
    )
    words = (
        "run",
        "q.sql",
        *query,
        *secret,
        "--lake",
        "lake",
        "--until-caught-up",
        "--until",
        UNTIL,
        *files,
    )
    ours = (tmp_path, jars.CONF.parent, Path(sys.prefix), jars.ensure()[0].parent)
    beside = set[str]()
    looks = 0
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        env = environment(tmp_path, TMPDIR=str(temporary))
        job = subprocess.Popen(
            [sys.executable, "-m", "dpsql.jobs.cli", *words], env=env, stdout=out, stderr=err
        )
        while job.poll() is None:
            beside |= written(job.pid, ours) | {path.name for path in temporary.iterdir()}
            looks += len(children(job.pid)) > 1
            time.sleep(0.1)
    assert job.returncode == 0, (tmp_path / "err").read_text()
    assert looks > 20 and beside == {f"dpsql-{os.getuid()}"}
    assert list(temporary.glob("*/*")) == []
    seen = Seen()
    lake = ("q", "--lake", "lake")
    for label, flags in (("plain", ()), ("json", ("--json",))):
        seen.command("status", "q", *lake[1:], *flags, code=ALARM)  # many records are malformed
        for command, *more in (
            ("show",),
            ("verify", *query, *secret),
            ("restore", *query, *secret),
            ("savepoint", label),
        ):
            seen.command(command, "q", *more, *lake[1:], *flags)
        seen.command("status", *lake[1:], *flags)
    private = Path("lake/private/q")
    for called, path in (
        ("--log", Path("log")),
        ("--metrics", Path("metrics")),
        (FILE, private / FILE),
    ):
        seen.text(called, path.read_text())
    for path in (
        Path("out"),
        Path("err"),
        private / "spark.log",
        *Path("lake/public").rglob("*.json"),
    ):
        seen.text(str(path), path.read_text())
    events = [json.loads(line) for line in Path("log").read_text().splitlines()]
    for event in events:
        check_line(event)
    assert [event["kind"] for event in events if event["kind"] != "alarm"] == [
        "start",
        "micro_batch",
        "release",
        "end",
    ]
    assert [
        (event["triggers"], event["rows"]) for event in events if event["kind"] == "release"
    ] == [(4, len(dpsql.latest("lake", "q")) * 4)]
    assert re.findall(r"(?m)^dpsql_records_total\{.*\} (\d+)$", Path("metrics").read_text()) == [
        str(RECORDS)
    ]
    assert not any(text in Path("log").read_text() for text in ('"u', "/p", "/q"))
    assert seen.found == {
        (kind, where) for kind, where in listed(False) if where in (FILE, "--log", "--metrics")
    }
