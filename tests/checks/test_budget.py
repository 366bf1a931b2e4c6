"""Second opinions on what a plan spends: privacy loss integrated numerically, dense matrices, mpmath, exact fractions, and simulation.
Nothing here calls the planner's formulas or the accountant's; both are compared with the results."""

import dataclasses
import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pyarrow as pa
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpsql.mechanisms.histogram.accounting import gaussian_delta, recompute
from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan, ReleaseRule
from dpsql.parsed_query import AggregateFunction, ContributionPeriod
from dpsql.parts.key_selection import thresholds
from dpsql.parts.sums import NoisySum
from dpsql.privacy.noise_costs import VALUES
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.noise.counters import counter, path_sd
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import Tick
from tests.checks.test_sensitivity import strategy
from tests.property.noise_paths import noise_matrix
from tests.property.plans import source
from tests.sweeps import sweep
from tests.unit.test_accountant import random_plan
from tests.unit.test_release import COUNT

PLANS = sweep(60, 200)
DENSE = 100
"""Largest horizon whose matrices are made dense here."""


def ratios(plan: PrivacyPlan) -> list[float]:
    """Sensitivity over sigma of every mechanism: the worst integer split of a user's records over groups, times C's largest dense column."""
    q = plan.query
    r = plan.windows_per_record
    f = float(np.linalg.norm(strategy(q.asked.counter, plan.horizon), axis=0).max())
    # The largest sum of n_g^2: fill one key after another with c records, as long as C and G allow; every record has r copies.
    rows = q.asked.max_rows_contributed
    per_key = q.asked.max_rows_per_group
    keys = q.asked.max_groups_contributed
    if rows == math.inf:  # not counted: two fill both rooms of a key
        rows = 2 * keys
        per_key = 2
    left = rows
    squares = 0
    for _ in range(keys):
        n = min(left, per_key)
        squares = squares + r * n * n
        left = left - n
    out = []
    on_selection = set()
    shared = set()
    for column in plan.columns:
        for p in column.perturbations:
            if p.partner is not None and p.noise_stream in shared:
                continue
            shared.add(p.noise_stream)
            if isinstance(p, PerturbationPlan) and p.on_selection:
                if p.noise_stream not in on_selection and p.sigma:
                    out.append(f * math.sqrt(left_over(plan, p)) / p.sigma)
                on_selection.add(p.noise_stream)
                continue
            largest = max(abs(p.lower), abs(p.upper)) * p.grid if p.rule in VALUES else 1.0
            if "per_group" in p.rule:
                out.append(f * math.sqrt(r * most_squared(p, rows, per_key, keys)) / p.sigma)
                continue
            units = column.aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT
            moved = math.sqrt(r * min(rows, keys) * places(plan) if units else squares) * largest
            out.append(f * moved / p.sigma)
    if plan.selection:
        out.append(
            f
            * math.sqrt(sum(Fraction(w, 2**20) ** 2 for w in plan.selection.weights))
            / plan.selection.sigma
        )
    return out


def left_over(plan: PrivacyPlan, p: PerturbationPlan) -> float:
    """The largest sum of squares of rows beyond weights, over all ways to spread a unit's rows over its keys in their order."""
    assert plan.selection is not None
    asked = plan.query.asked
    weights = [Fraction(w, 2**20) for w in plan.selection.weights]
    if p.rule == "users":
        return float(sum((1 - w) ** 2 for w in weights))
    rows = int(
        plan.windows_per_record
        * min(asked.max_rows_contributed, asked.max_groups_contributed * asked.max_rows_per_group)
    )
    most = Fraction(0)
    states = {0: Fraction(0)}  # rows in the keys so far, each of which has one at least
    for w in weights:
        after: dict[int, Fraction] = {}
        for used, found in states.items():
            for n in range(1, int(min(asked.max_rows_per_group, rows - used)) + 1):
                after[used + n] = max(after.get(used + n, Fraction(0)), found + (n - w) ** 2)
        states = after
        most = max(most, *states.values(), Fraction(0))
    return float(most)


