"""How long a search for a pattern may take: read off the pattern, so that no text of a record can stop a job.

Spark searches by backtracking. A repetition of something that itself repeats or chooses (`(a+)+`, `(a|b)*`) or a reference to a group can take
exponential time, or fill the stack; such patterns are refused. Several repetitions in a row that can trade characters (`a.*b.*c`) take time
like a power of the text's length, the *degree*: the higher it is, the shorter the beginning of a long text that is searched, and above 3 the
pattern is refused.

Degree and choices are upper bounds: sets of characters are taken too large rather than too small, and what is not known for the worst.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, log2

MAX_SEARCHED = 10_000
"""Characters of a text that are looked at where the time grows with the square of the text, or may."""

SEARCHED = (MAX_SEARCHED, 500)
"""So many characters are searched, the first that keeps within MOST_STEPS."""

MOST_STEPS = 1e9
"""Steps of a search: seconds."""

ENDLESS = "A search for this pattern could take exponential time: {}"
TOO_SLOW = "A search for this pattern could take hours on one text: too many repetitions in it can match the same characters"

MAX_TIMES = 10
"""A repetition of fewer is a choice."""

FEW_CHOICES = 3
"""Bits of choices with which a long text is searched as a whole."""

MAX_WIDTH = 100
"""So many characters in a row, no more and no less, are one step."""

MAX_DEPTH = 50
"""Groups within groups; a pattern with more is taken for one without end."""

_ESCAPE = r"\\(?:[pPxN]\{[^}]*\}|[pP]\w|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|0[0-7]{1,3}|c.|.)"
_INNER_SET = r"\[\^?+\]?+(?:\\.|[^\]\\\[])*+\]"
_PIECE = re.compile(
    r"(?P<flags>\(\?[a-zA-Z-]*\))|(?P<opens>\((?:\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[a-zA-Z-]*:))?)|(?P<closes>\))|(?P<chooses>\|)"
    rf"|(?P<place>[\^$]|\\[bBAzZG])|(?P<refers>\\[1-9k])|(?P<several>\\[RX])"
    rf"|(?P<character>\[\^?+\]?+(?:\\.|{_INNER_SET}|[^\]\\\[])*+(?:\]|\Z)|{_ESCAPE}|[^\[])",
    re.DOTALL,
)
_QUANTIFIER = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})([?+]?)")
_ANY_FLAGS = re.compile(r"\(\?[a-zA-Z-]+[:)]")
_QUOTED = re.compile(r"(\\[^Q])|\\Q(.*?)(?:\\E|\Z)", re.DOTALL)

_SAFE = r"\\[dDwWsStnrf]|\\[^\w\s]"
_READ_ALIKE = re.compile(
    rf"{_SAFE}|[^\\.\[]|\[\^?\]?(?:{_SAFE}|(?!--|&&|~~|\|\|)[^\\\[\]])+\]", re.DOTALL
)
"""Characters and sets of them that mean the same to Java and to Python."""

_BEYOND = 128
_NOTHING = -1
"""In a set of what may come: any character beyond ASCII; perhaps nothing more."""

_EVERY = frozenset(range(_BEYOND + 1))


@dataclass(frozen=True)
class Effort:
    """The effort that a pattern can cost.

    Args:
        degree: a search takes time like this power of the text's length.
        choices: times 2 to the power of this.
        repeats: whether a part of it can match texts of different lengths.
        endless: which part of it may take exponential time, and why; nothing where none does.
    """

    degree: float = 0
    choices: float = 0
    repeats: bool = False
    endless: str = ""


@dataclass(frozen=True)
class _Part:
    """A part of a pattern: a character out of `chars`, or one of several sequences, as often as said.

    Args:
        chars: the characters, where it is one.
        branches: the sequences, where it is a group; one empty sequence is a place like `^` or `\\b`.
        minimum, maximum: how often; `maximum` is 1 for what is not repeated.
        keeps: what it has matched is not tried in other ways (possessive, atomic, looking ahead or behind).
        width: whether it moves on (looking ahead or behind does not).
    """

    chars: frozenset[int] = frozenset()
    branches: tuple[tuple[_Part, ...], ...] = ()
    minimum: float = 1
    maximum: float = 1
    keeps: bool = False
    width: bool = True

    def first(self) -> frozenset[int]:
        """Return what it may begin with."""
        if not self.width:
            return frozenset({_NOTHING})
        found = self.chars.union(*(_next(branch, {_NOTHING}) for branch in self.branches))
        return found if self.minimum else found | {_NOTHING}

    def repeats(self, or_chooses: bool = False) -> bool:
        """Tell whether it can match texts of different lengths, itself or within; or in different ways."""
        own = self.minimum != self.maximum and (or_chooses or self.maximum > 1)
        within = any(part.repeats(or_chooses) for branch in self.branches for part in branch)
        return own or within or (or_chooses and len(self.branches) > 1)


@dataclass(frozen=True)
class _Cost:
    """Exponents of the text's length: how many ends a part can have from one start, and what it takes to try them; and bits of choices."""

    ends: float = 0
    steps: float = 0
    choices: float = 0


