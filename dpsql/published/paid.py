"""Paid answers about published marginals: exact counts with noise of their own, whose price is taken from the run's session before anybody sees them.

Unlike all other readers this one needs the secret and the private part of a lake. An ask goes in this order: the price is decided from public numbers;
the answer is computed; price and answer are logged in one file, and from then on the price is spent; the answer is published. So an ask that breaks off
has spent nothing, or its answer is in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import Schema

from dpsql import record
from dpsql.errors import DataError, LakeError
from dpsql.files import Place, create_file, reporting_os_errors
from dpsql.lake import delta_tables
from dpsql.lake.engine_file import read_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.runs import Lake, Run, neighbour, read_run
from dpsql.mechanisms.marginals.planner import PLAN_VERSION
from dpsql.mechanisms.protocol import identity_of
from dpsql.privacy.ledger import ASKS, Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.cubes import PublishedMarginals, open_marginals
from dpsql.published.questions import (
    AskedCells,
    QuestionAnswer,
    asked_cells,
    interval_row,
    largest_half,
)
from dpsql.text import Z95
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.marginals.estimates import Product
from dpsql.udfs.marginals.exact import EXACT, exact_count
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.paths import Paths
from dpsql.udfs.noise.randomness import tags
from dpsql.udfs.stage import CLOSED, RELEASE

if TYPE_CHECKING:
    import pandas as pd

ENDING = "answers"
VERSION = 1
NOISE_STREAM = 2**32 - 1
"""Number of the noise of paid answers: no sum of a release has it."""
ONE_STEP = BltInf()
"""The first step of its path is one normal number."""
SIGMA_BITS = 20
"""Noise is a multiple of 2^-20, rounded down: never less exact than what is asked for."""
PRICE_BITS = 96
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
class PaidCell:
    """One answer of an ask.

    Args:
        cell: values of the keys of GROUP BY.
        question: SHA-256 of what is counted, however it was written.
        sigma: of its noise; the exact count is rounded with it to `noisy`.
        noisy: exact count and noise.
        value, stderr: combined with what was known before.
    """

    cell: dict[str, str | int]
    question: str
    sigma: float
    noisy: int
    value: float
    stderr: float


@dataclass(frozen=True)
class PaidAsk:
    """A line of the log: one ask at one trigger, whose price is spent.

    `seal`: only the secret's owner can make it.
    """

    seq: int
    run_id: str
    trigger: int
    text: str
    cells: tuple[PaidCell, ...]
    seal: str = ""

    def price(self, rows: int) -> Fraction:
        """Return what the ask has cost of mu^2. Cells are disjoint, so it is the price of the dearest one.

        Args:
            rows: the most rows that count of one privacy unit.
        """
        return price(rows, min(cell.sigma for cell in self.cells))


def price(rows: int, sigma: float) -> Fraction:
    """Return the squared shift that one privacy unit can cause in a count, in units of its noise: (rows / sigma)^2, rounded up to a multiple of 2^-96."""
    exact = Fraction(rows) ** 2 / Fraction(sigma) ** 2
    return Fraction(math.ceil(exact * 2**PRICE_BITS), 2**PRICE_BITS)


@dataclass(frozen=True)
class Session:
    """What is fixed of the paid answers of one run.

    Args:
        run_id: of the run.
        rows: the most rows that count of one privacy unit.
        mu2: what all paid answers together may cost.
        domains: the declared values of each key, in order.
        first_exact: number of the first cell of all keys in the exact sums.
        noise_key: 32 bytes of the run.
        log: of its asks.
    """

    run_id: str
    rows: int
    mu2: Fraction
    domains: tuple[tuple[str, ...], ...]
    first_exact: int
    noise_key: bytes
    log: AskLog

    def by_declared_values(
        self, marginals: PublishedMarginals, product: Mapping[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Return a product over the values that a public table has as one over the declared ones, whose order may be another."""
        declared = {}
        for key, weights in product.items():
            names = [str(value) for value in list(marginals.keys.values())[key]]
            chosen = {name for name, weight in zip(names, weights, strict=True) if weight > 0}
            declared[key] = np.array([float(name in chosen) for name in self.domains[key]])
        return declared


