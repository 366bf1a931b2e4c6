"""No circle of imports: modules that need each other are one module, or a third one is missing. Imports for types and later ones count, too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.test_project import CHECKOUT, ROOMS, imported, modules

KNOWN = {frozenset({"dpsql.sql.draft", "dpsql.sql.options"})}
"""Circles that are there: this list only shrinks."""

Circles = set[frozenset[str]]


def circles(checkout: Path) -> Circles:
    """Each as the names of its modules."""
    found = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): (path, tree) for path, tree in modules(checkout, *ROOMS)}
    needs = {name: {other for other in imported(path, tree) if other in found and other != name} for name, (path, tree) in found.items()}
    # Of `from a import b` only b counts where it is a module: a package is not what is in it.
    for name, (_, tree) in found.items():
        taken = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        needs[name] -= {str(node.module) for node in taken if all(f"{node.module}.{alias.name}" in found for alias in node.names)}
    reached = {name: _reached(name, needs) for name in needs}
    return {frozenset(other for other in reached[name] if name in reached[other]) for name in needs if name in reached[name]}


def _reached(start: str, needs: dict[str, set[str]]) -> set[str]:
    reached, open_ = set[str](), [start]
    while open_:
        new = needs[open_.pop()] - reached
        reached |= new
        open_ += new
    return reached


def test_imports_go_in_no_circle() -> None:
    assert circles(CHECKOUT) - KNOWN == set()


def test_the_list_only_shrinks() -> None:
    assert KNOWN - circles(CHECKOUT) == set(), "these are gone: take them from the list"


@pytest.mark.parametrize(
    "back",
    [
        "import dpsql.a",
        "from dpsql import a",
        "from dpsql.a import x",
        "def f():\n    from dpsql.a import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpsql.a import x\n",
    ],
)
def test_a_planted_circle_is_found(back: str, tmp_path: Path) -> None:
    plant(tmp_path, {"dpsql/__init__.py": "", "dpsql/a.py": "from dpsql.b import y", "dpsql/b.py": "import dpsql.c", "dpsql/c.py": back})
    assert circles(tmp_path) == {frozenset({"dpsql.a", "dpsql.b", "dpsql.c"})}


def test_what_is_no_circle_is_not_found(tmp_path: Path) -> None:
    """A package whose modules take one another from it, and two ways to one module."""
    texts = {"dpsql/__init__.py": "from dpsql.a import x", "dpsql/a.py": "from dpsql import b, c", "dpsql/b.py": "from dpsql import c"}
    plant(tmp_path, texts | {"dpsql/c.py": "x = 1"})
    assert circles(tmp_path) == set()


def plant(folder: Path, texts: dict[str, str]) -> None:
    (folder / "dpsql").mkdir()
    for path, text in texts.items():
        (folder / path).write_text(text)
