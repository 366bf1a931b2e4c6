"""A lake in a bucket: the run, its small files and its tables over the S3 protocol, and nothing of the credentials in what is written."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner

from dpsql.errors import LakeError
from dpsql.files import Claim, ObjectPath, place, replace_file
from dpsql.jobs.cli import main
from dpsql.lake.opening import open_run
from dpsql.lake.running import exclusive, stop_requests
from dpsql.lake.runs import Lake, Run, list_queries
from dpsql.privacy.ledger import Ledger
from tests.deployment.object_store import ObjectStore
from tests.unit.test_lake import SEAMS, SECRET, SOURCE, break_off, compiled


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(autouse=True)
def _credentials(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def test_an_object_is_a_place_like_a_path(tmp_path: Path) -> None:
    for root in (place(tmp_path), place("s3a://lake/places")):
        folder = root / "a"
        file = root / "a" / "b.json"
        if isinstance(folder, Path):
            folder.mkdir()
        assert not file.exists()
        with pytest.raises(FileNotFoundError):
            file.read_bytes()
        replace_file(file, b"1")
        replace_file(file, b"22")
        assert (
            file.read_text(),
            file.exists(),
            file.is_file(),
            file.is_dir(),
            folder.is_dir(),
        ) == ("22", True, True, False, True)
        assert [entry.name for entry in folder.iterdir()] == ["b.json"]
        assert (str(file.parent), file.name) == (str(folder), "b.json")
        file.unlink()
        assert not file.exists()
    with pytest.raises(FileNotFoundError):
        list((place("s3a://lake") / "nothing").iterdir())


def test_a_file_is_claimed_once_in_a_bucket_too() -> None:
    """Catches: two starts that both make a file, and one that goes on with what the first has not claimed."""
    claim = Claim(ObjectPath("s3a://lake/once/run.json"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            claim.read_bytes()
        claim.create(b"first")
        claim.create(b"second")
        assert claim.read_bytes() == b"first"
        claim.remove()


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_a_broken_off_start_in_buckets_pays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: tuple[str, bool]
) -> None:
    """Catches: a start in a bucket that spends again for each time that it was killed."""
    lake = Lake(f"s3a://lake/seams{SEAMS.index(seam)}")
    ledger = Ledger(tmp_path / "ledger")

    def opened() -> str:
        return open_run(lake, "views", compiled(), SECRET, ledger, SOURCE).run_id

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        break_off(patch, seam)
        opened()
    run_id = opened()
    assert [line.run_id for line in ledger.lines()] == [run_id]
    assert [listed.run_id for listed in list_queries(lake)] == [run_id]


def test_a_lake_that_is_not_there_is_one_line() -> None:
    with pytest.raises(LakeError, match=r"no lake at s3a://lake/none"):
        list_queries(Lake("s3a://lake/none"))
    with pytest.raises(LakeError, match=r"the object store says NO_SUCH_BUCKET$"):
        list_queries(Lake("s3a://missing/none"))


def test_a_run_in_a_bucket_is_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a URI taken for a path, below which nobody is at work."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the lock of a run in a bucket is
    lake = Lake("s3a://lake/stopped")
    stop = Event()
    begun = Event()
    run = Run(
        "visits",
        "5a" * 16,
        "identity",
        "check",
        "SELECT",
        {},
        "2026-01-01",
        "histogram",
        (0, 3_600_000_000),
        {},
    )
    replace_file(
        lake.private("visits") / "run.json", json.dumps({"version": 1, **asdict(run)}).encode()
    )

    def work() -> None:
        with exclusive(lake.private("visits")), stop_requests(lake.private("visits"), stop):
            begun.set()
            assert stop.wait(30)

    command = ["stop", "visits", "--lake", "s3a://lake/stopped"]
    idle = CliRunner().invoke(main, command)
    assert (idle.exit_code, "'visits' is not running" in idle.output) == (2, True)
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        assert begun.wait(30)
        done = CliRunner().invoke(main, command)
        worker.result()
    assert (done.exit_code, done.output) == (0, "visits has stopped\n")
