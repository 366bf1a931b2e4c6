"""parse_query: SQL text to ParsedQuery, or a QueryError with every problem of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sqlglot import exp
from sqlglot.tokens import TokenType

from dpsql.errors import Problem, QueryError
from dpsql.parsed_query import (
    ONE_TIME,
    Aggregate,
    ContributionPeriod,
    Key,
    Paired,
    ParsedQuery,
    Percentile,
    PerGroup,
    PrivacyLevel,
    Quantiles,
    Reading,
    WindowSpec,
)
from dpsql.sources.config import Source
from dpsql.sql import (
    aggregate_rules,
    clause_rules,
    from_rules,
    reading_rules,
    row_local,
    select_rules,
    time_rules,
)
from dpsql.sql.aggregates import Call, bounds_of_values, read_parts, read_share
from dpsql.sql.dialect import DpClause
from dpsql.sql.draft import Draft, Option
from dpsql.sql.edits import edited, insertion, proposal
from dpsql.sql.googlesql import added_option
from dpsql.sql.items import Kind
from dpsql.sql.reading_rules import read_reading
from dpsql.sql.relations import quoted, write, write_from
from dpsql.sql.select_rules import public_groups_sql
from dpsql.sql.text import Refused, Script, problem, read_script, token_span
from dpsql.sql.values import bare

# Named queries (`WITH recent AS (SELECT ...) SELECT ... FROM recent`): each becomes the sub-
# query of FROM that it stands for.


def unreadable_names(script: Script) -> Iterator[Problem]:
    """Reject RECURSIVE, column names after the name, one name twice, and names that FROM never
    mentions."""
    with_clause = script.tree.args.get("with_")
    if with_clause is None:
        return
    if with_clause.args.get("recursive"):
        yield problem(
            _place(with_clause.expressions[0]),
            "Recursive queries are not accepted",
            "delete RECURSIVE",
        )
        return
    earlier_names: set[str] = set()
    for query in with_clause.expressions:
        name = query.alias.lower()
        if query.args["alias"].columns:
            yield problem(
                _place(query),
                "Column names after the name of a query are not accepted",
                f"write WITH {name} AS (SELECT a AS b ...)",
            )
        elif name in earlier_names:
            yield problem(
                _place(query), f"WITH has two queries `{name}`", "give one of them another name"
            )
        elif not any(_mentions(table, name) for table in script.tree.find_all(exp.Table)):
            yield problem(
                _place(query),
                f"FROM does not read the query `{name}` of WITH",
                f"write FROM {name}, or delete it",
            )
        earlier_names.add(name)


def written_out(select: exp.Select) -> exp.Select:
    """Return the query with its named queries in FROM, where they are read; the one given is not changed.

    A name means the named query before it means a source, but not inside of the query that has the name: as in Spark.
    """
    if select.args.get("with_") is None:
        return select
    select = select.copy()
    named_queries: dict[str, exp.Expr] = {}
    for query in select.args["with_"].expressions:
        _replace(query.this, named_queries)
        named_queries[query.alias.lower()] = query.this
    select.set("with_", None)
    _replace(select, named_queries)
    return select


def _replace(node: exp.Expr, named_queries: Mapping[str, exp.Expr]) -> None:
    for table in list(node.find_all(exp.Table)):
        name = table.name.lower()
        if name in named_queries and _mentions(table, name):
            other_args = {
                part: value
                for part, value in table.args.items()
                if value and part not in ("this", "alias")
            }
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name))
            table.replace(exp.Subquery(this=named_queries[name].copy(), alias=alias, **other_args))


def _mentions(table: exp.Table, name: str) -> bool:
    return (
        isinstance(table.this, exp.Identifier)
        and table.name.lower() == name
        and table.args.get("db") is None
    )


def _place(query: exp.Expr) -> tuple[int, int]:
    meta = query.args["alias"].this.meta
    return meta["start"], meta["end"] + 1


# The rules for every query, in order; mechanisms bring more. Each is a function of the draft
# alone; none depends on another having run.

Rule = Callable[[Draft], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    clause_rules.clause_missing,
    clause_rules.options_missing,
    clause_rules.option_names_quoted,
    clause_rules.option_operators,
    clause_rules.unknown_options,
    clause_rules.foreign_options,
    clause_rules.duplicate_options,
    clause_rules.option_values,
    clause_rules.strategy_holds,
    clause_rules.within_policy,
    clause_rules.unit_declared,
    clause_rules.unit_untouched,
    select_rules.public_groups_query,
    select_rules.unit_as_key,
    select_rules.start_declared,
    select_rules.stars,
    aggregate_rules.aggregates_missing,
    aggregate_rules.computed_aggregates,
    aggregate_rules.aggregate_wrappers,
    aggregate_rules.aggregate_fields,
    select_rules.window_aliases,
    select_rules.legal_names,
    select_rules.reserved_names,
    select_rules.unique_names,
    select_rules.shadowing_aliases,
    select_rules.keys_grouped,
    select_rules.groupings_selected,
    select_rules.groupings_twice,
    select_rules.keys_selected_twice,
    select_rules.grouped_by_position,
    select_rules.grouped_by_window_name,
    select_rules.grouping_sets,
    select_rules.key_types,
    aggregate_rules.known_aggregates,
    aggregate_rules.quantiles_elsewhere,
    aggregate_rules.bounds_per_group_elsewhere,
    aggregate_rules.rows_beside_bounds_per_group,
    aggregate_rules.quantile_parts,
    aggregate_rules.aggregate_arguments,
    aggregate_rules.distinct_arguments,
    aggregate_rules.named_arguments,
    aggregate_rules.bounds_given,
    aggregate_rules.bounds_ordered,
    aggregate_rules.numeric_arguments,
    from_rules.from_missing,
    from_rules.from_kinds,
    from_rules.from_set_operations,
    from_rules.qualified_sources,
    from_rules.known_sources,
    from_rules.decorations,
    from_rules.alias_columns,
    from_rules.one_stream,
    from_rules.join_kinds,
    from_rules.joined_tables,
    from_rules.lateral_kinds,
    from_rules.refused_clauses,
    from_rules.sub_query_columns,
    from_rules.star_rewrites,
    row_local.refused_constructs,
    row_local.sub_query_lists,
    row_local.unusual_forms,
    row_local.refused_families,
    row_local.unknown_functions,
    row_local.extracted_parts,
    row_local.explode_places,
    row_local.argument_counts,
    row_local.constant_arguments,
    row_local.constant_patterns,
    row_local.pattern_groups,
    row_local.endless_patterns,
    row_local.huge_lengths,
    row_local.time_formats,
    row_local.times_by_the_clock,
    row_local.time_zones,
    row_local.known_columns,
    *from_rules.RULES,
    time_rules.window_over_changes,
    time_rules.duration_of_windows,
    time_rules.second_window,
    time_rules.other_windows,
    time_rules.window_in_list,
    time_rules.window_arguments,
    time_rules.slide_above_size,
    time_rules.event_time_column,
    time_rules.event_time_untouched,
    time_rules.event_time_type,
    time_rules.trigger_fits_slide,
    *reading_rules.RULES,
)


# From a draft without problems to the ParsedQuery.


def build(draft: Draft, mechanism: str, choices: Any) -> ParsedQuery[Any]:
    """Return the value of an accepted query: defaults filled in, everything in its canonical spelling.

    Args:
        draft: without problems.
        mechanism: whose query it is.
        choices: what that has read.
    """
    if draft.stream is None or (draft.window_times is None) != draft.windowless:
        raise AssertionError("a rule let a query without stream or window pass")
    value = draft.value
    event = value("privacy_level") is PrivacyLevel.EVENT
    period = ContributionPeriod.STREAM if event else value("contribution_period")
    max_ahead_us = None if draft.once else draft.stream.max_ahead_us
    return ParsedQuery(
        mechanism=mechanism,
        epsilon=value("epsilon"),
        delta=value("delta"),
        privacy_unit=() if event else draft.stream.privacy_unit,
        contribution_period=ContributionPeriod.DURATION if isinstance(period, int) else period,
        event_time=ONE_TIME if draft.once else quoted(_event_time(draft)),
        window=_window(*draft.window_times) if draft.window_times else None,
        trigger_interval_us=value("trigger_interval"),
        allowed_lateness_us=value("allowed_lateness"),
        max_ahead_us=value("trigger_interval") if max_ahead_us is None else max_ahead_us,
        public_groups=public_groups_sql(value("public_groups")),
        keys=_sketch_keys(draft)
        if draft.sketches
        else tuple(Key(item.name or "", item.sql) for item in draft.keys),
        aggregates=tuple(_aggregate(call, draft.stream) for call in draft.calls),
        from_sql=write_from(draft.canonical),
        stream=draft.stream.name,
        static_sources=_static_sources(draft),
        columns_in_order=tuple(
            item.name or "" for item in draft.items if item.kind in (Kind.KEY, Kind.AGGREGATE)
        ),
        asked=choices,
    )


def _event_time(draft: Draft) -> str:
    """Return the column that window() names; without a window the one that the source declares."""
    if draft.windowless and draft.stream and draft.stream.event_time:
        return draft.stream.event_time
    return bare(draft.window_calls[0].expressions[0]).name.lower()


def _window(size: int, slide: int, offset: int) -> WindowSpec:
    return WindowSpec(size, slide, offset % slide)


def _static_sources(draft: Draft) -> tuple[str, ...]:
    """Return the public tables that FROM joins or that list the groups, by name."""
    names = {
        relation.source.name
        for scope in draft.scopes
        for relation in scope.relations
        if relation.source and relation.source.static
    }
    listed = draft.value("public_groups")
    if listed is not None:
        names.add(listed.args["from_"].this.name.lower())
    return tuple(sorted(names))


def _sketch_keys(draft: Draft) -> tuple[Key, ...]:
    """Return what the sketches count, by the path that it has in the public table: no column is called so."""
    first = draft.sketches[0]
    parts = [write(part) for part in first.canonical_values]
    path = f"{first.item.name}.value"
    return (
        (Key(path, parts[0]),)
        if len(parts) == 1
        else tuple(
            Key(f"{path}.{name}", part) for name, part in zip(names_of(first), parts, strict=True)
        )
    )


def names_of(call: Call) -> tuple[str, ...]:
    """Return the fields of a compound value: columns by their names, others by their place."""
    columns = [
        part.name.lower() if isinstance(part, exp.Column) else "" for part in call.counted_values
    ]
    return tuple(
        name if name and columns.count(name) == 1 else f"col{i}"
        for i, name in enumerate(columns, 1)
    )


def _aggregate(call: Call, source: Source) -> Aggregate:
    if call.function is None or call.item.name is None:
        raise AssertionError("a rule let an unknown aggregate pass")
    argument = None if call.weight is None else write(call.canonical_arguments[call.weight])
    bounds, *x_bounds = bounds_of_values(call, source)
    if call.of_pairs:
        (x_pair,) = x_bounds
        x = write(call.canonical_arguments[1])
        return Paired(call.item.name, call.function, argument, bounds, x, x_pair or (0.0, 0.0))
    parts = read_parts(call)
    share = read_share(call)
    if share is not None and parts is not None:
        return Percentile(call.item.name, call.function, argument, bounds, parts, share.numerator)
    if parts is not None:
        return Quantiles(call.item.name, call.function, argument, bounds, parts)
    return (PerGroup if call.per_group else Aggregate)(
        call.item.name, call.function, argument, bounds
    )


class QueryReader(Protocol):
    """The part of a mechanism that the front end needs (`dpsql.mechanisms.protocol.Mechanism`)."""

    @property
    def name(self) -> str:
        """The name of the mechanism."""

    @property
    def takes(self) -> str:
        """The queries that it takes, in words."""

    @property
    def options(self) -> tuple[Option, ...]:
        """All that its queries may write."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that judge its queries."""

    def claims(self, draft: Draft) -> bool:
        """Tell whether a query is this mechanism's."""

    def read(self, draft: Draft) -> Any:
        """Return what a query asks of it."""


