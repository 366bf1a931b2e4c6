"""How long a search for a pattern may take."""

import pytest

from dpsql.sql.patterns import ENDLESS, TOO_SLOW, effort, refusal, searched


@pytest.mark.parametrize(
    ("pattern", "degree", "characters"),
    [
        ("ERROR", 1, None),
        (r"^(\d\d)-\Q(a+)+\E$", 0, None),
        ("(a|b)c?", 1, None),
        (r"(?<year>\d{4})(?i)x", 1, None),
        ("(a|a)(b|b)(a|a)(b|b)b", 1, 10_000),
        ("a.*b", 2, 10_000),
        ("^.*a.*b", 2, 10_000),
        (r"[()+*[a|b]]+x", 2, 10_000),
        ("[^]a]*", 1, 10_000),
        (r"(?<x>\X+\R)", 2, 10_000),
        (r"(https?://)?(www\.)?([^/]+)", 1, 10_000),
        (r"https?://([^/]+)/(.*)", 2, 10_000),
        (r"(\d+)-(\w+)", 2, 10_000),
        (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", 1, 10_000),
        (r"(\d{3}\.){3}\d{3}", 1, None),
        (r"[\--a]*\n", 2, 10_000),
        (r"[a-z&&[^b]]+1", 2, 10_000),
        (".*error.*", 2, 10_000),
        ("([^/]*)/([^/]*)/", 2, 10_000),
        (r"^(\S+)\s+(\S+)\s+(.*)$", 2, 10_000),
        (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", 2, 10_000),
        ("a.*b.*c", 3, 500),
        ("^.*a.*b.*c", 3, 500),
        ("(?i)a+A.*b", 3, 500),
        (r"\x41*A.*b", 3, 500),
    ],
)
def test_the_degree_decides_how_much_is_searched(
    pattern: str, degree: float, characters: int | None
) -> None:
    assert (effort(pattern).degree, searched(pattern), refusal(pattern)) == (
        degree,
        characters,
        None,
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "^.*a.*b.*c.*d",
        ".*a.*b.*c",
        "(?=.*a.*b.*c)",
        "(a|a)" * 30,
        "a?" * 30 + "a" * 30,
        "a{0,9}" * 10 + "b",
    ],
)
def test_patterns_of_a_high_degree_are_refused(pattern: str) -> None:
    assert refusal(pattern) == TOO_SLOW


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("x(a+)+y", "(a+)+"),
        ("(a|b)*c", "(a|b)*"),
        ("(a?)*", "(a?)*"),
        ("((ab)?c)+", "((ab)?c)+"),
        ("(?:x|y)+?", "(?:x|y)+?"),
        ("(a|b)*+", "(a|b)*+"),
        ("(a*){2}", "(a*){2}"),
        ("((a|b)){2,}", "((a|b)){2,}"),
        (r"(\d{1,3}\.){3}\d{1,3}", r"(\d{1,3}\.){3}"),
        (r"(\X)*", r"(\X)*"),
        (r"(\R)+", r"(\R)+"),
        (r"[\Q[\E](a+)+]", "(a+)+"),
    ],
)
def test_a_nested_repetition_is_refused_by_name(pattern: str, named: str) -> None:
    assert refusal(pattern) == ENDLESS.format(f"`{named}` repeats what itself repeats or chooses")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", r"`\1` refers to a group"),
        (r"(?<n>a)\k<n>", r"`\k` refers to a group"),
        ("(?x)#[\n(b|c)*", "`(?x)` allows comments"),
        ("(?ix-s:#[\n(b|c)*)", "`(?ix-s:` allows comments"),
        ("b(?<=a+)", "`(?<=a+)` looks behind for what repeats"),
        ("[[[a]]]", "what begins at character 1 is too deep"),
        ("(" * 60 + "a" + ")" * 60, "what begins at character 51 is too deep"),
    ],
)
def test_what_may_take_exponential_time_otherwise_is_named(pattern: str, why: str) -> None:
    assert str(refusal(pattern)).startswith(ENDLESS.format(why))


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "(",
        ")",
        "[",
        "\\",
        "*",
        "a**",
        "{",
        "a{,3}",
        "(?",
        "[^",
        "\\Q",
        "(?<",
        "|",
        "))*",
        "[[]",
        "\\p{",
    ],
)
def test_broken_patterns_are_read_too(pattern: str) -> None:
    assert effort(pattern).degree >= 0


@pytest.mark.parametrize(
    ("pattern", "characters"),
    [
        ("%a%", None),
        ("a%b", None),
        (r"%a\%b%", None),
        ("%%a%%%", 10_000),
        ("%a%b%", 10_000),
        ("%a%b", 10_000),
        ("%a_%b%c", 500),
    ],
)
def test_like_is_cut_by_its_gaps(pattern: str, characters: int | None) -> None:
    assert (searched(pattern, like=True), refusal(pattern, like=True)) == (characters, None)


def test_like_with_many_gaps_is_refused() -> None:
    assert refusal("%a%b%c%d", like=True) == refusal("%a%b%c%d%", like=True) == TOO_SLOW
