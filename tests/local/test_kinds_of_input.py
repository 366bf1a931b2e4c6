"""Kinds of records: what each becomes, as the table in docs/reference.md says; no value decides a type or a refusal, and none is quoted."""

from __future__ import annotations

import datetime as dt
import io
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import ipc

import dpsql
from dpsql.errors import DpsqlError
from dpsql.local.frames import arrow_table, at_hand
from dpsql.local.object_columns import ODD
from dpsql.local.spark_types import parse_ddl
from tests.docs.inputs import KINDS

CANARY = "zqcanary"
PEOPLE = 300
COUNT = "SELECT k, COUNT(*) AS n FROM v GROUP BY k"
SUM = "SELECT k, SUM(x, contribution_bounds_per_row => (0, 9)) AS n FROM v GROUP BY k"
ZONE = dt.timezone(dt.timedelta(hours=2))


class Odd:
    """An object that raises and shows its value wherever it is asked."""

    def __repr__(self) -> str:
        return CANARY

    def __ne__(self, other: object) -> bool:
        raise RuntimeError(CANARY)

    __str__ = __repr__


TEXTS: list[tuple[Any, str | None, str | None]] = [
    ("a", "a", "a"),
    (7, "7", "7"),
    (2**70, str(2**70), str(2**70)),
    (np.int8(3), "3", "3"),
    (UUID(int=7), str(UUID(int=7)), str(UUID(int=7))),
    ("\ud83d\ude00", "\U0001f600", "\U0001f600"),
    ("x\ud800", "x\ufffd", "x\ufffd"),
    (True, "malformed", "true"),
    (Decimal("1.50"), "malformed", "1.50"),
    (dt.date(2026, 1, 2), "malformed", "2026-01-02"),
    (dt.datetime(2026, 1, 2, 3, 4, 5, 600000), "malformed", "2026-01-02 03:04:05.6"),
    (dt.datetime(2026, 1, 2, 3, tzinfo=ZONE), "malformed", "2026-01-02 01:00:00"),
    (pd.Timestamp("2026-01-02", tz="UTC"), "malformed", "2026-01-02 00:00:00"),
    *((nothing, None, None) for nothing in (None, float("nan"), pd.NaT, pd.NA, np.float32("nan"))),
    *((odd, "malformed", "malformed") for odd in (b"a", 1.5, [1], {}, ..., Odd(), 10**5000)),
    *((Decimal(odd), "malformed", "malformed") for odd in ("sNaN", "1E+999999", "Infinity")),
    (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=2))), "malformed", "malformed"),
]
"""An object, and what it is as a unit and as a key."""

DECLARED = [
    ("DECIMAL(12, 2)", [Decimal("1.5"), "2", 3, 0.25], ["x", True, b"1", Odd(), Decimal("1E30")]),
    ("BIGINT", [5, "6"], [2**70, "1.5", 1.5]),
    ("DOUBLE", [0.5, np.float64(2), float("inf"), 3, "1e3"], ["x"]),
    ("BOOLEAN", [True, np.True_, "false"], [1, "x"]),
    ("DATE", [dt.date(2026, 1, 2), "2026-01-02"], ["02.01.2026"]),
    ("TIMESTAMP", [dt.datetime(2026, 1, 2), dt.date(2026, 1, 2), "2026-01-02 03:00"], ["soon"]),
    ("BINARY", [b"\xff"], ["x", 1]),
]


@pytest.mark.parametrize("wrap", [list, lambda values: pd.Series(values, dtype=object)])
def test_objects_are_texts_one_by_one(wrap: Callable[[list[Any]], Any]) -> None:
    """Catches: a type that is that of all values; a value that ends the reading of all."""
    values = [value for value, _, _ in TEXTS]
    for units, place in ((("c",), 1), ((), 2)):
        table = arrow_table(at_hand({"c": wrap(values)}), {"c"}, units)
        said = [
            "malformed" if odd else text
            for text, odd in zip(*table.to_pydict().values(), strict=True)
        ]
        assert said == [row[place] for row in TEXTS]


@pytest.mark.parametrize(("kind", "values", "odd"), DECLARED, ids=[row[0] for row in DECLARED])
def test_declared_objects_are_read_as_csv(kind: str, values: list[Any], odd: list[Any]) -> None:
    """Catches: a declared type that objects do not get, or an odd value that ends all."""
    table = arrow_table({"x": [*values, None, *odd]}, None, (), parse_ddl(f"x {kind}", "schema="))
    assert table[ODD].to_pylist() == [None] * (len(values) + 1) + ["x"] * len(odd)
    assert None not in table["x"].to_pylist()[: len(values)]
    assert table["x"].null_count == 1 + len(odd)


def frame_of(odd: list[Any]) -> pd.DataFrame:
    """Return records of objects: of many people, and of one whose values are odd everywhere."""
    units = [f"u{i}" for i in range(PEOPLE)] + ["one"] * len(odd) + odd
    keys = [("a", "b")[i % 2] for i in range(PEOPLE)] + odd + ["a"] * len(odd)
    amounts = [*(Decimal(i % 9) for i in range(PEOPLE)), *odd, *odd]
    return pd.DataFrame({"u": units, "k": keys, "x": amounts}, dtype=object)


