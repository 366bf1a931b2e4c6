"""No plan identity and no released bit of an accepted golden query changes by accident. (Those of tests/matrix: `test_same_rows`.)"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.frozen import current, digest, frozen
from tests.sql.golden import goldens

HOW = "a plan's identity or released rows are not those of tests/golden/frozen.txt; if that is meant, see the head of tests/frozen.py"


@pytest.mark.parametrize("name", [golden.name for golden in goldens("accepted")])
def test_identity_and_rows_are_frozen(name: str, tmp_path: Path) -> None:
    assert current(tmp_path)[name]() == frozen().get(name), HOW


def test_every_query_is_frozen_and_releases_rows(tmp_path: Path) -> None:
    lines = frozen()
    assert set(lines) == set(current(tmp_path))
    assert {name for name, line in lines.items() if int(line.split()[2]) < 3} == set()


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
    assert len({digest(pa.table({"x": pa.array([x], pa.float64())})) for x in doubles}) == len(doubles)
