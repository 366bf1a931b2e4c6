"""Comments become blanks before the text is cut into tokens: sqlglot does not know `GROUP /* here */ BY` for GROUP BY."""

from __future__ import annotations

import re

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
    """The text with every comment replaced by blanks, so that all offsets stay. Hints (`/*+ ... */`) stay too.

    >>> blank_comments("a /* /* b */ */ '--' -- c")
    "a               '--'     "

    Raises:
        OpenComment: a comment is not closed.
    """
    parts = []
    at = 0
    while match := _NEXT.search(text, at):
        parts.append(text[at : match.start()])
        end = _comment_end(text, match.start()) if match.group() == "/*" else match.end()
        piece = text[match.start() : end]
        comment = piece.startswith("--") or (piece.startswith("/*") and not piece.startswith("/*+"))
        parts.append(re.sub(r"[^\r\n]", " ", piece) if comment else piece)
        at = end
    return "".join([*parts, text[at:]])


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for match in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return start + match.end()
    raise OpenComment(start)
