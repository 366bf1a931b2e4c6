"""How long a search for a pattern may take: read off the pattern, so that no text of a record can stop a job.

Spark searches by backtracking. A repetition of something that itself repeats or chooses (`(a+)+`, `(a|b)*`) or a reference to a group can take
exponential time, or fill the stack; such patterns are refused. Several repetitions in a row that can trade characters (`a.*b.*c`) take time
like a power of the text's length, the *degree*: the higher it is, the shorter the beginning of a long text that is searched, and above 3 the
pattern is refused.

Degree and choices are upper bounds: sets of characters are taken too large rather than too small, and what is not known for the worst.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log2

MAX_SEARCHED = 10_000
"""Characters of a text that are looked at where the time grows with the square of the text, or may."""

SEARCHED = (MAX_SEARCHED, 500)
"""So many characters are searched, the first that keeps within MOST_STEPS."""

MOST_STEPS = 1e9
"""Steps of a search: seconds."""

MAX_CHANGED = 1_000_000
"""Characters of a text that are looked at where the result may be many times as long, or have as many elements."""

ENDLESS = "A search for this pattern could take exponential time: it repeats a group that repeats or chooses, or refers to a group"
TOO_SLOW = "A search for this pattern could take hours on one text: too many repetitions in it can match the same characters"

MAX_TIMES = 10
"""A group with repetitions may be repeated so often; a repetition of fewer is a choice."""

FEW_CHOICES = 3
"""Bits of choices with which a long text is searched as a whole."""

MAX_WIDTH = 100
"""So many characters in a row, no more and no less, are one step."""

MAX_DEPTH = 50
"""Groups within groups; a pattern with more is taken for one without end."""

_QUANTIFIER = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})([?+]?)")
_OPENING = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[a-zA-Z-]*:))?")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*\)")
_ANY_FLAGS = re.compile(r"\(\?[a-zA-Z-]+[:)]")
_ESCAPE = re.compile(r"\\(?:Q(?P<quoted>.*?)(?:\\E|\Z)|[pPxN]\{[^}]*\}|[pP]\w|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|0[0-7]{1,3}|c.|.)", re.DOTALL)

_OTHER = 1 << 128
"""All characters beyond ASCII are one bit of a set."""

_EVERY = 2 * _OTHER - 1


def _bits(characters: str) -> int:
    return sum({1 << ord(char) if ord(char) < 128 else _OTHER for char in characters})


_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_KINDS = {"d": _bits(_DIGITS), "w": _bits(_DIGITS + _LETTERS + _LETTERS.upper() + "_"), "s": _bits(" \t\n\x0b\f\r")}
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}


@dataclass(frozen=True)
class Effort:
    """What a pattern can cost.

    Args:
        degree: a search takes time like this power of the text's length.
        choices: times 2 to the power of this.
        repeats: whether a part of it can match texts of different lengths.
        explodes: whether it may take exponential time.
    """

    degree: float = 0
    choices: float = 0
    repeats: bool = False
    explodes: bool = False


@dataclass(frozen=True)
class _Part:
    """A part of a pattern: a character out of `chars`, or one of several sequences, as often as said.

    Args:
        chars: the characters, where it is one.
        branches: the sequences, where it is a group; one empty sequence is a place like `^` or `\\b`.
        least, most: how often; `most` is 1 for what is not repeated.
        keeps: what it has matched is not tried in other ways (possessive, atomic, looking ahead or behind).
        width: whether it moves on (looking ahead or behind does not).
    """

    chars: int = 0
    branches: tuple[tuple[_Part, ...], ...] = ()
    least: float = 1
    most: float = 1
    keeps: bool = False
    width: bool = True

    def first(self) -> _Next:
        """What it may begin with."""
        if not self.width:
            return _Next(0, True)
        found = [_next(branch, _Next(0, True)) for branch in self.branches] or [_Next(self.chars, False)]
        return _Next(_joined(found), self.least == 0 or any(one.nothing for one in found))

    def varies(self) -> bool:
        """Whether it repeats or chooses, itself or within."""
        return self.least != self.most or len(self.branches) > 1 or any(part.varies() for branch in self.branches for part in branch)

    def explodes(self) -> bool:
        within = [part for branch in self.branches for part in branch]
        return any(part.explodes() for part in within) or (
            self.most > MAX_TIMES and (len(self.branches) > 1 or any(part.varies() for part in within))
        )


@dataclass(frozen=True)
class _Next:
    """What comes next: one of these characters, or perhaps nothing more."""

    chars: int
    nothing: bool

    def apart(self, other: _Next) -> bool:
        """Whether one character tells which of both it is."""
        return not self.nothing and not other.nothing and not self.chars & other.chars


@dataclass(frozen=True)
class _Cost:
    """Exponents of the text's length: how many ends a part can have from one start, and what it takes to try them; and bits of choices."""

    ends: float = 0
    steps: float = 0
    choices: float = 0


