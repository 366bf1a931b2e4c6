"""What FROM makes visible, and the one canonical spelling of what is written: equal questions give equal text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.sources.change_feed import BESIDE
from dpsql.sources.config import Source
from dpsql.sources.time_units import has_unit
from dpsql.sql.dialect import DpGenerator, DpSpark
from dpsql.sql.values import is_column

# One canonical spelling: equal questions give equal text.

# Words that sqlglot's tokenizer knows but that Spark and sqlglot both read as plain column names.
_PLAIN_WORDS = frozenset(
    [
        "DATE",
        "TIMESTAMP",
        "TIME",
        "COMMENT",
        "FORMAT",
        "FILE",
        "INDEX",
        "SESSION",
        "VIEW",
        "TEXT",
        "NUMBER",
        "PERCENT",
        "FIRST",
        "TRIGGER",
    ]
)
_KEYWORDS = (
    frozenset(DpSpark.Tokenizer.KEYWORDS) | {"STREAM"}
) - _PLAIN_WORDS  # Spark 4 reads `FROM stream x` as a clause
_LEVELS: tuple[tuple[type[exp.Expr], ...], ...] = (
    (exp.Or,),
    (exp.And,),
    (exp.Not,),
    (exp.Predicate, exp.Between, exp.In, exp.Is, exp.Escape, exp.NullSafeEQ, exp.NullSafeNEQ),
    (exp.Binary, exp.Neg, exp.BitwiseNot),
)
_NOT = 2
_ARITHMETIC = 4
_BITWISE = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_ATOMS = (exp.Dot, exp.Kwarg, exp.Func)


SAME_PARTS = {"ISOWEEK": "WEEK", "ISOYEAR": "YEAROFWEEK", "DAYOFYEAR": "DOY"}
"""Parts of a time that Spark's EXTRACT has under another name."""


def canonical(select: exp.Select) -> exp.Select:
    """Return a copy in which equal questions are equal: lower-case names, no needless parentheses, aliases or qualifiers."""
    copy = select.copy()
    copy.set("hint", None)
    for query in list(copy.find_all(exp.Subquery)):
        while isinstance(query.this, exp.Subquery) and not query.this.args.get("alias"):
            query.set("this", query.this.this)
    for column in list(copy.find_all(exp.Column)):
        _drop_qualifier(column)
    for name in copy.find_all(exp.Identifier):
        name.set("this", name.this.lower())
        name.set("quoted", needs_quotes(name.this))
    for call in copy.find_all(exp.Anonymous):
        call.set("this", call.name.lower())
    for word in copy.find_all(exp.Var):
        unit = SAME_PARTS.get(word.name.upper(), word.name.upper())
        word.set("this", unit.removesuffix("S") if isinstance(word.parent, exp.Interval) else unit)
    for paren in list(copy.find_all(exp.Paren)):
        paren.replace(paren.this)
    for chain in list(copy.find_all(exp.And, exp.Or)):
        _lean_left(chain)
    for node in list(copy.walk()):
        _wrap_operands(node)
    return copy


def write(node: exp.Expr) -> str:
    """Return the canonical text of a node of a canonical tree."""
    return DpGenerator(dialect=DpSpark(), comments=False, normalize_functions="lower").generate(
        node
    )


def write_from(select: exp.Select) -> str:
    """Write everything from the word FROM on up to GROUP BY."""
    parts = {name: select.args.get(name) for name in ("from_", "joins", "laterals", "where")}
    whole = exp.Select(
        expressions=[exp.Star()], **{name: part for name, part in parts.items() if part}
    )
    return write(whole).removeprefix("SELECT * ")


def quoted(name: str) -> str:
    """Return a name as Spark SQL."""
    return "`" + name.replace("`", "``") + "`" if needs_quotes(name) else name


def needs_quotes(name: str) -> bool:
    """Tell whether Spark would not read the name as it stands."""
    return not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name.upper() in _KEYWORDS


