"""Where a piece of the tree stands in the text."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from dpsql.errors import Problem

_DEPTH = {
    TokenType.L_PAREN: 1,
    TokenType.R_PAREN: -1,
    TokenType.L_BRACKET: 1,
    TokenType.R_BRACKET: -1,
}

Span = tuple[int, int]
"""Character offsets, end exclusive."""


def token_span(*tokens: Token) -> Span:
    """From the first token to the last."""
    return tokens[0].start, tokens[-1].end + 1


def node_span(node: exp.Expr, tokens: Sequence[Token], default: Span = (0, 1)) -> Span:
    """From the first to the last positioned descendant, grown until its parentheses are closed."""
    found = [part.meta for part in node.walk() if "start" in part.meta]
    if not found:
        return default
    start = min(meta["start"] for meta in found)
    end = max(meta["end"] for meta in found) + 1
    return _balanced(start, end, tokens)


def _balanced(start: int, end: int, tokens: Sequence[Token]) -> Span:
    depth = 0
    for i, token in enumerate(tokens):
        if token.start < start:
            continue
        empty_call = [follower.token_type for follower in tokens[i : i + 2]] == [
            TokenType.L_PAREN,
            TokenType.R_PAREN,
        ]
        if token.start >= end and not empty_call and depth <= 0:
            break
        depth += _DEPTH.get(token.token_type, 0)
        end = max(end, token.end + 1)
    return start, end


def problem(span: Span, message: str, hint: str) -> Problem:
    """A Problem at a span."""
    return Problem(message, hint, span[0], max(span[1], span[0] + 1))
