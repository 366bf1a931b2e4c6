"""A live run loses no record that it has not looked for: where nobody polled, and where files are left unread."""

import json
from pathlib import Path

import pytest

from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import EventLog
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.sources.config import Source
from dpsql.streaming import sources
from dpsql.streaming.live import Ticker, UnreadFiles
from dpsql.streaming.progress import Tally
from dpsql.udfs.grid import NO_CLOCK
from tests.live.test_ticker import SECOND, T0, checkpoint, contributions, plan, planned, ticks

__all__ = ["checkpoint", "contributions", "plan"]


@pytest.mark.parametrize("first_poll", [127, 500])
def test_a_long_first_release_closes_nothing(
    contributions: Contributions, checkpoint: Checkpoint, first_poll: int
) -> None:
    """Catches: time in which a start releases passes for a poll that found nothing, and its records come late."""
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND)
    ticker.begin(T0 + 35 * SECOND)
    clock = ticker.clock(planned(checkpoint, 0, T0 + first_poll * SECOND))
    assert clock.closed_us == T0 + 34 * SECOND
    ticker.rows_are_there(0, clock)
    assert ticker.closed_us == T0 + first_poll // 2 * 2 * SECOND


def read_files(checkpoint: Checkpoint, batch: int, second: int, files: int) -> int:
    """Write what Spark writes before it runs a micro-batch of files."""
    log = checkpoint.path / "sources/0"
    log.mkdir(parents=True, exist_ok=True)
    entry = {"timestamp": 1, "batchId": batch}
    entries = [json.dumps({"path": f"file:///v/{batch}-{i}", **entry}) for i in range(files)]
    (log / str(batch)).write_text("\n".join(["v1", *entries]))
    times = json.dumps({"batchTimestampMs": (T0 + second * SECOND) // 1000})
    (checkpoint.path / f"offsets/{batch}").write_text(f'v1\n{times}\n{{"logOffset":{batch}}}')
    return batch


def test_a_cut_micro_batch_closes_nothing(
    contributions: Contributions, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Catches: a tick at the poll of a micro-batch that left files unread; what is in them comes late."""
    (tmp_path / "private/views").mkdir(parents=True)
    events = EventLog(tmp_path / "private/views", "5a" * 16, "views")
    warnings: list[str | None] = []
    tally = Tally(lambda report: warnings.append(report.warning), events)
    source = Source("visits", "json", options=(("MaxFilesPerTrigger", "2"),))
    ticker = Ticker(
        contributions,
        checkpoint,
        10 * SECOND,
        2 * SECOND,
        is_cut=UnreadFiles(source, checkpoint, tally),
    )
    ticker.rows_are_there(0, ticker.clock(read_files(checkpoint, 0, 2, files=2)))
    assert warnings == []  # what is stored is read in many micro-batches
    ticker.begin(NO_CLOCK)
    closed = {}
    for batch, files in enumerate([2, 3, 1, 2, 1], start=1):
        second = 10 + 2 * batch
        clock = ticker.clock(read_files(checkpoint, batch, second, files))
        ticker.rows_are_there(batch, clock)
        closed[batch] = (clock.closed_us, ticker.closed_us)
    seconds = {second: T0 + second * SECOND for second in (16, 18, 20)}
    assert closed[1] == closed[2] == (NO_CLOCK, NO_CLOCK)
    assert closed[3] == (NO_CLOCK, seconds[16])
    assert closed[4] == (seconds[16], seconds[16])
    assert ticks(contributions) == [(3, 16), (5, 20)]
    # Told when it begins, and when it begins again.
    assert [str(warning)[:61] for warning in warnings] == 2 * [
        "source 'visits': the source brings more files than are read, "
    ]


def test_a_poll_that_found_nothing_ends_what_was_cut(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    """Catches: records of files that were left unread counted as late, or no window closed ever after."""
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND, is_cut=lambda batch: True)
    ticker.begin(NO_CLOCK)
    for batch, second in enumerate([12, 24]):
        clock = ticker.clock(planned(checkpoint, batch, T0 + second * SECOND))
        ticker.rows_are_there(batch, clock)
        assert (clock.closed_us, ticker.closed_us) == (NO_CLOCK, NO_CLOCK)
    ticker.nothing_came(T0 + 26 * SECOND)
    assert ticks(contributions) == [(1, 26)]


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [
        ("delta", {}, {"maxFilesPerTrigger": "999999999"}),
        (
            "delta",
            {"MaxFilesPerTrigger": "5", "x": "y"},
            {"x": "y", "maxFilesPerTrigger": "999999999"},
        ),
        ("iceberg", {"streaming-max-files-per-micro-batch": "5", "x": "y"}, {"x": "y"}),
        ("kafka", {"subscribe": "t"}, {"subscribe": "t"}),
        ("json", {"maxFilesPerTrigger": "5"}, {"maxFilesPerTrigger": "5"}),
    ],
)
def test_a_poll_reads_whole_what_shows_no_cut(
    form: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    """Catches: a poll of a table that leaves commits unread, which nothing shows."""
    source = Source("visits", form, options=tuple(given.items()))
    assert dict(sources.without_limit(source).options) == expected
    assert sources.has_hidden_limit(source) is (given != expected)
    assert (sources.most_live_files(source) is None) is (form != "json")
