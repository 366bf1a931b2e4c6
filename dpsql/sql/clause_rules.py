"""Rules on the clause WITH DIFFERENTIAL_PRIVACY OPTIONS (...)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlglot.tokens import TokenType

from dpsql.errors import Problem
from dpsql.parsed_query import PrivacyLevel
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option, read_option
from dpsql.sql.text import problem, token_span
from dpsql.sql.values import nearest

SELECTION_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "min_privacy_units_per_group": lambda value: value is not None and value > 1,
    "carry_windows": lambda value: value is not None and value > 1,
}
"""Options of key selection, and which of their values ask for it."""


def clause_missing(draft: Draft) -> Iterator[Problem]:
    """A plain SELECT."""
    if draft.clause.args.get("absent"):
        yield problem(
            draft.clause_span,
            "The query has no differential-privacy clause",
            f"write SELECT {_example(draft)}",
        )


def options_missing(draft: Draft) -> Iterator[Problem]:
    """The clause without OPTIONS."""
    if not draft.clause.args.get("has_options") and not draft.clause.args.get("absent"):
        yield problem(
            draft.clause_span,
            "The differential-privacy clause has no OPTIONS",
            f"write {_example(draft)}",
        )


def _example(draft: Draft) -> str:
    """Return the clause as it would be for the source that the query reads."""
    unit = draft.stream.privacy_unit if draft.stream else ()
    column = unit[0] if len(unit) == 1 else f"({', '.join(unit)})" if unit else "user_id"
    return options.EXAMPLE_CLAUSE.replace("user_id", column)


def option_names_quoted(draft: Draft) -> Iterator[Problem]:
    """Names in quotes: sqlglot reads them, the dialect does not have them."""
    for given in draft.givens:
        if given.name_token.token_type in (
            TokenType.STRING,
            TokenType.IDENTIFIER,
            TokenType.NUMBER,
        ):
            yield problem(
                given.name_span,
                "Option names are written without quotes",
                f"write {given.name} = ...",
            )


def option_operators(draft: Draft) -> Iterator[Problem]:
    """`==`, `=>`, `:=`."""
    for given in draft.givens:
        if given.operator.text != "=":
            yield problem(
                token_span(given.operator),
                f"Options are written with `=`, not with `{given.operator.text}`",
                f"write {given.name} = ...",
            )


def unknown_options(draft: Draft) -> Iterator[Problem]:
    """Names that no system has."""
    known = [option.name for option in draft.options]
    for given in draft.givens:
        if (
            given.name not in (*known, options.STRATEGY)
            and given.name not in options.FOREIGN_OPTIONS
        ):
            guess = nearest(given.name, known)
            hint = f"did you mean {guess}?" if guess else f"the options are {', '.join(known)}"
            yield problem(
                given.name_span, f"Unknown differential privacy option: {given.name}", hint
            )


def foreign_options(draft: Draft) -> Iterator[Problem]:
    """Names of GoogleSQL and its relatives."""
    for given in draft.givens:
        if hint := options.FOREIGN_OPTIONS.get(given.name):
            yield problem(
                given.name_span, f"The option {given.name} is not part of this dialect", hint
            )


def duplicate_options(draft: Draft) -> Iterator[Problem]:
    """The same option twice."""
    seen: set[str] = set()
    for given in draft.givens:
        if given.name in seen:
            yield problem(
                given.name_span,
                f"Duplicate differential privacy option specified for '{given.name}'",
                "keep one of them",
            )
        seen.add(given.name)


def option_values(draft: Draft) -> Iterator[Problem]:
    """Types, ranges and enum values."""
    known = {option.name: option for option in draft.options}
    for given in draft.givens:
        if given.name in known and given is draft.given(given.name):
            _, wrong = read_option(known[given.name], given)
            if wrong is not None:
                yield problem(given.value_span, *wrong)


def strategy_holds(draft: Draft) -> Iterator[Problem]:
    """GoogleSQL's word for how groups are found says what holds without it."""
    given = draft.given(options.STRATEGY)
    word = given.words[0].text.upper() if given and len(given.words) == 1 else ""
    if not given or word in (
        ("PUBLIC_GROUPS",) if draft.listed else ("THRESHOLD", "LAPLACE_THRESHOLD")
    ):
        return
    if word == "PUBLIC_GROUPS":
        yield problem(
            given.value_span,
            "PUBLIC_GROUPS needs the list of groups",
            "add public_groups = (SELECT page FROM pages)",
        )
    else:
        what = "are listed" if draft.listed else "are selected by a noisy threshold"
        yield problem(
            given.value_span,
            f"The groups of this query {what}",
            f"leave {given.name} out: public_groups = (...) alone lists groups",
        )


