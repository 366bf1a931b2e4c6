"""The planner: sensitivities of the design, bounds that cannot overflow, an identity that covers every number; and a plan as parameters."""

import dataclasses
import math
import pickle
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpsql.errors import ConfigError
from dpsql.mechanisms.histogram import planner
from dpsql.mechanisms.histogram.accounting import check
from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import identity, make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, grid, release_parameters, stderr
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    PerGroup,
    WindowSpec,
    changed,
)
from dpsql.parts.increments import MAX_EXACT
from dpsql.parts.key_selection import in_weight_units, weights_in_people
from dpsql.privacy.curve import total_mu
from dpsql.udfs.contributions import Increment
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.counters import Honaker, column_norm, counter
from tests.property.plans import COUNT, DAY, HOUR, SUM, USERS, VALID, query, source

AVG = Aggregate("mean", AggregateFunction.AVG, "seconds", (10.0, 60.0))
BIG = 9.0
"""Above every normal that the noise function can make (|z| < 8.3)."""


def sum_of(
    low: float, high: float, function: AggregateFunction = AggregateFunction.SUM
) -> tuple[Aggregate, ...]:
    return (Aggregate("total", function, "x", (low, high)),)


def test_sensitivities_of_the_design() -> None:
    """Section 7 with C = 6, c = 2, G = 2, r = 2. Catches: C where min(C, G c) is right (too much noise), G c where C is (too little)."""
    bounds = {"max_rows_contributed": 6, "max_rows_per_group": 2, "max_groups_contributed": 2}
    q = query(
        **bounds, window=WindowSpec(DAY, DAY // 2, 0), aggregates=(COUNT, VALID, USERS, SUM, AVG)
    )
    plan = make_plan(q, source())
    f = column_norm(counter("BLT", 24))
    rows = math.sqrt(2 * 2 * 4)
    weights = [i**-0.5 for i in range(1, 5)]
    expected = [
        math.sqrt(sum((2 - weight) ** 2 for weight in weights)),  # COUNT(*), less its weights
        rows,
        math.sqrt(2 * 4),
        rows * 60,
        rows * 25,
        rows,
    ]  # a unit's 1 can move to the other period of a window
    assert [p.sensitivity / f for p in plan.perturbations] == pytest.approx(
        expected, rel=2.0**-18
    )  # rounded up, and weights down
    assert [p.noise_stream for p in plan.perturbations] == [1, 2, 3, 4, 5, 6]
    assert plan.perturbations[4].centre == 35.0
    assert (plan.windows_per_record, plan.max_groups, plan.horizon) == (2, 4, 24)
    squared = (
        sum((p.sensitivity / p.sigma) ** 2 for p in plan.perturbations)
        + (f * math.hypot(*weights) / plan.selection.sigma) ** 2
    )
    assert squared == pytest.approx(plan.mu**2, rel=2.0**-18)
    assert {round((p.sensitivity / p.sigma) ** 2 / plan.mu**2, 6) for p in plan.perturbations} == {
        round(0.3 / 6, 6)
    }


@pytest.mark.parametrize(
    ("groups", "bar", "units", "share"), [(3, 16.4, 38, 0.725), (1, 8.8, 23, 1.0)]
)
def test_people_are_counted_by_what_chooses_their_key(
    groups: int, bar: float, units: int, share: float
) -> None:
    """One release at epsilon 1: +-27.1 and +-15.6 with a counter of its own, at 38 and 23 people."""
    q = query(
        **{"epsilon": 1.0, "delta": 1e-6, "aggregates": (USERS,), "trigger_interval_us": DAY},
        **{"max_rows_contributed": groups, "max_rows_per_group": 1},
    )
    plan = make_plan(q, source(max_users=100_000, max_keys=100_000))
    (part,) = plan.perturbations
    assert part.on_selection and round(1.96 * part.sd[-1], 1) == bar
    assert plan.selection is not None
    assert plan.selection.users_needed(1) == units
    assert plan.selection.share == pytest.approx(share, abs=0.001)


def is_on_selection(plan: PrivacyPlan) -> list[bool]:
    return [isinstance(part, PerturbationPlan) and part.on_selection for part in plan.perturbations]


def test_rows_keep_their_counter_where_it_is_better() -> None:
    """Catches: rows with the noise of key selection in them, where that has next to nothing of the budget."""
    q = query(aggregates=(COUNT,), max_rows_per_group=2)
    assert is_on_selection(make_plan(q, source())) == [True]
    assert is_on_selection(make_plan(q, source(), share=0.01)) == [False]


def test_counts_too_large_for_20_more_bits_keep_their_counter() -> None:
    """Catches: sums of 2^-20 of people that do not fit 64 bits."""
    q = query(aggregates=(USERS,), delta=0.01)
    few, many = (source(max_users=users, max_keys=10) for users in (10**9, 10**12))
    assert is_on_selection(make_plan(q, few)) == [True]
    assert is_on_selection(make_plan(q, many)) == [False]


def test_equal_counts_are_one_number() -> None:
    """Catches: COUNT(*) of one row each, and people, that are paid for twice."""
    bounds = {"max_rows_contributed": 2, "max_rows_per_group": 1, "max_groups_contributed": 2}
    again = dataclasses.replace(USERS, alias="again")
    both = make_plan(query(**bounds, aggregates=(COUNT, USERS, again)), source())
    alone = make_plan(query(**bounds, aggregates=(USERS,)), source())
    assert both.perturbations == alone.perturbations
    assert [column.perturbations for column in both.columns] == [both.perturbations] * 3


def test_public_groups_and_no_keys_spend_everything_on_the_columns() -> None:
    for q in (query(public_groups="SELECT page FROM pages"), query(keys=())):
        plan = make_plan(q, source())
        assert plan.selection is None
        assert plan.delta_threshold == 0.0
        assert sum((p.sensitivity / p.sigma) ** 2 for p in plan.perturbations) == pytest.approx(
            plan.mu**2 * (1 - plan.left_out.share), rel=2.0**-20
        )
        check(plan, source())


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 1.0), (-0.1, 0.7), (-5.0, -1.0), (0.0, 3e-7), (1e6, 1e6 + 1), (0.0, 1e90)],
)
def test_the_clamp_is_inside_the_bounds_and_the_grid_fine(low: float, high: float) -> None:
    """Catches: a clamp rounded outwards (sensitivity above the stated bound), a grid that is not a power of two."""
    (p,) = make_plan(query(aggregates=sum_of(low, high)), source(max_users=10_000)).perturbations
    assert math.frexp(p.grid)[0] == 0.5
    assert p.grid <= (high - low) / 2**20 < 2 * p.grid
    assert low <= p.lower * p.grid <= low + p.grid
    assert high - p.grid <= p.upper * p.grid <= high


