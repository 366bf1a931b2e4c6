"""What the operator is told while a run works: counts and rates, never anything of one key or one user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


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
    records: int
    records_per_second: float
    triggers: int
    rows: int
    dropped: Mapping[str, int]
    warning: str | None = None


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Summary:
    """What one start did. `dropped` holds the reasons that occurred; a micro-batch repeated after a crash counts again."""

    records: int
    triggers: int
    rows: int
    dropped: dict[str, int]
    stopped: bool = False


@dataclass
class Tally:
    """Running counts of one start, told to a listener after every micro-batch."""

    listener: Listener | None
    stage: str = "reading"
    records: int = 0
    rate: float = 0.0
    triggers: int = 0
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def add_dropped(self, drops: Mapping[str, int]) -> None:
        """Count dropped records by reason."""
        for reason, count in drops.items():
            if count:
                self.dropped[reason] = self.dropped.get(reason, 0) + count

    def add_published(self, triggers: int, rows: int) -> None:
        """Count what a micro-batch published."""
        self.triggers += triggers
        self.rows += rows

    def tell(self, warning: str | None = None) -> None:
        """Report to the listener, if there is one."""
        if self.listener is not None:
            report = Progress(self.stage, self.records, self.rate, self.triggers, self.rows, dict(self.dropped), warning)
            self.listener(report)

    def summary(self, stopped: bool) -> Summary:
        """The counts as a value."""
        return Summary(self.records, self.triggers, self.rows, dict(self.dropped), stopped)


def observed(progress: Any) -> dict[str, int]:
    """The counters that Spark observed in one micro-batch, by name."""
    metrics = progress.observedMetrics or {}
    return {str(name): int(count or 0) for row in metrics.values() for name, count in row.asDict().items()}
