"""Questions to a growing table: error bars of the product's plans, beside the sum over all cells, and PMWG as it was printed.

    python benchmarks/papers/growing.py wikiticker FILE.parquet [--errors KEYS]     52 channels, 24 hours, 10 sizes; a trigger an hour
    python benchmarks/papers/growing.py retail FILE.parquet                         13 months, 16 hours, 7 days, 10 amounts, 70 ranges; a trigger a week
    python benchmarks/papers/growing.py retail_small FILE.parquet                   the same without ranges
    python benchmarks/papers/growing.py NAME FILE.parquet --pmwg                    PMWG, alpha = 0.1, question by question
    python benchmarks/papers/growing.py NAME FILE.parquet --pay QUESTIONS           of all keys but one and of all, that no table covers, to .5% of the rows

FILE has columns ts, key, value. epsilon = 1, delta = 1e-6, one row is protected. 10,000 questions of one to three keys (seed 7), asked at rows that are
drawn from a fifth of the stream on, each at the trigger that ends after its row. `within` is how many answers are expected within a share
of the rows so far: by the law of the noise, not by drawing it.
--synthetic fits the synthetic table at the last trigger (noise key 1). --errors runs the release with so many noise keys, and asks 50 questions each.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.special import erf

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.papers.growing_rivals import pmwg, sum_over_cells  # noqa: E402
from dpsql.errors import DataError  # noqa: E402
from dpsql.mechanisms.marginals.accounting import account  # noqa: E402
from dpsql.mechanisms.marginals.plan import MarginalsPlan, cube  # noqa: E402
from dpsql.mechanisms.marginals.planner import make_plan  # noqa: E402
from dpsql.privacy.secret import Secret  # noqa: E402
from dpsql.published.ask_log import PRICE_BITS, AskLog  # noqa: E402
from dpsql.published.paid import PaidSession, answer  # noqa: E402
from dpsql.sources.domains import Domain  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.marginals.estimates import LeastSquares, Product, energies  # noqa: E402
from dpsql.udfs.marginals.exact import EXACT, ExactCounts  # noqa: E402
from dpsql.udfs.marginals.synthetic import fit, marginal  # noqa: E402
from dpsql.udfs.stage import RELEASE  # noqa: E402
from tests.mechanisms.marginals.dense import nothing_seen, release, split, sums  # noqa: E402
from tests.mechanisms.marginals.plans import numbered, published_tables, query, source  # noqa: E402

SEED = 7
HOUR_US = 3_600_000_000
QUESTIONS = 10_000
SHARES = (0.01, 0.005, 0.002)


@dataclass(frozen=True)
class Table:
    """A stream as values of declared domains: a row per record, and its trigger, from 1."""

    domains: tuple[Domain, ...]
    values: np.ndarray
    trigger: np.ndarray

    @property
    def last(self) -> int:
        return int(self.trigger.max())

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(domain.size for domain in self.domains)

    def rows_at(self, trigger: int) -> int:
        return int(np.sum(self.trigger <= trigger))


@dataclass(frozen=True)
class Question:
    predicate: Product
    trigger: int
    rows: int


def load(name: str, path: str) -> Table:
    """Domains as declared; what is outside is in the last value."""
    rows = pd.read_parquet(path).sort_values("ts", kind="stable")
    time_ = rows.ts.dt
    value = np.nan_to_num(rows.value.to_numpy(float))
    magnitude = np.where(value <= 0, 0, 1 + np.floor(np.log2(np.maximum(value, 1)))).clip(0, 9)
    if name == "wikiticker":
        columns = [
            (pd.factorize(rows.key, sort=True)[0], numbered(52, False)),
            (time_.hour, numbered(24, True)),
        ]
        columns.append((magnitude, numbered(10, True)))
        trigger = time_.hour.to_numpy() + 1
    else:
        columns = [
            ((time_.year - 2010) * 12 + time_.month - 12, numbered(13, True)),
            ((time_.hour - 6).clip(0, 15), numbered(16, True)),
        ]
        columns += [(time_.dayofweek, numbered(7, True)), (magnitude, numbered(10, True))]
        if name == "retail":
            begins = rows.key.str[:2]
            columns.append(
                (
                    (begins.where(begins.str.isdigit(), "99").astype(int) - 10).clip(0, 69),
                    numbered(70, False),
                )
            )
        trigger = ((rows.ts - rows.ts.min()).dt.days // 7).to_numpy() + 1
    values = np.column_stack(
        [np.asarray(column, np.int64).clip(0, domain.size - 1) for column, domain in columns]
    )
    return Table(tuple(domain for _, domain in columns), values, np.asarray(trigger, np.int64))


def questions(table: Table, count: int, chance: np.random.Generator) -> list[Question]:
    """Ranges of ordered keys; of others one value, or half of all."""
    total = len(table.values)
    triggers = table.trigger[np.sort(chance.integers(total // 5, total, count))]
    rows = {trigger: table.rows_at(trigger) for trigger in np.unique(triggers).tolist()}
    out = []
    for trigger in triggers.tolist():
        size = min(1 + int(chance.choice(3, p=(0.2, 0.5, 0.3))), len(table.domains))
        out.append(Question(_predicate(table, size, chance), trigger, rows[trigger]))
    return out


def _predicate(table: Table, size: int, chance: np.random.Generator) -> dict[int, np.ndarray]:
    """Conditions on so many keys: ranges of ordered ones, of others one value, or half of all."""
    predicate = {}
    for key in sorted(chance.choice(len(table.domains), size, replace=False).tolist()):
        n = table.domains[key].size
        weights = np.zeros(n)
        if table.domains[key].ordered:
            low, high = sorted(chance.integers(0, n, 2))
            weights[low : high + 1] = 1
        else:
            chosen = 1 if chance.random() < 0.5 else max(1, n // 2)
            weights[chance.choice(n, chosen, replace=False)] = 1
        predicate[key] = weights
    return predicate


def plan_of(table: Table, cuts: tuple[tuple[int, str], ...] = (), **changes: Any) -> MarginalsPlan:
    """The default plan; with `cuts` cells of the hour close."""
    asked = query(
        **changes,
        domains=table.domains,
        grouping_sets=cube(table.sizes, 3),
        max_triggers=table.last,
        trigger_interval_us=HOUR_US,
        cuts=cuts,
    )
    declared = source(max_users=len(table.values))
    plan = make_plan(asked, declared)
    account(plan, declared)
    return plan


def stderrs(plan: MarginalsPlan, asked: Sequence[Question]) -> np.ndarray:
    """The law of the answers' errors."""
    fits = {trigger: known(plan, trigger) for trigger in {q.trigger for q in asked}}
    return np.sqrt([fits[q.trigger].variance(closed(plan, q)) for q in asked])


