"""Random plans of tables whose rows end, accounted for once more: one unit's stream, the dense matrix of the counter, and the plan's sigmas."""

from functools import cache

import numpy as np
from scipy.signal import lfilter

from dpsql.mechanisms.dynamic.plan import TablePlan
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.parsed_query import CounterName
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import counter, impulse_response
from tests.mechanisms.dynamic.plans import FEED, query, source
from tests.mechanisms.dynamic.test_plan import AVG, SPREAD
from tests.property.plans import COUNT, SUM, USERS

LAST = 300
Version = tuple[int, int, int, float]
"""Key, begin, end and which of the two largest values it has: 0 the lower, 1 the upper one."""


def plan(pick: np.random.Generator) -> TablePlan:
    rows = int(pick.integers(1, 10))
    last = None if pick.random() < 0.6 else LAST
    return make_plan(
        query(
            feed=FEED,
            epsilon=float(pick.choice([0.5, 1.0, 6.0])),
            max_rows_contributed=rows,
            **{f"max_{name}": int(pick.integers(1, rows + 1)) for name in ("rows_per_group", "groups_contributed", "spells_contributed")},
            max_triggers=last,
            aggregates=(COUNT, *(a for a in (USERS, SUM, AVG, SPREAD) if pick.random() < 0.5)),
        ),
        source(),
    )


@cache
def strategy(name: CounterName | None) -> np.ndarray:
    """The first column of C, by long division of the noise's response; without a name that of BLT_INF."""
    response = BltInf().response(np.arange(LAST)) if name is None else impulse_response(counter(name, LAST))
    return np.asarray(lfilter([1.0], np.diff(np.concatenate([[0.0], response])), np.eye(1, LAST)[0]))


def slots_of(made: TablePlan, pick: np.random.Generator, greedy: bool) -> list[list[Version]]:
    """Versions of one unit, slot by slot: at most C, in at most G keys of c slots; in a slot one follows the other. Greedy: all in one key, as long as
    they can be."""
    asked = made.query.asked
    total, per_key = asked.max_rows_contributed, asked.max_rows_per_group
    keys = 1 if greedy else int(pick.integers(1, min(total, asked.max_groups_contributed) + 1))
    slots: list[list[Version]] = [[] for _ in range(keys * per_key)]
    count = np.bincount(np.arange(total) % len(slots) if greedy else pick.integers(0, len(slots), total), minlength=len(slots))
    for place, versions in enumerate(count.tolist()):
        if greedy:
            times = np.linspace(0, LAST, 2 * versions + 1).astype(int)[: 2 * versions]
        else:
            times = np.sort(pick.choice(LAST, 2 * versions, replace=False))
        for begin, end in times.reshape(-1, 2).tolist():
            slots[place].append((place // per_key, begin, end, 1 if greedy else int(pick.integers(0, 2))))
    return slots


def squared_shift(made: TablePlan, slots: list[list[Version]]) -> float:
    """Sum of |C d|^2 / sigma^2 over all that the plan releases, d what the unit adds to each key at each trigger."""
    column, found = strategy(CounterName.BLT if made.query.asked.max_triggers else None), 0.0
    whole = [version for slot in slots for version in slot]

    def shift(changes: list[tuple[int, int, float]], sigma: float) -> float:
        total = 0.0
        for key in {key for key, _, _ in changes}:
            d = np.zeros(LAST + 1)
            for of, at, value in changes:
                d[at] += value if of == key else 0.0
            total += float(np.sum(np.convolve(column, d[:LAST])[:LAST] ** 2))
        return total / sigma**2

    spells = presence(whole)
    for p in made.perturbations:
        values = (p.lower * p.grid, p.upper * p.grid) if p.rule in ("sum", "squares") else (1.0, 1.0)
        if p.rule == "users":
            counted = spells[: made.changes.max_spells_contributed] if made.changes else spells
            changes = [change for key, begin, end in counted for change in ((key, begin, 1.0), (key, end, -1.0))]
        else:
            changes = [change for key, begin, end, v in whole for change in ((key, begin, values[v]), (key, end, -values[v]))]
        found += shift(changes, p.sigma)
    if made.selection:
        weighted = zip(spells, made.selection.weights, strict=False)
        changes = [change for (key, begin, end), w in weighted for change in ((key, begin, w / 2.0**20), (key, end, -w / 2.0**20))]
        found += shift(changes, made.selection.sigma)
    return found


def presence(versions: list[Version]) -> list[tuple[int, int, int]]:
    """Times at which the unit has a version in a key, by their begins."""
    spells: list[tuple[int, int, int]] = []
    for key in sorted({version[0] for version in versions}):
        open_: tuple[int, int] | None = None
        for _, begin, end, _ in sorted(version for version in versions if version[0] == key):
            if open_ is None or begin >= open_[1]:
                spells += [(key, *open_)] if open_ else []
                open_ = begin, end
            open_ = open_[0], max(open_[1], end)
        spells += [(key, *open_)] if open_ else []
    return sorted(spells, key=lambda spell: spell[1])


def test_no_stream_of_one_unit_costs_more_than_200_plans_say() -> None:
    """Catches: a bound of rows, slots, spells or values that the planner and the accountant both have wrong. The longest streams come near."""
    pick, most = np.random.default_rng(0), 0.0
    for _ in range(200):
        made = plan(pick)
        found = max(squared_shift(made, slots_of(made, pick, greedy)) for greedy in (True, False, False, False)) / made.mu**2
        assert found <= 1 + 1e-9
        most = max(most, found)
    assert most > 0.6
