"""A few of the kills of `python -m tests.crash.kill`, at the most telling points, and what they do where a protection is taken away."""

from pathlib import Path

from tests.crash.kill import Stage, broken, differences, left, verified
from tests.crash.points import HALF
from tests.crash.sliding import UnitStage
from tests.crash.test_kills import KILLED


def test_kills_leave_what_an_uninterrupted_run_leaves(tmp_path: Path) -> None:
    """The run is killed, and goes on as if it had not been."""
    stage = Stage(tmp_path / "stage", 1)
    stage.prepare()
    stage.bring(0)
    whole = stage.lake("whole")
    lake = stage.lake("killed")
    assert stage.start(stage.command(whole, 0)) == 0
    assert len(left(whole)["histogram"]) >= 3
    assert stage.start(stage.command(lake, 0), "admission: rows appended") == KILLED
    assert broken(lake) == []
    doubled, torn = (stage.copy(lake, name) for name in ("doubled", "torn"))
    assert stage.start(stage.command(lake, 0), "release: after the manifest") == KILLED
    assert broken(lake) == []
    assert stage.start(stage.command(lake, 0)) == 0
    assert differences(left(whole), left(lake)) == []
    # The same kill without a protection: the comparison tells.
    stage.environment = {"CRASH_WITHOUT": "transaction marks"}
    stage.start(stage.command(doubled, 0))
    assert "histogram" in differences(left(whole), left(doubled))
    stage.environment = {"CRASH_WITHOUT": "the atomic rename"}
    assert stage.start(stage.command(torn, 0), HALF) == KILLED
    assert [wrong for wrong in broken(torn) if wrong.endswith("is listed and torn")]


def test_kills_of_sliding_windows_leave_the_same_table(tmp_path: Path) -> None:
    """Units, correlated noise. `python -m tests.crash.sliding` kills more often, and a query that protects rows too."""
    stage = UnitStage(tmp_path / "stage", 1)
    stage.prepare()
    stage.bring(0)
    whole = stage.lake("whole")
    lake = stage.lake("killed")
    assert stage.start(stage.command(whole, 0)) == 0
    assert len(left(whole)["histogram"]) == 20  # five pages, windows that end from 6:00 to 12:00
    # Where the step is this mechanism's own; that rows come once is the same code for all.
    assert stage.start(stage.command(lake, 0), "release: after the step") == KILLED
    assert broken(lake, tables=stage.tables) == []
    assert stage.start(stage.command(lake, 0)) == 0
    assert differences(left(whole), left(lake)) == []
    assert verified(stage, lake).startswith("identical")
