"""From text to tree: places in the text, the checks that come before grammar, and the grammar."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from dpsql.errors import Edit, Problem
from dpsql.sql.dialect import DpSpark, GrammarError, prepare

# Where a piece of the tree stands in the text.

_DEPTH = {
    TokenType.L_PAREN: 1,
    TokenType.R_PAREN: -1,
    TokenType.L_BRACKET: 1,
    TokenType.R_BRACKET: -1,
}

Span = tuple[int, int]
"""Character offsets, end exclusive."""


def keyword(token: Token) -> str:
    """Return the text of a token as keywords are written: in capitals, with single blanks."""
    return " ".join(token.text.upper().split())


def token_span(*tokens: Token) -> Span:
    """Return the span from the first token to the last."""
    return tokens[0].start, tokens[-1].end + 1


def node_span(node: exp.Expr, tokens: Sequence[Token], default: Span = (0, 1)) -> Span:
    """Return the span from the first to the last positioned descendant, grown until its parentheses
    are closed."""
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


def problem(span: Span, message: str, hint: str, *edits: Edit) -> Problem:
    """Return a Problem at a span."""
    return Problem(message, hint, span[0], max(span[1], span[0] + 1), edits)


# Comments become blanks before the text is cut into tokens: sqlglot does not know `GROUP /* here
# */ BY` for GROUP BY.

_NEXT = re.compile(
    r"""(?<!\w)[rR]'[^']*' | (?<!\w)[rR]"[^"]*" | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `[^`]*` | --[^\r\n]* | /\*""",
    re.DOTALL | re.VERBOSE,
)


class OpenComment(ValueError):
    """A comment that is never closed; `start` is where it begins."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start


def blank_comments(text: str) -> str:
    """Return the text with every comment replaced by blanks, so that all offsets stay. Hints (`/*+ ... */`) stay too.

    >>> blank_comments("a /* /* b */ */ '--' -- c")
    "a               '--'     "

    Raises:
        OpenComment: a comment is not closed.
    """
    parts = []
    position = 0
    while match := _NEXT.search(text, position):
        parts.append(text[position : match.start()])
        end = _comment_end(text, match.start()) if match.group() == "/*" else match.end()
        piece = text[match.start() : end]
        comment = piece.startswith("--") or (piece.startswith("/*") and not piece.startswith("/*+"))
        parts.append(re.sub(r"[^\r\n]", " ", piece) if comment else piece)
        position = end
    return "".join([*parts, text[position:]])


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for match in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return start + match.end()
    raise OpenComment(start)


# Places of the words that open a construct (`CAST (`, `LEFT JOIN`, the name before `=>`), which
# sqlglot drops.

_BRACKET = (frozenset({"("}),)
JOINING = frozenset(
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
    exp.Join: JOINING,
    exp.Lateral: frozenset({"LATERAL", "VIEW", "OUTER"}),
    exp.Case: frozenset({"CASE", "WHEN"}),
}
"""Any run of these words right before the first positioned part."""


def place_openings(tree: exp.Expr, tokens: Sequence[Token]) -> None:
    """Stamp the nodes whose opening words are found, innermost first."""
    token_index = {token.start: i for i, token in enumerate(tokens)}
    for node in reversed(list(tree.walk())):
        if type(node) not in _EXACT and type(node) not in _RUNS:
            continue
        start, end = node_span(node, tokens)
        first = token_index.get(start, 0)
        if type(node) in _RUNS:
            opening = _run(tokens, first, _RUNS[type(node)])
        else:
            opening = _exact_opening(tokens, first, _EXACT[type(node)], type(node) is exp.Kwarg)
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


def _exact_opening(
    tokens: Sequence[Token], first: int, words: tuple[frozenset[str], ...], has_name: bool
) -> int | None:
    count = len(words)
    previous_words = [token.text.upper() for token in tokens[max(0, first - count) : first]]
    matches = len(previous_words) == count and all(
        text in word for text, word in zip(reversed(previous_words), words, strict=True)
    )
    if not matches:
        return None
    return max(0, first - count - has_name)  # a named argument starts at its name


def _run(tokens: Sequence[Token], first: int, words: frozenset[str]) -> int | None:
    start = first
    while start > 0 and tokens[start - 1].text.upper() in words:
        start -= 1
    return start if start < first else None


# From text to tree: the checks that come before grammar, and the grammar.

EXAMPLE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (...) ... FROM ... GROUP BY window(ts, '1 day'), ..."
)
BYTE_ORDER_MARK = "\ufeff"


class Refused(Exception):
    """Problems that end the reading at once."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__()
        self.problems = problems