def _drop_qualifier(column: exp.Column) -> None:
    table = column.args.get("table")
    select = column.find_ancestor(exp.Select)
    clause = select.args.get("from_") if select else None
    if (
        not table
        or select is None
        or clause is None
        or clause.this is None
        or select.args.get("joins")
        or select.args.get("laterals")
    ):
        return
    parts = column.parts
    if parts[0].name.lower() != clause.this.alias_or_name.lower():
        return
    remaining_parts = list(parts[1:])
    for place in ("this", "table", "db", "catalog"):
        column.set(place, remaining_parts.pop() if remaining_parts else None)


def _lean_left(chain: exp.Expr) -> None:
    """Write `a AND (b AND c)` as `(a AND b) AND c`: the parentheses never matter."""
    kind = type(chain)
    if isinstance(chain.parent, kind):
        return
    operands = list(_operands(chain, kind))
    while len(operands) > 2:
        operands[:2] = [kind(this=operands[0], expression=operands[1])]
    chain.set("this", operands[0])
    chain.set("expression", operands[1])


def _operands(chain: exp.Expr, kind: type) -> Iterable[exp.Expr]:
    stack = [chain]
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            stack.extend((node.expression, node.this))
        else:
            yield node


def _level(node: object) -> int | None:
    """Return how loosely the operator binds, or None for anything that needs no parentheses."""
    if isinstance(node, _ATOMS) and not isinstance(
        node, (exp.And, exp.Or, exp.RegexpLike, exp.Like, exp.ILike)
    ):
        return None
    return next((i for i, kinds in enumerate(_LEVELS) if isinstance(node, kinds)), None)


def _wrap_operands(node: exp.Expr) -> None:
    level = _level(node)
    if level is None and not isinstance(node, (exp.Bracket, exp.Dot)):
        return
    for place in ("this", "expression", "low", "high"):
        operand = node.args.get(place)
        inner = _level(operand)
        if inner is None or (isinstance(node, exp.Escape) and place == "this"):
            continue
        chained = (
            place == "this"
            and type(operand) is type(node)
            and inner in (0, 1, _ARITHMETIC)
            and isinstance(node, exp.Binary)
        )
        looser_parent = (
            level is not None
            and level < inner
            and level != _NOT
            and not isinstance(operand, _BITWISE)
        )
        if not (chained or looser_parent):
            node.set(place, exp.Paren(this=operand))


# What FROM makes visible: which columns, of which types, and whether a column comes straight
# from a source.

BESIDE_TYPES = tuple(
    (name, exp.DataType.build(kind))
    for name, kind in zip(BESIDE, ("string", "bigint", "timestamp"), strict=True)
)
"""What a change feed has beside the columns of its table."""


@dataclass(frozen=True)
class Field:
    """One visible column.

    Args:
        name: lower case.
        type: the declared or cast type, None where nothing declares one.
        origin: (source, column) when the value is that source's column untouched.
    """

    name: str
    type: exp.DataType | None = None
    origin: tuple[str, str] | None = None


@dataclass(frozen=True)
class Relation:
    """One item of FROM.

    Args:
        name: alias or table name, lower case; None for a sub-query without alias.
        fields: its known columns.
        passes: a source without a declared schema whose other columns pass through.
        hidden: columns of `passes` that do not (`* EXCEPT (...)`).
        unknown: nothing is known about it (its own problem is reported elsewhere): every name is taken as right.
        source: the source, where it is a plain table.
    """

    name: str | None
    fields: tuple[Field, ...] = ()
    passes: str | None = None
    hidden: frozenset[str] = frozenset()
    unknown: bool = False
    source: Source | None = None

    def find(self, name: str) -> list[Field]:
        """Return the columns of that name."""
        if matches := [field for field in self.fields if field.name == name]:
            return matches
        if self.passes and name not in self.hidden:
            return [Field(name, None, (self.passes, name))]
        return [Field(name)] if self.unknown else []


