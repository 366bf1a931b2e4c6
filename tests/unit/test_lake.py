"""The lake: a name is bound to one query, one run and one secret; nothing foreign is touched and nothing is shown too widely."""

import errno
import json
import os
import pkgutil
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpsql
from dpsql import record
from dpsql.errors import BudgetError, LakeError
from dpsql.lake.lost_ledger import record_run
from dpsql.lake.new_run import begin_new_run, finish_new_run
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake, list_queries, read_run
from dpsql.lake.status import status
from dpsql.privacy.declaration import declaration
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import newest, read_histogram
from dpsql.sources.config import Cap, Source, Sources
from tests.described import described, write
from tests.unit.test_ledger import LINE

SOURCE = Source(
    "visits",
    "parquet",
    "/nowhere",
    event_time="ts",
    privacy_unit=("user_id",),
    schema="user_id STRING, ts TIMESTAMP, page STRING",
)
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {}, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 8)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page
"""
SECRET = Secret(bytes(32))


def compiled(epsilon: float = 6) -> dpsql.Query:
    return dpsql.compile(SQL.format(epsilon), Sources((SOURCE,)))


def opened(
    folder: Path,
    name: str = "views",
    epsilon: float = 6,
    secret: Secret = SECRET,
    source: Source = SOURCE,
) -> str:
    return open_run(
        Lake(folder / "lake"), name, compiled(epsilon), secret, Ledger(folder / "ledger"), source
    ).run_id


def published(folder: Path, name: str = "views") -> None:
    day = [datetime(2026, 1, d, tzinfo=UTC) for d in (1, 1, 1, 2)]
    frame = {
        "window_start": day,
        "window_end": day,
        "trigger": pd.array([1, 2, 2, 1], "int32"),
        "trigger_time": day,
    }
    rows = pd.DataFrame(
        {**frame, "page": ["a", "b", None, "a"], "views": [1, 2, 3, 4], "views_stderr": 1.5}
    )
    write(Lake(folder / "lake").histogram(name), rows, described(rows.columns))


def test_a_run_is_made_once_and_found_again(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert len(first) == 32
    assert opened(tmp_path) == first
    assert [line.run_id for line in Ledger(tmp_path / "ledger").lines()] == [first]
    run = read_run(Lake(tmp_path / "lake"), "views")
    assert run.query_identity == compiled().plan.identity
    assert run.plan["mu"] == compiled().plan.mu
    assert opened(tmp_path, name="other") != first


def test_only_the_histogram_is_for_everybody(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        opened(tmp_path)
    finally:
        os.umask(before)
    modes = {
        path: (tmp_path / "lake" / path).stat().st_mode & 0o777
        for path in ("public", "private", "private/views", "private/views/run.json")
    }
    assert modes == {
        "public": 0o755,
        "private": 0o700,
        "private/views": 0o700,
        "private/views/run.json": 0o600,
    }
    text = (tmp_path / "lake/private/views/run.json").read_text()
    assert bytes(32).hex() not in text


def test_an_open_private_folder_is_closed_and_a_foreign_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    private = tmp_path / "lake" / "private" / "views"
    private.chmod(0o755)
    opened(tmp_path)
    assert private.stat().st_mode & 0o777 == 0o700
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LakeError, match="belongs to another user"):
        opened(tmp_path)


def test_another_query_or_secret_is_refused_and_spends_nothing(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(LakeError) as caught:
        opened(tmp_path, epsilon=5)
    for part in (compiled(6).plan.identity, compiled(5).plan.identity, "another --name or --lake"):
        assert part in str(caught.value)
    with pytest.raises(LakeError, match=r"started with another secret.*--secret-file"):
        opened(tmp_path, secret=Secret(b"x" * 32))
    assert len(Ledger(tmp_path / "ledger").lines()) == 1


def test_a_run_that_another_version_planned_is_refused_by_name(tmp_path: Path) -> None:
    """The same query with other numbers."""
    opened(tmp_path)
    path = tmp_path / "lake" / "private" / "views" / "run.json"
    kept = json.loads(path.read_text()) | {"query_identity": "0" * 64}
    for feed in ({}, {"feed": {"form": "DELTA", "primary_key": ["account"]}}):
        kept["plan"]["query"] |= feed
        path.write_text(json.dumps(kept))
        with pytest.raises(
            LakeError,
            match=r"another version of dpsql.*another plan of the same query: verify it with that version.*another --name",
        ):
            opened(tmp_path)
    assert len(Ledger(tmp_path / "ledger").lines()) == 1


SEAMS = [
    ("dpsql.files.Claim.create", True),
    ("dpsql.privacy.ledger.seal_lines", False),
    ("dpsql.privacy.ledger.Ledger.append", True),
    ("dpsql.privacy.register.RunRegister.add", False),
    ("dpsql.privacy.register.RunRegister.add", True),
    ("dpsql.lake.opening.replace_file", False),
    ("dpsql.lake.opening.replace_file", True),
]
"""The ends of the steps of a new run's start: a call, and whether it is made before the start is broken off."""


