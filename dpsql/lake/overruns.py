"""What a live run notes where a poll could not be made when it was due: its promise assumes that all are (`dpsql.schedule`)."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql import record
from dpsql.files import Place

FILE = "polling.json"
VERSION = 1


@dataclass(frozen=True)
class Overruns:
    """Micro-batches and first releases of a live run, of all its starts, that were not over when the next poll was due.

    Args:
        micro_batches: their number.
        longest_us: duration of the longest.
        newest_us: end of the newest; microseconds since 1970 UTC.
        interval_us: the polling interval at that time.
    """

    micro_batches: int = 0
    longest_us: int = 0
    newest_us: int = 0
    interval_us: int = 0

    def with_stretch(self, began_us: int, took_us: int, interval_us: int) -> Overruns:
        """Add a stretch of time without a poll, if it lasted beyond the next multiple of the interval."""
        ended_us = began_us + took_us
        if ended_us <= (began_us // interval_us + 1) * interval_us:
            return self
        return Overruns(
            self.micro_batches + 1, max(self.longest_us, took_us), ended_us, interval_us
        )

    def summary(self) -> str | None:
        """Return a line for people; None if there were none."""
        if not self.micro_batches:
            return None
        times = f"{self.micro_batches:,} time" + ("" if self.micro_batches == 1 else "s")
        return (
            f"{times} the run was still busy when the next poll was due (the polling interval is {self.interval_us / 1_000_000:g} s, the "
            f"longest took {self.longest_us / 1_000_000:.1f} s): choose a longer --interval; what it means: docs/privacy/index.md, known gaps"
        )


def read_overruns(folder: Place) -> Overruns:
    """Return what is noted in a run's private folder.

    Raises:
        LakeError: the file is damaged.
    """
    return record.load(folder / FILE, Overruns, VERSION) or Overruns()


def write_overruns(folder: Place, overruns: Overruns) -> None:
    """Note them; the file is of one size for ever."""
    record.write(folder / FILE, overruns, VERSION)
