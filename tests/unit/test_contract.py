"""The contract (tests/contract.py) over the registry, and broken stages that it must find."""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.local.feeder import Stages
from dpsql.mechanisms.protocol import RunFacts
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.udfs.state_table import Table
from tests import contract
from tests.contract import CONTRACT

Check = Callable[[Stages, Path], None]


@cache
def stages_of_case(case: str) -> Stages:
    """Made once, so that what they release of plain records is computed once."""
    return stages_of(*CASES[case])


def stages_of(name: str, plan: Any) -> Stages:
    (mechanism,) = [each for each in MECHANISMS if each.name == name]
    facts = getattr(_cases(name), "FACTS", RunFacts())
    listed = mechanism.shape(plan).listed and facts.public is None
    return mechanism.stages(plan, RunFacts(contract.listed()) if listed else facts)


def _cases(name: str) -> Any:
    return importlib.import_module(f"tests.mechanisms.{name}.contract_cases")


CASES = {
    f"{mechanism.name}: {case}": (mechanism.name, plan) for mechanism in MECHANISMS for case, plan in _cases(mechanism.name).PLANS.items()
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_the_contract(case: str, check: Check, tmp_path: Path) -> None:
    check(stages_of_case(case), tmp_path)


@dataclass(frozen=True, eq=False)
class Broken:
    """A stage around another one: `before` changes what its step is given, `after` what it gives."""

    stage: Any
    before: Callable[..., Any] = lambda state, rows, now: (state, rows, now)
    after: Callable[..., Any] = lambda done, state, rows: done
    layout: Any = None
    bucket: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    @property
    def tables(self) -> Any:
        return self.layout or self.stage.tables

    def for_bucket(self, bucket: int, buckets: int) -> Any:
        return Broken(self.stage.for_bucket(bucket, buckets), self.before, self.after, self.layout, bucket)

    def step(self, state: Any, rows: Any, now: Any, noise_key: bytes) -> Any:
        return self.after(self.stage.step(*self.before(state, rows, now), noise_key), state, rows)


TURN = itertools.count()


def _random(done: Any, state: Any, rows: Any) -> Any:
    """Noise from a generator: asked twice, another answer."""
    columns = [
        pa.array(np.full(done.rows.num_rows, next(TURN))) if name == "trigger" else done.rows[name] for name in done.rows.column_names
    ]
    return replace(done, rows=pa.table(columns, schema=done.rows.schema))


def _refuses_nan(state: Any, rows: Any, now: Any) -> Any:
    if any(pa.types.is_floating(kind) and np.isnan(column).any() for kind, column in zip(rows.schema.types, rows.columns, strict=True)):
        raise ValueError("NaN")
    return state, rows, now


def _takes_what_is_none(state: Any, rows: Any, now: Any) -> Any:
    return state, rows.set_column(0, "drop", pa.array(np.zeros(rows.num_rows, np.int8))), now


UNSEARCHED = {"users": Table(("period", "user", "part", "fingerprint"), "user", order="any")}
BY_KEY = {"users": Table(("fingerprint", "user", "period", "part"), "user")}
PLANTED: dict[str, tuple[Check, Callable[[Any, Any], Any]]] = {
    "the first row is lost": (
        contract.cut_order_and_buckets,
        lambda admission, release: (Broken(admission, lambda state, rows, now: (state, rows.slice(1), now)), release),
    ),
    "what was used is forgotten": (
        contract.cut_order_and_buckets,
        lambda admission, release: (Broken(admission, after=lambda done, state, rows: replace(done, state=state)), release),
    ),
    "tables in another order": (contract.rescale, lambda admission, release: (Broken(admission, layout=BY_KEY), release)),
    "a generator": (contract.retry_and_restart, lambda admission, release: (admission, Broken(release, after=_random))),
    "what is none counts": (
        contract.what_is_dropped_moves_nothing,
        lambda admission, release: (Broken(admission, _takes_what_is_none), release),
    ),
    "NaN raises": (contract.strange_values_move_no_others, lambda admission, release: (Broken(admission, _refuses_nan), release)),
    "disorder is taken": (contract.damaged_state_is_refused, lambda admission, release: (Broken(admission, layout=UNSEARCHED), release)),
    "stages of two plans": (
        contract.the_stages_fit,
        lambda admission, release: (replace(admission, parameters=replace(admission.parameters, increments=())), release),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_stage_is_found(name: str, tmp_path: Path) -> None:
    check, broken = PLANTED[name]
    with pytest.raises((AssertionError, ValueError)):
        check(broken(*stages_of(*CASES["histogram: every trigger"])), tmp_path)


def test_every_part_of_the_contract_has_a_broken_stage() -> None:
    assert {check for check, _ in PLANTED.values()} == set(CONTRACT)
