"""What a live run's polling interval may be, that one user's records move no tick, and that micro-batches which take too long are noted."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dpsql
from dpsql.errors import InputError, LakeError
from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import EventLog
from dpsql.lake.overruns import FILE, Overruns, read_overruns, write_overruns
from dpsql.lake.runs import Lake
from dpsql.mechanisms.registry import shape
from dpsql.schedule import by_window, polling_interval
from dpsql.sources.config import Source, Sources
from dpsql.streaming.live import Pace, Ticker
from dpsql.streaming.microbatches import NEVER_US
from dpsql.streaming.progress import Tally
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.view.standing import live_notes

MS = 1_000
SECOND = 1_000_000
MINUTE = 60_000_000
T0 = 1_800_000_000 * SECOND


def plan(trigger_ms: int, offset_ms: int = 0) -> Any:
    source = Source(
        name="visits", format="parquet", path="visits", event_time="ts", privacy_unit=("user_id",)
    )
    window = f"'{20 * trigger_ms} milliseconds', '{20 * trigger_ms} milliseconds', '{offset_ms} milliseconds'"
    sql = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '{trigger_ms} milliseconds')
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, {window}), page
"""
    return dpsql.compile(sql, Sources((source,))).plan


@pytest.mark.parametrize(
    ("trigger_ms", "offset_ms", "expected_ms"),
    [
        *(
            (10_000, 0, 1_000),
            (60_000, 0, 6_000),
            (600_000, 0, 60_000),
            (3_600_000, 0, 60_000),
            (86_400_000, 0, 60_000),
        ),
        *(
            (2_500, 0, 1_250),
            (1_000, 0, 1_000),
            (500, 0, 500),
            (7_000, 0, 1_000),
            (1_009_000, 0, 50_450),
            (11_003, 0, 11_003),
        ),
        *((60_000, 30_000, 6_000), (60_000, 4_000, 4_000), (60_000, 30, 30)),
    ],
)
def test_the_default_divides_trigger_interval_and_offset(
    trigger_ms: int, offset_ms: int, expected_ms: int
) -> None:
    interval = polling_interval(shape(plan(trigger_ms, offset_ms)).schedule)
    assert interval == expected_ms * MS
    assert trigger_ms * MS % interval == offset_ms * MS % interval == 0


def test_an_interval_that_does_not_divide_is_refused_with_those_that_do() -> None:
    minute = shape(plan(60_000)).schedule
    assert polling_interval(minute, 5 * SECOND) == 5 * SECOND
    assert polling_interval(minute, MINUTE) == MINUTE
    says = r"--interval 7 seconds does not divide trigger_interval 1 minute: .* Write 6 seconds or 7500 milliseconds, or leave it away \(6 seconds\)"
    with pytest.raises(InputError, match=says):
        polling_interval(minute, 7 * SECOND)
    with pytest.raises(InputError, match=r"Write 1 minute, or leave it away"):
        polling_interval(minute, 2 * MINUTE)
    with pytest.raises(
        InputError,
        match=r"trigger_interval 1 minute and the windows' offset 4 seconds: .* Write 4 seconds,",
    ):
        polling_interval(shape(plan(60_000, 4_000)).schedule, 5 * SECOND)
    odd = by_window(Grid(3_000, 3_000, 0, 1_500, 2))
    with pytest.raises(InputError, match="looks at its source at whole milliseconds"):
        polling_interval(odd)


@dataclass(frozen=True)
class Poll:
    """When it was due, how late it began, how long its listing took, whether others' records came, and whether its idleness was noticed."""

    due_us: int
    late_us: int
    listing_us: int
    others: bool
    noticed: bool