def interrupt() -> None:
    """End a start by what nothing in the product may catch."""
    raise KeyboardInterrupt


def break_off(
    patch: pytest.MonkeyPatch, seam: tuple[str, bool], end: Callable[[], None] = interrupt
) -> None:
    """End whoever comes there."""
    target, is_made = seam
    call = pkgutil.resolve_name(target)

    def breaking(*given: Any, **named: Any) -> None:
        if is_made:
            call(*given, **named)
        end()

    patch.setattr(target, breaking)


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_a_broken_off_start_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: tuple[str, bool]
) -> None:
    """Catches: a ledger line whose run id nobody finds again, so that the next start spends once more."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        break_off(patch, seam)
        opened(tmp_path)
    is_bound = seam == ("dpsql.lake.opening.replace_file", True)
    assert len(list_queries(Lake(tmp_path / "lake"))) == is_bound
    run_id = opened(tmp_path)
    ledger = Ledger(tmp_path / "ledger")
    assert [line.run_id for line in ledger.lines()] == [run_id]
    assert [path.stem for path in ledger.register.folder.iterdir()] == [run_id]
    assert {*os.listdir(tmp_path / "lake/private/views")} <= {"run.json", ".run.json"}


@pytest.mark.parametrize("seam", SEAMS[:-1], ids=str)
def test_another_query_takes_no_paid_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: tuple[str, bool]
) -> None:
    """Catches: a claim without a line that blocks its name, and one with a line that another query forgets or takes over."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        break_off(patch, seam)
        opened(tmp_path)
    if seam != SEAMS[0]:
        for other in ({"epsilon": 5}, {"source": replace(SOURCE, path="/elsewhere")}):
            with pytest.raises(LakeError, match=r"belongs to another query.*another --name"):
                opened(tmp_path, **other)  # type: ignore[arg-type]
        opened(tmp_path)
    else:
        opened(tmp_path, epsilon=5)
    assert len(Ledger(tmp_path / "ledger").lines()) == 1


def full_disk() -> None:
    """Fail as a write to a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["files.create_file", "privacy.ledger.create_file", "privacy.register.create_file", "lake.opening.replace_file"])  # fmt: skip
def test_a_full_disk_spends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Catches: four starts on a full disk that spend the cap of four runs."""
    for _ in range(4):
        with monkeypatch.context() as patch, pytest.raises((LakeError, BudgetError)):
            break_off(patch, (f"dpsql.{step}", False), full_disk)
            opened(tmp_path)
    run_id = opened(tmp_path)
    assert [line.run_id for line in Ledger(tmp_path / "ledger").lines()] == [run_id]


@pytest.mark.parametrize("seam", [*SEAMS, ("pathlib.Path.rename", True)], ids=str)
def test_a_broken_off_new_run_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: tuple[str, bool]
) -> None:
    """Catches: `restore --new-run` that spends again for each time that it was killed."""
    old = opened(tmp_path)
    lake, ledger = Lake(tmp_path / "lake"), Ledger(tmp_path / "ledger")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        break_off(patch, seam)
        begin_new_run(lake, "views", compiled(), SECRET, ledger)
    run = finish_new_run(lake, "views") or begin_new_run(lake, "views", compiled(), SECRET, ledger)
    assert [line.run_id for line in ledger.lines()] == [old, run.run_id]
    assert opened(tmp_path) == run.run_id


