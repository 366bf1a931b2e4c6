"""Expressions that have a value for every record: guards put into the plan that Spark has made of a query.

A failing job would tell that a record exists, so no value may make an expression fail. The guards go into the *resolved* plan, where every
cast that Spark adds by itself is a node like others. They are put around kinds of nodes, not around functions that somebody listed:

* whatever may fail is tried: where it raises, its value is NULL;
* every DATE and TIMESTAMP, whatever made it, lies in the years 1 to 9999 or is NULL, as in the columns of sources;
* what takes more than linear time gets the beginning of a long text;
* what makes longer values than it is given gets the beginnings of its arguments (`dpsql.sql.growth`);
* a record of which one LATERAL VIEW makes too many rows is left out and counted.

Every guarded expression is computed once: a guard that repeats it (CASE WHEN x BETWEEN ... THEN x) would double the work at each level.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpsql.errors import DataError
from dpsql.sql.clock_words import NO_DATE, reads_the_clock
from dpsql.sql.growth import LONG, LONGEST, Growth, growth
from dpsql.sql.patterns import MAX_SEARCHED, refusal, searched
from dpsql.streaming import internals

TOO_MANY_ROWS = "too_many_rows"
"""The reason under which records with too many rows are counted."""

MOST_ROWS = 10_000
"""Rows that one explode may make of one row."""

MOST_ROWS_OF_ALL = 1_000_000
"""Rows that several of them together may make of one record."""

MOST_REPEATED = 1_000
"""A filter that Spark moves below projections repeats what these compute, so often at most."""

FIRST_DAY = -719_162
LAST_DAY = 2_932_896
DAY_US = 86_400_000_000
YEARS = {
    "date": (FIRST_DAY, LAST_DAY),
    "timestamp": (FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1),
    "timestamp_ntz": (FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1),
}
"""Spark's own numbers for the first and last value of the years 1 to 9999, by type."""

PASSED_ON = frozenset(
    {"Alias", "Coalesce", "If", "CaseWhen", "With", "CommonExpressionDef", "CommonExpressionRef"}
)
"""Nodes whose value is one that they were given; where these are within the years, so is it."""

COMPARED = frozenset(
    {
        "IsNull",
        "IsNotNull",
        "EqualTo",
        "EqualNullSafe",
        "LessThan",
        "LessThanOrEqual",
        "GreaterThan",
        "GreaterThanOrEqual",
        "In",
    }
)
NEVER_FAIL = PASSED_ON | COMPARED | {"AttributeReference", "Literal", "And", "Or", "Not", "TryEval"}
"""Nodes that only pass values on or compare them; all others are tried."""

STAND_FOR_CASTS = frozenset({"to_date", "to_timestamp", "try_to_timestamp"})
"""Functions in whose place Spark puts a cast, but only after this; such nodes have the function's name."""

SEARCHES = frozenset(["RLike", "RegExpExtract", "RegExpReplace", "StringSplit"])
"""Nodes with a text and a regular expression."""

LIKES = frozenset(["Like", "ILike"])
BEGINNINGS = {
    "Levenshtein": {0: MAX_SEARCHED, 1: MAX_SEARCHED},
    "StringRepeat": {0: MAX_SEARCHED},
    "StringSplit": {0: LONGEST},
}
"""How many characters of which arguments (from 0) are looked at, for nodes that take much more than they are given."""

HUGE_EXPONENT = "[eE][+-]?0*[1-9][0-9]{3,}"
"""Java writes out all digits of such a number before it rounds it to a DECIMAL: `1e-300000000` takes minutes, or all memory."""


