"""All marginals of 3 of 8 binary keys of a table whose rows end, at its last trigger: what is released, what `ask` makes of it, and what others would.

    python benchmarks/papers/dynamic_marginals.py [triggers [noise keys]]

epsilon = 1, delta = 1e-9, one row is protected: 448 counters. About 10,000 rows are there at a time, each for 50 triggers on average, and 1,023
triggers. Both steps of the plan run from the first row to the last; the release does so for one noise key. For the others only its noise is drawn, and
only at the last trigger, beside the same exact sums; a question of each table is asked. Not ours: the fit to noise of all triggers anew, with the whole
budget over them; an interval tree with Gaussian noise, a part of the budget for each level, each node fitted, none ever begun anew. Both keep less
than they would have to promise.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from dpsql.mechanisms.marginals.accounting import account  # noqa: E402
from dpsql.mechanisms.marginals.plan import MarginalsPlan  # noqa: E402
from dpsql.mechanisms.marginals.planner import make_plan  # noqa: E402
from dpsql.mechanisms.marginals.stages import domains, intake, release  # noqa: E402
from dpsql.text import Z95  # noqa: E402
from dpsql.udfs.columns import Int, mix  # noqa: E402
from dpsql.udfs.keys import encode  # noqa: E402
from dpsql.udfs.marginals.estimates import LeastSquares  # noqa: E402
from dpsql.udfs.marginals.synthetic import fit, marginal  # noqa: E402
from dpsql.udfs.noise.paths import Paths  # noqa: E402
from dpsql.udfs.noise.randomness import tags  # noqa: E402
from dpsql.udfs.stage import BEGIN, END, Clock, Tick  # noqa: E402
from tests.mechanisms.dynamic.plans import FEED  # noqa: E402
from tests.mechanisms.marginals.dense import split  # noqa: E402
from tests.mechanisms.marginals.plans import START, numbered, query, source  # noqa: E402
from tests.property.plans import HOUR  # noqa: E402

KEYS = 8
TABLES = tuple(itertools.combinations(range(KEYS), 3))
ROWS = 10_000
LIFE = 50
SEED = 1
RUNS = 5
"""Noise keys with which tables are fitted."""
BATCH = 100
"""Triggers of a micro-batch."""
NAMES = pa.array(
    [encode([b"%d" % value for value in cell]) for cell in np.ndindex(*[2] * KEYS)], pa.binary()
)


def plan_of() -> MarginalsPlan:
    """The plan, accounted."""
    asked = query(
        feed=FEED,
        domains=(numbered(2, False),) * KEYS,
        grouping_sets=TABLES,
        max_triggers=None,
        trigger_interval_us=HOUR,
        delta=1e-9,
    )
    declared = source(max_users=10**6)
    plan = make_plan(asked, declared)
    account(plan, declared)
    return plan


def rows_of(triggers: int, chance: np.random.Generator) -> tuple[Int, Int, Int]:
    """Of rows the triggers at which they begin and end, and their cells: of three kinds of rows, each with its shares."""
    begin = np.repeat(
        np.arange(1, triggers + 1),
        chance.poisson(ROWS / LIFE, triggers) + ROWS * (np.arange(triggers) == 0),
    )
    kind = chance.choice(3, len(begin), p=chance.dirichlet(np.ones(3)))
    shares = chance.random((3, KEYS)) * 0.8 + 0.1
    cell = (chance.random((len(begin), KEYS)) < shares[kind]) @ (1 << np.arange(KEYS)[::-1])
    return begin, begin + chance.geometric(1 / LIFE, len(begin)), cell


def images(begin: Int, end: Int, cell: Int, triggers: tuple[int, int]) -> pa.Table:
    """What comes between two triggers."""
    number = np.tile(np.arange(len(begin)), 2)
    trigger = np.concatenate([begin, end])
    is_now = (trigger > triggers[0]) & (trigger <= triggers[1])
    number = number[is_now]
    trigger = trigger[is_now]
    kind = np.repeat(np.array([BEGIN, END], np.int8), len(begin))[is_now]
    columns = {"drop": np.zeros(len(number), np.int8), "user": mix(number).view(np.int64)}
    columns |= {"row": number, "seq": trigger, "ts": START + (trigger - 1) * HOUR + 1}
    columns |= {"key": np.zeros(len(number), np.int64), "kind": kind}
    return pa.table(columns | {"key_bytes": NAMES.take(pa.array(cell[number]))})


def run(
    plan: MarginalsPlan, rows: tuple[Int, Int, Int], triggers: int, noise_key: bytes
) -> np.ndarray:
    """The cells of the last trigger, through both steps from the first one on."""
    admits = intake(plan)
    releases = release(plan)
    state = admits.empty()
    kept = releases.empty()
    for first in range(0, triggers, BATCH):
        last = min(first + BATCH, triggers)
        feed = images(*rows, (first, last)).select(admits.takes.names)
        end = START + last * HOUR
        admitted = admits.step(state, feed, Clock(START + first * HOUR, end), noise_key)
        added = admitted.rows.append_column(
            "batch", pa.array(np.zeros(admitted.rows.num_rows, np.int64))
        )
        released = releases.step(kept, added, [Tick(0, end)], noise_key)
        state = admitted.state
        kept = released.state
        if admitted.counted["drops"]:
            raise AssertionError(f"rows do not count: {admitted.counted['drops']}")
    table = released.rows
    table = table.filter(pa.array(table["trigger"].to_numpy() == triggers))
    names = domains(plan).names(plan.marginals, np.arange(plan.marginals.first[-1]))
    number = {name: i for i, name in enumerate(names.to_pylist())}
    cells = np.zeros(len(number), np.int64)
    cells[[number[name] for name in table["key_bytes"].to_pylist()]] = table["c0"].to_numpy()
    return cells


def noise(plan: MarginalsPlan, trigger: int, noise_key: bytes) -> Int:
    """That of all cells at a trigger."""
    p = plan.noisy_tables(plan.sums[0])
    cells = np.arange(p.marginals.first[-1])
    path = Paths(p.counter, p.mechanism, noise_key, tags(noise_key, 0 * cells, cells))
    states = np.zeros((len(cells), p.counter.width))
    path.follow(states, 0 * cells, cells, trigger)
    return path.rounded(states, cells, trigger, p.sigmas[0] / p.grid)


def answers(weights: np.ndarray) -> np.ndarray:
    """Of a table of weights."""
    return np.concatenate([marginal(weights, keys).ravel() for keys in TABLES])


def fitted(plan: MarginalsPlan, cells: np.ndarray, variance: float) -> np.ndarray:
    """What `ask --synthetic` draws from, asked."""
    known = LeastSquares((2,) * KEYS, TABLES, (variance,) * len(TABLES))
    return answers(fit(known, split(plan.marginals, cells)).weights)


def rms(apart: np.ndarray) -> float:
    return math.sqrt(np.mean(apart**2))


def asked(plan: MarginalsPlan, cells: Int, known: LeastSquares, exact: Int) -> np.ndarray:
    """Errors of the answers by least squares over those stated; one cell of each table."""
    tables = split(plan.marginals, cells)
    out = []
    for place, keys in enumerate(TABLES):
        values = [place >> bit & 1 for bit in range(3)]
        predicate = {key: np.eye(2)[value] for key, value in zip(keys, values, strict=True)}
        answer = known.estimate(predicate, tables)
        true = exact[8 * place + 4 * values[0] + 2 * values[1] + values[2]]
        out.append((answer.value - true) / answer.stderr)
    return np.array(out)


def by_tree(
    plan: MarginalsPlan, rows: tuple[Int, Int, Int], trigger: int, chance: np.random.Generator
) -> np.ndarray:
    """The answers of an interval tree: of each node that is needed its rows as they were when it was made, less those that ended since, by dyadic
    ranges of triggers."""
    begin, end, cell = rows
    levels = trigger.bit_length()
    sd = math.sqrt(2 * len(TABLES) * (levels + 1)) / plan.mu

    def told(which: np.ndarray, more: float) -> np.ndarray:
        exact = answers(np.bincount(cell[which], minlength=2**KEYS).reshape((2,) * KEYS))
        deviation = sd * math.sqrt(more)
        return fitted(plan, exact + chance.normal(0, deviation, len(exact)), deviation**2)

    out = np.zeros(plan.marginals.first[-1])
    first = 0
    for bit in reversed(range(levels)):
        if trigger >> bit & 1:
            made = first + (1 << bit)
            is_in = (begin > first) & (begin <= made) & (end > made)
            out += told(is_in, 1)
            since = made
            for deeper in reversed(range(bit)):
                if trigger - made >> deeper & 1:
                    until = since + (1 << deeper)
                    out -= told(is_in & (end > since) & (end <= until), bit + 1)
                    since = until
            first = made
    return out


def fits(
    plan: MarginalsPlan,
    rows: tuple[Int, Int, Int],
    triggers: int,
    cells: Int,
    exact: Int,
    chance: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Answers of fitted tables: ours, and others."""
    anew = math.sqrt(len(TABLES) * triggers) / plan.mu
    noisy = exact + chance.normal(0, anew, len(exact))
    return {
        "fitted, as --synthetic": fitted(
            plan, cells, plan.noisy_tables(plan.sums[0]).variances(triggers)[0]
        ),
        "all triggers anew, fitted": fitted(plan, noisy, anew**2),
        "interval tree, nodes fitted": by_tree(plan, rows, triggers, chance),
    }


