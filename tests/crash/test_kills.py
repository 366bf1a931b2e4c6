"""The points at which `python -m tests.crash.kill` kills a run; some of the kills are in `tests/long/crash`. In `make test`
`tests/streaming/test_interruptions.py` breaks off everywhere, and `tests/deployment/test_compose_job.py` kills a job."""

import importlib
import os
import signal
from pathlib import Path

import pytest

from dpsql.lake.runs import Lake, list_queries
from dpsql.privacy.ledger import Ledger
from tests.crash.points import LIVE_POINTS, POINTS, SKETCH_POINTS
from tests.unit.test_lake import SEAMS, break_off, opened

KILLED = -9


def test_points_are_many_and_in_the_product() -> None:
    assert len(POINTS) >= 24
    for point in (*SKETCH_POINTS.values(), *POINTS.values(), *LIVE_POINTS.values()):
        module, _, owner = point.owner.partition(":")
        found = importlib.import_module(module)
        assert callable(getattr(getattr(found, owner) if owner else found, point.name))


@pytest.mark.parametrize("seam", [SEAMS[0], SEAMS[2]], ids=str)
def test_a_killed_start_has_one_line(tmp_path: Path, seam: tuple[str, bool]) -> None:
    """Catches: what a start undoes when it fails, and cannot undo when it is killed."""
    child = os.fork()
    if not child:
        break_off(pytest.MonkeyPatch(), seam, lambda: os.kill(os.getpid(), signal.SIGKILL))
        opened(tmp_path)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    assert list_queries(Lake(tmp_path / "lake")) == ()
    run_id = opened(tmp_path)
    assert [line.run_id for line in Ledger(tmp_path / "ledger").lines()] == [run_id]
