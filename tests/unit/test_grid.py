"""The trigger grid by enumeration, before 1970 as well."""

import numpy as np
import pytest

from dpsql.errors import InputError
from dpsql.parts.whole_table import schedule
from dpsql.schedule import AT_ONCE
from dpsql.udfs.grid import NO_CLOCK, Grid
from tests.mechanisms.dynamic import plans
from tests.reference import trigger_of, windows_of

GRIDS = [
    Grid(12, 12, 0, 4, 3), Grid(12, 12, 5, 5, 3), Grid(12, 12, -7, 12, 2), Grid(12, 12, 1, 1, 14), Grid(12, 4, 0, 4, 3),
    Grid(12, 5, 3, 5, 4), Grid(12, 1, 0, 1, 12),
]  # fmt: skip
TIMES = list(range(-40, 41))


@pytest.mark.parametrize("grid", GRIDS)
def test_windows_and_triggers_by_enumeration(grid: Grid) -> None:
    """Catches: division that rounds towards zero (times before 1970), a record at a grid point counted at that point, not the next."""
    ts = np.array(TIMES)
    record, window = grid.windows_of(ts)
    pairs = [(i, w) for i, t in enumerate(TIMES) for w in windows_of(t, grid)]
    assert list(zip(record.tolist(), window.tolist(), strict=True)) == pairs
    assert all(
        w <= TIMES[i] < w + grid.window_us and (w - grid.offset_us) % grid.slide_us == 0
        for i, w in pairs
    )
    own = grid.own_trigger(ts[record], window)
    assert own.tolist() == [trigger_of(TIMES[i], w, grid, NO_CLOCK) for i, w in pairs]
    assert grid.latest_window(ts).tolist() == [windows_of(t, grid)[0] for t in TIMES]


@pytest.mark.parametrize("grid", GRIDS)
def test_closed_triggers_by_counting(grid: Grid) -> None:
    """Catches: a trigger that counts as closed before its time, or not at it."""
    starts = np.array(sorted({w for t in TIMES for w in windows_of(t, grid)}))
    for closed in (NO_CLOCK, *TIMES, 1 << 61):
        counted = [
            sum(w + i * grid.trigger_us <= closed for i in range(1, grid.horizon + 1))
            for w in starts.tolist()
        ]
        assert grid.closed_triggers(starts, closed).tolist() == counted


@pytest.mark.parametrize("grid", GRIDS)
def test_a_period_is_over_only_when_every_window_of_its_records_is(grid: Grid) -> None:
    """Catches: eviction while a record of the period could still be admitted: its allowance would renew."""
    periods = grid.period(np.array(TIMES)).tolist()
    last = {
        p: max(
            w for t, q in zip(TIMES, periods, strict=True) if q == p for w in windows_of(t, grid)
        )
        for p in set(periods)
    }
    for period, window in last.items():
        end = window + grid.horizon * grid.trigger_us
        assert not grid.period_is_over(np.array([period]), end - 1)[0]
        assert grid.period_is_over(np.array([period]), end + 3 * grid.window_us)[0]
        if grid.slide_us == grid.window_us:
            assert grid.period_is_over(np.array([period]), end)[0]


@pytest.mark.parametrize("grid", GRIDS)
def test_periods_are_as_long_as_windows(grid: Grid) -> None:
    """Catches: periods that overlap or leave gaps, so that a record has two allowances or none."""
    period = grid.period(np.array(TIMES))
    assert all(p <= t < p + grid.window_us for p, t in zip(period.tolist(), TIMES, strict=True))
    assert set(((period - grid.offset_us) % grid.window_us).tolist()) == {0}


def test_far_times_do_not_overflow() -> None:
    """Event times up to 2^61 and the clock before any tick. Catches: int64 that wraps round to a window in range."""
    grid = Grid(86_400_000_000, 86_400_000_000, 3_600_000_000, 60_000_000, 1440)
    for t in ((1 << 61) - 1, -(1 << 61) + 1):
        ((start,),) = (grid.latest_window(np.array([t])).tolist(),)
        assert start <= t < start + grid.window_us
        assert grid.closed_triggers(np.array([start]), NO_CLOCK).tolist() == [0]
        assert 1 <= grid.own_trigger(np.array([t]), np.array([start]))[0] <= 1440


SECOND = 1_000_000
LAST_US = plans.START + AT_ONCE * SECOND


def test_more_triggers_than_can_be_replayed_are_refused() -> None:
    """Catches: a start in 1970 with a trigger each second, which would not end; counting from the start what is closed already."""
    every_second = schedule(plans.query(trigger_interval_us=SECOND), plans.START)
    every_second.check_behind(LAST_US, plans.START)
    with pytest.raises(
        InputError,
        match=r"^100,001 triggers, .* go on in steps, the first with --until-caught-up --until 2026-01-02T03:46:40Z",
    ):
        every_second.check_behind(LAST_US + SECOND, plans.START)
    every_second.check_behind(LAST_US + SECOND, plans.START, plans.START + SECOND)
    with pytest.raises(InputError, match="2026-01-02T03:46:41Z"):
        every_second.check_behind(LAST_US + 2 * SECOND, plans.START, plans.START + SECOND)
    ending = schedule(plans.query(trigger_interval_us=SECOND, max_triggers=100), plans.START)
    ending.check_behind(LAST_US * 2, plans.START)
