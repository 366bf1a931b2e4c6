"""Paid answers about published marginals: exact counts with noise of their own, whose price is taken from the run's session before anybody sees them.

Unlike all other readers this one needs the secret and the private part of a lake. An ask goes in this order: the price is decided from public numbers;
the answer is computed; price and answer are logged in one file, and from then on the price is spent; the answer is published. So an ask that breaks off
has spent nothing, or its answer is in the log.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import Schema

from dpsql import record
from dpsql.errors import DataError, LakeError
from dpsql.files import Place, reporting_os_errors
from dpsql.lake import delta_tables
from dpsql.lake.engine_file import read_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.runs import Lake, Run, neighbour, read_run
from dpsql.mechanisms.marginals.planner import PLAN_VERSION
from dpsql.mechanisms.protocol import identity_of
from dpsql.parsed_query import AggregateFunction
from dpsql.privacy.ledger import ASKS, Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.ask_log import PRICE_BITS, AskLog, PaidAsk, PaidCell, price, total_price
from dpsql.published.cubes import PublishedMarginals, open_marginals
from dpsql.published.paid_noise import noise, question_digest
from dpsql.published.questions import (
    AskedCells,
    QuestionAnswer,
    TooNoisy,
    asked_cells,
    interval_row,
    largest_half,
)
from dpsql.published.questions import answer as answer_free
from dpsql.text import Z95
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.marginals.cells import MeasuredTables
from dpsql.udfs.marginals.estimates import Product
from dpsql.udfs.marginals.exact import EXACT, ExactCounts
from dpsql.udfs.stage import CLOSED, RELEASE

if TYPE_CHECKING:
    import pandas as pd

ENDING = "answers"
SIGMA_BITS = 20
"""Noise is a multiple of 2^-20, rounded down: never less exact than what is asked for."""
LARGEST = 2.0**40
"""The largest noise: what costs nearly nothing is more exact than what is asked for."""
ROUNDING = 1 / 12
"""Variance of the rounding of noise to whole rows."""
ANSWERS = pa.schema(
    [
        ("seq", pa.int32()),
        ("trigger", pa.int64()),
        ("question", pa.string()),
        ("cell", pa.string()),
        ("answer", pa.float64()),
        ("stderr", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("cost_mu2", pa.float64()),
        ("left_mu2", pa.float64()),
    ]
)


@dataclass(frozen=True)
class PaidSession:
    """Terms of the paid answers of one run.

    Args:
        run_id: of the run.
        rows: the most rows that count of one privacy unit.
        mu2: what all paid answers together may cost, in 2^-96 of mu^2.
        domains: the declared values of each key, in order.
        first_exact: number of the first cell of all keys among the exact counts.
        counts: the columns that count rows.
        noise_key: 32 bytes of the run.
        log: of its asks.
    """

    run_id: str
    rows: int
    mu2: int
    domains: tuple[tuple[str, ...], ...]
    first_exact: int
    counts: tuple[str, ...]
    noise_key: bytes
    log: AskLog

    def by_declared_values(
        self, marginals: PublishedMarginals, product: Mapping[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Return a product over the values that a public table has as one over the declared ones, whose order may be another."""
        by_key = {}
        for key, weights in product.items():
            names = [str(value) for value in list(marginals.keys.values())[key]]
            chosen = {name for name, weight in zip(names, weights, strict=True) if weight > 0}
            by_key[key] = np.array([float(name in chosen) for name in self.domains[key]])
        return by_key


@dataclass(frozen=True, eq=False)
class PaidAnswer:
    """The rows of an answer, `free` or `paid`; what it cost of the session's mu^2, and what is left of it, as shares."""

    answer: QuestionAnswer
    source: str
    cost: float
    remaining: float


ExactCount = Callable[[Sequence[Product]], int]
"""Counts the rows in the cells of disjoint products."""


