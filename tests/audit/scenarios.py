"""What is audited: neighbouring streams, as a table of small frozen values. The two streams of a scenario differ in one user. A scenario
describes one trial; a run holds many trials side by side, each with users and keys of its own. Times are in trigger intervals since the
start of window 0, keys are numbered within the trial."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsql.mechanisms.histogram.plan import PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    Key,
    WindowSpec,
)
from dpsql.sources.config import Source
from tests.property.plans import parsed

EPSILON = 1.0
DELTA = 0.01
"""Large, so that samples can see delta. The limits on both belong to SQL: planner and accountant take any."""

INTERVAL = 1_000
"""Microseconds between triggers."""

ROWS = Aggregate("views", AggregateFunction.COUNT_ROWS)
USERS = Aggregate("visitors", AggregateFunction.COUNT_DISTINCT_UNIT)
SUM = Aggregate("time_spent", AggregateFunction.SUM, "seconds", (0.0, 60.0))
AVERAGE = Aggregate("mean_time", AggregateFunction.AVG, "seconds", (0.0, 60.0))
PATHS = 0.05
SELECTION = 0.95
"""Shares of mu^2 for key selection that leave nearly everything to what the scenario can observe."""


@dataclass(frozen=True)
class Visit:
    """One record: a key, an event time, the micro-batch it arrives in, and its value."""

    key: int
    at: float
    batch: int = 0
    value: float = 60.0


@dataclass(frozen=True)
class Crowd:
    """Other users of one key, as admission would sum them up: one record each, all at one trigger of one window. level: their weight as a
    multiple of that trigger's threshold; None: every one has this key as first key."""

    key: int = 0
    trigger: int = 1
    users: int = 1000
    level: float | None = 1e6
    window: int = 0


@dataclass(frozen=True)
class Scenario:
    """One pair of neighbouring streams under one plan.

    Args:
        query: fields of the ParsedQuery that differ from `base`; `triggers`, `size`, `slide` and `late` are in trigger intervals.
        mine: records of the user in question, more than the bounds allow.
        strangers: records that go through admission, each of another user.
        crowds: other users of the trial, added after admission.
        public: keys 0..public-1 are public groups.
        closed: closed times after each micro-batch but the last; empty: replay, nothing closes before everything has been read.
        periods: contribution periods that the records of the user in question are in.
    """

    name: str
    query: Mapping[str, Any]
    mine: tuple[Visit, ...]
    strangers: tuple[Visit, ...] = ()
    crowds: tuple[Crowd, ...] = ()
    public: int = 0
    closed: tuple[float, ...] = ()
    periods: int = 1


def visits(keys: int, each: int = 1, start: float = 0.0) -> tuple[Visit, ...]:
    """`each` records in every key, one after the other within one trigger interval."""
    return tuple(
        Visit(key, start + (key * each + i + 1) / 64) for key in range(keys) for i in range(each)
    )


def certain(keys: int, windows: tuple[int, ...] = (0,)) -> tuple[Crowd, ...]:
    """Crowds that bring every key over its threshold at the first trigger, beyond doubt."""
    return tuple(Crowd(key, window=window) for key in range(keys) for window in windows)


def plan_of(scenario: Scenario) -> PrivacyPlan:
    asked = dict(scenario.query)
    triggers = asked.pop("triggers", 8)
    rows = asked.pop("C", 4)
    size = asked.pop("size", triggers)
    slide = asked.pop("slide", triggers)
    late = asked.pop("late", 0)
    fields: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "privacy_unit": ("user_id",),
        "max_rows_contributed": rows,
    }
    fields |= {
        "max_rows_per_group": asked.pop("c", rows),
        "max_groups_contributed": asked.pop("G", rows),
    }
    fields |= {"contribution_period": ContributionPeriod.WINDOW, "event_time": "ts"}
    fields |= {
        "window": WindowSpec(size * INTERVAL, slide * INTERVAL, 0),
        "trigger_interval_us": INTERVAL,
    }
    fields |= {"allowed_lateness_us": late * INTERVAL, "max_ahead_us": INTERVAL}
    fields |= {"min_privacy_units_per_group": asked.pop("least", 1)}
    fields |= {
        "public_groups": "SELECT page FROM pages" if scenario.public else None,
        "release": ReleaseRule.EVERY_TRIGGER,
    }
    fields |= {
        "counter": CounterName.BLT,
        "keys": (Key("page", "page"),),
        "aggregates": (ROWS,),
        "from_sql": "FROM visits",
    }
    fields |= {"stream": "visits", "static_sources": (), "columns_in_order": ()}
    share = asked.pop("share", PATHS)
    decay = asked.pop("decay", 0.0)
    return make_plan(parsed(fields | asked), SOURCE, share, decay)


SOURCE = Source("visits", "parquet", max_users=1_000_000, max_keys=100_000)

