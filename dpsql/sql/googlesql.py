"""GoogleSQL's and BigQuery's ways to say things, and the edits that say them here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from dpsql.description import END
from dpsql.errors import Edit
from dpsql.parsed_query import SKETCHES
from dpsql.sql.aggregates import BOUNDS, PERCENTILE, SHARE, Call, bounds_of_value, read_bounds
from dpsql.sql.allowed import AGGREGATES, FUNCTIONS
from dpsql.sql.draft import Draft
from dpsql.sql.edits import insertion, known_word, replacement
from dpsql.sql.items import OUR_AGGREGATES, Item, call_name, free_name
from dpsql.sql.text import JOINING, Span, keyword
from dpsql.sql.values import bare, is_column
from dpsql.times import UNITS_US, now_us, show_duration, timestamp

_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}

# The query


def inner_query(draft: Draft) -> list[Edit]:
    """Return the edit that leaves a private query alone of a query around it: what stands there is computed from released rows."""
    clauses = [
        node
        for node in draft.select.find_all(exp.Select)
        if node is not draft.select and node.args.get("hint")
    ]
    if not draft.clause.args.get("absent") or len(clauses) != 1:
        return []
    opening = clauses[0].args["hint"].meta["tokens"][0].start
    start = max(
        token.start
        for token in draft.tokens
        if token.token_type == TokenType.SELECT and token.start < opening
    )
    end = _end_of_bracket(draft.tokens, start)
    reason = "compute with the rows that are released, in whatever reads the table"
    return [replacement((0, len(draft.text)), draft.text[start:end].strip(), reason)]


def _end_of_bracket(tokens: Sequence[Token], start: int) -> int:
    """Return where the bracket closes in which a place lies."""
    depth = 0
    for token in tokens:
        if token.start >= start:
            depth += _DEPTHS.get(token.token_type, 0)
            if depth < 0:
                return token.start
    return tokens[-1].end + 1


def added_option(draft: Draft, option: str, reason: str = "") -> Edit:
    """Return the edit that adds `name = value` to the options."""
    if draft.entries:
        return insertion(draft.entries[0].span[0], f"{option}, ", reason)
    last = draft.clause.meta["tokens"][-1]
    if not draft.clause.args.get("has_options"):
        return insertion(last.end + 1, f" OPTIONS ({option})", reason)
    opening = next(token for token in draft.tokens if token.start > last.end)
    return insertion(opening.end + 1, option, reason)


# FROM


def unit_renamed(draft: Draft, unit: str) -> Iterator[Edit]:
    """Yield the edits that leave a privacy unit its name: `SELECT user_id AS editor` in FROM."""
    for scope in draft.scopes:
        for projection in () if scope.outer else scope.select.expressions:
            column = bare(projection.unalias())
            if not is_column(column) or column.name.lower() != unit:
                continue
            yield replacement(draft.span(projection), unit)
            for reference in draft.select.find_all(exp.Column):
                if reference.name.lower() == projection.alias.lower():
                    yield replacement(draft.span(reference), unit)


def exploded(draft: Draft, unnest: exp.Expr) -> Iterator[Edit]:
    """Yield the edit that writes LATERAL VIEW for `CROSS JOIN UNNEST([1, 2]) AS x`."""
    join = unnest.parent
    alias = unnest.args.get("alias")
    if not isinstance(join, exp.Join) or join.kind != "CROSS" or alias is None:
        return
    names = [*(alias.args.get("columns") or ()), *filter(None, [alias.this])]
    if len(unnest.expressions) != 1 or unnest.args.get("offset") or not names:
        return
    values = unnest.expressions[0]
    text = draft.text_of(values)
    if isinstance(values, exp.Array):
        parts = [draft.text_of(part) for part in values.expressions]
        text = f"array({', '.join(parts)})"
    span = _span_of_join(draft, join)
    yield replacement(span, f" LATERAL VIEW explode({text}) t AS {names[0].name} ")


def _span_of_join(draft: Draft, join: exp.Join) -> Span:
    """Return the span from a join's first word to the next clause, the next join, or the bracket that closes around it."""
    place = draft.span(join)[0]
    tokens_before = [token for token in draft.tokens if token.start < place]
    while keyword(tokens_before[-1]) not in ("JOIN", ","):
        tokens_before.pop()
    while keyword(tokens_before[-2]) in JOINING:
        tokens_before.pop()
    start = tokens_before[-1].start
    depth = 0
    for token in draft.tokens:
        if token.start <= start:
            continue
        depth += _DEPTHS.get(token.token_type, 0)
        is_next = token.start > place and keyword(token) in _AFTER_A_JOIN
        if depth < 0 or (depth == 0 and is_next):
            return start, token.start
    return start, draft.tokens[-1].end + 1


