"""Rules on row-local expressions and the literals in them."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator, Sequence

from sqlglot import exp

from dpsql.errors import Edit, Problem
from dpsql.sources.change_feed import NOT_OF_RECORDS
from dpsql.sql import allowed
from dpsql.sql.clock_words import reads_the_clock
from dpsql.sql.draft import Draft, Site
from dpsql.sql.edits import known_word
from dpsql.sql.googlesql import day_of_today, extracted, other_function, truncated
from dpsql.sql.items import OUR_AGGREGATES, call_name
from dpsql.sql.patterns import TOO_SLOW, refusal
from dpsql.sql.relations import SAME_PARTS, Scope, star_of
from dpsql.sql.text import problem
from dpsql.sql.values import bare, is_column, suggest

# Row-local expressions: walks one and says what is not accepted in it.

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
    """Yield the nodes of all sites; nothing inside a construct that is refused as a whole."""
    return (node for site in draft.sites for node in _nodes_of(site))


def calls(draft: Draft) -> Iterator[exp.Anonymous]:
    """Yield the plain function calls of all sites."""
    return (node for node in nodes(draft) if isinstance(node, exp.Anonymous))


def _nodes_of(site: Site) -> Iterator[exp.Expr]:
    if star_of(site.node):
        return
    yield from site.node.walk(
        prune=lambda node: isinstance(node, _STOPS) or _family(node) is not None
    )


def refused_constructs(draft: Draft) -> Iterator[Problem]:
    """Reject node types that are refused by name, and all that are not on the allow-list."""
    for node in nodes(draft):
        refusal = next(
            (refusal for kind, refusal in allowed.REFUSED_NODES.items() if type(node) is kind), None
        )
        if (
            isinstance(node, exp.Interval)
            and node.parent is not None
            and call_name(node.parent) in allowed.ROOMY_CALLS
        ):
            continue
        if refusal is not None:
            yield problem(draft.span(node), refusal.message, refusal.hint)
        elif type(node) not in allowed.ALLOWED_NODES:
            word = type(node).__name__
            yield problem(
                draft.span(node),
                f"This kind of expression ({word}) is not accepted",
                "use built-in functions and plain operators",
            )


def unusual_forms(draft: Draft) -> Iterator[Problem]:
    """Reject variants of accepted constructs that Spark does not have."""
    for node in nodes(draft):
        if any(node.args.get(name) for name in allowed.UNUSUAL_FORMS.get(type(node), ())):
            yield problem(
                draft.span(node), "Spark has no such form of this expression", "use the plain form"
            )


def sub_query_lists(draft: Draft) -> Iterator[Problem]:
    """Reject `x IN (SELECT ...)`, where sqlglot keeps the query outside the expressions."""
    for node in nodes(draft):
        if isinstance(node, exp.In) and not node.args.get("query") and not node.expressions:
            yield problem(draft.span(node), "IN needs a list of values", "write x IN (1, 2, 3)")


def _family(node: exp.Expr) -> allowed.Family | None:
    name = _called(node)
    return (
        None
        if name is None
        else next((family for family in allowed.FAMILIES if name in family.functions), None)
    )


def _called(node: exp.Expr) -> str | None:
    if is_column(node):
        return (
            node.name.lower()
            if len(node.parts) == 1 and node.name.lower() in allowed.CALL_WORDS
            else None
        )
    return call_name(node)


def refused_families(draft: Draft) -> Iterator[Problem]:
    """Reject functions that are refused by name, each family for its own reason."""
    for site in draft.sites:
        for node in _nodes_of(site):
            family = _family(node)
            declared = isinstance(node, exp.Column) and any(
                field.origin and field.type for field in site.scope.find(node)
            )
            if family is not None and not declared:
                yield problem(
                    draft.span(node),
                    family.message.format(name=_called(node)),
                    family.hint,
                    *day_of_today(draft, node),
                )


def unknown_functions(draft: Draft) -> Iterator[Problem]:
    """Reject functions that are on no list: user-defined ones, and built-in ones that were not
    examined."""
    for call in calls(draft):
        name = call_name(call) or ""
        if _family(call) is None and name not in allowed.FUNCTIONS and name != EXPLODE:
            otherwise = (
                "only built-in functions of Spark that depend on their arguments alone are accepted"
            )
            names = (*allowed.FUNCTIONS, *map(str.lower, OUR_AGGREGATES))
            hint = suggest(name, names, otherwise)
            yield problem(
                draft.span(call), f"Unknown function `{name}`", hint, *other_function(draft, call)
            )


def extracted_parts(draft: Draft) -> Iterator[Problem]:
    """Reject parts of a time that Spark's EXTRACT does not know."""
    for node in nodes(draft):
        known_parts = {*allowed.EXTRACTED, *map(str.lower, SAME_PARTS)}
        if isinstance(node, exp.Extract) and node.name.lower() not in known_parts:
            hint = f"the parts are {', '.join(sorted(allowed.EXTRACTED))}"
            message = f"EXTRACT has no part `{node.name}`"
            yield problem(draft.span(node), message, hint, *extracted(draft, node))


