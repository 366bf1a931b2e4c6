"""Which functions run where, as the reference says it: made from the code. `python -m tests.docs.functions` writes it anew."""

from __future__ import annotations

from pathlib import Path

from dpsql.local.expressions import arities
from dpsql.sql.functions import FUNCTIONS

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
BEGIN, END = "<!-- functions: python -m tests.docs.functions -->\n", "<!-- end of functions -->\n"


def table() -> str:
    """The rows, without their place in the page."""
    local, spark = [], []
    for name, signature in sorted(FUNCTIONS.items()):
        taken = arities(name)
        if taken is None or taken >= set(range(signature.least, (signature.most or signature.least) + 1)):
            local.append(f"`{name}`")
        elif taken:
            local += [f"`{name}({', '.join('xyz'[:count])})`" for count in sorted(taken)]
            spark.append(f"other forms of `{name}`")
        else:
            spark.append(f"`{name}`")
    return f"| where | functions |\n|---|---|\n| `run`, `try`, `verify` | {', '.join(local)} |\n| `run` | {', '.join(spark)} |\n"


def written(page: str) -> str:
    """The page with the table of this code."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    REFERENCE.write_text(written(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
