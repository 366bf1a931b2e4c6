"""Count how much there is to carry: words of code, and how dense they are.

    python .ci/count_lines.py [FOLDER ...]     default: the product, and the tests

A word is a token of code that is no bracket, comma or semicolon; docstrings, imports and comments
are no code. So the number does not move with the layout. Lines are printed, and are no goal.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.unit.density import PRODUCT, modules_of  # noqa: E402


def summary(*folders: str) -> str:
    """Return one line about the modules of some folders."""
    modules = modules_of(CHECKOUT, *folders)
    lines = [count for module in modules for count in module.tokens_by_line.values()]
    sizes = sorted(size for module in modules for _, size in module.functions())
    p95 = sizes[int(0.95 * len(sizes))]
    many = sum(not module.path.endswith("__init__.py") for module in modules)
    dense = sum(count > 25 for count in lines) / len(lines)
    return (
        f"{' '.join(folders)}: {sum(module.words for module in modules):,} words of code, "
        f"{sum(lines) / len(lines):.1f} tokens a line ({dense:.1%} of lines over 25), functions "
        f"of {p95} tokens (95%) and {sizes[-1]} (largest), {many} modules, {len(lines):,} lines"
    )


if __name__ == "__main__":
    groups = [(folder,) for folder in sys.argv[1:]] or [PRODUCT, ("tests",)]
    for group in groups:
        print(summary(*group))
