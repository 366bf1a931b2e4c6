"""Rules on the clause WITH DIFFERENTIAL_PRIVACY OPTIONS (...)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlglot.tokens import TokenType

from dpsql.errors import Edit, Problem
from dpsql.sources.policy import NO_POLICY
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option, read_option
from dpsql.sql.edits import insertion, known_word, removal, removal_problem, replacement
from dpsql.sql.event_rules import event
from dpsql.sql.googlesql import inner_query, unit_renamed
from dpsql.sql.text import problem, token_span
from dpsql.sql.values import nearest, suggest

SELECTION_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "min_privacy_units_per_group": lambda value: value is not None and value > 1,
    "carry_windows": lambda value: value is not None and value > 1,
}
"""Options of key selection, and which of their values ask for it."""


def clause_missing(draft: Draft) -> Iterator[Problem]:
    """Reject a plain SELECT without the clause."""
    if draft.clause.args.get("absent"):
        yield problem(
            draft.clause_span,
            "The query has no differential-privacy clause",
            f"write SELECT {options.EXAMPLE_CLAUSE}",
            *(inner_query(draft) or _private(draft)),
        )


def _private(draft: Draft) -> list[Edit]:
    """Return the edit that asks for privacy, where the source's policy says with which epsilon."""
    if options.policy_of(draft).max_epsilon_per_query is None:
        return []
    return [insertion(draft.clause_span[1], " WITH DIFFERENTIAL_PRIVACY")]


def options_missing(draft: Draft) -> Iterator[Problem]:
    """Reject the clause without OPTIONS, where no policy says the epsilon."""
    if draft.value(options.EPSILON.name) is not None:
        return
    if not draft.clause.args.get("has_options") and not draft.clause.args.get("absent"):
        yield problem(
            draft.clause_span,
            "The differential-privacy clause has no OPTIONS",
            f"write {options.EXAMPLE_CLAUSE}",
        )


def option_names_quoted(draft: Draft) -> Iterator[Problem]:
    """Reject option names in quotes: sqlglot reads them, the dialect does not have them."""
    for entry in draft.entries:
        if entry.name_token.token_type in (
            TokenType.STRING,
            TokenType.IDENTIFIER,
            TokenType.NUMBER,
        ):
            yield problem(
                entry.name_span,
                "Option names are written without quotes",
                f"write {entry.name} = ...",
                replacement(entry.name_span, entry.name),
            )


def option_operators(draft: Draft) -> Iterator[Problem]:
    """Reject `==`, `=>` and `:=` after the name of an option."""
    for entry in draft.entries:
        if entry.operator.text != "=":
            yield problem(
                token_span(entry.operator),
                f"Options are written with `=`, not with `{entry.operator.text}`",
                f"write {entry.name} = ...",
                replacement(token_span(entry.operator), "="),
            )


def unknown_options(draft: Draft) -> Iterator[Problem]:
    """Reject option names that no system has."""
    option_names = [option.name for option in draft.options]
    foreign_names = {
        *options.FOREIGN_OPTIONS,
        *options.RENAMED_OPTIONS,
        *options.NEEDLESS_OPTIONS,
        options.STRATEGY,
    }
    for entry in draft.entries:
        if entry.name not in foreign_names.union(option_names):
            options_text = f"the options are {', '.join(option_names)}"
            hint = suggest(entry.name, option_names, options_text)
            yield problem(
                entry.name_span,
                f"Unknown differential privacy option: {entry.name}",
                hint,
                *known_word(entry.name_span, entry.name, option_names),
            )


def foreign_options(draft: Draft) -> Iterator[Problem]:
    """Reject option names of GoogleSQL and its relatives."""
    for entry in draft.entries:
        message = f"The option {entry.name} is not part of this dialect"
        span = entry.name_span
        if hint := options.FOREIGN_OPTIONS.get(entry.name):
            yield problem(span, message, hint)
        elif name := options.RENAMED_OPTIONS.get(entry.name):
            names = [options.RENAMED_OPTIONS.get(other.name, other.name) for other in draft.entries]
            edits = [replacement(span, name)] if names.count(name) == 1 else []
            yield problem(span, message, f"write {name}", *edits)
        elif reason := options.NEEDLESS_OPTIONS.get(entry.name):
            yield removal_problem(span, message, reason, removal(entry.span, draft.tokens, reason))


