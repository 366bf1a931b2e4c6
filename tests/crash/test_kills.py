"""The points at which `python -m tests.crash.kill` kills a run; some of the kills are in `tests/long/crash`. In `make test`
`tests/streaming/test_interruptions.py` breaks off everywhere, and `tests/deployment/test_compose_job.py` kills a job."""

import importlib

from tests.crash.points import LIVE_POINTS, POINTS, SKETCH_POINTS

KILLED = -9


def test_points_are_many_and_in_the_product() -> None:
    assert len(POINTS) >= 24
    for point in (*SKETCH_POINTS.values(), *POINTS.values(), *LIVE_POINTS.values()):
        module, _, owner = point.owner.partition(":")
        found = importlib.import_module(module)
        assert callable(getattr(getattr(found, owner) if owner else found, point.name))
