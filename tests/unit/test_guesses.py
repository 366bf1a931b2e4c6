"""Nobody but its writers and `dpsql/published` knows a public table by the names of its columns: all others ask its description."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.test_project import CHECKOUT, modules

GUESS = re.compile(
    r"\b(window_start|window_end|trigger_time|grouping_id)\b|_(rank_)?stderr\b|_(smoothed|measured)\b|^(smoothed|measured)$"
)
"""A text that names a column of a public table, or ends the name of one."""

KNOW = (
    "dpsql/description.py",
    "dpsql/published/",
    "dpsql/mechanisms/sliding/mechanism.py",
    "dpsql/streaming/published_table.py",
    "dpsql/streaming/sketch_tables.py",
)
"""The description, its readers, and those who write the columns."""

LEFT = {
    "dpsql/sql/allowed.py": 1,  # a function of Spark
    "dpsql/sql/aggregates.py": 1,  # a sentence for who asks for it
}
"""How many such texts other modules have that are no columns of a public table."""


def guesses(tree: ast.Module) -> list[str]:
    """The texts of a module, docstrings apart."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    )
    return [str(node.value) for node in texts if GUESS.search(str(node.value))]


def who_guesses(checkout: Path) -> dict[str, int]:
    """Module -> how many such texts it has, besides those who may."""
    found = {
        path: len(guesses(tree))
        for path, tree in modules(checkout, "jobs", "dpsql")
        if not path.startswith(KNOW)
    }
    return {path: number for path, number in found.items() if number}


def test_no_reader_guesses_what_a_column_is() -> None:
    """More is a guess; where there are fewer, the list above says so."""
    assert who_guesses(CHECKOUT) == LEFT


@pytest.mark.parametrize(
    "line",
    [
        'rows[f"{alias}_stderr"]',
        'rows["window_start"]',
        'f"SELECT max(trigger_time) FROM {name}"',
        "f\"{row['window_end']:%Y}\"",
        'name.endswith("_rank_stderr")',
        '"smoothed" in row',
    ],
)
def test_a_planted_guess_is_found(line: str, tmp_path: Path) -> None:
    for folder in ("dpsql/view", "dpsql/published", "jobs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dpsql/view/new.py").write_text(f'"""A view of window_start."""\nx = {line}\n')
    (tmp_path / "dpsql/published/new.py").write_text(f"x = {line}\n")
    assert who_guesses(tmp_path) == {"dpsql/view/new.py": 1}