RESELECT = {"release": ReleaseRule.RESELECT}
STREAM = {"contribution_period": ContributionPeriod.STREAM}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("C records in one key", {}, visits(1, 6), crowds=certain(1)),
    Scenario("the same, tree", {"counter": CounterName.HONAKER}, visits(1, 6), crowds=certain(1)),
    Scenario(
        "C records in C keys, c = 1", {"c": 1, "triggers": 4}, visits(5, 2), crowds=certain(5)
    ),
    Scenario("many records in one key, c = 1", {"c": 1}, visits(1, 6), crowds=certain(1)),
    Scenario("many records in one key, c = 2", {"c": 2}, visits(1, 6), crowds=certain(1)),
    Scenario(
        "C = 8, c = 4, G = 2",
        {"C": 8, "c": 4, "G": 2, "triggers": 4},
        visits(3, 5),
        crowds=certain(3),
    ),
    Scenario(
        "rows on the sum that chooses keys",
        {"c": 2, "G": 2, "triggers": 4, "decay": 0.5, "share": 0.7},
        visits(2, 3),
        crowds=certain(2),
    ),
    Scenario(
        "the same, keys at their thresholds",
        {"c": 2, "G": 2, "triggers": 2, "decay": 0.5, "share": 0.7},
        visits(2, 3),
        crowds=tuple(Crowd(key, 1, 10, 0.97) for key in range(2)),
    ),
    Scenario("C keys that nobody else has", {"c": 1, "triggers": 16, "share": 0.5}, visits(5, 2)),
    Scenario(
        "a key that others join later",
        {"C": 1, "share": SELECTION},
        visits(1, 2),
        crowds=(Crowd(0, 3, 10, 1.0),),
    ),
    Scenario(
        "a key at its threshold",
        {"C": 1, "triggers": 2, "share": SELECTION},
        visits(1, 2),
        crowds=(Crowd(0, 1, 10, 1.0),),
    ),
    Scenario(
        "C keys at their thresholds, decay 1/2",
        {"triggers": 2, "c": 1, "decay": 0.5, "share": SELECTION, "aggregates": (SUM,)},
        visits(5, 1),
        crowds=tuple(Crowd(key, 1, 10, 0.97) for key in range(5)),
    ),
    Scenario(
        "a key in each of C micro-batches, decay 1",
        {"triggers": 8, "C": 8, "c": 1, "decay": 1.0, "share": SELECTION, "aggregates": (SUM,)},
        tuple(Visit(key, key + 0.5, key) for key in range(8)),
        crowds=tuple(Crowd(key, key + 1, 10, 0.97) for key in range(8)),
        closed=(1, 2, 3, 4, 5, 6, 7),
    ),
    Scenario(
        "the last of 5 users",
        {"C": 1, "least": 5, "share": 0.5},
        visits(1, 2, 1.0),
        crowds=(Crowd(0, 1, 4, None),),
    ),
    Scenario(
        "three sliding windows",
        {"C": 2, "size": 3, "slide": 1},
        visits(1, 4),
        crowds=certain(1, (-2, -1, 0)),
    ),
    Scenario(
        "rounds, all selected",
        {"triggers": 4, **RESELECT},
        visits(1, 6),
        crowds=tuple(Crowd(0, i) for i in range(1, 5)),
    ),
    Scenario(
        "rounds at their thresholds",
        {"triggers": 4, "C": 2, "share": SELECTION, **RESELECT},
        tuple(Visit(0, i + 0.5) for i in range(4)),
        crowds=tuple(Crowd(0, i, 10, 0.97) for i in range(1, 5)),
    ),
    Scenario("public groups", {"c": 1, "triggers": 4}, visits(5, 2), crowds=certain(5), public=5),
    Scenario(
        "three windows of a STREAM period",
        {"C": 2, "triggers": 4, **STREAM},
        tuple(Visit(0, 4 * w + i / 8) for w in range(3) for i in (1, 2, 3)),
        crowds=certain(1, (0, 4, 8)),
    ),
    Scenario(
        "COUNT, COUNT(DISTINCT), SUM",
        {"C": 1, "aggregates": (ROWS, USERS, SUM)},
        visits(1, 2),
        crowds=certain(1),
    ),
    Scenario(
        "AVG", {"C": 1, "triggers": 4, "aggregates": (AVERAGE,)}, visits(1, 2), crowds=certain(1)
    ),
    Scenario(
        "late records, three micro-batches",
        {"late": 3},
        (
            Visit(0, 0.2),
            Visit(0, 0.3, 1),
            Visit(0, 0.4, 1),
            Visit(0, 0.5, 1),
            Visit(0, 0.6, 2),
            Visit(0, 0.7, 2),
        ),
        crowds=certain(1),
        closed=(2, 4),
    ),
    Scenario(
        "a record far in the future",
        {"C": 1},
        (Visit(1, 5.5),),
        strangers=(*(Visit(0, 0.5, 1),) * 3,),
        crowds=certain(1),
        closed=(0,),
    ),
    Scenario(
        "two periods that meet in sliding windows",
        {"C": 1, "size": 4, "slide": 1, "late": 4, "triggers": 4},
        tuple(Visit(0, at, 1) for at in (3.9, 3.95, 4.0, 4.1)),
        crowds=certain(1, (0, 1, 2, 3, 4)),
        public=1,
        closed=(4,),
        periods=2,
    ),
)
