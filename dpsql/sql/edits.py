"""Edits of a query's text: those that problems propose, and the whole query that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from sqlglot.tokens import Token, TokenType

from dpsql.errors import Edit, Problem, Proposal
from dpsql.sql.text import Span, problem, read_script
from dpsql.sql.values import nearest

ROUNDS = 4
"""How often a text is judged anew: an edit can lead to a problem that was not seen before."""

SLIP = 0.8
"""How alike two words are, from 0 to 1, where one of them is taken for the other."""

_LINE_ENDS = re.compile(r"[ \t]*\n\s*\n")


def replacement(span: Span, text: str, why: str = "") -> Edit:
    """Return the edit that writes a text in the place of another."""
    return Edit(*span, text, why)


def replacement_problem(span: Span, message: str, text: str, why: str = "") -> Problem:
    """Return a problem that another text in its place mends."""
    return problem(span, message, f"write {text}", replacement(span, text, why))


def removal_problem(span: Span, message: str, reason: str, edit: Edit) -> Problem:
    """Return a problem that goes with what it is about."""
    return problem(span, message, f"leave it out: {reason}", edit)


def known_word(span: Span, word: str, candidates: Iterable[str]) -> Iterator[Edit]:
    """Yield the edit of a word that is like a known one but for a slip of a finger."""
    guess = nearest(word, candidates, SLIP)
    if guess is not None:
        yield Edit(*span, guess, f"`{word}` is read as {guess}")


def insertion(place: int, text: str, why: str = "") -> Edit:
    """Return the edit that adds a text."""
    return Edit(place, place, text, why)


def removal(span: Span, tokens: Sequence[Token], why: str = "") -> Edit:
    """Return the edit that leaves out an element of a list, with the comma that parts it from its neighbour."""
    tokens_before = [token for token in tokens if token.end < span[0]]
    tokens_after = [token for token in tokens if token.start >= span[1]]
    start, end = span
    if tokens_before and tokens_before[-1].token_type == TokenType.COMMA:
        start = tokens_before[-1].start
    elif tokens_after and tokens_after[0].token_type == TokenType.COMMA:
        end = tokens_after[1].start if len(tokens_after) > 1 else tokens_after[0].end + 1
    return Edit(start, end, "", why)


def outermost(edits: Sequence[Edit]) -> list[Edit]:
    """Return the edits that can be made together: of two that overlap the longer one."""
    chosen: list[Edit] = []
    for edit in sorted(edits, key=lambda each: each.start - each.end):
        if not any(edit == other or _overlap(edit, other) for other in chosen):
            chosen.append(edit)
    return chosen


def _overlap(first: Edit, second: Edit) -> bool:
    return first.start < second.end and second.start < first.end


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with edits that do not overlap."""
    # From the last to the first, so that places stay what they are
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def proposal(
    text: str, problems: Sequence[Problem], judge: Callable[[str], Sequence[Problem]]
) -> Proposal | None:
    """Return the query that the edits of all problems make of a text, if it is accepted.

    Args:
        text: a query.
        problems: of that text.
        judge: returns the problems of another text.
    """
    reasons: list[str] = []
    for _ in range(ROUNDS):
        edits = outermost([edit for each in problems for edit in each.edits])
        if not edits:
            return None
        text = edited(text, edits)
        reasons += [edit.why for edit in edits if edit.why]
        problems = judge(text)
        if not problems:
            return Proposal(_without_empty_lines(text), tuple(dict.fromkeys(reasons)))
    return None


def _without_empty_lines(text: str) -> str:
    """Take out lines without a word; a text in quotes keeps its own."""
    parts = []
    end = 0
    for token in read_script(text).tokens:
        parts += [_LINE_ENDS.sub("\n", text[end : token.start]), text[token.start : token.end + 1]]
        end = token.end + 1
    return "".join(parts).strip()
