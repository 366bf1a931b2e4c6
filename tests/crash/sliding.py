"""Kill runs of sliding windows for ever at random, and compare what they leave with an uninterrupted run, which `dpsql verify` recomputes.

    python -m tests.crash.sliding [--kills 20] [--seed 1]

Two queries: one that protects rows, with smoothing; one that protects units, with correlated noise and bounds in the intake.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.udfs.sliding.release import TABLES
from tests.crash.kill import Stage, main

EVENTS = "epsilon = 1, delta = 0, privacy_level = EVENT"
UNITS = "epsilon = 2, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 3, max_rows_per_group = 2, max_groups_contributed = 2"


def sql(options: str) -> str:
    """Six hours, every two."""
    listed = "public_groups = (SELECT page FROM pages)"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}, {listed}) page, COUNT(*) AS views FROM visits"
    return f"{text} GROUP BY window(ts, '6 hours', '2 hours'), page"


class EventStage(Stage):
    """As `Stage`, for rows."""

    sql: ClassVar[str] = sql(EVENTS)
    sources: ClassVar[str] = """
sources:
  visits:
    format: parquet
    path: visits
    event_time: ts
    start: 2100-01-01
    options: {maxFilesPerTrigger: 1}
  pages: {format: parquet, path: pages, static: true}
"""
    tables: ClassVar[Mapping[str, Sequence[str]]] = {"admission": (), "release": tuple(TABLES)}
    points: ClassVar[Iterable[str]] = ()

    def prepare(self) -> None:
        """With the list of pages, one of which nobody visits."""
        (self.folder / "pages").mkdir(parents=True)
        pq.write_table(
            pa.table({"page": [f"p{i}" for i in range(5)]}), self.folder / "pages" / "pages.parquet"
        )
        super().prepare()


class UnitStage(EventStage):
    """For units."""

    sql: ClassVar[str] = sql(UNITS)
    sources: ClassVar[str] = EventStage.sources.replace(
        "    start:", "    privacy_unit: user_id\n    start:"
    )
    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "admission": ("users",),
        "release": tuple(TABLES),
    }


if __name__ == "__main__":
    sys.exit(main({"events": EventStage, "units": UnitStage}, __doc__, "crash-out-sliding"))
