"""Removing any validation rule must change what is said of a golden query. Rules are functions of the draft alone, so what a rule adds to a
query is found by running it once. Rules kept as data (option checks, function families, refused constructs and clauses, signatures) are
removed one by one, and the rules that read them run again."""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from unittest import mock

import pytest
from sqlglot import exp

from dpsql.errors import Problem
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.sql import (
    aggregate_rules,
    aggregates,
    allowed,
    clause_rules,
    from_rules,
    options,
    parse,
    row_local,
    select_rules,
    text,
)
from dpsql.sql.draft import Draft, Option
from dpsql.sql.text import Refused
from tests.sql.golden import Golden, goldens, sources

RULES = (*parse.RULES, *(rule for mechanism in MECHANISMS for rule in mechanism.rules))
KNOWN = parse.options_of(MECHANISMS)
ALL = [golden for kind in ("refused", "accepted") for golden in goldens(kind)]


@cache
def early(golden: Golden) -> tuple[Problem, ...] | None:
    """The problems of a query that is refused before a draft can be read; None when it has a draft."""
    try:
        parse.read_draft(golden.text, sources(), KNOWN)
    except Refused as refused:
        return refused.problems
    except RecursionError:
        return ()
    return None


@cache
def drafts() -> tuple[Draft, ...]:
    """Fresh drafts of all queries that have one."""
    return tuple(
        parse.read_draft(golden.text, sources(), KNOWN) for golden in ALL if early(golden) is None
    )


def fresh(draft: Draft, known: tuple[Option, ...]) -> Draft:
    """The same draft with nothing read off it yet."""
    return Draft(draft.text, draft.tokens, draft.select, draft.clause, draft.sources, known)


@cache
def said() -> Mapping[parse.Rule, tuple[tuple[Problem, ...], ...]]:
    return {rule: tuple(tuple(rule(draft)) for draft in drafts()) for rule in RULES}


@pytest.fixture(autouse=True, scope="module")
def _before_any_mutation():
    """Whichever test comes first: what the rules say is kept from before it."""
    said()


def changes(
    reading: Iterable[parse.Rule],
    known: tuple[Option, ...] = KNOWN,
    having: type[exp.Expression] | None = None,
) -> bool:
    """Whether any of these rules says something else of any draft than it did before the mutation.

    Args:
        reading: the rules.
        known: the options.
        having: looked for in the queries that have such a node alone.
    """
    for place, draft in enumerate(drafts()):
        if having and not draft.select.find(having):
            continue
        again = fresh(draft, known)
        for rule in reading:
            try:
                if tuple(rule(again)) != said()[rule][place]:
                    return True
            except Exception:
                return True
    return False


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule):
    for place, draft in enumerate(drafts()):
        read = (*parse.RULES, *parse.claiming(draft, MECHANISMS).rules)
        whole = [problem for other in read for problem in said()[other][place]]
        without = [
            problem for other in read if other is not rule for problem in said()[other][place]
        ]
        if parse.in_text_order(draft.text, whole) != parse.in_text_order(draft.text, without):
            return
    pytest.fail("no golden query needs this rule")


@pytest.mark.parametrize(
    "rule",
    [*text.TEXT_RULES, *parse.SHAPE_RULES, text.control_characters],
    ids=lambda rule: rule.__name__,
)
def test_early_rule(rule):
    def silent(_: object) -> list[Problem]:
        return []

    with (
        mock.patch.object(text, "TEXT_RULES", tuple(r for r in text.TEXT_RULES if r is not rule)),
        mock.patch.object(
            parse, "SHAPE_RULES", tuple(r for r in parse.SHAPE_RULES if r is not rule)
        ),
        mock.patch.object(
            text,
            "control_characters",
            silent if rule is text.control_characters else text.control_characters,
        ),
    ):
        for golden in ALL:
            if before := early(golden):
                try:
                    parse.read_draft(golden.text, sources())
                    return
                except Refused as refused:
                    if refused.problems != before:
                        return
                except Exception:
                    return
    pytest.fail("no golden query needs this rule")


CHECKS = [(option, check) for option in KNOWN for check in option.checks]


@pytest.mark.parametrize(("option", "check"), CHECKS, ids=lambda part: part.name)
def test_option_check(option, check):
    lenient = dataclasses.replace(option, checks=tuple(c for c in option.checks if c is not check))
    assert changes(
        [clause_rules.option_values], tuple(lenient if o is option else o for o in KNOWN)
    )


@pytest.mark.parametrize("name", ["epsilon", "max_rows_contributed"])
def test_required_option(name):
    whole = clause_rules.missing_options
    with mock.patch.object(
        clause_rules,
        "missing_options",
        lambda draft, of: whole(draft, tuple(o for o in of if o.name != name)),
    ):
        assert changes([clause_rules.required_options])


@pytest.mark.parametrize("option", KNOWN, ids=lambda option: option.name)
def test_option_is_known(option):
    assert changes([clause_rules.unknown_options], tuple(o for o in KNOWN if o is not option))


# Where entries stand, the rules that read them, and whether only queries with such a node can tell.
ENTRIES = [
    (allowed, "FAMILIES", [row_local.refused_families], False),
    (
        allowed,
        "REFUSED_NODES",
        [row_local.refused_constructs, aggregate_rules.aggregate_wrappers],
        True,
    ),
    (allowed, "ALLOWED_NODES", [row_local.refused_constructs], True),
    (allowed, "REFUSED_CLAUSES", [from_rules.refused_clauses], False),
    (from_rules, "DECORATIONS", [from_rules.decorations], False),
    (select_rules, "RESERVED_NAMES", [select_rules.reserved_names], False),
    (options, "FOREIGN_OPTIONS", [clause_rules.foreign_options], False),
    (options, "RENAMED_OPTIONS", [clause_rules.foreign_options], False),
    (options, "NEEDLESS_OPTIONS", [clause_rules.foreign_options], False),
    (clause_rules, "SELECTION_OPTIONS", [clause_rules.selection_without_keys], False),
]


def _named(entry: object) -> str:
    return next(
        (
            str(getattr(entry, name))
            for name in ("__name__", "name", "argument")
            if hasattr(entry, name)
        ),
        str(entry),
    )


EACH = [(*of, entry) for of in ENTRIES for entry in sorted(getattr(of[0], of[1]), key=str)]


@pytest.mark.parametrize(
    ("module", "name", "reading", "of_node", "entry"),
    EACH,
    ids=[f"{of[1]}-{_named(of[-1])}" for of in EACH],
)
def test_entry(module, name, reading, of_node, entry):
    entries = getattr(module, name)
    left = [one for one in entries if one is not entry]
    with mock.patch.object(
        module,
        name,
        {one: entries[one] for one in left} if isinstance(entries, dict) else type(entries)(left),
    ):
        assert changes(reading, having=entry if of_node else None)


def test_needless_arguments():
    with mock.patch.object(aggregate_rules, "NEEDLESS_ARGUMENTS", {}):
        assert changes([aggregate_rules.named_arguments])
    assert set(aggregates.NEEDLESS_ARGUMENTS) == set(aggregate_rules.NEEDLESS_ARGUMENTS)


def test_the_mutations_are_not_vacuous():
    """The tester itself: with nothing removed nothing changes."""
    assert not changes(
        [
            clause_rules.option_values,
            row_local.refused_constructs,
            row_local.refused_families,
            from_rules.refused_clauses,
        ]
    )
