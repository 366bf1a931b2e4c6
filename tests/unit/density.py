"""How dense the code is: tokens, words and functions of modules, without docstrings, imports, comments and layout.

A word is a token that is no bracket, comma or semicolon, so the number of words does not move with the layout.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

LAYOUT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}
BRACKETS_AND_COMMAS = set("()[]{},;")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PRODUCT = ("dpsql", "jobs", "udfs")


@dataclass(frozen=True)
class Module:
    """One module.

    Args:
        path: below the checkout.
        text: what is in the file.
    """

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text)

    @cached_property
    def token_lines(self) -> list[int]:
        """The line of each token, layout and comments left out."""
        return [token.start[0] for token in self._tokens]

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        every = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token for token in every if token.type not in LAYOUT]

    @cached_property
    def code(self) -> list[tokenize.TokenInfo]:
        """Tokens that are code: not of docstrings and imports."""
        silent = set[int]()
        for node in ast.walk(self.tree):
            if _is_docstring(node) or isinstance(node, ast.Import | ast.ImportFrom):
                silent.update(range(node.lineno, node.end_lineno + 1))  # type: ignore[attr-defined]
        return [token for token in self._tokens if token.start[0] not in silent]

    @property
    def words(self) -> int:
        """Tokens of code that are no bracket, comma or semicolon."""
        return sum(token.string not in BRACKETS_AND_COMMAS for token in self.code)

    @property
    def tokens_by_line(self) -> Counter[int]:
        """Tokens of code of each line that has any."""
        return Counter(token.start[0] for token in self.code)

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield the qualified name and the tokens of the body of each function."""
        yield from self._functions_of(self.tree, "")

    def _functions_of(self, node: ast.AST, within: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, (*FUNCTIONS, ast.ClassDef))
            name = f"{within}{child.name}" if is_scope else within  # type: ignore[attr-defined]
            if isinstance(child, FUNCTIONS):
                yield name, self._size(child)
            yield from self._functions_of(child, f"{name}." if is_scope else within)

    def _size(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        has_docstring = ast.get_docstring(function) is not None
        body = function.body[1:] if has_docstring else function.body
        if not body:
            return 0
        first = bisect_left(self.token_lines, body[0].lineno)
        return bisect_right(self.token_lines, body[-1].end_lineno or 0) - first


@cache
def modules_of(checkout: Path, *tops: str) -> list[Module]:
    """Read all modules below some folders; links are left out."""
    paths = [path for top in tops for path in sorted((checkout / top).rglob("*.py"))]
    real = [
        path
        for path in paths
        if not any(
            (checkout / parent).is_symlink() for parent in path.relative_to(checkout).parents
        )
    ]
    return [
        Module(path.relative_to(checkout).as_posix(), path.read_text(encoding="utf-8"))
        for path in real
    ]


def _is_docstring(node: ast.AST) -> bool:
    """Tell whether a node is a text that is a statement of its own."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
