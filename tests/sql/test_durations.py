"""Durations in their three forms."""

import pytest

from dpsql.sql.dialect import DpSpark
from dpsql.sql.values import Misread, divisor_near, read_duration
from dpsql.times import show_duration

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("'15 minutes'", HOUR // 4),
        ("INTERVAL 15 MINUTES", HOUR // 4),
        ("interval '15' minute", HOUR // 4),
        ("INTERVAL '15 minutes'", HOUR // 4),
        ("'interval 15 minutes'", HOUR // 4),
        ("INTERVAL 1 HOUR 30 MINUTES", 3 * HOUR // 2),
        ("'1 hour 30 minutes'", 3 * HOUR // 2),
        ("- INTERVAL 1 HOUR", -HOUR),
        ("INTERVAL -1 HOUR", -HOUR),
        ("'-1 hour'", -HOUR),
        ("'1 week'", 168 * HOUR),
        ("'7 microseconds'", 7),
        ("'3 milliseconds'", 3000),
    ],
)
def test_read(written, microseconds):
    assert read_duration(DpSpark().tokenize(written)) == microseconds


@pytest.mark.parametrize(
    "written",
    [
        "15",
        "minutes",
        "'15'",
        "'15 min'",
        "'1 month'",
        "INTERVAL 1 YEAR",
        "'1.5 hours'",
        "''",
        "'" + "9" * 5000 + " days'",
    ],
)
def test_misread(written):
    with pytest.raises(Misread):
        read_duration(DpSpark().tokenize(written))


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (HOUR, "1 hour"),
        (90 * SECOND, "90 seconds"),
        (24 * HOUR, "1 day"),
        (1, "1 microsecond"),
        (0, "0 weeks"),
    ],
)
def test_show(us, text):
    assert show_duration(us) == text


@pytest.mark.parametrize(
    ("whole", "part", "near"),
    [(24 * HOUR, 7 * HOUR, 6 * HOUR), (24 * HOUR, 48 * HOUR, 24 * HOUR), (HOUR, HOUR, HOUR)],
)
def test_divisor(whole, part, near):
    assert divisor_near(whole, part) == near
    assert whole % near == 0
