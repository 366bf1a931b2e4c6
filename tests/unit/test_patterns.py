"""How long a search for a pattern may take."""

from __future__ import annotations

import pytest

from dpsql.sql.patterns import TOO_SLOW, effort, refusal, searched


@pytest.mark.parametrize(
    ("pattern", "degree", "characters"),
    [
        ("ERROR", 1, None),
        (r"^(\d\d)-\Q(a+)+\E$", 0, None),
        ("(a|b)c?", 1, None),
        (r"(?<year>\d{4})(?i)x", 1, None),
        ("(a|a){10}b", 1, 10_000),
        ("a.*b", 2, 10_000),
        ("^.*a.*b", 2, 10_000),
        (r"[()+*[a|b]]+x", 2, 10_000),
        ("[^]a]*", 1, 10_000),
        (r"(?<x>\X+\R)", 2, 10_000),
        (r"(https?://)?(www\.)?([^/]+)", 1, 10_000),
        (r"https?://([^/]+)/(.*)", 2, 10_000),
        (r"(\d+)-(\w+)", 2, 10_000),
        (r"(\d{1,3}\.){3}\d{1,3}", 1, 10_000),
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
def test_the_degree_decides_how_much_is_searched(pattern: str, degree: float, characters: int | None) -> None:
    assert (effort(pattern).degree, searched(pattern), refusal(pattern)) == (degree, characters, None)


@pytest.mark.parametrize(
    "pattern", ["(a*){10}b", "^.*a.*b.*c.*d", ".*a.*b.*c", "((a|a){10}){10}", "(a?){10}(a?){10}(a?){10}", "(?=.*a.*b.*c)"]
)
def test_patterns_of_a_high_degree_are_refused(pattern: str) -> None:
    assert refusal(pattern) == TOO_SLOW


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|b)*c",
        "(a?)*",
        "((ab)?c)+",
        "(?:x|y)+?",
        "(a|b)*+",
        "(a*){11}",
        "((a|b)){2,}",
        r"(a)\1",
        r"(?<n>a)\k<n>",
        r"(\X)*",
        r"(\R)+",
        "(?x)#[\n(b|c)*",
        "(?ix-s:#[\n(b|c)*)",
    ],
)
def test_repeated_choices_are_found(pattern: str) -> None:
    assert effort(pattern).explodes


@pytest.mark.parametrize(
    "pattern", ["", "(", ")", "[", "\\", "*", "a**", "{", "a{,3}", "(?", "[^", "\\Q", "(?<", "|", "))*", "[[]", "\\p{"]
)
def test_broken_patterns_are_read_too(pattern: str) -> None:
    assert effort(pattern).degree >= 0


@pytest.mark.parametrize(
    ("pattern", "characters"),
    [("%a%", None), ("a%b", None), (r"%a\%b%", None), ("%%a%%%", 10_000), ("%a%b%", 10_000), ("%a%b", 10_000), ("%a_%b%c", 500)],
)
def test_like_is_cut_by_its_gaps(pattern: str, characters: int | None) -> None:
    assert (searched(pattern, like=True), refusal(pattern, like=True)) == (characters, None)


def test_like_with_many_gaps_is_refused() -> None:
    assert refusal("%a%b%c%d", like=True) == refusal("%a%b%c%d%", like=True) == TOO_SLOW