@pytest.mark.parametrize(("low", "high"), [(1e9, 1e9 + 1), (0.0, 2.0**60)])
def test_bounds_that_could_overflow_a_sum_are_refused(low: float, high: float) -> None:
    """Data must never wrap a total. (0, 2^60) is fine: the grid grows with the bounds, and 2^21 units times the users fit."""
    q = query(aggregates=sum_of(low, high))
    if high - low == 1.0:
        with pytest.raises(ConfigError, match="could overflow"):
            make_plan(q, source())
    else:
        (p,) = make_plan(q, source()).perturbations
        assert p.upper * source().max_users * 4 < MAX_EXACT


def test_a_sum_with_bounds_per_group_is_as_large_whatever_the_rows() -> None:
    asked = query(
        max_rows_contributed=10**6, max_rows_per_group=10**6, max_groups_contributed=1, delta=1e-7
    )
    many = source(max_users=10**8)
    each = sum_of(0.0, 60.0)
    make_plan(changed(asked, aggregates=(PerGroup(**vars(each[0])),)), many)
    with pytest.raises(ConfigError, match="could overflow"):
        make_plan(changed(asked, aggregates=each), many)


@pytest.mark.parametrize(
    ("epsilon", "aggregates", "users"),
    [
        (1e-4, sum_of(1e8, 1e8 + 1), 1000),
        (1e-7, sum_of(1e6, 1e6 + 1), 10**6),
        (6.0, sum_of(0.0, 1.0), 1),
        (1e-300, (COUNT, SUM), 1000),
    ],
)
def test_the_noise_itself_cannot_overflow(
    epsilon: float, aggregates: tuple[Aggregate, ...], users: int
) -> None:
    """Refused, or exact sums and the largest noise fit int64 together: beyond it noise is one constant and shows the sum."""
    stream = source(max_users=users, max_keys=1000)
    try:
        plan = make_plan(query(epsilon=epsilon, aggregates=aggregates), stream)
    except ConfigError:
        return
    for p in plan.perturbations:
        assert (
            max(abs(p.lower), abs(p.upper)) * users * 4 + BIG * plan.horizon * p.sigma / p.grid
            < 2**63
        )


