"""What an observer could learn at best: the log-likelihood ratio of an outcome, and the truth computed from an ideal mechanism. The ideal
mechanism is written out here with plain Gaussians and the matrix B: it shares with the steps only the plan's numbers and the contributions
of one trial. From it come the `truth` that a bound should come close to, and the power of the audit."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import norm

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise.counters import Counter
from tests.audit.bounds import CHOOSING, LEVEL, bound_of, cuts, delta_of, directed, hits, mu_of
from tests.audit.trials import Experiment, Outcome, unit
from tests.property.noise_paths import noise_matrix

UNIT = 2.0**-20


@dataclass(frozen=True)
class Truth:
    """What is true of the best event that so many trials can measure, for delta and for mu.

    Args:
        value: the truth, by simulation of the ideal mechanism (mu to about 0.005, delta to about 0.001).
        expected: the bound that an audit finds where hits are as many as expected.
        spread: standard error of the estimate that the bound is made from.
    """

    value: float
    expected: float
    spread: float


@lru_cache(maxsize=64)
def covariance(counter: Counter) -> Float:
    """B B^T, the covariance of a path of unit noise."""
    b = noise_matrix(counter)
    return b @ b.T


def path_ratio(e: Experiment, outcome: Outcome) -> Float:
    """Log-likelihood ratio of the released numbers, given which were released; one number per trial."""
    total = np.zeros(outcome.pattern.shape[1])
    for cell in range(len(e.cells)):
        for pattern in np.unique(outcome.pattern[cell]).tolist():
            which = np.flatnonzero(outcome.pattern[cell] == pattern)
            for j in range(len(e.releasing.perturbations)):
                shown, weights, centre, _ = direction(e, j, cell, pattern)
                total[which] += outcome.values[j, cell, which][:, shown] @ weights - centre
    return total


def direction(e: Experiment, j: int, cell: int, pattern: int) -> tuple[Int, Float, float, float]:
    """(positions, weights, centre, squared mu) of the likelihood ratio of perturbation j where the pattern's triggers are shown. The
    numbers y at those triggers have mean m (without the user) or m + a and covariance S: the ratio is a' S^-1 (y - m - a / 2)."""
    q = e.releasing.perturbations[j]
    shown = np.array([i for i in range(e.releasing.grid.horizon) if pattern >> i & 1], np.int64)
    without, with_user = (np.cumsum(x[j, cell])[shown] for x in e.increments)
    variance = (q.sigma**2 + _selection_sigma(e, j) ** 2) * covariance(q.counter)[
        np.ix_(shown, shown)
    ]
    variance += np.eye(len(shown)) * unit(q) ** 2 / 12
    weights = (
        np.linalg.solve(variance / e.bug.answers, with_user - without)
        if len(shown)
        else np.zeros(0)
    )
    return (
        shown,
        weights,
        float(weights @ (without + with_user)) / 2,
        float(weights @ (with_user - without)),
    )


def pattern_ratio(patterns: Int, counts: tuple[dict[int, int], dict[int, int]]) -> Float:
    """Log-likelihood ratio of the appearances of one cell, from how often each pattern was seen without and with the user."""
    seen, at = np.unique(patterns, return_inverse=True)
    without, with_user = counts
    totals = [sum(side.values()) + 1 for side in (without, with_user)]
    ratio = [
        math.log((with_user.get(int(s), 0) + 0.5) / totals[1])
        - math.log((without.get(int(s), 0) + 0.5) / totals[0])
        for s in seen
    ]
    return np.array(ratio)[at]


