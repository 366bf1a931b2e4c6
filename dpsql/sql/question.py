"""The second, smaller dialect: questions to published marginals, `SELECT [keys,] SUM(column) FROM name [WHERE ...] [GROUP BY keys]`.

A condition is over keys with declared domains, so it is a set of cells: it is read into products of one set of values per key, no two of which
share a cell.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from sqlglot import exp
from sqlglot.tokens import Token

from dpsql.errors import DataError, QueryError
from dpsql.sources.domains import OTHER
from dpsql.sql.items import call_name
from dpsql.sql.text import Refused, node_span, problem, read_script
from dpsql.sql.values import bare

Chosen = dict[int, npt.NDArray[np.bool_]]
"""A product: key -> which of its values. A key that is not there may have any."""

Weights = npt.NDArray[np.float64]

MOST_PRODUCTS = 256
FORM = "SELECT SUM(views) FROM page_views WHERE hour BETWEEN 8 AND 17"
TESTS = "=, <>, <, <=, >, >=, BETWEEN, IN, with AND, OR and NOT"
KNOWN: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: frozenset({"kind", "expressions", "from_", "where", "group"}),
    exp.Table: frozenset({"this", "alias"}),
    exp.Group: frozenset({"expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
}
"""What is read of a clause; all else that a parser finds in it would change what is asked."""
COMPARISONS: Mapping[type[exp.Expr], Callable[[int, int], bool]] = {
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}


@dataclass(frozen=True)
class Question:
    """What is asked.

    Args:
        table: in FROM.
        column: of the public table, lower case; None: COUNT(*).
        products: the condition; no two share a cell. None at all: no cell.
        by: places of the keys of GROUP BY, as selected.
        with_null: keys of which <> or NOT has counted `other`, and so NULL, which SQL's <> and NOT never count.
    """

    table: str
    column: str | None
    products: tuple[Chosen, ...]
    by: tuple[int, ...]
    with_null: tuple[str, ...] = ()


def table_of(text: str) -> str:
    """Return the table that a question is about.

    Raises:
        QueryError: it is no question.
    """
    return _Reader(text, {}).table()


def read_question(text: str, keys: Mapping[str, Sequence[str | int]]) -> Question:
    """Read one question.

    Args:
        text: of the question.
        keys: every key with its values, in order.

    Raises:
        QueryError: what is wrong, where, and what would be accepted.
    """
    return _Reader(text, keys).question()


def per_cell(
    question: Question, keys: Mapping[str, Sequence[str | int]]
) -> Iterator[tuple[dict[str, str | int], list[dict[int, Weights]]]]:
    """The cells of GROUP BY that the condition reaches: the values of their keys, and what is counted there, as weights."""
    groups = [(list(keys)[key], list(keys.values())[key], key) for key in question.by]
    for cell in itertools.product(*(enumerate(values) for _, values, _ in groups)):
        one = {
            key: np.arange(len(values)) == at
            for (_, values, key), (at, _) in zip(groups, cell, strict=True)
        }
        products = intersection(question.products, [one])
        if products or not groups:
            named = {name: value for (name, _, _), (_, value) in zip(groups, cell, strict=True)}
            yield (
                named,
                [
                    {key: chosen.astype(np.float64) for key, chosen in product.items()}
                    for product in products
                ],
            )


def disjoint(either: Sequence[Chosen], other: Sequence[Chosen]) -> list[Chosen]:
    """Return the union of two lists of products, each without a common cell."""
    return [*either, *intersection(complement(either), other)]


def intersection(either: Sequence[Chosen], other: Sequence[Chosen]) -> list[Chosen]:
    """Return what is in both; products without a cell are left out."""
    both = []
    for one in either:
        for two in other:
            product = dict(one)
            for key, chosen in two.items():
                product[key] = product[key] & chosen if key in product else chosen
            if all(chosen.any() for chosen in product.values()):
                both.append(product)
    return both


def complement(products: Sequence[Chosen]) -> list[Chosen]:
    """Return all other cells."""
    rest: list[Chosen] = [{}]
    for product in products:
        outside = list[Chosen]()
        before = Chosen()
        for key, chosen in product.items():
            if not chosen.all():
                outside.append({**before, key: ~chosen})
            before = {**before, key: chosen}
        rest = intersection(rest, outside)
        if len(rest) > MOST_PRODUCTS:
            raise TooManyError
    return rest


class TooManyError(Exception):
    """More than `MOST_PRODUCTS`."""


class _Reader:
    """One text."""

    def __init__(self, text: str, keys: Mapping[str, Sequence[str | int]]) -> None:
        self.text = text
        self.names = list(keys)
        self.values = list(keys.values())
        try:
            script = read_script(text)
        except Refused as refused:
            raise QueryError(text, tuple(refused.problems), "question") from None
        except RecursionError:
            raise DataError(
                "the question is nested too deeply: write it with fewer brackets and NOT"
            ) from None
        self.tokens: Sequence[Token] = script.tokens
        self.tree = script.tree
        if not isinstance(self.tree, exp.Select):
            self._refuse(self.tree, "A question is one SELECT", f"write {FORM}")

    def table(self) -> str:
        clause = self.tree.args.get("from_")
        table = clause.this if clause is not None else None
        if (
            not isinstance(table, exp.Table)
            or not isinstance(table.this, exp.Identifier)
            or table.args.get("db")
        ):
            self._refuse(
                clause or self.tree, "A question is about one published table", f"write {FORM}"
            )
        return str(table.name)

    def question(self) -> Question:
        for clause in self.tree.find_all(*KNOWN):
            for name, given in clause.args.items():
                if given and name not in KNOWN[type(clause)]:
                    node = given[0] if isinstance(given, list) else given
                    self._refuse(
                        node if isinstance(node, exp.Expr) else clause,
                        "A question has SELECT, FROM, WHERE and GROUP BY only, in their plain forms",
                        "leave it out",
                    )
        selected = [bare(node.unalias()) for node in self.tree.expressions]
        sums = [node for node in selected if not isinstance(node, exp.Column)]
        if len(sums) != 1:
            self._refuse(
                self.tree,
                f"A question has one COUNT(*) or SUM, this one {len(sums)}",
                f"write {FORM}",
            )
        group = self.tree.args.get("group")
        grouped = [bare(node) for node in group.expressions] if group is not None else []
        by = tuple(self._key(node) for node in selected if isinstance(node, exp.Column))
        if sorted(self._key(node) for node in grouped) != sorted(by) or len({*by}) < len(by):
            self._refuse(
                group or self.tree,
                "Keys of the select list and of GROUP BY are the same",
                "name each key once in both",
            )
        where = self.tree.args.get("where")
        products = self._condition(bare(where.this)) if where is not None else [Chosen()]
        return Question(
            self.table(), self._column(sums[0]), tuple(products), by, self._with_null(where)
        )

    def _with_null(self, where: exp.Expr | None) -> tuple[str, ...]:
        """Return keys with `other` in a test that is turned round."""
        turned = [*where.find_all(exp.NEQ, exp.Not)] if where is not None else []
        found = {column.name.lower() for node in turned for column in node.find_all(exp.Column)}
        return tuple(
            name
            for name, values in zip(self.names, self.values, strict=True)
            if name in found and OTHER in values
        )

    def _column(self, node: exp.Expr) -> str | None:
        inside = node.expressions if isinstance(node, exp.Anonymous) else []
        if call_name(node) == "count" and len(inside) == 1 and isinstance(inside[0], exp.Star):
            return None
        if call_name(node) == "sum" and len(inside) == 1 and isinstance(inside[0], exp.Column):
            return str(inside[0].name).lower()
        self._refuse(
            node, "A question asks for COUNT(*), or the SUM of a published column", f"write {FORM}"
        )

    def _condition(self, node: exp.Expr) -> list[Chosen]:
        try:
            if len(found := self._read(node)) <= MOST_PRODUCTS:
                return _merged(found)
        except (TooManyError, RecursionError):
            pass
        self._refuse(
            node,
            f"This condition falls into more than {MOST_PRODUCTS} products",
            "ask its parts, or use IN in the place of OR",
        )

    def _read(self, node: exp.Expr) -> list[Chosen]:
        if isinstance(node, exp.And):
            found = intersection(
                self._condition(bare(node.this)), self._condition(bare(node.expression))
            )
        elif isinstance(node, exp.Or):
            found = disjoint(
                self._condition(bare(node.this)), self._condition(bare(node.expression))
            )
        elif isinstance(node, exp.Not):
            found = complement(self._condition(bare(node.this)))
        elif isinstance(node, exp.Boolean):
            found = [{}] if node.this else []
        else:
            key, chosen = self._test(node)
            found = [{key: chosen}] if chosen.any() else []
        return found

    def _test(self, node: exp.Expr) -> tuple[int, npt.NDArray[np.bool_]]:
        """Return one key and which of its values."""
        if isinstance(node, (exp.EQ, exp.NEQ, *COMPARISONS)):
            left = bare(node.this)
            right = bare(node.expression)
            if not isinstance(left, exp.Column):
                self._refuse(node, "A condition has a key on its left", f"write it as {TESTS}")
            key = self._key(left)
            value = self._value(key, right)
            if isinstance(node, (exp.EQ, exp.NEQ)):
                return key, self._among(key, [value]) ^ isinstance(node, exp.NEQ)
            return key, self._compared(key, node, COMPARISONS[type(node)], value)
        if isinstance(node, exp.Between) and isinstance(bare(node.this), exp.Column):
            key = self._key(bare(node.this))
            low, high = (self._value(key, bare(node.args[name])) for name in ("low", "high"))
            return key, self._compared(key, node, operator.ge, low) & self._compared(
                key, node, operator.le, high
            )
        if (
            isinstance(node, exp.In)
            and isinstance(bare(node.this), exp.Column)
            and node.expressions
        ):
            key = self._key(bare(node.this))
            return key, self._among(
                key, [self._value(key, bare(each)) for each in node.expressions]
            )
        hint = f"write it as {TESTS}; NULL is in no domain, or in `other`"
        self._refuse(node, "This is no condition on a key", hint)

    def _key(self, node: exp.Expr) -> int:
        name = node.name.lower() if isinstance(node, exp.Column) else ""
        called = str(self.tree.args["from_"].this.alias_or_name)  # what FROM calls the table
        if isinstance(node, exp.Column) and node.table and node.table.lower() != called.lower():
            self._refuse(
                node, f"There is no table `{node.table}`", f"the keys are {', '.join(self.names)}"
            )
        if name not in self.names:
            self._refuse(
                node, f"There is no key `{node.name}`", f"the keys are {', '.join(self.names)}"
            )
        if not self.values[self.names.index(name)]:
            self._refuse(node, f"No measured table has the key `{name}`", "leave it out")
        return self.names.index(name)

    def _value(self, key: int, node: exp.Expr) -> str | int:
        sign, inner = (-1, bare(node.this)) if isinstance(node, exp.Neg) else (1, node)
        whole = isinstance(self.values[key][0], int)
        if isinstance(inner, exp.Literal):
            if whole and not inner.is_string and str(inner.this).isdigit():
                return sign * int(inner.this)
            if not whole and inner.is_string and sign == 1:
                if (
                    inner.this not in self.values[key]
                ):  # it may be among the other values, or nowhere
                    self._refuse(
                        node,
                        f"`{self.names[key]}` has no value {inner.this!r}",
                        f"it has {', '.join(map(repr, self.values[key][:8]))}",
                    )
                return str(inner.this)
        self._refuse(
            node,
            f"The values of `{self.names[key]}` are {'whole numbers' if whole else 'texts'}",
            f"like {self.values[key][0]!r}",
        )

    def _among(self, key: int, wanted: Sequence[str | int]) -> npt.NDArray[np.bool_]:
        among = {*wanted}
        return np.array([value in among for value in self.values[key]], bool)

    def _compared(
        self, key: int, node: exp.Expr, holds: Callable[[int, int], bool], value: str | int
    ) -> npt.NDArray[np.bool_]:
        known = self.values[key]
        if isinstance(value, str):
            self._refuse(
                node,
                f"Texts like those of `{self.names[key]}` have no order here",
                "list them: IN ('a', 'b')",
            )
        return np.array([isinstance(each, int) and holds(each, value) for each in known])

    def _refuse(self, node: exp.Expr, message: str, hint: str) -> NoReturn:
        raise QueryError(
            self.text, (problem(node_span(node, self.tokens), message, hint),), "question"
        )


def _merged(products: list[Chosen]) -> list[Chosen]:
    """Products over one and the same key are one."""
    keys = {*products[0]} if products else set()
    if len(products) > 1 and len(keys) == 1 and all({*product} == keys for product in products):
        (key,) = keys
        return [{key: np.any([product[key] for product in products], axis=0)}]
    return products
