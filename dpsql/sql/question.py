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
    """One question about a public table.

    Args:
        table: in FROM.
        column: of the public table, lower case; None: COUNT(*).
        products: the condition; no two share a cell. None at all: no cell.
        group_keys: places of the keys of GROUP BY, as selected.
        with_null: keys of which <> or NOT has counted `other`, and so NULL, which SQL's <> and NOT never count.
    """

    table: str
    column: str | None
    products: tuple[Chosen, ...]
    group_keys: tuple[int, ...]
    with_null: tuple[str, ...] = ()


def table_of(text: str) -> str:
    """Return the table that a question is about.

    Raises:
        QueryError: it is no question.
    """
    return _Reader(text, {}).table()


def read_question(text: str, keys: Mapping[str, Sequence[str | int]]) -> Question:
    """Read one question about a public table.

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
    """Yield the cells of GROUP BY that the condition reaches: the values of their keys, and what is
    counted there, as weights."""
    groups = [(list(keys)[key], list(keys.values())[key], key) for key in question.group_keys]
    for cell in itertools.product(*(enumerate(values) for _, values, _ in groups)):
        masks = {
            key: np.arange(len(values)) == place
            for (_, values, key), (place, _) in zip(groups, cell, strict=True)
        }
        products = intersection(question.products, [masks])
        if products or not groups:
            key_values = {
                name: value for (name, _, _), (_, value) in zip(groups, cell, strict=True)
            }
            yield (
                key_values,
                [
                    {key: chosen.astype(np.float64) for key, chosen in product.items()}
                    for product in products
                ],
            )


def disjoint(first: Sequence[Chosen], second: Sequence[Chosen]) -> list[Chosen]:
    """Return the union of two lists of products, each without a common cell."""
    return [*first, *intersection(complement(first), second)]


def intersection(first: Sequence[Chosen], second: Sequence[Chosen]) -> list[Chosen]:
    """Return what is in both; products without a cell are left out."""
    products = []
    for base in first:
        for extra in second:
            product = dict(base)
            for key, chosen in extra.items():
                product[key] = product[key] & chosen if key in product else chosen
            if all(chosen.any() for chosen in product.values()):
                products.append(product)
    return products


def complement(products: Sequence[Chosen]) -> list[Chosen]:
    """Return all other cells."""
    remaining: list[Chosen] = [{}]
    for product in products:
        outside = list[Chosen]()
        prefix = Chosen()
        for key, chosen in product.items():
            if not chosen.all():
                outside.append({**prefix, key: ~chosen})
            prefix = {**prefix, key: chosen}
        remaining = intersection(remaining, outside)
        if len(remaining) > MOST_PRODUCTS:
            raise TooManyError
    return remaining


class TooManyError(Exception):
    """More than `MOST_PRODUCTS` products."""


class _Reader:
    """The reader of one text."""

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
        self._check_clauses()
        table = self.table()
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
        group_keys = tuple(self._key(node) for node in selected if isinstance(node, exp.Column))
        if sorted(self._key(node) for node in grouped) != sorted(group_keys) or len(
            {*group_keys}
        ) < len(group_keys):
            self._refuse(
                group or self.tree,
                "Keys of the select list and of GROUP BY are the same",
                "name each key once in both",
            )
        where = self.tree.args.get("where")
        products = self._condition(bare(where.this)) if where is not None else [Chosen()]
        return Question(
            table, self._column(sums[0]), tuple(products), group_keys, self._with_null(where)
        )

    def _check_clauses(self) -> None:
        """Refuse clauses that a question does not have."""
        for clause in self.tree.find_all(*KNOWN):
            for name, argument in clause.args.items():
                if argument and name not in KNOWN[type(clause)]:
                    node = argument[0] if isinstance(argument, list) else argument
                    self._refuse(
                        node if isinstance(node, exp.Expr) else clause,
                        "A question has SELECT, FROM, WHERE and GROUP BY only, in their plain forms",
                        "leave it out",
                    )

    def _with_null(self, where: exp.Expr | None) -> tuple[str, ...]:
        """Return keys with `other` in a test that is turned round."""
        turned = [*where.find_all(exp.NEQ, exp.Not)] if where is not None else []
        tested_names = {
            column.name.lower() for node in turned for column in node.find_all(exp.Column)
        }
        return tuple(
            name
            for name, values in zip(self.names, self.values, strict=True)
            if name in tested_names and OTHER in values
        )

    def _column(self, node: exp.Expr) -> str | None:
        arguments = node.expressions if isinstance(node, exp.Anonymous) else []
        if (
            call_name(node) == "count"
            and len(arguments) == 1
            and isinstance(arguments[0], exp.Star)
        ):
            return None
        if (
            call_name(node) == "sum"
            and len(arguments) == 1
            and isinstance(arguments[0], exp.Column)
        ):
            return str(arguments[0].name).lower()
        self._refuse(
            node, "A question asks for COUNT(*), or the SUM of a published column", f"write {FORM}"
        )

    def _condition(self, node: exp.Expr) -> list[Chosen]:
        try:
            if len(products := self._products(node)) <= MOST_PRODUCTS:
                return _merged(products)
        except (TooManyError, RecursionError):
            pass
        self._refuse(
            node,
            f"This condition falls into more than {MOST_PRODUCTS} products",
            "ask its parts, or use IN in the place of OR",
        )

    def _products(self, node: exp.Expr) -> list[Chosen]:
        if isinstance(node, exp.And):
            products = intersection(
                self._condition(bare(node.this)), self._condition(bare(node.expression))
            )
        elif isinstance(node, exp.Or):
            products = disjoint(
                self._condition(bare(node.this)), self._condition(bare(node.expression))
            )
        elif isinstance(node, exp.Not):
            products = complement(self._condition(bare(node.this)))
        elif isinstance(node, exp.Boolean):
            products = [{}] if node.this else []
        else:
            key, chosen = self._test(node)
            products = [{key: chosen}] if chosen.any() else []
        return products

    def _test(self, node: exp.Expr) -> tuple[int, npt.NDArray[np.bool_]]:
        """Return one key and which of its values."""
        if isinstance(node, (exp.EQ, exp.NEQ, *COMPARISONS)):
            column = bare(node.this)
            right = bare(node.expression)
            if not isinstance(column, exp.Column):
                self._refuse(node, "A condition has a key on its left", f"write it as {TESTS}")
            key = self._key(column)
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
                key, [self._value(key, bare(item)) for item in node.expressions]
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
        is_whole = isinstance(self.values[key][0], int)
        if isinstance(inner, exp.Literal):
            if is_whole and not inner.is_string and str(inner.this).isdigit():
                return sign * int(inner.this)
            if not is_whole and inner.is_string and sign == 1:
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
            f"The values of `{self.names[key]}` are {'whole numbers' if is_whole else 'texts'}",
            f"like {self.values[key][0]!r}",
        )

    def _among(self, key: int, values: Sequence[str | int]) -> npt.NDArray[np.bool_]:
        among = {*values}
        return np.array([value in among for value in self.values[key]], bool)

    def _compared(
        self, key: int, node: exp.Expr, holds: Callable[[int, int], bool], value: str | int
    ) -> npt.NDArray[np.bool_]:
        key_values = self.values[key]
        if isinstance(value, str):
            self._refuse(
                node,
                f"Texts like those of `{self.names[key]}` have no order here",
                "list them: IN ('a', 'b')",
            )
        return np.array(
            [isinstance(candidate, int) and holds(candidate, value) for candidate in key_values]
        )

    def _refuse(self, node: exp.Expr, message: str, hint: str) -> NoReturn:
        raise QueryError(
            self.text, (problem(node_span(node, self.tokens), message, hint),), "question"
        )


def _merged(products: list[Chosen]) -> list[Chosen]:
    """Merge products over one and the same key."""
    keys = {*products[0]} if products else set()
    if len(products) > 1 and len(keys) == 1 and all({*product} == keys for product in products):
        (key,) = keys
        return [{key: np.any([product[key] for product in products], axis=0)}]
    return products