def duplicate_options(draft: Draft) -> Iterator[Problem]:
    """Reject an option that is written twice."""
    names: set[str] = set()
    for entry in draft.entries:
        if entry.name in names:
            yield problem(
                entry.name_span,
                f"Duplicate differential privacy option specified for '{entry.name}'",
                "keep one of them",
            )
        names.add(entry.name)


def option_values(draft: Draft) -> Iterator[Problem]:
    """Reject option values of a wrong type, range or enum."""
    options_by_name = {option.name: option for option in draft.options}
    for entry in draft.entries:
        if entry.name not in options_by_name or entry is not draft.entry(entry.name):
            continue
        _, wrong = read_option(options_by_name[entry.name], entry)
        if entry.name == options.MAX_GROUPS_CONTRIBUTED.name and entry.is_null:
            message = (
                "Without a bound on groups only each group of a unit is protected, not the unit"
            )
            reason = f"{entry.name} is {options.GROUPS} where it is not written"
            yield removal_problem(
                entry.value_span, message, reason, removal(entry.span, draft.tokens, reason)
            )
        elif wrong is not None:
            yield problem(entry.value_span, *wrong)


def strategy_holds(draft: Draft) -> Iterator[Problem]:
    """Reject GoogleSQL's word for how groups are found where it contradicts the query."""
    entry = draft.entry(options.STRATEGY)
    word = entry.words[0].text.upper() if entry and len(entry.words) == 1 else ""
    if not entry or word in (
        ("PUBLIC_GROUPS",) if draft.listed else ("THRESHOLD", "LAPLACE_THRESHOLD")
    ):
        return
    if word == "PUBLIC_GROUPS" and draft.keyless:
        reason = "a query without a key has no groups to select"
        message = "PUBLIC_GROUPS has no meaning without a key"
        edit = removal(entry.span, draft.tokens, reason)
        yield removal_problem(entry.value_span, message, reason, edit)
    elif word == "PUBLIC_GROUPS":
        yield problem(
            entry.value_span,
            "PUBLIC_GROUPS needs the list of groups",
            "add public_groups = (SELECT page FROM pages)",
        )
    else:
        selection = "are listed" if draft.listed else "are selected by a noisy threshold"
        reason = "public_groups = (...) alone lists groups"
        yield removal_problem(
            entry.value_span,
            f"The groups of this query {selection}",
            reason,
            removal(entry.span, draft.tokens, reason),
        )


def within_policy(draft: Draft) -> Iterator[Problem]:
    """Reject a query that asks for more than the source's policy allows."""
    policy = options.policy_of(draft)
    if draft.stream is None or policy == NO_POLICY:
        return
    place = draft.stream.place("policy")
    limits = {
        options.EPSILON.name: ("max_epsilon_per_query", policy.max_epsilon_per_query),
        options.DELTA.name: ("delta_per_query", policy.delta_per_query),
    }
    for name, (setting, limit) in limits.items():
        entry = draft.entry(name)
        value = draft.values.get(name)
        if entry and limit is not None and value is not None and value > limit:
            message = f"{name} is {value:g}, and the policy of {draft.stream.name} has {setting}: {limit:g}"
            yield problem(entry.value_span, message, f"write {name} = {limit:g} or less ({place})")
    level = draft.values.get(options.PRIVACY_LEVEL.name)
    entry = draft.entry(options.PRIVACY_LEVEL.name)
    if entry and level is not None and level is not policy.protects:
        message = f"The policy of {draft.stream.name} is of level {policy.protects}, and caps of two levels do not add up for a person"
        yield problem(entry.value_span, message, f"leave privacy_level out ({place})")


def unit_declared(draft: Draft) -> Iterator[Problem]:
    """Reject a privacy unit other than the one that the source declares."""
    entry = draft.entry("privacy_unit_column")
    columns = draft.value("privacy_unit_column")
    if columns is None or not draft.stream or (event(draft) and not entry):
        return
    span = entry.value_span if entry else draft.clause_span
    declared = draft.stream.privacy_unit
    if not declared:
        message = f"The source {draft.stream.name} declares no privacy unit"
        hint = f"{draft.stream.declared('privacy_unit', 'user_id')}, or protect rows: privacy_level = EVENT without units"
        yield problem(span, message, hint)
        return
    names = [column.name.lower() for column in columns]
    if sorted(names) != sorted(declared):
        unit_text = declared[0] if len(declared) == 1 else f"({', '.join(declared)})"
        message = f"The privacy unit of the source {draft.stream.name} is {unit_text}, not {', '.join(names)}"
        edits = (
            [replacement(span, unit_text, "the source declares whom it protects")] if entry else []
        )
        yield problem(span, message, f"write privacy_unit_column = {unit_text}", *edits)


