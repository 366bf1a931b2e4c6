"""Aggregate calls: COUNT, SUM, AVG, STDDEV, VARIANCE, APPROX_QUANTILES, CORR and others, with their named arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.description import GROUPING_ID, STDERR
from dpsql.parsed_query import BOUNDED, PAIRED, SKETCHES, AggregateFunction
from dpsql.sources.config import Source
from dpsql.sql.items import SPREAD_NAMES, Item, call_name
from dpsql.sql.values import NUMBER, bare, is_column

BOUNDS = "contribution_bounds_per_row"
PER_GROUP = "contribution_bounds_per_group"
MOST_PARTS = 100
"""Limit on the parts of APPROX_QUANTILES."""

PERCENTILE = "percentile_cont"
QUANTILES = ("approx_quantiles", PERCENTILE)
SHARE = re.compile(r"0?\.[0-9]{1,2}0*")

FOREIGN_AGGREGATES: Mapping[str, str] = {
    "anon_count": "COUNT(*) or COUNT(x)",
    "anon_sum": "SUM(x, contribution_bounds_per_row => (LOW, HIGH))",
    "anon_avg": "AVG(x, contribution_bounds_per_row => (LOW, HIGH))",
    "anon_var_pop": "VAR_POP(x, contribution_bounds_per_row => (LOW, HIGH))",
    "anon_stddev_pop": "STDDEV_POP(x, contribution_bounds_per_row => (LOW, HIGH))",
    "mean": "AVG(x, contribution_bounds_per_row => (LOW, HIGH))",
    "countif": "COUNT(CASE WHEN condition THEN 1 END)",
    "count_if": "COUNT(CASE WHEN condition THEN 1 END)",
    "approx_count_distinct": "COUNT(DISTINCT privacy unit)",
    "approx_top_k": "APPROX_TOP_COUNT(x, 10)",
    "count_min_sketch": "COUNT_SKETCH(x)",
    "try_sum": "SUM(x, contribution_bounds_per_row => (LOW, HIGH))",
    "try_avg": "AVG(x, contribution_bounds_per_row => (LOW, HIGH))",
}

PAIR_OF_BOUNDS = "((LOW, HIGH), (LOW, HIGH))"
_RANGES = "make ranges of x a key, for example FLOOR(x / 5) AS x_range, and count"
_PERCENTILE = f"write PERCENTILE_CONT(x, 0.5, {BOUNDS} => (LOW, HIGH))"
_ONE_RECORD = f"it would publish one record's value: {_RANGES}"
_EXTREME = (
    f"it would publish one record's value: write PERCENTILE_CONT(x, {{}}, {BOUNDS} => (LOW, HIGH))"
)

WAYS_OUT: Mapping[str, str] = {
    "min": _EXTREME.format("0.01"),
    "max": _EXTREME.format("0.99"),
    **dict.fromkeys(
        ("first", "first_value", "last", "last_value", "any_value", "min_by", "max_by"), _ONE_RECORD
    ),
    **dict.fromkeys(
        ("median", "percentile", "percentile_approx", "approx_percentile", "percentile_disc"),
        _PERCENTILE,
    ),
    **dict.fromkeys(
        ("quantile", "quantiles", "approx_quantile", "anon_percentile_cont", "histogram_numeric"),
        _PERCENTILE,
    ),
    "covar_samp": f"write COVAR_POP(y, x, {BOUNDS} => {PAIR_OF_BOUNDS})",
    "regr_r2": f"write CORR(y, x, {BOUNDS} => {PAIR_OF_BOUNDS}), and square it when reading",
    "regr_count": "write COUNT(CASE WHEN y IS NOT NULL AND x IS NOT NULL THEN 1 END)",
    **dict.fromkeys(
        ("regr_avgx", "regr_avgy"),
        f"write AVG(CASE WHEN y IS NOT NULL THEN x END, {BOUNDS} => (LOW, HIGH))",
    ),
    **dict.fromkeys(
        ("regr_sxx", "regr_syy"), f"write VAR_POP(x, {BOUNDS} => (LOW, HIGH)) and COUNT(x)"
    ),
    "regr_sxy": f"write COVAR_POP(y, x, {BOUNDS} => {PAIR_OF_BOUNDS}) and COUNT(*)",
    "mode": "make x a key and count: the largest counts are the commonest values",
    **dict.fromkeys(
        ("collect_list", "collect_set", "array_agg", "listagg", "string_agg"),
        "leave it out: it would publish records",
    ),
    **dict.fromkeys(
        ("grouping", "grouping_id", "grouping__id"),
        f"leave it out: with GROUPING SETS, CUBE and ROLLUP every row has a column {GROUPING_ID}",
    ),
}
"""What leads to the same knowledge as an aggregate that is not ours."""

REPORTED = f"every aggregate has a column <alias>_{STDERR}"
NEEDLESS_ARGUMENTS: Mapping[str, str] = {
    "report_format": REPORTED,
    "epsilon": "the budget is shared by the whole query",
    "delta": "the budget is shared by the whole query",
    "contribution_bounding_strategy": "a user's first records by event time are kept",
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
            **{function.lower(): function for function in PAIRED},
        }
        functions |= dict.fromkeys(QUANTILES, AggregateFunction.APPROX_QUANTILES)
        return functions.get(self.name) or next(
            (sketch for sketch in SKETCHES if sketch.lower() == self.name), None
        )

    @property
    def has_argument(self) -> bool:
        """Whether it aggregates the value of an expression."""
        return self.function in (AggregateFunction.COUNT, *BOUNDED) or self.of_quantiles

    @property
    def of_quantiles(self) -> bool:
        """Whether it is APPROX_QUANTILES(x, parts) or PERCENTILE_CONT(x, share)."""
        return self.name in QUANTILES

    @property
    def of_pairs(self) -> bool:
        """Whether it is of two values, y and x."""
        return self.function in PAIRED

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
    """Return the number of parts of APPROX_QUANTILES, where that is a whole number, and of PERCENTILE_CONT those whose end it is."""
    if call.name == PERCENTILE:
        share = read_share(call)
        return None if share is None else share.denominator
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


def read_share(call: Call) -> Fraction | None:
    """Return the share of PERCENTILE_CONT, where it is a literal between 0 and 1 of at most two decimals."""
    argument = call.positional[1] if len(call.positional) > 1 else None
    if call.name != PERCENTILE or not isinstance(argument, exp.Literal) or argument.is_string:
        return None
    return (SHARE.fullmatch(argument.name) and Fraction(argument.name)) or None


Bounds = tuple[float, float]


def bounds_of_value(call: Call, source: Source | None, place: int = 0) -> Bounds | None:
    """Return the bounds of a value that need not be written: of the literals of a CASE, or those that the source declares of a column.

    They are of the text and of the declaration, never of a record.
    """
    if len(call.positional) <= place or not (call.function in BOUNDED or call.of_quantiles):
        return None
    value = call.positional[place]
    if isinstance(value, exp.Case):
        return _range_of(_results(value))
    if source is None or not is_column(value):
        return None
    if bounds := source.policy.bounds_of(value.name.lower()):
        return bounds
    domain = dict(source.domains).get(value.name.lower())
    if domain is None or not domain.whole or domain.other:
        return None
    return _range_of([float(number) for number in domain.values])


def _results(case: exp.Case) -> Sequence[float]:
    """Return the numbers of a CASE whose results are literals or NULL; nothing where one is something else."""
    results = [branch.args["true"] for branch in case.args["ifs"]]
    results += [case.args["default"]] if case.args.get("default") else []
    values = [node for node in map(bare, results) if not isinstance(node, exp.Null)]
    numbers = [number for node in values for number in _literal(node)]
    return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers)) else []


def _range_of(numbers: Sequence[float]) -> tuple[float, float] | None:
    """Return the least and the largest of some numbers; of one number, it and 0."""
    if not numbers:
        return None
    others = [0.0] if min(numbers) == max(numbers) else []
    lower = min([*numbers, *others])
    upper = max([*numbers, *others])
    return (lower, upper) if lower < upper else None


def bounds_of_values(call: Call, source: Source | None) -> tuple[Bounds | None, ...]:
    """Return the bounds of each value of an aggregate: as written, or those that need not be."""
    places = range(2 if call.of_pairs else 1)
    if not call.bounds_arguments:
        return tuple(bounds_of_value(call, source, place) for place in places)
    argument = call.bounds_arguments[0]
    if not call.of_pairs:
        return (read_bounds(argument),)
    value = bare(argument.expression)
    if not isinstance(value, exp.Tuple) or len(value.expressions) != 2:
        return (None, None)
    return tuple(map(_two_numbers, value.expressions))


def read_bounds(argument: exp.Kwarg) -> Bounds | None:
    """Return (LOW, HIGH) of two finite number literals, None for anything else."""
    return _two_numbers(argument.expression)


def _two_numbers(node: exp.Expr) -> Bounds | None:
    value = bare(node)
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