def explode_places(draft: Draft) -> Iterator[Problem]:
    """Reject explode but after LATERAL VIEW, or as a column of a sub-query: it makes rows, so it
    stands alone."""
    for site in draft.sites:
        for call in _nodes_of(site):
            parent = call.parent.parent if isinstance(call.parent, exp.Alias) else call.parent
            is_allowed = isinstance(parent, exp.Lateral) or (
                isinstance(parent, exp.Select) and not site.scope.outer
            )
            if call_name(call) == EXPLODE and not is_allowed:
                yield problem(
                    draft.span(call),
                    "`explode` cannot stand here",
                    "write LATERAL VIEW explode(column) t AS name after FROM",
                )


def argument_counts(draft: Draft) -> Iterator[Problem]:
    """Reject calls with too few or too many arguments."""
    for call in calls(draft):
        signature = allowed.FUNCTIONS.get(call_name(call) or "")
        count = len(call.expressions)
        if signature and (
            count < signature.min_arguments
            or (signature.max_arguments is not None and count > signature.max_arguments)
        ):
            expected = _expected(signature)
            message = f"`{call_name(call)}` takes {expected}, not {count}"
            hint = (
                "name the time to convert: without one it reads the clock"
                if call_name(call) == "unix_timestamp"
                else f"give it {expected}"
            )
            yield problem(draft.span(call), message, hint)


def _expected(signature: allowed.Signature) -> str:
    if signature.max_arguments is None:
        return f"at least {signature.min_arguments} argument{'' if signature.min_arguments == 1 else 's'}"
    if signature.min_arguments == signature.max_arguments:
        return f"{signature.min_arguments} argument{'' if signature.min_arguments == 1 else 's'}"
    return f"{signature.min_arguments} to {signature.max_arguments} arguments"


def constant_arguments(draft: Draft) -> Iterator[Problem]:
    """Reject patterns, formats and lengths that are no literals: a bad one taken from a record
    would end the job."""
    for call in calls(draft):
        signature = allowed.FUNCTIONS.get(call_name(call) or "")
        for place, argument in enumerate(call.expressions):
            if signature and place in signature.constant and not is_literal(argument):
                message = f"Argument {place + 1} of `{call_name(call)}` must be a literal: one taken from a record could make the job fail"
                edits = truncated(draft, call)
                yield problem(draft.span(argument), message, "write the value itself", *edits)


def constant_patterns(draft: Draft) -> Iterator[Problem]:
    """Reject patterns of LIKE, ILIKE and RLIKE that are no literals."""
    for node in nodes(draft):
        if isinstance(node, _PATTERNS) and not is_literal(node.expression):
            message = "A pattern must be a string literal: one taken from a record could make the job fail"
            yield problem(
                draft.span(node.expression),
                message,
                "write the pattern itself, or use contains, startswith or endswith",
            )


def is_literal(node: exp.Expr) -> bool:
    """Tell whether the value is written out."""
    node = bare(node)
    if isinstance(node, exp.Neg):
        node = bare(node.this)
    return isinstance(node, _LITERALS)


