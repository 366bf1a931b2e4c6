"""JSON inside of JSON as Spark's `from_json` hands it on where text is asked for: read and written anew, numbers as Java writes them."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any


class _Object(list[tuple[str, Any]]):
    """The fields of an object in their order; two may have one name."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object)


def rewritten(line: str, name: str) -> str | None:
    """A field of a JSON object; None if it is not there. Of two of one name the last."""
    fields: _Object = _DECODER.raw_decode(line.lstrip())[0]
    found = [value for key, value in fields if key == name]
    return _written(found[-1]) if found else None


def _written(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ",".join(f"{_text(key)}:{_written(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, float):
        return _java_text(value)
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _java_text(value: float) -> str:
    """As `Double.toString`."""
    if not math.isfinite(value):
        return _text("NaN" if value != value else "Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{Decimal(repr(value)):E}".split("E")
    whole, _, rest = digits.partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}E{int(exponent)}"
