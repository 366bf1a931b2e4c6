"""Small versioned files: what is written is read, and nothing else; among them the register, by which a run id goes on in one place only."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dpsql import record
from dpsql.errors import LakeError
from dpsql.lake.catch_up import CatchUp, Live
from dpsql.lake.engine_file import EngineFacts as EngineFile
from dpsql.lake.engine_file import Part
from dpsql.lake.overruns import Overruns
from dpsql.lake.restore_points import Point
from dpsql.lake.runs import Run
from dpsql.lake.savepoints import SavepointRecord as SavepointFile
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.cost import Cost, Overlap
from dpsql.privacy.declaration import declaration
from dpsql.privacy.ledger_line import Line, document, line_from
from dpsql.privacy.origin import Origin
from dpsql.privacy.register import Entry, RunRegister
from dpsql.sources.config import Source

RUN_ID = "5" * 32
COST = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.NONE, 0.25, 1e-9)
ORIGIN = Origin("l", ("path /data",), (6.0, 1e-9, 86_400_000_000), ("other",))
PARTS = {"admission": Part(1, 0, {0: 3, 12: 4}, "{}", None), "release": Part(2, 5, {}, None, 7)}
POINTS = {"admission": Point(3, {0: 3}, {"offsets": ["{}"]}), "release": Point(-1, {}, {})}
FILES: list[Any] = [
    Run(
        "visits",
        RUN_ID,
        "0" * 16,
        "c",
        "SELECT",
        {"query": {"epsilon": 6}},
        "2026-11-22",
        "toy",
        (0, 5),
        {},
        None,
        "l",
    ),
    Entry(RUN_ID, "/lake/private/visits", 7, "", {"time": "ts"}),
    Line(
        "visits",
        "visits",
        ("user_id",),
        COST,
        "WINDOW",
        3_600_000_000,
        0,
        6.0,
        1e-9,
        "0" * 16,
        RUN_ID,
        "run",
        "2026-11-22",
        ORIGIN,
    ),
    CatchUp(3, 8, 9, True, {"wikis": 4, "pages": "a"}),
    Live({"wikis": 4}, 1_000_000),
    EngineFile((4, 2), PARTS, ((2, 3),), False, {"admission": "id", "release": None}),
    SavepointFile("2026-11-22", (4, 2), POINTS, 3, None, ((2, 3),), (("admission", 1, 0, 3),)),
    Overruns(1, 2, 3, 4),
]
each_file = pytest.mark.parametrize(
    "value",
    FILES,
    ids=lambda value: f"{type(value).__module__.rpartition('.')[2]}.{type(value).__name__}",
)


@each_file
def test_what_is_written_is_read(value: Any, tmp_path: Path) -> None:
    record.write(tmp_path / "file.json", value, 5)
    assert record.load(tmp_path / "file.json", type(value), 5) == value


@each_file
def test_every_other_type_and_field_is_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    mutants = list(_mutants(json.loads(record.content(value, 5))))
    assert len(mutants) >= 8
    for mutant in mutants:
        path.write_text(json.dumps(mutant))
        with pytest.raises(LakeError, match=r"damaged; put it back|written by another release"):
            record.load(path, type(value), 5, "put it back")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "\0", '{"version": 5, "number": NaN}', "[" * 9_000]
)
def test_what_is_no_such_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(record.DamagedRecord, match="damaged; put back the original file"):
        record.load(path, Overruns, 5)
    assert record.load(tmp_path / "none.json", Overruns, 5) is None
    with pytest.raises(LakeError, match="Is a directory"):
        record.load(tmp_path, Overruns, 5)


def test_a_line_is_read_as_strictly() -> None:
    line = FILES[2]
    written = json.loads(json.dumps(document(line)))
    assert line_from(written) == line
    for mutant in _mutants(written):
        with pytest.raises((ValueError, TypeError, KeyError)):
            line_from(mutant)


def test_what_has_a_default_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    given = json.loads(record.content(FILES[0], 1))
    del given["ledger_id"], given["first_window_us"]
    path.write_text(json.dumps(given))
    assert record.load(path, Run, 1) == replace(FILES[0], ledger_id="", first_window_us=None)


@dataclass(frozen=True)
class _Numbered:
    counts: Mapping[int, float] = field(default_factory=dict)


@pytest.mark.parametrize("text", ["01", "1.0", " 1", "one", "1_0"])
def test_a_number_as_a_name_has_one_spelling(text: str) -> None:
    assert record.parse({"counts": {"10": 2.5}}, _Numbered) == _Numbered({10: 2.5})
    with pytest.raises(ValueError):
        record.parse({"counts": {text: 2.5}}, _Numbered)


def _mutants(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With one field of another type, or one more; a mapping of anything stays as it is."""
    yield given | {"more": 1}
    for name, value in given.items():
        for wrong in (True, 7, 0.5, "text", [], {}, [[]], float("nan")):
            if isinstance(wrong, type(value)) or name in ("plan", "detail"):
                continue
            if value is None or (
                isinstance(wrong, int | float)
                and isinstance(value, float)
                and wrong == wrong
                and wrong is not True
            ):
                continue
            if (
                name in ("closed_us", "cap", "first_window_us")
                and isinstance(wrong, int)
                and wrong is not True
            ):
                continue
            yield given | {name: wrong}
        if isinstance(value, dict) and name != "plan":
            for inner, more in value.items():
                if isinstance(more, dict):
                    yield from (
                        given | {name: value | {inner: mutant}} for mutant in _mutants(more)
                    )


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