def known_columns(draft: Draft) -> Iterator[Problem]:
    """Reject columns that FROM does not have, or has twice."""
    for site in draft.sites:
        for node in _nodes_of(site):
            if not is_column(node) or _family(node) is not None:
                continue
            if (
                site.scope.column_and_source(node)[0] not in NOT_OF_RECORDS
            ):  # which have a rule of their own
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
    """Yield what is wrong with one reference to a column."""
    fields = site.scope.find(column)
    if len(fields) == 1:
        return
    parts = column.parts
    spelling = ".".join(part.name for part in parts)
    if fields:
        yield problem(draft.span(column), *_ambiguity(site.scope, spelling))
        return
    names = site.scope.names()
    relations = [relation.name for relation in site.scope.relations if relation.name]
    if names:
        hint = f"the columns are {', '.join(sorted(set(names))[:20])}"
    else:
        hint = f"FROM has {', '.join(relations)}" if relations else "name a source in FROM"
    message = f"FROM has no column `{spelling}`"
    yield problem(
        draft.span(column),
        message,
        suggest(parts[-1].name, names, hint),
        *_known_column(draft, column, names),
    )


def _known_column(draft: Draft, column: exp.Column, names: Sequence[str]) -> Iterator[Edit]:
    """Yield the edits that write a column of FROM wherever one stands that is like it but for a slip of a finger."""
    for other in draft.select.find_all(exp.Column):
        if other == column:
            yield from known_word(draft.span(other), column.name, names)


# Literals that Spark would stumble over at some record: group numbers, time formats, time zones,
# patterns without end, huge lengths.

_PRINTS = frozenset("GyDMLdQqEFahKkHmsSVzOXx")
_READS = frozenset("GyDMLdahKkHmsSVzOXx")
_FORMATS = {"date_format": _PRINTS, "from_unixtime": _PRINTS} | dict.fromkeys(
    ("to_date", "to_timestamp", "try_to_timestamp", "to_unix_timestamp", "unix_timestamp"), _READS
)
"""Functions whose second argument is a time format, and the letters that it may have."""

_ZONED = frozenset({"from_utc_timestamp", "to_utc_timestamp"})
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d")

_SEARCHES = frozenset({"regexp_extract", "regexp_like", "regexp_replace", "split"})
"""Functions whose second argument is a regular expression."""

_ONCE = r"write [ab]* instead of (a|b)*, a+ instead of (a+)+, \d+[.]\d+[.] instead of (\d+[.]){2}; or use contains, startswith, endswith or LIKE"
_FEWER = "write [^,]*, instead of .*, or begin with ^, or write several conditions with AND"
"""What to write in the place of a pattern that may take too long."""

_LENGTHS = {"repeat": (1, 1_000), "space": (0, 10_000), "lpad": (1, 10_000), "rpad": (1, 10_000)}
"""Functions that make a text as long as an argument says: which one (from 0), and how much it may be."""

_MOST_TEXT = 10_000
_TEXTS = {"replace": 2, "regexp_replace": 2}
"""Functions that write a text of the query many times: which of their arguments."""

_DIGITS = dict.fromkeys(("round", "bround", "ceil", "ceiling", "floor"), (1, 400))
"""Functions that write out as many digits as an argument says, before or after the point."""


def endless_patterns(draft: Draft) -> Iterator[Problem]:
    """Reject patterns that could search the text of one record without end."""
    for node in nodes(draft):
        pattern = node.expression if isinstance(node, exp.RegexpLike) else None
        if (
            isinstance(node, exp.Anonymous)
            and call_name(node) in _SEARCHES
            and len(node.expressions) > 1
        ):
            pattern = node.expressions[1]
        like = isinstance(node, (exp.Like, exp.ILike))
        pattern = node.expression if like else pattern
        reason = refusal(bare(pattern).name, like) if pattern is not None else None
        if pattern is not None and reason is not None:
            yield problem(draft.span(pattern), reason, _FEWER if reason == TOO_SLOW else _ONCE)


def huge_lengths(draft: Draft) -> Iterator[Problem]:
    """Reject texts long enough to use up the memory: a job that ends would tell of the record."""
    for call in calls(draft):
        name = call_name(call) or ""
        place, limit = (_LENGTHS | _DIGITS).get(name, (len(call.expressions), 0))
        if place < len(call.expressions) and _number(call.expressions[place]) > limit:
            message = f"`{name}` makes texts that are too long: a key has at most 4096 bytes"
            if name in _DIGITS:
                message = f"`{name}` would write out more digits than any number has"
            yield problem(
                draft.span(call.expressions[place]), message, f"write a number up to {limit}"
            )
        place = _TEXTS.get(name, len(call.expressions))
        if place < len(call.expressions) and len(bare(call.expressions[place]).name) > _MOST_TEXT:
            message = f"The replacement in `{name}` is too long: a key has at most 4096 bytes"
            yield problem(
                draft.span(call.expressions[place]),
                message,
                f"write at most {_MOST_TEXT:,} characters",
            )


