"""`dpsql ask --synthetic`: from the public table alone a table whose answers are near the published ones, the same whoever makes it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.description import Fit
from dpsql.errors import DataError, LakeError
from dpsql.jobs.cli import main
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake
from dpsql.local.feeder import Feeder, published_table
from dpsql.local.record_reader import RowReader
from dpsql.mechanisms.protocol import RunFacts
from dpsql.published.cubes import open_marginals, publish, synthesize
from dpsql.sources.config import Source, Sources
from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.synthetic import draw, fit, marginal
from dpsql.udfs.stage import Clock
from dpsql.view.words import FITTED, NOT_ONE_PERSON, left_out
from tests.described import described, of_plan, write
from tests.matrix.same_rows import RUN_ID, SECRET
from tests.mechanisms.marginals.contract_cases import PLANS
from tests.mechanisms.marginals.plans import published_rows
from tests.mechanisms.marginals.test_questions import rows as exact_rows

HOUR = 3_600_000_000
START = 500_000 * HOUR
TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1, "
    "trigger_interval = '1 hour', max_triggers = 4) page, size, COUNT(*) AS views, SUM(spent, contribution_bounds_per_row => (0, 9)) AS spent "
    "FROM visits GROUP BY GROUPING SETS ((page, size), (page), ())"
)
PAGES = {"/a": 6_000, "/b": 1_000, None: 400, "/new": 300}
"""The last two are outside of the list: `other`."""


def frame() -> pa.Table:
    """A row per user, an hour long; only small visits of /b."""
    pages = [page for page, count in PAGES.items() for _ in range(count)]
    number = np.arange(len(pages))
    size = np.where(np.array(pages) == "/b", 1, number % 3)
    time = pa.array(START + number % 3600 * 1_000_000).cast(pa.timestamp("us", "UTC"))
    users = pa.array([f"u{i}" for i in number])
    return pa.table(
        {"user_id": users, "page": pages, "size": size, "spent": np.ones(len(pages)), "ts": time}
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The public table of a run, and nothing private."""
    folder = tmp_path_factory.mktemp("synthetic")
    listed = Domain(("/a", "/b", "/c", "other"), False, other=True)
    whole = Domain(("0", "1", "2"), True, whole=True)
    source = Source(
        name="visits",
        format="parquet",
        path=str(folder),
        event_time="ts",
        privacy_unit=("user_id",),
        start_us=START,
        domains=(("page", listed), ("size", whole)),
    )
    query = dpsql.compile(TEXT, Sources((source,)))
    reader = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {})
    rows = reader.frame(frame())
    public = reader.public_groups(source)
    feeder = Feeder(
        query.mechanism.stages(query.plan, RunFacts(public)),
        SECRET.noise_key(RUN_ID, query.plan.identity),
    )
    feeder.micro_batch(rows, Clock())
    made = Lake(folder / "lake")
    write(
        made.histogram("q"),
        published_table(query.plan, feeder.tick(START + 2 * HOUR), reader.key_types),
        query.published,
    )
    return made


def called(lake: Lake, *arguments: str) -> Any:
    return CliRunner().invoke(
        main,
        [
            "ask",
            "q",
            "--lake",
            str(lake.root),
            *(() if "--synthetic" in arguments else ("--synthetic",)),
            *arguments,
        ],
    )