def pay(
    lake: Lake, name: str, text: str, max_error: float | str, secret: Secret, ledger: Ledger
) -> PaidAnswer:
    """Answer a question at the newest trigger: for nothing if the published tables are exact enough, else for a price.

    Args:
        lake, name: of the query.
        text: of the question.
        max_error: how far an answer may be off, like `100` rows or `5%` of the total.
        secret, ledger: of the run.

    Raises:
        QueryError: what is wrong with the question.
        DataError: the question is not about the count of rows, or what is left does not pay for it.
        LakeError: the run has no session, its newest trigger is being released, or something of it is missing.

    Guarantee:
        All paid answers of a run together are sqrt(S) mu-GDP, S = `session_share`, however they are chosen
        (docs/privacy/marginals.md, theorem 36). Which answer is free, paid or refused depends on public numbers alone.
    """
    marginals = open_marginals(lake, name)
    run = read_run(lake, name)
    session = session_of(run, secret, ledger)
    path = neighbour(lake.histogram(name), ENDING)
    with session.log.lock():
        asks = session.log.asks(session.run_id)
        publish(path, session, asks)
        buckets = Buckets(lake.private(name), run)
        sizes = tuple(map(len, session.domains))

        @cache  # read once an ask, and not where it is free
        def exact_counts() -> ExactCounts:
            return ExactCounts.of_tables(buckets.tables_at(marginals), session.first_exact, sizes)

        paid_answer = answer(
            session,
            asks,
            marginals,
            text,
            str(max_error),
            lambda products: exact_counts().count(products),
        )
        publish(path, session, session.log.asks(session.run_id))
    return paid_answer


def answer_or_price(
    lake: Lake, name: str, marginals: PublishedMarginals, text: str, max_error: str | None
) -> QuestionAnswer:
    """Answer a question at the newest trigger for nothing; where that is refused, say what it costs. Nothing is paid, and no secret is needed.

    Raises:
        QueryError, DataError: as `dpsql.published.questions.answer`.
    """
    try:
        return answer_free(marginals, text, max_error)
    except TooNoisy as problem:
        costs = ""
        if max_error is not None:
            with contextlib.suppress(LakeError, DataError):  # no run, as in a public lake; not sold
                costs = _price_note(lake, name, marginals, text, max_error)
        raise TooNoisy(f"{problem}{costs}") from None


def _price_note(
    lake: Lake, name: str, marginals: PublishedMarginals, text: str, max_error: str
) -> str:
    """Return what to say about the price of an answer, from public numbers; nothing where none is sold.

    Raises:
        LakeError: there is the public part of the lake alone.
        DataError: no noise is as small.
    """
    run = read_run(lake, name)
    question = asked_cells(marginals, text)
    if not run.plan["query"].get("session_share") or question.column.lower() not in _counts(run):
        return ""
    largest_error = largest_half(marginals, question.column, max_error) / Z95
    worst = max(
        marginals.estimate(question.column, products).stderr for _, products in question.cells
    )
    rows, mu2 = _terms(run)
    cost = price(rows, _sigma(largest_error, worst)) / mu2
    return f". Paid for (--pay, or pay=True) it costs at most {cost:.2%} of what the run keeps for paid answers"


def paid_frame(
    lake: Lake, name: str, text: str, max_error: float | str | None, secret: Secret | None
) -> pd.DataFrame:
    """Answer a question by a frame; `attrs` has its source, its cost and what is left. Arguments and errors as of `pay`."""
    import pandas as pd  # slow to import

    if secret is None or max_error is None:
        raise DataError("to pay, give max_error= and secret=Secret.load(path)")
    result = pay(lake, name, text, max_error, secret, Ledger.beside_secret(secret))
    frame = pd.DataFrame(result.answer.rows)
    frame.attrs.update(source=result.source, cost=result.cost, left=result.remaining)
    return frame


