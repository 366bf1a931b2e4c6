"""Small versioned JSON files as frozen values: one reader, which takes exactly what the writer writes.

They say what was spent, what was published and where a run stands, so a damaged one ends as one line, and nothing is guessed: every field has its
type (True is no integer, NaN no amount), there is none too many, and only those with a default may be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dpsql.errors import LakeError
from dpsql.files import Claim, Place, reason, replace_file

T = TypeVar("T")
PUT_BACK = "put back the original file"
RUN_FILE = "run.json"
"""In the private folder of a run: which one it is."""


class DamagedRecord(LakeError):
    """A small file is not what its writer wrote."""


def content(value: Any, version: int, indent: int | None = None) -> bytes:
    """Return a frozen value as a file of this version."""
    return json.dumps({"version": version, **asdict(value)}, indent=indent).encode() + b"\n"


def write(path: Place, value: Any, version: int) -> None:
    """Replace a small file as a whole: after a crash it is the old one or the new one."""
    replace_file(path, content(value, version))


def load(path: Place | Claim, kind: type[T], version: int, remedy: str = PUT_BACK) -> T | None:
    """Return the value in a file; None if it is not there.

    Args:
        path: of the file.
        kind: a frozen dataclass.
        version: that `content` was given.
        remedy: what to do where the file is damaged.

    Raises:
        DamagedRecord: it is not what `content` gave.
        LakeError: it is from another release, or cannot be read.
    """
    try:
        mapping = json.loads(path.read_bytes())
        written_version = mapping.pop("version")
        if written_version == version:
            return parse(mapping, kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise LakeError(f"{path}: {reason(problem)}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedRecord(f"{path}: damaged; {remedy}") from None
    raise LakeError(
        f"{path}: version {written_version!r} was written by another release of dpsql; this one reads version {version}"
    )


def read_if_whole(path: Place, kind: type[T], version: int) -> T | None:
    """Load a record; None also where the file is damaged: for what a run can do without."""
    try:
        return load(path, kind, version)
    except DamagedRecord:
        return None


def parse(json_value: Any, kind: Any) -> Any:
    """Return a value of a type, from JSON values.

    Args:
        json_value: from `json.loads`; what is of a class of ours already stays as it is.
        kind: a dataclass, an enumeration, a tuple, a mapping, some literals, a union with None, `str`, `bool`, `int`, `float` or `Any`.

    Raises:
        ValueError, TypeError: it is none; the message quotes nothing of it.
    """
    if kind is Any:
        return json_value
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, UnionType):
        return (
            None
            if json_value is None and NoneType in arguments
            else _first(
                json_value,
                [alternative for alternative in arguments if alternative is not NoneType],
            )
        )
    if origin is Literal:
        return arguments[arguments.index(json_value)]
    if origin is tuple:
        return _tuple(json_value, arguments)
    if origin is not None and issubclass(origin, Mapping):
        return {
            _key(key, arguments[0]): parse(value, arguments[1])
            for key, value in _is(json_value, dict).items()
        }
    if is_dataclass(kind):
        return json_value if type(json_value) is kind else _dataclass(_is(json_value, dict), kind)
    if issubclass(kind, Enum):
        return kind(json_value)
    if kind is float:
        if (
            isinstance(json_value, bool)
            or not isinstance(json_value, int | float)
            or not math.isfinite(json_value)
        ):
            raise ValueError("no number")
        return json_value
    if type(json_value) is not kind:
        raise ValueError(f"no {kind.__name__}")
    return json_value


@cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _dataclass(mapping: dict[str, Any], kind: Any) -> Any:
    required = {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    types = _types(kind)
    if not required <= set(mapping) <= {field.name for field in fields(kind)}:
        raise ValueError("a field too many, or one is missing")
    return kind(**{name: parse(value, types[name]) for name, value in mapping.items()})


def _tuple(items: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(items, list | tuple):
        raise ValueError("no list")
    if kinds[-1] is Ellipsis:
        return tuple(parse(value, kinds[0]) for value in items)
    return tuple(parse(value, kind) for value, kind in zip(items, kinds, strict=True))


def _first(json_value: Any, kinds: list[Any]) -> Any:
    for kind in kinds[:-1]:
        try:
            return parse(json_value, kind)
        except (ValueError, TypeError):
            continue
    return parse(json_value, kinds[-1])


def _key(text: str, kind: Any) -> Any:
    if kind is not int:
        return parse(text, kind)
    if str(int(text)) != text:
        raise ValueError("no number")
    return int(text)


def _is(json_value: Any, kind: type[T]) -> T:
    if not isinstance(json_value, kind):
        raise ValueError(f"no {kind.__name__}")
    return json_value
