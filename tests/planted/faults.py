"""The list of planted faults as values, and what is wrong with it."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("faults.toml")
PRODUCT = ("conf/queries", "docker-compose.yml", "dpsql", "jobs", "udfs")
SHORT = "make test"
LONG = "make test-long"
NOTHING = "not found yet"
LEAST = 60
LEAST_EDITS = 40
MOST_PER_MODULE = 9


@dataclass(frozen=True)
class Fault:
    """One fault: what it breaks, the edit (`old` is in `file` once), the tests that find it or are nearest to it, and who runs them.

    Without `file` the tests themselves plant it, and reject it.
    """

    breaks: str
    tests: tuple[str, ...]
    found_by: str
    file: str = ""
    old: str = ""
    new: str = ""
    jvm: bool = False

    @property
    def is_found(self) -> bool:
        return self.found_by != NOTHING

    def plant(self, checkout: Path) -> None:
        path = checkout / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def read(path: Path = LIST) -> tuple[Fault, ...]:
    return tuple(_fault(breaks, given) for breaks, given in tomllib.loads(path.read_text()).items())


def _fault(breaks: str, given: dict[str, Any]) -> Fault:
    tests = given.pop("tests")
    return Fault(breaks, (tests,) if isinstance(tests, str) else tuple(tests), **given)


def problems(faults: Sequence[Fault], checkout: Path = CHECKOUT) -> Iterator[str]:
    """What is wrong with a list, without running anything."""
    edits = [fault for fault in faults if fault.file]
    if len(faults) < LEAST or len(edits) < LEAST_EDITS:
        yield f"{len(faults)} faults, {len(edits)} of them edits: fewer than {LEAST} and {LEAST_EDITS}"
    for file, many in Counter(fault.file for fault in edits).items():
        if many > MOST_PER_MODULE:
            yield f"{many} faults in {file}"
    for fault in faults:
        if fault.found_by not in (SHORT, LONG, NOTHING):
            yield f"{fault.breaks}: found by {fault.found_by!r}"
        elif fault.is_found and (fault.found_by == LONG) != any(
            test.startswith("tests/long/") for test in fault.tests
        ):
            yield f"{fault.breaks}: {fault.found_by} does not run {', '.join(fault.tests)}"
        for test in fault.tests:
            module, *names = test.split("::")
            if not all(
                f"def {name.split('[')[0]}(" in _text(checkout / module) for name in names
            ) or not _text(checkout / module):
                yield f"{fault.breaks}: no test {test}"
    for fault in edits:
        if (
            not fault.file.startswith(PRODUCT)
            or fault.old == fault.new
            or not (checkout / fault.file).is_file()
        ):
            yield f"{fault.breaks}: no edit of the product"
        elif (count := _text(checkout / fault.file).count(fault.old)) != 1:
            yield f"{fault.breaks}: its old text is in {fault.file} {count} times"


@cache
def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
