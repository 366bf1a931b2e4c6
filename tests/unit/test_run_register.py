"""The register: a run id goes on only in one place, and only where everything it has published is known."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpsql.config import Source
from dpsql.errors import LakeError
from dpsql.privacy.declaration import declaration
from dpsql.privacy.register import Entry, RunRegister

RUN = "ab" * 16
DAY = 86_400_000_000


@pytest.fixture
def register(tmp_path: Path) -> RunRegister:
    return RunRegister(tmp_path / "ledger" / "runs")


def lake(folder: Path, run_id: str = RUN) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"run_id": run_id}))
    return folder


def test_an_entry_comes_back_and_is_made_once(register: RunRegister) -> None:
    assert register.find(RUN) is None
    register.add(Entry(RUN, "/lake", 5, "x"))
    assert register.find(RUN) == Entry(RUN, "/lake", 5, "x")
    assert (register.folder / f"{RUN}.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(LakeError, match="a run id is used once"):
        register.add(Entry(RUN))
    for bad in ("", "..", "AB" * 16, "../" + RUN, RUN + "\n"):
        with pytest.raises(LakeError, match="32 hexadecimal digits"):
            register.find(bad)


def test_a_run_that_nobody_registered_does_not_start(register: RunRegister, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"older than the lake.*dpsql restore \w+ .*--ledger"):
        register.enter(RUN, lake(tmp_path / "one"))


def test_a_moved_lake_goes_on_and_a_copied_one_does_not(register: RunRegister, tmp_path: Path) -> None:
    first, second = lake(tmp_path / "one"), tmp_path / "two"
    register.add(Entry(RUN, str(first)))
    shutil.copytree(first, second)
    with pytest.raises(LakeError, match=r"is in two lakes, .*one and .*two.*another --name"):
        register.enter(RUN, second)
    register.enter(RUN, first)
    (tmp_path / "link").symlink_to(first)
    register.enter(RUN, tmp_path / "link")  # another path to the same folder
    shutil.rmtree(first)
    assert register.enter(RUN, second).place == str(second)
    lake(tmp_path / "one")
    with pytest.raises(LakeError, match="is in two lakes"):
        register.enter(RUN, first)  # the old place came back: the run lives in the new one
    with pytest.raises(LakeError, match="started at another place"):
        register.publishing(RUN, first, DAY)
    lake(tmp_path / "two", "cd" * 16)  # another run took the place
    register.enter(RUN, first)


def test_a_lake_that_knows_less_than_was_published_is_refused(register: RunRegister, tmp_path: Path) -> None:
    place = lake(tmp_path / "one")
    register.add(Entry(RUN, str(place)))
    register.check(RUN, -(1 << 62))  # nothing published: nothing to lose
    register.publishing(RUN, place, 19_700 * DAY)
    register.publishing(RUN, place, 19_699 * DAY)  # a repeated micro-batch does not turn the time back
    register.check(RUN, 19_700 * DAY)
    register.check(RUN, 19_701 * DAY)
    for less in (19_700 * DAY - 1, -(1 << 62)):
        with pytest.raises(
            LakeError, match=r"up to 2023-12-09T00:00:00Z.*deleted, or this is an older copy.*dpsql restore.*another --name"
        ):
            register.check(RUN, less)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        '{"version": 1, "run_id": "5a5a',
        "[]",
        "null",
        {"version": 2},
        {"closed_us": "1"},
        {"closed_us": True},
        {"run_id": "x"},
        {"more": 1},
    ],
)
def test_a_damaged_entry_stops_the_run(register: RunRegister, damage: str | dict[str, object]) -> None:
    register.add(Entry(RUN, "/lake", 5))
    path = register.folder / f"{RUN}.json"
    path.write_text(damage if isinstance(damage, str) else json.dumps({**json.loads(path.read_text()), **damage}))
    was = path.read_bytes()
    for start in (
        lambda: register.check(RUN, 9),
        lambda: register.enter(RUN, Path("/lake")),
        lambda: register.publishing(RUN, Path("/lake"), 9),
    ):
        with pytest.raises(LakeError, match=rf"{RUN}\.json: (damaged; put back the original file|version 2 was written by another)"):
            start()
    # It is never repaired by a guess.
    assert path.read_bytes() == was


def test_a_start_is_held_to_the_declaration_of_the_first(register: RunRegister, tmp_path: Path) -> None:
    source = Source("s", "csv", "/data", schema="u STRING", options=(("sep", ";"),))
    place = lake(tmp_path / "one")
    register.add(Entry(RUN, str(place), declared=declaration(source)))
    register.enter(RUN, place, source)
    with pytest.raises(LakeError, match="options of the reader 'sep: ;'"):
        register.enter(RUN, place, replace(source, options=()))
