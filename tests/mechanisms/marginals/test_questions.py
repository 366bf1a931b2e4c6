"""Questions to published marginals: what they mean against plain rows, their error bars against dense least squares, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dpsql.description import Measure
from dpsql.errors import DataError, LakeError, QueryError
from dpsql.parsed_query import AggregateFunction
from dpsql.published.cubes import PublishedMarginals, synthesize, tables_in
from dpsql.sql.question import complement, disjoint, intersection, per_cell, read_question
from dpsql.udfs.marginals.estimates import LeastSquares, covariance, estimate
from tests.mechanisms.marginals.plans import published_rows

KEYS = {"url": ["/a", "/b", "other"], "hour": [7, 8, 9, 10], "size": ["large", "small"]}
SIZES = (3, 4, 2)
TABLES = ((0, 1), (1, 2), (0, 2), (0,), ())
CONDITIONS = [
    "true",
    "hour BETWEEN 8 AND 9",
    "url = '/a' OR hour > 8",
    "NOT (url IN ('/a', 'other') AND size <> 'large')",
    "url = '/a' OR url = '/b' OR hour <= 7 OR size = 'small'",
    "(url = '/a' AND hour = 7) OR (url = '/b' AND NOT hour < 9) OR NOT (size = 'large' OR hour >= 8)",
    "hour = 7 AND hour = 8",
    "NOT true OR (hour > -1 AND url <> '/b')",
    "hour = 99",
]


def rows(tables: tuple[tuple[int, ...], ...] = TABLES) -> pa.Table:
    """What a run publishes at a trigger: exact sums of the cells 1, 2, 3, ..., with errors that differ by table, and a sum of values beside."""
    whole = np.arange(1, 1 + math.prod(SIZES)).reshape(SIZES)
    out = []
    for t, keys in enumerate(tables):
        table = whole.sum(axis=tuple(key for key in range(3) if key not in keys))
        for cell in itertools.product(*(range(SIZES[key]) for key in keys)):
            place = dict(zip(keys, cell, strict=True))
            named = {
                name: KEYS[name][place[i]] if i in place else None for i, name in enumerate(KEYS)
            }
            ids = sum(1 << (2 - key) for key in range(3) if key not in keys)
            count = int(table[cell])
            numbers = {
                "views": count,
                "views_stderr": 2.0 + t,
                "time": count / 4,
                "time_stderr": 0.5,
            }
            out.append({"trigger": 3, "trigger_time": 0} | named | {"grouping_id": ids} | numbers)
    made = pa.Table.from_pylist(out)
    made = made.set_column(
        1, "trigger_time", made["trigger_time"].cast(pa.timestamp("us", tz="UTC"))
    )
    return made.take(pa.array(np.random.default_rng(1).permutation(len(out))))


def answer(found: PublishedMarginals, condition: str) -> float:
    asked = read_question(f"SELECT COUNT(*) FROM t WHERE {condition}", found.keys)
    ((_, products),) = per_cell(asked, found.keys)
    return found.estimate("views", products).value


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_means_what_it_means_in_sql(condition: str) -> None:
    """Against DuckDB over the exact cells: tables without noise give every sum exactly, where they have all its keys."""
    whole = np.arange(1, 1 + math.prod(SIZES))
    cells = pa.table(
        dict(
            zip(
                (*KEYS, "n"),
                (*zip(*itertools.product(*KEYS.values()), strict=True), whole),
                strict=True,
            )
        )
    )
    with duckdb.connect() as connection:
        connection.register("cells", cells)
        ((expected,),) = connection.sql(
            f"SELECT coalesce(sum(n), 0) FROM cells WHERE {condition}"
        ).fetchall()
    found = published_rows(rows((*TABLES, (0, 1, 2))))
    assert answer(found, condition) == pytest.approx(float(expected), abs=1e-9)
    groups = read_question(
        f"SELECT url, SUM(views) FROM t WHERE {condition} GROUP BY url", found.keys
    )
    parts = [
        found.estimate("views", products).value for _, products in per_cell(groups, found.keys)
    ]
    assert math.fsum(parts) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("url <> '/a'", ("url",)),
        ("NOT (hour > 8 OR url = '/a')", ("url",)),
        ("url IN ('/a', 'other') AND size <> 'large'", ()),
        ("true", ()),
    ],
)
def test_null_is_counted_with_other_where_a_test_is_turned_round(
    condition: str, keys: tuple[str, ...]
) -> None:
    """SQL would leave NULL out; what is published cannot tell it from `other`, so the answer says so."""
    assert read_question(f"SELECT COUNT(*) FROM t WHERE {condition}", KEYS).with_null == keys


def test_products_are_disjoint_and_make_up_the_union() -> None:
    pick = np.random.default_rng(3)

    def mask(products: list[dict[int, np.ndarray]]) -> np.ndarray:
        out = np.zeros(SIZES, np.int64)
        for product in products:
            one = np.ones(SIZES, np.int64)
            for key, chosen in product.items():
                one = one * chosen.reshape([-1 if axis == key else 1 for axis in range(3)])
            out = out + one
        return out

    for _ in range(200):
        either, other = (
            disjoint(
                *(
                    [
                        {
                            key: pick.random(SIZES[key]) < 0.5
                            for key in range(3)
                            if pick.random() < 0.7
                        }
                    ]
                    for _ in range(2)
                )
            )
            for _ in range(2)
        )
        a = mask(either)
        b = mask(other)
        assert max(a.max(), b.max()) <= 1
        assert np.array_equal(mask(disjoint(either, other)), a | b)
        assert np.array_equal(mask(intersection(either, other)), a & b)
        assert np.array_equal(mask(complement(either)), 1 - a)


def test_errors_of_unions_are_those_of_dense_least_squares() -> None:
    """Catches: the covariance of two products that is left out."""
    pick = np.random.default_rng(4)
    whole = math.prod(SIZES)
    for _ in range(50):
        tables = tuple(
            keys for keys in ((0, 1), (1, 2), (0, 2), (0,), (0, 1, 2), ()) if pick.random() < 0.7
        ) or ((0, 1, 2),)
        known = LeastSquares(SIZES, tables, tuple(pick.uniform(0.5, 9, len(tables)).tolist()))
        products = [
            {key: pick.random(SIZES[key]) for key in range(3) if pick.random() < 0.7}
            for _ in range(int(pick.integers(1, 5)))
        ]
        f = np.zeros(whole)
        normal = np.zeros((whole, whole))
        right = np.zeros(whole)
        for product in products:
            one = np.ones(SIZES)
            for key, weights in product.items():
                one = one * weights.reshape([-1 if axis == key else 1 for axis in range(3)])
            f += one.ravel()
        released = []
        for keys, variance in zip(tables, known.variances, strict=True):
            eye = np.eye(whole).reshape(*SIZES, whole)
            q = eye.sum(axis=tuple(key for key in range(3) if key not in keys)).reshape(-1, whole)
            released.append(pick.normal(size=tuple(SIZES[key] for key in keys)))
            normal += q.T @ q / variance
            right += q.T @ released[-1].ravel() / variance
        inverse = np.linalg.pinv(normal, rcond=1e-10)
        covered = np.allclose(normal @ inverse @ f, f, atol=1e-8)
        found = estimate(known, products, released)
        assert math.isfinite(found.stderr) == covered
        if covered:
            assert found.stderr**2 == pytest.approx(f @ inverse @ f, rel=1e-9)
            assert found.value == pytest.approx(f @ inverse @ right, rel=1e-8, abs=1e-8)
            alone = sum(covariance(known, [product]) for product in products)
            assert len(products) == 1 or alone != pytest.approx(found.stderr**2, rel=1e-6)


def test_which_column_and_what_is_not_covered() -> None:
    found = published_rows(rows(((0,), (1,))))
    assert found.column(None) == "views" and found.column("time") == "time" and found.trigger == 3
    with pytest.raises(LakeError, match=r"no column 'clicks': ask for SUM\(views\), SUM\(time\)"):
        found.column("clicks")
    assert math.isnan(answer(found, "url = '/a' AND hour = 7"))
    with pytest.raises(QueryError, match="No measured table has the key `size`"):
        answer(found, "size = 'large'")
    with pytest.raises(LakeError, match="not all cells"):
        published_rows(rows().slice(1))


def test_averages_of_cells_are_no_answer() -> None:
    """By what the table says of its columns. Those that add up are answered for as before."""
    plain = published_rows(rows())
    mean = Measure("time", AggregateFunction.AVG, False, (0.0, 60.0), None)
    beside = tables_in(rows(), replace(plain.published, measures=(mean,)))
    assert beside.column(None) == "views" and answer(beside, "hour = 7") == answer(
        plain, "hour = 7"
    )
    alone = tables_in(
        rows().drop(["views", "views_stderr"]),
        replace(
            plain.published,
            columns=plain.published.columns[:-4] + plain.published.columns[-2:],
            measures=(mean,),
        ),
    )
    for found, name in ((beside, "time"), (alone, "time"), (alone, None), (alone, "clicks")):
        with pytest.raises(
            LakeError,
            match=r"time \(AVG\) does not add up over cells.*: select SUM and COUNT next to it",
        ):
            found.column(name)
    with pytest.raises(DataError, match="give a count"):
        synthesize(beside, "time")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT COUNT(*) FROM t WHERE wiki = 'de'", "question:1:30: There is no key `wiki`"),
        (
            "SELECT COUNT(*) FROM t WHERE hour = '7'",
            "question:1:37: The values of `hour` are whole numbers",
        ),
        ("SELECT COUNT(*) FROM t WHERE url = 7", "The values of `url` are texts"),
        ("SELECT COUNT(*) FROM t WHERE url < '/b'", "have no order here"),
        ("SELECT COUNT(*) FROM t WHERE url IS NULL", "This is no condition on a key"),
        ("SELECT COUNT(*) FROM t WHERE url LIKE '/%'", "This is no condition on a key"),
        (
            "SELECT COUNT(*) FROM t WHERE hour IN (SELECT hour FROM t)",
            "This is no condition on a key",
        ),
        ("SELECT COUNT(*) FROM t WHERE 7 = hour", "A condition has a key on its left"),
        ("SELECT AVG(views) FROM t", "asks for COUNT"),
        ("SELECT COUNT(*), SUM(views) FROM t", "one COUNT"),
        ("SELECT url, COUNT(*) FROM t", "are the same"),
        ("SELECT COUNT(*) FROM t GROUP BY url", "are the same"),
        ("SELECT COUNT(*) FROM (SELECT * FROM t)", "about one published table"),
        ("SELECT COUNT(*) FROM t ORDER BY 1", "SELECT, FROM, WHERE and GROUP BY only"),
        ("SELECT COUNT(*) FROM t LIMIT 1", "SELECT, FROM, WHERE and GROUP BY only"),
        ("SELECT COUNT(*) FROM t JOIN u ON t.a = u.a", "SELECT, FROM, WHERE and GROUP BY only"),
        ("SELECT COUNT(*) FROM t VERSION AS OF 3", "SELECT, FROM, WHERE and GROUP BY only"),
        (
            "SELECT COUNT(*) FROM t TABLESAMPLE (10 PERCENT)",
            "SELECT, FROM, WHERE and GROUP BY only",
        ),
        ("SELECT COUNT(*) FROM t SORT BY url", "SELECT, FROM, WHERE and GROUP BY only"),
        (
            "SELECT url, COUNT(*) FROM t GROUP BY url WITH ROLLUP",
            "SELECT, FROM, WHERE and GROUP BY only",
        ),
        ("SELECT COUNT(*) FROM t WHERE hour BETWEEN SYMMETRIC 9 AND 7", "in their plain forms"),
        ("SELECT COUNT(*) FROM t u WHERE z.hour = 7", "There is no table `z`"),
        ("SELECT COUNT(*) FROM t WHERE url = '/a\\0'", "`url` has no value"),
        ("SELECT COUNT(*) FROM t WHERE url <> '/nowhere'", "`url` has no value"),
        ("DROP TABLE t", "question:1:1"),
        ("SELECT COUNT(*) FROM t WHERE hour BETWEEN 1", "question:1:"),
    ],
)
def test_what_is_no_question_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(QueryError) as found:
        read_question(text, KEYS)
    assert says in str(found.value)


def test_questions_without_a_clause_are_refused() -> None:
    """Catches: an error of another kind where a clause of a question is left out."""
    clauses = [
        "SELECT url,",
        "COUNT(*)",
        "FROM t",
        "WHERE hour = 7",
        "AND url = '/a'",
        "GROUP BY url",
    ]
    for size in range(len(clauses) + 1):
        for chosen in itertools.combinations(clauses, size):
            with contextlib.suppress(QueryError):
                read_question(" ".join(chosen), KEYS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "of at most 1 record of one user_id, the earliest"),
        (
            {"max_rows": 8, "rows_end": True},
            "of at most 8 row versions of one user_id, the earliest",
        ),
        (
            {"max_rows": 2, "rows_end": True, "period_us": 2 * 86_400_000_000},
            "of at most 2 row versions of one user_id in 2 days, the earliest",
        ),
        ({"units": ()}, "of every row whose keys have declared values, its numbers clamped"),
    ],
)
def test_an_answer_says_what_counts(changes: dict[str, Any], said: str) -> None:
    found = published_rows(rows())
    (run,) = found.published.protects
    runs = (replace(run, **changes),)
    assert replace(found, published=replace(found.published, protects=runs)).bound == said


def test_a_union_is_covered_if_its_products_are() -> None:
    """Parts that cancel up to rounding are no knowledge: no answer, in the place of NaN with an error."""
    found = published_rows(rows(((0,), (1,))))
    assert math.isnan(answer(found, "(url = '/a' AND hour = 7) OR (url = '/a' AND hour <> 7)"))
    known = LeastSquares((100_000,) * 3, ((0,), (1,), (2,)), (1.0, 1.0, 1.0))
    corner = {key: np.arange(100_000) == 0 for key in range(3)}
    rest = complement([corner])
    weights = [{key: chosen.astype(float) for key, chosen in product.items()} for product in rest]
    assert estimate(known, weights, [np.zeros(100_000)] * 3).stderr == math.inf


def test_whole_numbers_are_compared_exactly() -> None:
    keys = {"n": [2**53, 2**53 + 1, 2**53 + 2]}
    ((chosen,),) = (
        product.values()
        for product in read_question(
            "SELECT COUNT(*) FROM t WHERE n IN (9007199254740992)", keys
        ).products
    )
    assert chosen.tolist() == [True, False, False]


def test_a_deeply_nested_condition_is_refused() -> None:
    with pytest.raises(DataError, match="nested too deeply"):
        read_question(f"SELECT COUNT(*) FROM t WHERE {'NOT ' * 3_000}hour = 7", KEYS)


def test_a_condition_of_too_many_products_is_refused() -> None:
    keys = {f"k{i}": list(range(4)) for i in range(12)}
    either = " OR ".join(f"(k{2 * i} = 1 AND k{2 * i + 1} = 2)" for i in range(6))
    parts = " AND ".join(
        f"NOT (k{i} = 1 AND k{i + 1} = 2 AND k{(i + 5) % 12} = 3)" for i in range(11)
    )
    boxes = " OR ".join(
        "(" + " AND ".join(f"k{i} IN {pair}" for i in range(12)) + ")"
        for pair in ((1, 2), (2, 3), (0, 2), (1, 3))
    )
    for condition in (f"({either}) AND {parts}", f"NOT ({boxes})"):
        with pytest.raises(QueryError, match="more than 256 products"):
            read_question(f"SELECT COUNT(*) FROM t WHERE {condition}", keys)
