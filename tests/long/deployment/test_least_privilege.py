"""Nobody but the run's user sees more than the histogram: planted ids, keys and secrets are searched for in all that Spark and dpsql show."""

import base64
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dpsql import jars
from dpsql.lake.runs import Lake, read_run
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from tests.deployment.commands import CHECKOUT, environment
from tests.deployment.observed_run import PLANTED_SETTING
from tests.deployment.other_user import blocks_of, listening, readable, shown_of
from tests.deployment.processes import children, free_ports, listens
from tests.deployment.workload import json_lines, visits, write_files, write_query

USER = "planted-user-5e1f"
RARE_KEY = "planted-rare-page-0c77"
SECRET = bytes(range(190, 222))


def forms(value: bytes) -> list[bytes]:
    """How bytes may turn up in a file: as they are, in hexadecimal, in base64."""
    plain = value.hex().encode()
    return [
        value,
        plain,
        plain.upper(),
        base64.b64encode(value).rstrip(b"="),
        base64.urlsafe_b64encode(value).rstrip(b"="),
    ]


@dataclass
class Seen:
    """What a stranger got of a job while it was at work."""

    blocks: dict[str, bytes] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    shown: bytes = b""
    looks: int = 0


def observed(
    folder: Path, query: Path, sources: Path, level: str
) -> tuple[subprocess.CompletedProcess[bytes], Seen]:
    port = free_ports(1)[0]
    command = [
        sys.executable,
        "-m",
        "tests.deployment.observed_run",
        str(folder),
        str(port),
        str(query),
        str(sources),
    ]
    seen = Seen()
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        job = subprocess.Popen(
            [*command, ",".join(map(str, jars.ensure())), level],
            env=environment(folder),
            cwd=CHECKOUT,
            stdout=out,
            stderr=err,
        )
        try:
            while job.poll() is None:
                seen.blocks |= blocks_of(job.pid)
                seen.files += readable(folder / "local")
                seen.shown += shown_of(job.pid)
                seen.looks += bool(listening(children(job.pid)))
        finally:
            job.kill()
            job.wait()
        done = subprocess.CompletedProcess(
            command, job.returncode, *(stream.seek(0) or stream.read() for stream in (out, err))
        )
    assert not listens(port)
    return done, seen


def found_in(folder: Path, needles: dict[str, list[bytes]]) -> list[str]:
    """Where the needles are; every regular file below the folder is read whole, and its name too."""
    hits = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = str(path.relative_to(folder)).encode() + b"\n" + path.read_bytes()
        hits += [
            f"{name} in {path.relative_to(folder)}"
            for name, given in needles.items()
            if any(one in content for one in given)
        ]
    return hits


def test_nothing_planted_is_shown_outside_the_private_folder(tmp_path: Path) -> None:
    """A run, and then one that fails in a worker; umask 022 and every display of Spark switched on, the first time its log at DEBUG, too."""
    folder = tmp_path / "observed"
    (folder / "secret").mkdir(parents=True)
    (folder / "secret" / "secret").write_bytes(SECRET)
    (folder / "secret" / "secret").chmod(0o600)
    planted = {"user_id": USER, "page": RARE_KEY, "ts": "2023-12-09T23:00:00Z", "seconds": 59.0}
    # the planted user also visits a page that is released, and breaks lines off in the middle
    lines = [
        *json_lines(visits()),
        *json_lines([planted, {**planted, "page": "p0"}]),
        json.dumps(planted).encode()[:-9],
    ]
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", lines, 2))
    done, seen = observed(folder, query, sources, "DEBUG")
    assert done.returncode == 0, done.stderr[-2000:]
    lake = Lake(folder / "lake")
    private = lake.private("observed")
    assert set(read_histogram(lake, "observed")["page"].to_pylist()) == {"p0", "p1", "p2"}
    assert [
        str(path)
        for path in (private.parent, private, *private.rglob("*"))
        if path.stat().st_mode & 0o077
    ] == []
    readable = [path for path in lake.histogram("observed").rglob("*") if path.is_file()]
    assert readable
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in readable)
    # a worker fails: what is said of it is in the event log and in the UI
    eras = [int(path.name.split("=")[1]) for path in (private / "contributions").glob("era=[0-9]*")]
    for later in range(1, 9):  # where the folder of a later era would be, there is a file
        (private / "contributions" / f"era={max(eras) + later}").touch()
    write_files(
        tmp_path / "visits" / "more", json_lines([{**planted, "ts": "2024-06-01T00:00:00Z"}])
    )
    os.rename(tmp_path / "visits" / "more" / "part-0.json", tmp_path / "visits" / "later.json")
    failed, again = observed(folder, query, sources, "OFF")
    assert failed.returncode == 1, failed.stderr.decode()[-600:]
    assert (
        failed.stderr.decode()
        .splitlines()[-1]
        .startswith("the admission query failed in a worker (FileExistsError EEXIST)")
    )
    for name, stream in {
        "1.out": done.stdout,
        "1.err": done.stderr,
        "2.out": failed.stdout,
        "2.err": failed.stderr,
    }.items():
        (folder / name).write_bytes(stream)
    run = read_run(lake, "observed")
    secret = Secret(SECRET).of_ledger(run.ledger_id)
    assert run.ledger_id != ""
    needles = {"the user": [USER.encode(), USER.encode().hex().encode()]}
    needles |= {
        "the rare key": [
            RARE_KEY.encode(),
            RARE_KEY.encode().hex().encode(),
            base64.b64encode(RARE_KEY.encode())[:-4],
        ]
    }
    needles |= {
        "the secret": forms(SECRET),
        "the noise key": forms(secret.noise_key(run.run_id, run.query_identity)),
    }
    needles |= {
        "the salt": forms(secret.salt(run.run_id)),
        "the setting": [PLANTED_SETTING.encode()],
    }
    # another user of the machine, all the time: no block, no file of Spark's, no setting in a command line
    for one in (seen, again):
        assert one.looks >= 2
        assert (one.blocks, one.files) == ({}, [])
        assert b"org.apache.spark.deploy.SparkSubmit" in one.shown
        (folder / f"shown-{one.looks}").write_bytes(one.shown)
    assert list((folder / "local").rglob("*.*")) == []
    # the search itself: the needles that private files must hold are found there, and the displays were really read
    assert {hit.split(" in ")[0] for hit in found_in(private / "contributions", needles)} == {
        "the rare key"
    }
    shown = (folder / "shown.txt").read_text()
    events = "".join(
        path.read_text(errors="replace")
        for path in (folder / "events").rglob("*")
        if path.is_file()
    )
    assert b" DEBUG " in done.stderr and len(done.stderr) > 500_000
    for text in (shown, events):
        assert "FlatMapGroupsInPandasWithState" in text or "bucket_of_users" in text
        assert "FileExistsError" in text or text is shown
    assert "=== /SQL/" in shown and "=== /environment/" in shown and "== Physical Plan ==" in shown
    shutil.rmtree(private)
    (folder / "secret" / "secret").unlink()
    assert found_in(folder, needles) == []
