"""What the marks of a histogram say of the micro-batches that are listed."""

from typing import Any

import pytest

from dpsql.lake.published_marks import PublishedMarks

NEW = {3: {"rows": 5, "mark": 30}, 4: {"rows": 0}, 5: {"rows": 7, "mark": 50}}


@pytest.mark.parametrize(
    ("marks", "listed", "expected"),
    [
        (PublishedMarks(None), {}, None),
        (PublishedMarks(None), NEW, None),
        (PublishedMarks(30), NEW, 3),
        (PublishedMarks(49), NEW, 3),
        (PublishedMarks(50), NEW, 5),
        (PublishedMarks(-50), {0: {"rows": 1, "mark": -50}}, 0),
        # The newest listing is lost.
        (PublishedMarks(60), NEW, 6),
        (PublishedMarks(60), {}, 0),
        # ... and was made anew by a restore.
        (PublishedMarks(60), {**NEW, 6: {"rows": 0, "mark": 60}}, 5),
    ],
)
def test_the_newest_micro_batch_with_published_rows(marks: PublishedMarks, listed: dict[int, dict[str, Any]], expected: int | None) -> None:
    assert marks.newest_batch(listed) == expected


def test_a_micro_batch_of_several_ticks_is_there_when_its_last_rows_are() -> None:
    detail = {"rows": 9, "closed_us": 70, "mark": 6}
    assert [PublishedMarks(mark).have(detail) for mark in (None, 5, 6, 7)] == [False, False, True, True]
    assert PublishedMarks(None).have({"rows": 0})
