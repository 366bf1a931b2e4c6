"""Two of the kills of `python -m tests.crash.kill`, at the most telling points. `tests/long/crash` has more."""

import importlib
from pathlib import Path

import pytest

from tests.crash.kill import Stage, broken, differences, left
from tests.crash.points import LIVE_POINTS, POINTS, SKETCH_POINTS

KILLED = -9


def killed_twice(folder: Path, *names: str) -> tuple[Stage, Path, list[Path]]:
    """A run that is killed and goes on as if it had not been. Returns where it was, what an uninterrupted run leaves, and copies of the lake
    from between the kills."""
    stage = Stage(folder, 1)
    stage.prepare()
    stage.bring(0)
    whole, lake = stage.lake("whole"), stage.lake("killed")
    assert stage.start(stage.command(whole, 0)) == 0
    assert len(left(whole)["histogram"]) >= 3
    for name in ("admission: rows appended", "release: after the manifest"):
        assert stage.start(stage.command(lake, 0), name) == KILLED
        assert broken(lake) == []
        if name == "admission: rows appended":
            between = [stage.copy(lake, one) for one in names]
    assert stage.start(stage.command(lake, 0)) == 0
    assert differences(left(whole), left(lake)) == []
    return stage, whole, between


@pytest.mark.jvm
def test_kills_leave_what_an_uninterrupted_run_leaves(tmp_path: Path) -> None:
    killed_twice(tmp_path / "stage")


def test_points_are_many_and_in_the_product() -> None:
    assert len(POINTS) >= 24
    for point in (*SKETCH_POINTS.values(), *POINTS.values(), *LIVE_POINTS.values()):
        module, _, owner = point.owner.partition(":")
        found = importlib.import_module(module)
        assert callable(getattr(getattr(found, owner) if owner else found, point.name))