def unit_untouched(draft: Draft) -> Iterator[Problem]:
    """Reject a privacy unit whose columns do not come straight from the source."""
    entry = draft.entry("privacy_unit_column")
    columns = draft.value("privacy_unit_column")
    if not columns or not draft.stream or event(draft):
        return
    for column in columns:
        name = column.name.lower()
        fields = draft.scope.find(column)
        judged = name in draft.stream.privacy_unit and not draft.scope.is_unknown
        if judged and [field.origin for field in fields] != [(draft.stream.name, name)]:
            message = f"The privacy unit may not be computed or renamed: FROM does not pass `{name}` on as {draft.stream.name} has it"
            yield problem(
                draft.span(column) if entry else draft.clause_span,
                message,
                f"select {name} itself in the sub-query, under its own name and once",
                *unit_renamed(draft, name),
            )


def missing_options(draft: Draft, required: Sequence[Option]) -> Iterator[Problem]:
    """Reject a query without options that its mechanism needs; a misspelt one is not missing."""
    if not draft.clause.args.get("has_options"):
        return  # a rule of its own looks at it
    option_names = [option.name for option in draft.options]
    misspelt = {
        nearest(entry.name, option_names)
        for entry in draft.entries
        if entry.name not in option_names
    }
    for option in required:
        is_there = draft.entry(option.name) or option.default(draft) is not None
        if not is_there and option.name not in misspelt:
            hint = f"add {option.example}"
            if option is options.MAX_ROWS_CONTRIBUTED and draft.stream:
                unit = ", ".join(draft.stream.privacy_unit)
                hint = f"say how many rows of one {unit} may be in the table at a time: {option.example}"
            yield problem(draft.clause_span, f"The option {option.name} is required", hint)


def required_options(draft: Draft) -> Iterator[Problem]:
    """Reject a query of windows without its required options; where one row is protected there is
    no unit to bound."""
    required = [options.EPSILON]
    if not event(draft):
        has_rows = draft.value("max_rows_contributed") or draft.entry("max_rows_contributed")
        required += [] if has_rows else [options.MAX_ROWS_CONTRIBUTED]
    yield from missing_options(draft, required)


def _above_rows(draft: Draft, name: str) -> Iterator[Problem]:
    entry = draft.entry(name)
    value = draft.value(name)
    rows = draft.value("max_rows_contributed")
    if entry and value and rows and value > rows:
        message = f"{name} is {value}, but a user has at most max_rows_contributed = {rows} records"
        yield problem(
            entry.value_span,
            message,
            f"write {name} = {rows} or less, or leave it out (the default is {rows})",
        )


def rows_per_group_above_rows(draft: Draft) -> Iterator[Problem]:
    """Reject max_rows_per_group above max_rows_contributed."""
    return _above_rows(draft, "max_rows_per_group")


def groups_above_rows(draft: Draft) -> Iterator[Problem]:
    """Reject max_groups_contributed above max_rows_contributed."""
    if options.only_group(draft):
        return iter(())
    return _above_rows(draft, "max_groups_contributed")


def delta_above_zero(draft: Draft) -> Iterator[Problem]:
    """Reject delta = 0, with which Gaussian noise guarantees nothing."""
    entry = draft.entry("delta")
    if entry and draft.value("delta") == 0:
        yield problem(
            entry.value_span,
            "delta must be above 0",
            "write a small positive number, for example delta = 1e-9",
        )


def selection_without_keys(draft: Draft) -> Iterator[Problem]:
    """Reject options of key selection where no key is selected."""
    if not draft.listed and not draft.keyless:
        return
    where = "with public_groups"
    hint = "leave it out: it belongs to keys that are selected"
    if not draft.listed:
        where = "in a query without a key"
        hint = "leave it out: it belongs to a query with keys"
    for name, asks in SELECTION_OPTIONS.items():
        entry = draft.entry(name)
        if entry and asks(draft.value(name)):
            yield problem(
                entry.name_span, f"{name} has no meaning {where}: no key is selected", hint
            )
