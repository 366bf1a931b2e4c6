"""Every error that dpsql raises on purpose.

    DpsqlError                     exit code 1
    ├── InputError                 exit code 2: the user can mend it (also a ValueError)
    │   ├── QueryError             the SQL text; holds one Problem per mistake, in text order
    │   ├── ConfigError            sources.yaml, options, flags, environment
    │   ├── DataError              the input files: missing, unreadable, wrong columns or types
    │   │   └── Unreachable        a master or a broker that does not answer; exit code 1, for it may do so later
    │   ├── LakeError              the lake or the checkpoints: foreign, lost, belongs to another query
    │   │   └── NothingPublished   a query that has released no row yet
    │   ├── SparkOnly              what the local engine does not compute
    │   ├── SecretError            the secret file: readable by others, foreign, malformed
    │   └── BudgetError            the ledger: a cap would be exceeded
    ├── AccountingError            a finished plan that does not keep its promise: a bug, never released
    └── ReleaseConflict            a trigger already published would be published with other rows

No message ever quotes a value of a record: only names, types, positions and public numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


class DpsqlError(Exception):
    """The root of all; its text is shown to the user without a traceback."""

    exit_code = 1


class InputError(DpsqlError, ValueError):
    """Something the user gave is wrong: the message says what, where, and what would be accepted."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the message alone, as the lines of our code that made it help nobody."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Edit:
    """Text for a place of a query.

    Args:
        start, end: character offsets of what goes (end exclusive); equal where text is only added.
        text: what stands there instead.
        why: what the result then is, for whoever expects another one; empty where it is the same.
    """

    start: int
    end: int
    text: str
    why: str = ""


@dataclass(frozen=True)
class Proposal:
    """A whole query that is accepted, and what its edits change."""

    text: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (f"write:\n{self.text}", "\n".join(self.reasons))))


@dataclass(frozen=True)
class Problem:
    """One mistake in a query.

    Args:
        message: what is wrong, in one sentence without a final period.
        hint: the change that would be accepted.
        start, end: character offsets of the offending text in the file (end exclusive).
        edits: the same change as text, where it can be written down.
    """

    message: str
    hint: str
    start: int
    end: int
    edits: tuple[Edit, ...] = ()


class QueryError(InputError):
    """The SQL is refused.

    `problems` are in text order, and `proposal` is a query without any, where their edits make one; `str()` renders all of them with the text
    underlined, and the query.
    """

    def __init__(
        self,
        text: str,
        problems: tuple[Problem, ...],
        name: str = "query",
        proposal: Proposal | None = None,
    ) -> None:
        self.text = text
        self.problems = problems
        self.name = name
        self.proposal = proposal
        rendered = [render(text, problem, name) for problem in problems]
        rendered += [str(proposal)] if proposal else []
        super().__init__("\n\n".join(rendered))


def position(text: str, offset: int) -> tuple[int, int]:
    """Return line and column, both from 1, of a character offset."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def render(text: str, problem: Problem, name: str) -> str:
    """Render `name:line:column: message`, the line of SQL, carets under the offending text, and the
    hint."""
    line, column = position(text, problem.start)
    source = text.splitlines()[line - 1] if text.splitlines() else ""
    width = max(1, min(problem.end, problem.start + len(source) - column + 1) - problem.start)
    shown = source.replace("\t", " ")
    return f"{name}:{line}:{column}: {problem.message}\n  {shown}\n  {' ' * (column - 1)}{'^' * width}\n  {problem.hint}"


class ConfigError(InputError):
    """Configuration: the message ends with the path inside the file, like `at sources.visits.max_users`."""


class DataError(InputError):
    """An input that cannot be read at all, or whose columns or types do not fit the query."""


class Unreachable(DataError):
    """A master or a broker that does not answer; it may do so later."""

    exit_code = 1


class LakeError(InputError):
    """A lake or checkpoint that this run must not touch."""


class NothingPublished(LakeError):
    """A public table that is empty: whoever follows the run waits."""


class SparkOnly(InputError):
    """An expression that the local engine does not compute.

    Args:
        what: the expression, or its function.
        instead: another spelling, which it does compute; may be empty.
    """

    def __init__(self, expression: str, instead: str = "") -> None:
        self.what = expression
        other = f", or write {instead}" if instead else ""
        super().__init__(
            f"`{expression}` runs on Spark only: use `dpsql run --until-caught-up`{other} (docs/reference.md lists which functions run where)"
        )


class SecretError(InputError):
    """A secret that may not be used."""


class BudgetError(InputError):
    """A run that would spend more than a source's cap."""


class AccountingError(DpsqlError):
    """The accountant's own (epsilon, delta) of a finished plan exceeds what the query promises."""


class ReleaseConflict(DpsqlError):
    """A (window, trigger) was published before with other rows; nothing was written."""
