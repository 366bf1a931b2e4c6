"""Edits of the list after a change of layout: `python -m tests.planted --refit`, while the change is not committed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.planted.faults import CHECKOUT, LIST, Fault, read


def refit(fault: Fault, before: str, now: str, layout: Callable[[str], str]) -> Fault | None:
    """Return a fault as an edit of a module whose layout alone has changed; None where more has.

    Args:
        fault: fits `before`.
        before, now: the module's text.
        layout: formats a module as the checkout is formatted now.
    """
    if layout(before) != now:
        return None
    lines = now.splitlines(keepends=True)
    planted = layout(before.replace(fault.old, fault.new)).splitlines(keepends=True)
    matches = difflib.SequenceMatcher(None, lines, planted, autojunk=False).get_opcodes()
    edits = [match for match in matches if match[0] != "equal"]
    first, last = edits[0][1], edits[-1][2]
    planted_first, planted_last = edits[0][3], edits[-1][4]
    while first == last or now.count("".join(lines[first:last])) != 1:
        first -= 1
        planted_first -= 1
    old = "".join(lines[first:last])
    return dataclasses.replace(fault, old=old, new="".join(planted[planted_first:planted_last]))


def rewrite(text: str, fault: Fault) -> str:
    """Return the text of the list with the edit of one fault."""
    start = text.index(f'["{fault.breaks}"]')
    end = text.find('\n["', start)
    entry = text[start:] if end < 0 else text[start:end]
    changed = entry
    for name, edit in (("old", fault.old), ("new", fault.new)):
        value = f"{name} = '''\n{edit}'''"
        literal = rf"^{name} = ('{{3}}.*?'{{3}}|\"[^\"\n]*\"|'[^'\n]*')$"
        changed = re.sub(literal, lambda _, value=value: value, changed, flags=re.S | re.M)
    return text.replace(entry, changed)


def refit_list() -> Iterator[str]:
    """Rewrite the list, and yield what is to be done by hand."""
    text = LIST.read_text()
    for fault in read():
        if not fault.file or (CHECKOUT / fault.file).read_text().count(fault.old) == 1:
            continue
        before = _run("git", "show", f"HEAD:{fault.file}")
        refitted = refit(fault, before, (CHECKOUT / fault.file).read_text(), _formatted)
        if refitted is None:
            yield f"{fault.breaks}: more than the layout of {fault.file} has changed"
        else:
            text = rewrite(text, refitted)
    LIST.write_text(text)


def _formatted(text: str) -> str:
    return _run(str(Path(sys.executable).with_name("ruff")), "format", "-", given=text)


def _run(*command: str, given: str = "") -> str:
    done = subprocess.run(
        command, cwd=CHECKOUT, input=given, capture_output=True, text=True, check=True
    )
    return done.stdout