_UNKNOWN = _Next(_EVERY, True)
_SEVERAL = _Part(_EVERY, most=2, keeps=True)


def effort(pattern: str) -> Effort:
    """Read a regular expression of Java that is looked for anywhere in a text; never raises."""
    reader = _Reader(pattern)
    whole = reader.whole()
    if reader.explodes or whole.explodes():
        return Effort(explodes=True)
    cost = _cost(whole, _UNKNOWN, last=True)
    anchored = re.match(r"\^|\\A", pattern) and len(whole.branches) == 1 and not reader.flagged and not _QUANTIFIER.match(pattern, 1)
    return Effort(cost.steps + (not anchored), cost.choices, _repeats(whole))


def like_effort(pattern: str) -> Effort:
    """The same for a pattern of LIKE, which is held against the whole text: each `%` but the last takes its turn."""
    gaps = re.sub(r"\\.", "x", pattern, flags=re.DOTALL).rstrip("%").count("%")
    return Effort(gaps, repeats=gaps > 1)


def searched(pattern: str, like: bool = False) -> int | None:
    """How many characters of a text are searched, from its beginning; None: all. `like`: it is a pattern of LIKE.

    Of patterns that are refused (`refusal`) it is the least number.
    """
    known = like_effort(pattern) if like else effort(pattern)
    if not known.repeats and known.degree <= 1 and known.choices <= FEW_CHOICES:
        return None
    return next((characters for characters in SEARCHED if _within(known, characters)), SEARCHED[-1])


def refusal(pattern: str, like: bool = False) -> str | None:
    """Why a pattern is not taken; None: it is."""
    known = like_effort(pattern) if like else effort(pattern)
    if known.explodes:
        return ENDLESS
    return None if _within(known, SEARCHED[-1]) else TOO_SLOW


def _within(known: Effort, characters: int) -> bool:
    return not known.explodes and known.choices + known.degree * log2(characters) <= log2(MOST_STEPS)


def _repeats(part: _Part) -> bool:
    return (part.most > 1 and part.least != part.most) or any(_repeats(one) for branch in part.branches for one in branch)


def _joined(some: Sequence[_Next]) -> int:
    chars = 0
    for one in some:
        chars |= one.chars
    return chars


def _next(parts: Sequence[_Part], after: _Next) -> _Next:
    """What a sequence may begin with, if `after` comes after it."""
    chars = 0
    for part in parts:
        own = part.first()
        chars |= own.chars
        if not own.nothing:
            return _Next(chars, False)
    return _Next(chars | after.chars, after.nothing)