def main() -> None:
    triggers = int(sys.argv[1]) if sys.argv[1:] else 1023
    noise_keys = int(sys.argv[2]) if sys.argv[2:] else 200
    plan = plan_of()
    chance = np.random.default_rng(SEED)
    rows = rows_of(triggers, chance)
    _, end, cell = rows
    is_there = end > triggers
    exact = answers(np.bincount(cell[is_there], minlength=2**KEYS).reshape((2,) * KEYS))
    p = plan.noisy_tables(plan.sums[0])
    variances = p.variances(triggers)
    known = LeastSquares((2,) * KEYS, TABLES, variances)
    first_key = (1).to_bytes(32, "big")
    if not np.array_equal(
        run(plan, rows, triggers, first_key), exact + noise(plan, triggers, first_key)
    ):
        raise AssertionError("what both steps release is not the exact sums and their noise")
    found: dict[str, list[float]] = {}
    alone = []
    together = []
    for number in range(1, noise_keys + 1):
        cells = exact + noise(plan, triggers, number.to_bytes(32, "big"))
        alone.append((cells - exact) / math.sqrt(variances[0]))
        together.append(asked(plan, cells, known, exact))
        found.setdefault("released", []).append(rms(cells - exact))
        if number <= RUNS:
            for name, told in fits(plan, rows, triggers, cells, exact, chance).items():
                found.setdefault(name, []).append(rms(told - exact))
    print(
        f"{len(exact)} counts, {triggers} triggers, {len(end):,} rows, {is_there.sum():,} there at the last"
    )
    for name, each in found.items():
        print(
            f"{name}: rms error {np.mean(each):.1f} ({min(each):.1f} to {max(each):.1f} of {len(each)} noise keys)"
        )
    stated = math.sqrt(known.variance(dict.fromkeys(TABLES[0], np.eye(2)[0])))
    print(f"asked: rms error {stated * rms(np.array(together)):.1f}, stated {stated:.1f}")
    for name, errors in (("released", alone), ("asked", together)):
        z = np.array(errors)
        print(f"{name}: 95% intervals hold {np.mean(np.abs(z) <= Z95):.1%} of {z.size:,} counts")


if __name__ == "__main__":
    main()