def closed(plan: MarginalsPlan, question: Question) -> Product:
    """The predicate of the values that are there at its trigger."""
    key = next(iter(plan.closing_keys), None)
    return {
        each: weights[: question.trigger] if each == key else weights
        for each, weights in question.predicate.items()
    }


def known(plan: MarginalsPlan, trigger: int) -> LeastSquares:
    """Of the noise of the first sum at a trigger; of hours that close as many are over."""
    key = next(iter(plan.closing_keys), None)
    return LeastSquares(
        tuple(trigger if each == key else n for each, n in enumerate(plan.marginals.sizes)),
        plan.marginals.tables,
        plan.noisy_tables(plan.sums[0]).variances(trigger),
    )


def line(name: str, sd: np.ndarray, asked: Sequence[Question]) -> str:
    rows = np.array([q.rows for q in asked])
    found = [
        float(erf(share * rows / np.maximum(sd, 1e-9) / math.sqrt(2)).sum())
        * QUESTIONS
        / len(asked)
        for share in SHARES
    ]
    within = " / ".join(f"{each:,.0f}" for each in found)
    return f"{name:32s} median stderr {np.median(sd):8.1f}   within 1% / .5% / .2%: {within}"


def errors(table: Table, plan: MarginalsPlan, asked: Sequence[Question], keys: int) -> str:
    """The release itself, from trigger 1 to the last: errors in units of the stated error."""
    noise = plan.noisy_tables(plan.sums[0])
    last = table.last
    added = []
    for trigger in range(1, last + 1):
        values = table.values[table.trigger == trigger]
        added.append(sums(plan.marginals, values, np.ones(len(values), np.int64)))
    truth = [
        float(np.prod([w[table.values[:, k]] for k, w in q.predicate.items()], axis=0).sum())
        for q in asked
    ]
    out = []
    for number in range(1, keys + 1):
        state = nothing_seen(noise)
        for amounts in added:
            state, cells = release(state, amounts, noise, number.to_bytes(32, "big"))
        tables = split(plan.marginals, cells)
        found = [known(plan, last).estimate(q.predicate, tables) for q in asked]
        out.append(
            [
                (answer.value - true) / answer.stderr
                for answer, true in zip(found, truth, strict=True)
            ]
        )
    z = np.array(out)
    inside = np.mean(np.abs(z) < 1.959964)
    return f"{keys} noise keys x {len(asked)} questions: error / stderr has mean {z.mean():+.3f}, sd {z.std():.3f}; 95% intervals cover {inside:.1%}"