@dataclass(frozen=True)
class Script:
    """A text that is one statement by its grammar: its tokens (without semicolons) and its tree."""

    text: str
    tokens: tuple[Token, ...]
    tree: exp.Expr


@dataclass(frozen=True)
class Lexed:
    """A text cut into tokens."""

    text: str
    tokens: tuple[Token, ...]


def control_characters(lexed: Lexed) -> Iterator[Problem]:
    """Reject NUL and its kin, half characters of broken UTF-8, and line ends that editors do not
    agree on."""
    for match in re.finditer(
        "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]|\r(?!\n)", lexed.text
    ):
        code = f"U+{ord(match.group()):04X}"
        message = f"The text has the character {code}, which SQL text may not have"
        yield problem(
            match.span(), message, "save the file as plain UTF-8 text and delete the character"
        )
        return


def blank_characters(lexed: Lexed) -> Iterator[Problem]:
    """Reject blanks that are not a space: they look like one, and are read as part of a name."""
    for token in lexed.tokens:
        for index, char in enumerate(token.text if token.token_type == TokenType.VAR else ""):
            if unicodedata.category(char) == "Cf":
                place = (token.start + index, token.start + index + 1)
                yield problem(
                    place,
                    f"The invisible character U+{ord(char):04X} stands in the text",
                    "delete it",
                )


def parameters(lexed: Lexed) -> Iterator[Problem]:
    """Reject `@p`, `:p`, `?`, `{{ p }}` and `${p}`: a file holds one concrete query."""
    hint = "write the value itself: a file holds one concrete query"
    parameter_end = 0
    for i, token in enumerate(lexed.tokens):
        spelling = lexed.text[token.start : token.end + 1]
        quoted = token.token_type in (TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER)
        if quoted and "${" in spelling:
            yield problem(token_span(token), "Spark would replace `${...}` inside quotes", hint)
        starts = token.token_type in (
            TokenType.PARAMETER,
            TokenType.COLON,
            TokenType.PLACEHOLDER,
            TokenType.L_BRACE,
        )
        if starts and token.start >= parameter_end:
            last = _parameter_end(lexed.tokens, i)
            parameter_end = last.end + 1
            yield problem(token_span(token, last), "Parameters are not accepted", hint)


def _parameter_end(tokens: Sequence[Token], i: int) -> Token:
    if any(token.token_type == TokenType.L_BRACE for token in tokens[i : i + 2]):
        closing = [token for token in tokens[i:] if token.token_type == TokenType.R_BRACE]
        last = closing[0] if closing else tokens[i]
        next_index = tokens.index(last) + 1
        return (
            tokens[next_index]
            if next_index < len(tokens) and tokens[next_index].token_type == TokenType.R_BRACE
            else last
        )
    has_name = tokens[i].token_type != TokenType.PLACEHOLDER and i + 1 < len(tokens)
    return tokens[i + 1] if has_name else tokens[i]


def empty_file(lexed: Lexed) -> Iterator[Problem]:
    """Reject a file that holds nothing but comments."""
    if not _statements(lexed.tokens):
        yield problem((0, 1), "The file holds no query", f"write one query: {EXAMPLE}")


def several_statements(lexed: Lexed) -> Iterator[Problem]:
    """Reject a file of several statements: one file is one query."""
    statements = _statements(lexed.tokens)
    if len(statements) > 1:
        yield problem(
            token_span(*statements[1]),
            "A file holds one statement, and a second one starts here",
            "put it into a file of its own",
        )


def other_statements(lexed: Lexed) -> Iterator[Problem]:
    """Reject INSERT, CREATE, SHOW and other statements."""
    first = next((token for token in lexed.tokens if token.token_type != TokenType.SEMICOLON), None)
    if first is not None and first.token_type not in (TokenType.SELECT, TokenType.WITH):
        word = first.text.upper()
        yield problem(
            token_span(first), f"A query starts with SELECT, not with `{word}`", f"write {EXAMPLE}"
        )


def pipes(lexed: Lexed) -> Iterator[Problem]:
    """Reject `|>`: sqlglot would rewrite it silently."""
    for token in lexed.tokens:
        if token.token_type == TokenType.PIPE_GT:
            yield problem(
                token_span(token), "Pipe syntax is not accepted", "write a sub-query in FROM"
            )


TextRule = Callable[[Lexed], Iterator[Problem]]
TEXT_RULES: tuple[TextRule, ...] = (
    blank_characters,
    empty_file,
    other_statements,
    several_statements,
    parameters,
    pipes,
)
"""Checks on the tokens; the first that finds something ends the reading."""