def session_of(run: Run, secret: Secret, ledger: Ledger) -> PaidSession:
    """Return what is fixed of the paid answers of a run.

    Raises:
        LakeError: it has none, or something of it is missing or another secret's.
    """
    choices = run.plan["query"]
    if not choices.get("session_share"):
        raise LakeError(
            f"run {run.name!r} keeps nothing for paid answers: set session_share at its source, and start a run under another --name"
        )
    if run.secret_check != secret.check():
        raise LakeError(
            f"run {run.name!r} was started with another secret; name the right one with --secret-file"
        )
    _check_plan(run)
    line = ledger.sealed_by(secret).find(run.run_id)
    line_plan = line and (line.origin.ledger_id, line.query_identity)
    if line_plan != (run.ledger_id, run.query_identity):
        raise LakeError(
            f"run {run.name!r} has no line of its plan in {ledger.folder}: put back the newest ledger, or its {record.RUN_FILE}"
        )
    ledger.check_is_home()
    rows, mu2 = _terms(run)
    domains = tuple(tuple(domain["values"]) for domain in choices["domains"])
    table_keys = tuple(tuple(table["keys"]) for table in run.plan["tables"])
    return PaidSession(
        run.run_id,
        rows,
        mu2,
        domains,
        MeasuredTables(tuple(map(len, domains)), table_keys).first[-1],
        _counts(run),
        secret.of_ledger(run.ledger_id).noise_key(run.run_id, run.query_identity),
        AskLog(ledger.folder / ASKS / run.run_id, secret),
    )


def _counts(run: Run) -> tuple[str, ...]:
    """Return the names of the columns that count rows."""
    aggregates = run.plan["query"]["aggregates"]
    rows = AggregateFunction.COUNT_ROWS.value
    return tuple(each["alias"].lower() for each in aggregates if each["function"] == rows)


def _terms(run: Run) -> tuple[int, int]:
    """Return the most rows that count of one unit, and what all paid answers may cost, in 2^-96 of mu^2."""
    choices = run.plan["query"]
    per_unit = choices["max_rows_per_group"] * choices["max_groups_contributed"]
    mu2 = Fraction(choices["session_share"]) * Fraction(run.plan["mu"]) ** 2
    return min(choices["max_rows_contributed"], per_unit), int(mu2 * 2**PRICE_BITS)


def _check_plan(run: Run) -> None:
    """Refuse a plan in run.json that is not the one that the run was started with."""
    plan = {name: value for name, value in run.plan.items() if name != "reading"}
    if identity_of(PLAN_VERSION, plan | {"identity": ""}) != run.query_identity:
        raise LakeError(
            f"{record.RUN_FILE} of {run.name!r} has another plan than the run; {record.PUT_BACK}"
        )


def answer(
    session: PaidSession,
    asks: Sequence[PaidAsk],
    marginals: PublishedMarginals,
    text: str,
    max_error: str,
    count_rows: ExactCount,
) -> PaidAnswer:
    """Answer a question, and log what is paid for it.

    Args:
        session: of the run.
        asks: all earlier ones.
        marginals: the tables of the newest trigger.
        text, max_error: of the question.
        count_rows: of that trigger; asked only after the price is decided.

    Raises:
        QueryError, DataError, LakeError: as `pay`.
    """
    question = asked_cells(marginals, text)
    column = question.column
    if column.lower() not in session.counts:
        raise DataError(
            "only the count of rows can be paid for: ask for COUNT(*), or allow a free answer"
        )
    largest_error = largest_half(marginals, column, max_error) / Z95
    offers = [
        _offer(session, asks, marginals, column, cell, products)
        for cell, products in question.cells
    ]
    remaining = session.mu2 - total_price(asks)
    too_noisy = [offer for offer in offers if not offer.stderr <= largest_error]
    if not too_noisy:
        rows = [offer.row(column) for offer in offers]
        return PaidAnswer(_answer(question, rows), "free", 0.0, _share(remaining, session))
    cells, cost = _buy(session, marginals.trigger, too_noisy, largest_error, remaining, count_rows)
    remaining -= cost
    total = session.mu2 - remaining
    session.log.add(PaidAsk(len(asks) + 1, session.run_id, marginals.trigger, text, cells, total))
    rows = _combined(column, offers, cells)
    share = _share(cost, session)
    return PaidAnswer(_answer(question, rows), "paid", share, _share(remaining, session))


