"""Fit the constants of `udfs/noise/blt_constants.py` and print that file:  python benchmarks/fit_blt.py > udfs/noise/blt_constants.py

A buffered linear Toeplitz counter (McMahan, Xu, Zhang 2024, arXiv 2404.16706) has strategy coefficients C_0 = 1,
C_i = sum_j omega_j theta_j^(i-1). We minimise log(first column norm of C * standard deviation of the last prefix sum),
which is also the largest one, over theta in (0, 1) and omega > 0, with as many buffers as still pay.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

HORIZONS = (
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    100,
    128,
    200,
    256,
    365,
    512,
    720,
    1024,
    1440,
    2048,
    4096,
    10000,
)


def impulse(theta: np.ndarray, omega: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """(coefficients of C, coefficients of B = prefix sum * C^-1), each of length horizon."""
    powers = theta[None, :] ** np.arange(horizon - 1)[:, None]
    strategy = np.concatenate([[1.0], powers @ omega])
    # C(x) = 1 + sum omega x / (1 - theta x) = N(x) / D(x), so B(x) = D(x) / (N(x) (1 - x)).
    denominator = np.poly(theta)
    numerator = denominator.copy()
    for j in range(len(theta)):
        numerator[1:] += omega[j] * np.poly(np.delete(theta, j))
    one = np.zeros(horizon)
    one[0] = 1.0
    return strategy, np.cumsum(lfilter(denominator, numerator, one))


def loss(parameters: np.ndarray, horizon: int) -> float:
    half = len(parameters) // 2
    theta = 1 / (1 + np.exp(-parameters[:half]))
    omega = np.exp(parameters[half:])
    strategy, noise = impulse(theta, omega, horizon)
    value = 0.5 * np.log(np.sum(strategy**2)) + 0.5 * np.log(np.sum(noise**2))
    return float(value) if np.isfinite(value) else 1e9


def fit(horizon: int, buffers: int) -> tuple[float, np.ndarray, np.ndarray]:
    """(loss, theta, omega) of the best of several starts."""
    best = (np.inf, np.zeros(0), np.zeros(0))
    for spread in (1.0, 1.6, 2.4):
        gap = (
            np.linspace(np.log(1.0 / max(horizon, 2)), np.log(0.3), buffers)
            if buffers > 1
            else np.array([np.log(1.0 / horizon**0.5)])
        )
        start = np.concatenate(
            [-gap * spread / 1.6 * 1.0, np.log(0.35 / np.arange(1, buffers + 1)[::-1])]
        )
        options = {
            "maxiter": 40000,
            "maxfev": 40000,
            "xatol": 1e-10,
            "fatol": 1e-13,
            "adaptive": True,
        }
        found = minimize(loss, start, args=(horizon,), method="Nelder-Mead", options=options)
        found = minimize(loss, found.x, args=(horizon,), method="Nelder-Mead", options=options)
        half = buffers
        theta = 1 / (1 + np.exp(-found.x[:half]))
        omega = np.exp(found.x[half:])
        if found.fun < best[0]:
            best = (found.fun, theta, omega)
    return best


def main() -> None:
    print(
        '"""BLT constants by horizon: {horizon: (theta, omega)}. Made by benchmarks/fit_blt.py; checked in, because a refit\n'
        'on another machine could change bits of the noise. A query takes the smallest horizon that is not below its own.\n"""\n'
    )
    print(
        "BLT_CONSTANTS: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {\n    1: ((), ()),"
    )
    for horizon in HORIZONS:
        best = fit(horizon, 1)
        for buffers in (2, 3, 4):
            if buffers * 2 > horizon:
                break
            more = fit(horizon, buffers)
            if more[0] > best[0] - 1e-3:
                break
            best = more
        order = np.argsort(-best[1])
        theta = tuple(float(f"{x:.8g}") for x in best[1][order])
        omega = tuple(float(f"{x:.8g}") for x in best[2][order])
        print(f"    {horizon}: ({theta}, {omega}),  # largest sd {np.exp(best[0]):.4f}", flush=True)
    print("}")


if __name__ == "__main__":
    main()