def _cost(part: _Part, after: _Next, last: bool) -> _Cost:
    """What it takes to match a part before `after`; `last`: with it the whole pattern is matched, and nothing is tried again."""
    own = part.first()
    # A repetition that ends where a character comes that it cannot match has one way only to go on.
    sure = part.keeps or part.least == part.most or replace(part, least=1).first().apart(after)
    if part.most > MAX_TIMES:
        exact = part.least == part.most and part.most <= MAX_WIDTH
        return _Cost(0 if sure else 1, 0 if exact or (last and part.width) else 1)
    if part.most == 0:
        return _Cost()
    if part.keeps:
        after, last = _UNKNOWN, False
    elif part.most > 1:
        after, last = _Next(own.chars | after.chars, own.nothing or after.nothing), False
    each = [_sequence(branch, after, last) for branch in part.branches] or [_Cost()]
    ends, steps = max(cost.ends for cost in each), max(cost.steps for cost in each)
    choices = max(cost.choices for cost in each) + (0 if _told_apart(part.branches, after) else log2(len(each)))
    counts = 0 if sure or (last and not part.branches) else log2(part.most - part.least + 1)
    steps = (part.most - 1) * ends + steps
    return _Cost(0 if part.keeps else part.most * ends, steps, part.most * choices + counts)


def _sequence(parts: Sequence[_Part], after: _Next, last: bool) -> _Cost:
    ends, steps, choices = 0.0, 0.0, 0.0
    for i, part in enumerate(parts):
        cost = _cost(part, _next(parts[i + 1 :], after), last and i + 1 == len(parts))
        steps = max(steps, ends + cost.steps)
        ends, choices = ends + cost.ends, choices + cost.choices
    return _Cost(ends, steps, choices)


def _told_apart(branches: Sequence[Sequence[_Part]], after: _Next) -> bool:
    firsts = [_next(branch, after) for branch in branches]
    return all(one.apart(other) for i, one in enumerate(firsts) for other in firsts[:i])


@dataclass
class _Open:
    """A group, or the whole pattern, as far as it has been read."""

    opening: str = ""
    branches: list[list[_Part]] = field(default_factory=lambda: [[]])

    def closed(self) -> _Part:
        aside = self.opening in ("(?=", "(?!", "(?<=", "(?<!")
        return _Part(branches=tuple(map(tuple, self.branches)), keeps=aside or self.opening == "(?>", width=not aside)


