"""Quantiles of a table: the tree's estimates against dense least squares, the release against plain lists, and the budget."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.errors import AccountingError, ConfigError
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.plan import QuantileSum, TablePlan
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.mechanisms.dynamic.stages import stages, table_parameters
from dpsql.udfs.contributions import Increment
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure import quantiles
from dpsql.udfs.measure.quantiles import BRANCHES, FAN_OUT, LEAVES, NODES, TWIGS, WHOLE
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.randomness import normals, tags
from dpsql.udfs.stage import Clock, Tick
from tests.mechanisms.dynamic.plans import DECILES, FEED, START, query, source
from tests.property.plans import COUNT, HOUR

NOISE_KEY = bytes(range(32))
ONE = PublicGroups((7,), (b"",), START)


def strategy() -> np.ndarray:
    """Node by leaf: what each node counts."""
    leaf = np.arange(LEAVES)
    levels = [
        leaf[None, :] // width == np.arange(LEAVES // width)[:, None]
        for width in (1, FAN_OUT, FAN_OUT**2)
    ]
    return np.concatenate(levels).astype(float)


def test_estimates_are_least_squares() -> None:
    """Of what was measured no vector of leaves is nearer; residuals are orthogonal to every column of the strategy."""
    noisy = np.random.default_rng(1).integers(-300, 900, (2, NODES))
    found = np.diff(quantiles.cumulated(noisy), axis=1, prepend=0) / WHOLE
    w = strategy()
    assert np.abs(w.T @ (noisy - found @ w.T).T).max() < 1e-6
    assert (
        quantiles.cumulated(quantiles.nodes(noisy[:, :LEAVES])).tolist()
        == (np.cumsum(noisy[:, :LEAVES], axis=1) * WHOLE).tolist()
    )


def test_the_error_of_a_rank_is_what_noise_does() -> None:
    """By what each node's noise does to the estimates, not by their parts."""
    squares = []
    for low in range(0, NODES, 546):  # what a count of one in each node does to the estimates
        squares.append(
            quantiles.cumulated(np.eye(min(546, NODES - low), NODES, low, dtype=np.int64)) / WHOLE
        )
    effect = np.concatenate(squares)

    def variance(place: int, share: float) -> float:
        return float(((effect[:, place - 1] - share * effect[:, -1]) ** 2).sum())

    for place, parts, which in (
        (1, 4, 1),
        (700, 10, 3),
        (2048, 2, 1),
        (4001, 100, 99),
        (4096, 2, 1),
    ):
        share = which / parts
        assert quantiles._variance(np.array([place]), np.array([share]))[0] == pytest.approx(
            variance(place, share), rel=1e-9
        )
    sums = np.full((1, LEAVES), 500 * WHOLE)
    places = np.array([[100, 2048, 4000]])
    worst = max(variance(m, s) for m, s in zip(places[0], (0.25, 0.5, 0.75), strict=True))
    assert quantiles.rank_error(places, sums, 3.0)[0] == pytest.approx(
        3 * math.sqrt(worst) / 500, rel=1e-9
    )


def test_values_are_the_edges_that_shares_reach() -> None:
    """Without noise: after how many leaves the k-th part of the rows lies; fewer than one row have no quantiles."""
    counts = np.zeros((3, LEAVES), np.int64)
    counts[0, [9, 99, 999, 1999]] = 1, 1, 1, 1
    counts[1, 5] = 10
    sums = quantiles.cumulated(quantiles.nodes(counts))
    place = quantiles.places(sums, 4)
    assert place[:2].tolist() == [[10, 100, 1000], [6, 6, 6]]
    values = quantiles.values(place, sums, 0.0, 4096.0)
    assert values[:2].tolist() == [[0, 10, 100, 1000, 4096], [0, 6, 6, 6, 4096]]
    assert np.isnan(values[2]).all() and np.isnan(quantiles.rank_error(place, sums, 1.0)[2])


def test_a_value_on_an_edge_belongs_to_the_leaf_below() -> None:
    rule = Increment("leaf", 0, 60 / LEAVES, 1, LEAVES, 0.0)
    given = [0.0, -math.inf, -5.0, 60.0, 61.0, math.inf, math.nan, 60 / LEAVES * 17, 1e-300]
    assert rule.increments(pa.table({"a0": given})).tolist() == [
        1,
        1,
        1,
        LEAVES,
        LEAVES,
        LEAVES,
        0,
        17,
        1,
    ]


def plan(**changes_: Any) -> TablePlan:
    return make_plan(
        query(**{"keys": (), "aggregates": (COUNT, DECILES), "epsilon": 60.0} | changes_), source()
    )


