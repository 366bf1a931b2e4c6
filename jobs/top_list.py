"""Lists of the largest values on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dpsql.description import START
from dpsql.jobs.terminal import console
from dpsql.published.public_rows import newest_triggers, published_of
from dpsql.text import Z95
from dpsql.view.plain_table import NO_LIST, lines_of, value_text
from dpsql.view.table import finished
from dpsql.view.words import TIME, absent, amount, heads, left_out, printable

if TYPE_CHECKING:
    import pandas as pd

FOOT = (
    "with collisions: a 95% interval that also covers collisions with other values, for values named before looking;",
    "a value that is listed by luck is estimated too high. Any other value: dpsql ask NAME --value VALUE.",
)


def print_lists(frame: pd.DataFrame, limit: int, every: bool = False, clock: Any = None) -> None:
    """A table for every list, and what the bounds leave out in words: the newest finished window first, or all triggers, the newest first."""
    out = console()
    published = published_of(frame)
    if not published.lists:
        out.print(NO_LIST, markup=False)
        return
    rows = frame if every else newest_triggers(frame)
    caps = heads(published)
    ended = dict(zip(rows[START], finished(rows, clock), strict=True))
    for name in published.lists:
        lines = lines_of(rows, name)
        table = Table("window", "trigger", box=None, pad_edge=False)
        table.add_column("value", overflow="fold")
        table.add_column(
            Text.assemble(printable(name), (f"\n{caps[name]}" if name in caps else "", "dim")),
            justify="right",
        )
        for head in ("noise", "with collisions"):
            table.add_column(head, justify="right")
        for line in lines[:limit]:
            trigger = f"{line['trigger']}{'' if ended[line[START]] else ', unfinished'}"
            value = Text(
                value_text(line["value"]), style="dim italic" if absent(line["value"]) else ""
            )
            table.add_row(f"{line[START]:{TIME}}", trigger, value, *numbers(line))
        out.print(table)
        if not lines:
            out.print(f"{name}: no value is listed.", markup=False)
        elif len(lines) > limit:
            out.print(
                f"{len(lines) - limit:,} more rows: --limit {len(lines)}", style="dim", markup=False
            )
    for said in (*left_out(published), *FOOT):
        out.print(said, style="dim", markup=False)


def numbers(line: dict[str, Any]) -> tuple[str, str, str]:
    """A value, 95% of its noise, and its interval."""
    whole = isinstance(line["amount"], int)
    error = Z95 * line["stderr"]
    low, high = (
        f"{line[end]:,.0f}" if whole else amount(line[end], error) for end in ("low", "high")
    )
    return (
        f"{line['amount']:,.0f}" if whole else amount(line["amount"], error),
        f"± {amount(error, error, whole)}",
        f"{low} .. {high}",
    )
