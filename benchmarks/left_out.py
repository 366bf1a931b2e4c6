"""How often each sentence about what the limits left out is said, and how often it is false.

    python benchmarks/left_out.py                  # the table, into docs/accuracy.md
    python benchmarks/left_out.py --real           # one cell by whole queries, beside the same cell by the short cut

A cell is a number of people and a share of them who do more than the limits count. Every person has one record that counts; those have one record
more (at the share of 50% two), one of them a thousand, all of other keys, and their values are above the bound. The short cut draws the noise
anew for each secret, over the true figures; everything else is that of the product.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.page import write  # noqa: E402
from dpsql.description import STDERR  # noqa: E402
from dpsql.privacy.ledger import Ledger  # noqa: E402
from dpsql.privacy.secret import Secret  # noqa: E402
from dpsql.published.public_rows import PublicRows  # noqa: E402
from dpsql.view.left_out import LeftOut, estimates  # noqa: E402

SIZES = (300, 3_000, 30_000, 1_000_000)
SHARES = (0.0, 0.001, 0.01, 0.1, 0.5)
SECRETS = 2_000
REAL = (300, 0.1)
KEYS = 10
VERY_ACTIVE = 1_000
SQL = """SELECT page, COUNT(DISTINCT user_id) AS people, COUNT(*) AS views,
SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total FROM visits GROUP BY page"""
OPTIONS = {"epsilon": 1.0, "delta": 1e-6, "max_groups_contributed": 1, "max_rows_per_group": 1}
SUBJECTS = {
    "have more records": "people over",
    "pairs of a unit": "pairs",
    "of the records": "records",
    "were clamped": "values clamped",
    "in all:": "people",
}
SENTENCE = re.compile(r"(Between|At least|Fewer than|At most) ([\d.,]+)%?(?: and ([\d.]+)%)? (.*)")


@dataclass(frozen=True)
class Cell:
    """A crowd: how many people, and which share of them does more than is counted."""

    people: int
    share: float

    @property
    def active(self) -> int:
        return round(self.people * self.share)

    @property
    def further(self) -> int:
        """Records of an active person that do not count."""
        return 2 if self.share > 0.1 else 1

    @property
    def counted(self) -> int:
        """The left-out records as far as they are counted: two of a person."""
        return self.active and (self.active - 1) * self.further + 2

    @property
    def figures(self) -> dict[str, int]:
        """The true figures."""
        people = dict.fromkeys(("units", "pairs", "rows"), self.people)
        over = dict.fromkeys(("units_over", "values_clamped"), self.active)
        return people | over | dict.fromkeys(("pairs_left_out", "rows_left_out"), self.counted)

    def shares(self, subject: str) -> tuple[float, float]:
        """Return what the share that a sentence is of is, as far as it is counted, and in truth."""
        if subject in ("pairs", "records"):
            missing = self.active and (self.active - 1) * self.further + VERY_ACTIVE
            return tuple(part / (part + self.people) for part in (self.counted, missing))  # type: ignore[return-value]
        return (self.active / self.people,) * 2

    def records(self) -> pd.DataFrame:
        """Return the records, in any order: the keys of further ones are others than that of the first."""
        extra = np.full(self.active, self.further)
        extra[:1] = VERY_ACTIVE
        person = np.concatenate([np.arange(self.people), np.repeat(np.arange(self.active), extra)])
        number = np.concatenate([np.zeros(self.people, int), *(np.arange(1, n + 1) for n in extra)])
        seconds = np.where(person < self.active, 100.0, 30.0)
        page = (person + number) % KEYS + np.where(number < KEYS, 0, number)
        return pd.DataFrame({"user_id": person, "page": page, "seconds": seconds})


@cache
def plan() -> dpsql.Query:
    """Return the query with its plan, which is one for all cells."""
    records = Cell(300, 0.1).records()
    with tempfile.TemporaryDirectory() as folder:
        session = dpsql.session(records, unit="user_id", name="visits", secret=Path(folder, "s"))
        return session.plan(SQL, **OPTIONS)


def drawn(cell: Cell, secrets: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield what is said of a cell, of one secret after another: true figures with new noise."""
    draws = np.random.default_rng([seed, cell.people, round(1e6 * cell.share)])
    published = plan().published
    planned = plan().plan.left_out.figures
    sigmas = np.array([figure.sigma for figure in planned])
    truth = np.array([cell.figures[figure.name] for figure in planned])
    errors = {f"{figure.name}_{STDERR}": figure.stderr for figure in planned}
    for noise in draws.normal(0.0, sigmas, (secrets, len(planned))):
        numbers = (truth + np.rint(noise)).astype(int).tolist()
        names = (figure.name for figure in planned)
        figures = dict(zip(names, numbers, strict=True)) | errors
        yield LeftOut(figures, published, KEYS).sentences()


