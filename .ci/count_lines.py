"""How much there is to carry: lines of code of the product and of the tests, without blanks, comments, docstrings and imports.

    python .ci/count_lines.py [FOLDER ...]     default: the three rooms of the product, and the tests

As they stand, which `make check` keeps formatted at 100 columns. A docstring is any string that is a statement of its own.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PRODUCT = ("dpsql", "jobs", "udfs")
TESTS = ("tests",)
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines of a module that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        docstring = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main(folders: list[str]) -> None:
    """Print a line for each group of folders."""
    for group in [(folder,) for folder in folders] or [PRODUCT, TESTS]:
        texts = [
            path.read_text(encoding="utf-8")
            for folder in group
            for path in sorted((CHECKOUT / folder).rglob("*.py"))
        ]
        every = sum(len(text.splitlines()) for text in texts)
        code = sum(map(code_lines, texts))
        print(f"{' '.join(group)}: {code:,} lines of code, {every:,} lines in {len(texts)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
