"""Plans of tables, those whose rows end among them: the accountant passes them and little is wasted, finds every number that is too small, and their two steps
together are a SQL count plus the noise that they state."""

import dataclasses
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.errors import AccountingError, ConfigError
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.plan import TableChoices, TablePlan
from dpsql.mechanisms.dynamic.planner import identity, make_plan
from dpsql.mechanisms.dynamic.stages import bounding_parameters, table_parameters
from dpsql.parsed_query import Aggregate, AggregateFunction, ParsedQuery
from dpsql.parts.whole_table import document
from dpsql.privacy.cost import Overlap, gaussian_delta
from dpsql.sources.change_feed import Feed
from dpsql.udfs.intake.contribution_bounding import admit
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.stage import Clock, Tick
from dpsql.udfs.table.release import release
from dpsql.view.words import left_out
from tests.described import of_plan
from tests.mechanisms.dynamic.plans import FEED, START, query, source
from tests.property.plans import CAPPED, COUNT, FEW, HOUR, LINE, LINK, SUM, USERS

AVG = Aggregate("mean", AggregateFunction.AVG, "seconds", (-3.0, 9.0))
SPREAD = Aggregate("spread", AggregateFunction.VAR_SAMP, "seconds", (-3.0, 9.0))
KEY = bytes(range(32))


def any_query(pick: np.random.Generator) -> ParsedQuery[TableChoices]:
    rows = int(pick.integers(1, 9))
    some = [a for a in (USERS, SUM, AVG, SPREAD) if pick.random() < 0.5]
    last = None if pick.random() < 0.5 else int(pick.choice([1, 2, 7, 100, 1000]))
    public = pick.random() < 0.25
    given: dict[str, Any] = {
        "epsilon": float(pick.choice([0.5, 1.0, 6.0])),
        "delta": float(pick.choice([1e-6, 1e-9])),
    }
    given |= {
        "max_rows_per_group": int(pick.integers(1, rows + 1)),
        "max_groups_contributed": int(pick.integers(1, rows + 1)),
    }
    given |= {
        "min_privacy_units_per_group": int(pick.choice([1, 3])),
        "public_groups": "SELECT page FROM pages" if public else None,
    }
    given |= {
        "feed": None if pick.random() < 0.5 else FEED,
        "max_spells_contributed": int(pick.integers(1, rows + 1)),
    }
    if given["feed"] is None and pick.random() < 0.3:
        uncounted = {"max_rows_contributed": math.inf, "max_rows_per_group": math.inf}
        return query(**given | uncounted, max_triggers=last, aggregates=(CAPPED, FEW, USERS))
    some += [] if given["feed"] else [a for a in (CAPPED, FEW) if pick.random() < 0.5]
    some += [] if given["feed"] else (LINE, LINK)[: rows % 3]
    return query(**given, max_rows_contributed=rows, max_triggers=last, aggregates=(COUNT, *some))


def test_200_random_plans_keep_their_promise_and_waste_little() -> None:
    """At least 0.98 of mu and, without a last trigger, of the thresholds' failure (what lies beyond 2^32 triggers). Catches: a planner and an
    accountant who differ in the last triggers, in f, in a bound."""
    pick = np.random.default_rng(11)
    for _ in range(200):
        asked = any_query(pick)
        plan = make_plan(asked, source())
        cost = account(plan, source())
        assert cost.overlap is Overlap.STREAM
        assert cost.periods(12).mu2 == pytest.approx(cost.mu2)
        assert 0.98 * plan.mu <= cost.mu <= plan.mu * (1 + 1e-9)
        assert gaussian_delta(cost.mu, asked.epsilon) + cost.failure <= asked.delta * (1 + 1e-9)
        if plan.selection:
            assert cost.failure - plan.delta_hash >= 0.97 * plan.delta_threshold