@dataclass(frozen=True)
class Scope:
    """One SELECT (the query itself, or a sub-query of its FROM) with what its expressions can see."""

    select: exp.Select
    relations: tuple[Relation, ...]
    outer: bool

    @property
    def joins(self) -> Sequence[exp.Join]:
        """The joins that FROM has, in text order."""
        return self.select.args.get("joins") or ()

    @property
    def laterals(self) -> Sequence[exp.Expr]:
        """The LATERAL VIEW clauses that FROM has, in text order."""
        return self.select.args.get("laterals") or ()

    @property
    def is_unknown(self) -> bool:
        """Whether it has columns that nobody can name."""
        return any(relation.unknown for relation in self.relations)

    def find(self, column: exp.Column) -> list[Field]:
        """Return the columns that a reference may mean: one is right, none is missing, several are ambiguous."""
        parts = [part.name.lower() for part in column.parts]
        if len(parts) > 1 and (matching := [r for r in self.relations if r.name == parts[0]]):
            return [
                _nested_field(field, parts[2:])
                for relation in matching
                for field in relation.find(parts[1])
            ]
        return [
            _nested_field(field, parts[1:])
            for relation in self.relations
            for field in relation.find(parts[0])
        ]

    def column_and_source(self, column: exp.Column) -> tuple[str, str | None]:
        """Return the name of the column that a reference means or reaches into, and the source whose undeclared one it may be."""
        first, *path = (part.name.lower() for part in column.parts)
        matching = [relation for relation in self.relations if path and relation.name == first]
        name, relations = (path[0], matching) if matching else (first, self.relations)
        is_declared = any(field.name == name for relation in relations for field in relation.fields)
        return name, None if is_declared else next(
            (relation.passes for relation in relations if relation.passes), None
        )

    def names(self) -> list[str]:
        """Return all known column names, for suggestions."""
        return [field.name for relation in self.relations for field in relation.fields]


def _nested_field(field: Field, path: list[str]) -> Field:
    return Field(path[-1]) if path else field


def read_scopes(select: exp.Select, sources: Mapping[str, Source]) -> tuple[Scope, ...]:
    """Return the scopes of the query and of the sub-queries in its FROM, outermost first."""
    inner: list[Scope] = []
    relations = tuple(
        relation for node in from_items(select) for relation in [_relation(node, sources, inner)]
    )
    generated = tuple(_generated(lateral) for lateral in select.args.get("laterals") or ())
    relations = relations or (Relation(None, unknown=True),)
    return (Scope(select, relations + generated, outer=True), *inner)