def test_its_answers_are_near_the_published_ones(lake: Lake) -> None:
    """Through the command, Delta and DuckDB; what is outside of the list is `other`; a second call writes nothing, and a third by other
    hands the same rows."""
    done = called(lake, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["written"] and told["rows"] == 12 and told["trigger"] == 2
    assert ["page", "size"] in [table["keys"] for table in told["tables"]] and all(
        table["off"] < 2 for table in told["tables"]
    )
    kept = read_rows(lake.root / "public" / "q.synthetic")
    found = open_marginals(lake, "q")
    with duckdb.connect() as connection:
        connection.register("synthetic", kept)
        read = connection.sql(
            "SELECT page, sum(views) FROM synthetic GROUP BY page ORDER BY page"
        ).fetchall()
    assert [page for page, _ in read] == ["/a", "/b", "/c", "other"]
    for page, weight in read:
        answer = found.estimate(
            "views", [{0: np.array([page == each for each in found.keys["page"]], float)}]
        )
        assert abs(weight - answer.value) < 4 * answer.stderr
        assert (
            abs(weight - {"/a": 6_000, "/b": 1_000, "/c": 0, "other": 700}[page])
            < 5 * answer.stderr
        )
    assert min(kept["views"].to_pylist()) >= 0
    assert sum(kept["views"].to_pylist()) == pytest.approx(found.estimate("views", [{}]).value)
    again = called(lake)
    assert (
        again.exit_code == 0 and "there already" in again.output and "no error bar" in again.output
    )
    elsewhere = called(lake, "--synthetic", str(lake.root / "mine"))
    assert elsewhere.exit_code == 0, elsewhere.output
    assert read_rows(lake.root / "mine").equals(kept) and read_rows(
        lake.root / "public" / "q.synthetic"
    ).equals(kept)


def test_it_says_what_it_is(lake: Lake, tmp_path: Path) -> None:
    """From its folder alone, newest trigger and largest weights first; where another run has published since, it is protected by both."""
    table = tmp_path / "made"
    for trigger in (1, 2):
        made = synthesize(open_marginals(lake, "q", trigger), "views")
        assert publish(table, "q", made, None)
    opened = dpsql.open(str(table))
    weights = made.rows["views"].to_pylist()
    assert sorted(opened.rows["views"]) == sorted(weights) and set(opened.rows["trigger"]) == {2}
    for words in ([], ["--all"]):
        shown = CliRunner().invoke(main, ["show", str(table), *words]).output
        for text in (shown, opened.explain()):
            assert (
                "Fitted to what q has published, and to nothing else: every cell, with its weight."
                in text
            )
            assert "everything that one user_id does for ever: epsilon 4, delta 1e-06" in text
            assert (
                "weight of the row, fitted to the noisy COUNT(*)" in text
                and "biased, without a bound" in text
            )
            assert "95%" not in text and "predicted" not in text
        assert f"{max(weights):,.6g}" in shown and (
            "1" in re.findall(r"^2027-01-15 \d\d:00  (\d)", shown, re.M)
        ) is bool(words), shown
        assert "more rows" in shown or not words
    assert f"{max(weights):,.6g}" in repr(opened).splitlines()[1] and "95%" not in repr(opened)
    (run,) = made.source.protects
    twice = replace(made, source=replace(made.source, protects=(run, replace(run, epsilon=3.0))))
    assert not publish(table, "q", twice, None)
    assert (
        "epsilon 3, delta" in dpsql.open(str(table)).explain()
        and "their epsilons add up" in dpsql.open(str(table)).explain()
    )


def test_rows_are_drawn_alike_by_everyone_and_weigh_the_total(lake: Lake) -> None:
    found = open_marginals(lake, "q")
    cells = synthesize(found, "views")
    drawn = synthesize(found, "views", 500)
    assert (
        drawn.rows.equals(synthesize(open_marginals(lake, "q"), "views", 500).rows)
        and drawn.rows.num_rows == 500
    )
    assert sum(drawn.rows["views"].to_pylist()) == pytest.approx(cells.total)
    share = np.array(cells.rows["views"].to_pylist()) / cells.total
    both = list(zip(cells.rows["page"].to_pylist(), cells.rows["size"].to_pylist(), strict=True))
    drawn_both = list(
        zip(drawn.rows["page"].to_pylist(), drawn.rows["size"].to_pylist(), strict=True)
    )
    assert all(
        abs(drawn_both.count(cell) - 500 * part) < 2 for cell, part in zip(both, share, strict=True)
    )
    earlier = synthesize(open_marginals(lake, "q", 1), "views", 5_000).rows.select(["page", "size"])
    assert not earlier.equals(synthesize(found, "views", 5_000).rows.select(["page", "size"]))


def test_drawn_rows_fall_on_cells_by_their_weights() -> None:
    """1,000 seeds: the mean of each cell's rows is its share, within 5 deviations of less than 1; cells that weigh nothing get none. Rows that
    always fall in the middle of their part are found: of many small cells they would leave out the same ones for ever."""
    weights = np.array([0.0, 3.0, 0.2, 0.0, 0.05, 1.0, 0.4, 0.0])
    counts = np.array(
        [
            np.bincount(draw(weights, 5, bytes([i % 256, i // 256] * 16)), minlength=8)
            for i in range(1_000)
        ]
    )
    expected = 5 * weights / weights.sum()
    assert (
        np.all(np.abs(counts.mean(axis=0) - expected) < 5 / np.sqrt(1_000))
        and not counts[:, weights == 0].any()
    )
    assert np.all(counts.sum(axis=1) == 5) and counts[:, 4].any() and not counts[:, 4].all()
    assert np.all(np.abs(counts - expected) < 2)


def test_the_seed_is_of_released_numbers_alone(lake: Lake) -> None:
    """One released cell that differs by one gives other rows."""
    found = open_marginals(lake, "q")
    known, tables = found.columns["views"]
    moved = [table.copy() for table in tables]
    moved[-1].flat[0] += 1
    weights = fit(known, tables).weights
    assert marginal(weights, ()) == pytest.approx(weights.sum())
    other = type(found)(
        found.keys,
        found.trigger,
        found.time_us,
        {"views": (known, tuple(moved))},
        found.counts,
        found.published,
    )
    assert not synthesize(found, "views", 2_000).rows.equals(synthesize(other, "views", 2_000).rows)


def test_a_key_that_no_table_has_is_null(lake: Lake) -> None:
    made = synthesize(published_rows(exact_rows(((0, 1), (1,), ()))), "views")
    assert (
        made.rows.num_rows == 12
        and made.rows["size"].null_count == 12
        and not made.rows["url"].null_count
    )
    assert made.rows["hour"].type == pa.int64() and [each.keys for each in made.misfits][-1] == ()


def test_what_cannot_be_made_is_refused(lake: Lake, tmp_path: Path) -> None:
    found = open_marginals(lake, "q")
    for arguments, says in (
        (("--of", "spent"), "spent may be negative"),
        (("--of", "clicks"), "no column 'clicks'"),
        (("--rows", "7"), "has other rows"),
        (("--rows", "10000001"), "give 1 to 10,000,000"),
        (("--synthetic", str(lake.histogram("q"))), "is no synthetic table"),
    ):
        called(lake)
        done = called(lake, *arguments)
        assert done.exit_code == 2 and says in done.output, done.output
    empty = exact_rows()
    empty = empty.set_column(
        empty.column_names.index("views"), "views", pa.array(np.full(empty.num_rows, -5))
    )
    write(lake.histogram("none"), empty, described(empty.schema.names))
    with pytest.raises(DataError, match="trigger 3 is not positive"):
        synthesize(open_marginals(lake, "none"), "views")
    known, tables = found.columns["views"]
    wide = type(found)(
        found.keys,
        1,
        0,
        {"views": (type(known)((2**12, 2**11), ((0,),), (1.0,)), tables)},
        ("views",),
        found.published,
    )
    with pytest.raises(DataError, match="8,388,608 combinations"):
        synthesize(wide, "views")
    write(
        lake.histogram("plain"), pa.table({"trigger": [1], "n": [3]}), described(("trigger", "n"))
    )
    done = CliRunner().invoke(main, ["ask", "plain", "--lake", str(lake.root), "--synthetic"])
    assert done.exit_code == 2 and "publishes no sets of keys" in done.output
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="cannot be written"):
        publish(tmp_path / "file", "q", synthesize(found, "views"), None)


def test_below_a_table_that_is_fitted_to_rows_stands_whom_it_protects() -> None:
    """No person, so no sentence of an allowance."""
    of_rows = replace(of_plan(PLANS["rows"]), fit=Fit("q", "views", None))
    assert left_out(of_rows) == (FITTED, NOT_ONE_PERSON)