def most_squared(p: NoisySum, rows: int, per_key: int, keys: int) -> float:
    """The largest sum of squares over all ways to spread rows over keys, each row on either side of zero, what is beyond a bound cut."""
    row = max(-p.lower, p.upper) * p.grid if p.rule.startswith("sum") else 1.0
    sides = [
        [min(n * row, bound * p.grid) ** 2 for n in range(per_key + 1)]
        for bound in (p.upper, -p.lower)
    ]
    of_key = np.array(
        [max(sides[0][k] + sides[1][n - k] for k in range(n + 1)) for n in range(per_key + 1)]
    )
    best = np.zeros(rows + 1)
    for _ in range(keys):
        best = np.max(
            [
                np.concatenate([np.zeros(n), best[: rows + 1 - n] + of_key[n]])
                for n in range(per_key + 1)
            ],
            axis=0,
        )
    return float(best[-1])


def places(plan: PrivacyPlan) -> int:
    """Periods that a window can hold records of. A unit counts in one of them, so leaving out that one moves its 1 to the other."""
    size = plan.query.windows.size_us
    slide = plan.query.windows.slide_us
    found = max(
        len({start // size, (start + size - 1) // size}) for start in range(0, 2 * size, slide)
    )
    return found if plan.query.contribution_period is ContributionPeriod.WINDOW else 1


def integrated_delta(mu: float, epsilon: float) -> float:
    """E max(0, 1 - exp(epsilon - loss)) for the privacy loss of N(mu, 1) against N(0, 1), by quadrature over the output."""
    with mpmath.workdps(25):
        m = mpmath.mpf(mu)
        e = mpmath.mpf(epsilon)
        start = e / m + m / 2  # where the loss m y - m^2 / 2 passes epsilon
        f = lambda y: mpmath.npdf(y, m, 1) - mpmath.exp(e) * mpmath.npdf(y)  # noqa: E731
        return float(mpmath.quad(f, [start, start + 1, start + 3, start + 8, start + 20]))


def plans() -> list[PrivacyPlan]:
    pick = random.Random(11)
    out = []
    while len(out) < PLANS:
        plan = random_plan(pick, source())
        if plan.horizon <= DENSE:
            out.append(plan)
    return out


def test_random_plans_by_integration() -> None:
    """Never more than promised, and, where bounds divide evenly, all of it. Catches: a formula wrong in planner and accountant alike."""
    used = []
    for plan in plans():
        mu = math.sqrt(sum(v * v for v in ratios(plan)))
        delta = integrated_delta(mu, plan.epsilon)
        assert delta == pytest.approx(gaussian_delta(mu, plan.epsilon), rel=1e-6)
        assert delta <= plan.delta_noise * (1 + 1e-6)
        cost = recompute(plan, source())
        assert mu <= cost.mu * (1 + 1e-9)
        failures = threshold_failures(plan)
        assert failures <= plan.delta_threshold * (1 + 1e-9)
        assert failures == pytest.approx(cost.delta_threshold, rel=1e-6)
        assert hash_charge(plan) == pytest.approx(plan.delta_hash, rel=1e-12)
        used.append(delta / plan.delta_noise)
    assert sum(v > 0.999 for v in used) > PLANS // 4


def test_plans_by_privacy_loss_distributions() -> None:
    """Google's numerical accountant composes the mechanisms one by one; it rounds losses up, so it may find a little more."""
    for plan in [p for p in plans() if 0.5 < p.epsilon < 8][:6]:
        parts = [
            privacy_loss_distribution.from_gaussian_mechanism(
                1 / v, value_discretization_interval=1e-4
            )
            for v in ratios(plan)
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.compose(part)
        assert float(whole.get_delta_for_epsilon(plan.epsilon)) <= plan.delta_noise * 1.02


def threshold_failures(plan: PrivacyPlan) -> float:
    """K' times the sum over triggers of P(noise >= tau_i - m w_1), by mpmath, deviations from the dense noise matrix. Where m - 1 other
    units can count twice each, and this one once, it is the most that they weigh together."""
    s = plan.selection
    q = plan.query
    if s is None:
        return 0.0
    groups = min(
        q.asked.max_rows_contributed,
        q.asked.max_groups_contributed
        * (q.asked.max_rows_per_group if q.asked.release is ReleaseRule.RESELECT else 1),
    )
    deviations = s.sigma * np.linalg.norm(noise_matrix(counter(s.counter, plan.horizon)), axis=1)
    most = (q.asked.min_privacy_units_per_group - 1) * places(plan) + 1
    margins = [(tau - most * s.weights[0]) / 2**20 for tau in s.thresholds]
    crossing = [
        mpmath.erfc(m / (float(sd) * mpmath.sqrt(2))) / 2
        for m, sd in zip(margins, deviations, strict=True)
    ]
    return float(plan.windows_per_record * groups * mpmath.fsum(crossing))


def hash_charge(plan: PrivacyPlan) -> float:
    """(other users + groups, and ids that share a fingerprint with them, times keys) / 2^64, in fractions."""
    declared = source()
    q = plan.query
    groups = plan.windows_per_record * min(
        q.asked.max_rows_contributed, q.asked.max_groups_contributed
    )
    ids = groups + Fraction(groups * declared.max_keys, 2**32)
    others = declared.max_users * (
        places(plan) if q.asked.release is ReleaseRule.RESELECT else 1
    )  # in rounds each of their periods has an id
    return float((others + ids * declared.max_keys) / 2**64)


def test_colliding_ids_are_as_rare_as_the_charge() -> None:
    """Theorem 6 with ids of 14 bits and no fingerprints: K ids of one user, other users and keys drawn anew each time."""
    bits = 14
    users = 300
    keys = 200
    groups = 3
    trials = 20_000
    pick = np.random.default_rng(5)
    user = pick.integers(0, 1 << bits, (trials, users))
    key = pick.integers(0, 1 << bits, (trials, keys))
    hit = (user[:, 1:] == user[:, :1]).any(axis=1)
    for g in range(groups):
        hit |= (key[:, g + 1 :] == key[:, g : g + 1]).any(axis=1)
    charge = (users + groups * keys) / 2**bits
    assert 0.85 * charge < hit.mean() < charge + 4 * math.sqrt(charge / trials)


@pytest.mark.parametrize(
    ("name", "is_counted"), [("BLT", False), ("BLT", True), ("HONAKER", False)]
)
def test_the_threshold_fails_as_often_as_beta_says(name: str, is_counted: bool) -> None:
    """Keys of one user, beta large, through the real release. Each trigger's share is beta_i; all together at most their sum, also
    where the noise that chooses a key is published with its count."""
    horizon = 6
    groups = 40_000
    betas = (0.02, 0.02, 0.02, 0.02, 0.02, 0.1)
    chosen = counter(name, horizon)
    sigma = 3.0
    taus = thresholds((1 << 20,), tuple(sigma * v for v in path_sd(chosen)), betas, 1)
    column = dataclasses.replace(COUNT, stderr=((1.0,) * horizon,))
    selection = SelectionParameters(chosen, sigma, taus, 1)
    p = ReleaseParameters(
        Grid(60, 60, 0, 10, horizon),
        selection,
        (PerturbationParameters(1, chosen, 1.0, 2.0**-20, (sigma,) * horizon),)
        if is_counted
        else (PerturbationParameters(1, chosen, 1.0, 1.0),),
        (column,),
    )
    count = np.ones(groups, np.int64)
    names = pa.array([b"%d" % i for i in range(groups)], pa.binary())
    table = {
        "window": 0 * count,
        "trigger": count,
        "key": np.arange(groups),
        "key_bytes": names,
        "weight": count << 20,
        "users": count,
    }
    rows = release(
        None, pa.table(table | {"v0": count, "batch": 0 * count}), [Tick(0, 60)], p, bytes(32)
    ).rows
    first = np.bincount(rows.column("trigger").to_numpy(), minlength=horizon + 1)[1:] / groups
    alone = np.diff(
        first, prepend=0.0
    )  # shown groups stay, so the differences are those that appear at each trigger
    room = 4.5 * np.sqrt(np.array(betas) / groups)
    assert abs(alone[0] - betas[0]) < room[0]
    assert (alone <= np.array(betas) + room).all()
    assert 0.5 * sum(betas) < first[-1] <= sum(betas)
