"""A new role of a column is a line in the description, one in its writer, and one for its words; every reader shows it, or says that it does not."""

from __future__ import annotations

import dataclasses
import html
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.description import Role
from dpsql.frame_query import Answer
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from dpsql.mechanisms.describe import described
from dpsql.mechanisms.protocol import PublicColumn
from dpsql.published import words
from dpsql.published.rows import published_rows
from tests.described import write
from tests.frozen import released
from tests.sql.golden import compiled, goldens


@pytest.fixture(params=["smallest", "table", "panes_event", "marginals_cube"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Answer, Path]:
    """A public table with a column of a role that was not there before, and what Python hands out of it."""
    # in the description
    toy = str.__new__(Role, "TOY")
    toy._name_ = "TOY"
    toy._value_ = "TOY"
    monkeypatch.setitem(Role._value2member_map_, "TOY", toy)
    monkeypatch.setitem(Role._member_map_, "TOY", toy)  # Python 3.11.2 copies a member by its name
    # in the writer
    query = compiled({golden.stem: golden for golden in goldens("accepted")}[request.param])
    alias = query.parsed.aggregates[0].alias
    columns = (*query.shape.columns, PublicColumn(alias, f"{alias}_toy", "BIGINT", "c0", toy))
    # in the words
    monkeypatch.setitem(words.WORDS, toy, "a toy beside {of}")

    shape = dataclasses.replace(query.shape, columns=columns)
    kinds = [pa.string()] * len(query.parsed.keys)
    rows = published_rows(query.parsed, shape.schedule, shape.columns, released(query), kinds)
    write(Lake(tmp_path / "lake").histogram("q"), rows, described(query.plan, shape, query.reading))
    return Answer(dpsql.latest(str(tmp_path / "lake"), "q"), query, {}), tmp_path


def test_every_reader_shows_it(folder: tuple[Answer, Path]) -> None:
    """Catches: a reader that picks the columns that it knows, and leaves the others out in silence."""
    answer, place = folder
    lake = ["--lake", str(place / "lake")]
    page = place / "page.html"
    opened = dpsql.open(str(place / "lake/public/q"))
    (toy,) = (name for name in answer.rows.columns if name.endswith("_toy"))
    alias = toy.removesuffix("_toy")
    for wanted in (
        ["show", "q", *lake],
        ["show", "q", "--all", *lake],
        ["show", str(place / "lake/public/q")],
    ):
        done = CliRunner().invoke(main, wanted)
        assert done.exit_code == 0 and toy in done.stdout, done.output
    rows = json.loads(CliRunner().invoke(main, ["show", "q", "--json", *lake]).stdout)["rows"]
    assert all(row[toy] == row[alias] for row in rows) and rows
    assert (
        list(opened.rows[toy]) == list(opened.rows[alias])
        and f"{toy}: a toy beside {alias}" in opened.explain()
    )
    assert all(
        toy in text for text in (repr(answer), html.unescape(answer._repr_html_()), repr(opened))
    )
    assert CliRunner().invoke(main, ["view", "q", "--out", str(page), *lake]).exit_code == 0
    assert 'class="soft">toy ' in page.read_text()
