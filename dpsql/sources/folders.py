"""Folders like `day=2024-02-29` below the path of a source of files: each is a column and its value, as Spark has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

from dpsql.errors import DataError
from dpsql.sources.declared_types import BITS

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder that stands for NULL."""

FolderValues = Mapping[str, str | None]
"""Texts by the names of their columns, in lower case; None is NULL."""

_ESCAPED = "%([0-9A-Fa-f]{2})"
_WHOLE = "[+-]?[0-9]+"
_WRITTEN = {
    "string": ".*",
    "boolean": "(?i:true|false)",
    **dict.fromkeys(("float", "double"), r"[+-]?([0-9]+\.?|[0-9]*\.[0-9]+)([eE][+-]?[0-9]+)?"),
    "date": "[0-9].*",
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "[0-9]+-.*"),
    **dict.fromkeys(BITS, _WHOLE),
}
"""How the values of a type are written, of the types that a folder's value may have. Spark reads decimals wrongly, and gives times without a
date today's."""


def folder_values(folders: PurePath) -> FolderValues:
    """Return the values in the names of a file's folders, of those that have the form `name=value`.

    Raises:
        DataError: a name or a value is empty.
    """
    values = {}
    for part in folders.parts:
        name, sign, text = part.partition("=")
        if not sign:
            continue
        if not name or not text:
            raise DataError(f"{folders}: write the folder {part!r} like day=2024-02-29")
        values[_without_escapes(name).lower()] = None if text == NULL else _without_escapes(text)
    return values


def check_form(values: FolderValues, types: Mapping[str, str], place: PurePath) -> None:
    """Check that folders are written as their declared types are.

    Args:
        values: of the folders of one file.
        types: names of declared types in lower case, by columns.
        place: the file, for the message.

    Raises:
        DataError: a value has another form, or no folder can have a value of the type.
    """
    for name, text in values.items():
        kind = types.get(name, "string")
        if kind not in _WRITTEN:
            raise DataError(
                f"{place}: `{name}` is a folder's name, which cannot be {kind.upper()}: declare `{name} STRING` and cast it in FROM"
            )
        if text is not None and not re.fullmatch(_WRITTEN[kind], text, re.DOTALL):
            raise DataError(wrong_value(name, kind, place))


def wrong_value(name: str, kind: str, place: PurePath) -> str:
    """Say that a folder's name is not of its declared type."""
    return f"{place}: its folder {name}=... has no {kind.upper()}, as the source declares: declare `{name} STRING`"


def check_alike(names: Collection[tuple[str, ...]], place: str) -> None:
    """Check that all files of a source have the same folders above them: Spark leaves others out without a word.

    Args:
        names: columns of the folders, by file.
        place: the source.

    Raises:
        DataError: they differ.
    """
    forms = {"".join(map("{}=.../".format, columns)) or "no such folder" for columns in names}
    if len(forms) > 1:
        listed = " and ".join(sorted(forms))
        raise DataError(
            f"{place}: its files are in {listed}, and a file is only read if all have the same ones: move them"
        )


def has_sub_folders(source: Any) -> bool:
    """Tell whether a source (`dpsql.sources.config.Source`) has files of all sub-folders; their names are no columns then."""
    return any(
        name.lower() == "recursivefilelookup" and value.lower() == "true"
        for name, value in source.options
    )


def pattern_above_folders(path: str) -> str:
    """Say that a stream may not be a pattern of places that have such folders."""
    return f"{path}: folders like day=2024-02-29 are below a pattern, where Spark cannot stream them: write the folder above them as `path`"


def _without_escapes(text: str) -> str:
    return re.sub(_ESCAPED, lambda code: chr(int(code[1], 16)), text)