def statistics(e: Experiment, outcomes: tuple[Outcome, Outcome]) -> tuple[Float, Float]:
    """The statistic of every trial without and with the user; the ratio of appearances is learnt from the first half of each."""
    out = [path_ratio(e, o) for o in outcomes]
    for cell in range(len(e.cells)):
        counts = tuple(count(o.pattern[cell][: o.pattern.shape[1] // 2]) for o in outcomes)
        for side, o in enumerate(outcomes):
            out[side] += pattern_ratio(o.pattern[cell], (counts[0], counts[1]))
    return out[0], out[1]


def count(patterns: Int) -> dict[int, int]:
    return dict(
        zip(*(column.tolist() for column in np.unique(patterns, return_counts=True)), strict=True)
    )


def mu_of_paths(e: Experiment) -> float:
    """mu of the released numbers alone if every cell is shown at every trigger; exact."""
    whole = (1 << e.releasing.grid.horizon) - 1
    return math.sqrt(sum(_squared(e, cell, whole) for cell in range(len(e.cells))))


def _squared(e: Experiment, cell: int, pattern: int) -> float:
    return sum(direction(e, j, cell, pattern)[3] for j in range(len(e.releasing.perturbations)))


def truths(e: Experiment, trials: int, draws: int = 200_000, seed: int = 5) -> tuple[Truth, Truth]:
    """Simulate the ideal mechanism: (delta, mu) that an audit of so many trials a side should find."""
    generator = np.random.default_rng(seed)
    without, with_user = (ideal_outcome(e, side, draws, generator) for side in (0, 1))
    ratios = list(statistics(e, (without, with_user)))
    delta, mu = (
        _best(name, ratios, trials // 2, e.plan.epsilon, e.promised.failure)
        for name in ("delta", "mu")
    )
    return delta, mu


def ideal_outcome(e: Experiment, side: int, draws: int, generator: np.random.Generator) -> Outcome:
    """What an observer sees of the ideal mechanism; a count on the sum that chooses keys has that sum's noise and its own."""
    exact = e.increments[side].cumsum(axis=2)
    patterns = []
    values = np.zeros((*exact.shape[:2], draws, exact.shape[2]))
    for cell in range(len(e.cells)):
        normals = generator.standard_normal((draws, *_draws(e)))
        patterns.append(simulate(e, cell, side, normals))
        for j, q in enumerate(e.releasing.perturbations):
            b = noise_matrix(q.counter)
            own = generator.standard_normal((draws, b.shape[1])) / math.sqrt(e.bug.answers)
            noise = q.sigma * own @ b.T
            if q.is_on_selection:
                noise += _selection_sigma(e, j) * normals[:, 0] @ b.T
            values[j, cell] = np.rint((exact[j, cell] + noise) / unit(q)) * unit(q)
    return Outcome(np.array(patterns), values)


def _selection_sigma(e: Experiment, j: int) -> float:
    """The noise that a perturbation has from key selection."""
    selection = e.releasing.selection
    is_on_selection = e.releasing.perturbations[j].is_on_selection
    return selection.sigma if selection and is_on_selection else 0.0


def _best(name: str, ratios: list[Float], n: int, epsilon: float, delta_threshold: float) -> Truth:
    """The event that gives the largest bound when hits are as many as expected."""
    out = []
    for sign in (1, -1):
        more, less = directed([ratios[1], ratios[0]], sign)
        at = cuts(np.concatenate([more, less]))
        p = hits(more, at) / len(more)
        q = hits(less, at) / len(less)
        chosen, expected = (
            bound_of(name, p * n, n, q * n, n, epsilon, delta_threshold, level)
            for level in (CHOOSING, LEVEL)
        )
        value = delta_of(p, q, epsilon) if name == "delta" else mu_of(p, q, delta_threshold)
        i = int((chosen if chosen.max() > 0 else value).argmax())
        spreads = np.sqrt(p * (1 - p) / n), np.sqrt(q * (1 - q) / n)
        if name == "delta":
            spread = math.hypot(spreads[0][i], math.exp(epsilon) * spreads[1][i])
        else:
            slopes = [
                norm.pdf(ndtri(min(max(x, 1e-9), 1 - 1e-9))) for x in (p[i] - delta_threshold, q[i])
            ]
            spread = math.hypot(spreads[0][i] / slopes[0], spreads[1][i] / slopes[1])
        out.append(Truth(max(0.0, float(value[i])), max(0.0, float(expected[i])), float(spread)))
    return max(out, key=lambda truth: truth.expected)


def _draws(e: Experiment) -> tuple[int, int]:
    """Shape of the normals that one trial of one cell needs in selection: (rounds, draws of a path)."""
    selection = e.releasing.selection
    if selection is None:
        return 1, 1
    return (selection.counter.horizon if selection.rounds else 1), noise_matrix(
        selection.counter
    ).shape[1]


def simulate(e: Experiment, cell: int, side: int, normals: Float) -> Int:
    """The pattern of appearances of one cell in every draw; normals[draw, round, number]."""
    selection = e.releasing.selection
    horizon = e.releasing.grid.horizon
    draws = len(normals)
    if selection is None:
        return np.full(draws, (1 << horizon) - 1)
    window, number = e.cells[cell]
    rows = [
        row
        for row in e.contributions[side].to_pylist()
        if (row["window"], row["number"]) == (window, number)
    ]
    paths = selection.sigma * normals @ noise_matrix(selection.counter).T
    weight, users, round_, last = (np.zeros(draws, np.int64) for _ in range(4))
    seen: dict[int, Int] = {}
    pattern = np.zeros(draws, np.int64)
    for trigger in range(1, horizon + 1):
        due = [row for row in rows if row["trigger"] == trigger]
        for row in due:
            new = np.ones(draws, bool)
            if selection.rounds:  # a user counts once per round
                new = seen.setdefault(row["user"], np.full(draws, -1)) != round_
                seen[row["user"]][new] = round_[new]
            weight += new * row["weight"]
            users += new * (1 if selection.rounds else row["users"])
        tested = (users >= selection.min_users) & any(row["trigger"] <= trigger for row in rows)
        path = (
            paths[np.arange(draws), 0, trigger - last - 1]
            if e.bug.same_rounds
            else paths[np.arange(draws), round_, trigger - 1]
        )
        hit = tested & (path >= (selection.thresholds[trigger - 1] - weight) * UNIT)
        if not selection.rounds:
            hit |= pattern > 0
        pattern[hit] |= 1 << (trigger - 1)
        if selection.rounds:
            weight[hit], users[hit], last[hit] = 0, 0, trigger
            round_[hit] += 1
    return pattern
