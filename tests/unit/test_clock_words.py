"""Texts that are another time tomorrow."""

import pytest

from dpsql.local.spark_text import to_timestamp
from dpsql.sql.clock_words import reads_the_clock
from tests.totality import TEXTS


@pytest.mark.parametrize("text", ["now", " Today", "TOMORROW\t", "yesterday CET", "epoch"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
def test_words(text: str, kind: str) -> None:
    assert reads_the_clock(text, kind)
    assert not reads_the_clock(text, "string")
    assert not reads_the_clock(f"x{text}", kind)


@pytest.mark.parametrize("text", ["12:00", "T12:00", "T1", " 1:2:3", "+1:00"])
def test_times_without_a_date_are_so_as_timestamps_only(text: str) -> None:
    assert reads_the_clock(text, "timestamp")
    assert not reads_the_clock(text, "timestamp_ntz") and not reads_the_clock(text, "date")


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "2024",
        "2024-02-29",
        "2024-2-9 1:2:3",
        "-2024-01-01 00:00:00",
        "+12024-01-01",
        " 2024-02-29 12:00",
    ],
)
def test_what_has_a_date_has_a_value(text: str) -> None:
    assert to_timestamp(text) is None or not reads_the_clock(text, "timestamp")
