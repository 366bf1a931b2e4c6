"""Estimates of a set of cells that is a union of products: values add up, and their errors have covariances (theorem 26 is bilinear)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.marginals.least_squares import NOT_COVERED, Estimate, LeastSquares, Product, parts


def estimate(
    known: LeastSquares, products: Sequence[Product], released: Sequence[np.ndarray]
) -> Estimate:
    """The estimate of a sum of products.

    Args:
        known: of the noise.
        products: any; of disjoint ones the sum is their union.
        released: the noisy tables, an axis for each key.
    """
    if not products:
        return Estimate(0.0, 0.0)
    variance = covariance(known, products)
    if variance == math.inf:
        return NOT_COVERED
    if len(products) == 1:
        return known.estimate(products[0], released)
    found = [known.estimate(product, released) for product in products]
    return Estimate(math.fsum(each.value for each in found), math.sqrt(variance))


def covariance(known: LeastSquares, products: Sequence[Product]) -> float:
    """The variance of the estimate of f = sum of the products: the sum of <P_B f, P_B f> / lambda_B; infinite where one of the products is not covered.

    What products that are not covered have in common might cancel; up to rounding that cannot be told, so it is no knowledge.
    """
    if any(known.variance(product) == math.inf for product in products):
        return math.inf
    named = sorted({key for product in products for key in product})
    outside = math.prod(n for key, n in enumerate(known.sizes) if key not in named)
    means = {}
    centred = {}
    for key in named:
        n = known.sizes[key]
        weights: Float = np.array(
            [product[key] if key in product else np.ones(n) for product in products], np.float64
        )
        sums = weights.sum(axis=1)
        means[key] = np.outer(sums, sums) / n
        apart = weights - sums[:, None] / n
        centred[key] = apart @ apart.T
    covered = (part for part in parts(tuple(named)) if part in known.precision)
    return sum(
        max(outside * _over(named, part, means, centred, len(products)), 0.0)
        / known.precision[part]
        for part in covered
    )


def _over(
    named: Sequence[int],
    part: tuple[int, ...],
    means: dict[int, Float],
    centred: dict[int, Float],
    count: int,
) -> float:
    pairs: Float = np.ones((count, count))
    for key in named:
        pairs = pairs * (centred[key] if key in part else means[key])
    return float(pairs.sum())
