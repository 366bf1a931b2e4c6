"""Golden queries: what is accepted, what is refused, and with which words."""

import json
import math
import re
from pathlib import Path

import pytest

from dpsql.compiled import parse_query
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.sources.config import load_sources
from tests.frozen import NUMBER, shown
from tests.sql.golden import (
    EXAMPLES,
    FOLDER,
    QUERY,
    Golden,
    compiled,
    entries,
    explained,
    goldens,
    plans,
    read,
    refusal,
    said,
    sources,
    topics,
)

EVERY = goldens("accepted") + goldens("refused")


@pytest.mark.parametrize(
    "golden",
    [golden for golden in EVERY if golden.said is not None],
    ids=lambda golden: golden.name,
)
def test_what_is_said(golden: Golden):
    assert said(golden) == golden.said


@pytest.mark.parametrize(("path", "golden"), plans().items(), ids=lambda each: each.stem)
def test_plan(path: Path, golden: Golden):
    """Quantiles and square roots may end in another bit on another machine; the rest may not."""
    assert _is_like(json.loads(shown(compiled(golden))), json.loads(read(path)))


def test_every_name_of_a_number_is_in_a_plan_that_is_kept():
    """Catches: a new number, or a mechanism's, that would be seen as a digest only."""
    kept = set(plans().values())
    assert {compiled(golden).parsed.mechanism for golden in kept} == {
        mechanism.name for mechanism in MECHANISMS
    }
    names = {golden: _names(json.loads(shown(compiled(golden)))) for golden in goldens("accepted")}
    known = set().union(*(names[golden] for golden in kept))
    assert {golden.stem: found for golden in names if (found := names[golden] - known)} == {}


def _names(value, at: str = "") -> set[str]:
    """Of all that is in a JSON value, with where it stands."""
    if isinstance(value, dict):
        return {f"{at}.{name}" for name in value}.union(
            *(_names(each, f"{at}.{name}") for name, each in value.items())
        )
    return (
        set().union(*(_names(each, f"{at}[]") for each in value))
        if isinstance(value, list)
        else set()
    )


def _is_like(found, written) -> bool:
    """Equal, with floats to 12 digits; names in order, the identity to the last letter."""
    if isinstance(found, float) and isinstance(written, float):
        return math.isclose(found, written, rel_tol=1e-12)
    if isinstance(found, dict) and isinstance(written, dict):
        return list(found) == list(written) and all(
            _is_like(found[name], written[name]) for name in found
        )
    if isinstance(found, list) and isinstance(written, list):
        return len(found) == len(written) and all(map(_is_like, found, written))
    return type(found) is type(written) and found == written


def test_the_comparison_of_plans_is_tolerant_and_no_more():
    plan = {"mu": 0.5, "columns": [{"sigma": 1.0}], "identity": "ab", "T": 1}
    assert _is_like({**plan, "mu": 0.5 * (1 + 1e-15)}, plan)
    for change in (
        {"mu": 0.5 * (1 + 1e-11)},
        {"columns": [{"sigma": 1.1}]},
        {"columns": []},
        {"identity": "aB"},
        {"T": 1.0},
        {"more": 1},
    ):
        assert not _is_like({**plan, **change}, plan)


def test_every_query_has_its_own_name_and_every_refused_one_its_message():
    names = [golden.name for golden in EVERY]
    assert len(names) == len(set(names))
    assert [golden.name for golden in goldens("refused") if not golden.said] == []


def test_every_file_is_a_list_of_queries_and_every_other_belongs_to_one():
    for kind in ("accepted", "refused"):
        for file in topics(kind):
            assert re.match(f"{QUERY}\\w+\n", read(file)) and all(
                re.fullmatch(r"\w+", golden.stem) for golden in entries(kind, file)
            )
        left = {path for path in (FOLDER / kind).rglob("*.*") if path.suffix != ".sql"} - set(
            topics(kind)
        )
        assert left == {
            golden.file
            for golden in goldens(kind)
            if golden.file.parent.name == "raw" and golden.said is not None
        }


def test_every_sentence_is_in_an_explanation_that_is_kept_whole():
    """Catches: a new branch of the wording of which only the numbers would be looked at."""
    sentences = {golden: _sentences(golden) for golden in goldens("accepted")}
    kept = set().union(*(sentences[golden] for golden in sentences if golden.said is not None))
    assert {golden.stem: found for golden in sentences if (found := sentences[golden] - kept)} == {}


def _sentences(golden: Golden) -> set[str]:
    """The lines of an explanation, with x for what is the query's own: its names, numbers, lengths of time."""
    query = compiled(golden).parsed
    aliases = [aggregate.alias for aggregate in query.aggregates]
    names = [
        *aliases,
        *(key.name for key in query.keys),
        *query.privacy_unit,
        query.stream,
        query.event_time,
        "key",
    ]
    name = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    text = re.sub(r"(?m)^Query identity: .*", "x", explained(golden))
    text = re.sub(r"\n {4,}(?=\S)(?!.*  )", " ", text)  # lines are wrapped where words end
    text = re.sub(
        rf"(?<!\w)(?:{name}|{NUMBER}(?: (?:microsecond|millisecond|second|minute|hour|day|week)s?\b)?)(?!\w)",
        "x",
        text,
    )
    text = re.sub(r"(?<=Noise:     ) [x±,/ ns()]+(?= at| \(n| in)", " x ± x", text)
    return {
        " ".join(line.split())
        for line in re.sub(r"x(?:, x)+", "x", text).replace("triggers", "trigger").splitlines()
    }


@pytest.mark.parametrize("golden", goldens("refused"), ids=lambda golden: golden.name)
def test_problems_are_in_text_order_and_inside_the_text(golden: Golden):
    problems = refusal(golden).problems
    starts = [problem.start for problem in problems]
    assert problems and starts == sorted(starts)
    for problem in problems:
        assert 0 <= problem.start < problem.end <= max(len(golden.text), 1)
        assert problem.message and (
            problem.message.endswith("...") or not problem.message.endswith(".")
        )
        assert problem.hint and (problem.hint.endswith("...") or not problem.hint.endswith("."))


@pytest.mark.parametrize("golden", goldens("accepted"), ids=lambda golden: golden.name)
def test_explanations_are_narrow_and_of_one_page(golden: Golden):
    """Lines of at most 120 characters."""
    lines = explained(golden).splitlines()
    assert [line for line in lines if len(line) > 120] == []
    assert len(lines) < 73


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.sql")), ids=lambda path: path.stem)
def test_examples_are_accepted(path):
    """With the sources that come with them, as `dpsql explain` reads them."""
    parse_query(
        path.read_text(encoding="utf-8"), load_sources(EXAMPLES.parent / "sources.yaml"), path.name
    )


def test_equal_questions_are_equal():
    names = ("smallest", "spelling", "crlf_and_tabs")
    first, *others = [
        parse_query(golden.text, sources())
        for golden in goldens("accepted")
        if golden.stem in names
    ]
    assert len(others) == 2
    assert all(other == first for other in others)