def parse_query(
    text: str, sources: Mapping[str, Source], readers: Sequence[QueryReader], name: str = "query"
) -> ParsedQuery[Any]:
    """Read one query of the dialect.

    Args:
        text: one SELECT WITH DIFFERENTIAL_PRIVACY statement; comments and a final `;` are fine.
        sources: what FROM may name.
        readers: the mechanisms; one of them claims the query. Where none does, the first one says what is wrong.
        name: how messages call the text, usually the file's name.

    Returns:
        The query with all defaults of the dialect; equal for texts that differ only in comments, blanks, letter case and needless
        parentheses.

    Raises:
        QueryError: with all problems in text order; a text that is not one SELECT by its grammar has that problem alone.
    """
    query = _query_or_problems(text, sources, readers)
    if isinstance(query, ParsedQuery):
        return query

    def judge(edited_text: str) -> Sequence[Problem]:
        edited_query = _query_or_problems(edited_text, sources, readers)
        return () if isinstance(edited_query, ParsedQuery) else edited_query

    raise QueryError(text, query, name, proposal(text, query, judge))


def _query_or_problems(
    text: str, sources: Mapping[str, Source], readers: Sequence[QueryReader]
) -> ParsedQuery[Any] | tuple[Problem, ...]:
    """Return the query, or all that is wrong with it."""
    try:
        draft = read_draft(text, sources, options_of(readers))
        reader = claiming(draft, readers)
        problems = [problem for rule in (*RULES, *reader.rules) for problem in rule(draft)]
        problems += options_of_others(draft, reader, readers)
        if problems:
            return in_text_order(text, problems)
        if not reader.claims(draft):
            raise AssertionError("no mechanism claims a query that no rule refuses")
        return build(draft, reader.name, reader.read(draft))
    except Refused as refused:
        return refused.problems
    except RecursionError:
        return (_too_deep(text),)


