"""The dialect: Spark SQL plus GoogleSQL's differential-privacy clause.

sqlglot 30.30.0 is pinned exactly, because four of its hooks are used here:

* `_parse_hint` is called right after SELECT: the clause is read there and kept in the `hint` argument of the Select node;
* `prepare` turns the WINDOW keyword back into a name, else `GROUP BY window(...)` is taken for a WINDOW clause;
* `FUNCTIONS` is empty, so every call stays a plain call under its own name: SUM and AVG may carry named arguments, and
  sqlglot's own rewriting of Spark functions (not always an identity) cannot change what the analyst wrote;
* `expression` and `_parse_interval` stamp positions on nodes that sqlglot leaves without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import Token, TokenType

OPERATORS = frozenset({"=", "==", "=>", ":=", "<=>"})
"""What people write between an option and its value; only the first is accepted (a rule says so, with the place)."""


class GrammarError(ParseError):
    """A syntax error with the character offsets of the offending token."""

    def __init__(self, message: str, token: Token | None) -> None:
        super().__init__(message)
        self.message = message
        self.token = token


class DpOption(exp.Expression):
    """One `name = value` of the clause; `meta` holds the tokens of its name, operator and value."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class DpClause(exp.Expression):
    """`WITH DIFFERENTIAL_PRIVACY OPTIONS (...)`; `meta["tokens"]` are its words, without the options.

    Of a plain SELECT it is `absent`, and the word SELECT stands for it.
    """

    arg_types: ClassVar[dict[str, bool]] = {
        "expressions": False,
        "has_options": False,
        "absent": False,
    }


class DpParser(SparkParser):
    """Spark's parser with the clause; functions are kept as plain calls."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        "CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]
    }

    def raise_error(self, message: str, token: Token | None = None) -> None:
        """Stop at the first mistake, with its place."""
        raise GrammarError(message, token or self._curr or None)

    def expression(
        self, instance: Any, token: Token | None = None, comments: list[str] | None = None
    ) -> Any:
        """Give a leaf without a position (NULL, TRUE, a word) that of the token just read."""
        node = super().expression(instance, token, comments)
        leaf = not any(isinstance(value, (exp.Expr, list)) for value in node.args.values())
        if leaf and self._prev and "start" not in node.meta:
            node.update_positions(self._prev)
        return node

    def _parse_interval(self, *args: Any, **kwargs: Any) -> Any:
        start = self._index
        node = super()._parse_interval(*args, **kwargs)
        if node is not None and self._index > start:
            node.meta["words"] = tuple(self._tokens[start : self._index])
            node.meta.update(start=self._tokens[start].start, end=self._tokens[self._index - 1].end)
        return node

    def _parse_hint(self) -> Any:
        if self._match(TokenType.HINT):
            raise GrammarError("Hints like `/*+ ... */` are not accepted", self._prev)
        if not self._match(TokenType.WITH):
            return None
        words = [self._prev]
        if not self._match_text_seq("DIFFERENTIAL_PRIVACY"):
            raise GrammarError(
                "Expected `DIFFERENTIAL_PRIVACY` after `SELECT WITH`", self._curr or self._prev
            )
        words.append(self._prev)
        options: list[exp.Expr] = []
        if has_options := self._match_text_seq("OPTIONS"):
            words.append(self._prev)
            if not self._match(TokenType.L_PAREN):
                self.raise_error("Expected `(` after OPTIONS")
            if not self._match(TokenType.R_PAREN):
                options = self._parse_csv(self._parse_option)
                if not self._match(TokenType.R_PAREN):
                    self.raise_error("Expected `,` or `)` after an option")
        clause = DpClause(expressions=options, has_options=bool(has_options))
        clause.meta["tokens"] = tuple(words)
        return clause

    def _parse_option(self) -> DpOption:
        name = self._curr
        if not name or name.token_type in (TokenType.R_PAREN, TokenType.L_PAREN, TokenType.COMMA):
            self.raise_error("Expected an option like `epsilon = 6`")
        self._advance()
        operator = self._curr
        source = operator.text if operator else ""
        if source not in OPERATORS:
            self.raise_error(f"Expected `=` and a value after the option `{name.text}`")
        self._advance()
        start = self._index
        value = self._parse_disjunction()
        if value is None:
            self.raise_error(f"Expected a value after `{name.text} {source}`")
        option = DpOption(
            this=exp.Identifier(this=name.text).update_positions(name), expression=value
        )
        option.meta.update(
            name=name, operator=operator, value=tuple(self._tokens[start : self._index])
        )
        return option


class DpGenerator(SparkGenerator):
    """Writes the canonical SQL: a string literal with escapes is repeated exactly as the analyst wrote it."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TRANSFORMS,
        DpClause: lambda *_: "WITH DIFFERENTIAL_PRIVACY",
    }
    """The clause is written where a query stands inside another one, which rules refuse by name."""

    def literal_sql(self, expression: exp.Literal) -> str:
        """Write a literal with escapes verbatim: Spark and sqlglot do not agree on all of them."""
        return expression.meta.get("verbatim") or super().literal_sql(expression)

    def rawstring_sql(self, expression: exp.RawString) -> str:
        """Write a raw string verbatim, as the analyst did."""
        return expression.meta.get("verbatim") or super().rawstring_sql(expression)


class DpSpark(Spark):
    """Spark SQL with the differential-privacy clause."""

    Parser = DpParser
    Generator = DpGenerator


_CALL_WORDS = frozenset(SparkParser.NO_PAREN_FUNCTIONS)
_AS_NAME = (TokenType.VAR, TokenType.IDENTIFIER)


def prepare(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with words that sqlglot would take for keywords made plain names again.

    WINDOW stays a keyword only where it starts a clause (`WINDOW name AS (...)`), so that the clause can be refused by name.
    """
    return [_as_name(token) if _is_name(tokens, i) else token for i, token in enumerate(tokens)]


def _is_name(tokens: Sequence[Token], i: int) -> bool:
    if tokens[i].token_type in _CALL_WORDS:
        return True
    if tokens[i].token_type != TokenType.WINDOW:
        return False
    following = [token.token_type for token in tokens[i + 1 : i + 3]]
    return not (
        len(following) == 2 and following[0] in _AS_NAME and following[1] == TokenType.ALIAS
    )


def _as_name(token: Token) -> Token:
    return Token(
        TokenType.VAR, token.text, token.line, token.col, token.start, token.end, token.comments
    )