def effort(pattern: str) -> Effort:
    """Read a regular expression of Java that is looked for anywhere in a text; never raises."""
    pattern = _QUOTED.sub(lambda match: match[1] or re.escape(match[2]), pattern)
    flagged = bool(_ANY_FLAGS.search(pattern))
    root = _parse(pattern, flagged)
    if isinstance(root, str):
        return Effort(endless=root)
    cost = _cost(root, _EVERY | {_NOTHING}, last=True)
    anchored = (
        re.match(r"\^|\\A", pattern)
        and len(root.branches) == 1
        and not flagged
        and not _QUANTIFIER.match(pattern, 1)
    )
    return Effort(cost.steps + (not anchored), cost.choices, root.repeats())


def like_effort(pattern: str) -> Effort:
    """Read a pattern of LIKE, which is held against the whole text: each `%` but the last takes its
    turn."""
    gaps = re.sub(r"\\.", "x", pattern, flags=re.DOTALL).rstrip("%").count("%")
    return Effort(gaps, repeats=gaps > 1)


def searched(pattern: str, like: bool = False) -> int | None:
    """Return how many characters of a text are searched, from its beginning; None: all. `like`: it is a pattern of LIKE.

    Of patterns that are refused (`refusal`) it is the least number.
    """
    pattern_effort = like_effort(pattern) if like else effort(pattern)
    if (
        not (pattern_effort.endless or pattern_effort.repeats)
        and pattern_effort.degree <= 1
        and pattern_effort.choices <= FEW_CHOICES
    ):
        return None
    return next(
        (characters for characters in SEARCHED if _within(pattern_effort, characters)), SEARCHED[-1]
    )


def refusal(pattern: str, like: bool = False) -> str | None:
    """Return why a pattern is not taken; None: it is."""
    known = like_effort(pattern) if like else effort(pattern)
    if known.endless:
        return ENDLESS.format(known.endless)
    return None if _within(known, SEARCHED[-1]) else TOO_SLOW


def _within(pattern_effort: Effort, characters: int) -> bool:
    return not pattern_effort.endless and pattern_effort.choices + pattern_effort.degree * log2(
        characters
    ) <= log2(MOST_STEPS)


def _next(parts: Sequence[_Part], followers: Set[int]) -> frozenset[int]:
    """Return what a sequence may begin with, if `followers` comes after it."""
    firsts: frozenset[int] = frozenset()
    for part in parts:
        part_firsts = part.first()
        firsts |= part_firsts - {_NOTHING}
        if _NOTHING not in part_firsts:
            return firsts
    return firsts | followers


def _disjoint(chars: Set[int], other_chars: Set[int]) -> bool:
    """Tell whether one character tells which of both it is."""
    return _NOTHING not in chars | other_chars and not chars & other_chars


def _cost(part: _Part, followers: Set[int], last: bool) -> _Cost:
    """Return what it takes to match a part before `followers`; `last`: with it the whole pattern is matched, and nothing is tried again."""
    # A repetition that ends where a character comes that it cannot match has one way only to go on.
    sure = (
        part.keeps
        or part.minimum == part.maximum
        or _disjoint(replace(part, minimum=1).first(), followers)
    )
    if part.maximum > MAX_TIMES:
        is_exact = part.minimum == part.maximum and part.maximum <= MAX_WIDTH
        return _Cost(not sure, not (is_exact or (last and part.width)))
    if part.keeps:
        followers = _EVERY | {_NOTHING}
        last = False
    branch_costs = [_sequence(branch, followers, last) for branch in part.branches] or [_Cost()]
    firsts = [_next(branch, followers) for branch in part.branches]
    told_apart = all(
        _disjoint(first, earlier) for i, first in enumerate(firsts) for earlier in firsts[:i]
    )
    counts = (
        0
        if sure or (last and part.maximum == 1 and not part.branches)
        else log2(part.maximum - part.minimum + 1)
    )
    choices = (
        max(cost.choices for cost in branch_costs)
        + (0 if told_apart else log2(len(branch_costs)))
        + counts
    )
    return _Cost(
        0 if part.keeps else max(cost.ends for cost in branch_costs),
        max(cost.steps for cost in branch_costs),
        choices,
    )


