"""Aggregate calls: COUNT, SUM, AVG, STDDEV, VARIANCE, APPROX_QUANTILES with their named arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from dpsql.description import STDERR
from dpsql.parsed_query import BOUNDED, SKETCHES, AggregateFunction
from dpsql.sql.items import SPREAD_NAMES, Item, call_name
from dpsql.sql.values import NUMBER, bare

BOUNDS = "contribution_bounds_per_row"
PER_GROUP = "contribution_bounds_per_group"
MOST_PARTS = 100
"""Limit on the parts of APPROX_QUANTILES."""

FOREIGN_AGGREGATES: Mapping[str, str] = {
    "anon_count": "COUNT(*) or COUNT(x)",
    "anon_sum": "SUM(x, contribution_bounds_per_row => (lo, hi))",
    "anon_avg": "AVG(x, contribution_bounds_per_row => (lo, hi))",
    "anon_var_pop": "VAR_POP(x, contribution_bounds_per_row => (lo, hi))",
    "anon_stddev_pop": "STDDEV_POP(x, contribution_bounds_per_row => (lo, hi))",
    "mean": "AVG(x, contribution_bounds_per_row => (lo, hi))",
    "count_if": "SUM(CASE WHEN condition THEN 1 ELSE 0 END, contribution_bounds_per_row => (0, 1))",
    "approx_count_distinct": "COUNT(DISTINCT privacy unit)",
    "approx_top_k": "APPROX_TOP_COUNT(x, 10)",
    "count_min_sketch": "COUNT_SKETCH(x); sketch = COUNT_MIN in OPTIONS makes it one without signs",
    "try_sum": "SUM(x, contribution_bounds_per_row => (lo, hi))",
    "try_avg": "AVG(x, contribution_bounds_per_row => (lo, hi))",
}

_RANGES = "make ranges of x a key, for example width_bucket(x, 0, 100, 20) AS x_range, and count"
_QUANTILES = f"write APPROX_QUANTILES(x, 4, {BOUNDS} => (lo, hi))"
_ONE_RECORD = f"it would publish one record's value: {_RANGES}"

WAYS_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "min",
            "max",
            "first",
            "first_value",
            "last",
            "last_value",
            "any_value",
            "min_by",
            "max_by",
        ),
        _ONE_RECORD,
    ),
    **dict.fromkeys(
        (
            "median",
            "percentile",
            "percentile_approx",
            "approx_percentile",
            "percentile_cont",
            "percentile_disc",
        ),
        _QUANTILES,
    ),
    **dict.fromkeys(
        ("quantile", "quantiles", "approx_quantile", "anon_percentile_cont", "histogram_numeric"),
        _QUANTILES,
    ),
    "mode": "make x a key and count: the largest counts are the commonest values",
    **dict.fromkeys(
        ("collect_list", "collect_set", "array_agg", "listagg", "string_agg"),
        "leave it out: it would publish records",
    ),
}
"""What leads to the same knowledge as an aggregate that is not ours."""

REPORTED = f"leave it out: every aggregate has a column <alias>_{STDERR}"
FOREIGN_ARGUMENTS: Mapping[str, str] = {
    "report_format": REPORTED,
    "epsilon": "leave it out: the budget is shared by the whole query",
    "delta": "leave it out: the budget is shared by the whole query",
    "contribution_bounding_strategy": "leave it out: a user's first records by event time are kept",
}


@dataclass(frozen=True)
class Call:
    """One aggregate call as written; `canonical_arguments` are the canonical twins of the positional arguments."""

    item: Item
    name: str
    positional: tuple[exp.Expr, ...]
    canonical_arguments: tuple[exp.Expr, ...]
    named_arguments: tuple[exp.Kwarg, ...]
    distinct: exp.Distinct | None

    @property
    def bounds_arguments(self) -> tuple[exp.Kwarg, ...]:
        """The bounds as written; more than one is a mistake."""
        return tuple(
            argument
            for argument in self.named_arguments
            if argument_name(argument) in (BOUNDS, PER_GROUP)
        )

    @property
    def per_group(self) -> bool:
        """Whether they are of what a unit's rows add to a group."""
        return any(argument_name(argument) == PER_GROUP for argument in self.named_arguments)

    @property
    def function(self) -> AggregateFunction | None:
        """The aggregate of the dialect, None when it is none."""
        if self.name == "count" and self.distinct:
            return AggregateFunction.COUNT_DISTINCT_UNIT
        if (
            self.name == "count"
            and len(self.positional) == 1
            and isinstance(self.positional[0], exp.Star)
        ):
            return AggregateFunction.COUNT_ROWS
        functions = {
            "count": AggregateFunction.COUNT,
            "sum": AggregateFunction.SUM,
            "avg": AggregateFunction.AVG,
            **SPREAD_NAMES,
        }
        functions["approx_quantiles"] = AggregateFunction.APPROX_QUANTILES
        return functions.get(self.name) or next(
            (sketch for sketch in SKETCHES if sketch.lower() == self.name), None
        )

    @property
    def has_argument(self) -> bool:
        """Whether it aggregates the value of an expression."""
        return self.function in (AggregateFunction.COUNT, *BOUNDED) or self.of_quantiles

    @property
    def of_quantiles(self) -> bool:
        """Whether it is APPROX_QUANTILES(x, parts)."""
        return self.name == "approx_quantiles"

    @property
    def of_values(self) -> bool:
        """Whether it is a sketch."""
        return self.function in SKETCHES

    @property
    def counted_values(self) -> tuple[exp.Expr, ...]:
        """The values that a sketch counts; the parts of a STRUCT each by itself."""
        return _parts(self.positional[0]) if self.of_values and self.positional else ()

    @property
    def canonical_values(self) -> tuple[exp.Expr, ...]:
        """The canonical twins of `counted_values`."""
        return (
            _parts(self.canonical_arguments[0])
            if self.of_values and self.canonical_arguments
            else ()
        )

    @property
    def weight(self) -> int | None:
        """The place of what is added up, where it is not 1 for each record."""
        if self.function is AggregateFunction.APPROX_TOP_SUM:
            return 1 if len(self.positional) > 1 else None
        return 0 if self.has_argument and self.positional else None

    @property
    def row_local(self) -> tuple[exp.Expr, ...]:
        """All that it computes of a record."""
        if self.of_values:
            return self.counted_values + (
                () if self.weight is None else (self.positional[self.weight],)
            )
        return (
            self.positional[:1]
            if self.of_quantiles
            else self.positional
            if self.has_argument
            else ()
        )


