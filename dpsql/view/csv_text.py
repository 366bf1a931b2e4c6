"""Rows as CSV that spreadsheets do not run: keys are what people sent."""

from __future__ import annotations

import json
import re
from datetime import datetime
from numbers import Number
from typing import Any

from dpsql.published.public_rows import PublicRows
from dpsql.published.reader_frames import reader_frame
from dpsql.view.words import absent, printable

FORMULA = re.compile(r"(^|[;\t\r\n\"])(\s*)(?=['=+\-@＝＋－＠])")
"""The place before a sign with which a formula begins, in a cell or after what some spreadsheets take for the end of one. An apostrophe is such
a sign here, so that no two texts have one form."""

MARKED = "' added before = + - @"
BYTE_ORDER_MARK = "\ufeff"
"""Without it some spreadsheets do not read UTF-8."""


def csv_text(rows: PublicRows) -> tuple[str, bool]:
    """Return rows as CSV, and whether a text in it is marked: an apostrophe stands before what would begin a formula.

    Heads of columns with marked texts say so. NULL is an empty cell, and an empty text is `""`.
    """
    frame = reader_frame(rows)
    columns = []
    has_marks = False
    records = frame.to_dict("records")
    for name in frame.columns:
        cells = [_cell(record[name]) for record in records]
        is_marked = any(mark for _, mark in cells)
        head, is_head_marked = _text(f"{name} ({MARKED})" if is_marked else str(name))
        has_marks |= is_marked or is_head_marked
        columns.append([head, *(text for text, _ in cells)])
    lines = map(",".join, zip(*columns, strict=True))
    return BYTE_ORDER_MARK + "\r\n".join([*lines, ""]), has_marks


def _cell(value: Any) -> tuple[str, bool]:
    """Return a value as CSV has it, and whether it is marked."""
    if isinstance(value, list):
        return _text(json.dumps(value))
    if absent(value):
        return "", False
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}", False
    if isinstance(value, Number):
        return str(value), False
    return _text(printable(value) if isinstance(value, bytes) else str(value))


def _text(text: str) -> tuple[str, bool]:
    marked = FORMULA.sub(r"\1\2'", text)
    return '"' + marked.replace('"', '""') + '"', marked != text
