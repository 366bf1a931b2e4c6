"""How many triggers of a table without windows one start may close."""

import pytest

from dpsql.errors import InputError
from dpsql.parts.whole_table import schedule
from dpsql.schedule import AT_ONCE
from tests.mechanisms.dynamic import plans

SECOND = 1_000_000
LAST_US = plans.START + AT_ONCE * SECOND


def test_more_triggers_than_can_be_replayed_are_refused() -> None:
    """Catches: a start in 1970 with a trigger each second, which would not end; counting from the start what is closed already."""
    every_second = schedule(plans.query(trigger_interval_us=SECOND), plans.START)
    every_second.check_behind(LAST_US, plans.START)
    with pytest.raises(
        InputError, match=r"^100,001 triggers, .* go on in steps, the first with --until-caught-up --until 2026-01-02T03:46:40Z"
    ):
        every_second.check_behind(LAST_US + SECOND, plans.START)
    every_second.check_behind(LAST_US + SECOND, plans.START, plans.START + SECOND)
    with pytest.raises(InputError, match="2026-01-02T03:46:41Z"):
        every_second.check_behind(LAST_US + 2 * SECOND, plans.START, plans.START + SECOND)
    ending = schedule(plans.query(trigger_interval_us=SECOND, max_triggers=100), plans.START)
    ending.check_behind(LAST_US * 2, plans.START)
