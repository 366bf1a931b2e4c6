"""parse_query: SQL text to ParsedQuery, or a QueryError with every problem of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sqlglot import exp
from sqlglot.tokens import TokenType

from dpsql.errors import Problem, QueryError
from dpsql.parsed_query import ParsedQuery, Reading
from dpsql.sources.config import Source
from dpsql.sql import rules
from dpsql.sql.build import build
from dpsql.sql.dialect import DpClause
from dpsql.sql.draft import Draft, Option
from dpsql.sql.named_queries import unreadable_names, written_out
from dpsql.sql.reading_rules import read_reading
from dpsql.sql.spans import problem, token_span
from dpsql.sql.syntax import Refused, Script, read_script


class Reader(Protocol):
    """What the front end asks of a mechanism (`dpsql.mechanisms.protocol.Mechanism`)."""

    name: str
    takes: str

    @property
    def options(self) -> tuple[Option, ...]:
        """All that its queries may write."""

    @property
    def rules(self) -> tuple[rules.Rule, ...]:
        """What judges them."""

    def claims(self, draft: Draft) -> bool:
        """Whether a query is this mechanism's."""

    def read(self, draft: Draft) -> Any:
        """What is asked of it."""


def parse_query(
    text: str, sources: Mapping[str, Source], readers: Sequence[Reader], name: str = "query"
) -> ParsedQuery[Any]:
    """Read one query.

    Args:
        text: one SELECT WITH DIFFERENTIAL_PRIVACY statement; comments and a final `;` are fine.
        sources: what FROM may name.
        readers: the mechanisms; one of them claims the query. Where none does, the first one says what is wrong.
        name: how messages call the text, usually the file's name.

    Returns:
        The query with all defaults of the dialect; equal for texts that differ only in comments, blanks, letter case and needless
        parentheses.

    Raises:
        QueryError: with all problems in text order; a text that is not one SELECT by its grammar has that problem alone.
    """
    try:
        draft = read_draft(text, sources, options_of(readers))
        reader = claiming(draft, readers)
        problems = [problem for rule in (*rules.RULES, *reader.rules) for problem in rule(draft)]
        problems += options_of_others(draft, reader, readers)
        if not problems and not reader.claims(draft):
            raise AssertionError("no mechanism claims a query that no rule refuses")
        if not problems:
            return build(draft, reader.name, reader.read(draft))
    except Refused as refused:
        raise QueryError(text, refused.problems, name) from None
    except RecursionError:
        raise QueryError(text, (_too_deep(text),), name) from None
    raise QueryError(text, in_text_order(text, problems), name)


def reading_of(text: str, sources: Mapping[str, Source]) -> Reading:
    """How the rows of an accepted query are shown."""
    return read_reading(read_draft(text, sources))


def stream_named(text: str) -> str:
    """The first table that FROM names, however deep; `records` where the text cannot be read that far (its problems are for `parse_query`)."""
    try:
        tree = read_script(text).tree
    except (Refused, RecursionError):
        return "records"
    select = written_out(tree) if isinstance(tree, exp.Select) else tree
    clause = select.args.get("from_")
    table = next(iter(clause.find_all(exp.Table)), None) if clause is not None else None
    return "records" if table is None else table.name.lower()


def options_of(readers: Sequence[Reader]) -> tuple[Option, ...]:
    """Every option that any mechanism knows, each once."""
    return tuple({option.name: option for reader in readers for option in reader.options}.values())


def options_of_others(draft: Draft, reader: Reader, readers: Sequence[Reader]) -> Iterator[Problem]:
    """Options that other mechanisms know and the query's own does not."""
    own = {option.name for option in reader.options}
    known = {option.name for option in options_of(readers)}
    for given in draft.givens:
        if given.name in known - own:
            message = f"The option {given.name} is not supported in {reader.takes}"
            yield problem(given.name_span, message, "omit it")


def claiming(draft: Draft, readers: Sequence[Reader]) -> Reader:
    """The one mechanism whose query this is.

    Raises:
        AssertionError: two claim it; a test over all golden queries looks for that.
    """
    found = [reader for reader in readers if reader.claims(draft)]
    if len(found) > 1:
        raise AssertionError(
            f"{' and '.join(reader.name for reader in found)} both claim one query"
        )
    return (found or readers)[0]


def read_draft(text: str, sources: Mapping[str, Source], known: tuple[Option, ...] = ()) -> Draft:
    """The draft of a text that is one SELECT with the clause.

    Args:
        text: of the query.
        sources: what FROM may name.
        known: the options whose values are read; others are only seen.

    Raises:
        Refused: it is not.
    """
    script = read_script(text)
    for rule in SHAPE_RULES:
        if problems := tuple(rule(script)):
            raise Refused(*problems)
    assert isinstance(script.tree, exp.Select)
    select = written_out(script.tree)
    written = select.args.get("hint")
    return Draft(
        text,
        script.tokens,
        select,
        written if isinstance(written, DpClause) else _no_clause(script),
        sources,
        known,
    )


def _no_clause(script: Script) -> DpClause:
    """What stands for the clause of a plain SELECT, so that all else that is wrong with it is said at once."""
    clause = DpClause(absent=True)
    depth = 0
    for token in script.tokens:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if token.token_type == TokenType.SELECT and depth == 0:
            clause.meta["tokens"] = (token,)
    return clause


_COMBINING = (TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT)


def set_operation(script: Script) -> Iterator[Problem]:
    """UNION, INTERSECT, EXCEPT of whole queries."""
    if not isinstance(script.tree, exp.Select):
        words = [token for token in script.tokens if token.token_type in _COMBINING]
        yield problem(
            token_span((words or script.tokens)[0]),
            "A file holds one SELECT, not a combination of several",
            "write each query into a file of its own",
        )


SHAPE_RULES: tuple[Callable[[Script], Iterator[Problem]], ...] = (set_operation, unreadable_names)
"""Checks on the tree without which no draft can be read; the first that finds something ends the reading."""


def in_text_order(text: str, problems: list[Problem]) -> tuple[Problem, ...]:
    """Sorted by place, each once, every place inside the text and not on a line end."""
    last = max(len(text.rstrip()), 1)
    placed = {
        Problem(p.message, p.hint, min(p.start, last - 1), min(p.end, last)): None for p in problems
    }
    return tuple(sorted(placed, key=lambda p: (p.start, p.end)))


def _too_deep(text: str) -> Problem:
    start = len(text) - len(text.lstrip())
    return problem(
        (start, start + 1),
        "The query is nested too deeply",
        "write it with fewer parentheses and sub-queries",
    )