def stream_of(frame: pd.DataFrame) -> pa.RecordBatchReader:
    return texts_of(frame).to_reader()


def texts_of(frame: pd.DataFrame) -> pa.Table:
    return pa.table({name: [shown(value) for value in frame[name]] for name in frame})


def shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isascii() else str(type(value))


def ipc_of(frame: pd.DataFrame) -> Any:
    table = texts_of(frame)
    stream = io.BytesIO()
    with ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return ipc.open_stream(stream.getvalue())


def duck_of(frame: pd.DataFrame) -> Any:
    connection = duckdb.connect()
    connection.register("t", texts_of(frame))
    return connection.sql("SELECT *, try_cast(k AS INT) AS i FROM t")


ONCE: dict[str, Callable[[pd.DataFrame], Any]] = {
    "a stream": stream_of,
    "a stream of DuckDB": lambda frame: duck_of(frame).arrow(),
    "a scanner": lambda frame: ds.dataset(texts_of(frame)).scanner(),
    "a stream of IPC": ipc_of,
    "an iterator of batches": lambda frame: iter(texts_of(frame).to_batches(max_chunksize=50)),
    "an iterator of rows": lambda frame: iter(frame.to_dict("records")),
}
MANY: dict[str, Callable[[pd.DataFrame], Any]] = {
    "objects of pandas": lambda frame: frame,
    "categories of objects": lambda frame: frame.assign(
        k=pd.Categorical.from_codes(np.arange(len(frame)), [Odd() for _ in frame.index])
    ),
    "a dict": lambda frame: frame.to_dict("list"),
    "a list of rows": lambda frame: frame.to_dict("records"),
    "rows that are none": lambda frame: [*frame.head(PEOPLE).to_dict("records"), *frame.k[PEOPLE:]],
    "text of pandas": lambda frame: frame.map(shown).astype("string[python]"),
    "Arrow": texts_of,
    "a batch": lambda frame: texts_of(frame).to_batches()[0],
    "DuckDB": duck_of,
}
ODD_VALUES = [value for value, _, _ in TEXTS] + [CANARY, f"x\ud800{CANARY}"]


def outcome(make: Callable[[], Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return everything that is told of records but released rows: plan, types, refusals with their traceback, and what is printed."""
    told = []
    for sql, schema in ((COUNT, None), (SUM, None), (SUM, "x DECIMAL(12, 2)")):
        try:
            session = dpsql.session(make(), unit="u", secret=folder / "s", schema=schema)
            answer = session.query(sql, epsilon=9)
            query = answer.query
            told += [query.plan.identity, str(query.source.schema), query.explain()]
            told += [str(list(answer.rows.columns)), repr(session)]
        except DpsqlError as problem:
            told.append("".join(traceback.format_exception(problem)).split("dpsql.errors")[-1])
            assert problem.__suppress_context__ or problem.__context__ is None
    told.append(capsys.readouterr().err)
    return told


@pytest.mark.parametrize("kind", [*MANY, *ONCE])
def test_one_unit_decides_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: a type, a plan, a refusal or a text that hangs on the values of one unit; a value in any of them.

    Exempt: `.dropped`, `--compare`, last-read files, `init` in a terminal, and released rows.
    """
    make = {**MANY, **ONCE}[kind]
    told = []
    for odd in ([], ODD_VALUES):
        folder = tmp_path / str(len(odd))
        said = outcome(partial(make, frame_of(odd)), folder, capsys)
        told.append([text.replace(str(folder), "") for text in said])
        assert CANARY not in str(said)
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ONCE)
def test_records_are_read_once(kind: str, tmp_path: Path) -> None:
    """Catches: an answer without rows, paid for, of what ends when it is first read."""
    frame = frame_of([])
    answer = dpsql.query(COUNT, ONCE[kind](frame), unit="u", epsilon=9, secret=tmp_path / "s")
    assert abs(answer.rows["n"].sum() - PEOPLE) < 60 and len(answer) == 2
    query = dpsql.session(frame, unit="u", secret=tmp_path / "s").plan(COUNT, epsilon=9)
    rows = dpsql.run_local(query, ONCE[kind](frame), dpsql.Secret.load(tmp_path / "s"))
    assert abs(rows["n"].sum() - PEOPLE) < 60
    groups = COUNT.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (public_groups = (SELECT k FROM g))"
    )
    tables = {"g": ONCE[kind](frame.head(2))}
    listed = dpsql.query(
        groups.replace("OPTIONS (", "OPTIONS (epsilon = 9, "),
        frame,
        unit="u",
        tables=tables,
        secret=tmp_path / "s",
        max_users=10**5,
    )
    assert abs(listed.rows["n"].sum() - PEOPLE) < 60 and len(listed) == 2


