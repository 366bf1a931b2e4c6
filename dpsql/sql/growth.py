"""How long a value may become: what makes texts, BINARY or arrays longer looks at the beginnings of its arguments only.

A text that fills the memory ends a run, and an expression that makes one for a single record would tell of that record. So no expression makes
more than `LONGEST` characters, bytes or elements. The rule asks for kinds of nodes, named as Spark names them, and both engines ask it: they cut
alike. A kind that is not known here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

LONGEST = 1_000_000
"""Characters of a text, bytes of a BINARY, elements of an array. (`from_json` may write a number of its text at three times its length, once.)"""

NESTED = frozenset({"array", "struct", "map"})
LONG = NESTED | {"string", "binary"}
"""Types, by Spark's names, whose values have no fixed length."""

_TOGETHER = frozenset({"Concat", "CreateArray", "CreateNamedStruct"})
"""Nodes whose value holds all their arguments; those may not be nested, since elements of elements have no bound."""

_TIMES = {"Upper": 3, "Lower": 3, "InitCap": 3, "Base64": 2, "UrlEncode": 12}
"""How many times its text a value can be: one character can become three, or four bytes of three characters."""

_WRITTEN_ANEW = frozenset({"StructsToJson", "GetJsonObject"})
"""Nodes that write a nested value as text, at most some ten times as long: their value is cut, since its parts cannot be."""

_KEPT = """
Alias AttributeReference Literal TypedNullLiteral CaseWhen If Coalesce CommonExpressionDef CommonExpressionRef With Greatest Least IfNull Nvl
Nvl2 NullIf NullIfZero ZeroIfNull Left Right Substring SubstringIndex StringTrim StringTrimBoth StringTrimLeft StringTrimRight StringTranslate
Reverse RegExpExtract StringSplit ParseUrl TryUrlDecode UrlDecode Unhex StringLPad StringRPad BinaryPad StringSpace Bin Chr Conv Md5 Sha1 Sha2
SoundEx DateFormatClass DayName MonthName FromUnixTime ArrayDistinct ArrayMax ArrayMin SortArray MapKeys MapValues Get GetArrayItem
GetArrayStructFields GetMapValue GetStructField
"""
_NEVER_LONGER = frozenset(_KEPT.split())
"""Nodes whose value is no longer than an argument, or than a literal of the query says."""

_LOOKS_AROUND = re.compile(r"\(\?<?[=!]")


@dataclass(frozen=True)
class Growth:
    """How the value of a node is kept short.

    Args:
        limit: characters, bytes or elements of each argument that are looked at; None is all.
        cuts_value: whether the value itself has to be cut to LONGEST.
    """

    limit: int | None = None
    cuts_value: bool = False


AS_IT_IS = Growth()


def growth(
    kind: str, result_type: str, types: Sequence[str], literals: Mapping[int, str], fields: int = 1
) -> Growth | str:
    """Tell how a node's value is kept short; a text says why the node is refused.

    Args:
        kind: of the node, by Spark's name.
        result_type: the name of its type, like `string`.
        types: those of its arguments.
        literals: the texts of arguments that are literals, by place from 0.
        fields: of a node that reads arrays, the fields that each element may have.
    """
    if result_type not in LONG or kind in _NEVER_LONGER:
        return AS_IT_IS
    nested = any(name in NESTED for name in types)
    if kind in _TOGETHER and nested:
        return f"{kind} of arrays, structs or maps can double what it holds at each level: name single values, or use to_json"
    if kind == "Cast":
        return Growth(
            cuts_value=(nested and result_type == "string")
            or (types[0] == "string" and result_type == "binary")
        )
    if kind in _WRITTEN_ANEW:
        return Growth(cuts_value=True)
    if kind == "JsonToStructs":
        return Growth(LONGEST // fields)
    times = _factor(kind, types, literals)
    if times is None:
        return f"{kind} makes a value of unknown length: write it with other functions"
    # A pattern that matches nothing is also found behind the last character.
    return Growth(max(1, LONGEST // times - (kind == "RegExpReplace")), cuts_value=nested)


def _factor(kind: str, types: Sequence[str], literals: Mapping[int, str]) -> int | None:
    """Tell how many times as long as its longest argument a value can be, at most; None for a kind that is not known."""
    if kind in _TIMES:
        return _TIMES[kind]
    if kind == "Hex":
        return 8 if types[0] == "string" else 2
    if kind == "CreateNamedStruct":
        return max(1, len(types) // 2)
    if kind in _TOGETHER:
        return max(1, len(types))
    if kind == "ConcatWs":
        return len(types) + len(literals.get(0, ""))
    if kind == "ArrayJoin":
        return 1 + len(literals.get(1, "")) + len(literals.get(2, ""))
    if kind == "StringRepeat":
        return max(1, int(literals.get(1, "1")))
    if kind == "StringReplace" and 2 in literals:
        return 1 + len(literals[2])
    if kind == "RegExpReplace" and 2 in literals:
        return _of_pattern(literals.get(1, ""), literals[2])
    return None


def _of_pattern(pattern: str, replacement: str) -> int:
    """Bound what a replacement by pattern makes: `$1` repeats what it found, and what looks ahead may find the rest of the text anywhere."""
    once = 1 + len(replacement)
    if "$" in replacement and _LOOKS_AROUND.search(pattern):
        return LONGEST // max(1, isqrt(LONGEST // once))
    return once