@dataclass(frozen=True)
class AskLog:
    """The asks of one run: numbered files that are never changed, beside the ledger and so outside of the lake.

    Args:
        folder: `ledger/asks/RUN_ID`.
        secret: seals them.
    """

    folder: Path
    secret: Secret

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the log, so that no other process on this machine asks meanwhile."""
        with reporting_os_errors(str(self.folder), LakeError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def asks(self, run_id: str) -> list[PaidAsk]:
        """Return all asks, oldest first.

        Raises:
            LakeError: one is missing, damaged or edited.
        """
        names = sorted(path.name for path in self.folder.glob("*.json"))
        if names != [self._path(seq).name for seq in range(1, len(names) + 1)]:
            raise LakeError(
                f"{self.folder}: an ask is missing; put it back: nothing is paid before it is known what was spent"
            )
        found = []
        for seq, name in enumerate(names, start=1):
            ask = record.load(self.folder / name, PaidAsk, VERSION)
            if ask is None or (ask.seq, ask.run_id) != (seq, run_id) or self._seal(ask) != ask.seal:
                raise LakeError(
                    f"{self.folder / name} was edited after it was written; {record.PUT_BACK}"
                )
            found.append(ask)
        return found

    def add(self, ask: PaidAsk) -> PaidAsk:
        """Log an ask; from then on its price is spent.

        Raises:
            LakeError: another process has logged one under its number, or the folder cannot be written.
        """
        sealed = replace(ask, seal=self._seal(ask))
        with reporting_os_errors(str(self.folder), LakeError):
            create_file(self._path(ask.seq), record.content(sealed, VERSION))
        return sealed

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:06d}.json"

    def _seal(self, ask: PaidAsk) -> str:
        return self.secret.seal(record.content(replace(ask, seal=""), VERSION))


@dataclass(frozen=True, eq=False)
class PaidAnswer:
    """The rows of an answer, `free` or `paid`; what it cost of the session's mu^2, and what is left of it, as shares."""

    answer: QuestionAnswer
    source: str
    cost: float
    left: float


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
    with session.log.held():
        asks = session.log.asks(session.run_id)
        publish(path, session, asks)
        tables = Buckets(lake.private(name), run)
        answered = answer(
            session,
            asks,
            marginals,
            text,
            str(max_error),
            lambda products: exact_count(
                tables.read(marginals),
                session.first_exact,
                tuple(map(len, session.domains)),
                products,
            ),
        )
        publish(path, session, session.log.asks(session.run_id))
    return answered


def paid_frame(
    lake: Lake, name: str, text: str, max_error: float | str | None, secret: Secret | None
) -> pd.DataFrame:
    """Answer a question by a frame; `attrs` has its source, its cost and what is left. Arguments and errors as of `pay`."""
    import pandas as pd  # slow to import

    if secret is None or max_error is None:
        raise DataError("to pay, give max_error= and secret=Secret.load(path)")
    paid = pay(lake, name, text, max_error, secret, Ledger.beside_secret(secret))
    frame = pd.DataFrame(paid.answer.rows)
    frame.attrs.update(source=paid.source, cost=paid.cost, left=paid.left)
    return frame


def session_of(run: Run, secret: Secret, ledger: Ledger) -> Session:
    """Return what is fixed of the paid answers of a run.

    Raises:
        LakeError: it has none, or something of it is missing or another secret's.
    """
    asked = run.plan["query"]
    share = asked.get("session_share")
    if not share:
        raise LakeError(
            f"run {run.name!r} keeps nothing for paid answers: set session_share at its source, and start a run under another --name"
        )
    if run.secret_check != secret.check():
        raise LakeError(
            f"run {run.name!r} was started with another secret; name the right one with --secret-file"
        )
    _check_plan(run)
    line = ledger.sealed_by(secret).find(run.run_id)
    if line is None or line.origin.ledger_id != run.ledger_id:
        raise LakeError(
            f"run {run.name!r} has no line in {ledger.folder}: put back the newest ledger"
        )
    ledger.check_is_home()
    per_cell = asked["max_rows_per_group"] * asked["max_groups_contributed"]
    domains = tuple(tuple(domain["values"]) for domain in asked["domains"])
    return Session(
        run.run_id,
        min(asked["max_rows_contributed"], per_cell),
        Fraction(share) * Fraction(run.plan["mu"]) ** 2,
        domains,
        sum(math.prod(len(domains[key]) for key in table["keys"]) for table in run.plan["tables"]),
        secret.of_ledger(run.ledger_id).noise_key(run.run_id, run.query_identity),
        AskLog(ledger.folder / ASKS / run.run_id, secret),
    )


