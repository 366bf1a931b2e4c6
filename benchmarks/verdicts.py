"""How often dpsql says that a key is larger than another one where it is not, on three public streams.

    python benchmarks/verdicts.py DATA    # DATA/wikiticker/events.parquet, DATA/nasa-http-day/..., DATA/online-retail/...

The differences are those between the 20 largest keys of each window, COUNT(DISTINCT user_id), with a delta of 1e-9. The truth counts all records.
The table goes to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import pandas as pd  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.page import write  # noqa: E402
from dpsql.description import START  # noqa: E402
from dpsql.published.public_rows import PublicRows  # noqa: E402
from dpsql.view.difference import Of, difference  # noqa: E402
from dpsql.view.table import known_shortfall  # noqa: E402

LARGEST = 20
DRAWS = 20


@dataclass(frozen=True)
class Case:
    """A row of the table: a stream and what is asked of it. `window`: empty for one release of all records."""

    stream: str
    window: str
    groups: int
    epsilon: float

    @property
    def label(self) -> str:
        window = self.window or "one release"
        return f"{self.stream}, {window}, G = {self.groups}, epsilon {self.epsilon:g}"


CASES = (
    *(Case("wikiticker", "1 day", 2, epsilon) for epsilon in (1, 2, 6)),
    *(Case("wikiticker", "", groups, 1) for groups in (1, 2)),
    *(Case("nasa-http-day", "1 day", groups, 6) for groups in (4, 32)),
    *(Case("online-retail", "28 days", groups, 6) for groups in (8, 32, 128)),
)


@dataclass(frozen=True)
class Verdict:
    """What is said of a difference, and whether the truth is another."""

    is_real: bool
    of: Of | None
    is_wrong: bool


def verdicts(window: PublicRows, truth: pd.Series) -> Iterator[Verdict]:
    """Yield what is said of the pairs of the largest keys of a window.

    Args:
        window: its released rows.
        truth: of each key.
    """
    share = known_shortfall(window, "users")
    largest = window.frame.nlargest(LARGEST, "users")
    columns = (largest[name] for name in ("key", "users", "users_stderr"))
    for one, other in itertools.combinations(zip(*columns, strict=True), 2):
        (key, value, error), (other_key, other_value, other_error) = one, other
        change = difference(value, error, other_value, other_error, 0.0)
        is_wrong = (truth[key] - truth[other_key]) * change.value <= 0
        of = change.verdict(min(value, other_value), share)
        yield Verdict(change.real(), of, bool(is_wrong))


def windows(
    case: Case, rows: PublicRows, records: pd.DataFrame
) -> Iterator[tuple[PublicRows, pd.Series]]:
    """Yield the released rows of each window with the true numbers of its keys."""
    if not case.window:
        yield rows, records.groupby("key")["user_id"].nunique()
        return
    for start in rows.frame[START].unique():
        end = start + pd.Timedelta(case.window)
        inside = records[(records["ts"] >= start) & (records["ts"] < end)]
        truth = inside.groupby("key")["user_id"].nunique()
        yield rows.where(rows.frame[START] == start), truth


def all_verdicts(case: Case, records: pd.DataFrame, secret: Path) -> list[Verdict]:
    """Return what is said of all pairs, in all windows and draws."""
    group = f"window(ts, '{case.window}'), key" if case.window else "key"
    sql = f"SELECT key, COUNT(DISTINCT user_id) AS users FROM records GROUP BY {group}"
    session = dpsql.session(records, unit="user_id", time="ts", secret=secret)
    until = records["ts"].max() + pd.Timedelta(case.window or 0)
    options = {"epsilon": case.epsilon, "delta": 1e-9, "max_groups_contributed": case.groups}
    out: list[Verdict] = []
    for _ in range(DRAWS):
        answer = session.query(sql, until=until if case.window else None, **options)
        rows = PublicRows.of_frame(answer.all_rows).newest
        for window, truth in windows(case, rows, records):
            out += verdicts(window, truth)
    return out


def cell(told: Iterable[Verdict], pairs: int) -> str:
    """Return which share of the pairs is told apart, and which of these is wrong."""
    is_wrong = [verdict.is_wrong for verdict in told]
    if not is_wrong:
        return "none"
    return f"{len(is_wrong) / pairs:.0%}, {sum(is_wrong) / len(is_wrong):.1%}"


def line(case: Case, found: list[Verdict]) -> str:
    """Return a row of the table."""
    real = cell((verdict for verdict in found if verdict.is_real), len(found))
    of_all = cell((verdict for verdict in found if verdict.of is Of.ALL), len(found))
    return f"| {case.label} | {len(found):,} | {real} | {of_all} |"


def main() -> None:
    """Print the table and write it into the page."""
    parser = argparse.ArgumentParser(description="Differences that are said, and wrong.")
    parser.add_argument("data", type=Path, help="folder with one folder per stream")
    data = parser.parse_args().data
    lines = ["| | pairs | noise alone | of all records |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            records = pd.read_parquet(data / case.stream / "events.parquet")
            found = all_verdicts(case, records[["user_id", "key", "ts"]], Path(folder, "secret"))
            lines.append(line(case, found))
            print(lines[-1], file=sys.stderr, flush=True)
    write("verdicts", lines)


if __name__ == "__main__":
    main()
