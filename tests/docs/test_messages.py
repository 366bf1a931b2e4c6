"""Messages that docs/operations.md quotes are messages that the code makes: who searches the page for what the terminal says finds it."""

import ast
import re
from collections.abc import Iterator

from tests.docs.test_readme import CHECKOUT

PAGE = CHECKOUT / "docs" / "operations.md"
VALUE = "\0"
"""Stands in a text of the code for what is filled in."""
FILLED_IN = re.compile(r"'[^']*'|\([^)]*\)|\d[\d,.:]*\d|\d")


def texts(*rooms: str) -> Iterator[str]:
    """Yield every text of the code, with VALUE for each part that is filled in."""
    for room in rooms:
        for path in sorted((CHECKOUT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        str(part.value) if isinstance(part, ast.Constant) else VALUE
                        for part in node.values
                    )
                    yield "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"\{[^{}]*\}", VALUE, node.value)


def quoted(page: str) -> list[str]:
    """Return the messages in the first column of tables about what one sees, and in blocks of indented text."""
    tables = re.findall(
        r"^\| (?:what you see|message) \|.*?(?=\n\n)", page, re.MULTILINE | re.DOTALL
    )
    rows = [row.split(" | ")[0] for table in tables for row in table.splitlines()[2:]]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


def is_made(message: str, made: list[str]) -> bool:
    literal = re.split(f"({FILLED_IN.pattern})", message)
    pattern = "".join(
        f"(?:.?{VALUE}.?|{re.escape(part)})" if FILLED_IN.fullmatch(part) else re.escape(part)
        for part in literal
    )
    return any(re.search(pattern, text) for text in made)


def test_every_message_of_operations_is_made_somewhere() -> None:
    made = list(texts("dpsql", "jobs", "udfs"))
    messages = quoted(PAGE.read_text(encoding="utf-8"))
    assert len(messages) > 20
    assert [message for message in messages if not is_made(message, made)] == []


def test_a_message_that_nobody_makes_is_found() -> None:
    made = [f"source {VALUE} no longer has {VALUE} files"]
    assert is_made("source 'a' no longer has 2 files", made)
    assert not is_made("source 'a' has no 2 files", made)
    assert quoted("| message | what to do |\n|---|---|\n| `x 1` | y `z` |\n\n") == ["x 1"]
