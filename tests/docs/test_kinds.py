"""Every cell of the table of aggregates and kinds of query, and every pair of cells in one query."""

import pytest

from dpsql.errors import QueryError
from tests.docs.kinds import AGGREGATES, APART, KINDS, OPTIONS, REASONS, compiled, pairs, taken


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [*AGGREGATES, *OPTIONS])
def test_a_cell_is_accounted_for_or_refused_with_its_reason(kind: str, row: str) -> None:
    found = compiled(kind, row)
    if isinstance(found, QueryError):
        assert REASONS[row, kind] in str(found)
    else:
        assert (row, kind) not in REASONS and taken(kind, row) != "no"
        assert found.mechanism.account(found.plan, found.source).periods(1).delta(
            found.plan.epsilon
        ) <= found.plan.delta * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "a", "b"), pairs())
def test_two_cells_stand_in_one_query(kind: str, a: str, b: str) -> None:
    """Options cross. Catches: what is taken alone and not beside another, and a promise that one of them alone would keep."""
    found = compiled(kind, a, b)
    if isinstance(found, QueryError):
        assert b == "privacy_level = EVENT" and APART[a] in str(found)
    else:
        assert found.mechanism.account(found.plan, found.source).periods(1).delta(
            found.plan.epsilon
        ) <= found.plan.delta * (1 + 1e-9)
        assert found.explain() and found.explain_json()