def test_a_refused_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: an empty folder of a run that was refused, which `dpsql status` calls damaged."""
    poor = replace(SOURCE, cap=Cap(0.1, 1e-9, 86_400_000_000))
    with pytest.raises(BudgetError, match="would exceed the cap"):
        opened(tmp_path, source=poor)
    assert not (tmp_path / "lake").exists()
    monkeypatch.setattr(Ledger, "check", lambda *_: None)  # another run takes the rest meanwhile
    with pytest.raises(BudgetError, match="would exceed the cap"):
        opened(tmp_path, source=poor)
    assert os.listdir(tmp_path / "lake/private") == []
    with pytest.raises(LakeError, match="no query 'views'"):
        status(Lake(tmp_path / "lake"), "views")


def test_a_lake_that_is_away_is_no_new_lake(tmp_path: Path) -> None:
    """Catches: a disk that is not mounted, taken for a new lake, whose run spends again."""
    run_id = opened(tmp_path)
    ledger = Ledger(tmp_path / "ledger")
    (tmp_path / "lake").rename(tmp_path / "disk")
    (tmp_path / "lake").mkdir()
    says = "ledger line 1 is a run of this name here, released {}, .* mounted.*another --name"
    with pytest.raises(LakeError, match=says.format("nothing")):
        opened(tmp_path)
    entry = ledger.register.find(run_id)
    assert entry is not None
    record.write(ledger.register.folder / f"{run_id}.json", replace(entry, closed_us=0), 1)
    with pytest.raises(LakeError, match=says.format("up to 1970-01-01T00:00:00Z")):
        opened(tmp_path)
    assert os.listdir(tmp_path / "lake") == []
    (tmp_path / "lake").rmdir()
    (tmp_path / "disk").rename(tmp_path / "lake")
    assert opened(tmp_path) == run_id
    shutil.rmtree(tmp_path / "lake")
    assert opened(tmp_path, name="other") != run_id


def test_starters_at_once_share_one_run(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(lambda _: opened(tmp_path), range(12)))) == 1


def _edit(**changes: object) -> Callable[[Path], None]:
    return lambda path: (
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes})) and None
    )  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda path: (path.unlink(), (path.parent / "contributions").mkdir()),
            "run.json is missing, but .*contributions exists",
        ),
        (lambda path: path.write_text("{"), "damaged; put back"),
        (lambda path: path.write_bytes(b"\xff"), "damaged; put back"),
        (lambda path: path.write_text("[]"), "damaged; put back"),
        (_edit(version=2), "version 2 was written by another release"),
        (_edit(run_id="zz"), "damaged; put back"),
        (_edit(name="other"), "damaged; put back"),
        (_edit(more=1), "damaged; put back"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_lost_or_damaged_run_file_stops_everything(
    tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    opened(tmp_path)
    damage(tmp_path / "lake" / "private" / "views" / "run.json")
    with pytest.raises(LakeError, match=says):
        opened(tmp_path)
    assert len(Ledger(tmp_path / "ledger").lines()) == 1


def test_a_histogram_without_a_run_is_never_continued(tmp_path: Path) -> None:
    published(tmp_path)
    with pytest.raises(LakeError, match=r"run\.json is missing"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a.b", "x" * 101, "a\n"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(LakeError, match="letters, digits, _ and - only"):
        opened(tmp_path, name=name)


@pytest.mark.parametrize(
    "given",
    [
        "s3://bucket/lake",
        "gs://bucket/lake",
        "s3a:/lake",
        "s3a://",
        "s3a://bucket/lake?region=x",
        "hdfs://h/lake",
        "file:///lake",
    ],
)
def test_other_places_are_refused(given: str) -> None:
    with pytest.raises(
        LakeError, match="give a folder, or a bucket and a prefix like s3a://bucket/lake"
    ):
        Lake(given)


def test_a_lake_in_a_bucket_is_named_by_uri() -> None:
    lake = Lake("s3a://bucket/some/lake/")
    assert str(lake.histogram("demo")) == "s3a://bucket/some/lake/public/demo"
    assert str(lake.private("demo")) == "s3a://bucket/some/lake/private/demo"


def test_reading_what_was_published(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with pytest.raises(LakeError, match="no lake at"):
        list_queries(lake)
    with pytest.raises(LakeError, match=r"no query 'views'.*dpsql status"):
        read_histogram(lake, "views")
    run_id = opened(tmp_path)
    assert [(q.name, q.run_id, q.state) for q in list_queries(lake)] == [
        ("views", run_id, "started")
    ]
    with pytest.raises(LakeError, match="has published nothing yet"):
        read_histogram(lake, "views")
    published(tmp_path)
    assert read_histogram(lake, "views").num_rows == 4
    assert newest(lake, "views").frame["views"].tolist() == [
        2,
        3,
        4,
    ]  # the last trigger of each window
    (tmp_path / "lake/private/views/run.json").write_text("{")
    assert [q.state for q in list_queries(lake)] == ["unreadable"]
    (tmp_path / "lake/public/views/_delta_log/00000000000000000000.json").write_text("{")
    with pytest.raises(LakeError, match="cannot be read"):
        read_histogram(lake, "views")


def test_one_run_in_two_lakes_is_refused_and_a_moved_lake_goes_on(tmp_path: Path) -> None:
    """A copied run.json, or a copied lake, would publish the same noise twice; a rename is no copy."""
    run_id = opened(tmp_path)
    other = Lake(tmp_path / "other")
    shutil.copytree(tmp_path / "lake", tmp_path / "other")
    with pytest.raises(LakeError, match="is in two lakes"):
        open_run(other, "views", compiled(), SECRET, Ledger(tmp_path / "ledger"), SOURCE)
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "lake").rename(tmp_path / "other")
    assert (
        open_run(other, "views", compiled(), SECRET, Ledger(tmp_path / "ledger"), SOURCE).run_id
        == run_id
    )
    assert opened(tmp_path) != run_id  # the old place is free: a new run, with its line
    assert len(Ledger(tmp_path / "ledger").lines()) == 2


def test_another_name_and_another_lake_are_new_runs(tmp_path: Path) -> None:
    """Catches: a run that goes on, or its budget come back, because its lake was deleted."""
    first = opened(tmp_path)
    shutil.rmtree(tmp_path / "lake")
    second = opened(tmp_path, name="other")
    third = open_run(
        Lake(tmp_path / "other"), "views", compiled(), SECRET, Ledger(tmp_path / "ledger"), SOURCE
    ).run_id
    assert [line.run_id for line in Ledger(tmp_path / "ledger").lines()] == [first, second, third]
    assert len({first, second, third}) == 3
    capped = replace(SOURCE, cap=Cap(7, 1e-6, 86_400_000_000))
    with pytest.raises(BudgetError, match="would exceed the cap"):
        opened(tmp_path, name="fourth", source=capped)


def _shorten(ledger: Path) -> None:
    """As a backup from before the run: neither its line nor its seal is there yet."""
    (ledger / "000001.json").unlink()
    (ledger / "seals").unlink()


@pytest.mark.parametrize(
    "lose",
    [shutil.rmtree, _shorten, lambda ledger: shutil.rmtree(ledger / "runs")],
    ids=["all", "older", "register"],
)
def test_a_ledger_that_does_not_know_the_run_stops_it_until_it_is_recorded(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """A lost ledger, a backup older than the lake, a secret copied without its ledger: nothing goes on, and nothing is forgotten."""
    run_id = opened(tmp_path)
    published(tmp_path)
    lake = Lake(tmp_path / "lake")
    ledger = Ledger(tmp_path / "ledger", SECRET)
    before = ledger.lines()
    lose(tmp_path / "ledger")
    with pytest.raises(LakeError, match=r"older than the lake.*dpsql restore \w+ .*--ledger"):
        opened(tmp_path)
    run = read_run(lake, "views")
    capped = replace(SOURCE, cap=Cap(0.1, 1e-9, 86_400_000_000))
    assert record_run(lake, run, compiled(), ledger, capped)  # spent is spent
    recorded = ledger.register.find(run_id)
    assert recorded is not None and recorded.declared == declaration(
        capped
    )  # before its next start, too, it has one input
    assert not record_run(lake, run, compiled(), ledger, capped)
    assert opened(tmp_path, source=capped) == run_id
    assert (
        read_run(lake, "views").ledger_id
        == before[0].origin.ledger_id
        == ledger.lines()[0].origin.ledger_id
        != ""
    )  # its noise is kept
    assert [replace(line, created="", origin=LINE.origin) for line in ledger.lines()] == [
        replace(line, created="", origin=LINE.origin) for line in before
    ]
    entry = ledger.register.find(run_id)
    closed = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000
    assert entry is not None and entry.closed_us == (None if lose is _shorten else closed)


def test_a_run_of_which_nothing_is_left_is_not_recorded(tmp_path: Path) -> None:
    """Catches: a lost ledger and a lost lake together would free a run id for other input."""
    opened(tmp_path)
    run = read_run(Lake(tmp_path / "lake"), "views")
    shutil.rmtree(tmp_path / "ledger")
    with pytest.raises(LakeError, match=r"nothing is left but run\.json.*another --name"):
        record_run(
            Lake(tmp_path / "lake"), run, compiled(), Ledger(tmp_path / "ledger", SECRET), SOURCE
        )
    (tmp_path / "lake/private/views/contributions").mkdir()
    with pytest.raises(LakeError, match=r"the histogram of 'views' .* is lost"):
        record_run(
            Lake(tmp_path / "lake"), run, compiled(), Ledger(tmp_path / "ledger", SECRET), SOURCE
        )