def synthetic(table: Table, plan: MarginalsPlan, asked: Sequence[Question]) -> str:
    """The synthetic table of the last trigger: how far off all questions are, as shares of all rows."""
    noise = plan.noisy_tables(plan.sums[0])
    state = nothing_seen(noise)
    for trigger in range(1, table.last + 1):
        values = table.values[table.trigger == trigger]
        state, cells = release(
            state,
            sums(plan.marginals, values, np.ones(len(values), np.int64)),
            noise,
            (1).to_bytes(32, "big"),
        )
    began = time.perf_counter()
    fitted = fit(known(plan, table.last), split(plan.marginals, cells))
    took = time.perf_counter() - began
    truth = np.bincount(
        np.ravel_multi_index(tuple(table.values.T), table.sizes), minlength=math.prod(table.sizes)
    ).reshape(table.sizes)
    made: dict[tuple[int, ...], np.ndarray] = {}
    off = []
    for q in asked:
        keys = tuple(q.predicate)
        if keys not in made:
            made[keys] = marginal(fitted.weights - truth, keys)
        apart = made[keys]
        for weights in q.predicate.values():
            apart = np.tensordot(weights, apart, axes=(0, 0))
        off.append(abs(float(apart)) / len(table.values))
    within = np.mean(np.array(off) <= 0.01) * QUESTIONS
    figures = f"mean {np.mean(off):.3%}, p95 {np.quantile(off, 0.95):.2%}, largest {max(off):.2%} of the rows; within 1%: {within:,.0f}"
    return f"synthetic table: {figures}; misfit {fitted.misfit:.2f}, fitted in {took:.0f} s"


def paid_answers(table: Table, count: int) -> str:
    """Questions of all keys, and of all but one, which no table covers, at the last trigger, one after the other: to .5% of the rows, with a share of .1."""
    plan = plan_of(table, session_share=0.1)
    noise = plan.noisy_tables(plan.sums[0])
    state = nothing_seen(noise)
    for trigger in range(1, table.last + 1):
        values = table.values[table.trigger == trigger]
        added = sums(plan.marginals, values, np.ones(len(values), np.int64))
        state, cells = release(state, added, noise, (1).to_bytes(32, "big"))
    fitted = known(plan, table.last)
    keys = {f"k{key}": list(range(size)) for key, size in enumerate(table.sizes)}
    columns = {"views": (fitted, tuple(map(np.asarray, split(plan.marginals, cells))))}
    published = published_tables(keys, table.last, columns)
    place = np.ravel_multi_index(tuple(table.values.T), table.sizes)
    cell, rows = np.unique(place, return_counts=True)
    exact = ExactCounts.of_tables([pa.table({"key": cell, "rows": rows})], 0, table.sizes)
    chance = np.random.default_rng(SEED)
    outcomes = Counter[str]()
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        mu2 = int(Fraction(0.1) * Fraction(plan.mu) ** 2 * 2**PRICE_BITS)
        domains = tuple(domain.values for domain in table.domains)
        log = AskLog(Path(folder), Secret(bytes(32)))
        session = PaidSession("5a" * 16, 1, mu2, domains, 0, ("views",), bytes(32), log)
        while outcomes.total() < count:
            predicate = _predicate(table, len(table.sizes) - int(chance.integers(0, 2)), chance)
            if math.isfinite(fitted.variance(predicate)):
                continue
            try:
                asked = answer(
                    session,
                    log.asks(session.run_id),
                    published,
                    _text(predicate),
                    "0.5%",
                    exact.count,
                )
                outcomes[asked.source] += 1
                spent += asked.cost
            except DataError:
                outcomes["refused"] += 1
    ask_cpu = _seconds_of_an_ask(table.sizes)
    return (
        f"{count:,} questions that no table covers, to .5% of the rows: {dict(outcomes)}; {spent:.1%} of the share is spent; "
        f"to count 1,000 over {math.prod(table.sizes):,} cells in a state file takes {ask_cpu:.2f} CPU-s"
    )