@pytest.mark.parametrize("function", [AggregateFunction.SUM, AggregateFunction.AVG])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.7e308, 1.7e308), (0.0, 1.7e308), (0.0, 5e-324), (0.0, 1e-300)]
)
def test_extreme_bounds_are_planned_or_refused_but_never_crash(
    low: float, high: float, function: AggregateFunction
) -> None:
    """They parse: finite, in order. Catches: a width that overflows to infinity or a grid that underflows to zero."""
    q = query(aggregates=sum_of(low, high, function))
    try:
        plan = make_plan(q, source(max_users=1000))
    except ConfigError:
        return
    assert all(p.grid > 0 and math.isfinite(p.sigma) and p.sigma > 0 for p in plan.perturbations)
    check(plan, source(max_users=1000))


def variants(value: Any) -> Iterator[Any]:
    """The same value with something else in one place, for every field at any depth."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for other in variants(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: other})
    elif isinstance(value, Enum):
        yield from (other for other in type(value) if other is not value)
    elif isinstance(value, tuple):
        yield (*value, 1)
        for i in sorted({0, len(value) - 1} if value else ()):
            yield from ((*value[:i], other, *value[i + 1 :]) for other in variants(value[i]))
    elif isinstance(value, float):
        yield math.nextafter(value, math.inf)
    else:
        yield (
            1
            if value is None
            else not value
            if isinstance(value, bool)
            else value + ("x" if isinstance(value, str) else 1)
        )


@pytest.mark.parametrize(
    "more", [{}, {"public_groups": "SELECT page FROM pages"}, {"carry_windows": 3}]
)
def test_the_identity_covers_every_field_at_any_depth(more: dict[str, Any]) -> None:
    """Of new fields, too. Catches: a number that noise or a threshold depends on and that two plans of one identity, so of one noise key, differ in."""
    asked = query(aggregates=(COUNT, SUM, AVG), **more)
    plan = make_plan(asked, source())
    others = [
        dataclasses.replace(plan, **{field.name: other})
        for field in dataclasses.fields(plan)
        if field.name != "identity"
        for other in variants(getattr(plan, field.name))
        if not (
            field.name == "query" and other.mechanism != asked.mechanism
        )  # each mechanism has a document of its own
    ]
    others.append(dataclasses.replace(plan, columns=plan.columns[::-1]))
    assert len(others) > 80 and plan.query == asked
    assert plan.identity not in {identity(other) for other in others}
    assert len({identity(other) for other in others}) == len(others)
    assert (
        plan.identity
        == identity(dataclasses.replace(plan, identity="anything"))
        == make_plan(asked, source()).identity
    )


@pytest.mark.parametrize("ulps", [-4, -1, 1, 4])
@pytest.mark.parametrize("name", [CounterName.BLT, CounterName.HONAKER])
def test_another_machine_makes_the_same_plan(
    name: CounterName, ulps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix products, powers and quantiles end in other bits on another processor. Catches: such a bit in the identity."""
    asked = query(counter=name, max_rows_contributed=32, aggregates=(COUNT, USERS, SUM, AVG))
    here = make_plan(asked, source())
    factor = 1 + ulps * 2.0**-52
    with monkeypatch.context() as patch:
        patch.setattr(planner, "column_norm", lambda chosen: column_norm(chosen) * factor)
        patch.setattr(
            planner,
            "total_mu",
            lambda epsilon, delta: total_mu(epsilon, delta) * (1 + ulps * 1e-14),
        )
        patch.setattr(norm, "isf", lambda betas, found=norm.isf: found(betas) * factor)
        there = make_plan(asked, source())
    assert there == here
    assert there.identity == here.identity
    assert {p.sigma for p in here.perturbations} != {p.sigma * factor for p in here.perturbations}


def test_a_source_that_says_less_changes_only_the_hash_charge() -> None:
    """More users declared: a larger charge, so less is left for noise, and the whole still adds up to delta."""
    for users in (1000, 10**6):
        plan = make_plan(query(), source(max_users=users))
        assert plan.delta_hash == pytest.approx(
            (users + 4 * (1 + 10_000 / 2**32) * 10_000) / 2**64, rel=1e-12
        )
        assert plan.delta_noise + plan.delta_threshold + plan.delta_hash == pytest.approx(
            plan.delta, rel=1e-9
        )
        assert np.isfinite(plan.mu)


MEAN = Aggregate("mean", AggregateFunction.AVG, "pages", (10.0, 60.0))
PUBLIC = PublicGroups((5, 3), (b"5", b"3"), 0)


