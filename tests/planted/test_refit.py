"""A planted fault follows its line through a change of layout, and never through a change of code."""

from __future__ import annotations

import tomllib

from tests.planted.faults import Fault
from tests.planted.refit import _formatted, refit, rewrite

BEFORE = "def f(a, b):\n  return a+b\n\ndef g(a, b):\n  return a-b\n"
FAULT = Fault("g adds", ("tests/a.py",), "make test", "udfs/a.py", "  return a-b", "  return a+b")


def test_an_edit_follows_a_change_of_layout() -> None:
    now = _formatted(BEFORE)
    refitted = refit(FAULT, BEFORE, now, _formatted)
    assert refitted is not None
    assert now.count(refitted.old) == 1
    assert now.replace(refitted.old, refitted.new) == _formatted(
        BEFORE.replace(FAULT.old, FAULT.new)
    )


def test_an_edit_stays_where_code_has_changed() -> None:
    assert refit(FAULT, BEFORE, _formatted(BEFORE.replace("b", "c")), _formatted) is None


def test_one_entry_of_the_list_is_rewritten() -> None:
    text = "[\"f\"]\nold = \"x\"\nnew = \"y\"\n\n[\"g adds\"]\nold = '''\n  x\n'''\nnew = 'y'\ntests = []\n"
    entries = tomllib.loads(rewrite(text, FAULT))
    assert entries["f"] == {"old": "x", "new": "y"}
    assert entries["g adds"] == {"old": FAULT.old, "new": FAULT.new, "tests": []}
