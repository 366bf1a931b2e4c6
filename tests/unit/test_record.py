"""Small versioned files: what is written is read, and nothing else."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dpsql import record
from dpsql.errors import LakeError
from dpsql.lake.catch_up import CatchUp, Live
from dpsql.lake.engine_file import Kept as EngineFile
from dpsql.lake.engine_file import Part
from dpsql.lake.overruns import Overruns
from dpsql.lake.restore_points import Point
from dpsql.lake.runs import Run
from dpsql.lake.savepoints import Kept as SavepointFile
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.cost import Cost, Overlap
from dpsql.privacy.ledger_line import Line, document, line_from
from dpsql.privacy.origin import Origin
from dpsql.privacy.register import Entry

RUN_ID = "5" * 32
COST = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.NONE, 0.25, 1e-9)
ORIGIN = Origin("l", ("path /data",), (6.0, 1e-9, 86_400_000_000), ("other",))
PARTS = {"admission": Part(1, 0, {0: 3, 12: 4}, "{}", None), "release": Part(2, 5, {}, None, 7)}
POINTS = {"admission": Point(3, {0: 3}, {"offsets": ["{}"]}), "release": Point(-1, {}, {})}
FILES: list[Any] = [
    Run("visits", RUN_ID, "0" * 16, "c", "SELECT", {"query": {"epsilon": 6}}, "2026-11-22", "toy", (0, 5), {}, None, "l"),
    Entry(RUN_ID, "/lake/private/visits", 7, "", {"time": "ts"}),
    Line("visits", "visits", ("user_id",), COST, "WINDOW", 3_600_000_000, 0, 6.0, 1e-9, "0" * 16, RUN_ID, "run", "2026-11-22", ORIGIN),
    CatchUp(3, 8, 9, True, {"wikis": 4, "pages": "a"}),
    Live({"wikis": 4}, 1_000_000),
    EngineFile((4, 2), PARTS, ((2, 3),), False, {"admission": "id", "release": None}),
    SavepointFile("2026-11-22", (4, 2), POINTS, 3, None, ((2, 3),), (("admission", 1, 0, 3),)),
    Overruns(1, 2, 3, 4),
]
each_file = pytest.mark.parametrize("value", FILES, ids=lambda value: f"{type(value).__module__.rpartition('.')[2]}.{type(value).__name__}")


@each_file
def test_what_is_written_is_read(value: Any, tmp_path: Path) -> None:
    record.write(tmp_path / "file.json", value, 5)
    assert record.read(tmp_path / "file.json", type(value), 5) == value


@each_file
def test_every_other_type_and_field_is_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    given = json.loads(record.content(value, 5))
    mutants = list(_mutants(given))
    assert len(mutants) >= 8
    for mutant in mutants:
        path.write_text(json.dumps(mutant))
        with pytest.raises(LakeError, match=r"damaged; put it back|written by another release"):
            record.read(path, type(value), 5, "put it back")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "\0", '{"version": 5, "number": NaN}', "[" * 9_000])
def test_what_is_no_such_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(record.DamagedFile, match="damaged; put back the original file"):
        record.read(path, Overruns, 5)
    assert record.read(tmp_path / "none.json", Overruns, 5) is None
    with pytest.raises(LakeError, match="Is a directory"):
        record.read(tmp_path, Overruns, 5)


def test_a_line_is_read_as_strictly() -> None:
    line = FILES[2]
    written = json.loads(json.dumps(document(line)))
    assert line_from(written) == line
    for mutant in _mutants(written):
        with pytest.raises((ValueError, TypeError, KeyError)):
            line_from(mutant)
    for wrong in ({"size_us": 0}, {"declared_epsilon": -1.0}, {"period": "STREAM"}, {"period": "DAY"}):
        with pytest.raises(ValueError):
            line_from(written | wrong)


def test_what_has_a_default_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    given = json.loads(record.content(FILES[0], 1))
    del given["ledger_id"], given["first_window_us"]
    path.write_text(json.dumps(given))
    assert record.read(path, Run, 1) == replace(FILES[0], ledger_id="", first_window_us=None)


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
            if value is None or (isinstance(wrong, int | float) and isinstance(value, float) and wrong == wrong and wrong is not True):
                continue
            if name in ("closed_us", "cap", "first_window_us") and isinstance(wrong, int) and wrong is not True:
                continue
            yield given | {name: wrong}
        if isinstance(value, dict) and name != "plan":
            for inner, more in value.items():
                if isinstance(more, dict):
                    yield from (given | {name: value | {inner: mutant}} for mutant in _mutants(more))