def unit_declared(draft: Draft) -> Iterator[Problem]:
    """The privacy unit is the one that the source declares."""
    given = draft.given("privacy_unit_column")
    columns = draft.values.get("privacy_unit_column")
    if not given or not columns or not draft.stream:
        return
    declared = draft.stream.privacy_unit
    if not declared:
        message = f"The source {draft.stream.name} declares no privacy unit"
        hint = f"add privacy_unit under sources.{draft.stream.name} in sources.yaml, or protect rows: privacy_level = EVENT without units"
        yield problem(given.value_span, message, hint)
        return
    names = [column.name.lower() for column in columns]
    if sorted(names) != sorted(declared):
        shown = declared[0] if len(declared) == 1 else f"({', '.join(declared)})"
        message = (
            f"The privacy unit of the source {draft.stream.name} is {shown}, not {', '.join(names)}"
        )
        yield problem(given.value_span, message, f"write privacy_unit_column = {shown}")


def unit_untouched(draft: Draft) -> Iterator[Problem]:
    """The privacy unit's columns come straight from the source."""
    given = draft.given("privacy_unit_column")
    columns = draft.values.get("privacy_unit_column")
    if not given or not columns or not draft.stream:
        return
    for column in columns:
        name = column.name.lower()
        found = draft.scope.find(column)
        judged = name in draft.stream.privacy_unit and not any(
            relation.unknown for relation in draft.scope.relations
        )
        if judged and [field.origin for field in found] != [(draft.stream.name, name)]:
            message = f"The privacy unit may not be computed or renamed: FROM does not pass `{name}` on as {draft.stream.name} has it"
            yield problem(
                draft.span(column),
                message,
                f"select {name} itself in the sub-query, under its own name and once",
            )


def missing_options(draft: Draft, required: Sequence[Option]) -> Iterator[Problem]:
    """Options that a mechanism cannot do without; a misspelt one is not missing."""
    if not draft.clause.args.get("has_options"):
        return
    known = [option.name for option in draft.options]
    misspelt = {nearest(given.name, known) for given in draft.givens if given.name not in known}
    for option in required:
        if not draft.given(option.name) and option.name not in misspelt:
            yield problem(
                draft.clause_span, f"The option {option.name} is required", f"add {option.example}"
            )


def required_options(draft: Draft) -> Iterator[Problem]:
    """Options without a default, in a query of windows; where one row is protected there is no unit to bound."""
    rows = () if options.all_rows(draft) else (options.MAX_ROWS_CONTRIBUTED,)
    of_units = (
        ()
        if draft.value("privacy_level") is PrivacyLevel.EVENT
        else (options.PRIVACY_UNIT_COLUMN, *rows)
    )
    yield from missing_options(draft, (options.EPSILON, options.DELTA, *of_units))


def _above_rows(draft: Draft, name: str) -> Iterator[Problem]:
    given = draft.given(name)
    value = draft.value(name)
    rows = draft.value("max_rows_contributed")
    if given and value and rows and value > rows:
        message = f"{name} is {value}, but a user has at most max_rows_contributed = {rows} records"
        yield problem(
            given.value_span,
            message,
            f"write {name} = {rows} or less, or leave it out (the default is {rows})",
        )


def rows_per_group_above_rows(draft: Draft) -> Iterator[Problem]:
    """c above C."""
    return _above_rows(draft, "max_rows_per_group")


def groups_above_rows(draft: Draft) -> Iterator[Problem]:
    """G above C."""
    return _above_rows(draft, "max_groups_contributed")


def delta_above_zero(draft: Draft) -> Iterator[Problem]:
    """Gaussian noise keeps no promise with delta = 0."""
    given = draft.given("delta")
    if given and draft.value("delta") == 0:
        yield problem(
            given.value_span,
            "delta must be above 0",
            "write a small positive number, for example delta = 1e-9",
        )


def selection_without_keys(draft: Draft) -> Iterator[Problem]:
    """Options of key selection where no key is selected."""
    if not draft.listed and not draft.keyless:
        return
    where = "with public_groups"
    hint = "leave it out: it belongs to keys that are selected"
    if not draft.listed:
        where = "in a query without a key"
        hint = "leave it out: it belongs to a query with keys"
    for name, asks in SELECTION_OPTIONS.items():
        given = draft.given(name)
        if given and asks(draft.value(name)):
            yield problem(
                given.name_span, f"{name} has no meaning {where}: no key is selected", hint
            )
