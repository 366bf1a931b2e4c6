"""Two ways to one number: the lemma and each mechanism's accountant agree to the ninth digit, for every golden query and 200 random plans."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dpsql.mechanisms import registry
from dpsql.mechanisms.dynamic import accounting as of_tables
from dpsql.mechanisms.dynamic.planner import make_plan as plan_table
from dpsql.mechanisms.histogram import accounting as of_windows
from dpsql.mechanisms.marginals import accounting as of_cubes
from dpsql.mechanisms.marginals.planner import make_plan as plan_cube
from dpsql.mechanisms.protocol import Plan
from dpsql.mechanisms.sketch import accounting as of_lists
from dpsql.mechanisms.sketch.planner import make_plan as plan_lists
from dpsql.mechanisms.sliding import accounting as of_panes
from dpsql.mechanisms.sliding.planner import make_plan as plan_panes
from dpsql.parsed_query import ContributionPeriod, changed
from dpsql.sources.config import Source
from tests.mechanisms.dynamic import plans as tables
from tests.mechanisms.dynamic.test_plan import any_query as any_table
from tests.mechanisms.marginals.test_plan import any_query as any_cube
from tests.mechanisms.sketch.test_plan import any_query as any_lists
from tests.mechanisms.sliding.queries import (
    AVG,
    COUNT,
    EVENT,
    SOURCE,
    SPREAD,
    SQRT,
    SUM,
    USER,
    bounds,
    query_of_hours,
)
from tests.parts.lemma import CHARGES
from tests.property.plans import source
from tests.sql.golden import compiled, goldens
from tests.unit.test_accountant import random_plan


def any_panes(pick: np.random.Generator) -> Any:
    rows = int(pick.choice([1, 4]))
    slides = int(pick.integers(2, 30))
    of_unit = bounds(rows, min(2, rows), int(pick.choice([1, rows])))
    query, more = [(EVENT, {}), (SQRT, {}), (USER, of_unit), (USER, of_unit | {"delta": 1e-6})][
        int(pick.integers(4))
    ]
    if query is USER and pick.random() < 0.3:
        more = more | {"contribution_period": ContributionPeriod.STREAM}
    aggregates = ((COUNT, SUM), (SPREAD, AVG))[int(pick.integers(2))]
    return query_of_hours(changed(query, epsilon=6.0, aggregates=aggregates, **more), slides)


def any_plan(pick: np.random.Generator, number: int) -> tuple[Plan, Source]:
    """Of the five kinds one after the other."""
    stream = source(max_keys=1000)
    match number % 5:
        case 0:
            return random_plan(random.Random(number), stream), stream
        case 1:
            return plan_table(any_table(pick), tables.source()), tables.source()
        case 2:
            return plan_cube(any_cube(pick, number % 2 == 0), tables.source()), tables.source()
        case 3:
            return plan_panes(any_panes(pick), SOURCE), SOURCE
    return plan_lists(any_lists(pick), source()), source()


def apart(plan: Plan, stream: Source) -> float:
    """How far the accountant's number and the lemma's are apart, relatively."""
    cost = registry.mechanism_named(plan.mechanism).account(plan, stream)
    charge = CHARGES[type(plan)](plan)
    both = (
        (cost.mu2, charge.mu2),
        (cost.mu2_shared, charge.meeting),
        (cost.epsilon, charge.epsilon),
    )
    return max(abs(one - other) / (other or 1.0) for one, other in both)


@cache
def plans() -> dict[str, tuple[Plan, Source]]:
    """By name; an interval tree has a clock per level and a theorem of its own."""
    pick = np.random.default_rng(3)
    golden = {
        each.name: (compiled(each).plan, compiled(each).source) for each in goldens("accepted")
    }
    return {name: of for name, of in golden.items() if type(of[0]) in CHARGES} | {
        f"random {n}": any_plan(pick, n) for n in range(200)
    }


def test_the_lemma_and_the_accountants_agree() -> None:
    found = {name: apart(*of) for name, of in plans().items()}
    assert len(found) > 290 and {name: far for name, far in found.items() if far > 1e-9} == {}


SLIPS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "windows: a row in one window only": (
        of_windows,
        "_ratio",
        lambda real, p, plan: real(p, replace(plan, windows_per_record=1)),
    ),
    "windows: periods never meet": (of_windows, "_periods_meet", lambda real, plan: False),
    "windows: of bounds per group the upper one": (
        of_windows,
        "_per_group",
        lambda real, p, *a: real(replace(p, lower=0), *a),
    ),
    "windows: what is left out counts as what is there": (
        of_windows,
        "_figure_ratio",
        lambda real, figure, plan: real(
            replace(figure, name=figure.name.removesuffix("_left_out")), plan
        ),
    ),
    "tables: of bounds per group the upper one": (
        of_tables,
        "group_ratio",
        lambda real, *a: real(*a[:4], (0.0, a[4][1]), *a[5:]),
    ),
    "tables: rows that end as rows that stay": (
        of_tables,
        "row_ratio",
        lambda real, *a: real(*a[:3], False, *a[4:]),
    ),
    "tables: what may come back as what stays": (
        of_tables,
        "presence_ratio",
        lambda real, weights, ends, *a: real(weights, False, *a),
    ),
    "cubes: one table for all": (
        of_cubes,
        "_squared",
        lambda real, each, tables, *a: real(each, tables, *a) / len(tables),
    ),
    "cubes: slots of one cell of all keys": (
        of_cubes,
        "_in_a_cell",
        lambda real, asked, table: min(real(asked, table), asked.max_rows_per_group),
    ),
    "panes: a height that is rounded down": (
        of_panes,
        "_largest",
        lambda real, m: max(1, real(m) - 1),
    ),
    "panes: one row for all of a unit": (of_panes, "_rows", lambda real, asked: 1),
    "lists: of bounds per group the upper one": (
        of_lists,
        "_per_group",
        lambda real, cells, *a: real(replace(cells, lower=0), *a),
    ),
    "lists: one row for all of a unit": (of_lists, "_squares", lambda real, asked: 1),
}
"""Slips that make an accountant charge too little, so that it refuses nothing."""


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_an_accountant_is_found(slip: str) -> None:
    module, name, wrong = SLIPS[slip]
    accepted = plans()  # by the right accountant
    with mock.patch.object(module, name, partial(wrong, getattr(module, name))):
        assert any(apart(*of) > 1e-9 for of in accepted.values())