_AFTER_A_JOIN = {"WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "LATERAL", *JOINING}


def listed_groups(draft: Draft, join: exp.Join) -> Iterator[Edit]:
    """Yield the edits that write `public_groups` for `RIGHT JOIN (SELECT DISTINCT key FROM static) USING (key)`."""
    select = join.this.this if isinstance(join.this, exp.Subquery) else None
    if not isinstance(select, exp.Select) or not select.args.get("from_"):
        return
    source = draft.sources.get(select.args["from_"].this.name.lower())
    columns = [column.name.lower() for column in join.args.get("using") or ()]
    key_names = [item.name or "" for item in draft.keys]
    if join.side != "RIGHT" or draft.listed or sorted(columns) != sorted(key_names):
        return
    if source is None or not source.static or not columns:
        return
    query = f"SELECT {', '.join(key_names)} FROM {source.name}"
    where = select.args.get("where")
    query += f" {draft.text_of(where)}" if where else ""
    yield replacement(_span_of_join(draft, join), "")
    yield added_option(draft, f"public_groups = ({query})")


# The select list

_COUNTED = ("countif", "count_if")
_DIVISIONS = ("safe_divide", "try_divide")


def aggregates_alone(draft: Draft, item: Item) -> Iterator[Edit]:
    """Yield the edit that selects the aggregates of an expression, or the share that it computes."""
    condition = _condition_of_share(draft, item.root)
    if condition is not None:
        alias = item.alias or free_name("share", {each.name for each in draft.items})
        text = f"AVG(CASE WHEN {condition} THEN 1 ELSE 0 END) AS {alias}"
        yield replacement(item.span, text)
        return
    calls = [node for node in item.root.find_all(exp.Anonymous) if call_name(node) in AGGREGATES]
    if any(str(call_name(call)).upper() in SKETCHES for call in calls):
        return  # which have no other aggregate beside them
    texts = list(dict.fromkeys(_aggregate_text(draft, call) for call in calls))
    if len(texts) == 1 and item.alias:
        texts = [f"{texts[0]} AS {item.alias}"]
    yield replacement(item.span, ", ".join(texts), "compute with the released numbers when reading")


def hint_of_element(item: Item) -> str | None:
    """Return what to write for one element of APPROX_QUANTILES, whose bounds a person has to say."""
    call = next(iter(item.root.find_all(exp.Anonymous)), None)
    share = None if call is None else _share_of_element(call)
    if (
        share is None
        or call is None
        or any(isinstance(each, exp.Kwarg) for each in call.expressions)
    ):
        return None
    value = call.expressions[0].sql(dialect="spark")
    return f"write {PERCENTILE.upper()}({value}, {share}, {BOUNDS} => (LOW, HIGH))"


def _aggregate_text(draft: Draft, call: exp.Anonymous) -> str:
    """Return the text of an aggregate; of one element of APPROX_QUANTILES the percentile that it is."""
    share = _share_of_element(call)
    if share is None:
        return draft.text_of(call)
    arguments = [draft.text_of(node) for node in call.expressions]
    del arguments[1]
    return f"{PERCENTILE.upper()}({', '.join([arguments[0], share, *arguments[1:]])})"


def _share_of_element(call: exp.Anonymous) -> str | None:
    """Return the share of `APPROX_QUANTILES(x, 4)[OFFSET(1)]`, where two decimals write it."""
    place = call.parent
    if not isinstance(place, exp.Bracket) or call_name(call) != "approx_quantiles":
        return None
    element = place.expressions[0]
    parts = call.expressions[1] if len(call.expressions) > 1 else None
    if call_name(element) not in ("offset", "safe_offset") or not isinstance(parts, exp.Literal):
        return None
    index = bare(element.expressions[0]).name
    if not (index.isdecimal() and parts.name.isdecimal() and 0 < int(index) < int(parts.name)):
        return None
    share = Fraction(int(index), int(parts.name))
    text = f"{float(share):g}"
    return text if SHARE.fullmatch(text) and Fraction(text) == share else None


def _condition_of_share(draft: Draft, node: exp.Expr) -> str | None:
    """Return the condition of `COUNTIF(a) / COUNT(*)`, `SUM(CASE WHEN a THEN 1 ELSE 0 END) / COUNT(*)` and their like."""
    is_call = call_name(node) in _DIVISIONS and len(node.expressions) == 2
    if not is_call and not isinstance(node, exp.Div):
        return None
    parts = node.expressions if is_call else (node.this, node.expression)
    number, total = (bare(part) for part in parts)
    if call_name(total) != "count" or not isinstance(total.expressions[0], exp.Star):
        return None
    condition = _counted_condition(number)
    return None if condition is None else draft.text_of(condition)


def _counted_condition(node: exp.Expr) -> exp.Expr | None:
    """Return the condition whose records an aggregate counts."""
    if not isinstance(node, exp.Anonymous) or not node.expressions:
        return None
    argument = bare(node.expressions[0])
    if call_name(node) in _COUNTED:
        return argument
    if call_name(node) not in ("sum", "count"):
        return None
    branch = _only_branch(argument)
    if branch is None:
        return None
    condition, *results = branch
    texts = tuple(bare(result).sql() for result in results)
    is_counted = texts == ("1", "NULL") or (texts == ("1", "0") and call_name(node) == "sum")
    return condition if is_counted else None


def _only_branch(node: exp.Expr) -> list[exp.Expr] | None:
    """Return the condition of IF or of CASE with one WHEN, its result, and the other result."""
    if call_name(node) == "if" and len(node.expressions) == 3:
        return list(node.expressions)
    if not isinstance(node, exp.Case) or node.this is not None or len(node.args["ifs"]) != 1:
        return None
    case = node.args["ifs"][0]
    return [case.this, case.args["true"], node.args.get("default") or exp.Null()]


_RENAMED = {"mean": "AVG", "anon_count": "COUNT", "anon_sum": "SUM", "anon_avg": "AVG"}
_RENAMED |= {
    "anon_var_pop": "VAR_POP",
    "anon_stddev_pop": "STDDEV_POP",
    "try_sum": "SUM",
    "try_avg": "AVG",
}
_EXTREMES = {"max": ("0.99", "above"), "min": ("0.01", "below")}


def other_aggregate(draft: Draft, call: Call) -> Iterator[Edit]:
    """Yield the edit that writes one of our aggregates for one that is not ours."""
    span = draft.span(call.item.root)
    arguments = [draft.text_of(node) for node in call.item.root.expressions]
    if call.name in _COUNTED and len(arguments) == 1:
        yield replacement(span, f"COUNT(CASE WHEN {arguments[0]} THEN 1 END)")
    elif name := _RENAMED.get(call.name):
        if name == "COUNT" or _has_bounds(draft, replace(call, name=name.lower())):
            yield replacement(span, f"{name}({', '.join(arguments)})")
    elif len(call.positional) != 1:
        return
    elif call.name == "approx_count_distinct" and draft.stream:
        column = call.positional[0]
        if is_column(column) and draft.stream.privacy_unit == (column.name.lower(),):
            yield replacement(span, f"COUNT(DISTINCT {arguments[0]})")
    elif not _has_bounds(draft, replace(call, name=PERCENTILE)):
        return
    elif call.name == "median":
        yield replacement(
            span, f"{PERCENTILE.upper()}({', '.join([arguments[0], '0.5', *arguments[1:]])})"
        )
    elif call.name in _EXTREMES:
        share, side = _EXTREMES[call.name]
        text = f"{PERCENTILE.upper()}({', '.join([arguments[0], share, *arguments[1:]])})"
        yield replacement(span, text, f"1% of the values lie {side}: the last one is one record's")


def _has_bounds(draft: Draft, call: Call) -> bool:
    return bool(call.bounds_arguments) or bounds_of_value(call, draft.stream) is not None


def bounds_per_row(draft: Draft, call: Call, argument: exp.Kwarg) -> Iterator[Edit]:
    """Yield the edits that bound each row of an average, and how many rows of a unit count: as many as a COUNT beside it says."""
    bounds = read_bounds(argument)
    counts = [
        read_bounds(other.bounds_arguments[0])
        for other in draft.calls
        if other.name == "count" and other.per_group
    ]
    rows = max((int(high) for _, high in filter(None, counts)), default=1)
    if bounds is None:
        return
    rows_text = (
        "one row of each unit in a group counts"
        if rows == 1
        else f"{rows} rows of each unit in a group count"
    )
    reason = f"GoogleSQL averages each unit's own average; here {rows_text}"
    yield replacement(draft.span(argument), f"{BOUNDS} => ({bounds[0]:g}, {bounds[1]:g})", reason)
    if not draft.entry("max_rows_per_group") and not draft.entry("max_rows_contributed"):
        yield added_option(draft, f"max_rows_per_group = {rows}")


def unwrapped(draft: Draft, item: Item) -> Iterator[Edit]:
    """Yield the edits that write CASE for FILTER, a sliding window for OVER, and nothing for IGNORE NULLS."""
    call = item.root.this
    if not isinstance(call, exp.Anonymous) or not call.expressions:
        return
    alias = "" if item.alias is None else f" AS {item.alias}"
    if isinstance(item.root, exp.Window):
        yield from moving_window(draft, item)
    elif isinstance(item.root, (exp.IgnoreNulls, exp.RespectNulls)):
        yield replacement(item.span, draft.text_of(call) + alias)
    elif isinstance(item.root, exp.Filter) and not isinstance(call.expressions[0], exp.Distinct):
        condition = draft.text_of(item.root.expression.this)
        first_text, *other_texts = (draft.text_of(node) for node in call.expressions)
        value = "1" if isinstance(call.expressions[0], exp.Star) else first_text
        arguments = ", ".join([f"CASE WHEN {condition} THEN {value} END", *other_texts])
        yield replacement(item.span, f"{call.name.upper()}({arguments}){alias}")


def moving_window(draft: Draft, item: Item) -> Iterator[Edit]:
    """Yield the edits that write `window(ts, '6 hours', '1 hour')` for `SUM(COUNT(*)) OVER (... ROWS 5 PRECEDING)` of hours."""
    total = item.root.this
    spec = item.root.args.get("spec")
    aggregate = bare(total.expressions[0]) if call_name(total) in ("sum", "avg") else None
    if spec is None or aggregate is None or call_name(aggregate) not in AGGREGATES:
        return
    rows = spec.args.get("start")
    is_trailing = spec.args.get("end") in (None, "CURRENT ROW") and isinstance(rows, exp.Literal)
    cuts = [g for g in draft.groupings if g.span in draft.time_cuts and g.key is not None]
    length = re.search(r"'1 (\w+)'\)$", draft.time_cuts[cuts[0].span]) if len(cuts) == 1 else None
    if not is_trailing or length is None or item.root.args.get("partition_by"):
        return
    count = int(rows.name) + 1
    window_text = f"window({draft.time_column}, '{count} {length[1]}s', '1 {length[1]}')"
    reason = f"each row is of the {count} {length[1]}s before `{END}`"
    reason += f": divide by {count} when reading" if call_name(total) == "avg" else ""
    alias = "" if item.alias is None else f" AS {item.alias}"
    yield replacement(item.span, draft.text_of(aggregate) + alias, reason)
    yield replacement(cuts[0].span, window_text)
    if cuts[0].key is not None:
        yield replacement(cuts[0].key.span, "window.start")


# Functions

_UNITS = {"isoweek": "week", "isoyear": "year"}
_TRUNCATIONS = ("timestamp_trunc", "datetime_trunc", "date_trunc")
_SAME = {
    "safe_divide": "try_divide",
    "safe_add": "try_add",
    "safe_subtract": "try_subtract",
    "safe_multiply": "try_multiply",
    "safe_cast": "TRY_CAST",
    "starts_with": "startswith",
    "ends_with": "endswith",
    "regexp_contains": "regexp_like",
    "byte_length": "octet_length",
    "strpos": "instr",
}
"""Functions of BigQuery with arguments as Spark's have them."""


def truncated(draft: Draft, call: exp.Anonymous) -> Iterator[Edit]:
    """Yield the edit that writes `date_trunc('month', x)` for `TIMESTAMP_TRUNC(x, MONTH)`, `DATE_TRUNC(x, MONTH)` and their like."""
    arguments = call.expressions
    if call_name(call) not in _TRUNCATIONS or len(arguments) != 2:
        return
    value = bare(arguments[0])
    unit = bare(arguments[1])
    if not is_column(unit) or len(unit.parts) != 1:
        return
    if call_name(value) in ("date", "timestamp") and len(value.expressions) == 1:
        value = bare(value.expressions[0])
    word = unit.name.lower()
    reason = "weeks begin on Monday, BigQuery's on Sunday" if word == "week" else ""
    text = draft.text_of(value)
    yield replacement(draft.span(call), f"date_trunc('{_UNITS.get(word, word)}', {text})", reason)


def extracted(draft: Draft, node: exp.Extract) -> Iterator[Edit]:
    """Yield the edit that writes `date(ts)` for `EXTRACT(DATE FROM ts)`."""
    if node.name.upper() == "DATE":
        yield replacement(draft.span(node), f"date({draft.text_of(node.expression)})")


def other_function(draft: Draft, call: exp.Anonymous) -> Iterator[Edit]:
    """Yield the edit that writes a function of Spark for one that is not."""
    name = call_name(call) or ""
    span = draft.span(call)
    if name in _TRUNCATIONS:
        yield from truncated(draft, call)
    elif our_name := _SAME.get(name):
        yield replacement((span[0], span[0] + len(name)), our_name)
    else:
        names = (*FUNCTIONS, *map(str.lower, OUR_AGGREGATES))
        yield from known_word((span[0], span[0] + len(name)), name, names)


_NOWS = {
    "current_date": "DATE",
    "curdate": "DATE",
    "current_timestamp": "TIMESTAMP",
    "current_datetime": "TIMESTAMP",
    "now": "TIMESTAMP",
}
"""Words that read the clock, with the type of what they say."""

_BACK = ("timestamp_sub", "date_sub", "datetime_sub")
_FORTH = ("timestamp_add", "date_add", "datetime_add")


def day_of_today(draft: Draft, node: exp.Expr) -> Iterator[Edit]:
    """Yield the edit that writes out the time that a query by the clock means today: `CURRENT_DATE() - INTERVAL 7 DAY`."""
    name = node.name.lower()
    moved_time, back_us = _moved_time(node)
    if name not in _NOWS or back_us is None:
        return
    window_us = abs(back_us)
    time_us = now_us() - back_us
    is_day = window_us % UNITS_US["day"] == 0
    text = (
        timestamp(time_us)[: len("2026-01-31")]
        if is_day
        else timestamp(time_us).rstrip("Z").replace("T", " ")
    )
    reason = "the query keeps this date"
    if window_us and is_day:
        days = window_us // UNITS_US["day"]
        window = f"window({draft.time_column}, '{show_duration(window_us)}', '1 day')"
        reason += f"; to have the latest {days} days at each trigger: {window}"
    yield replacement(draft.span(moved_time), f"{_NOWS[name]} '{text}'", reason)


def _moved_time(node: exp.Expr) -> tuple[exp.Expr, int | None]:
    """Return the expression that moves a time by an interval, and how far back; the time itself where nothing moves it."""
    parent = node.parent
    if isinstance(parent, (exp.Sub, exp.Add)) and parent.this is node:
        length_us = _length_of(parent.expression)
        is_back = isinstance(parent, exp.Sub)
    elif isinstance(parent, exp.Anonymous) and call_name(parent) in (*_BACK, *_FORTH):
        length_us = _length_of(parent.expressions[-1])
        is_back = call_name(parent) in _BACK
    else:
        return node, 0
    return parent, length_us if is_back or length_us is None else -length_us


def _length_of(interval: exp.Expr) -> int | None:
    """Return the microseconds of an interval of a fixed length; of a number, those of so many days."""
    interval = bare(interval)
    unit = "day"
    if isinstance(interval, exp.Interval) and interval.args.get("unit"):
        unit = interval.args["unit"].name.lower().removesuffix("s")
        interval = interval.this
    number = interval.name
    is_whole = number.isascii() and number.isdecimal() and len(number) < 6
    return int(number) * UNITS_US[unit] if is_whole and unit in UNITS_US else None