def smaller(plan: TablePlan) -> dict[str, TablePlan]:
    """Each number of a plan that protects, 0.1% on the wrong side; noise itself: `tests/mechanisms/test_contract.py`."""
    assert plan.selection is not None
    out = {}
    s = plan.selection
    for name, changed in {
        "thresholds": dataclasses.replace(
            s,
            thresholds=tuple(int((t - s.weights[0]) * 0.999) + s.weights[0] for t in s.thresholds),
        ),
        "weights": dataclasses.replace(s, weights=tuple(int(w * 1.002) for w in s.weights)),
    }.items():
        out[name] = dataclasses.replace(plan, selection=changed)
    out["mu"] = dataclasses.replace(plan, mu=plan.mu * 0.999)
    out["delta_threshold"] = dataclasses.replace(plan, delta_threshold=plan.delta_threshold * 0.97)
    out["delta_hash"] = dataclasses.replace(plan, delta_hash=plan.delta_hash * 0.999)
    out["keys without a test"] = dataclasses.replace(plan, selection=None)
    out["epsilon"] = dataclasses.replace(plan, epsilon=plan.epsilon * 1.001)
    return out


NAMES = sorted(smaller(make_plan(query(aggregates=(COUNT, USERS, SUM, SPREAD)), source())))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("last", "feed"), [(None, None), (100, None), (None, FEED)])
def test_a_number_that_is_too_small_is_refused(
    name: str, last: int | None, feed: Feed | None
) -> None:
    plan = make_plan(
        query(aggregates=(COUNT, USERS, SUM, SPREAD), max_triggers=last, feed=feed), source()
    )
    account(plan, source())
    with pytest.raises(AccountingError):
        account(smaller(plan)[name], source())


@pytest.mark.parametrize("blocks", [slice(1, None), slice(0, 400), slice(0, 64)])
def test_thresholds_that_end_before_the_run_are_refused(blocks: slice) -> None:
    """The last block goes on for ever. Catches: a plan whose thresholds are those of a finite horizon."""
    plan = make_plan(query(), source())
    assert plan.selection is not None
    left = dataclasses.replace(
        plan.selection,
        first=plan.selection.first[blocks],
        thresholds=plan.selection.thresholds[blocks],
    )
    with pytest.raises(AccountingError):
        account(dataclasses.replace(plan, selection=left), source())


def test_rows_that_end_cost_a_root_of_two_and_their_spells() -> None:
    """Catches: the numbers of a table that only grows, planned or accounted for one whose rows end."""
    growing, ending = (
        make_plan(query(aggregates=(COUNT, USERS), feed=feed, max_spells_contributed=2), source())
        for feed in (None, FEED)
    )
    for (a, b), times in zip(
        zip(growing.perturbations, ending.perturbations, strict=True),
        (math.sqrt(2), 1.0),
        strict=True,
    ):
        assert b.sensitivity / a.sensitivity == pytest.approx(times)
    cheap = dataclasses.replace(ending, selection=growing.selection)
    with pytest.raises(AccountingError, match="begin to count 2 times"):
        account(cheap, source())
    with pytest.raises(AccountingError):
        account(dataclasses.replace(ending, columns=growing.columns), source())


def test_a_declared_last_trigger_costs_less_noise() -> None:
    """f sd at trigger 8,760: 5.23 without an end, about 4 with one."""
    for_ever, ending = (make_plan(query(max_triggers=last), source()) for last in (None, 8760))
    sd = [table_parameters(plan).perturbations[0].stderr(8760) for plan in (for_ever, ending)]
    assert 0.7 < sd[1] / sd[0] < 0.8


def test_the_document_and_identity_say_everything() -> None:
    plan = make_plan(query(), source())
    assert plan.identity == identity(plan) == make_plan(query(), source()).identity
    assert document(plan)["query"]["max_triggers"] is None
    assert make_plan(query(), source(start_us=START + HOUR)).identity != plan.identity
    others = [
        {"min_privacy_units_per_group": 2},
        {"max_triggers": 10_000},
        {"trigger_interval_us": 2 * HOUR},
        {"max_rows_contributed": 5},
    ]
    assert (
        len({plan.identity, *(make_plan(query(**other), source()).identity for other in others)})
        == 5
    )


def test_noise_that_could_overflow_is_refused() -> None:
    wide = Aggregate("total", AggregateFunction.SUM, "seconds", (0.0, 1e9))
    many = source(max_users=1 << 50)
    with pytest.raises(ConfigError, match=r"overflow|too small"):
        make_plan(query(aggregates=(wide,), max_rows_contributed=1000), many)


