"""What the marks of a histogram say of the micro-batches that are listed."""

from __future__ import annotations

from typing import Any

import pytest

from dpsql.lake.published import PublishedMarks

OLD = {3: {"rows": 5, "closed_us": 30}, 4: {"rows": 0, "closed_us": 40}, 5: {"rows": 7, "closed_us": 50}}
"""Listed by a release whose commits said micro-batches."""

NEW = {3: {"rows": 5, "mark": 30}, 4: {"rows": 0}, 5: {"rows": 7, "mark": 50}}


@pytest.mark.parametrize(
    ("marks", "listed", "expected"),
    [
        (PublishedMarks(None, None), {}, None),
        (PublishedMarks(None, None), NEW, None),
        (PublishedMarks(30, None), NEW, 3),
        (PublishedMarks(49, None), NEW, 3),
        (PublishedMarks(50, None), NEW, 5),
        (PublishedMarks(-50, None), {0: {"rows": 1, "mark": -50}}, 0),
        # A run that began with the old marks: before and after its first commit that counts triggers.
        (PublishedMarks(None, 3), OLD, 3),
        (PublishedMarks(None, 5), OLD, 5),
        (PublishedMarks(None, 5), {**OLD, 6: {"rows": 1, "mark": 60}}, 5),
        (PublishedMarks(60, 5), {**OLD, 6: {"rows": 1, "mark": 60}}, 6),
        # Listed by the old release, published by this one.
        (PublishedMarks(50, 3), OLD, 5),
        # The newest listing is lost.
        (PublishedMarks(60, None), NEW, 6),
        (PublishedMarks(60, None), {}, 0),
        # ... and was made anew by a restore.
        (PublishedMarks(60, None), {**NEW, 6: {"rows": 0, "mark": 60}}, 5),
    ],
)
def test_the_newest_micro_batch_with_published_rows(marks: PublishedMarks, listed: dict[int, dict[str, Any]], expected: int | None) -> None:
    assert marks.newest_batch(listed) == expected


def test_a_micro_batch_of_several_ticks_is_there_when_its_last_rows_are() -> None:
    detail = {"rows": 9, "closed_us": 70, "mark": 6}
    assert [PublishedMarks(mark, None).have(0, detail) for mark in (None, 5, 6, 7)] == [False, False, True, True]
    assert PublishedMarks(None, None).have(0, {"rows": 0})
