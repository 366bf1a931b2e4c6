"""No text may do anything but parse or raise QueryError; equal questions have equal values."""

import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from dpsql.compiled import parse_query
from dpsql.errors import QueryError
from dpsql.mechanisms.histogram.mechanism import HISTOGRAM
from dpsql.parsed_query import ParsedQuery
from dpsql.sql import allowed
from dpsql.sql.dialect import DpSpark
from dpsql.sql.relations import canonical, write, write_from
from dpsql.sql.text import read_script
from tests.sql.golden import Golden, compiled, goldens, sources

ACCEPTED = goldens("accepted")
EVERY = ACCEPTED + goldens("refused")
PIECES = sorted(
    {piece for golden in EVERY if len(golden.text) < 2000 for piece in re.findall(r"'[^']*'|\w+|\s+|[^\w\s]+", golden.text)}
    | set(allowed.FUNCTIONS)
    | {option.name for option in HISTOGRAM.options}
    | {
        "\x00", "\ufeff", "\u2028", "\udc80", "é", "😀", "/*", "*/", "--", "\\", "'", '"', "`", "${", "{{", "9" * 5000, "1e999", "0x1F",
        "X'zz'",
    }
)  # fmt: skip
QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


def only_query_errors(text: str) -> None:
    try:
        assert isinstance(parse_query(text, sources()), ParsedQuery)
    except QueryError as error:
        assert error.problems and str(error)


@QUICK
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join))
def test_token_soup(text):
    only_query_errors(text)


@QUICK
@given(st.text(max_size=80))
def test_any_text(text):
    only_query_errors(text)


@QUICK
@given(st.sampled_from(EVERY), st.randoms(use_true_random=False))
def test_broken_queries(golden, chance):
    pieces = re.findall(r"'[^']*'|\w+|\s+|[^\w\s]", golden.text[:3000])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(pieces) + 1)
        pieces[at : at + chance.randint(0, 2)] = [
            chance.choice(PIECES) for _ in range(chance.randint(0, 2))
        ]
    only_query_errors("".join(pieces))


@QUICK
@given(st.sampled_from(EVERY), st.integers(0, 400))
def test_cut_queries(golden, length):
    only_query_errors(golden.text[:length])


@pytest.mark.parametrize(
    "opening",
    [
        "(",
        "SELECT (",
        "lower(",
        "NOT ",
        "- ",
        "CASE WHEN ",
        "a AND ",
        "a + ",
        "/* ",
        "[",
        "INTERVAL ",
    ],
)
def test_deep_nesting(opening):
    base = ACCEPTED[0].text
    only_query_errors(opening * 3000)
    only_query_errors(base.replace("GROUP BY", f"WHERE {opening * 3000} 1 GROUP BY"))
    only_query_errors(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {opening * 3000}")


def respell(text: str, chance: random.Random) -> str:
    """The same question with other blanks, comments and letter case."""
    pieces = re.findall(
        r"--[^\n]*\n|/\*.*?\*/|r?'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|\w+|\s+|[^\w\s]",
        text,
        re.DOTALL,
    )
    changed = []
    for piece in pieces:
        if piece[0] in "'\"r" and piece[-1] in "'\"":
            changed.append(piece)
        elif piece.isspace():
            changed.append(chance.choice([" ", "\n", "\t", " /* it's */ ", ' -- "quoted\n']))
        elif re.fullmatch(r"[A-Za-z_]+", piece):
            changed.append(chance.choice([piece.lower(), piece.upper(), piece]))
        else:
            changed.append(piece)
    return "".join(changed)


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.name)
def test_spelling_changes_nothing(golden: Golden):
    parsed = compiled(golden).parsed
    for seed in range(3):
        assert parse_query(respell(golden.text, random.Random(seed)), sources()) == parsed


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.name)
def test_fragments_are_their_own_canonical_spelling(golden: Golden):
    """Writing what was read and reading it again changes nothing: nothing is lost between text and tree."""
    parsed = compiled(golden).parsed
    fragments = [key.expression for key in parsed.keys] + [
        a.argument for a in parsed.aggregates if a.argument
    ]
    tree = read_script(f"SELECT {', '.join([*fragments, '1'])} {parsed.from_sql}").tree
    assert isinstance(tree, exp.Select)
    plain = canonical(tree)
    assert [write(node) for node in plain.expressions[:-1]] == fragments
    assert write_from(plain) == parsed.from_sql


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a AND (b AND (c))", "a AND b AND c"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("NOT (a = 1)", "NOT (a = 1)"),
        ("((A))", "a"),
        ('`a b` || "x"', "`a b` || 'x'"),
        ("a != 1 OR (B and c)", "a <> 1 OR b AND c"),
        ("- (-1)", "-(-1)"),
        ("(a | b) & c", "(a | b) & c"),
        ("(a IS NULL) = (b > 1)", "(a IS NULL) = (b > 1)"),
        ("(a + 1)[0].B", "(a + 1)[0].b"),
        ("LOWER( (a) )", "lower(a)"),
        ("try_add(ts, INTERVAL '3' Hours)", "try_add(ts, INTERVAL '3' HOUR)"),
        (r"a rlike '\\d' ", r"a RLIKE '\\d'"),
        ("a::String", "CAST(a AS STRING)"),
    ],
)
def test_canonical_spelling(written, meant):
    tree = DpSpark().parse(f"SELECT {written}")[0]
    tree = read_script(f"SELECT {written}").tree if tree is not None else None
    assert isinstance(tree, exp.Select)
    assert write(canonical(tree).expressions[0]) == meant