class _Reader:
    """Reads a pattern into its parts."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._open = pattern, [_Open()]
        self.flagged = bool(_ANY_FLAGS.search(pattern))
        self.explodes = False

    def whole(self) -> _Part:
        at = 0
        while at < len(self._pattern):
            at = self._one(at)
        while len(self._open) > 1:
            self._add(self._open.pop().closed())
        return self._open[0].closed()

    def _one(self, at: int) -> int:
        """Read what stands at a place and what it is repeated by; returns the place after it."""
        char = self._pattern[at]
        if char == "\\":
            end = self._escape(at)
        elif char == "[":
            end = _class_end(self._pattern, at)
            self._character(self._class(self._pattern[at + 1 : end - 1]))
        elif flags := _FLAGS.match(self._pattern, at):
            self.explodes |= "x" in flags.group()  # comments: what counts is not what it seems
            return flags.end()
        elif opening := _OPENING.match(self._pattern, at):
            self.explodes |= ("x" in opening.group() and opening.group().endswith(":")) or len(self._open) > MAX_DEPTH
            self._open.append(_Open(opening.group()))
            return opening.end()
        elif char == ")" and len(self._open) > 1:
            group, end = self._open.pop(), at + 1
            # Java looks behind from every place that could be the beginning.
            self.explodes |= group.opening.startswith(("(?<=", "(?<!")) and _repeats(group.closed())
            self._add(group.closed())
        elif char == "|":
            self._open[-1].branches.append([])
            return at + 1
        elif char in "^$":
            self._add(_Part(branches=((),)))
            end = at + 1
        else:
            self._character(_EVERY if char == "." else self._folded(_bits(char)))
            end = at + 1
        return self._repeated(end)

    def _repeated(self, at: int) -> int:
        quantifier, parts = _QUANTIFIER.match(self._pattern, at), self._open[-1].branches[-1]
        if quantifier is None or not parts:
            return at
        least, most = _times(quantifier.group(1))
        once = parts.pop()
        if once is _SEVERAL:
            once = _Part(_EVERY)
        if not once.width or (once.least, once.most) != (1, 1):
            once = _Part(branches=((once,),))
        parts.append(replace(once, least=least, most=most, keeps=once.keeps or quantifier.group(2) == "+"))
        return quantifier.end()

    def _escape(self, at: int) -> int:
        found, name = _ESCAPE.match(self._pattern, at), self._pattern[at + 1 : at + 2]
        if found is None:
            return len(self._pattern)
        if found["quoted"] is not None:
            for char in found["quoted"]:
                self._character(self._folded(_bits(char)))
        elif name in tuple("bBAzZGE"):
            self._add(_Part(branches=((),)))
        elif name in ("R", "X"):  # a line break or a grapheme is one character or several
            self._add(_SEVERAL)
        else:
            self.explodes |= name in tuple("123456789k")
            self._character(self._folded(_escaped(found.group())[0]))
        return found.end()

    def _class(self, text: str) -> int:
        """A set that holds every character of a class."""
        negated, most, sure = text.startswith("^"), 0, 0
        items = re.findall(rf"(?:{_ESCAPE.pattern.replace('?P<quoted>', '?:')}|[^\\])(?:-(?=[^\\\[\]])[^\\])?", text[negated:], re.DOTALL)
        if "[" in text or "-\\" in text or "&&" in text or "\\Q" in text or sum(map(len, items)) != len(text) - negated:
            return _EVERY
        for item in items:
            upper, lower = _members(item)
            most, sure = most | upper, sure | lower
        return _EVERY & ~sure if negated else self._folded(most)

    def _folded(self, chars: int) -> int:
        """With flags, letters may match those of the other case, and beyond ASCII."""
        if not self.flagged:
            return chars
        both = [_bits(letter + letter.upper()) for letter in _LETTERS]
        return chars | _OTHER | sum(pair for pair in both if pair & chars and pair & ~chars) & ~chars

    def _character(self, chars: int) -> None:
        self._add(_Part(chars))

    def _add(self, part: _Part) -> None:
        self._open[-1].branches[-1].append(part)


def _escaped(text: str) -> tuple[int, int]:
    """The characters that an escape matches: at most, and surely."""
    name = text[1:2]
    if name.lower() in _KINDS:
        kind = _KINDS[name.lower()]
        return (kind, kind) if name.islower() else (_EVERY & ~kind, 0)
    if name in _PLAIN or not name.isalnum():
        return 2 * (_bits(_PLAIN.get(name, name)),)
    return _EVERY, 0


def _members(item: str) -> tuple[int, int]:
    """The characters of an item of a class: one, a range, or an escape; at most, and surely."""
    if item.startswith("\\"):
        return (_EVERY, 0) if re.fullmatch(r"\\.-.", item, re.DOTALL) else _escaped(item)
    if len(item) == 1:
        chars = _bits(item)
    else:
        low, high = ord(item[0]), ord(item[2])
        chars = sum(1 << code for code in range(low, min(high, 127) + 1)) | (_OTHER if high > 127 else 0)
    return chars, chars & ~_OTHER


def _times(quantifier: str) -> tuple[float, float]:
    if quantifier in "*+?":
        return {"*": (0, inf), "+": (1, inf), "?": (0, 1)}[quantifier]
    least, comma, most = quantifier[1:-1].partition(",")
    return float(least), float(most) if most else inf if comma else float(least)


def _class_end(pattern: str, at: int) -> int:
    """Past the bracket that closes the character class that begins at `at`."""
    depth, first = 0, at
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth, first = depth + 1, at + (pattern[at + 1 : at + 2] == "^")
        elif pattern[at] == "]" and at != first + 1:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(pattern)
