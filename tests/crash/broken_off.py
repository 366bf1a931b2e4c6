"""End a sweep after any number of its changes of the lake: what a kill between two of them leaves."""

import functools
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from deltalake import DeltaTable

from dpsql.lake import compaction, delta_tables, retention
from dpsql.udfs.task_files import ContributionFiles


class BrokenOff(BaseException):
    """Not an `Exception`: nothing in the product may catch it, as nothing catches SIGKILL."""


def break_off() -> None:
    """End a sweep in a process that goes on."""
    raise BrokenOff


class Changes:
    """Inside, changes of a lake by a sweep are counted, in their order; instead of the one after `until` of them comes the end."""

    def __init__(self, until: int | None = None, end: Callable[[], None] = break_off) -> None:
        self.until = until
        self.end = end
        self.kinds = list[str]()
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for owner, name, kind in (
            (compaction, "sorted_file", "file written"),
            (retention, "sorted_file", "file written"),
            (ContributionFiles, "write_era", "file written"),
            (DeltaTable, "create_write_transaction", "commit"),
            (DeltaTable, "delete", "rows deleted"),
            (DeltaTable, "create_checkpoint", "checkpoint"),
            (delta_tables, "settle", "commit on the disk"),
        ):
            self._patch.setattr(owner, name, self._counted(getattr(owner, name), kind))
        for module in (compaction, delta_tables, retention):
            self._patch.setattr(module, "filesystem", self._watched(module.filesystem))
        return self

    def __exit__(self, *given: object) -> None:
        self._patch.undo()

    def _counted(self, change: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(change)
        def made(*given: Any, **named: Any) -> Any:
            if len(self.kinds) == self.until:
                self.end()
            self.kinds.append(kind)
            return change(*given, **named)

        return made

    def _watched(
        self, open_filesystem: Callable[[str], tuple[Any, str]]
    ) -> Callable[[str], tuple[Any, str]]:
        def opened(location: str) -> tuple[Any, str]:
            system, path = open_filesystem(location)
            return _Watched(system, self._counted(system.delete_file, "file removed")), path

        return opened


class _Watched:
    """A file system whose removals are counted."""

    def __init__(self, system: Any, delete_file: Callable[[str], None]) -> None:
        self._system = system
        self.delete_file = delete_file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def main() -> None:
    """Do the sweep that a file describes (a pickled `Retention`, and the bounds of sweeps), and be killed before a change of its own."""
    swept, bounds = pickle.loads(Path(sys.argv[1]).read_bytes())
    for name, value in bounds.items():
        setattr(retention if hasattr(retention, name) else compaction, name, value)
    with Changes(int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        swept.after_catch_up()


if __name__ == "__main__":
    main()
