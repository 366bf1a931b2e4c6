"""The best linear unbiased estimate from noisy marginals, of products of sets and of their unions, with its exact standard error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.marginals.cells import Keys

# The best linear unbiased estimate from noisy marginals, in closed form, and its exact standard
# error (docs/privacy/marginals.md, theorem 26).

# P_B is the tensor product of (I - J/n_i) for keys i in B and J/n_i for all others: projections
# that are orthogonal and add up to the identity. Each
# table is a multiple of a sum of them, so the normal equations are diagonal: no matrix is ever
# built.

NOTHING = 1e-12
"""The mean part of a key's weights, or the centred one, is rounding below this share of their squared norm. That is judged key by key: a predicate
over many cells may have a part that is far smaller than the whole, and is in no table all the same."""

Product = Mapping[int, Float]
"""A predicate that is a product: key -> a weight per value. A key that is not there has weight 1 everywhere."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and its standard error; where no table tells enough NaN and infinity."""

    value: float
    stderr: float


NOT_COVERED = Estimate(math.nan, math.inf)


@dataclass(frozen=True)
class LeastSquares:
    """All that is known of the noise at one trigger; public.

    Args:
        sizes: number of values of every key.
        tables: keys of every table.
        variances: of one cell of each; independent.
    """

    sizes: tuple[int, ...]
    tables: tuple[Keys, ...]
    variances: tuple[float, ...]

    @cached_property
    def precision(self) -> dict[Keys, float]:
        """Precision lambda_B of every B that some table contains."""
        precisions: dict[Keys, float] = {}
        for keys, variance in zip(self.tables, self.variances, strict=True):
            precision = (
                math.prod(n for key, n in enumerate(self.sizes) if key not in keys) / variance
            )
            for part in parts(keys):
                precisions[part] = precisions.get(part, 0.0) + precision
        return precisions

    def variance(self, predicate: Product) -> float:
        """Return the variance of the estimate: the sum of |P_B f|^2 / lambda_B; infinite where some part of it is in no table."""
        total = 0.0
        for part, squared in energies(self.sizes, predicate).items():
            if part in self.precision:
                total += squared / self.precision[part]
            elif squared:
                return math.inf
        return total

    def estimate(self, predicate: Product, released: Sequence[np.ndarray]) -> Estimate:
        """Return the estimate of the predicate's count.

        Args:
            predicate: what is counted.
            released: the noisy tables, an axis for each key.
        """
        variance = self.variance(predicate)
        if variance == math.inf:
            return NOT_COVERED
        totals = {
            key: float(predicate[key].sum()) if key in predicate else float(n)
            for key, n in enumerate(self.sizes)
        }
        value = 0.0
        for keys, spread, table in zip(self.tables, self.variances, released, strict=True):
            outside = math.prod(sum_ for key, sum_ in totals.items() if key not in keys) / spread
            value += outside * self._across(keys, predicate, table)
        return Estimate(value, math.sqrt(variance))

    def _across(self, keys: Keys, predicate: Product, table: np.ndarray) -> float:
        """Return the sum over B inside the table's keys of <P_B f, table> / lambda_B."""
        named_keys = tuple(key for key in keys if key in predicate)
        # A key that is not named has no centred part, and its mean is 1: its axis is summed.
        sums = table.sum(
            axis=tuple(axis for axis, key in enumerate(keys) if key not in predicate),
            dtype=np.float64,
        )
        for key in named_keys:  # the first axis becomes the last one, of two: mean, centred
            sums = np.tensordot(
                sums, np.column_stack(_mean_and_centred(predicate[key])), axes=(0, 0)
            )
        return math.fsum(
            float(sums[tuple(int(key in part) for key in named_keys)]) / self.precision[part]
            for part in parts(named_keys)
        )


def parts(keys: Keys) -> Iterator[Keys]:
    """Yield every subset of keys."""
    return itertools.chain.from_iterable(
        itertools.combinations(keys, size) for size in range(len(keys) + 1)
    )


def energies(sizes: Sequence[int], predicate: Product) -> dict[Keys, float]:
    """Return |P_B f|^2 for every B among the predicate's keys, 0 where it is rounding; for all others it is 0."""
    named_keys = tuple(sorted(predicate))
    base = math.prod(n for key, n in enumerate(sizes) if key not in predicate)
    squares = {key: _squares(predicate[key]) for key in named_keys}
    return {
        part: base * math.prod(squares[key][key in part] for key in named_keys)
        for part in parts(named_keys)
    }


def _squares(weights: Float) -> tuple[float, ...]:
    squared_norm = float(weights @ weights)
    squared = (float(part @ part) for part in _mean_and_centred(weights))
    return tuple(each if each > NOTHING * squared_norm else 0.0 for each in squared)


def _mean_and_centred(weights: Float) -> tuple[Float, Float]:
    mean = np.full(len(weights), weights.sum() / len(weights))
    return mean, weights - mean


# Estimates of a set of cells that is a union of products: values add up, and their errors have
# covariances (theorem 26 is bilinear).


def estimate(
    noise: LeastSquares, products: Sequence[Product], released: Sequence[np.ndarray]
) -> Estimate:
    """Return the estimate of a sum of products.

    Args:
        noise: what is known of it.
        products: any; of disjoint ones the sum is their union.
        released: the noisy tables, an axis for each key.
    """
    if not products:
        return Estimate(0.0, 0.0)
    variance = covariance(noise, products)
    if variance == math.inf:
        return NOT_COVERED
    if len(products) == 1:
        return noise.estimate(products[0], released)
    estimates = [noise.estimate(product, released) for product in products]
    return Estimate(math.fsum(each.value for each in estimates), math.sqrt(variance))


def covariance(noise: LeastSquares, products: Sequence[Product]) -> float:
    """Return the variance of the estimate of f = sum of the products: the sum of <P_B f, P_B f> / lambda_B; infinite where one of the products is not covered.

    What products that are not covered have in common might cancel; up to rounding that cannot be told, so it is no knowledge.
    """
    if any(noise.variance(product) == math.inf for product in products):
        return math.inf
    named_keys = sorted({key for product in products for key in product})
    outside = math.prod(n for key, n in enumerate(noise.sizes) if key not in named_keys)
    means = {}
    centred = {}
    for key in named_keys:
        n = noise.sizes[key]
        weights: Float = np.array(
            [product[key] if key in product else np.ones(n) for product in products], np.float64
        )
        sums = weights.sum(axis=1)
        means[key] = np.outer(sums, sums) / n
        deviations = weights - sums[:, None] / n
        centred[key] = deviations @ deviations.T
    covered = (part for part in parts(tuple(named_keys)) if part in noise.precision)
    return sum(
        max(outside * _product_sum(named_keys, part, means, centred, len(products)), 0.0)
        / noise.precision[part]
        for part in covered
    )


def _product_sum(
    named_keys: Sequence[int],
    part: tuple[int, ...],
    means: dict[int, Float],
    centred: dict[int, Float],
    count: int,
) -> float:
    pairs: Float = np.ones((count, count))
    for key in named_keys:
        pairs = pairs * (centred[key] if key in part else means[key])
    return float(pairs.sum())
