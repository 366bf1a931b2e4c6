"""What the operator is told while a run works: counts and rates, never anything of one key or one user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsql.compiled import UNTIL, Query
from dpsql.lake.event_log import EventLog, dropped_much
from dpsql.streaming.formats import KINDS
from dpsql.udfs.grid import NO_CLOCK

NAMED = 10
"""How many names of files are reported."""


@dataclass(frozen=True)
class Progress:
    """One report.

    Args:
        stage: `reading` (stored input), `running` (live), `releasing` or `done`.
        records: records read so far by this start.
        records_per_second: of the newest micro-batch.
        triggers: triggers published so far by this start.
        rows: rows published so far by this start.
        dropped: reason -> records, so far.
        warning: a line for the operator, or None.
    """

    stage: str
    records: int = field(repr=False)
    records_per_second: float = field(repr=False)
    triggers: int
    rows: int
    dropped: Mapping[str, int] = field(repr=False)
    warning: str | None = None


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Summary:
    """The counts of one start. `dropped` holds the reasons that occurred.

    A micro-batch repeated after a crash counts again, and so do records that Spark reads again because it has lost an executor.

    `overruns` counts how often a live start was still at work when the next poll was due. `not_read` counts the files of the source
    that the run has not read when a catch-up ends, `not_read_names` has the first of them.
    """

    records: int = field(repr=False)
    triggers: int
    rows: int
    dropped: dict[str, int] = field(repr=False)
    stopped: bool = False
    overruns: int = 0
    not_read: int = 0
    not_read_names: tuple[str, ...] = ()


@dataclass(repr=False)
class Tally:
    """Running counts of one start, told to a listener after every micro-batch and written to the log of events."""

    listener: Listener | None
    events: EventLog
    stage: str = "reading"
    records: int = 0
    rate: float = 0.0
    triggers: int = 0
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    overruns: int = 0
    _told_malformed: int = 0
    _of_batch: dict[int, dict[str, int]] = field(default_factory=dict)
    _batch: int = -1
    _closed_us: int | None = None

    def begin(self, batch: int) -> None:
        """Count the drops from here on for this micro-batch of query 1, in Spark's numbers."""
        self._batch = batch
        self._of_batch[batch] = {}

    def add_dropped(self, drops: Mapping[str, int]) -> None:
        """Count records that the workers dropped, by reason."""
        _add(self.dropped, drops)
        _add(self._of_batch.setdefault(self._batch, {}), drops)

    def malformed(self, report: Any) -> int:
        """Return how many lines or messages of a micro-batch of query 1 could not be read; asked before `was_read`."""
        return observed(report).get("malformed", 0) + self._of_batch.get(
            int(report.batchId), {}
        ).get("malformed", 0)

    def is_news(self) -> bool:
        """Tell whether there are twice as many malformed records as when that was last asked and so: a bad line a minute is told a few times a day."""
        if self.dropped.get("malformed", 0) < 2 * self._told_malformed:
            return False
        self._told_malformed = self.dropped.get("malformed", 0)
        return True

    def was_read(self, report: Any) -> str | None:
        """Count what Spark reports of a finished micro-batch of query 1; a line of warning if too much of it was dropped."""
        observed_counts = {
            reason: count for reason, count in observed(report).items() if reason not in KINDS
        }
        records = int(report.numInputRows)
        dropped = self._of_batch.pop(int(report.batchId), {})
        _add(self.dropped, observed_counts)
        _add(dropped, observed_counts)
        self.records += records
        self.rate = float(report.processedRowsPerSecond or 0.0)
        seconds = {
            str(phase): int(ms) / 1000 for phase, ms in sorted((report.durationMs or {}).items())
        }
        self.events.tell(
            "micro_batch",
            batch=int(report.batchId),
            records=records,
            dropped=dropped,
            malformed=dropped.get("malformed", 0),
            seconds=seconds,
        )
        text = dropped_much(records, dropped)
        return text if text and self.events.alarm("dropped", text) else None

    def publishing(self, closed_us: int) -> None:
        """Note up to when the grid is closed; what that releases is about to be published."""
        self._closed_us = closed_us

    def add_published(self, triggers: int, rows: int) -> None:
        """Count what a micro-batch of query 2 published."""
        self.triggers += triggers
        self.rows += rows
        if self._closed_us is not None:
            self.events.tell("release", triggers=triggers, rows=rows, closed_us=self._closed_us)
            self._closed_us = None

    def alarm(self, alarm: str, text: str) -> None:
        """Tell an alarm, once per start, to the log of events and to the listener."""
        if self.events.alarm(alarm, text):
            self.tell(text)

    def tell(self, warning: str | None = None) -> None:
        """Report to the listener, if there is one."""
        if self.listener is not None:
            report = Progress(
                self.stage,
                self.records,
                self.rate,
                self.triggers,
                self.rows,
                dict(self.dropped),
                warning,
            )
            self.listener(report)

    def tell_long_wait(self, query: Query, until_us: int, closed_us: int) -> None:
        """Tell the operator that a start after a long time releases much; `dpsql run` has told it of a new run."""
        if closed_us != NO_CLOCK and (long := query.long_wait(UNTIL, until_us, closed_us)):
            self.tell(long)

    def summary(self, stopped: bool, not_read: Sequence[str] = ()) -> Summary:
        """Return the counts as a value."""
        names = tuple(not_read[:NAMED])
        return Summary(
            self.records,
            self.triggers,
            self.rows,
            dict(self.dropped),
            stopped,
            self.overruns,
            len(not_read),
            names,
        )


QUESTIONS = {
    "malformed": "do they fit `schema`?",
    "no_message": "most are no messages of Debezium, as JSON",
    "no_place": "most have no whole number where `sequence_by` says",
}
"""Questions to the operator, by what most malformed records of a micro-batch are."""


def malformed_question(report: Any) -> str:
    """Return what to look at where records are malformed."""
    counts = observed(report)
    kind = max(KINDS, key=counts.__getitem__)
    return QUESTIONS[kind if 2 * counts[kind] > counts["malformed"] else "malformed"]


def observed(progress: Any) -> Counter[str]:
    """Return the counters that Spark observed in one micro-batch, by name; those of one name are added up."""
    counts = Counter[str]()
    for row in (progress.observedMetrics or {}).values():
        for name, count in row.asDict().items():
            counts[str(name)] += int(count or 0)
    return counts


def _add(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        if count:
            totals[reason] = totals.get(reason, 0) + count
