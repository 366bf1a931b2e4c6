"""Places of the words that open a construct (`CAST (`, `LEFT JOIN`, the name before `=>`), which sqlglot drops."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokens import Token

from dpsql.sql.spans import node_span

_BRACKET = (frozenset({"("}),)
_JOINING = frozenset(
    {"JOIN", ",", "LEFT", "RIGHT", "FULL", "OUTER", "INNER", "CROSS", "SEMI", "ANTI", "NATURAL"}
)

_EXACT: dict[type[exp.Expr], tuple[frozenset[str], ...]] = {
    exp.Tuple: _BRACKET,
    exp.Subquery: _BRACKET,
    exp.Cast: (*_BRACKET, frozenset({"CAST"})),
    exp.TryCast: (*_BRACKET, frozenset({"CAST", "TRY_CAST"})),
    exp.Extract: (*_BRACKET, frozenset({"EXTRACT"})),
    exp.Exists: (*_BRACKET, frozenset({"EXISTS"})),
    exp.Rollup: (*_BRACKET, frozenset({"ROLLUP"})),
    exp.Cube: (*_BRACKET, frozenset({"CUBE"})),
    exp.GroupingSets: (*_BRACKET, frozenset({"GROUPING SETS"})),
    exp.Neg: (frozenset({"-"}),),
    exp.Not: (frozenset({"NOT", "!"}),),
    exp.Kwarg: (frozenset({"=>"}),),
}
"""Words right before the first positioned part, from right to left; all of them must be there."""

_RUNS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Join: _JOINING,
    exp.Lateral: frozenset({"LATERAL", "VIEW", "OUTER"}),
    exp.Case: frozenset({"CASE", "WHEN"}),
}
"""Any run of these words right before the first positioned part."""


def place_openings(tree: exp.Expr, tokens: Sequence[Token]) -> None:
    """Stamp the nodes whose opening words are found, innermost first."""
    at = {token.start: i for i, token in enumerate(tokens)}
    for node in reversed(list(tree.walk())):
        if type(node) not in _EXACT and type(node) not in _RUNS:
            continue
        start, end = node_span(node, tokens)
        first = at.get(start, 0)
        if type(node) in _RUNS:
            opening = _run(tokens, first, _RUNS[type(node)])
        else:
            opening = _exact(tokens, first, _EXACT[type(node)], type(node) is exp.Kwarg)
        if opening is not None:
            if type(node) is exp.Case:
                end = next(
                    (
                        token.end + 1
                        for token in tokens
                        if token.start >= end and token.text.upper() == "END"
                    ),
                    end,
                )
            node.meta.update(start=tokens[opening].start, end=max(end - 1, tokens[opening].end))


def _exact(
    tokens: Sequence[Token], first: int, words: tuple[frozenset[str], ...], named: bool
) -> int | None:
    count = len(words)
    before = [token.text.upper() for token in tokens[max(0, first - count) : first]]
    matches = len(before) == count and all(
        text in word for text, word in zip(reversed(before), words, strict=True)
    )
    if not matches:
        return None
    return max(0, first - count - named)  # a named argument starts at its name


def _run(tokens: Sequence[Token], first: int, words: frozenset[str]) -> int | None:
    start = first
    while start > 0 and tokens[start - 1].text.upper() in words:
        start -= 1
    return start if start < first else None
