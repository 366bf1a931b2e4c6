"""Testers of noise. Each returns True unless the samples are evidence against the claim. Flake rate: a true claim is rejected with
probability at most FLAKE = 1e-6 (exact tests for Gaussian samples, Bonferroni where a tester looks at several numbers). Every test uses
fixed keys, so this is over the choice of keys: a test never flakes from run to run. Power: with SAMPLES samples a claim 10% off, on either
side, is accepted with probability at most 1e-6; `test_sampling.py` tries it. "not rejected" proves nothing about smaller errors."""

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

FLAKE = 1e-6
SAMPLES = 6_000
"""Enough for a standard deviation 10% off: (4.9 + 4.75) standard errors of a variance are 17%, less than 1 - 0.9^2 = 19%."""

PAIRS = 10_000
"""Enough for a correlation of 10%: (4.9 + 4.75) / sqrt(10,000) = 9.7%."""

NORMALS = 100_000
"""Enough for a Kolmogorov-Smirnov distance of 0.0231, that of a normal whose standard deviation is 10% off."""

Samples = npt.NDArray[np.float64]


def has_sd(samples: Samples, sd: float, flake: float = FLAKE) -> bool:
    """Mean 0 and this standard deviation: the sum of squares is chi-square. Power: 10% off rejected at SAMPLES."""
    n = len(samples)
    return flake / 2 <= stats.chi2.cdf(float(np.sum((samples / sd) ** 2)), n) <= 1 - flake / 2


def covers(inside: int, n: int, probability: float) -> bool:
    """So many of n independent intervals cover. Power at SAMPLES, 95%: 10% too narrow (92.2%) or too wide (96.9%) are rejected."""
    low = stats.binom.cdf(inside, n, probability)
    high = stats.binom.sf(inside - 1, n, probability)
    return bool(min(low, high) >= FLAKE / 2)


def has_covariance(samples: Samples, covariance: Samples) -> bool:
    """Rows are independent Gaussian vectors with this covariance. After whitening, (x_i + x_j) / sqrt 2 and every x_i must have variance 1:
    exact chi-square tests of all entries. Power: a covariance scaled by 0.9^2 or 1.1^2 and a strategy in another order are rejected at
    SAMPLES."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), samples.T)
    count = len(white)
    directions = [white[i] for i in range(count)] + [
        (white[i] + white[j]) / math.sqrt(2) for i in range(count) for j in range(i)
    ]
    return all(has_sd(x, 1.0, FLAKE / len(directions)) for x in directions)


def independent(x: Samples, y: Samples) -> bool:
    """No correlation: r sqrt((n - 2) / (1 - r^2)) has Student's t distribution. Power: +-10% correlation rejected at PAIRS."""
    r = float(np.corrcoef(x, y)[0, 1])
    if abs(r) > 1 - 1e-12:
        return False
    n = len(x)
    return bool(2 * stats.t.sf(abs(r) * math.sqrt((n - 2) / (1 - r * r)), n - 2) >= FLAKE)


def standard_normal(samples: Samples) -> bool:
    """Kolmogorov-Smirnov. Power at NORMALS: a standard deviation 10% off, a Student t with 10 degrees, a uniform are rejected."""
    return bool(stats.kstest(samples, stats.norm.cdf).pvalue >= FLAKE)
