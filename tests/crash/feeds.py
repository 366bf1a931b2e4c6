"""Kill runs over the change feed of a Delta table at random, and compare what they leave with an uninterrupted run, as `tests.crash.sliding`.

    python -m tests.crash.feeds [--kills 20] [--seed 1]

Two declarations of one table: with its primary key, and without, where rows of a unit are copies of each other. And messages of Debezium in files,
each of which begins with a third of what the one before has said.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.crash.kill import FILES, START, main
from tests.crash.sliding import EventStage
from tests.debezium import message

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 6, max_rows_per_group = 2, trigger_interval = '12 hours')
  page, COUNT(*) AS rows_there, COUNT(DISTINCT user_id) AS users, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits GROUP BY page
"""


class FeedStage(EventStage):
    """A table that changes: with each catch-up a commit that inserts, and one that updates or deletes."""

    sql: ClassVar[str] = SQL
    sources: ClassVar[str] = """
sources:
  visits:
    format: delta
    path: visits
    change_feed: DELTA
    primary_key: id
    privacy_unit: user_id
    start: 2100-01-01
    options: {maxFilesPerTrigger: 1, startingVersion: 0}
"""
    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "admission": ("live", "ended", "presences", "slots"),
        "release": ("groups", "pending"),
    }
    cell: ClassVar[tuple[str, ...]] = ("trigger", "page")

    @property
    def arrivals(self) -> Path:
        """Commits come in as files of the table's log."""
        return self.folder / "visits" / "_delta_log"

    def bring(self, number: int) -> None:
        """Two commits, an hour apart."""
        path = self.folder / "visits"
        first = 1_000 * number
        users = range(120)
        columns = {
            "id": [first + 4 * user + page for user in users for page in range(4)],
            "user_id": [f"u{user}" for user in users for _ in range(4)],
        }
        columns |= {
            "page": [f"p{page}" for _ in users for page in range(4)],
            "seconds": [float(user % 60) for user in users for _ in range(4)],
        }
        write_deltalake(
            path,
            pa.table(columns),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        if number % 2:
            DeltaTable(path).delete(f"id % 3 = {number % 3}")
        else:
            DeltaTable(path).update(
                {"page": "'p0'", "seconds": "seconds + 1.0"}, predicate=f"id % 5 = {number % 5}"
            )
        for commit in range(FILES):
            when = (START + timedelta(days=number, hours=1 + commit)).timestamp()
            os.utime(self.arrivals / f"{number * FILES + commit:020d}.json", (when, when))


class CopiesStage(FeedStage):
    """The same table without its key."""

    sources: ClassVar[str] = FeedStage.sources.replace("    primary_key: id\n", "")


class MessagesStage(FeedStage):
    """The same kinds of change as messages of Debezium, some of which come twice."""

    sources: ClassVar[str] = """
sources:
  visits:
    format: json
    path: visits
    schema: id BIGINT, user_id STRING, page STRING, seconds DOUBLE
    change_feed: DEBEZIUM
    primary_key: id
    sequence_by: source.lsn
    privacy_unit: user_id
    start: 2100-01-01
    options: {maxFilesPerTrigger: 1}
"""

    @property
    def arrivals(self) -> Path:
        """Files with a message in each line."""
        return self.folder / "visits"

    def bring(self, number: int) -> None:
        """Rows that come, and in the second file changes of some and the end of others."""
        first = 1_000 * number
        said = list[str]()
        rows = [
            {
                "id": first + i,
                "user_id": f"u{i // 4}",
                "page": f"p{i % 4}",
                "seconds": float(i % 60),
            }
            for i in range(480)
        ]
        for commit in range(FILES):
            when = START + timedelta(days=number, hours=1 + commit)
            new = [
                message("c", None, row)
                if not commit
                else message("d", row)
                if i % 6 == 1
                else message("u", row, {**row, "page": "p0"})
                for i, row in enumerate(rows)
                if not commit or i % 3 == 1
            ]
            for i, each in enumerate(new):
                each["source"] |= {
                    "lsn": 10_000 * number + 1_000 * commit + i,
                    "ts_ms": round(when.timestamp() * 1000),
                }
            lines = [json.dumps(each) for each in new]
            file = self.arrivals / f"{number * FILES + commit:03d}.json"
            file.write_text("\n".join([*said[-len(said) // 3 :], *lines]))
            os.utime(file, (when.timestamp(), when.timestamp()))
            said = lines


KINDS: Mapping[str, type[FeedStage]] = {
    "key": FeedStage,
    "copies": CopiesStage,
    "messages": MessagesStage,
}


if __name__ == "__main__":
    sys.exit(main(KINDS, __doc__, "crash-out-feeds"))
