"""Other mechanisms for continual histograms at event level, with epsilon for the whole stream: benchmarks only, dpsql offers none of them.

* BA at w = 1 (Kellaris, Papadopoulos, Xiao and Papadias, PVLDB 2014), per bin: half of epsilon asks how far a pane is from what was last published; if
  further than the noise, the pane is published with the other half, else the last value is repeated.
* FAST (Fan and Xiong, TKDE 2014) without its sampling, which saves nothing at event level: a Kalman filter for a level that drifts, on Laplace noise of
  every pane. Its process variance has to be known: three are given, and the best one is of hindsight.
* PeGaSus (Chen, Machanavajjhala, Hay and Miklau, CCS 2017), per bin: Laplace noise with 0.8 of epsilon, a grouper with 0.2 that closes a group when its
  deviation passes a noisy threshold (theta = 5 / eps_g, noise 4 / eps_g and 8 / eps_g), panes are averaged over their group; groups of at
  most 60 panes. Written from the page of the design, not checked against the paper's text.
* Retroactive Grouping with its sampling, in the reading in which sampling helps: the monitor divides a sampled count by its rate, and adds noise after
  that. `python benchmarks/papers/sliding_rivals.py` says how much one event then moves, and finds a part of it in draws.

All with float64 Laplace noise: they are measured, and protect nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from dpsql.udfs.columns import Float


def zero(x: np.ndarray, epsilon: float, w: int, g: np.random.Generator) -> Iterator[Float]:
    """Nothing, always."""
    for _ in x:
        yield np.zeros(x.shape[1])


def ba(x: np.ndarray, epsilon: float, w: int, g: np.random.Generator) -> Iterator[Float]:
    """Windows of BA."""
    ring = np.zeros((w, x.shape[1]))
    last = np.zeros(x.shape[1])
    half = epsilon / 2
    for t, exact in enumerate(x):
        apart = np.abs(exact - last) + g.laplace(0, 1 / half, len(last))
        last = np.where(
            (apart > 1 / half) | (t == 0), exact + g.laplace(0, 1 / half, len(last)), last
        )
        ring[t % w] = last
        yield ring.sum(axis=0)


def fast(drift: float) -> Callable[..., Iterator[Float]]:
    """Windows of FAST's filter with a process variance of drift / epsilon^2."""

    def windows(x: np.ndarray, epsilon: float, w: int, g: np.random.Generator) -> Iterator[Float]:
        noise = 2 / epsilon**2
        ring = np.zeros((w, x.shape[1]))
        level = np.zeros(x.shape[1])
        unsure = noise
        for t, exact in enumerate(x):
            seen = exact + g.laplace(0, 1 / epsilon, len(level))
            if t:
                unsure += drift / epsilon**2
                gain = unsure / (unsure + noise)
                level = level + gain * (seen - level)
                unsure = unsure * (1 - gain)
            else:
                level = seen
            ring[t % w] = level
            yield ring.sum(axis=0)

    return windows


def pegasus(
    x: np.ndarray,
    epsilon: float,
    w: int,
    g: np.random.Generator,
    share: float = 0.2,
    longest: int = 60,
) -> Iterator[Float]:
    """Windows of PeGaSus."""
    bins = x.shape[1]
    of_groups = share * epsilon
    of_panes = (1 - share) * epsilon
    ring = np.zeros((w, bins))
    every = np.arange(bins)
    place = np.arange(longest)[:, None]
    exact_members = np.zeros((longest, bins))
    noisy_members = np.zeros((longest, bins))
    size = np.zeros(bins, int)
    threshold = np.zeros(bins)
    closed = np.ones(bins, bool)
    for t, exact in enumerate(x):
        noisy = exact + g.laplace(0, 1 / of_panes, bins)
        new = closed | (size >= longest)
        size[new] = 0
        threshold = np.where(new, 5 / of_groups + g.laplace(0, 4 / of_groups, bins), threshold)
        exact_members[size, every] = exact
        inside = place <= size
        mean = np.where(inside, exact_members, 0).sum(axis=0) / (size + 1)
        deviation = np.where(inside, np.abs(exact_members - mean), 0).sum(axis=0)
        closed = ~(new | (deviation + g.laplace(0, 8 / of_groups, bins) < threshold))
        size[closed], exact_members[0, closed] = 0, exact[closed]
        noisy_members[size, every] = noisy
        average = np.where(place <= size, noisy_members, 0).sum(axis=0) / (size + 1)
        for age in range(min(w, t + 1)):
            members = size >= age
            ring[(t - age) % w, members] = average[members]
        size += 1
        yield ring.sum(axis=0)


RATES = np.arange(1, 101) / 100
MONITOR_SHARE = 0.1


