"""docs/accuracy.md and docs/performance.md: what commands write into them, between markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
PERFORMANCE = PAGE.with_name("performance.md")
FIGURES = PAGE.parent / "figures"


def write(name: str, lines: Sequence[str], page: Path = PAGE) -> None:
    """Print the lines and put them between the markers of that name."""
    print("\n".join(lines))
    begin = f"<!-- {name}: begin -->"
    end = f"<!-- {name}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + end + after, encoding="utf-8")
