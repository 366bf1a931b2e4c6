"""State cut into another number of buckets goes on as if it had always been cut so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.lake.rescale import recut
from dpsql.mechanisms.histogram.asked import ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters, stages
from dpsql.udfs.histogram import group_state, user_state
from dpsql.udfs.histogram.contribution_bounding import admit
from dpsql.udfs.histogram.group_state import ReleaseState
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.histogram.stages import AdmissionStage, ReleaseStage
from dpsql.udfs.stage import Clock, Tick, check_state
from tests.property.plans import COUNT, HOUR, query, source

KEYS = np.random.default_rng(5).integers(-(2**62), 2**62, 120)
NOISE_KEY = bytes(range(32))
DAY = 19_700 * 24 * HOUR

State = Mapping[int, Mapping[str, pa.Table]]


def records(users: Any, keys: Any, ts: int) -> pa.Table:
    names = pa.array([f"{key}".encode() for key in keys], pa.binary())
    size = len(users)
    return pa.table({"drop": np.zeros(size, np.int8), "user": users, "ts": np.full(size, ts), "key": keys, "key_bytes": names})


def visits(seed: int, ts: int) -> pa.Table:
    """Three users to a page, on average."""
    chance = np.random.default_rng(seed)
    return records(chance.integers(-500, 500, 400), chance.choice(KEYS, 400), ts)


def bounded(state: State, given: pa.Table, parameters: Any, buckets: int) -> tuple[dict[int, dict[str, pa.Table]], list[pa.Table]]:
    after, out = {}, []
    for bucket in range(buckets):
        mine = given.filter(pa.array(given["user"].to_numpy() % buckets == bucket))
        done = admit(state[bucket]["users"] if bucket in state else None, mine, Clock(), parameters)
        check_state(AdmissionStage(parameters, 0), {"users": done.state})
        after[bucket] = {"users": done.state}
        out.append(done.contributions)
    return after, out


def released(
    state: State, rows: pa.Table, tick: Tick, p: ReleaseParameters, buckets: int
) -> tuple[dict[int, dict[str, pa.Table]], list[tuple[Any, ...]]]:
    after, out = {}, []
    for bucket in range(buckets):
        mine = rows.filter(pa.array(rows["key"].to_numpy() % buckets == bucket))
        before = ReleaseState(**state[bucket]) if bucket in state else None
        if before is not None:
            check_state(ReleaseStage(p), state[bucket])
        done = release(before, mine, [tick], p.for_bucket(bucket, buckets), NOISE_KEY)
        after[bucket] = done.state.tables()
        out += [tuple(row.values()) for row in done.rows.to_pylist()]
    return after, sorted(out)


@pytest.mark.parametrize("rule", list(ReleaseRule))
@pytest.mark.parametrize(("before", "after"), [(4, 3), (2, 1), (1, 5), (8, 4)])
def test_the_rows_do_not_depend_on_a_cut(before: int, after: int, rule: ReleaseRule) -> None:
    """Catches: tables that are not sorted after they were put together: then a group is not found and made anew, under the same noise."""
    plan = make_plan(query(epsilon=60.0, aggregates=(COUNT,), columns_in_order=("page", "views"), release=rule), source())
    bounding, p = bounding_parameters(plan), release_parameters(plan)
    first, second = visits(1, DAY), visits(2, DAY + HOUR)
    found = {}
    for buckets in ((after, after), (before, after)):
        users: State = {}
        groups: State = {}
        rows = []
        for number, (given, count) in enumerate(zip((first, second), buckets, strict=True)):
            if number and buckets[0] != buckets[1]:
                users, groups = recut(users, count, user_state.TABLES), recut(groups, count, group_state.TABLES)
            users, parts = bounded(users, given, bounding, count)
            contributions = pa.concat_tables(parts)
            contributions = contributions.append_column("batch", pa.array(np.full(len(contributions), number)))
            groups, out = released(groups, contributions, Tick(number, DAY + (number + 1) * HOUR), p, count)
            rows += out
        found[buckets] = rows
    assert len(found[after, after]) > 50
    assert found[before, after] == found[after, after]


def test_state_in_another_order_is_refused() -> None:
    plan = make_plan(query(aggregates=(COUNT,), columns_in_order=("page", "views")), source())
    users, parts = bounded({}, visits(1, DAY), bounding_parameters(plan), 1)
    rows = parts[0].append_column("batch", pa.array(np.zeros(len(parts[0]), np.int64)))
    groups, _ = released({}, rows, Tick(0, DAY + HOUR), release_parameters(plan), 1)
    admission, release_stage = stages(plan)
    with pytest.raises(ValueError, match="'users' of the state is not sorted"):
        check_state(admission, {"users": users[0]["users"][::-1]})
    twice = pa.concat_tables([groups[0]["groups"][:1], groups[0]["groups"]])
    for table in (groups[0]["groups"][::-1], twice):
        with pytest.raises(ValueError, match="'groups' of the state is not sorted"):
            check_state(release_stage, groups[0] | {"groups": table})