def _seconds_of_an_ask(sizes: tuple[int, ...]) -> float:
    """CPU seconds of reading exact sums of all cells, and of counting those of 1,000 answers of a GROUP BY."""
    cells = np.arange(math.prod(sizes))
    every_cell = pa.table({"key": cells, "rows": cells % 7})
    parity = {key: np.arange(size) % 2.0 for key, size in enumerate(sizes)}
    products = [parity | {0: np.arange(sizes[0]) == answer % sizes[0]} for answer in range(1_000)]
    with tempfile.TemporaryDirectory() as folder:
        files = BucketFiles(folder, RELEASE, 1, 1, (EXACT,))
        files.store(0, 1, {EXACT: every_cell})
        began = time.process_time()
        ExactCounts.of_tables([files.load(0, 1)[EXACT]], 0, sizes).count(products)
        return time.process_time() - began


def _text(predicate: Product) -> str:
    conditions = [
        f"k{key} IN ({', '.join(map(str, np.flatnonzero(weights)))})"
        for key, weights in predicate.items()
    ]
    return f"SELECT COUNT(*) FROM views WHERE {' AND '.join(conditions)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=("wikiticker", "retail", "retail_small"))
    parser.add_argument("file")
    parser.add_argument("--errors", type=int, default=0, metavar="KEYS")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--pmwg", action="store_true")
    parser.add_argument("--pay", type=int, metavar="QUESTIONS")
    given = parser.parse_args()
    table = load(given.name, given.file)
    asked = questions(table, QUESTIONS, np.random.default_rng(SEED))
    print(
        f"{given.name}: {len(table.values):,} rows, {math.prod(table.sizes):,} cells {table.sizes}, {table.last} triggers"
    )
    if given.pmwg:
        for delta in (0.0, 1e-6):
            print(pmwg(table.sizes, table.values, [q.predicate for q in asked], delta))
        return
    if given.pay:
        print(paid_answers(table, given.pay))
        return
    began = time.perf_counter()
    plan = plan_of(table)
    took = time.perf_counter() - began
    print(
        f"{len(plan.tables)} measured tables, {plan.marginals.first[-1]:,} released cells per trigger, planned in {took:.1f} s"
    )
    energy = np.array([sum(energies(table.sizes, q.predicate).values()) for q in asked])
    print(
        line(
            "sum over all cells, all of mu^2",
            sum_over_cells(plan, energy, [q.trigger for q in asked]),
            asked,
        )
    )
    print(line("marginals, default", stderrs(plan, asked), asked))
    if given.name == "wikiticker":
        closing = plan_of(table, cuts=((1, "hour"),))
        print(line("the same, hours close", stderrs(closing, asked), asked))
    if given.synthetic:
        print(synthetic(table, plan, asked))
    if given.errors:
        print(errors(table, plan, asked[:50], given.errors))


if __name__ == "__main__":
    main()
