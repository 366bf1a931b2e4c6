"""What the commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from dpsql.description import Published, Role
from dpsql.privacy.totals import may_be_told
from dpsql.view.words import printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from dpsql.sources.config import Source
    from dpsql.streaming.progress import Progress as Report

PIPE_WIDTH = 200


def note(message: str) -> None:
    """Print one plain line or paragraph on stderr; if that fails, what follows goes on."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


@contextmanager
def paid_output() -> Iterator[None]:
    """Print on stdout what was paid for, and on stderr if that fails.

    Raises:
        SystemExit: it failed.
    """
    if sys.stdout.isatty():
        yield
        return
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        try:
            print(text.getvalue(), end="", flush=True)
        except OSError as problem:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            reason = f"stdout cannot be written ({problem.strerror}), so this goes here:"
            note(f"{reason}\n{text.getvalue()}")
            raise SystemExit(1) from None


def print_json(document: Any) -> None:
    """Print one JSON document on stdout: times in ISO 8601 UTC, bytes in hex, NULL, NaN and what is unlimited as null."""
    print(json.dumps(_json_value(document), allow_nan=False))


def say(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print one JSON document on stdout, or what it says in words."""
    print_json(document) if as_json else print(text)


def records(frame: pd.DataFrame, published: Published | None = None) -> list[dict[str, Any]]:
    """Return the rows of a published table as readers have them, errors to six digits."""
    from dpsql.published.public_rows import PublicRows  # slow to import
    from dpsql.published.reader_frames import reader_frame

    errors = {*published.names(Role.STDERR, Role.RANK_STDERR)} if published else ()
    rows = (reader_frame(PublicRows(frame, published)) if published else frame).to_dict("records")
    return [
        {
            str(column): float(f"{value:.6g}") if column in errors else value
            for column, value in row.items()
        }
        for row in rows
    ]


def print_table(
    heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], right_from: int | None = None
) -> None:
    """Print a plain table; columns from `right_from` on are numbers."""
    from rich.table import Table  # slow to import
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(
            Text(printable(head)),
            justify="right" if right_from is not None and i >= right_from else "left",
        )
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    console().print(table)


def print_not_read(count: int, names: Sequence[str]) -> None:
    """Name files of the source that a run has not read, on stdout."""
    if count:
        print(
            f"not read: {count:,} files of the source ({_some_names(names)}); the next start of the run reads them"
        )


def print_not_admitted(count: int, names: Sequence[str]) -> None:
    """Name files of which no record was admitted, on stdout."""
    if count:
        print(
            f"not admitted: {count:,} files were read and nothing of them admitted ({_some_names(names)}), so nothing of them is recomputed"
        )


def print_gone(count: int, names: Sequence[str], from_us: int | None) -> None:
    """Name files that a run has read and its source no longer has, on stdout."""
    if count and from_us is not None:
        since = f"{datetime.fromtimestamp(from_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        print(
            f"gone: {count:,} files that the run has read ({_some_names(names)}); rows of windows before {since} cannot be recomputed, and were left out"
        )


def _some_names(names: Sequence[str]) -> str:
    return ", ".join(PurePath(name).name for name in names[:3]) + (
        ", ..." if len(names) > 3 else ""
    )


def note_totals(
    source: Source,
    records: int,
    dropped: Mapping[str, int],
    compared: bool = False,
    counts_file: str = "",
) -> None:
    """Print on stderr how many records were read, how many dropped and why, if that may be told.

    Args:
        source: the stream.
        records, dropped: the totals.
        compared: as in `dpsql.privacy.totals.may_be_told`.
        counts_file: where the owner finds them.
    """
    if not may_be_told(source, compared):
        where = counts_file and f"; the owner finds it in {counts_file}"
        note(
            f"not told: how many records were read or dropped, since {source.name} is not `public: true`{where}"
        )
        return
    note(f"read {records:,} records")
    for reason, count in dropped.items():
        if count:
            note(f"dropped: {count:,} {reason.replace('_', ' ')}")
    from dpsql.lake.event_log import DROP_SHARE, REPLAYED

    if dropped.get("replayed", 0) > DROP_SHARE * records:
        note(f"of all that was read, more than {DROP_SHARE:.0%} was replayed: {REPLAYED}")


class ProgressBar:
    """The progress of a command on stderr: a moving line in a terminal, plain lines for the Spark job's log elsewhere.

    Args:
        may_tell: whether exact totals may be told (`dpsql.privacy.totals`).
    """

    def __init__(self, may_tell: bool) -> None:
        from rich.console import Console  # slow to import
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        self._exact = may_tell
        self._live = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._live)
        self._task = self._progress.add_task("reading", total=None)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def records(self, count: int) -> None:
        """Show how many records the local engine has read so far."""
        self._progress.update(
            self._task, description=f"{count:,} records" if self._exact else "reading"
        )

    def settings(self, count: int, least_error: float) -> None:
        """Show how many settings `tune` has measured, and the least error of them."""
        self._progress.update(self._task, description=f"{count:,} settings, best {least_error:.1%}")

    def stage(self, report: Report) -> None:
        """Show a report of the Spark job; its warnings always become a line."""
        rate = (
            f"{report.records:,} records, {report.records_per_second:,.0f} a second; "
            if self._exact
            else ""
        )
        text = f"{report.stage}: {rate}{report.triggers:,} triggers, {report.rows:,} rows published"
        if self._live:
            self._progress.update(self._task, description=text)
        else:
            note(text)
        if report.warning:
            self._progress.console.print(
                f"warning: {report.warning}", markup=False, highlight=False, soft_wrap=True
            )


def console() -> Console:
    """Return stdout as rich sees it; in a pipe tables are not cut."""
    from rich.console import Console  # slow to import

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _json_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _json_value(each) for name, each in value.items()}
    if value is None or value != value or (isinstance(value, float) and math.isinf(value)):
        return None
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tz_convert"):
        return (
            (value.tz_convert(UTC) if value.tzinfo else value.tz_localize(UTC))
            .isoformat()
            .replace("+00:00", "Z")
        )
    if hasattr(value, "tolist"):
        return _json_value(value.tolist())
    return value if isinstance(value, bool | int | float | str) else str(value)