def _buy(
    session: PaidSession,
    trigger: int,
    offers: Sequence[Offer],
    largest_error: float,
    remaining: int,
    count_rows: ExactCount,
) -> tuple[tuple[PaidCell, ...], int]:
    """Return the answers that offers are too noisy for, and their price, which is decided first.

    Raises:
        DataError: what remains does not pay for them.
    """
    sigmas = [_sigma(largest_error, offer.stderr) for offer in offers]
    cost = price(session.rows, min(sigmas))
    if cost > remaining:
        raise DataError(_too_dear(session, cost, remaining, offers))
    cells = tuple(
        _paid_cell(session, trigger, offer, sigma, count_rows)
        for offer, sigma in zip(offers, sigmas, strict=True)
    )
    return cells, cost


def _combined(
    column: str, offers: Sequence[Offer], cells: Sequence[PaidCell]
) -> list[dict[str, Any]]:
    """Return the rows of an answer: those that were paid for, and the others as they are offered."""
    bought = {cell.question: cell for cell in cells}
    return [
        offer.cell | interval_row(column, cell.value, cell.stderr)
        if (cell := bought.get(offer.question))
        else offer.row(column)
        for offer in offers
    ]


@dataclass(frozen=True, eq=False)
class Offer:
    """The best free estimate of one cell of a question; public.

    Args:
        cell: values of the keys of GROUP BY.
        products: what is counted, by the declared values of keys.
        question: its digest.
        value, stderr: the best estimate, with answers that were paid at this trigger.
        times: how many these are.
    """

    cell: dict[str, str | int]
    products: list[dict[int, np.ndarray]]
    question: str
    value: float
    stderr: float
    times: int

    def row(self, column: str) -> dict[str, Any]:
        """Return its answer for nothing."""
        return self.cell | interval_row(column, self.value, self.stderr)


def _offer(
    session: PaidSession,
    asks: Sequence[PaidAsk],
    marginals: PublishedMarginals,
    column: str,
    cell: dict[str, str | int],
    products: list[dict[int, np.ndarray]],
) -> Offer:
    estimate = marginals.estimate(column, products)
    declared = [session.by_declared_values(marginals, product) for product in products]
    digest = question_digest(session.domains, declared)
    earlier = [
        cell_paid
        for ask in asks
        for cell_paid in ask.cells
        if ask.trigger == marginals.trigger and cell_paid.question == digest
    ]
    if earlier:
        newest = earlier[-1]
        return Offer(cell, declared, digest, newest.value, newest.stderr, len(earlier))
    return Offer(cell, declared, digest, estimate.value, estimate.stderr, 0)


def _sigma(want: float, stderr: float) -> float:
    """Return the noise with which a count, combined with what is known, has the error that is wanted.

    Raises:
        DataError: no noise on whole rows is as small.
    """
    sigma = 0.0
    if want > 1:
        variance = 1 / max(want**-2 - stderr**-2, LARGEST**-2) - ROUNDING
        sigma = math.floor(math.sqrt(max(variance, 0.0)) * 2**SIGMA_BITS) / 2**SIGMA_BITS
    if sigma < 1:
        raise DataError("an answer as exact as that is not sold: allow an error of 2 rows or more")
    return sigma


def _paid_cell(
    session: PaidSession, trigger: int, offer: Offer, sigma: float, count_rows: ExactCount
) -> PaidCell:
    """Compute an answer; nobody sees it before it is logged."""
    noisy = count_rows(offer.products)
    noisy += noise(session.noise_key, trigger, offer.question, sigma, offer.times)
    weight = 1 / (sigma**2 + ROUNDING)
    offer_weight = offer.stderr**-2
    offer_part = offer.value * offer_weight if offer_weight else 0.0
    total_weight = weight + offer_weight
    value = (noisy * weight + offer_part) / total_weight
    return PaidCell(offer.cell, offer.question, sigma, noisy, value, total_weight**-0.5)


def _too_dear(session: PaidSession, cost: int, remaining: int, offers: Sequence[Offer]) -> str:
    """Say that what is left does not pay for an answer, and what would be answered; from public numbers."""
    worst = max(offer.stderr for offer in offers)
    free = (
        f"± {_at_least(Z95 * worst)} is free" if math.isfinite(worst) else "nothing of it is free"
    )
    affordable = ""
    if remaining > 0:
        sigma = session.rows / math.sqrt(remaining / 2**PRICE_BITS)
        half = Z95 * (worst**-2 + 1 / (sigma**2 + ROUNDING)) ** -0.5
        affordable = f", ± {_at_least(half)} can be paid for"
    return (
        f"this answer costs {_share(cost, session):.2%} of what the run keeps for paid answers, and {_share(remaining, session):.2%} is left: "
        f"allow a larger error ({free}{affordable})"
    )