def reading_of(text: str, sources: Mapping[str, Source]) -> Reading:
    """Return how the rows of an accepted query are shown."""
    return read_reading(read_draft(text, sources))


def time_cuts_of(text: str, sources: Mapping[str, Source]) -> Sequence[str]:
    """Return the windows that would mean the same as keys of a one-time release."""
    draft = read_draft(text, sources)
    return tuple(dict.fromkeys(draft.time_cuts.values())) if draft.once else ()


def stream_named(text: str) -> str:
    """Return the first table that FROM names, however deep; `records` where the text cannot be read that far (its problems are for `parse_query`)."""
    try:
        tree = read_script(text).tree
    except (Refused, RecursionError):
        return "records"
    select = written_out(tree) if isinstance(tree, exp.Select) else tree
    clause = select.args.get("from_")
    table = next(iter(clause.find_all(exp.Table)), None) if clause is not None else None
    return "records" if table is None else table.name.lower()


def options_of(readers: Sequence[QueryReader]) -> tuple[Option, ...]:
    """Return every option that any mechanism knows, each once."""
    return tuple({option.name: option for reader in readers for option in reader.options}.values())


def options_of_others(
    draft: Draft, reader: QueryReader, readers: Sequence[QueryReader]
) -> Iterator[Problem]:
    """Reject options that other mechanisms know and the query's own does not."""
    own_names = {option.name for option in reader.options}
    other_names = {option.name for option in options_of(readers)}
    for entry in draft.entries:
        if entry.name in other_names - own_names:
            subject = time_rules.ONE_RELEASE if draft.once else reader.takes
            message = f"The option {entry.name} is not supported in {subject}"
            yield problem(entry.name_span, message, "omit it")


