"""The list of planted faults can be planted: every edit fits the product as it is, and every test that is named is there."""

from __future__ import annotations

import dataclasses

import pytest

from tests.planted.faults import MOST_PER_MODULE, Fault, problems, read

FAULTS = read()
EDIT = next(fault for fault in FAULTS if fault.file)


def test_every_fault_can_be_planted() -> None:
    assert [*problems(FAULTS)] == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dataclasses.replace(EDIT, old="no such text"), "0 times"),
        (dataclasses.replace(EDIT, old="import "), f"is in {EDIT.file}"),
        (dataclasses.replace(EDIT, new=EDIT.old), "no edit of the product"),
        (dataclasses.replace(EDIT, file="tests/conftest.py"), "no edit of the product"),
        (
            dataclasses.replace(EDIT, tests=("tests/unit/test_no_such.py",)),
            "no test tests/unit/test_no_such.py",
        ),
        (
            dataclasses.replace(EDIT, tests=("tests/unit/test_grid.py::test_no_such",)),
            "no test tests/unit/test_grid.py::test_no_such",
        ),
        (dataclasses.replace(EDIT, found_by="somebody"), "found by 'somebody'"),
        (dataclasses.replace(EDIT, found_by="make test-long"), "make test-long does not run"),
    ],
)
def test_what_cannot_be_planted_is_told(more: Fault, says: str) -> None:
    (told,) = [problem for problem in problems([*FAULTS, more]) if "faults in" not in problem]
    assert says in told


def test_a_list_that_shrinks_or_has_one_favourite_is_told() -> None:
    assert "fewer than" in next(problems(FAULTS[:59]))
    assert any(
        f"{MOST_PER_MODULE + 1} faults in" in problem
        for problem in problems([EDIT] * (MOST_PER_MODULE + 1))
    )