def test_a_moved_lake_goes_on_and_a_copied_one_does_not(
    register: RunRegister, tmp_path: Path
) -> None:
    first = lake(tmp_path / "one")
    second = tmp_path / "two"
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


def test_a_lake_that_knows_less_than_was_published_is_refused(
    register: RunRegister, tmp_path: Path
) -> None:
    place = lake(tmp_path / "one")
    register.add(Entry(RUN, str(place)))
    register.check(RUN, -(1 << 62))  # nothing published: nothing to lose
    register.publishing(RUN, place, 19_700 * DAY)
    register.publishing(
        RUN, place, 19_699 * DAY
    )  # a repeated micro-batch does not turn the time back
    register.check(RUN, 19_700 * DAY)
    register.check(RUN, 19_701 * DAY)
    for less in (19_700 * DAY - 1, -(1 << 62)):
        with pytest.raises(
            LakeError,
            match=r"up to 2023-12-09T00:00:00Z.*deleted, or this is an older copy.*dpsql restore.*another --name",
        ):
            register.check(RUN, less)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        '{"version": 1, "run_id": "5a5a',
        "[]",
        {"version": 2},
        {"closed_us": "1"},
        {"run_id": "x"},
    ],
)
def test_a_damaged_entry_stops_the_run(
    register: RunRegister, damage: str | dict[str, object]
) -> None:
    register.add(Entry(RUN, "/lake", 5))
    path = register.folder / f"{RUN}.json"
    path.write_text(
        damage
        if isinstance(damage, str)
        else json.dumps({**json.loads(path.read_text()), **damage})
    )
    was = path.read_bytes()
    at = Path("/lake")
    for start in (
        lambda: register.check(RUN, 9),
        lambda: register.enter(RUN, at),
        lambda: register.publishing(RUN, at, 9),
    ):
        with pytest.raises(
            LakeError,
            match=rf"{RUN}\.json: (damaged; put back the original file|version 2 was written by another)",
        ):
            start()
    # It is never repaired by a guess.
    assert path.read_bytes() == was


def test_a_start_is_held_to_the_declaration_of_the_first(
    register: RunRegister, tmp_path: Path
) -> None:
    source = Source("s", "csv", "/data", schema="u STRING", options=(("sep", ";"),))
    place = lake(tmp_path / "one")
    register.add(Entry(RUN, str(place), declared=declaration(source)))
    register.enter(RUN, place, source)
    with pytest.raises(LakeError, match="options of the reader 'sep: ;'"):
        register.enter(RUN, place, replace(source, options=()))