class World:
    """A live run's real ticker on polls that we make: what others' records see of the grid."""

    def __init__(self, compiled: Any, interval_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan = compiled
        self.interval_us = interval_us
        self.planned: list[int] = []
        self.ticks: list[int] = []
        self.seen: list[tuple[int, int]] = []
        self.wall_us = T0
        monkeypatch.setattr("dpsql.streaming.live.wall_us", lambda: self.wall_us)
        real = Contributions("unused", "5a" * 16, shape(self.plan).schedule, None, 1, 1)  # type: ignore[arg-type]
        table: Any = SimpleNamespace(
            closed_us=NO_CLOCK,
            schedule=real.schedule,
            tick_by_clock=lambda batch, now, latest: self.ticks.append(now) or 1,
        )
        checkpoint: Any = SimpleNamespace(
            newest_commit=None, time_us=lambda batch: self.planned[batch]
        )
        self.idle_us = NEVER_US
        self.ticker = Ticker(table, checkpoint, self.plan.query.max_ahead_us, interval_us)
        self.ticker.idle_since_us = lambda: self.idle_us
        self.ticker.begin(T0)

    def poll(self, poll: Poll, mine: bool) -> None:
        """It finds records of others, of u, or nothing; u's makes it last a little longer."""
        began_us = poll.due_us + poll.late_us
        ended_us = began_us + poll.listing_us + mine * self.interval_us // 100
        self.wall_us = ended_us
        if not (poll.others or mine):
            self.idle_us = began_us
            if poll.noticed:
                self.ticker.nothing_came(began_us)
            return
        self.planned.append(ended_us)
        batch = len(self.planned) - 1
        clock = self.ticker.clock(batch)
        if poll.others:
            query = self.plan.query
            self.seen.append(
                (
                    (clock.closed_us - query.window.offset_us) // query.trigger_interval_us,
                    clock.latest_us,
                )
            )
        self.wall_us = poll.due_us + self.interval_us - 1
        self.ticker.rows_are_there(batch, clock)


@pytest.mark.parametrize(
    ("trigger_ms", "offset_ms", "interval_ms", "listing_ms"),
    [
        # The first three are intervals that were accepted before.
        *((60_000, 0, 7_000, 1_200), (2_500, 0, 1_000, 600), (60_000, 30, 6_000, 40)),
        *(
            (60_000, 0, 6_000, 5_500),
            (2_500, 0, 1_250, 600),
            (60_000, 30, 30, 20),
            (60_000, 4_000, 4_000, 3_000),
        ),
    ],
)
def test_a_record_of_one_user_moves_no_tick_for_others(
    trigger_ms: int,
    offset_ms: int,
    interval_ms: int,
    listing_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While micro-batches are shorter than the interval. Catches: a tick at the time a micro-batch was planned, or at the time a poll began."""
    random.seed(7)
    compiled = plan(trigger_ms, offset_ms)
    interval_us = interval_ms * MS
    first = T0 // interval_us + 1 + max(0, trigger_ms // interval_ms - 40)
    polls = [
        Poll(
            (first + i) * interval_us,
            random.choice([3 * MS, interval_us // 20]),
            listing_ms * MS,
            random.random() < 0.4,
            random.random() < 0.5,
        )
        for i in range(240)
    ]

    def seen(mine: int | None) -> list[tuple[int, int]]:
        world = World(compiled, interval_us, monkeypatch)
        for i, poll in enumerate(polls):
            world.poll(poll, i == mine)
        return world.seen

    without = seen(None)
    assert len(set(without)) > 10
    for mine in range(len(polls)):
        assert seen(mine) == without, mine


def test_late_polls_are_noted_once(tmp_path: Path) -> None:
    """Catches: a note that grows, and time without a poll that nobody counts."""
    told: list[Any] = []
    tally = Tally(told.append, EventLog(tmp_path, "5a" * 16, "views"))
    pace = Pace(tmp_path, 5 * SECOND, tally)
    pace.note(T0 + 10_000, 4_900_000)
    # The next poll is due at a multiple of the interval, whenever this one began.
    assert not (tmp_path / FILE).exists()
    pace.note(T0 + 8 * SECOND, 2_100_000)
    size = (tmp_path / FILE).stat().st_size
    for turn in range(98):
        pace.note(T0 + (10 + 20 * turn) * SECOND + 100_000, 7_300_000)
        # One poll is not made while a micro-batch is at work, and each after it when it is due.
        for idle in (17_400, 20_010, 25_010):
            pace.note(T0 + 20 * turn * SECOND + idle * MS, 0)
    pace.write()
    end_us = T0 + (10 + 20 * 97) * SECOND + 7_400_000
    assert read_overruns(tmp_path) == Overruns(99, 7_300_000, end_us, 5 * SECOND)
    assert (tmp_path / FILE).stat().st_size <= size + 2
    assert [line.warning for line in told] == [Overruns(1, 2_100_000, 0, 5 * SECOND).summary()]
    assert tally.summary(stopped=True).overruns == 99
    # The next start counts on.
    again = Pace(tmp_path, 10 * SECOND, Tally(None, EventLog(tmp_path, "5a" * 16, "views")))
    again.note(T0, 10_001_000)
    again.write()
    assert read_overruns(tmp_path) == Overruns(100, 10_001_000, T0 + 10_001_000, 10 * SECOND)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(LakeError, match="damaged"):
        read_overruns(tmp_path)


def test_polls_that_could_not_be_made_are_overruns(tmp_path: Path) -> None:
    """Catches: a long first release, or a slow listing, that `show` and the summary do not know."""
    tally = Tally(None, EventLog(tmp_path, "5a" * 16, "views"))
    pace = Pace(tmp_path, 5 * SECOND, tally)
    pace.note(
        T0 + 36 * SECOND, 0
    )  # the newest reading of the backlog began; then the start releases
    pace.note(T0 + 127 * SECOND, 300_000)
    pace.write()
    assert read_overruns(tmp_path) == Overruns(1, 89 * SECOND, T0 + 125 * SECOND, 5 * SECOND)
    pace.note(T0 + 130 * SECOND, 0)
    pace.note(T0 + 148 * SECOND, 0)  # the poll before it listed for so long
    pace.note(T0 + 150 * SECOND, 0)
    assert tally.overruns == 2


def test_malformed_records_are_told_at_first_and_whenever_they_have_doubled(tmp_path: Path) -> None:
    tally = Tally(None, EventLog(tmp_path, "5a" * 16, "views"))
    told = []
    for batch in range(1000):
        tally.add_dropped({"malformed": 1})
        told += [batch] * tally.is_news()
    assert told == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]
    assert tally.dropped["malformed"] == 1000  # all are counted


def test_what_a_live_run_assumes_is_shown_with_what_was_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    folder = lake.private("views")
    folder.mkdir(parents=True)
    assert live_notes(lake, "views") == ()
    (folder / "live.json").write_text(json.dumps({"version": 1}))
    assert [note.split(":")[0] for note in live_notes(lake, "views")][1] == "every micro-batch did"
    write_overruns(folder, Overruns(12, 7_300_000, T0, 5 * SECOND))
    assumed, found = live_notes(lake, "views")
    assert assumed.endswith("takes less time than the polling interval")
    assert found.startswith(
        "12 times the run was still busy when the next poll was due (the polling interval is 5 s, the longest took 7.3 s)"
    )