def _check_plan(run: Run) -> None:
    """Refuse a plan in run.json that is not the one that the run was started with."""
    plan = {name: value for name, value in run.plan.items() if name != "reading"}
    if identity_of(PLAN_VERSION, plan | {"identity": ""}) != run.query_identity:
        raise LakeError(
            f"{record.RUN_FILE} of {run.name!r} has another plan than the run; {record.PUT_BACK}"
        )


def answer(
    session: Session,
    asks: Sequence[PaidAsk],
    marginals: PublishedMarginals,
    text: str,
    max_error: str,
    exact: ExactCount,
) -> PaidAnswer:
    """Answer a question, and log what is paid for it.

    Args:
        session: of the run.
        asks: all earlier ones.
        marginals: the tables of the newest trigger.
        text, max_error: of the question.
        exact: counts rows at that trigger; asked only after the price is decided.

    Raises:
        QueryError, DataError, LakeError: as `pay`.
    """
    asked = asked_cells(marginals, text)
    if asked.column not in marginals.counts or marginals.counts[0] != asked.column:
        raise DataError(
            "only the count of rows can be paid for: ask for COUNT(*), or allow a free answer"
        )
    want = largest_half(marginals, asked.column, max_error) / Z95
    offers = [
        _offer(session, asks, marginals, asked.column, cell, products)
        for cell, products in asked.cells
    ]
    left = session.mu2 - sum((ask.price(session.rows) for ask in asks), Fraction(0))
    paid = [offer for offer in offers if not offer.stderr <= want]
    if not paid:
        rows = [offer.row(asked.column) for offer in offers]
        return PaidAnswer(_answer(asked, rows), "free", 0.0, _share(left, session))
    sigmas = {offer.question: _sigma(want, offer.stderr) for offer in paid}
    cost = price(session.rows, min(sigmas.values()))
    if cost > left:
        raise DataError(_too_dear(session, cost, left, paid))
    cells = tuple(
        _paid_cell(session, marginals.trigger, offer, sigmas[offer.question], exact)
        for offer in paid
    )
    ask = PaidAsk(len(asks) + 1, session.run_id, marginals.trigger, text, cells)
    session.log.add(ask)
    bought = {cell.question: cell for cell in cells}
    rows = [
        offer.cell | interval_row(asked.column, cell.value, cell.stderr)
        if (cell := bought.get(offer.question))
        else offer.row(asked.column)
        for offer in offers
    ]
    return PaidAnswer(
        _answer(asked, rows), "paid", float(cost / session.mu2), _share(left - cost, session)
    )


