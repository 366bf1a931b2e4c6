"""Row-local expressions: walks one and says what is not accepted in it."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sources.change_feed import NOT_OF_RECORDS
from dpsql.sql import constructs, functions
from dpsql.sql.draft import Draft, Site
from dpsql.sql.items import call_name
from dpsql.sql.relations import Scope, star_of
from dpsql.sql.spans import problem
from dpsql.sql.values import bare, nearest

_LITERALS = (exp.Literal, exp.RawString, exp.Boolean, exp.Null)
_PATTERNS = (exp.Like, exp.ILike, exp.RegexpLike)
EXPLODE = "explode"
"""The one generator of the dialect."""
_STOPS = (
    exp.Subquery,
    exp.Select,
    exp.Exists,
    exp.Window,
    exp.Filter,
    exp.IgnoreNulls,
    exp.RespectNulls,
    exp.Lambda,
)


def nodes(draft: Draft) -> Iterator[exp.Expr]:
    """The nodes of all sites; nothing inside a construct that is refused as a whole."""
    return (node for site in draft.sites for node in _nodes_of(site))


def calls(draft: Draft) -> Iterator[exp.Anonymous]:
    """The plain function calls of all sites."""
    return (node for node in nodes(draft) if isinstance(node, exp.Anonymous))


def _nodes_of(site: Site) -> Iterator[exp.Expr]:
    if star_of(site.node):
        return
    yield from site.node.walk(
        prune=lambda node: isinstance(node, _STOPS) or _family(node) is not None
    )


def refused_constructs(draft: Draft) -> Iterator[Problem]:
    """Node types that are refused by name, and all that are not on the allow-list."""
    for node in nodes(draft):
        refusal = next(
            (refusal for kind, refusal in constructs.REFUSED_NODES.items() if type(node) is kind),
            None,
        )
        if (
            isinstance(node, exp.Interval)
            and node.parent is not None
            and call_name(node.parent) in constructs.ROOMY_CALLS
        ):
            continue
        if refusal is not None:
            yield problem(draft.span(node), refusal.message, refusal.hint)
        elif type(node) not in constructs.ALLOWED_NODES:
            word = type(node).__name__
            yield problem(
                draft.span(node),
                f"This kind of expression ({word}) is not accepted",
                "use built-in functions and plain operators",
            )


def unusual_forms(draft: Draft) -> Iterator[Problem]:
    """Variants of accepted constructs that Spark does not have."""
    for node in nodes(draft):
        if any(node.args.get(name) for name in constructs.UNUSUAL_FORMS.get(type(node), ())):
            yield problem(
                draft.span(node), "Spark has no such form of this expression", "use the plain form"
            )


def sub_query_lists(draft: Draft) -> Iterator[Problem]:
    """`x IN (SELECT ...)`, where sqlglot keeps the query outside the expressions."""
    for node in nodes(draft):
        if isinstance(node, exp.In) and not node.args.get("query") and not node.expressions:
            yield problem(draft.span(node), "IN needs a list of values", "write x IN (1, 2, 3)")


def _family(node: exp.Expr) -> functions.Family | None:
    name = _called(node)
    return (
        None
        if name is None
        else next((family for family in functions.FAMILIES if name in family.functions), None)
    )


def _called(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
        return (
            node.name.lower()
            if len(node.parts) == 1 and node.name.lower() in functions.CALL_WORDS
            else None
        )
    return call_name(node)


def refused_families(draft: Draft) -> Iterator[Problem]:
    """Functions that are refused by name, each family for its own reason."""
    for site in draft.sites:
        for node in _nodes_of(site):
            family = _family(node)
            declared = isinstance(node, exp.Column) and any(
                field.origin and field.type for field in site.scope.find(node)
            )
            if family is not None and not declared:
                yield problem(
                    draft.span(node), family.message.format(name=_called(node)), family.hint
                )


def unknown_functions(draft: Draft) -> Iterator[Problem]:
    """Functions that are on no list: user-defined ones, and built-in ones that were not examined."""
    for call in calls(draft):
        name = call_name(call) or ""
        if _family(call) is None and name not in functions.FUNCTIONS and name != EXPLODE:
            guess = nearest(name, functions.FUNCTIONS)
            hint = (
                f"did you mean {guess}?"
                if guess
                else "only built-in functions of Spark that depend on their arguments alone are accepted"
            )
            yield problem(draft.span(call), f"Unknown function `{name}`", hint)


def explode_places(draft: Draft) -> Iterator[Problem]:
    """explode makes rows, so it stands alone: after LATERAL VIEW, or as a column of a sub-query."""
    for site in draft.sites:
        for call in _nodes_of(site):
            parent = call.parent.parent if isinstance(call.parent, exp.Alias) else call.parent
            alone = isinstance(parent, exp.Lateral) or (
                isinstance(parent, exp.Select) and not site.scope.outer
            )
            if call_name(call) == EXPLODE and not alone:
                yield problem(
                    draft.span(call),
                    "`explode` cannot stand here",
                    "write LATERAL VIEW explode(column) t AS name after FROM",
                )


def argument_counts(draft: Draft) -> Iterator[Problem]:
    """Too few or too many arguments."""
    for call in calls(draft):
        signature = functions.FUNCTIONS.get(call_name(call) or "")
        count = len(call.expressions)
        if signature and (
            count < signature.least or (signature.most is not None and count > signature.most)
        ):
            expected = _expected(signature)
            message = f"`{call_name(call)}` takes {expected}, not {count}"
            hint = (
                "name the time to convert: without one it reads the clock"
                if call_name(call) == "unix_timestamp"
                else f"give it {expected}"
            )
            yield problem(draft.span(call), message, hint)


def _expected(signature: functions.Signature) -> str:
    if signature.most is None:
        return f"at least {signature.least} argument{'' if signature.least == 1 else 's'}"
    if signature.least == signature.most:
        return f"{signature.least} argument{'' if signature.least == 1 else 's'}"
    return f"{signature.least} to {signature.most} arguments"


def constant_arguments(draft: Draft) -> Iterator[Problem]:
    """Patterns, formats and lengths must be literals: a bad one taken from a record would end the job."""
    for call in calls(draft):
        signature = functions.FUNCTIONS.get(call_name(call) or "")
        for place, argument in enumerate(call.expressions):
            if signature and place in signature.constant and not is_literal(argument):
                message = f"Argument {place + 1} of `{call_name(call)}` must be a literal: one taken from a record could make the job fail"
                yield problem(draft.span(argument), message, "write the value itself")


def constant_patterns(draft: Draft) -> Iterator[Problem]:
    """The same for LIKE, ILIKE and RLIKE."""
    for node in nodes(draft):
        if isinstance(node, _PATTERNS) and not is_literal(node.expression):
            message = "A pattern must be a string literal: one taken from a record could make the job fail"
            yield problem(
                draft.span(node.expression),
                message,
                "write the pattern itself, or use contains, startswith or endswith",
            )


def is_literal(node: exp.Expr) -> bool:
    """Whether the value is written out."""
    node = bare(node)
    if isinstance(node, exp.Neg):
        node = bare(node.this)
    return isinstance(node, _LITERALS)


def known_columns(draft: Draft) -> Iterator[Problem]:
    """Columns that FROM does not have, or has twice."""
    for site in draft.sites:
        for node in _nodes_of(site):
            if (
                not isinstance(node, exp.Column)
                or not isinstance(node.this, exp.Identifier)
                or _family(node) is not None
            ):
                continue
            if site.scope.reached(node)[0] not in NOT_OF_RECORDS:  # which have a rule of their own
                yield from column_problems(draft, site, node)


def _ambiguity(scope: Scope, name: str) -> tuple[str, str]:
    having = [
        relation for relation in scope.relations if relation.find(name.rsplit(".", 1)[-1].lower())
    ]
    undeclared = next((relation.passes for relation in having if relation.passes), None)
    if undeclared is None:
        return (
            f"The column `{name}` is ambiguous: FROM has it more than once",
            "name the columns of the sub-query one by one",
        )
    tables = [relation.name for relation in having if relation.name and not relation.passes]
    message = f"The column `{name}` may be ambiguous: the source {undeclared} declares no schema, so that it may have one of that name too"
    return message, " or ".join(
        [
            f"add schema under sources.{undeclared} in sources.yaml",
            *(f"write {table}.{name}" for table in tables),
        ]
    )


def column_problems(draft: Draft, site: Site, column: exp.Column) -> Iterator[Problem]:
    """What is wrong with one reference to a column."""
    found = site.scope.find(column)
    if len(found) == 1:
        return
    parts = column.parts
    shown = ".".join(part.name for part in parts)
    if found:
        yield problem(draft.span(column), *_ambiguity(site.scope, shown))
        return
    names = site.scope.names()
    relations = [relation.name for relation in site.scope.relations if relation.name]
    guess = nearest(parts[-1].name, names)
    if guess:
        hint = f"did you mean {guess}?"
    elif names:
        hint = f"the columns are {', '.join(sorted(set(names))[:20])}"
    else:
        hint = f"FROM has {', '.join(relations)}" if relations else "name a source in FROM"
    yield problem(draft.span(column), f"FROM has no column `{shown}`", hint)
