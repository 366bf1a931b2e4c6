"""No plan identity, no released bit and no number that is said of an accepted golden query changes by accident. (Those of tests/matrix: `test_same_rows`.)"""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsql.mechanisms.protocol import identity_of
from tests.frozen import current, digest, frozen, numbers_said
from tests.sql.golden import Golden, compiled, goldens

ACCEPTED = goldens("accepted")
HOW = "identity, released rows or numbers that are said are not those of tests/golden/frozen.txt; if that is meant, see the head of tests/frozen.py"
ULP = 2**-52


@pytest.mark.parametrize("name", [golden.name for golden in ACCEPTED])
def test_identity_and_rows_are_frozen(name: str, tmp_path: Path) -> None:
    assert current(tmp_path)[name]() == frozen().get(name), HOW


def test_every_query_is_frozen_and_releases_rows(tmp_path: Path) -> None:
    lines = frozen()
    assert set(lines) == set(current(tmp_path))
    few = {name for name, line in lines.items() if int(line.split()[2]) < 3}
    assert {name for name in few if "once" not in name} == set()


@pytest.mark.parametrize(
    "other",
    [
        {"n": pa.array([2, 1])},
        {"m": pa.array([1, 2])},
        {"n": pa.array([1, 2], pa.int32())},
        {"n": pa.array([1, None])},
        {"n": pa.array([1.0, 2.0])},
    ],
)
def test_a_digest_tells_tables_apart(other: dict[str, pa.Array]) -> None:
    table = pa.table({"n": pa.array([1, 2])})
    assert digest(table) != digest(pa.table(other))
    assert digest(table) == digest(pa.concat_tables([table[:1], table[1:]]))


def test_a_digest_sees_one_bit_of_a_double() -> None:
    doubles = [0.1, 0.1 + 2**-56, -0.0, 0.0, float("nan"), None]
    assert len({digest(pa.table({"x": pa.array([x], pa.float64())})) for x in doubles}) == len(
        doubles
    )


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.stem)
def test_the_identity_covers_what_was_parsed_and_planned(golden: Golden) -> None:
    """So that a digest of it stands for all of them. Catches: a field of a query that is left out of the plan's document. Of a histogram
    three fields are not there by intent: who takes the query, and two options at the values they had before there were such."""
    query = compiled(golden)
    mechanism = query.mechanism
    parsed = query.parsed
    assert query.plan.query == parsed
    document = mechanism.document(query.plan)
    version = importlib.import_module(f"dpsql.mechanisms.{mechanism.name}.planner").PLAN_VERSION
    assert query.plan.identity == identity_of(version, {**document, "identity": ""})
    left_out = (
        {("mechanism", '"histogram"'), ("carry_windows", "1")}
        if mechanism.name == "histogram"
        else set()
    )
    assert _fields(dataclasses.asdict(parsed)) - _fields(document["query"]) <= left_out


def _fields(value: Any) -> set[tuple[str, str]]:
    """All names of a JSON value with what they name, but for what has names in it."""
    if isinstance(value, list | tuple):
        return set().union(*map(_fields, value))
    if not isinstance(value, dict):
        return set()
    below = set().union(*map(_fields, value.values()))
    return below | {
        (name, json.dumps(each)) for name, each in value.items() if not isinstance(each, dict)
    }


def test_a_last_bit_is_not_what_is_said_and_a_ninth_digit_is() -> None:
    """Also: no number of a golden query lies where another machine could round it otherwise."""
    for golden in ACCEPTED:
        facts = compiled(golden).explain_json()
        said, *others = [
            numbers_said(_scaled(facts, factor), "")
            for factor in (1.0, 1 - 8 * ULP, 1 + 8 * ULP, 1 - 1e-8, 1 + 1e-8)
        ]
        assert [each == said for each in others] == [True, True, False, False], golden.name


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {name: _scaled(each, factor) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_scaled(each, factor) for each in value]
    return value * factor if isinstance(value, float) else value


def test_an_explained_number_is_said_and_a_word_is_not() -> None:
    facts = compiled(ACCEPTED[0]).explain_json()
    text = compiled(ACCEPTED[0]).explain()
    assert numbers_said(facts, text.replace("epsilon", "EPSILON")) == numbers_said(facts, text)
    assert numbers_said(facts, text.replace("6", "7", 1)) != numbers_said(facts, text)
    budget = facts["budget"] | {"noisy_numbers": float(facts["budget"]["noisy_numbers"])}
    assert numbers_said(facts | {"budget": budget}, text) != numbers_said(facts, text)
