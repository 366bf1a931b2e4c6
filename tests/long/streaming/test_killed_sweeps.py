"""Nights whose sweeps are killed, with damages, savepoints and restores after them. `python -m tests.crash.sweeps` has many of them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.sweeps import HOUR, SQL, killed_nights, reference, same

NIGHTS = 3
SEED = 5


def test_nights_with_killed_sweeps_publish_what_one_catch_up_does(
    case: Callable[..., Any], tmp_path: Path
) -> None:
    one = case(SQL, max_ahead_us=HOUR)
    whole = case(SQL, max_ahead_us=HOUR)
    told = list[str]()
    killed_nights(one, NIGHTS, random.Random(SEED), tmp_path / "sweep", told.append)
    reference(whole, NIGHTS)
    assert same(one, whole), told
    # What was drawn: a kill, a savepoint, a restore.
    assert all(
        any(word in line for line in told)
        for word in ("killed before", "saved=True", "continues after")
    ), told
