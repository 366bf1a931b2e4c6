"""Golden queries: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import pytest

from dpsql.errors import QueryError
from dpsql.sql import parse_query
from tests.sql.golden import EXAMPLES, FOLDER, Golden, expectations, goldens, outcome, sources

EXPECTATIONS = list(expectations())


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(path, text, id=f"{golden.kind}/{path.name}") for golden, path, text in EXPECTATIONS]
)
def test_expectation(path, text):
    assert path.read_bytes().decode("utf-8") == text()


def test_every_expectation_belongs_to_a_query():
    written = {path for kind in ("accepted", "refused") for path in (FOLDER / kind).iterdir() if path.suffix != ".sql"}
    assert {path for path in written if path.suffix in (".json", ".txt")} == {path for _, path, _ in EXPECTATIONS}


@pytest.mark.parametrize("golden", goldens("accepted"), ids=lambda golden: golden.name)
def test_accepted(golden: Golden):
    assert outcome(golden).startswith("{")


@pytest.mark.parametrize("golden", goldens("refused"), ids=lambda golden: golden.name)
def test_problems_are_in_text_order_and_inside_the_text(golden: Golden):
    with pytest.raises(QueryError) as refused:
        parse_query(golden.text, sources())
    starts = [problem.start for problem in refused.value.problems]
    assert starts == sorted(starts)
    for problem in refused.value.problems:
        assert 0 <= problem.start < problem.end <= max(len(golden.text), 1)
        assert problem.message and (problem.message.endswith("...") or not problem.message.endswith("."))
        assert problem.hint and (problem.hint.endswith("...") or not problem.hint.endswith("."))


@pytest.mark.parametrize("golden", goldens("accepted"), ids=lambda golden: golden.name)
def test_explanations_are_narrow_and_of_one_page(golden: Golden):
    """Lines of at most 120 characters; stage 1 quotes FROM as it is written and may be longer."""
    lines = golden.path.with_suffix(".explain.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("  1. read")] == []
    assert len(lines) < 60


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.sql")), ids=lambda path: path.stem)
def test_examples_are_accepted(path):
    parse_query(path.read_text(encoding="utf-8"), sources(), path.name)


def test_equal_questions_are_equal():
    names = ("smallest", "spelling", "crlf_and_tabs")
    texts = [(FOLDER / "accepted" / f"{name}.sql").read_bytes().decode() for name in names]
    first, *others = [parse_query(text, sources()) for text in texts]
    assert all(other == first for other in others)
