"""The release's noise and the error bars of answers: what is asked of the real steps over many noise keys. Chance of a false alarm: below 10^-4 each."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import kstest

from dpsql.errors import ConfigError
from dpsql.mechanisms.marginals.answers import MaxError, ask
from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from tests.mechanisms.marginals.plans import HOURS, query, source
from tests.property.plans import COUNT, SUM
from udfs.marginals.release import nothing_seen, release

KEYS = 500
LAST = 3
PREDICATE = {0: np.array([1.0, 1, 0, 0, 0]), 1: np.array([0.0, 1, 1, 0])}


def rows(seed: int, plan: MarginalsPlan) -> list[np.ndarray]:
    """Of each trigger the values of its rows; with HOURS they are of the hour that ends then."""
    pick, sizes = np.random.default_rng(seed), plan.marginals.sizes
    out = []
    for trigger in range(LAST):
        values = np.column_stack([pick.integers(0, n, 50) for n in sizes])
        if plan.query.asked.clock:
            values[:, 1] = trigger
        out.append(values)
    return out


def noise_key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def run(plan: MarginalsPlan, given: list[np.ndarray], key: bytes) -> list[np.ndarray]:
    """The noisy tables of the last trigger."""
    noise = plan.noisy_tables(plan.sums[0])
    state = nothing_seen(noise)
    for values in given:
        state, out = release(state, plan.marginals.sums(values, np.ones(len(values), np.int64)), noise, key)
    return plan.marginals.split(out)


def truth(given: list[np.ndarray]) -> int:
    return sum(int(((PREDICATE[0][v[:, 0]] > 0) & (PREDICATE[1][v[:, 1]] > 0)).sum()) for v in given)


def z_values(plan: MarginalsPlan) -> np.ndarray:
    """Error over standard error of one predicate, a noise key each."""
    given, each = rows(1, plan), plan.sums[0]
    exact, out = truth(given), []
    for number in range(KEYS):
        found = ask(plan, each, run(plan, given, noise_key(number)), LAST, PREDICATE)
        out.append((found.value - exact) / found.stderr)
    return np.array(out)


def is_standard_normal(z: np.ndarray) -> bool:
    """Kolmogorov and Smirnov at 10^-5, and the deviation within 5 of its own errors."""
    return bool(kstest(z, "norm").pvalue > 1e-5 and abs(z.std() - 1) < 5 / math.sqrt(2 * len(z)))


@pytest.mark.parametrize(
    "plan", [make_plan(query(max_triggers=4, clock=clock), source()) for clock in (None, HOURS)], ids=["counters", "closed cells"]
)
def test_errors_are_standard_normal_in_units_of_the_error_bar(plan: MarginalsPlan) -> None:
    """And an error bar that is 23% too small is told from it."""
    z = z_values(plan)
    assert is_standard_normal(z)
    assert 0.91 < np.mean(np.abs(z) < 1.959964) < 0.985
    assert not is_standard_normal(z * 1.3)


def test_a_noise_that_is_one_for_all_tables_is_found() -> None:
    """Planted: cells are numbered within their table, so that tables share their noise."""
    plan = make_plan(query(max_triggers=4), source())
    each, given, exact, out = plan.sums[0], rows(1, plan), truth(rows(1, plan)), []
    for number in range(KEYS // 2):
        tables = run(plan, given, noise_key(number))
        zero = run(plan, [v[:0] for v in given], noise_key(number))
        sharing = []
        for t, (noisy, noise) in enumerate(zip(tables, zero, strict=True)):
            same = np.resize(zero[0].ravel() / each.sigmas[0], noise.size).reshape(noise.shape) * each.sigmas[t]
            sharing.append(noisy - noise + same)
        found = ask(plan, each, sharing, LAST, PREDICATE)
        out.append((found.value - exact) / found.stderr)
    assert not is_standard_normal(np.array(out))


def test_the_release_is_exact_sums_and_noise_that_does_not_depend_on_them() -> None:
    """Sums of rows join the same noise; cells of a closed bucket have one number for ever, and before that none."""
    plan = make_plan(query(max_triggers=4, clock=HOURS, aggregates=(COUNT, SUM)), source())
    for each in plan.sums:
        noise, given = plan.noisy_tables(each), rows(2, plan)
        state, empty = nothing_seen(noise), nothing_seen(noise)
        first: list[np.ndarray] = []
        for trigger, values in enumerate(given, start=1):
            added = plan.marginals.sums(values, np.arange(len(values)))
            before = state.sums.copy(), state.paths.copy()
            again, state_before = release(state, added, noise, noise_key(3)), state
            state, out = release(state, added, noise, noise_key(3))
            assert (
                np.array_equal(again[1], out)
                and np.array_equal(before[0], state_before.sums)
                and np.array_equal(before[1], state_before.paths)
            )
            empty, alone = release(empty, np.zeros_like(added), noise, noise_key(3))
            for t, (table, lone, sums) in enumerate(zip(*map(plan.marginals.split, (out, alone, state.sums)), strict=True)):
                if noise.once(t):
                    hours = plan.marginals.values(t)[1].reshape(table.shape)
                    assert np.all(table[hours >= trigger] == 0)
                    assert np.array_equal((table - lone)[hours < trigger], sums[hours < trigger])
                    if trigger > 1:
                        assert np.array_equal(table[hours < trigger - 1], first[t][hours < trigger - 1])
                else:
                    assert np.array_equal(table - lone, sums)
            first = plan.marginals.split(out)


def test_a_row_that_is_too_late_for_its_cell_never_gets_there() -> None:
    """Its cell would be shown twice with the same noise. The clock says which rows these are; the release refuses what it is given nevertheless."""
    plan = make_plan(query(max_triggers=4, clock=HOURS), source())
    noise, clock = plan.noisy_tables(plan.sums[0]), plan.query.asked.clock
    assert clock is not None
    state, _ = release(nothing_seen(noise), np.zeros(plan.marginals.first[-1], np.int64), noise, noise_key(1))
    late, now = np.array([[0, 0, 0]]), np.array([[0, 1, 0]])
    assert clock.in_time(np.array([0, 1]), np.array([2, 2])).tolist() == [False, True]
    release(state, plan.marginals.sums(now, np.ones(1, np.int64)), noise, noise_key(1))
    with pytest.raises(ValueError, match="bucket that has closed"):
        release(state, plan.marginals.sums(late, np.ones(1, np.int64)), noise, noise_key(1))


def test_max_error_is_decided_by_public_numbers() -> None:
    plan = make_plan(query(max_triggers=4), source())
    each, given = plan.sums[0], rows(1, plan)
    released = run(plan, given, noise_key(1))
    plain = ask(plan, each, released, LAST, PREDICATE)
    assert plain.free and plain.high - plain.low == pytest.approx(2 * 1.959964 * plain.stderr, rel=1e-6)
    half = plain.high - plain.value
    assert ask(plan, each, released, LAST, PREDICATE, max_error=MaxError(half * 1.001, False)).free
    refused = ask(plan, each, released, LAST, PREDICATE, max_error=MaxError(half * 0.999, False))
    assert not refused.free and math.isnan(refused.value) and refused.stderr == plain.stderr
    # Other data, the same noise: what is free does not move.
    other = run(plan, [v[:0] for v in given], noise_key(1))
    assert not ask(plan, each, other, LAST, PREDICATE, max_error=MaxError(half * 0.999, False)).free
    large = [np.full_like(table, 10**6 // max(table.size, 1)) for table in released]
    assert ask(plan, each, large, LAST, PREDICATE, max_error=MaxError(0.01, True)).free
    with pytest.raises(ConfigError, match="give max_error in rows"):
        ask(plan, each, [-np.abs(table) for table in large], LAST, PREDICATE, max_error=MaxError(0.01, True))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"max_error": MaxError(0.0, False)}, "positive number of rows"),
        ({"predicate": {0: np.ones(4)}}, "weight for each value"),
        ({"predicate": {3: np.ones(4)}}, "weight for each value"),
        ({"predicate": {0: np.full(5, np.nan)}}, "weight for each value"),
    ],
)
def test_questions_that_are_none_are_refused(given: dict[str, object], says: str) -> None:
    plan = make_plan(query(max_triggers=4), source())
    released = run(plan, rows(1, plan), noise_key(1))
    question: dict[str, object] = {"predicate": PREDICATE} | given
    with pytest.raises(ConfigError, match=says):
        ask(plan, plan.sums[0], released, LAST, **question)  # type: ignore[arg-type]


def test_a_question_that_no_table_covers_has_no_answer() -> None:
    plan = make_plan(query(max_triggers=4), source())
    small = [t for t in range(len(plan.tables)) if len(plan.tables[t].keys) < 2]
    fewer = dataclasses.replace(
        plan,
        tables=tuple(plan.tables[t] for t in small),
        sums=tuple(dataclasses.replace(each, sigmas=tuple(each.sigmas[t] for t in small)) for each in plan.sums),
    )
    if not fewer.tables:
        pytest.fail("the plan measures no table of one key")
    found = ask(fewer, fewer.sums[0], [np.zeros(fewer.marginals.shape(t)) for t in range(len(small))], LAST, PREDICATE)
    assert not found.free and found.stderr == math.inf