def _at_least(half: float) -> str:
    """Format an error that will do if it is asked for: four digits, rounded up."""
    digits = 3 - math.floor(math.log10(half))
    return f"{math.ceil(half * (1 + 1e-9) * 10.0**digits) / 10.0**digits:,.{max(digits, 0)}f}"


def _share(amount: int, session: PaidSession) -> float:
    return amount / session.mu2


def _answer(question: AskedCells, rows: list[dict[str, Any]]) -> QuestionAnswer:
    return QuestionAnswer(question.keys, question.column, rows, question.with_null)


def publish(path: Place, session: PaidSession, asks: Sequence[PaidAsk]) -> None:
    """Append the answers of the log to the public table that it does not have yet.

    Raises:
        LakeError: the table has answers that the log has not.
    """
    if not asks and not delta_tables.exists(path):
        return
    delta_tables.create(path, Schema.from_arrow(ANSWERS))
    published = delta_tables.mark(path, f"{session.run_id}/{ENDING}") or 0
    if published > len(asks):
        raise LakeError(
            f"{path} has {published} paid answers, and {session.log.folder} knows of {len(asks)}: put back the newest ledger folder"
        )
    price_before = total_price(asks[:published])
    for ask in asks[published:]:
        cost = ask.total - price_before
        price_before = ask.total
        rows = [
            {
                "seq": ask.seq,
                "trigger": ask.trigger,
                "question": ask.text,
                "cell": json.dumps(cell.cell),
                "cost_mu2": cost / 2**PRICE_BITS,
                "left_mu2": (session.mu2 - ask.total) / 2**PRICE_BITS,
                **interval_row("answer", cell.value, cell.stderr),
            }
            for cell in ask.cells
        ]
        delta_tables.append(
            path, pa.Table.from_pylist(rows, ANSWERS), {f"{session.run_id}/{ENDING}": ask.seq}
        )


@dataclass(frozen=True)
class Buckets:
    """The exact counts in the newest state of a run's release.

    Args:
        folder: the run's private folder.
        run: which.
    """

    folder: Place
    run: Run

    def tables_at(self, marginals: PublishedMarginals) -> list[pa.Table]:
        """Return the exact counts of all buckets at the trigger of published tables.

        Raises:
            LakeError: the state is of another trigger, since one is being released or restored.
        """
        engine = read_engine(self.folder, self.run.tables)
        if engine is None:
            raise LakeError(f"run {self.run.name!r} has not been started")
        part = engine.parts[RELEASE]
        manifest = Manifest(self.folder / "files", self.run.run_id, RELEASE, part.generation)
        versions = part.pointers | manifest.pointers()
        buckets = engine.buckets_of(RELEASE)
        state = BucketFiles(engine.state_root, RELEASE, buckets, part.generation, (EXACT,))
        with reporting_os_errors(f"state of run {self.run.name!r}", LakeError):
            tables = [
                state.load(bucket, versions[bucket])
                for bucket in range(buckets)
                if bucket in versions
            ]
        if len(tables) < buckets or not all(
            self._is_of(marginals, table[EXACT]) for table in tables
        ):
            raise LakeError(
                f"run {self.run.name!r} is releasing a trigger: ask again when it is published"
            )
        return [table[EXACT] for table in tables]

    def _is_of(self, marginals: PublishedMarginals, table: pa.Table) -> bool:
        closed_us = int((table.schema.metadata or {})[CLOSED])
        last = self.run.plan["query"]["max_triggers"]
        is_last = last is not None and marginals.trigger == last
        _, interval_us = self.run.triggers_us
        return marginals.time_us <= closed_us and (
            is_last or closed_us < marginals.time_us + interval_us
        )