def images(rows: list[tuple[int, int, int, float, int]]) -> pa.Table:
    """(unit, row, kind, value, hour)."""
    if not rows:
        return images([(0, 0, 1, 0.0, 0)]).slice(0, 0)
    user, row, kind, value, hour = zip(*rows, strict=True)
    ts = np.array(hour) * HOUR + START + 1
    ints = {"user": user, "row": row, "seq": ts, "ts": ts, "key": [7] * len(rows)}
    table = {name: pa.array(list(column), pa.int64()) for name, column in ints.items()}
    table |= {"drop": pa.array([0] * len(rows), pa.int8()), "kind": pa.array(list(kind), pa.int8())}
    return pa.table(
        table
        | {"key_bytes": pa.array([b""] * len(rows)), "a0": pa.array(list(value), pa.float64())}
    )


def feed() -> list[tuple[int, int, int, float, int]]:
    """40 units, C = 4: rows come, end, and come again with other values."""
    chance = np.random.default_rng(4)
    out = [
        (unit, row, 1, float(chance.integers(0, 61)), 0) for unit in range(40) for row in range(2)
    ]
    out += [(unit, 0, -1, value, 2) for unit, row, _, value, _ in out if row == 0 and unit % 2]
    return out + [(unit, 5, 1, float(chance.integers(30, 61)), 4) for unit in range(40)]


def there(given: list[tuple[int, int, int, float, int]], trigger: int) -> np.ndarray:
    """Leaves of what is in the table, as a plain list has it."""
    live: dict[tuple[int, int], float] = {}
    for unit, row, kind, value, hour in given:
        if hour < trigger:
            live = (
                live | {(unit, row): value}
                if kind == 1
                else {k: v for k, v in live.items() if k != (unit, row)}
            )
    places = [min(max(math.ceil(value / (60 / LEAVES)), 1), LEAVES) - 1 for value in live.values()]
    return np.bincount(places, minlength=LEAVES)


def released(chosen: TablePlan, cuts: tuple[int, ...] = (6,)) -> list[dict[str, Any]]:
    """The rows of both stages, ticks at these hours."""
    intake, release = stages(chosen, ONE)
    state = intake.empty()
    tables = release.empty()
    rows = list[dict[str, Any]]()
    before = 0
    for batch, until in enumerate(cuts):
        given = [row for row in feed() if before <= row[4] < until]
        done = intake.step(
            state, images(given), Clock(START + before * HOUR, START + 99 * HOUR), b""
        )
        state = done.state
        found = done.rows.append_column("batch", pa.array(np.full(done.rows.num_rows, batch)))
        stepped = release.step(tables, found, [Tick(batch, START + until * HOUR)], NOISE_KEY)
        tables = stepped.state
        before = until
        rows += stepped.rows.to_pylist()
    return rows


def expected(chosen: TablePlan, last: int) -> list[list[float]]:
    """Exact counts of nodes plus the path of each, by the power series of B; then the same post-processing."""
    (tree,) = chosen.trees
    tag = np.repeat(tags(NOISE_KEY, np.zeros(1, np.int64), np.array([7])), NODES, axis=0)
    draws = np.array(
        [
            normals(NOISE_KEY, tag, tree.noise_stream, np.arange(NODES), step)
            for step in range(1, last + 1)
        ]
    )
    out = []
    for trigger in range(1, last + 1):
        path = BltInf().response(np.arange(trigger - 1, -1, -1)) @ draws[:trigger]
        sums = quantiles.cumulated(
            (quantiles.nodes(there(feed(), trigger)[None]) + np.rint(path * tree.sigma)).astype(
                np.int64
            )
        )
        out.append(
            quantiles.values(quantiles.places(sums, tree.parts), sums, 0.0, 60.0)[0].tolist()
        )
    return out


@pytest.mark.parametrize("cuts", [(6,), (1, 3, 6), (2, 5, 6)])
def test_the_release_is_plain_counts_and_the_stated_noise(cuts: tuple[int, ...]) -> None:
    chosen = plan(feed=FEED)
    found = [[row[f"c1_{k}"] for k in range(11)] for row in released(chosen, cuts)]
    assert np.array_equal(found, expected(chosen, 6), equal_nan=True)


@pytest.mark.parametrize("changed", [{}, {"feed": FEED}, {"max_triggers": 50}])
def test_the_budget_is_kept_and_little_is_wasted(changed: dict[str, Any]) -> None:
    chosen = plan(**changed, epsilon=2.0, max_rows_contributed=9, max_rows_per_group=3)
    assert 0.999 * chosen.mu**2 < account(chosen, source()).mu2 <= chosen.mu**2 * (1 + 1e-9)


