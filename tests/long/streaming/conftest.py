"""The same small runs as in `tests/streaming`."""

from tests.streaming.conftest import _wall_clock, case, visits, write

__all__ = ["_wall_clock", "case", "visits", "write"]