def records(count: int, seed: int) -> list[tuple[int, int, int, float]]:
    """(user, event time, key, value): some before the start, most keys with few users."""
    pick = np.random.default_rng(seed)
    ts = START + pick.integers(-3 * HOUR, 40 * HOUR, count)
    return list(
        zip(
            *(
                c.tolist()
                for c in (
                    pick.integers(0, 900, count),
                    ts,
                    pick.zipf(1.6, count) % 9,
                    pick.uniform(-9, 99, count),
                )
            ),
            strict=True,
        )
    )


def table(rows: list[tuple[int, int, int, float]]) -> pa.Table:
    columns = {
        "user": [r[0] for r in rows],
        "ts": [r[1] for r in rows],
        "key": [r[2] for r in rows],
    }
    ints = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    names = pa.array([b"0001%d" % r[2] for r in rows], pa.binary())
    drop = pa.array(np.zeros(len(rows), np.int8))
    return pa.table(
        {
            "drop": drop,
            **ints,
            "key_bytes": names,
            "a0": pa.array([r[3] for r in rows], pa.float64()),
        }
    )


@pytest.mark.parametrize("last", [None, 30])
@pytest.mark.parametrize("public", [False, True])
def test_both_steps_are_a_count_of_the_bounded_table_and_the_stated_noise(
    last: int | None, public: bool
) -> None:
    """Records in six micro-batches, late ones too, through both steps with a plan's numbers. Catches: rows before the start or late ones that
    are lost, a trigger too early, a bound per window instead of for ever, noise that is not the column's."""
    listed = PublicGroups((3, 5), (b"00013", b"00015"), START) if public else None
    groups = "SELECT page FROM pages" if public else None
    plan = make_plan(
        query(max_triggers=last, public_groups=groups, max_ahead_us=100 * HOUR), source()
    )
    intake = bounding_parameters(plan, listed)
    output = table_parameters(plan, listed)
    rows = records(4000, 5)
    state = None
    groups = None
    counted = defaultdict(int)
    released = []
    expected: dict[tuple[int, int], int] = defaultdict(int)
    for batch in range(6):
        closed = START + (7 * batch - 1) * HOUR if batch else START - HOUR
        mine = sorted(rows[batch::6], key=lambda r: r[1])
        done = admit(state, table(mine), Clock(closed, 1 << 61), intake)
        state = done.state
        for user, ts, key, _ in mine:
            trigger = max((ts - START) // HOUR + 1, 1, (closed - START) // HOUR + 1)
            if (
                (public and key not in (3, 5))
                or (last is not None and trigger > last)
                or counted[user] >= 4
            ):
                continue
            counted[user] += 1
            expected[key, trigger] += 1
        given = done.contributions.append_column(
            "batch", pa.array(np.full(done.contributions.num_rows, batch, np.int64))
        )
        out = release(groups, given, [Tick(batch, START + (7 * batch + 6) * HOUR)], output, KEY)
        groups = out.state
        released += out.rows.to_pylist()
    assert max(row["trigger"] for row in released) == (last or 41)
    assert {row["key_bytes"] for row in released} >= (
        {b"00013", b"00015"} if public else {b"00011"}
    )
    off = []
    for row in released:
        exact = sum(
            n
            for (key, trigger), n in expected.items()
            if key == int(row["key_bytes"][4:]) and trigger <= row["trigger"]
        )
        off.append((row["c0"] - exact) / row["s0"])
    # 41 triggers or fewer of some keys, strongly correlated: a sum of the wrong rows is tens of deviations off.
    assert max(map(abs, off)) < 6
    assert math.sqrt(np.mean(np.square(off))) > 0.2


def test_what_is_shown_counts_row_versions_where_rows_end() -> None:
    plans = (
        make_plan(query(max_rows_contributed=8, max_rows_per_group=4, **kind), source())
        for kind in ({}, {"feed": FEED})
    )
    growing, changes = (left_out(of_plan(plan))[1] for plan in plans)
    assert growing.startswith(
        "One user_id counts with at most 8 records in the whole stream, 4 per page"
    )
    assert changes.startswith(
        "One user_id counts with at most 8 row versions in the whole stream, 4 per page at the same time"
    )
