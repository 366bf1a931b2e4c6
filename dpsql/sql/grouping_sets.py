"""`GROUP BY CUBE(...)`, `ROLLUP(...)`, `GROUPING SETS (...)`: which sets of keys are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokens import Token

from dpsql.sql.items import Grouping, Item, read_grouping
from dpsql.sql.spans import Span, node_span
from dpsql.sql.values import bare

WORDS: dict[type[object], str] = {
    exp.Cube: "CUBE",
    exp.Rollup: "ROLLUP",
    exp.GroupingSets: "GROUPING SETS",
}
LISTS = (exp.Tuple, exp.Cube, exp.Rollup, exp.GroupingSets)
"""Entries that are no keys."""
SUFFIXES = ("cube", "rollup", "grouping_sets", "totals")


@dataclass(frozen=True)
class GroupingSets:
    """One of the three words with its lists.

    Args:
        word: which.
        span: where it stands.
        lists: of CUBE and ROLLUP their one list, of GROUPING SETS each of its sets.
    """

    word: str
    span: Span
    lists: tuple[tuple[Grouping, ...], ...]

    @property
    def entries(self) -> tuple[Grouping, ...]:
        """All entries of all lists."""
        return tuple(entry for each in self.lists for entry in each)

    def sets(self) -> tuple[tuple[Grouping, ...], ...]:
        """The sets that ROLLUP and GROUPING SETS mean; of CUBE the list of all keys."""
        if self.word != "ROLLUP":
            return self.lists
        (keys,) = self.lists
        return tuple(keys[:size] for size in range(len(keys), -1, -1))


def read_sets(
    select: exp.Select, canonical: exp.Select, items: Sequence[Item], tokens: Sequence[Token]
) -> GroupingSets | None:
    """The sets where they are all of GROUP BY; None where there are none, or something beside them."""
    group = select.args.get("group")
    plain = canonical.args.get("group")
    if (
        group is None
        or plain is None
        or len(group.expressions) != 1
        or any(group.args.get(name) for name in SUFFIXES)
    ):
        return None
    root = bare(group.expressions[0])
    twin = bare(plain.expressions[0])
    word = WORDS.get(type(root))
    if word is None:
        return None
    inside = [
        (bare(one), bare(other))
        for one, other in zip(root.expressions, twin.expressions, strict=True)
    ]
    lists = [_keys(*pair) for pair in inside] if word == "GROUPING SETS" else [inside]
    read = tuple(tuple(read_grouping(*pair, items, tokens) for pair in each) for each in lists)
    return GroupingSets(word, node_span(root, tokens, _word(tokens, word)), read)


def _keys(node: exp.Expr, twin: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    """Of `(a, b)`, `(a)`, `()`, or `a`."""
    if not isinstance(node, exp.Tuple):
        return [(node, twin)]
    return [
        (bare(one), bare(other))
        for one, other in zip(node.expressions, twin.expressions, strict=True)
    ]


def _word(tokens: Sequence[Token], word: str) -> Span:
    """Where the word stands; for a list without anything in it."""
    found = [token for token in tokens if " ".join(token.text.upper().split()) == word]
    return (found[-1].start, found[-1].end + 1) if found else (0, 1)