def real(cell: Cell, secrets: int) -> Iterator[list[str]]:
    """Yield the same by whole queries, each with a secret of its own."""
    records = cell.records()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(secrets):
            secret = Secret(os.urandom(32))
            ledger = Ledger(Path(folder, str(number)), secret)
            session = dpsql.session(records, unit="user_id", secret=secret, ledger=ledger)
            answer = session.query(SQL, **OPTIONS)
            yield list(estimates(PublicRows.of_frame(answer.all_rows)))


def is_false(said: re.Match[str], cell: Cell, subject: str) -> bool:
    """Tell whether a sentence is not true of a cell."""
    kind, number, high, rest = said.groups()
    value = float(number.replace(",", ""))
    if kind == "At most":
        return value < cell.people
    counted, whole = (100 * share for share in cell.shares(subject))
    if kind == "At least":
        return whole < value
    if kind == "Fewer than":
        return (counted if ", counting" in rest else whole) >= value
    return not value <= whole <= float(high)


def counts(cell: Cell, told: Iterable[list[str]]) -> Counter[tuple[str, bool]]:
    """Count the sentences by kind, those that are true and those that are not."""
    found = Counter[tuple[str, bool]]()
    for text in (sentence for sentences in told for sentence in sentences):
        if said := SENTENCE.fullmatch(text):
            subject = next(name for part, name in SUBJECTS.items() if part in said[4])
            found[f"{said[1]}: {subject}", is_false(said, cell, subject)] += 1
        else:
            found[text.partition(" ")[0], False] += 1
    return found


def text_of(found: Counter[tuple[str, bool]], kind: str, secrets: int) -> str:
    """Return in how many secrets a sentence is said, and in how many it is false."""
    said, wrong = found[kind, False] + found[kind, True], found[kind, True]
    return f"{said / secrets:.1%}, {wrong / secrets:.2%}" if said else ""


def table(secrets: int) -> list[str]:
    """Return the table: a line for each sentence and share, a column for each number of people."""
    cells = {(size, share): Cell(size, share) for size in SIZES for share in SHARES}
    found = {place: counts(cell, drawn(cell, secrets)) for place, cell in cells.items()}
    kinds = sorted({kind for each in found.values() for kind, _ in each if ":" in kind})
    lines = [f"| sentence | share | {' | '.join(f'{size:,}' for size in SIZES)} |"]
    lines.append("|---" * (len(SIZES) + 2) + "|")
    for kind in kinds:
        for share in SHARES:
            texts = [text_of(found[size, share], kind, secrets) for size in SIZES]
            if any(texts):
                lines.append(f"| {kind} | {share:.1%} | {' | '.join(texts)} |")
    worst = max(each[kind, True] for each in found.values() for kind in kinds) / secrets
    bound = 0.025 + 3 * math.sqrt(0.025 * 0.975 / secrets)
    return [
        *lines,
        "",
        f"{secrets:,} secrets a cell. The worst is false in {worst:.2%}; chance allows {bound:.1%}.",
    ]


def main() -> None:
    """Print the table and write it into the page, or print one cell both ways."""
    parser = argparse.ArgumentParser(description="Sentences that are said, and false.")
    parser.add_argument("--secrets", type=int, default=SECRETS)
    parser.add_argument("--real", action="store_true", help="one cell by whole queries")
    options = parser.parse_args()
    if not options.real:
        write("left-out", table(options.secrets))
        return
    cell = Cell(*REAL)
    ways = {"real": real, "drawn": drawn}
    found = {name: counts(cell, way(cell, options.secrets)) for name, way in ways.items()}
    for kind in sorted({kind for each in found.values() for kind, _ in each}):
        texts = {name: text_of(each, kind, options.secrets) for name, each in found.items()}
        print(json.dumps({"sentence": kind} | texts))


if __name__ == "__main__":
    main()