def _sequence(parts: Sequence[_Part], followers: Set[int], last: bool) -> _Cost:
    ends = 0.0
    steps = 0.0
    choices = 0.0
    for i, part in enumerate(parts):
        cost = _cost(part, _next(parts[i + 1 :], followers), last and i + 1 == len(parts))
        steps = max(steps, ends + cost.steps)
        ends = ends + cost.ends
        choices = choices + cost.choices
    return _Cost(ends, steps, choices)


def _parse(pattern: str, flagged: bool) -> _Part | str:  # noqa: C901
    """Return the parts of a pattern, or which of them may take exponential time, and why."""
    groups: list[tuple[int, str, list[list[_Part]]]] = [(0, "", [[]])]
    position = 0
    while position < len(pattern) or len(groups) > 1:
        piece = _PIECE.match(pattern, position) if position < len(pattern) else _PIECE.match(")")
        if piece is None or len(groups) > MAX_DEPTH:
            return f"what begins at character {position + 1} is too deep, or has no end"
        kind = piece.lastgroup
        text = piece.group()
        start = position
        branches = groups[-1][2]
        position += len(text)
        quantifier = _QUANTIFIER.match(pattern, position)
        if kind in ("refers", "flags", "opens"):
            if kind == "refers":
                return f"`{text}` refers to a group"
            if re.fullmatch(r"\(\?[a-zA-Z-]*x[a-zA-Z-]*[:)]", text):
                return f"`{text}` allows comments, in which what counts is not what it seems"
            if kind == "opens":
                groups.append((start, text, [[]]))
            continue
        if kind == "chooses":
            branches.append([])
            continue
        if kind == "closes" and len(groups) > 1:
            start, opening, _ = groups.pop()
            aside = opening in ("(?=", "(?!", "(?<=", "(?<!")
            once = _Part(
                branches=tuple(map(tuple, branches)),
                keeps=aside or opening == "(?>",
                width=not aside,
            )
            # Java looks behind from every place that could be the beginning.
            if opening.startswith(("(?<=", "(?<!")) and once.repeats():
                return f"`{pattern[start:position]}` looks behind for what repeats"
        elif kind == "place":
            once = _Part(branches=((),))
        elif (
            kind == "several" and not quantifier
        ):  # a line break or a grapheme is one character or several
            once = _Part(_EVERY, maximum=2, keeps=True)
        else:
            once = _Part(_chars(text, flagged))
        if quantifier:
            position = quantifier.end()
            minimum, maximum = _times(quantifier.group(1))
            if maximum > 1 and once.repeats(or_chooses=True):
                return f"`{pattern[start:position]}` repeats what itself repeats or chooses"
            once = once if once.width and once.maximum == 1 else _Part(branches=((once,),))
            once = replace(
                once,
                minimum=minimum,
                maximum=maximum,
                keeps=once.keeps or quantifier.group(2) == "+",
            )
        groups[-1][2][-1].append(once)
    return _Part(branches=tuple(map(tuple, groups[0][2])))


@lru_cache(1_000)
def _chars(text: str, flagged: bool) -> frozenset[int]:
    """Return what one character of a pattern, or a set of them, can match, and perhaps more; with flags, letters of the other case and beyond ASCII."""
    if not _READ_ALIKE.fullmatch(text):
        return _EVERY
    try:
        ways = [
            re.compile(text, re.ASCII),
            *([re.compile(text, re.ASCII | re.IGNORECASE)] if flagged else []),
        ]
    except re.error:
        return _EVERY
    beyond_chars = (
        frozenset({_BEYOND})
        if flagged or not text.isascii() or ways[0].match("\uffff")
        else frozenset()
    )
    return beyond_chars | frozenset(
        code for code in range(_BEYOND) if any(way.match(chr(code)) for way in ways)
    )


def _times(quantifier: str) -> tuple[float, float]:
    if quantifier in "*+?":
        return {"*": (0, inf), "+": (1, inf), "?": (0, 1)}[quantifier]
    least, comma, most = quantifier[1:-1].partition(",")
    return float(least), float(most) if most else inf if comma else float(least)