def test_failures_quote_no_value(tmp_path: Path) -> None:
    """Catches: what another program says of a value, in a message or a traceback."""

    def rows() -> Iterator[dict[str, str]]:
        yield {"u": "x", "k": CANARY}
        raise RuntimeError(CANARY)

    cast = f"SELECT 'u' AS u, '{CANARY}'::INT AS k"
    for records in (rows(), duckdb.sql(cast), {"u": ["x"], "k": [CANARY, "b"]}, {"u": CANARY}):
        with pytest.raises(DpsqlError) as caught:
            dpsql.query(COUNT, records, unit="u", epsilon=9, secret=tmp_path / "s")
        told = "".join(traceback.format_exception(caught.value))
        assert CANARY not in told.replace(cast, "").split("dpsql.errors")[-1]


ARGUMENTS: list[dict[str, Any]] = [
    *(
        {name: value}
        for name in ("unit", "time", "start", "run_id", "max_users")
        for value in (3, CANARY)
    ),
    *({name: 3} for name in ("schema", "sql", "until", "tables", "cap", "bounds", "secret")),
    {"records": np.array([[CANARY]])},
    {"records": pd.Series([CANARY])},
    {"tables": {"g": [{"a": 1}, {"a": CANARY}]}},
    {"unti": CANARY},
]


@pytest.mark.parametrize("changed", ARGUMENTS, ids=str)
def test_only_refusals_leave_public_functions(changed: dict[str, Any], tmp_path: Path) -> None:
    """Catches: an exception of another program, which can quote a record."""
    settings = {"sql": COUNT, "records": frame_of([]), "unit": "u", "secret": tmp_path / "s"}
    settings |= changed
    try:
        dpsql.query(settings.pop("sql"), settings.pop("records"), epsilon=9, **settings)
    except DpsqlError as problem:
        own = {"unit", "time", "start", "run_id"}  # names and times that the caller writes
        assert CANARY not in str(problem) or own & changed.keys()


def test_samples_are_read_once(tmp_path: Path) -> None:
    """Catches: settings that are tuned on the second reading of what ends with the first."""
    units = [f"u{i % 60}" for i in range(PEOPLE)]
    table = pa.table({"u": units, "k": ["a"] * PEOPLE, "ts": [pd.Timestamp(0)] * PEOPLE})
    sql = "SELECT k, COUNT(*) AS n FROM v GROUP BY k, window(ts, '1 day')"
    session = dpsql.session(table, unit="u", time="ts", secret=tmp_path / "s")
    tuned = dpsql.tune(session.plan(sql, epsilon=9), table.to_reader())
    assert tuned.settings["kept"].max() > 0.9


def test_malformed_objects_are_counted(tmp_path: Path) -> None:
    """Catches: a record that is left out without a word to its owner; a column that no query names and that spoils records."""
    frame = frame_of([b"x"]).assign(other=[[i] for i in range(PEOPLE + 2)])
    for records in (frame, frame.to_dict("records"), frame.to_dict("list")):
        answer = dpsql.query(COUNT, records, unit="u", epsilon=9, secret=tmp_path / "s")
        assert answer.dropped["malformed"] == 2
        starred = COUNT.replace("FROM v", "FROM (SELECT * FROM v) AS v")
        schema = "u STRING, k STRING" if isinstance(records, list) else None
        settings: dict[str, Any] = {"unit": "u", "epsilon": 9, "secret": tmp_path / "s"}
        answer = dpsql.query(starred, records, schema=schema, **settings)
        assert answer.dropped["malformed"] == 2 and len(answer) == 2


def test_rows_have_the_named_columns(tmp_path: Path) -> None:
    """Catches: columns of a list that its first row decides, or a name of one that nobody asked for."""
    rows = [{CANARY: 1}, *frame_of([]).to_dict("records"), {"U": "x", "K": "a", 5: 1}]
    session = dpsql.session(rows, unit="u", secret=tmp_path / "s")
    plan = session.plan("SELECT upper(k) AS a, COUNT(*) AS n FROM v GROUP BY a", epsilon=9)
    assert plan.source.schema == "`k` STRING, `u` STRING"
    with pytest.raises(DpsqlError, match=r"no column `who`; they have k$"):
        dpsql.session(pd.DataFrame({"k": ["a"]}), unit="who", secret=tmp_path / "s").plan(COUNT)


@pytest.mark.parametrize("kind", ["BIT", "UHUGEINT"])
def test_exports_without_values_are_refused(kind: str, tmp_path: Path) -> None:
    """Catches: inner bytes of a column that are published as its keys."""
    relation = duckdb.sql(f"SELECT 'u' AS u, 1::{kind} AS k, 1::{kind} AS other")
    for sql in (COUNT, COUNT.replace("v", "(SELECT * FROM v) AS v")):
        with pytest.raises(DpsqlError, match=rf"type {kind}, .* write CAST\(k AS VARCHAR\)"):
            dpsql.query(sql, relation, unit="u", epsilon=9, secret=tmp_path / "s")


def test_the_table_names_each_kind() -> None:
    """Catches: a kind of records that the reference says nothing of."""
    said = " ".join(KINDS)
    for word in ("pandas", "dict", "list", "polars", "Arrow", "DuckDB", "Spark", "CSV", "Parquet"):
        assert word in said
