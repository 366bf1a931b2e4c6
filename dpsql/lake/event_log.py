"""What an operator's tools read of a run: one JSON line per event, the newest of each in a small file, and metrics as Prometheus text.

Totals per micro-batch as in `dpsql.streaming.progress`, never anything of one key or one unit. They are not noised, so all three files are for
the operator alone (mode 0600). None of them grows but the log, which is appended to by name, so that it can be rotated.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpsql.files import Place, replace_file

VERSION = 1
FILE = "status.json"
"""In the run's private folder: the newest event of each kind, and of each alarm."""

COMMON: Mapping[str, type] = {"version": int, "time": str, "run": str, "name": str, "kind": str}
SCHEMA: Mapping[str, Mapping[str, type]] = {
    "start": {"mode": str, "process": int, "host": str},
    "micro_batch": {
        "batch": int,
        "records": int,
        "dropped": dict,
        "malformed": int,
        "seconds": dict,
    },
    "release": {"triggers": int, "rows": int, "closed_us": int},
    "alarm": {"alarm": str, "text": str},
    "end": {"stopped": bool, "failed": str},
}
"""Fields of each kind of event besides COMMON. `seconds` is Spark's time by phase; `failed` the class of what ended the run, or empty."""

DAMAGED = "damaged"
"""The alarm that a file of a table is not as it was written."""

BEHIND = "behind"
"""The alarm that the source brings more files than are read."""

AWAY = "away"
"""The alarm that the source cannot be listed."""

DROP_SHARE = 0.2
SHARES = (0.9, 0.5, 0.1, 0.01)
DROP_RECORDS = 1_000
"""Alarm where more than this share of a micro-batch of at least so many records is dropped: a column renamed upstream looks like that."""


@dataclass
class EventLog:
    """The events of one start.

    Args:
        folder: the run's private folder.
        run_id, name: of the run.
        log: a file for the lines, or None.
        metrics: a file for Prometheus, or None; replaced as a whole.
    """

    folder: Place
    run_id: str
    name: str
    log: Path | None = None
    metrics: Path | None = None
    totals: defaultdict[str, float] = field(default_factory=lambda: defaultdict(int))
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.newest = newest_events(self.folder)

    def tell(self, kind: str, **fields: Any) -> None:
        """Write one event everywhere. A full disk must not end a run by way of its log: what cannot be written is left out."""
        event = {
            "version": VERSION,
            "time": _timestamp(),
            "run": self.run_id,
            "name": self.name,
            "kind": kind,
            **fields,
        }
        if set(event) != {*COMMON, *SCHEMA[kind]}:
            raise ValueError(f"an event of kind {kind} has the fields {sorted(SCHEMA[kind])}")
        self.newest[f"alarm/{fields['alarm']}" if kind == "alarm" else kind] = event
        self._count(kind, event)
        self._keep()
        with suppress(OSError):
            if self.log is not None:
                _append(self.log, json.dumps(event, separators=(",", ":")) + "\n")
        with suppress(OSError):
            if self.metrics is not None:
                replace_file(self.metrics, self.exposition().encode())

    @contextmanager
    def of_start(self, mode: str, stop: threading.Event) -> Iterator[None]:
        """Tell the beginning of a start, and its end, however it ends."""
        self.tell("start", mode=mode, process=os.getpid(), host=socket.gethostname())
        failed = ""
        try:
            yield
        except BaseException as problem:
            failed = type(problem).__name__
            raise
        finally:
            self.tell("end", stopped=stop.is_set(), failed=failed)

    def alarm(self, alarm: str, text: str) -> bool:
        """Tell an alarm, once per start and kind of alarm; whether it was new."""
        if alarm in self._told:
            return False
        self._told.add(alarm)
        self.tell("alarm", alarm=alarm, text=text)
        return True

    def forget(self, alarm: str) -> None:
        """End an alarm, which is told anew when it comes again."""
        if alarm in self._told:
            self._told.discard(alarm)
            self.newest.pop(f"alarm/{alarm}", None)
            self._keep()

    def _keep(self) -> None:
        newest = json.dumps(
            {"version": VERSION, "newest": self.newest, "totals": self.totals}
        ).encode()
        with suppress(OSError):
            replace_file(self.folder / FILE, newest)

    def exposition(self) -> str:
        """Return the totals in Prometheus' text format."""
        labels = f'{{name="{self.name}",run="{self.run_id}"}}'
        lines: list[str] = []
        for metric, value in sorted(self.totals.items()):
            bare, _, reason = metric.partition("/")
            head = f"# TYPE dpsql_{bare} {'counter' if bare.endswith('_total') else 'gauge'}"
            lines += [] if head in lines else [head]
            metric_labels = (
                f'{{name="{self.name}",reason="{reason}",run="{self.run_id}"}}'
                if reason
                else labels
            )
            lines.append(f"dpsql_{bare}{metric_labels} {value:.17g}")
        return "\n".join(lines) + "\n"

    def _count(self, kind: str, event: Mapping[str, Any]) -> None:
        totals = self.totals
        if kind == "micro_batch":
            totals["micro_batches_total"] += 1
            totals["records_total"] += event["records"]
            for reason, count in event["dropped"].items():
                totals[f"dropped_total/{reason}"] += count
            totals["micro_batch_time_seconds"] = time.time()
        elif kind == "release":
            totals["triggers_total"] += event["triggers"]
            totals["rows_total"] += event["rows"]
            totals["closed_time_seconds"] = event["closed_us"] / 1e6
        elif kind == "alarm":
            totals["alarms_total"] += 1


def newest_events(folder: Place) -> dict[str, dict[str, Any]]:
    """Return, by kind, the newest event that a run has told; empty where there is none, or the file is not ours or damaged: it holds no truth."""
    try:
        content = json.loads((folder / FILE).read_bytes())
        return (
            {str(kind): dict(event) for kind, event in content["newest"].items()}
            if content["version"] == VERSION
            else {}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


REPLAYED = "did a connector send messages again? If not, `sequence_by` does not grow with each change of a row, and changes are lost"


def dropped_much(records: int, dropped: Mapping[str, int]) -> str | None:
    """Return the sentence for a micro-batch of which too much could not be used, or None. It names a reason, and no record or total. What is over the
    bounds of the query was good, and asked to be left out."""
    unusable = {
        reason: count for reason, count in dropped.items() if not reason.startswith("over_")
    }
    count = sum(unusable.values())
    if records < DROP_RECORDS or count <= DROP_SHARE * records:
        return None
    reason = max(unusable, key=lambda name: unusable[name])
    question = (
        REPLAYED
        if reason == "replayed"
        else "did they come late, or did a column or a format change upstream?"
    )
    return (
        f"more than {DROP_SHARE:.0%} of the records of a micro-batch were dropped, most of them as {reason.replace('_', ' ')}: "
        f"{question}"
    )


def share_text(part: int, total: int) -> str:
    """Say how large a part is, by the largest of a few limits that it passes: no total can be worked out from it."""
    limit = next((limit for limit in SHARES if part > limit * total), None)
    return f"more than {limit:.0%} of all" if limit else f"at most {SHARES[-1]:.0%} of all"


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _append(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # also of a file that was there
        file.write(text)