def from_items(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the items of FROM: the first one, then the joined ones."""
    clause = select.args.get("from_")
    if clause is not None and clause.this is not None:
        yield clause.this
    for join in select.args.get("joins") or ():
        yield join.this


def _relation(node: exp.Expr, sources: Mapping[str, Source], inner: list[Scope]) -> Relation:
    name = node.alias_or_name.lower() or None
    if renames_columns(node):
        return Relation(name, unknown=True)
    if (
        isinstance(node, exp.Table)
        and isinstance(node.this, exp.Identifier)
        and not node.args.get("db")
    ):
        source = sources.get(node.name.lower())
        return _of_source(source, name) if source else Relation(name, unknown=True)
    query = sub_select(node)
    if query is None:
        return Relation(name, unknown=True)
    scopes = read_scopes(query, sources)
    scope = replace(scopes[0], outer=False)
    inner.extend((scope, *scopes[1:]))
    return _of_select(scope, node.alias.lower() or None)


def renames_columns(node: exp.Expr) -> bool:
    """Tell whether column names follow the alias: `AS t(a, b)`."""
    alias = node.args.get("alias")
    return isinstance(alias, exp.TableAlias) and bool(alias.columns)


def sub_select(node: exp.Expr) -> exp.Select | None:
    """Return the SELECT of a sub-query in FROM, however many parentheses are around it."""
    while isinstance(node, (exp.Subquery, exp.Paren)):
        node = node.this
    return node if isinstance(node, exp.Select) else None


def _of_source(source: Source, name: str | None) -> Relation:
    declared = schema_fields(source.schema) if source.schema else None
    if declared is None:
        return Relation(name, passes=source.name, source=source)
    if source.event_time_unit:
        declared = tuple((column, _timed(column, kind, source)) for column, kind in declared)
    fields = tuple(
        Field(column, kind, (source.name, column))
        for column, kind in (*declared, *(BESIDE_TYPES if source.change_feed else ()))
    )
    return Relation(name, fields, source=source)


def _timed(column: str, kind: exp.DataType, source: Source) -> exp.DataType:
    """Return the type of a column as FROM sees it: an event time in a unit is a TIMESTAMP."""
    is_time = column == source.event_time and has_unit(
        kind.sql(dialect="spark").lower(), str(source.event_time_unit)
    )
    return exp.DataType.build("TIMESTAMP", dialect="spark") if is_time else kind


@lru_cache(maxsize=256)
def schema_fields(ddl: str) -> tuple[tuple[str, exp.DataType], ...] | None:
    """Return names (lower case) and types of a Spark DDL string; None when it cannot be read (then Spark will say so)."""
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect=DpSpark)
    except SqlglotError:
        return None
    columns = [
        column
        for column in table.this.expressions
        if isinstance(column, exp.ColumnDef) and column.kind
    ]
    return tuple((column.name.lower(), column.args["kind"]) for column in columns)


def _of_select(scope: Scope, name: str | None) -> Relation:
    fields: list[Field] = []
    passing = Relation(None)
    for projection in scope.select.expressions:
        if star := star_of(projection):
            starred = _starred(scope, projection, star) or [Relation(None, unknown=True)]
            passing = next(
                (relation for relation in starred if relation.passes or relation.unknown), passing
            )
            except_ = {column.name.lower() for column in star.args.get("except_") or ()}
            fields.extend(
                field
                for relation in starred
                for field in relation.fields
                if field.name not in except_
            )
            passing = replace(passing, hidden=passing.hidden | except_)
        elif projection.alias_or_name:
            fields.append(_projected(scope, projection))
    return Relation(name, tuple(fields), passing.passes, passing.hidden, passing.unknown)


def star_of(projection: exp.Expr) -> exp.Star | None:
    """Return the star of `*` or `t.*`."""
    if isinstance(projection, exp.Column):
        projection = projection.this
    return projection if isinstance(projection, exp.Star) else None


def _starred(scope: Scope, projection: exp.Expr, star: exp.Star) -> list[Relation]:
    table = "" if projection is star else projection.text("table").lower()
    return [relation for relation in scope.relations if not table or relation.name == table]


def _projected(scope: Scope, projection: exp.Expr) -> Field:
    value = projection.unalias()
    while isinstance(value, exp.Paren):
        value = value.this
    name = projection.alias_or_name.lower()
    kind = value_type(scope, value)
    origin = None
    if isinstance(value, exp.Column) and len(fields := scope.find(value)) == 1:
        origin = fields[0].origin
    return Field(name, kind, origin)


def value_type(scope: Scope, value: exp.Expr) -> exp.DataType | None:
    """Return the type where it is plain to see: a bare column, a cast."""
    if isinstance(value, (exp.Cast, exp.TryCast)):
        return value.to
    if is_column(value):
        found = scope.find(value)
        return found[0].type if len(found) == 1 else None
    return None


def _generated(lateral: exp.Expr) -> Relation:
    alias = lateral.args.get("alias")
    columns = tuple(Field(column.name.lower()) for column in alias.columns) if alias else ()
    return Relation(lateral.alias.lower() or None, columns, unknown=not columns)
