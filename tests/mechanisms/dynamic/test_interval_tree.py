"""The interval tree: counts of the bounded table where its noise is next to none, the stated noise elsewhere, and its cost."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.plan import TreePlan
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.mechanisms.dynamic.stages import stages
from dpsql.udfs.columns import Int
from dpsql.udfs.dynamic.interval_tree import TreeParameters, TreeSum, grow, nodes_at
from dpsql.udfs.intake import changes
from dpsql.udfs.intake.changes import level_before
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.paths import Paths
from dpsql.udfs.stage import BEGIN, END, Clock, Tick
from tests.mechanisms.dynamic.plans import FEED, START, query, source
from tests.property.plans import COUNT, HOUR, SUM
from tests.statistical.sampling import has_sd

KEY = bytes(range(32))
LISTED = PublicGroups((3, 5), (b"a", b"b"), START)
LAST = 75


def plan(**given: Any) -> TreePlan:
    made = make_plan(
        query(
            **{
                "public_groups": "SELECT page FROM pages",
                "aggregates": (COUNT, SUM),
                "feed": FEED,
                "tree": True,
            }
            | given
        ),
        source(),
    )
    assert isinstance(made, TreePlan)
    return made


def feed(rows: list[tuple[int, int, int, int, int]]) -> pa.Table:
    """Images (trigger, unit, row, key, BEGIN or END)."""
    at, user, row, key, kind = np.array(rows, np.int64).T
    table = {
        "drop": np.zeros(len(at), np.int8),
        "user": user,
        "row": row,
        "seq": at,
        "ts": START + (at - 1) * HOUR + 1,
        "key": key,
    }
    table |= {
        "kind": kind.astype(np.int8),
        "key_bytes": [LISTED.key_bytes[LISTED.keys.index(k)] for k in key.tolist()],
        "a0": row * 1.0,
    }
    return pa.table(table)


def added(rows: list[tuple[int, int, int, int, int]], cuts: tuple[int, ...] = ()) -> pa.Table:
    """What the intake makes of images, in micro-batches that each see triggers up to their own closed."""
    intake = stages(plan(max_rows_contributed=8), LISTED)[0]
    out = []
    state = intake.empty()
    edges = (0, *cuts, LAST + 1)
    for low, high in itertools.pairwise(edges):
        mine = [row for row in rows if low < row[0] <= high]
        if mine:
            done = intake.step(
                state,
                feed(mine).select(intake.takes.names),
                Clock(START + low * HOUR, START + 2 * LAST * HOUR),
                b"",
            )
            state = done.state
            out.append(
                done.rows.append_column("batch", pa.array(np.zeros(done.rows.num_rows, np.int64)))
            )
    return pa.concat_tables(out)


def silent(sums: int = 2) -> TreeParameters:
    """Next to no noise."""
    release = stages(plan(), LISTED)[1]
    tiny = tuple(
        TreeSum(j + 1, 1e-12, 1e-12, q.grid) for j, q in enumerate(release.parameters.sums[:sums])
    )
    return dataclasses.replace(release.parameters, size=1e-9, gone=1e-9, sums=tiny)


def counts(contributions: pa.Table) -> dict[tuple[int, bytes], int]:
    """Rows that are there, by plain addition."""
    found: dict[tuple[int, bytes], int] = {}
    for name in LISTED.key_bytes:
        mine = [row for row in contributions.to_pylist() if row["key_bytes"] == name]
        found |= {
            (trigger, name): sum(row["v1"] for row in mine if row["trigger"] <= trigger)
            for trigger in range(1, LAST + 1)
        }
    return found


def told(contributions: pa.Table, p: TreeParameters) -> dict[tuple[int, bytes], int]:
    rows = grow(None, contributions, [Tick(0, START + LAST * HOUR)], p, KEY).rows
    return {(row["trigger"], row["key_bytes"]): row["c0"] for row in rows.to_pylist()}


def random_feed(seed: int) -> list[tuple[int, int, int, int, int]]:
    """Rows of many units; half of them end, at once or much later."""
    pick = np.random.default_rng(seed)
    rows = []
    for row in range(300):
        begin = int(pick.integers(1, LAST))
        key = (3, 5)[row % 2]
        rows.append((begin, row, row, key, BEGIN))
        if pick.random() < 0.6:
            rows.append((begin + int(pick.integers(0, 30)), row, row, key, END))
    return sorted(rows)


def test_the_same_item_twice() -> None:
    """Rows of one value begin at triggers 1 and 5, one of the two ends at 7. Algorithm 3 as printed answers 0 then: it takes the value out of
    both nodes that have it."""
    found = told(added([(1, 1, 1, 3, BEGIN), (5, 2, 1, 3, BEGIN), (7, 1, 1, 3, END)]), silent())
    assert [found[trigger, b"a"] for trigger in range(1, 9)] == [1, 1, 1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("cuts", [(), (7, 20, 21, 60)])
def test_without_noise_it_counts_what_is_there(cuts: tuple[int, ...]) -> None:
    """Many rounds end here. Catches: a node that is kept too long or forgotten, an end that is taken from another node, a round that forgets."""
    contributions = added(random_feed(1), cuts)
    assert told(contributions, silent()) == counts(contributions)


def test_an_error_is_told_only_where_a_node_answers() -> None:
    """Catches: 0 with an error of 0, in words "certainly nothing", where nodes are too small for their noise and nobody knows."""
    many = [(2, row, row, 3, BEGIN) for row in range(40)]
    p = dataclasses.replace(silent(), gone=0.1)
    rows = grow(None, added(many), [Tick(0, START + 8 * HOUR)], p, KEY).rows.to_pylist()
    assert len(rows) == 16
    for row in rows:
        answers = row["key_bytes"] == b"a" and row["trigger"] > 1
        assert (row["c0"], math.isnan(row["s0"]), math.isnan(row["s1"])) == (
            40 * answers,
            not answers,
            not answers,
        )


NODES = {
    "of no node": lambda begin, trigger: np.zeros(len(begin), np.int64),
    "of the next node": lambda begin, trigger: level_before(begin, trigger) + (begin < trigger),
}


@pytest.mark.parametrize("planted", NODES)
def test_an_end_in_the_wrong_node_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "level_before", NODES[planted])
    contributions = added(random_feed(1))
    assert told(contributions, silent()) != counts(contributions)


def test_levels_are_those_of_the_node_with_the_row() -> None:
    for trigger in range(2, 70):
        nodes = nodes_at(trigger - 1)
        begins = np.arange(1, trigger)
        expected = [
            next(level for level, node in nodes if node - (1 << level - 1) < begin <= node)
            for begin in begins.tolist()
        ]
        assert level_before(begins, np.full(len(begins), trigger)).tolist() == expected
    assert level_before(np.array([4]), np.array([4])).tolist() == [0]


def formula(mu: float, trigger: int, sums: int) -> float:
    """Standard deviation of a count where no round has ended: shares 6 / (pi l)^2 of a level, 6 / pi^2 of round 1, 3/8 twice; one version."""
    z = 6 / math.pi**2
    f2 = BltInf().squared_norm()
    variance = 0.0
    for level, node in nodes_at(trigger):
        mu2 = z / level**2 * mu**2 * z * 3 / 8 / sums
        variance += (
            1 + (f2 * BltInf().path_variance(trigger - node) if trigger > node else 0)
        ) / mu2
    return math.sqrt(variance)


def test_the_figures_are_those_of_the_formula() -> None:
    """1,031 at trigger 1,023 and epsilon 1, for one version of one unit."""
    made = plan(epsilon=1.0, max_rows_contributed=1, aggregates=(COUNT,))
    q = TreeSum(1, made.perturbations[0].sigma, made.removed[0], 1.0)
    for trigger in (1, 7, 100, 1023, 8760):
        assert q.stderr(trigger) == pytest.approx(formula(made.mu, trigger, 1), rel=1e-3)
    assert q.stderr(1023) == pytest.approx(1031, rel=0.01)


KEYS = 2_000
UNTIL = 13


def large(gone_at: int | None = None) -> pa.Table:
    """A million rows of each key begin at each trigger; nearly all that there are end at one."""
    keys = np.arange(KEYS)
    out = []
    for trigger in range(1, UNTIL + 1):
        size = 0 if gone_at is not None and trigger >= gone_at else 1_000_000
        parts = [(0, size)] + [
            (level, -900_000 * (node & -node))
            for level, node in nodes_at(trigger - 1)
            if trigger == gone_at
        ]
        for level, rows in parts:
            table = {
                "window": START + 0 * keys,
                "trigger": trigger + 0 * keys,
                "key": keys,
                "weight": 0 * keys,
                "users": 0 * keys,
            }
            values = {
                "v0": rows + 0 * keys,
                "v1": rows + 0 * keys,
                "level": level + 0 * keys,
                "batch": 0 * keys,
            }
            out.append(pa.table(table | {"key_bytes": [b"%05d" % key for key in keys]} | values))
    return pa.concat_tables(out)


def noisy(contributions: pa.Table) -> tuple[TreePlan, np.ndarray, np.ndarray]:
    """Plan, values[trigger, key] and their stated errors."""
    made = plan(max_rows_contributed=1, aggregates=(COUNT,))
    public = PublicGroups(tuple(range(KEYS)), tuple(b"%05d" % key for key in range(KEYS)), START)
    release = stages(made, public)[1]
    rows = grow(None, contributions, [Tick(0, START + UNTIL * HOUR)], release.parameters, KEY).rows
    return made, *(
        rows[name].to_numpy().reshape(UNTIL, KEYS).astype(np.float64) for name in ("c0", "s0")
    )


def test_noise_is_as_large_as_the_formula_says() -> None:
    """Within 5%. Catches: a level's or round's share left out, noise of a node drawn anew at each trigger (then a tenth is missing)."""
    made, values, errors = noisy(large())
    for trigger in (1, 7, 8, 12, 13):
        noise = values[trigger - 1] - 1_000_000 * trigger
        assert np.std(noise) == pytest.approx(formula(made.mu, trigger, 1), rel=0.05)
        assert has_sd(noise, float(errors[trigger - 1][0]))
        assert not has_sd(noise * 0.85, float(errors[trigger - 1][0]))


def test_a_second_round_has_twice_the_noise() -> None:
    """At trigger 11 nearly all rows of nodes 8 and 10 have ended."""
    made, values, errors = noisy(large(gone_at=11))
    z = 6 / math.pi**2
    expected = math.sqrt(
        sum((2 * level) ** 2 for level, node in nodes_at(10)) / (z * made.mu**2 * z * 3 / 8)
    )
    noise = values[10] - 1_000_000
    assert np.std(noise) == pytest.approx(expected, rel=0.05)
    assert has_sd(noise, float(errors[10][0]))


def test_no_word_is_used_twice() -> None:
    """Nodes and rounds have cells of their own: what two of them release is independent."""
    _, values, _ = noisy(large())
    noise = values - 1_000_000 * np.arange(1, UNTIL + 1)[:, None]
    # Triggers 4 and 8 have one node each, and no other in common.
    assert abs(np.corrcoef(noise[3], noise[7])[0, 1]) < 5 / math.sqrt(KEYS)
    assert np.corrcoef(noise[7], noise[8])[0, 1] > 0.5
    # At trigger 11 both nodes of trigger 10 begin a second round.
    _, values, _ = noisy(large(gone_at=11))
    assert abs(np.corrcoef(values[9], values[10])[0, 1]) < 5 / math.sqrt(KEYS)


def test_when_a_round_ends_is_a_function_of_noisy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 28: a round's end is seen, so nothing exact may decide it. Fewer rows that have gone, and as much more noise on their count: the
    same keys begin a round at each trigger."""
    keys = np.arange(300)
    fewer = 70
    first = 8
    public = PublicGroups(tuple(keys.tolist()), tuple(b"%05d" % key for key in keys), START)
    p = dataclasses.replace(silent(), public=public, gone=10.0, size=5.0)

    def begun(less: int) -> list[np.ndarray]:
        """Of every trigger after the first 8, whether node 8 is in a later round; it has 4,000 rows, and 425 of them go at a time."""
        state = None
        out = []
        for trigger in range(1, 16):
            level, rows = (0, 500) if trigger <= first else (4, less * (trigger == first + 1) - 425)
            columns = {
                "window": START,
                "trigger": trigger,
                "level": level,
                **dict.fromkeys(("weight", "users", "batch"), 0),
            }
            columns |= dict.fromkeys(("v0", "v1", "v2"), rows)
            table = pa.table(
                {name: np.full(len(keys), value) for name, value in columns.items()} | {"key": keys}
            )
            state = grow(state, table, [Tick(0, START + trigger * HOUR)], p, KEY).state
            if trigger > first:
                out.append(
                    state.nodes.filter(pc.equal(state.nodes["level"], 4))["round"].to_numpy() > 1
                )
        return out

    as_it_is = begun(0)
    reached = Paths.reaches
    assert any(0.1 < some.mean() < 0.9 for some in as_it_is)

    def louder(
        self: Paths, state: Any, groups: Int, trigger: int, sigma: float, margin: Any
    ) -> Any:
        return reached(self, state, groups, trigger, sigma, margin - fewer * (sigma == p.gone * 4))

    monkeypatch.setattr(Paths, "reaches", louder)
    assert np.array_equal(begun(fewer), as_it_is)


def test_the_budget_is_kept_and_little_is_wasted() -> None:
    for given in ({}, {"epsilon": 1.0, "max_rows_contributed": 9}, {"aggregates": (COUNT,)}):
        made = plan(**given)
        assert 0.97 * made.mu <= account(made, source()).mu <= made.mu * (1 + 1e-9)


@pytest.mark.parametrize("name", ["size", "gone", "removed"])
def test_a_number_that_is_too_small_is_refused(name: str) -> None:
    made = plan()
    less = (
        (made.removed[0], made.removed[1] * 0.999)
        if name == "removed"
        else getattr(made, name) * 0.99
    )
    with pytest.raises(AccountingError):
        account(dataclasses.replace(made, **{name: less}), source())


def test_state_is_a_node_per_binary_digit() -> None:
    contributions = added(random_feed(2))
    state = grow(None, contributions, [Tick(0, START + 63 * HOUR)], silent(), KEY).state
    assert state.nodes.num_rows == 2 * 6
    state = grow(
        state, contributions.slice(0, 0), [Tick(1, START + 64 * HOUR)], silent(), KEY
    ).state
    assert state.nodes.num_rows == 2