def test_the_bounding_parameters_are_the_plans() -> None:
    """C, c and G are three different numbers here. Catches: two of them swapped."""
    bounds = {"max_rows_contributed": 9, "max_rows_per_group": 4, "max_groups_contributed": 5}
    q = query(**bounds, allowed_lateness_us=HOUR, aggregates=(COUNT, VALID, USERS, SUM, MEAN))
    plan = make_plan(q, source())
    p = bounding_parameters(plan)
    assert (p.max_rows, p.max_rows_per_group, p.max_groups, p.renews) == (9, 4, 5, True)
    assert p.weights == plan.selection.weights
    assert len(p.weights) == p.max_group_copies == 5
    assert (p.grid.horizon, p.grid.window_us, p.grid.slide_us, p.grid.trigger_us) == (
        25,
        DAY,
        DAY,
        HOUR,
    )
    assert [i.rule for i in p.increments] == ["rows", "valid", "users", "sum", "sum", "valid"]
    assert p.increments[3] == Increment("sum", 0, 2.0**-15, 0, 60 * 2**15, 0.0)
    assert p.increments[4] == Increment("sum", 1, 2.0**-15, -25 * 2**15, 25 * 2**15, 35.0)
    assert (p.by_user, p.public_keys, p.first_window_us) == (False, None, None)
    stream = make_plan(
        dataclasses.replace(q, contribution_period=ContributionPeriod.STREAM), source()
    )
    assert bounding_parameters(stream).renews is False
    assert bounding_parameters(
        make_plan(changed(q, release=ReleaseRule.RESELECT), source())
    ).by_user


def test_the_release_parameters_are_the_plans() -> None:
    """Catches: the sigma of one column given to another, the mechanism of selection given to a column."""
    plan = make_plan(
        query(
            aggregates=(COUNT, SUM, MEAN),
            min_privacy_units_per_group=3,
            counter=CounterName.HONAKER,
            release=ReleaseRule.RESELECT,
        ),
        source(),
    )
    p = release_parameters(plan)
    assert p.selection is not None
    assert (p.selection.sigma, p.selection.thresholds) == (
        plan.selection.sigma,
        plan.selection.thresholds,
    )
    assert (p.selection.min_users, p.selection.rounds) == (3, True)
    assert p.selection.counter == Honaker(24)
    assert [(q.mechanism, q.sigma, q.grid, q.counter) for q in p.perturbations] == [
        (x.noise_stream, x.sigma, x.grid, Honaker(24)) for x in plan.perturbations
    ]
    assert len({q.mechanism for q in p.perturbations} | {0}) == 5
    assert [c.kind for c in p.columns] == ["count", "sum", "avg"]
    assert [c.perturbations for c in p.columns] == [(0,), (1,), (2, 3)]
    assert (p.columns[2].bounds, p.columns[2].centre) == ((10.0, 60.0), 35.0)
    assert grid(plan) == p.grid


def test_public_groups_replace_selection() -> None:
    plan = make_plan(
        query(public_groups="SELECT page FROM pages", window=WindowSpec(DAY, DAY, HOUR)), source()
    )
    p = release_parameters(plan, PUBLIC)
    assert (p.selection, p.public, p.grid.offset_us) == (None, PUBLIC, HOUR)
    assert bounding_parameters(plan, PUBLIC).public_keys == (3, 5)
    assert bounding_parameters(plan, PUBLIC).first_window_us == 0
    with pytest.raises(ValueError, match="either key selection or public groups"):
        release_parameters(plan)
    with pytest.raises(ValueError, match="either key selection or public groups"):
        release_parameters(make_plan(query(), source()), PUBLIC)


def test_stderr_includes_the_rounding() -> None:
    """Uniform on one grid unit: variance grid^2 / 12, independent of the path."""
    count = make_plan(query(), source()).perturbations[0]
    assert stderr(count) == tuple(math.sqrt(v * v + 1 / 12) for v in count.sd)


def test_parameters_are_pickled_without_budget_or_secret() -> None:
    """Workers get numbers. Catches: the plan or the query smuggled into the pickled function."""
    plan = make_plan(query(), source())
    for p in (bounding_parameters(plan), release_parameters(plan)):
        assert pickle.loads(pickle.dumps(p)) == p
        assert b"epsilon" not in pickle.dumps(p)
        assert {*re.findall(rb"dpsql\.(\w+)", pickle.dumps(p))} == {b"udfs"}


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.7, 1.0])
def test_weights_are_the_same_on_every_machine(decay: float) -> None:
    """Catches: another plan, and so a run that does not go on, where the last digits of a power are others."""
    weights = weights_in_people(10_000, decay)
    powers = np.arange(1, 10_001, dtype=np.float64) ** -decay
    assert weights[0] == 2**20 and len(weights) == 10_000
    for others in (powers * (1 - 2.0**-50), np.minimum(powers * (1 + 2.0**-50), 1.0)):
        assert in_weight_units(others) == weights
