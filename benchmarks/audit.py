"""Audit tables: what a sample of real releases proves about the privacy that was spent, and which planted bugs such a sample catches.

    python benchmarks/audit.py           # 20,000 trials a side
    python benchmarks/audit.py --full    # 200,000, and docs/audits.md gets the tables
    python benchmarks/audit.py --sliding # sliding windows only: an exact search over neighbours; docs/audits.md gets its table

Prints, per scenario, the promise and the lower bounds found at 95% confidence; then, per planted bug, what gave it away and the power.
Exit code 1 if a bound is beyond a promise, or a planted bug is not.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from tests.audit.auditing import Result, audit  # noqa: E402
from tests.audit.bugs import BUGS  # noqa: E402
from tests.audit.scenarios import SCENARIOS  # noqa: E402
from tests.mechanisms.sliding import worst  # noqa: E402

PAGE = CHECKOUT / "docs" / "audits.md"
TABLES = "tables"
SLIDING = "sliding"
QUICK = 20_000
FULL = 200_000
PASSES = 10

SCENARIO_HEAD = (
    "| scenario | delta promised | delta true | delta found | mu promised | mu observable | share | mu found | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)
BUG_HEAD = (
    "| planted bug | scenario | delta promised | delta found | mu promised | mu found | seen in | beyond, in std errors | power |",
    "|---|---|---|---|---|---|---|---|---|",
)


def scenario_row(r: Result) -> str:
    """One line of the first table."""
    cells = (
        r.experiment.scenario.name,
        f"{r.promised.delta:.4f}",
        f"{r.delta.value:.4f}",
        f"{r.found.delta:.4f}",
        f"{r.promised.mu:.3f}",
        f"{r.mu.value:.3f}",
        f"{r.share:.0%}",
        f"{r.found.mu:.3f}",
        f"{r.seconds:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def bug_row(r: Result) -> str:
    """One line of the second table."""
    name, errors, power = r.beyond
    cells = (
        r.experiment.bug.name,
        r.experiment.scenario.name,
        f"{r.promised.delta:.4f}",
        f"{r.found.delta:.4f}",
        f"{r.promised.mu:.3f}",
        f"{r.found.mu:.3f}",
        name,
        f"{errors:.1f}",
        f"{power:.4f}" if power < 0.99995 else "> 0.9999",
    )
    return "| " + " | ".join(cells) + " |"


def write(name: str, lines: Iterable[str]) -> None:
    """Replace what stands between the two markers of the page."""
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    PAGE.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


class Shown:
    """Lines that are printed as they come, and kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def histogram(trials: int) -> tuple[list[str], list[str]]:
    """The two tables of histograms, and what is not as it should be."""
    show = Shown()
    wrong = []
    show(f"{trials:,} trials a side; epsilon = 1; bounds at 95% confidence.\n")
    for line in SCENARIO_HEAD:
        show(line)
    for scenario in SCENARIOS:
        result = audit(scenario, trials)
        show(scenario_row(result))
        wrong += [] if result.kept else [scenario.name]
    show("")
    for line in BUG_HEAD:
        show(line)
    for bug in BUGS:
        found = audit(bug.scenario, trials, bug)
        show(bug_row(found))
        wrong += [bug.name] if found.kept else []
    return show.lines, wrong


def sliding(passes: int) -> tuple[list[str], list[str]]:
    """The same of sliding windows, where neighbours are compared exactly: the largest share of the promise, and what planted bugs make of it."""
    show = Shown()
    wrong = []
    trials = 200
    show("| plan | neighbours | largest share of the promise |")
    show("|---|---|---|")
    for name in worst.PLANS:
        found = [worst.search(name, trials, seed) for seed in range(passes)]
        share = max(each.worst for each in found)
        show(f"| {name} | {sum(len(each.spent) for each in found):,} | {share:.6f} |")
        wrong += [name] if share > 1 + 1e-9 else []
    show("")
    show("| planted bug | plan | largest share of the promise |")
    show("|---|---|---|")
    for bug in worst.BUGS:
        share = worst.caught(bug, trials)
        show(
            f"| {bug.name} | {bug.where} | {'no bound' if math.isinf(share) else f'{share:.2f}'} |"
        )
        wrong += [bug.name] if share <= 1 else []
    return show.lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description="What real releases tell, against the promise, and planted bugs."
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"{FULL:,} trials a side instead of {QUICK:,}; writes docs/audits.md",
    )
    parser.add_argument(
        "--sliding", action="store_true", help="sliding windows only; writes docs/audits.md"
    )
    asked = parser.parse_args()
    of_sliding, wrong = sliding(PASSES if asked.full or asked.sliding else 1)
    if asked.full or asked.sliding:
        write(SLIDING, of_sliding)
    if not asked.sliding:
        lines, more = histogram(FULL if asked.full else QUICK)
        wrong += more
        if asked.full:
            write(TABLES, lines)
    for name in wrong:
        print(f"not as it should be: {name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
