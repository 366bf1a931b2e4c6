"""A frame cut at random: the rows do not depend on how many records are read, numbered and bounded together."""

from __future__ import annotations

import importlib
import re
import sys
import types
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql import progress
from dpsql.compiled import Query, compile_query
from dpsql.local import feeder, record_reader
from dpsql.local.feeder import Buckets, run_batches
from dpsql.local.local_run import _records
from dpsql.local.record_reader import RowReader
from dpsql.privacy.secret import Secret
from dpsql.progress import show_note
from dpsql.sources.config import Source, Sources
from dpsql.udfs.columns import plain_rows
from tests.sweeps import sweep

HOUR = 3_600_000_000
UNTIL_US = 100 * HOUR
SALT = bytes(range(16))
ROWS = 3000
MARKED = ("null_privacy_unit", "key_too_long")
SOURCE = Source(
    "visits",
    "parquet",
    path="visits",
    event_time="ts",
    privacy_unit=("unit",),
    max_users=10**6,
    max_keys=10**6,
)
HEAD = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, max_rows_contributed = 6, "
    "max_groups_contributed = 2{}) page, kind, COUNT(DISTINCT unit) AS units, COUNT(*) AS n, {} AS total FROM visits "
)
PER_ROW = "SUM(value, contribution_bounds_per_row => (0, 9))"
PER_GROUP = "SUM(value, contribution_bounds_per_group => (0, 9))"
QUERIES = {
    "by key": HEAD.format(", max_rows_per_group = 2", PER_ROW)
    + "GROUP BY window(ts, '24 hours'), page, kind",
    "per group": HEAD.format("", PER_GROUP) + "GROUP BY window(ts, '24 hours'), page, kind",
    "hopping": HEAD.format("", PER_ROW) + "GROUP BY window(ts, '24 hours', '12 hours'), page, kind",
    "one release": HEAD.format(", max_rows_per_group = 2", PER_ROW) + "GROUP BY page, kind",
}


def query_of(name: str) -> Query:
    return compile_query(QUERIES[name], Sources((SOURCE,)))


def frame_of(seed: int, rows: int) -> pa.Table:
    """Return records with many ties, few units, and some that are none: without a unit or a time, of keys that are too long."""
    generator = np.random.default_rng(seed)
    pages = [None, "/1", "/2", "x" * 5000, "y" * 5000]
    return pa.table(
        {
            "unit": pa.array([None, *range(80)]).take(generator.integers(0, 81, rows)),
            "ts": pa.array([None, *(hour * HOUR for hour in range(40))], pa.timestamp("us")).take(
                generator.integers(0, 41, rows)
            ),
            "page": pa.array(pages).take(generator.integers(0, len(pages), rows)),
            "kind": pa.array([True, None]).take(generator.integers(0, 2, rows)),
            "value": generator.integers(0, 12, rows).astype(float),
        }
    )


def released(
    query: Query, reader: RowReader, batches: list[pa.Table], buckets: Buckets, count: int | None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    result = run_batches(
        query.plan,
        batches,
        noise_key=bytes(32),
        key_types=lambda: reader.key_types,
        until_us=UNTIL_US,
        buckets=buckets,
        facts=query.facts(reader.public_groups(query.source)),
        count=count,
    )
    return result.histogram.to_pylist(), result.drops


@pytest.mark.parametrize("seed", range(sweep(2, 100)))
@pytest.mark.parametrize("name", QUERIES)
def test_cuts_of_a_frame_change_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    """Catches: a unit in two parts, numbers that do not compare as ids do, ties that go by the order of records, a state that is left out."""
    query = query_of(name)
    reader = RowReader(query.plan, query.sources, SALT, {})
    frame = frame_of(seed, ROWS)
    whole = reader.frame(frame)
    expected = released(query, reader, [plain_rows(whole)], (1, 1), None)
    assert len(expected[0]) > 3 and all(expected[1][reason] for reason in MARKED)
    generator = np.random.default_rng(seed)
    monkeypatch.setattr(record_reader, "MAX_ROWS", int(generator.integers(ROWS // 9, ROWS)))
    monkeypatch.setattr(feeder, "AT_ONCE", int(generator.integers(20, ROWS // 2)))
    again = reader.frame(frame)
    assert _records(again) == _records(whole)
    assert released(query, reader, [again], (1, 1), 1) == expected
    buckets = tuple(generator.integers(1, 6, 2).tolist())
    shuffled = whole.take(generator.permutation(ROWS))
    for count in (1, None):
        assert released(query, reader, [shuffled], buckets, count) == expected
    cut = int(generator.integers(1, ROWS))
    batches = [reader.frame(frame.slice(0, cut)), reader.frame(frame.slice(cut))]
    in_two = [plain_rows(batch) for batch in batches]
    for bucket_counts in (buckets, (1, 1)):
        assert released(query, reader, batches, bucket_counts, 2) == released(
            query, reader, in_two, bucket_counts, None
        )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_how_far_a_frame_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    secret: Secret,
    is_terminal: bool,
) -> None:
    """Catches: a bar in a log, one that stands still or goes back, or that stays when all is done."""
    monkeypatch.setattr(progress, "MANY", ROWS)
    monkeypatch.setattr(record_reader, "MAX_ROWS", ROWS // 3)
    monkeypatch.setattr(feeder, "AT_ONCE", ROWS // 3)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    feeder.run_frame(query_of("by key"), frame_of(0, ROWS), secret, until_us=UNTIL_US)
    written = capsys.readouterr().err
    shares = [int(share) for share in re.findall(r"(\d+)%", written)]
    assert shares == sorted(shares) and (len(shares) >= 4) == is_terminal
    assert written.replace("\r", "").endswith(" " * 30) if is_terminal else not written


def test_what_is_kept_of_a_notebook_says_nothing_of_the_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], secret: Secret
) -> None:
    """Catches: an exact count, or a bar that is there for a million records only, in outputs that are passed on."""
    shown: list[list[str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown[-1].append(content["text/plain"])

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append([content["text/plain"]])
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    for rows in (30, ROWS):
        feeder.run_frame(query_of("by key"), frame_of(0, rows), secret, until_us=UNTIL_US)
    assert len(shown) == 2 and all(texts[-1] == "" for texts in shown)
    assert not any("30" in text or "3,000" in text for texts in shown for text in texts)
    assert not capsys.readouterr().err
    show_note("spent")
    assert capsys.readouterr() == ("spent\n", ""), "in red it would pass for an error"


def test_a_program_that_imports_a_kernel_is_not_a_notebook(
    capfd: pytest.CaptureFixture[str], secret: Secret
) -> None:
    """Catches: a display that IPython never made, where a tool imports its kernel only."""
    importlib.import_module("ipykernel.kernelapp")
    feeder.run_frame(query_of("by key"), frame_of(0, 30), secret, until_us=UNTIL_US)
    assert capfd.readouterr() == ("", "")


def test_ids_are_of_their_values_in_whatever_order_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches: the id of another unit, where the engine gives rows back in an order of its own."""
    query = query_of("by key")

    def read(turned: bool) -> pa.Table:
        reader = RowReader(query.plan, Sources((SOURCE,)), SALT, {})
        batches = reader._batches

        def in_any_order(text: str) -> pa.RecordBatchReader:
            table = batches(text).read_all()
            if turned and "dpsql_distinct" in text:
                table = table.take(np.arange(table.num_rows)[::-1])
            return table.to_reader()

        monkeypatch.setattr(reader, "_batches", in_any_order)
        return plain_rows(reader.frame(frame_of(1, ROWS)))

    assert read(turned=True).to_pandas().equals(read(turned=False).to_pandas())