def _parts(value: exp.Expr) -> tuple[exp.Expr, ...]:
    return (
        tuple(bare(part.unalias()) for part in value.expressions)
        if call_name(value) == "struct"
        else (value,)
    )


def argument_name(argument: exp.Kwarg) -> str:
    """Return the lower-case name of a named argument."""
    return argument.this.name.lower()


def read_call(item: Item) -> Call | None:
    """Return the call of an aggregate item; None when something like OVER stands around it."""
    if call_name(item.root) is None:
        return None
    arguments = [bare(argument) for argument in item.root.expressions]
    canonical_arguments = [bare(argument) for argument in item.canonical.expressions]
    distinct = next(
        (argument for argument in arguments if isinstance(argument, exp.Distinct)), None
    )
    places = [
        i
        for i, argument in enumerate(arguments)
        if not isinstance(argument, (exp.Kwarg, exp.Distinct))
    ]
    return Call(
        item=item,
        name=call_name(item.root) or "",
        positional=tuple(arguments[i] for i in places),
        canonical_arguments=tuple(canonical_arguments[i] for i in places),
        named_arguments=tuple(
            argument for argument in arguments if isinstance(argument, exp.Kwarg)
        ),
        distinct=distinct,
    )


def read_parts(call: Call) -> int | None:
    """Return the number of parts of APPROX_QUANTILES, where that is a whole number."""
    argument = call.positional[1] if call.of_quantiles and len(call.positional) > 1 else None
    is_whole = (
        isinstance(argument, exp.Literal)
        and not argument.is_string
        and argument.name.isascii()
        and argument.name.isdigit()
    )
    return (
        int(argument.name)
        if is_whole and argument is not None and len(argument.name) < 10
        else None
    )


def read_bounds(argument: exp.Kwarg) -> tuple[float, float] | None:
    """Return (lo, hi) of two finite number literals, None for anything else."""
    value = bare(argument.expression)
    if not isinstance(value, exp.Tuple) or len(value.expressions) != 2:
        return None
    numbers = [number for part in value.expressions for number in _literal(bare(part))]
    return (
        (numbers[0], numbers[1]) if len(numbers) == 2 and all(map(math.isfinite, numbers)) else None
    )


def _literal(node: exp.Expr) -> Iterator[float]:
    sign = 1.0
    if isinstance(node, exp.Neg):
        sign = -1.0
        node = bare(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and NUMBER.fullmatch(node.name):
        yield sign * float(node.name) + 0.0  # -0.0 becomes 0.0