def claiming(draft: Draft, readers: Sequence[QueryReader]) -> QueryReader:
    """Return the one mechanism whose query this is.

    Raises:
        AssertionError: two claim it; a test over all golden queries looks for that.
    """
    claimants = [reader for reader in readers if reader.claims(draft)]
    if len(claimants) > 1:
        raise AssertionError(
            f"{' and '.join(reader.name for reader in claimants)} both claim one query"
        )
    return (claimants or readers)[0]


def read_draft(text: str, sources: Mapping[str, Source], options: tuple[Option, ...] = ()) -> Draft:
    """Return the draft of a text that is one SELECT with the clause.

    Args:
        text: of the query.
        sources: what FROM may name.
        options: the options whose values are read; others are only seen.

    Raises:
        Refused: it is not.
    """
    script = read_script(text)
    for rule in SHAPE_RULES:
        if problems := tuple(rule(script)):
            raise Refused(*problems)
    assert isinstance(script.tree, exp.Select)
    select = written_out(script.tree)
    clause = select.args.get("hint")
    return Draft(
        text,
        script.tokens,
        select,
        clause if isinstance(clause, DpClause) else _no_clause(script),
        sources,
        options,
    )


def _no_clause(script: Script) -> DpClause:
    """Return what stands for the clause of a plain SELECT, so that all else that is wrong with it is said at once."""
    clause = DpClause(absent=True)
    depth = 0
    for token in script.tokens:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if token.token_type == TokenType.SELECT and depth == 0:
            clause.meta["tokens"] = (token,)
    return clause


