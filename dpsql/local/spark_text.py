"""Text to value and value to text exactly as Spark does it, JSON inside of JSON included."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

# JSON inside of JSON as Spark's `from_json` hands it on where text is asked for: read and
# written anew, numbers as Java writes them.


class _Object(list[tuple[str, Any]]):
    """The fields of an object in their order; two may have one name."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object)


def rewritten(line: str, name: str) -> str | None:
    """Return a field of a JSON object; None if it is not there, or too deep. Of two of one name the last."""
    try:
        fields: _Object = _DECODER.raw_decode(line.lstrip())[0]
        values = [value for key, value in fields if key == name]
        return _json_text(values[-1]) if values else None
    except (ValueError, RecursionError):
        return None


def _json_text(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ",".join(f"{_text(key)}:{_json_text(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    if isinstance(value, float):
        return _java_text(value)
    return _text(value)


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04X}", text)


def _java_text(value: float) -> str:
    """Write a number like Java's `Double.toString`."""
    if not math.isfinite(value):
        return _text("NaN" if value != value else "Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{Decimal(repr(value)):E}".split("E")
    integer_digit, _, fraction = digits.partition(".")
    return f"{integer_digit}.{fraction.rstrip('0') or '0'}E{int(exponent)}"


# Text to value and value to text exactly as Spark does it (ANSI mode off, time zone UTC), for
# the shapes that DuckDB does differently.

# DuckDB handles the common shapes itself (plain ASCII, `2024-02-29 12:00:00`, `12.5`); only what
# is left comes here, value by value.
# Every function returns None where Spark's cast gives NULL, and none raises for any text.

BLANK = "".join(map(chr, range(33))) + "\x7f"
"""What Spark's casts strip: ASCII white space and control characters."""

_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^0-9.].*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2}|\d\d:\d\d|\d{4}|\d\d:\d\d:\d\d|\d{6})", re.ASCII
)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+", re.ASCII
)
_SPECIAL = re.compile("[+-]?inf(inity)?|nan", re.ASCII | re.IGNORECASE)
_DAY_US = 86_400_000_000
FIRST_DAY = -719_162
LAST_DAY = 2_932_896
"""The first and last day of the years 1 to 9999."""

# Letters with case that Spark's Unicode tables (17) know and Python's may not: (upper, lower, how many in a row)
_NEW_LETTERS = (
    (0x1C89, 0x1C8A, 1), (0xA7CB, 0x0264, 1), (0xA7CC, 0xA7CD, 1), (0xA7CE, 0xA7CF, 1), (0xA7D2, 0xA7D3, 1), (0xA7D4, 0xA7D5, 1),
    (0xA7DA, 0xA7DB, 1), (0xA7DC, 0x019B, 1), (0x10D50, 0x10D70, 22), (0x16EA0, 0x16EBB, 25),
)  # fmt: skip
_NEW_LOWER = {
    capital + i: small + i for capital, small, count in _NEW_LETTERS for i in range(count)
}
_NEW_UPPER = {small: capital for capital, small in _NEW_LOWER.items()}

