"""The independent checks at full size: error of float64 normals, every one-user stream against the planned sensitivity, and the worst unit
of several contribution periods against what is stated.

    python benchmarks/checks.py                    # 1.5 million words, all streams of 36 cases, 300 random plans
    python benchmarks/checks.py --words 100000 --plans 50

Prints one line per result; exit code 1 if one is beyond its bound.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402

from tests.checks.several_periods import search  # noqa: E402
from tests.checks.test_sensitivity import CASES, compare  # noqa: E402
from tests.checks.test_several_periods import plans, stated  # noqa: E402
from tests.unit.test_exact_paths import shares_of_the_stated_error, some_words  # noqa: E402

PERIODS = (1, 2, 7)
ALLOWED = 0.75
"""The stated error of a normal has room: the largest one measured is 0.56 of it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Independent checks at full size.")
    parser.add_argument(
        "--words",
        type=int,
        default=1_500_000,
        help="random words whose normals are compared with the exact quantile",
    )
    parser.add_argument(
        "--plans",
        type=int,
        default=300,
        help="random plans of which the worst unit of 1, 2 and 7 periods is searched for",
    )
    asked = parser.parse_args()
    wrong = 0
    worst = 0.0
    for seed in range(-(-asked.words // 10_000)):
        worst = max(worst, float(np.max(shares_of_the_stated_error(some_words(10_000, seed)))))
    print(
        f"normals: {asked.words:,} words, largest error {worst:.3f} of the stated one", flush=True
    )
    wrong += worst > ALLOWED
    for case in CASES:
        name = "-".join(str(getattr(v, "value", v)) for v in case)
        try:
            compare(case, None)
            print(f"sensitivity: {name} holds for all streams", flush=True)
        except AssertionError as error:
            print(f"sensitivity: {name} EXCEEDED: {error}", file=sys.stderr)
            wrong += 1
    return 1 if wrong + several_periods(asked.plans) else 0


def several_periods(count: int) -> int:
    """How many random plans cost some unit more than they state; prints how near the search came."""
    wrong = 0
    nearest = dict.fromkeys(PERIODS, 0.0)
    for seed, plan in enumerate(plans(count)):
        for n in PERIODS:
            found, (mu, failure) = search(plan, n, seed), stated(plan, n)
            shares = math.sqrt(found.mu2) / mu, found.failure / failure
            nearest[n] = max(nearest[n], *shares)
            if max(shares) > 1 + 1e-9:
                print(
                    f"periods: plan {seed}, {n} periods EXCEEDED: mu {shares[0]:.4f}, failure {shares[1]:.4f} of the stated",
                    file=sys.stderr,
                )
                wrong += 1
    for n, share in nearest.items():
        print(
            f"periods: {count} plans, {n} periods, largest share of what is stated: {share:.4f}",
            flush=True,
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
