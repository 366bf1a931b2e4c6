"""The head of a Delta table's log, read as the lines of JSON that it is, for a watchdog: to open the table takes a CPU-second of imports, and more
by the number of its files.

Only what is plain is told here. Everything else, and what looks damaged, is for the lake's own reader to judge (`dpsql.lake.delta_tables`).
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from dpsql.files import Place

COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
HINT = "_last_checkpoint"
LOOK_BACK = 200
"""So many commits are asked for a mark. Older ones are in a checkpoint, or gone."""

NAMED = 3
"""So many damaged files are named."""

MAGIC = b"PAR1"
FOOTER_LENGTH = 4
"""What Parquet files begin and end with; before the end, how long the footer is."""


def is_whole(table: Path) -> bool:
    """Tell whether the newest checkpoint has its two ends and every commit after it is there and whole. False tells nothing.

    Raises:
        OSError: the log cannot be reached.
    """
    log = table / "_delta_log"
    names = os.listdir(log)
    commits = _versions(names, COMMIT)
    checkpoint = max(_versions(names, CHECKPOINT), default=-1)
    later = [version for version in commits if version > checkpoint]
    if later != list(range(checkpoint + 1, max(commits, default=-1) + 1)) or (
        checkpoint < 0 and (HINT in names or not later)
    ):
        return False
    return (
        checkpoint < 0 or _has_both_ends(log / f"{checkpoint:020d}.checkpoint.parquet")
    ) and all(_is_json(log, version) for version in later)


def newest_mark(table: Path, application: str) -> int | None:
    """Return the newest version that an application has committed to a table; None if the newest commits do not tell.

    Raises:
        OSError: the log cannot be reached.
    """
    log = table / "_delta_log"
    for version in sorted(_versions(os.listdir(log), COMMIT), reverse=True)[:LOOK_BACK]:
        for line in _lines(log, version):
            mark = json.loads(line).get("txn", {}) if b'"txn"' in line else {}
            if mark.get("appId") == application:
                return int(mark["version"])
    return None


def damage(table: Path) -> str | None:
    """Return which data files of the newest commits are gone or have another size, in words; all bytes of all files are looked at by a start.

    Raises:
        OSError: the log cannot be reached.
    """
    removed = set[str]()
    wrong = list[str]()
    for version in sorted(_versions(os.listdir(table / "_delta_log"), COMMIT), reverse=True)[
        :LOOK_BACK
    ]:
        actions = [json.loads(line) for line in _lines(table / "_delta_log", version)]
        removed.update(action["remove"]["path"] for action in actions if "remove" in action)
        for name, size in [
            (entry["path"], entry["size"])
            for action in actions
            if (entry := action.get("add")) and entry["path"] not in removed
        ]:
            with suppress(FileNotFoundError):
                if (found_size := (table / name).stat().st_size) != size:
                    wrong.append(f"{name} has {found_size:,} bytes of {size:,}")
                continue
            wrong.append(f"{name} is gone")
    return in_words(table, wrong)


def in_words(table: Place, wrong: list[str]) -> str | None:
    """Return a sentence on damaged files of a table; None if there are none."""
    more = f" and {len(wrong) - NAMED:,} more files" if len(wrong) > NAMED else ""
    return (
        f"the table {table} is damaged: {'; '.join(wrong[:NAMED])}{more}. Put its files back as they were"
        if wrong
        else None
    )


def _versions(names: list[str], kind: re.Pattern[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := kind.fullmatch(name)))


def _lines(log: Path, version: int) -> list[bytes]:
    try:
        return (log / f"{version:020d}.json").read_bytes().splitlines()
    except FileNotFoundError:  # a job is at work, and has made a checkpoint
        return []


def _is_json(log: Path, version: int) -> bool:
    try:
        actions = [json.loads(line) for line in _lines(log, version)]
    except ValueError:
        return False
    return bool(actions) and all(isinstance(action, dict) for action in actions)


def _has_both_ends(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size < 2 * len(MAGIC) + FOOTER_LENGTH:
                return False
            stream.seek(0)
            begin = stream.read(len(MAGIC))
            stream.seek(size - len(MAGIC) - FOOTER_LENGTH)
            footer = stream.read(FOOTER_LENGTH)
            end = stream.read()
    except FileNotFoundError:
        return False
    return begin == end == MAGIC and int.from_bytes(footer, "little") < size