@dataclass(frozen=True, eq=False)
class Offer:
    """What is known of one cell of a question before anything is paid; public.

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
    session: Session,
    asks: Sequence[PaidAsk],
    marginals: PublishedMarginals,
    column: str,
    cell: dict[str, str | int],
    products: list[dict[int, np.ndarray]],
) -> Offer:
    estimate = marginals.estimate(column, products)
    declared = [session.by_declared_values(marginals, product) for product in products]
    question = question_digest(session.domains, declared)
    paid = [
        known
        for ask in asks
        for known in ask.cells
        if ask.trigger == marginals.trigger and known.question == question
    ]
    if paid:
        return Offer(cell, declared, question, paid[-1].value, paid[-1].stderr, len(paid))
    return Offer(cell, declared, question, estimate.value, estimate.stderr, 0)


def _sigma(want: float, stderr: float) -> float:
    """Return the noise with which a count, combined with what is known, has the error that is wanted.

    Raises:
        DataError: no noise on whole rows is as small.
    """
    variance = 1 / (want**-2 - stderr**-2) - ROUNDING
    sigma = math.floor(math.sqrt(max(variance, 0.0)) * 2**SIGMA_BITS) / 2**SIGMA_BITS
    if sigma < 1:
        raise DataError("an answer as exact as that is not sold: allow an error of 2 rows or more")
    return sigma


def _paid_cell(
    session: Session, trigger: int, offer: Offer, sigma: float, exact: ExactCount
) -> PaidCell:
    """Compute an answer; nobody sees it before it is logged."""
    noisy = exact(offer.products) + noise(
        session.noise_key, trigger, offer.question, sigma, offer.times
    )
    variance = sigma**2 + ROUNDING
    weight = 1 / variance
    known_weight = offer.stderr**-2
    known = offer.value * known_weight if known_weight else 0.0
    value = (noisy * weight + known) / (weight + known_weight)
    return PaidCell(
        offer.cell, offer.question, sigma, noisy, value, (weight + known_weight) ** -0.5
    )


def noise(noise_key: bytes, trigger: int, question: str, sigma: float, times: int) -> int:
    """Return a normal number times sigma, rounded: another one for each trigger, question, sigma and number of answers that the question has had.

    Two answers with one normal number and two sigmas would give the exact count away.
    """
    words = f"dpsql/1/paid|{trigger}|{question}|{sigma.hex()}|{times}".encode()
    window, key = np.frombuffer(hashlib.sha256(words).digest()[:16], "<i8").reshape(2, 1)
    path = Paths(ONE_STEP, NOISE_STREAM, noise_key, tags(noise_key, window, key))
    state = np.zeros((1, ONE_STEP.width))
    place = np.zeros(1, np.int64)
    path.follow(state, np.zeros(1, np.int64), place, 1)
    return int(path.rounded(state, place, 1, sigma)[0])


def question_digest(
    domains: Sequence[Sequence[str]], products: Sequence[Mapping[int, np.ndarray]]
) -> str:
    """Return the SHA-256 of the set of cells that disjoint products are: one for all ways to write it.

    It is the reduced decision diagram over the keys: a key whose values all lead to the same set is passed over.
    """
    known: dict[tuple[int, tuple[int, ...]], str] = {}

    def diagram(key: int, alive: tuple[int, ...]) -> str:
        if key == len(domains):
            return "in" if alive else "out"
        if (key, alive) not in known:
            branches = [
                diagram(
                    key + 1,
                    tuple(
                        i for i in alive if key not in products[i] or products[i][key][value] > 0
                    ),
                )
                for value in range(len(domains[key]))
            ]
            same = branches[0] if len(set(branches)) == 1 else None
            text = f"{key}:{','.join(branches)}"
            known[key, alive] = same or hashlib.sha256(text.encode()).hexdigest()
        return known[key, alive]

    return diagram(0, tuple(range(len(products))))


def _too_dear(session: Session, cost: Fraction, left: Fraction, paid: Sequence[Offer]) -> str:
    """Say that what is left does not pay for an answer, and what would be answered; from public numbers."""
    worst = max(offer.stderr for offer in paid)
    free = f"± {Z95 * worst:,.4g} is free" if math.isfinite(worst) else "nothing of it is free"
    affordable = ""
    if left > 0:
        sigma = session.rows / math.sqrt(float(left))
        half = Z95 * (worst**-2 + 1 / (sigma**2 + ROUNDING)) ** -0.5
        affordable = f", ± {half:,.4g} can be paid for"
    return (
        f"this answer costs {float(cost / session.mu2):.2%} of what the run keeps for paid answers, and {_share(left, session):.2%} is left: "
        f"allow a larger error ({free}{affordable})"
    )


def _share(left: Fraction, session: Session) -> float:
    return float(left / session.mu2)


def _answer(asked: AskedCells, rows: list[dict[str, Any]]) -> QuestionAnswer:
    return QuestionAnswer(asked.keys, asked.column, rows, asked.with_null)


def publish(path: Place, session: Session, asks: Sequence[PaidAsk]) -> None:
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
    left = session.mu2 - sum((ask.price(session.rows) for ask in asks[:published]), Fraction(0))
    for ask in asks[published:]:
        cost = ask.price(session.rows)
        left -= cost
        rows = [
            {
                "seq": ask.seq,
                "trigger": ask.trigger,
                "question": ask.text,
                "cell": json.dumps(cell.cell),
                "cost_mu2": float(cost),
                "left_mu2": float(left),
                **interval_row("answer", cell.value, cell.stderr),
            }
            for cell in ask.cells
        ]
        delta_tables.append(
            path, pa.Table.from_pylist(rows, ANSWERS), {f"{session.run_id}/{ENDING}": ask.seq}
        )


@dataclass(frozen=True)
class Buckets:
    """The exact sums in the newest state of a run's release.

    Args:
        folder: the run's private folder.
        run: which.
    """

    folder: Place
    run: Run

    def read(self, marginals: PublishedMarginals) -> list[pa.Table]:
        """Return the exact sums of all buckets at the trigger of published tables.

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
        tables = [
            state.load(bucket, versions[bucket]) for bucket in range(buckets) if bucket in versions
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
