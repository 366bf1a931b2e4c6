"""Where product code makes a refusal: by its syntax, and by the frames of one that was made."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import dpsql
from dpsql.errors import InputError

PACKAGE = Path(dpsql.__file__).parent
REFUSALS = ("ConfigError", "DataError", "InputError", "SparkOnly", "Unreachable")
"""Classes of refusals about data and sources; those of lakes, secrets and ledgers are others."""


def places_in(file: str) -> dict[str, range]:
    """Return the lines of the calls in a module that make a refusal, by a name like `local/lines.py check_header #2`."""
    counts = Counter[str]()
    lines_by_place = {}
    for function, call in _calls(ast.parse((PACKAGE / file).read_text()), ""):
        name = f"{file} {function}"
        counts[name] += 1
        place = f"{name} #{counts[name]}" if counts[name] > 1 else name
        lines_by_place[place] = range(call.lineno, int(call.end_lineno or 0) + 1)
    return lines_by_place


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        is_named = isinstance(child, ast.FunctionDef)
        yield from _calls(child, child.name if is_named else function)
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") in REFUSALS:
            yield function, child


class Made:
    """The refusals that are made while a test runs, by their texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._code_by_text: dict[str, tuple[CodeType, int]] = {}

        def keep(problem: InputError, *arguments: object) -> None:
            frame = sys._getframe(1)
            while Path(frame.f_code.co_filename).name == "errors.py" and frame.f_back:
                frame = frame.f_back
            ValueError.__init__(problem, *arguments)
            self._code_by_text[str(problem)] = frame.f_code, frame.f_lineno

        monkeypatch.setattr(InputError, "__init__", keep)

    def place_of(self, output: str) -> str:
        """Return where the refusal was made that some output shows."""
        for text, (code, line) in reversed(self._code_by_text.items()):
            if text in output:
                file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
                places = places_in(file).items()
                return next((place for place, lines in places if line in lines), file)
        return ""
