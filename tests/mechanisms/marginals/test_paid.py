"""Paid answers: what the release keeps for them, what they cost, what decides that, and what is left of a log that was cut or edited."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dpsql.errors import AccountingError, ConfigError, DataError, LakeError
from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import intake, release
from dpsql.privacy.secret import Secret
from dpsql.published import paid
from dpsql.published.ask_log import PRICE_BITS, AskLog, PaidAsk, price, total_price
from dpsql.published.cubes import PublishedMarginals
from dpsql.published.paid import PaidSession, publish
from dpsql.published.paid_noise import noise, question_digest
from dpsql.udfs.keys import encode
from dpsql.udfs.marginals.exact import EXACT, ExactCounts
from dpsql.udfs.stage import Clock, Tick
from dpsql.udfs.table.release import TableStage
from dpsql.udfs.table.state import TABLES
from tests.mechanisms.marginals.plans import START, published_rows, query, source
from tests.mechanisms.marginals.test_questions import rows as rows_of_test
from tests.property.plans import COUNT, HOUR, SUM

SIZES = (5, 4, 3)
ROWS = 3
WANT = "SELECT COUNT(*) FROM q WHERE url = '/a' AND hour = 7 AND size = 'large'"
SAME = "SELECT COUNT(*) FROM q WHERE NOT (NOT (size = 'large' AND hour < 8) OR url <> '/a')"
OTHER = "SELECT COUNT(*) FROM q WHERE url = '/b' AND hour = 7 AND size = 'large'"


TWENTY = [
    f"SELECT COUNT(*) FROM q WHERE url = '{url}' AND hour = {hour} AND size = '{size}'"
    for url in ("/b", "other")
    for hour in (7, 8, 9, 10)
    for size in ("large", "small")
]
TOO_DEAR = r"costs .*% of what .* is left: allow a larger error \(nothing of it is free, ± ([\d.,]+) can be paid for\)"


def marginals() -> PublishedMarginals:
    """Tables of one and two of three keys, so that all three together are not covered."""
    return published_rows(rows_of_test())


def session(folder: Path, mu2: float = 1.0, order: int = 1) -> PaidSession:
    """A session about these tables; declared values come in the order of the published ones, or in the other one."""
    domains = (("/a", "/b", "other"), ("7", "8", "9", "10"), ("large", "small"))
    folder.mkdir(exist_ok=True)
    log = AskLog(folder, Secret(bytes(range(32))))
    return PaidSession(
        "5a" * 16,
        ROWS,
        int(mu2 * 2**PRICE_BITS),
        tuple(each[::order] for each in domains),
        26,
        ("views",),
        b"k" * 32,
        log,
    )


def ask(s: PaidSession, text: str, error: str = "20", count: int = 100) -> paid.PaidAnswer:
    """Ask where the exact count of whatever is asked is known."""
    return paid.answer(s, s.log.asks(s.run_id), marginals(), text, error, lambda products: count)


def records(plan: Any, values: np.ndarray, users: np.ndarray, first: int) -> pa.Table:
    names = [encode([b"%d" % value for value in row]) for row in values]
    zeros = np.zeros(len(values), np.int64)
    table = {
        "drop": zeros.astype(np.int8),
        "user": users,
        "ts": START + first + np.arange(len(values)),
        "key": zeros,
        "key_bytes": pa.array(names, pa.binary()),
    }
    return pa.table(table | {f"a{i}": np.ones(len(values)) for i in range(len(plan.arguments))})


@pytest.mark.parametrize("aggregates", [(COUNT,), (COUNT, SUM), (SUM, COUNT)])
def test_the_release_keeps_exact_counts_and_shows_none(aggregates: Any) -> None:
    """Exact counts are those of records that count at closed triggers; released rows are those of the same tables without them. Catches: counts of
    open triggers, or of dropped records; sums in the place of counts, where a sum comes
    first: an answer costs what rows add; a row of an exact cell that is released."""
    plan = make_plan(
        query(session_share=0.5, max_rows_contributed=2, aggregates=aggregates), source()
    )
    chance = np.random.default_rng(1)
    values = np.column_stack([chance.integers(0, n, 400) for n in SIZES])
    users = chance.integers(0, 150, 400)
    first = intake(plan)
    stage = release(plan)
    bare = TableStage(stage.parameters)
    state, bare_state, used = stage.empty(), bare.empty(), first.empty()
    expected = np.zeros(SIZES, np.int64)
    seen: dict[int, int] = {}
    closed_rows = 0
    for batch, part in enumerate(np.array_split(np.arange(400), 4)):
        clock = Clock(START + batch * HOUR)
        stepped = first.step(
            used, records(plan, values[part], users[part], int(part[0])), clock, bytes(32)
        )
        used = stepped.state
        rows = stepped.rows.append_column("batch", pa.array(np.full(stepped.rows.num_rows, batch)))
        is_measured = rows["key"].to_numpy() < plan.marginals.first[-1]
        ticks = [Tick(batch, START + (batch + 1) * HOUR)] if batch != 2 else []
        done = stage.step(state, rows, ticks, bytes(32))
        plain = bare.step(bare_state, rows.filter(pa.array(is_measured)), ticks, bytes(32))
        assert done.rows.equals(plain.rows)
        assert {name: done.state[name] for name in TABLES} == plain.state
        assert bool(done.rows.num_rows) == bool(ticks)
        assert done.rows.num_rows % plan.marginals.first[-1] == 0
        state, bare_state = done.state, plain.state
        closed_rows = int(part[-1]) + 1 if ticks else closed_rows
        expected[...] = 0
        seen.clear()
        for value, user in zip(values[:closed_rows], users[:closed_rows], strict=True):
            seen[int(user)] = seen.get(int(user), 0) + 1
            if seen[int(user)] <= 2:
                expected[tuple(value)] += 1
        for product in ({}, {0: np.eye(5)[2]}, {0: np.ones(5), 1: np.eye(4)[3], 2: np.eye(3)[0]}):
            dense = expected.astype(float)
            for key, weights in product.items():
                dense = dense * weights.reshape([-1 if k == key else 1 for k in range(3)])
            counts = ExactCounts.of_tables([state[EXACT]], stage.first_exact, SIZES)
            assert counts.count([product]) == dense.sum()
            assert replace(counts, dense=None).count([product]) == dense.sum()


def test_the_share_is_part_of_what_the_run_costs() -> None:
    """The tables have what the session leaves. Catches: tables that keep all of mu^2."""
    plain = make_plan(query(), source())
    plan = make_plan(query(session_share=0.19), source())
    assert account(plan, source()).mu2 == pytest.approx(account(plain, source()).mu2, rel=1e-5)
    ratios = [a / b for a, b in zip(plan.sums[0].sigmas, plain.sums[0].sigmas, strict=True)]
    assert ratios == pytest.approx([1 / 0.9] * len(ratios), rel=1e-5)
    with pytest.raises(AccountingError):
        account(replace(plan, sums=plain.sums), source())


def test_a_run_without_a_count_of_rows_sells_nothing() -> None:
    with pytest.raises(
        ConfigError, match=r"pays for answers of COUNT\(\*\), which this query lacks"
    ):
        make_plan(query(session_share=0.19, aggregates=(SUM,)), source())


def test_free_first_then_paid_then_refused(tmp_path: Path) -> None:
    s = session(tmp_path / "log", mu2=0.5)
    free = ask(s, "SELECT COUNT(*) FROM q WHERE url = '/a'", "50")
    assert (free.source, free.cost, free.remaining, s.log.asks(s.run_id)) == ("free", 0.0, 1.0, [])
    first = ask(s, WANT)
    (row,) = first.answer.rows
    assert first.source == "paid" and row["stderr"] == pytest.approx(20 / 1.959964, rel=1e-3)
    assert abs(row["views"] - 100) < 5 * row["stderr"]
    cost = first.cost
    with pytest.raises(DataError, match=TOO_DEAR):
        for text in TWENTY:
            cost += ask(s, text, "19").cost
    assert cost <= 1
    check_log(s)
    affordable = ask(s, WANT, "20")
    assert affordable.source == "free"


def test_a_repeated_question_costs_nothing_however_it_is_written(tmp_path: Path) -> None:
    """Catches: a second price, or other noise, for the same question; the old noise for a tighter answer."""
    s = session(tmp_path / "log")
    first = ask(s, WANT)
    for text, error in ((WANT, "20"), (SAME, "20"), (SAME, "35")):
        again = ask(s, text, error)
        assert (again.source, again.cost) == ("free", 0.0)
        assert again.answer.rows == first.answer.rows
    tighter = ask(s, SAME, "10")
    one, two = s.log.asks(s.run_id)
    assert tighter.source == "paid" and two.cells[0].sigma > one.cells[0].sigma / 2
    z = [(each.cells[0].noisy - 100) / each.cells[0].sigma for each in (one, two)]
    assert abs(z[0] - z[1]) > 1e-3


def test_what_is_free_paid_or_refused_hangs_on_public_numbers_alone(tmp_path: Path) -> None:
    """Two sessions on neighbouring tables are the same but for the numbers in their answers. Catches: a decision by the exact count."""
    chance = random.Random(5)
    conditions = [
        f"url = '{url}' AND hour {test} AND size = '{size}'"
        for url in ("/a", "/b", "other")
        for test in ("= 7", "< 9", "> 8")
        for size in ("large", "small")
    ]
    questions = [
        (
            f"SELECT COUNT(*) FROM q WHERE {chance.choice(conditions)}",
            str(chance.choice([8, 15, 40, 90])),
        )
        for _ in range(120)
    ]
    found = []
    for name, count in (("one", 10), ("two", 10 + ROWS), ("far", 10**6)):
        s = session(tmp_path / name, mu2=2.0)
        told: list[Any] = []
        for text, error in questions:
            try:
                answer = ask(s, text, error, count)
                told.append(
                    (answer.source, answer.cost, answer.remaining, answer.answer.rows[0]["stderr"])
                )
            except DataError as problem:
                told.append(str(problem))
        found.append(told)
    assert found[0] == found[1] == found[2]
    kinds = {each[0] if isinstance(each, tuple) else "refused" for each in found[0]}
    assert kinds == {"free", "paid", "refused"}


def test_cells_of_one_question_have_one_price(tmp_path: Path) -> None:
    s = session(tmp_path / "log")
    answer = ask(s, "SELECT url, COUNT(*) FROM q WHERE hour = 7 AND size = 'large' GROUP BY url")
    (line,) = s.log.asks(s.run_id)
    assert [cell.cell for cell in line.cells] == [{"url": url} for url in ("/a", "/b", "other")]
    assert len({cell.noisy for cell in line.cells}) == 3
    assert answer.cost == price(ROWS, min(cell.sigma for cell in line.cells)) / s.mu2


def test_answers_hold_as_often_as_they_say() -> None:
    """Of 4,000 paid answers 95% are within their interval (+- 1.4: four deviations), and noise of equal cells with other sigmas is independent.
    Catches: noise of half the size (99.99%); one normal number for two sigmas."""
    z = {
        sigma: np.array(
            [noise(b"n" * 32, 3, f"{number}", sigma, 0) / sigma for number in range(4000)]
        )
        for sigma in (30.0, 31.0)
    }
    for each in z.values():
        assert abs(np.mean(np.abs(each) < 1.96) - 0.95) < 0.014
        assert abs(each.mean()) < 0.07
    assert abs(np.corrcoef(z[30.0], z[31.0])[0, 1]) < 0.07


def test_a_digest_is_of_the_cells() -> None:
    """Catches: two questions with one digest, which would share an answer; one question with two, which would be paid twice."""
    chance = np.random.default_rng(3)
    sizes = (3, 2, 4)
    domains = tuple(tuple(map(str, range(n))) for n in sizes)
    digests: dict[bytes, str] = {}
    for _ in range(300):
        cells = chance.random(sizes) < chance.choice([0.1, 0.5, 0.9])
        by_cell = [
            {k: np.eye(n)[place[k]] for k, n in enumerate(sizes)} for place in np.argwhere(cells)
        ]
        by_line = [
            {0: np.eye(3)[a], 1: np.eye(2)[b], 2: cells[a, b].astype(float)}
            for a in range(3)
            for b in range(2)
            if cells[a, b].any()
        ]
        digest = question_digest(domains, by_cell)
        assert digest == question_digest(domains, by_line)
        assert digests.setdefault(cells.tobytes(), digest) == digest
    assert len(set(digests.values())) == len(digests)


def test_declared_values_may_come_in_another_order(tmp_path: Path) -> None:
    chosen = []
    for order in (1, -1):
        s = session(tmp_path / f"log{order}", order=order)
        with mock.patch.object(paid, "_paid_cell", wraps=paid._paid_cell) as made:
            ask(s, WANT)
        (product,) = made.call_args.args[2].products
        chosen.append({key: s.domains[key][int(np.argmax(w))] for key, w in product.items()})
    assert chosen[0] == chosen[1] == {0: "/a", 1: "7", 2: "large"}


def test_a_log_that_was_cut_or_edited_stops_all_paying(tmp_path: Path) -> None:
    s = session(tmp_path / "log")
    for number in range(3):
        ask(s, WANT, str(20 - number))
    public = tmp_path / "q.answers"
    publish(public, s, s.log.asks(s.run_id))
    publish(public, s, s.log.asks(s.run_id))
    table = DeltaTable(str(public)).to_pyarrow_table().sort_by("seq")
    assert table["seq"].to_pylist() == [1, 2, 3]
    assert table["left_mu2"][2].as_py() == pytest.approx(
        (s.mu2 - total_price(s.log.asks(s.run_id))) / 2**PRICE_BITS
    )
    newest = s.log.folder / "000003.json"
    content = newest.read_bytes()
    newest.unlink()
    s = session(tmp_path / "log")
    with pytest.raises(
        LakeError, match=r"has 3 paid answers, and .* knows of 2: put back the newest"
    ):
        publish(public, s, s.log.asks(s.run_id))
    newest.write_bytes(content.replace(b'"trigger": 3', b'"trigger": 2'))
    s = session(tmp_path / "log")
    with pytest.raises(LakeError, match="edited after it was written"):
        s.log.asks(s.run_id)
    newest.write_bytes(content)
    (s.log.folder / "000002.json").unlink()
    with pytest.raises(LakeError, match="an ask is missing"):
        s.log.asks(s.run_id)


def test_an_answer_that_was_not_published_is_published_by_the_next_ask(tmp_path: Path) -> None:
    s = session(tmp_path / "log")
    ask(s, WANT)
    public = tmp_path / "q.answers"
    publish(public, s, s.log.asks(s.run_id))
    assert (
        DeltaTable(str(public)).to_pyarrow_table()["answer"][0].as_py()
        == s.log.asks(s.run_id)[0].cells[0].value
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("SELECT SUM(time) FROM q WHERE hour = 7", "1", "only the count of rows can be paid for"),
        (WANT, "1.5", "not sold: allow an error of 2 rows or more"),
        (WANT, "1e-300", "not sold: allow an error of 2 rows or more"),
        (WANT, "x", "give a number of rows"),
    ],
)
def test_what_cannot_be_paid_is_refused(
    tmp_path: Path, text: str, error: str, message: str
) -> None:
    s = session(tmp_path / "log")
    with pytest.raises(DataError, match=message):
        ask(s, text, error)
    assert s.log.asks(s.run_id) == []


@pytest.mark.parametrize("mu2", [0.05, 0.137, 0.311, 0.5, 0.77, 1.01])
def test_the_error_that_a_refusal_names_is_sold(tmp_path: Path, mu2: float) -> None:
    """Catches: an error that is rounded down, and refused again."""
    s = session(tmp_path / "log", mu2=mu2)
    with pytest.raises(DataError, match=TOO_DEAR) as refused:
        ask(s, WANT, "4")
    (error,) = re.findall(TOO_DEAR, str(refused.value))
    sold = ask(s, WANT, error.replace(",", ""))
    assert sold.source == "paid" and sold.remaining < 0.01


def test_an_error_above_all_numbers_is_sold_more_exactly(tmp_path: Path) -> None:
    s = session(tmp_path / "log")
    sold = ask(s, WANT, "1e308")
    assert sold.source == "paid" and 0 < sold.cost < 1e-18
    assert s.log.asks(s.run_id)[0].cells[0].sigma == 2**40


def keep_asking(folder: Path, first: int, asks: int, mu2: float) -> None:
    """A process that asks, again and again, until it is killed or done."""
    chance = random.Random(first)
    s = session(folder, mu2=mu2)
    for _ in range(asks):
        with s.log.lock():
            try:
                ask(s, chance.choice(TWENTY), str(chance.uniform(6, 60)))
            except DataError:
                continue


def asks_of_processes(
    folder: Path, processes: int, asks: int, kills: int, mu2: float
) -> PaidSession:
    """Processes that ask at once; some are killed at random moments, and others begun in their place."""
    context = multiprocessing.get_context("spawn")
    chance = random.Random(1)

    def begin(number: int) -> Any:
        process = context.Process(target=keep_asking, args=(folder, number, asks // processes, mu2))
        process.start()
        return process

    working = [begin(number) for number in range(processes)]
    for number in range(kills):
        victim = chance.randrange(processes)
        working[victim].join(timeout=2 + 2 * chance.random())
        if working[victim].pid and working[victim].is_alive():
            os.kill(working[victim].pid, signal.SIGKILL)
        working[victim].join()
        working[victim] = begin(processes + number)
    for process in working:
        process.join()
    return session(folder, mu2=mu2)


def check_log(s: PaidSession) -> list[PaidAsk]:
    """The log is whole, and what it has cost is no more than there is: by exact arithmetic of its own."""
    asks = s.log.asks(s.run_id)
    total = sum(
        Fraction(ROWS**2) / Fraction(min(cell.sigma for cell in each.cells)) ** 2 for each in asks
    )
    assert 0 < total <= Fraction(s.mu2, 2**PRICE_BITS)
    assert total <= Fraction(total_price(asks), 2**PRICE_BITS) <= total * (1 + Fraction(1, 10**9))
    keys = [(cell.question, cell.sigma) for each in asks for cell in each.cells]
    assert len(keys) == len(set(keys))
    return asks


def test_processes_that_ask_at_once_and_are_killed_never_spend_more(tmp_path: Path) -> None:
    """A small case of `tests/long/mechanisms/test_paid.py`. Catches: a budget that is looked at before others have paid."""
    s = asks_of_processes(tmp_path / "log", 2, 60, 1, 0.4)
    assert len(check_log(s)) > 3
    left = (s.mu2 - total_price(s.log.asks(s.run_id))) / 2**PRICE_BITS
    assert left < 0.2


def test_asks_are_read_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: names of more digits that are sorted as texts, after which no ask is answered."""
    monkeypatch.setattr(AskLog, "_path", lambda log, seq: log.folder / f"{seq}.json")
    log = session(tmp_path / "log").log
    for seq in range(1, 12):
        log.add(PaidAsk(seq, "5a" * 16, 1, "", (), seq))
    assert [ask.seq for ask in log.asks("5a" * 16)] == [*range(1, 12)]