def _number(node: exp.Expr) -> float:
    """Return the value of a literal; 0 for what is no number."""
    try:
        return float(bare(node).name)
    except ValueError:
        return 0.0


def time_formats(draft: Draft) -> Iterator[Problem]:
    """Reject letters that Spark's time formats do not have."""
    for call in calls(draft):
        letters = _FORMATS.get(call_name(call) or "")
        format_text = _second(call)
        if letters is None or format_text is None:
            continue
        wrong = [
            char
            for char in re.sub(r"'[^']*'", "", format_text)
            if char.isalpha() and char not in letters
        ]
        if wrong:
            message = f"`{call_name(call)}` does not know the letter {wrong[0]} in a time format"
            yield problem(
                draft.span(call.expressions[1]),
                message,
                "write a format like 'yyyy-MM-dd HH:mm:ss'; put other text into ''",
            )


def times_by_the_clock(draft: Draft) -> Iterator[Problem]:
    """Reject times that the clock decides: `DATE 'today'` is another date tomorrow, and `TIMESTAMP
    '12:00'` is at today's noon."""
    for node in nodes(draft):
        text = bare(node.this) if isinstance(node, (exp.Cast, exp.TryCast)) else None
        if isinstance(text, (exp.Literal, exp.RawString)) and reads_the_clock(
            text.name, _time_type(node)
        ):
            yield problem(
                draft.span(node),
                "Spark reads this time by the wall clock",
                "write the whole date, like '2026-01-31 12:00:00'",
            )


def _time_type(cast: exp.Expr) -> str:
    """Return the type that a text is cast to, in Spark's words."""
    kind = cast.args["to"].this
    return {
        exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
        exp.DType.TIMESTAMPLTZ: "timestamp",
        exp.DType.TIMESTAMPTZ: "timestamp",
    }.get(kind, str(getattr(kind, "value", kind)).lower())


def time_zones(draft: Draft) -> Iterator[Problem]:
    """Reject names that are no time zone."""
    for call in calls(draft):
        zone = _second(call) if call_name(call) in _ZONED else None
        if (
            zone is not None
            and not _OFFSET.fullmatch(zone)
            and zone not in zoneinfo.available_timezones()
        ):
            yield problem(
                draft.span(call.expressions[1]),
                "Unknown time zone",
                "write a name like 'Europe/Berlin' or an offset like '+01:00'",
            )


def _second(call: exp.Anonymous) -> str | None:
    if len(call.expressions) < 2:
        return None
    node = bare(call.expressions[1])
    return node.name if isinstance(node, exp.Literal) else None


def pattern_groups(draft: Draft) -> Iterator[Problem]:
    """Reject a group number that the pattern does not have: it fails at the first record that
    matches."""
    for call in calls(draft):
        group_number = _wanted_group(call)
        if group_number is not None and group_number > _groups(bare(call.expressions[1]).name):
            message = f"The pattern of `{call_name(call)}` has no group {group_number}: the first record that matches would end the job"
            yield problem(
                draft.span(call),
                message,
                "add parentheses to the pattern, or use another group number (0 is the whole match)",
            )


def _wanted_group(call: exp.Anonymous) -> int | None:
    arguments = [bare(argument) for argument in call.expressions]
    if not all(is_literal(argument) for argument in arguments[1:3]):
        return None
    if call_name(call) == "regexp_extract" and len(arguments) in (2, 3):
        return (
            1
            if len(arguments) == 2
            else int(arguments[2].name)
            if arguments[2].name.isdigit()
            else None
        )
    if call_name(call) == "regexp_replace" and len(arguments) == 3:
        return max(
            (int(number) for number in re.findall(r"\$(\d)", arguments[2].name)), default=None
        )
    return None


def _groups(pattern: str) -> int:
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)
    return len(re.findall(r"\((?!\?)|\(\?<[A-Za-z]", plain))