_COMBINING = (TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT)


def set_operation(script: Script) -> Iterator[Problem]:
    """Reject UNION, INTERSECT and EXCEPT of whole queries."""
    if not isinstance(script.tree, exp.Select):
        words = [token for token in script.tokens if token.token_type in _COMBINING]
        yield problem(
            token_span((words or script.tokens)[0]),
            "A file holds one SELECT, not a combination of several",
            "write each query into a file of its own",
        )


SHAPE_RULES: tuple[Callable[[Script], Iterator[Problem]], ...] = (set_operation, unreadable_names)
"""Checks on the tree without which no draft can be read; the first that finds something ends the reading."""


def in_text_order(text: str, problems: list[Problem]) -> tuple[Problem, ...]:
    """Sort problems by place, each once, every place inside the text and not on a line end."""
    last = max(len(text.rstrip()), 1)
    placed = {
        replace(p, start=min(p.start, last - 1), end=min(p.end, last)): None for p in problems
    }
    return tuple(sorted(placed, key=lambda p: (p.start, p.end)))


def _too_deep(text: str) -> Problem:
    start = len(text) - len(text.lstrip())
    return problem(
        (start, start + 1),
        "The query is nested too deeply",
        "write it with fewer parentheses and sub-queries",
    )


# Other values for options of a query's text; everything else, comments and layout included,
# stays as written.


def edit_options(text: str, sources: Mapping[str, Source], changes: Mapping[str, str]) -> str:
    """Return the text with these options.

    Args:
        text: an accepted query.
        sources: what its FROM may name.
        changes: option -> value as it is to be written. An option that is not there is added after the last one.
    """
    draft = read_draft(text, sources)
    options = {name: draft.entry(name) for name in changes}
    edits = [(option.value_span, changes[name]) for name, option in options.items() if option]
    additions = "".join(
        f", {name} = {value}" for name, value in changes.items() if not options[name]
    )
    end = max(entry.value_span[1] for entry in draft.entries)
    edits.append(((end, end), additions))
    # from the last to the first, so that places stay what they are; at the same end the value goes before what is added after it
    for (start, stop), value in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + value + text[stop:]
    return text


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Return the text with these options besides its own; with `epsilon` a plain SELECT is private.

    What cannot be read stays as it is, for `parse_query` says why.
    """
    try:
        draft = read_draft(text, {})
    except (Refused, RecursionError):
        return text
    options_text = ", ".join(f"{name} = {value}" for name, value in options.items())
    if not draft.clause.args.get("absent"):
        return edited(text, [added_option(draft, options_text)] if options else [])
    clause = f" WITH DIFFERENTIAL_PRIVACY OPTIONS ({options_text})"
    is_private = options.get("epsilon") is not None
    return edited(text, [insertion(draft.clause_span[1], clause)] if is_private else [])