class _Guards:
    """Puts the guards into one plan."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._java = internals.jvm_of(session)
        self._spark = self._java.org.apache.spark
        self._expressions = self._spark.sql.catalyst.expressions
        self._types = self._spark.sql.types.DataType
        self._most_elements = MOST_ROWS
        self._made = set[int]()
        self._explodes = 0
        self._references = Counter[int]()
        self._repeated = 1

    def guarded_plan(self, plan: Any) -> Any:
        """Return the plan of a query with guards."""
        explodes = _count(plan, "Generate")
        if explodes > 1:
            self._most_elements = min(MOST_ROWS, round(MOST_ROWS_OF_ALL ** (1 / explodes)))
        guarded_node = self.plan(plan)
        if self._repeated > MOST_REPEATED:
            internals.keep_filters(self._session)
        return guarded_node

    def plan(self, node: Any) -> Any:
        """Return a plan with guards; the sources (temporary views) stay as they are."""
        kind = _kind(node)
        if kind == "View" or not _list(node.children()):
            return node
        children = [self.plan(child) for child in _list(node.children())]
        node = node.withNewChildren(self._seq(children))
        logical = self._spark.sql.catalyst.plans.logical
        if kind == "SubqueryAlias":
            return node
        if kind == "Project":
            return logical.Project(self._seq(self._items(_list(node.projectList()))), children[0])
        if kind == "Filter":
            return logical.Filter(self.expression(node.condition()), children[0])
        if kind == "Join":
            condition = node.condition()
            if condition.isDefined():
                condition = self._java.scala.Option.apply(self.expression(condition.get()))
            return logical.Join(children[0], children[1], node.joinType(), condition, node.hint())
        if kind == "Generate":
            return self._generate(node, children[0])
        raise DataError(
            f"Spark reads FROM in a way ({kind}) that dpsql does not know: write it with sub-queries and joins only"
        )

    def _items(self, items: Sequence[Any]) -> list[Any]:
        """Return what a projection computes, with guards; how often it names one column is counted."""
        max_references = 1
        guarded_items = []
        for item in items:
            self._references.clear()
            guarded_items.append(self.expression(item))
            max_references = max(max_references, *self._references.values(), 1)
        self._repeated *= max_references
        return guarded_items

    def expression(self, node: Any) -> Any:
        """Return an expression with guards around each of its nodes that needs one."""
        kind = _kind(node)
        if kind == "AttributeReference":
            self._references[int(node.exprId().id())] += 1
        if kind == "LambdaFunction":
            return node  # what calls it is tried as a whole
        if kind in STAND_FOR_CASTS:
            return self.expression(node.replacement())
        operands = _list(node.children())
        children = [self.expression(child) for child in operands]
        rule = self._growth(node, kind, operands)
        short = self._short(node, kind, operands)
        for place, child in enumerate(operands):
            max_size = min(
                (size for size in (rule.limit, short.get(place)) if size is not None), default=None
            )
            if max_size is not None:
                children[place] = self._shorten(children[place], child, max_size)
        if kind in ("Cast", "JsonToStructs"):
            children = self._whole_texts(node, kind, operands, children)
        if operands:
            node = node.withNewChildren(self._seq(children))
        guarded = node if kind in NEVER_FAIL else self._tried(node)
        if rule.cuts_value:
            guarded = self._beginning(guarded, LONGEST)
        name = str(node.dataType().typeName())
        return (
            self._within_years(guarded, name)
            if name in YEARS and not self._needs_no_guard(node, kind, name)
            else guarded
        )

    def _needs_no_guard(self, node: Any, kind: str, name: str) -> bool:
        """Tell whether a DATE or TIMESTAMP needs no guard of its own: columns of sources have one already."""
        if kind == "AttributeReference":
            return int(node.exprId().id()) not in self._made
        if kind == "Literal":
            value = node.value()
            return value is None or YEARS[name][0] <= int(value) <= YEARS[name][1]
        return kind in PASSED_ON

    def _short(self, node: Any, kind: str, children: Sequence[Any]) -> dict[int, int]:
        """Return which arguments of a node are cut to how many characters."""
        if kind in SEARCHES | LIKES:
            pattern = str(children[1].eval(None)) if children[1].foldable() else "(?:|)*"
            if kind in LIKES and str(node.escapeChar()) != "\\":
                pattern = pattern.replace("\\", "x")  # escapes nothing here: every % counts
            if problem := refusal(pattern, kind in LIKES):
                raise DataError(problem)
            if kind in SEARCHES:
                self._check(pattern)
            if characters := searched(pattern, kind in LIKES):
                return {0: characters}
        return BEGINNINGS.get(kind, {})

    def _growth(self, node: Any, kind: str, children: Sequence[Any]) -> Growth:
        """Tell how a node's value is kept short.

        Raises:
            DataError: it may hold more than any bound.
        """
        value_type = _type(node)
        if value_type not in LONG:
            return Growth()
        literals = {
            place: str(child.value())
            for place, child in enumerate(children)
            if _kind(child) == "Literal"
        }
        schema = str(node.dataType().catalogString())
        fields = 1
        if kind == "JsonToStructs" and re.search("array<|map<", schema):
            fields += schema.count(":")
        rule = growth(kind, value_type, [_type(child) for child in children], literals, fields)
        if isinstance(rule, str):
            raise DataError(f"the query cannot be kept from filling the memory: {rule}")
        return rule

    def _shorten(self, node: Any, original: Any, max_size: int) -> Any:
        """Return the beginning of an argument; `original` is it without guards. What the query itself writes stays as it is."""
        value_type = _type(original)
        if _kind(original) == "Literal":
            return node
        if value_type in ("string", "binary"):
            return self._beginning(node, max_size)
        if value_type == "array":
            return self._expressions.Slice(
                node, self._number(1, "integer"), self._number(max_size, "integer")
            )
        return node

    def _whole_texts(
        self, node: Any, kind: str, operands: Sequence[Any], children: Sequence[Any]
    ) -> list[Any]:
        """Return the arguments of what makes DECIMALs or times of texts, without texts that take for ever and without the wall clock.

        Numbers with huge exponents, and times without a date, are no such values: NULL.

        Raises:
            DataError: the texts are inside of something, or are a word for today.
        """
        target_type = str(node.dataType().catalogString())
        time = "timestamp" in re.findall(r"\w+", target_type)
        number = "decimal(" in target_type
        source_type = str(children[0].dataType().catalogString()) if kind == "Cast" else "string"
        if "string" not in source_type:
            return list(children)
        if kind == "Cast" and source_type.startswith("string"):
            if operands[0].foldable() and reads_the_clock(str(operands[0].eval(None)), target_type):
                raise DataError(
                    f"a text is cast to {target_type.upper()} that Spark reads by the wall clock: write the date"
                )
            if target_type.startswith("decimal("):
                return [self._replaced(self._beginning(children[0], MAX_SEARCHED), HUGE_EXPONENT)]
            return [self._replaced(children[0], NO_DATE)] if time else list(children)
        if time or number:
            type_name, why = (
                ("TIMESTAMP", "takes today's date where it has none")
                if time
                else ("DECIMAL", "can take hours on one record")
            )
            raise DataError(
                f"a {type_name} made of text inside of JSON or of an array, map or struct {why}: read it as STRING there, and cast that"
            )
        return list(children)

    def _replaced(self, node: Any, pattern: str) -> Any:
        """Return a text in which `x` stands for what the pattern finds, so that it is no number and no time."""
        texts = [
            self._expressions.Literal.create(text, self._types.fromJson('"string"'))
            for text in (pattern, "x")
        ]
        return self._expressions.RegExpReplace(node, *texts)

    def _check(self, pattern: str) -> None:
        """Refuse a pattern at the start, whatever the first record is on which Spark would come across it."""
        try:
            self._java.java.util.regex.Pattern.compile(pattern)
        except (Py4JJavaError, PySparkException):
            raise DataError(
                f"the pattern {pattern!r} is not a regular expression of Java: correct it in the query"
            ) from None

    def _tried(self, node: Any) -> Any:
        return self._expressions.TryEval(node)

    def _within_years(self, node: Any, name: str) -> Any:
        """Return first + checkIndex(node - first, values), where checkIndex raises and is tried: the node stands in it once.

        Dates are Spark's ints, times its longs, so methods of the JVM compute with them as they are.
        """
        first, last = YEARS[name]
        number = "integer" if name == "date" else "long"
        offset = self._call(
            "java.lang.Math", "subtractExact", number, [node, self._number(first, number)]
        )
        checked = self._call(
            "java.util.Objects",
            "checkIndex",
            number,
            [offset, self._number(last - first + 1, number)],
        )
        return self._call(
            "java.lang.Math", "addExact", name, [self._tried(checked), self._number(first, number)]
        )

    def _call(self, owner: str, method: str, kind: str, arguments: Sequence[Any]) -> Any:
        return internals.static_call(self._session, owner, method, f'"{kind}"', arguments)

    def _number(self, value: int, kind: str) -> Any:
        java = self._java.java.lang
        boxed = java.Integer.valueOf(value) if kind == "integer" else java.Long.valueOf(value)
        return self._expressions.Literal(boxed, self._types.fromJson(f'"{kind}"'))

    def _beginning(self, node: Any, characters: int) -> Any:
        return self._expressions.Substring(
            node, self._number(1, "integer"), self._number(characters, "integer")
        )

    def _generate(self, node: Any, child: Any) -> Any:
        """Return an explode of what is computed below it, once, where records with too many elements are counted and left out."""
        logical = self._spark.sql.catalyst.plans.logical
        self._explodes += 1
        (collection,) = _list(node.generator().children())
        nothing = self._seq([])
        elements = self._expressions.Alias(
            self.expression(collection),
            "elements",
            self._expressions.NamedExpression.newExprId(),
            nothing,
            self._java.scala.Option.empty(),
            nothing,
        )
        child_plan = logical.Project(self._seq([*_list(child.output()), elements]), child)
        too_many = (
            F.size(internals.column_of(self._session, elements.toAttribute())) > self._most_elements
        )
        frame = internals.frame_of(self._session, child_plan).observe(
            f"dpsql_exploded_{self._explodes}", F.count_if(too_many).alias(TOO_MANY_ROWS)
        )
        child_plan = internals.analyzed(frame.where(~too_many))
        self._made |= {int(made.exprId().id()) for made in _list(node.generatorOutput())}
        generator = node.generator().withNewChildren(self._seq([elements.toAttribute()]))
        return logical.Generate(
            generator,
            node.unrequiredChildIndex(),
            node.outer(),
            node.qualifier(),
            node.generatorOutput(),
            child_plan,
        )

    def _seq(self, items: Sequence[Any]) -> Any:
        return internals.sequence(self._session, items)


def guarded(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows, made by expressions that do not fail on any value.

    Raises:
        DataError: the plan has a node that is not known here.
    """
    guards = _Guards(session)
    return internals.frame_of(session, guards.guarded_plan(internals.analyzed(frame)))


def _count(plan: Any, kind: str) -> int:
    return (_kind(plan) == kind) + sum(_count(child, kind) for child in _list(plan.children()))


def _kind(node: Any) -> str:
    return str(node.nodeName())


def _type(node: Any) -> str:
    return str(node.dataType().typeName())


def _list(items: Any) -> list[Any]:
    return [items.apply(i) for i in range(items.size())]