@pytest.mark.parametrize("changed", [{"levels": 2}, {"fan_out": 64}, {"upper": 256}])
def test_a_number_that_is_too_small_is_refused(changed: dict[str, Any]) -> None:
    """Also noise for one level, though a record counts in three."""
    chosen = plan(feed=FEED)
    count, column = chosen.columns
    (tree,) = column.perturbations
    assert isinstance(tree, QuantileSum)
    other = dataclasses.replace(column, perturbations=(dataclasses.replace(tree, **changed),))
    with pytest.raises(AccountingError):
        account(dataclasses.replace(chosen, columns=(count, other)), source())


def shift(chosen: TablePlan, given: list[tuple[int, int, int, float, int]]) -> float:
    """Squared length of what one unit's images add to C times the increments of all nodes, by the real intake and a power series."""
    intake, _ = stages(chosen, ONE)
    last = 600 + max(row[4] for row in given)
    increments = np.zeros((last, LEAVES), np.int64)
    done = intake.step(intake.empty(), images(given), Clock(START, START + 9_999 * HOUR), b"")
    for row in done.rows.to_pylist():
        if row["leaf"]:
            increments[row["trigger"] - 1, row["leaf"] - 1] += row["v1"]
    lags = np.arange(last)
    omega = np.array(BltInf().omega)
    theta = np.array(BltInf().theta)
    column = np.where(lags == 0, 1.0, (omega * theta ** (lags[:, None] - 1.0)).sum(axis=1))
    c = np.tril(column[np.abs(lags[:, None] - lags)])
    by_node = quantiles.nodes(increments)
    return float(((c @ by_node[:, by_node.any(axis=0)]) ** 2).sum())


def test_no_unit_moves_the_trees_by_more_than_is_charged() -> None:
    """Searched: rows of one unit that come and go together, in one leaf, or alone; the worst attains most of it, and no level may be left out."""
    chosen = plan(feed=FEED, max_rows_contributed=8, max_rows_per_group=2)
    (tree,) = chosen.trees
    worst = 0.0
    for gap, apart, same in itertools.product((1, 200), (1, 50), (True, False)):
        rows: list[tuple[int, int, int, float, int]] = []
        for turn in range(4):
            value = 30.0 if same else 15.0 * turn
            hours = turn * (gap + apart), turn * (gap + apart) + gap
            rows += [
                (1, 2 * turn + twin, kind, value, hours[kind < 0])
                for twin in (0, 1)
                for kind in (1, -1)
            ]
        worst = max(worst, shift(chosen, rows))
    assert worst <= tree.sensitivity**2
    assert worst > tree.sensitivity**2 * 2 / 3, "two levels' worth would be too little"


def test_parameters_that_could_overflow_are_refused() -> None:
    with pytest.raises(ConfigError, match="overflow"):
        plan(epsilon=1e-5, max_rows_contributed=10_000, max_rows_per_group=10_000)


def test_the_projection_is_near_what_is_true() -> None:
    """Theorem 27: of n rows of X kinds and a workload of noisy counts, the nearest table of n rows; and a radius that is too small is found."""
    chance = np.random.default_rng(2)
    w = strategy()[LEAVES:, :: LEAVES // 64]
    n = 400
    s = 25.0
    beta = 0.05
    far = 0
    for _ in range(20):
        x = chance.multinomial(n, np.ones(64) / 64)
        y = w @ x + s * chance.normal(size=len(w))
        guess = np.full(64, n / 64)
        for step in range(400):
            corner = np.zeros(64)
            corner[np.argmin(w.T @ (w @ guess - y))] = n
            guess += 2 / (step + 2) * (corner - guess)
        bound = (
            2 * n * s * math.sqrt((w**2).sum(axis=0).max()) * math.sqrt(2 * math.log(2 * 64 / beta))
        )
        moved = float(((w @ guess - w @ x) ** 2).sum())
        assert moved <= bound
        far += moved > bound / 1000
    assert far == 20


def test_counters_do_not_share_words() -> None:
    """Node n of mechanism m has cell (m, round n): of plain sums, and of other columns, no cell is one of these."""
    p = table_parameters(
        plan(aggregates=(COUNT, DECILES, dataclasses.replace(DECILES, alias="again", parts=4))), ONE
    )
    assert [q.mechanism for q in p.perturbations] == [1] and [q.mechanism for q in p.quantiles] == [
        2,
        3,
    ]
    assert (BRANCHES + TWIGS + LEAVES) == NODES < 2**32