def scale_of_monitor(epsilon: float, rate: Float) -> Float:
    """Return the scale of noise that a monitor of this epsilon has, were the noise of what is sampled (amplification by sampling)."""
    return 1 / np.log1p((np.exp(epsilon) - 1) / rate)


def chosen_rates(epsilon: float, counts: Float) -> Float:
    """Return the rate with the least error for each count: of sampling, and of noise that is added after the division."""
    noise = 2 * scale_of_monitor(epsilon, RATES) ** 2
    grid = np.concatenate([[0.0], np.geomspace(0.1, 1e6, 2000)])
    best = RATES[np.argmin(grid[:, None] * (1 - RATES) / RATES + noise, axis=1)]
    return best[np.searchsorted(grid, np.clip(counts, 0, 1e6)).clip(0, len(grid) - 1)]


def epsilon_of_monitor(epsilon: float, rate: Float) -> Float:
    """Return what a monitor with noise after the division costs: a sampled event moves it by 1 / rate, not by 1."""
    return np.log1p(rate * np.expm1(1 / (rate * scale_of_monitor(epsilon, rate))))


def sampled_grouping(
    x: np.ndarray, epsilon: float, w: int, g: np.random.Generator
) -> Iterator[Float]:
    """Windows of Retroactive Grouping with noise after the division: measured, and no promise."""
    of_monitor = MONITOR_SHARE * epsilon
    of_release = epsilon - of_monitor
    bins = x.shape[1]
    ring = np.zeros((w, bins))
    shown = np.zeros(bins)
    total = np.zeros(bins)
    size = np.zeros(bins)
    due = np.full(bins, 2.0)
    for t, exact in enumerate(x):
        rate = chosen_rates(of_monitor, shown)
        sampled = g.binomial(exact.astype(np.int64), rate) / rate
        seen = sampled + g.laplace(0, 1, bins) * scale_of_monitor(of_monitor, rate)
        fires = ((shown - seen) ** 2 >= 2 / of_release**2) | (t == 0)
        total = np.where(fires, exact, total + exact)
        size = np.where(fires, 1, size + 1)
        measured = fires | (size >= due)
        shown = np.where(measured, (total + g.laplace(0, 1 / of_release, bins)) / size, shown)
        due = np.where(fires, 2.0, np.where(measured, 2 * size, due))
        total[measured] = 0
        size[measured] = 0
        ring[t % w] = shown
        yield ring.sum(axis=0)


def audit_of_sampling(epsilon: float, rate: float, runs: int = 2_000_000, seed: int = 1) -> float:
    """Return a lower bound, with confidence 95%, on the epsilon of one answer of the monitor: draws of a pane without events and of one with one."""
    g = np.random.default_rng(seed)
    scale = float(scale_of_monitor(epsilon, np.array(rate)))
    without = g.laplace(0, scale, runs)
    with_one = g.binomial(1, rate, runs) / rate + g.laplace(0, scale, runs)
    threshold = np.quantile(without, 1 - 100 / runs)  # chosen on one world alone
    without = g.laplace(0, scale, runs)
    often, seldom = (int((world > threshold).sum()) for world in (with_one, without))
    low = stats.beta.ppf(0.025, often, runs - often + 1)
    high = stats.beta.ppf(0.975, seldom + 1, runs - seldom)
    return float(np.log(low / high))


RIVALS: dict[str, Callable[..., Iterator[Float]]] = {
    "all 0": zero,
    "BA": ba,
    "FAST, drift 0.05": fast(0.05),
    "FAST, drift 1": fast(1.0),
    "FAST, drift 100": fast(100.0),
    "PeGaSus": pegasus,
    "RG as printed, sampled": sampled_grouping,
}


def error(name: str, x: np.ndarray, weights: Float, epsilon: float, w: int, seed: int) -> float:
    """Squared error of a released histogram, mean over panes."""
    true = np.zeros(x.shape[1])
    total = 0.0
    for t, window in enumerate(
        RIVALS[name](x.astype(np.float64), epsilon, w, np.random.default_rng(seed))
    ):
        true += x[t] - (x[t - w] if t >= w else 0)
        total += float(np.sum(weights * (window - true) ** 2))
    return total / len(x)


def main() -> None:
    """Print what one event costs in a pane's monitor, by rate, beside what is promised."""
    print("| promised | events before | rate | true epsilon | found in 2,000,000 draws |")
    print("|---|---|---|---|---|")
    for epsilon in (0.01, 0.1):
        for events in (0.0, 10.0, 100.0, 1000.0):
            rate = chosen_rates(epsilon, np.array([events]))
            true = float(epsilon_of_monitor(epsilon, rate)[0])
            found = audit_of_sampling(epsilon, float(rate[0]))
            print(f"| {epsilon} | {events:,.0f} | {rate[0]:.2f} | {true:.2f} | {found:.2f} |")


if __name__ == "__main__":
    main()
