"""Audit tables: what a sample of real releases proves about the privacy that was spent, and which planted bugs such a sample catches.

    python benchmarks/audit.py           # 20,000 trials a side
    python benchmarks/audit.py --full    # 200,000, and docs/audits.md gets the tables

Prints, per scenario, the promise and the lower bounds found at 95% confidence; then, per planted bug, what gave it away and the power.
Exit code 1 if a bound is beyond a promise, or a planted bug is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from tests.audit.auditing import Result, audit  # noqa: E402
from tests.audit.bugs import BUGS  # noqa: E402
from tests.audit.scenarios import SCENARIOS  # noqa: E402

PAGE = CHECKOUT / "docs" / "audits.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
QUICK, FULL = 20_000, 200_000

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


def write(lines: Iterable[str]) -> None:
    """Replace what stands between the two markers of the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Lower bounds on delta and mu from real releases, and planted bugs.")
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} trials a side instead of {QUICK:,}; writes docs/audits.md")
    asked = parser.parse_args()
    trials = FULL if asked.full else QUICK
    lines, wrong = [], []

    def show(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

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
        result = audit(bug.scenario, trials, bug)
        show(bug_row(result))
        wrong += [bug.name] if result.kept else []
    if asked.full:
        write(lines)
    for name in wrong:
        print(f"not as it should be: {name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