# java.time.ZoneId.SHORT_IDS
_SHORT_ZONES = {
    "EST": "-05:00", "HST": "-10:00", "MST": "-07:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip


def lower(text: str) -> str:
    """Return full Unicode lower case: final sigma, and letters that become two."""
    # Spark's tables count the letter U+0295 as neither case, Python's as lower case: it ends a word, for sigma's sake
    return "\u0295".join(part.lower() for part in text.translate(_NEW_LOWER).split("\u0295"))


def upper(text: str) -> str:
    """Return full Unicode upper case: `ß` becomes `SS`."""
    return text.translate(_NEW_UPPER).upper()


def java_double(text: str) -> float | None:
    """Read a number like Java's `Double.parseDouble`; None where that fails."""
    trimmed = text.strip(BLANK[:33])
    number = trimmed[:-1] if trimmed[-1:] in ("d", "D", "f", "F") else trimmed
    if _HEXADECIMAL.fullmatch(number):
        return _from_hexadecimal(number)
    if _DECIMAL.fullmatch(number) or re.fullmatch("[+-]?(NaN|Infinity)", trimmed):
        return float(number)
    return None


def to_double(text: str) -> float | None:
    """Return what Java parses, and Spark's names of the special values."""
    special = text.strip(BLANK[:33])
    return float(special) if _SPECIAL.fullmatch(special) else java_double(text)


def to_date(text: str) -> int | None:
    """Return days since 1970; None beyond the years 1 to 9999, which guards on Spark make NULL as well."""
    match = _DATE.fullmatch(text.strip(BLANK))
    if not match:
        return None
    days = _days(*(int(part) if part else 1 for part in match.groups()))
    return days if days is not None and FIRST_DAY <= days <= LAST_DAY else None


def to_timestamp(text: str) -> int | None:
    """Return microseconds since 1970 UTC; text without a zone is UTC. A time without a date (today's, for Spark) is NULL here."""
    match = _TIMESTAMP.fullmatch(text.strip(BLANK))
    if not match:
        return None
    *date, hour, minute, second, fraction, zone = match.groups()
    days = _days(*(int(part) if part else 1 for part in date))
    clock = [int(part or 0) for part in (hour, minute, second)]
    if days is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    local = (
        days * _DAY_US
        + (clock[0] * 3600 + clock[1] * 60 + clock[2]) * 1_000_000
        + int((fraction or "").ljust(6, "0")[:6])
    )
    offset = _offset_us(local, zone.strip(BLANK)) if zone else 0
    us = None if offset is None else local - offset
    return us if us is not None and FIRST_DAY * _DAY_US <= us < (LAST_DAY + 1) * _DAY_US else None


def date_text(days: int) -> str:
    """Return a date as `2024-02-29`; years beyond four digits carry their sign."""
    year, month, day = _civil(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def timestamp_text(us: int) -> str:
    """Return a time as in `2024-02-29 12:00:00.5`, the fraction without trailing zeros."""
    days, day_us = divmod(us, _DAY_US)
    seconds, fraction = divmod(day_us, 1_000_000)
    tail = f".{fraction:06d}".rstrip("0") if fraction else ""
    return (
        f"{date_text(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{tail}"
    )


def _from_hexadecimal(number: str) -> float:
    try:
        return float.fromhex(number)
    except OverflowError:
        return float("-inf" if number.startswith("-") else "inf")


def _days(year: int, month: int, day: int) -> int | None:
    """Return days since 1970 of a proleptic Gregorian date; 400 years repeat exactly, so the library's own calendar serves for any year."""
    eras, year_of_era = divmod(year - 1, 400)
    try:
        return eras * 146_097 + datetime(year_of_era + 1, month, day).toordinal() - 719_163
    except ValueError:
        return None


def _civil(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of what `_days` returns."""
    eras, day_of_era = divmod(days + 719_162, 146_097)
    moment = datetime(1, 1, 1) + timedelta(days=day_of_era)
    return moment.year + 400 * eras, moment.month, moment.day


def _offset_us(local_us: int, name: str) -> int | None:
    zone = _zone(name)
    if zone is None:
        return None
    year, month, day = _civil(local_us // _DAY_US)
    calendar_year = year if 1 < year < 9999 else 2000 + year % 400
    moment = datetime(calendar_year, month, day) + timedelta(microseconds=local_us % _DAY_US)
    offset = moment.replace(tzinfo=zone).utcoffset() or timedelta()
    return offset // timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo | None:
    name = re.sub(r"^([+-])(\d):", r"\g<1>0\2:", name)
    name = re.sub(r"^([+-])(\d\d):(\d)$", r"\1\2:0\3", name)
    name = _SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        digits = match[2].replace(":", "").zfill(2).ljust(6, "0")
        hours = int(digits[:2])
        minutes = int(digits[2:4])
        seconds = int(digits[4:])
        total = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        valid = minutes < 60 and seconds < 60 and total <= timedelta(hours=18)
        return timezone(-total if match[1] == "-" else total) if valid else None
    try:
        return ZoneInfo(name) if re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", name) else None
    except (ValueError, OSError, KeyError):  # a name that is no zone
        return None