def read_script(text: str) -> Script:
    """Cut into tokens and parse.

    Raises:
        Refused: the text is not one SELECT statement by its grammar.
    """
    text = " " + text[1:] if text.startswith(BYTE_ORDER_MARK) else text
    if problems := tuple(control_characters(Lexed(text, ()))):
        raise Refused(*problems)
    try:
        text = blank_comments(text)
    except OpenComment as comment:
        place = (comment.start, comment.start + 2)
        raise Refused(
            problem(place, "The text ends inside a comment", "add the closing */")
        ) from None
    lexed = Lexed(text, _tokens(text))
    for rule in TEXT_RULES:
        if problems := tuple(rule(lexed)):
            raise Refused(*problems)
    tokens = tuple(prepare(_statements(lexed.tokens)[0]))
    return Script(text, tokens, _tree(text, tokens))


def _tokens(text: str) -> tuple[Token, ...]:
    try:
        return tuple(DpSpark().tokenize(text))
    except SqlglotError as error:
        raise Refused(_token_problem(text, str(error.__cause__))) from None


def _token_problem(text: str, cause: str) -> Problem:
    """Translate sqlglot's `Missing ' from line:offset` or `Numeric string ... from line:offset`."""
    match = re.search(r" from \d+:(\d+)$", cause)
    start = min(int(match.group(1)), len(text.rstrip()) - 1) if match else 0
    if missing := re.search(r"Missing (.+) from", cause):
        closing = missing.group(1)
        return problem(
            (start, start + 1),
            f"The text ends before the closing {closing}",
            f"add the closing {closing}",
        )
    return problem(
        (start, start + 1),
        "These hexadecimal digits cannot be read",
        "write digits 0-9 and A-F between the quotes",
    )


def _statements(tokens: Sequence[Token]) -> list[list[Token]]:
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def _tree(text: str, tokens: tuple[Token, ...]) -> exp.Expr:
    dialect = DpSpark()
    try:
        trees = dialect.parser().parse(list(tokens), text)
    except GrammarError as error:
        raise Refused(_syntax_problem(error, tokens)) from None
    except RecursionError:
        raise
    except (
        Exception
    ):  # sqlglot's lenient parser can trip over its own assumptions on text that is not SQL
        raise Refused(
            problem(token_span(tokens[0]), "This statement cannot be read", f"write {EXAMPLE}")
        ) from None
    tree = trees[0] if len(trees) == 1 else None
    if tree is None:
        raise Refused(
            problem(token_span(tokens[0]), "This statement cannot be read", f"write {EXAMPLE}")
        )
    _keep_spelling(tree, text)
    place_openings(tree, tokens)
    return tree


def _syntax_problem(error: GrammarError, tokens: tuple[Token, ...]) -> Problem:
    at_end = not error.token or not error.token.text
    token = tokens[-1] if at_end or error.token is None else error.token
    near = "at the end of the query" if at_end else f"at `{token.text}`"
    message = error.message
    if message.startswith("Invalid expression"):
        message = "The query ends too early" if at_end else f"Unexpected `{token.text}`"
    elif message.startswith("Required argument"):
        message = f"Something is missing {near}"
    elif message.startswith("Expecting"):
        message = f"Expected `{message.removeprefix('Expecting').strip()}` {near}"
    hint = {
        "Hints like": "delete the hint",
        "Expected `DIFFERENTIAL_PRIVACY`": "the clause is WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, ...)",
        "Expected `(` after OPTIONS": "write OPTIONS (epsilon = 1, ...)",
        "Expected an option": "write options as name = value, with a comma between them",
        "Expected `=`": "write options as name = value, with a comma between them",
        "Expected `,`": "write options as name = value, with a comma between them",
    }
    advice = next(
        (text for start, text in hint.items() if message.startswith(start)),
        "check the commas, quotes and parentheses before it",
    )
    if (
        advice.startswith("check")
        and not at_end
        and token.token_type != TokenType.VAR
        and re.fullmatch(r"[A-Za-z_]+", token.text)
    ):
        advice = (
            f"`{token.text}` is a word of SQL: to name a column write it in backquotes; or {advice}"
        )
    return problem(token_span(token), message, advice)


def _keep_spelling(tree: exp.Expr, text: str) -> None:
    """Stamp string literals that hold escapes with their spelling."""
    for node in tree.find_all(exp.Literal, exp.RawString):
        if "start" not in node.meta:
            continue
        spelling = text[node.meta["start"] : node.meta["end"] + 1]
        if isinstance(node, exp.RawString) or (
            node.is_string and re.search(r"[\\'\"]", spelling[1:-1])
        ):
            node.meta["verbatim"] = spelling
