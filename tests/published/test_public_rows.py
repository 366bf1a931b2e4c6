"""Rows and their description: every door takes a frame that has it, and refuses one that has not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from pandas.core.groupby import SeriesGroupBy

import dpsql.jobs
import dpsql.published
import dpsql.view
from dpsql.compiled import Query
from dpsql.description import PROPERTY
from dpsql.errors import DataError
from dpsql.frame_query import Answer
from dpsql.jobs.cli import main
from dpsql.jobs.tables import print_comparison
from dpsql.lake.runs import Lake
from dpsql.published.public_rows import PublicRows, frame_of
from dpsql.view import charts
from dpsql.view.page import page
from dpsql.view.plain_table import OpenedTable
from dpsql.view.standing import standing
from tests.described import write
from tests.published.test_readers import query_and_rows

KINDS = (
    "smallest",
    "keyless",
    "sliding",
    "table",
    "windows_quantiles",
    "marginals_cube",
    "sketch_user",
)
DOORS: dict[str, Callable[[pd.DataFrame, Query], Any]] = {
    "growth": lambda frame, _: charts.growth(frame, "n"),
    "over_windows": lambda frame, _: charts.over_windows(frame, "n"),
    "bars": lambda frame, _: charts.bars(frame, "n"),
    "page": lambda frame, _: page(None, frame),  # type: ignore[arg-type]
    "standing": lambda frame, _: standing(Lake("lake"), "q", frame),
}
CLASSES: dict[str, Callable[[pd.DataFrame, Query], Any]] = {
    "Answer": lambda frame, query: repr(Answer(frame, query, {})),
    "Answer in a notebook": lambda frame, query: Answer(frame, query, {})._repr_html_(),
    "OpenedTable": lambda frame, _: repr(OpenedTable(frame)),
    "OpenedTable.explain": lambda frame, _: OpenedTable(frame).explain(),
    "OpenedTable.reading": lambda frame, _: OpenedTable(frame).reading,
    "comparison": lambda frame, _: print_comparison({"compared": frame}, 9),
}
PLAIN = {"records"}
"""Functions of any frame: they ask for no description."""


@pytest.mark.parametrize("kind", KINDS)
def test_lost_descriptions_are_errors(kind: str) -> None:
    """Catches: a reader that guesses what rows are."""
    query, rows = query_and_rows(kind)
    frame = frame_of(rows, query.published)
    assert PublicRows.of_frame(frame).description == query.published
    anew = pd.DataFrame(dict(frame.items()))
    earlier = frame.copy()
    earlier.attrs[PROPERTY] = '{"version":1}'
    for lost in (anew, anew.iloc[:0], earlier):
        for read in (DOORS | CLASSES).values():
            with pytest.raises(DataError, match="these rows do not say what they are"):
                read(lost, query)


def test_every_door_is_tried() -> None:
    """Catches: a new reader of frames that the test above does not know."""
    found = set()
    for package in (dpsql.jobs, dpsql.published, dpsql.view):
        for path in Path(package.__path__[0]).glob("*.py"):
            module = import_module(f"{package.__name__}.{path.stem}")
            for name, value in inspect.getmembers(module, inspect.isfunction):
                parameters = inspect.signature(value).parameters.values()
                takes_frame = any("DataFrame" in str(each.annotation) for each in parameters)
                if takes_frame and value.__module__ == module.__name__ and name[0] != "_":
                    found.add(name)
    assert found == {*DOORS, *PLAIN}


@pytest.mark.parametrize("kind", ["smallest", "reading_order", "sketch_user"])
def test_show_finds_newest_triggers_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: readers of one window that each look for its newest triggers again."""
    query, rows = query_and_rows(kind)
    write(Lake(tmp_path).histogram("q"), rows, query.published)
    calls = []
    transform = SeriesGroupBy.transform

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return transform(*arguments)

    monkeypatch.setattr(SeriesGroupBy, "transform", counted)
    shown = CliRunner().invoke(main, ["show", "q", "--lake", str(tmp_path)])
    assert shown.exit_code == 0 and len(calls) == 1, shown.output


def test_newest_rows_are_their_own_newest() -> None:
    """Catches: a filter after which a window's newest trigger is looked for again, or is another one."""
    query, rows = query_and_rows("smallest")
    newest = PublicRows.of_frame(frame_of(rows, query.published)).newest
    first = newest.where(newest.frame["trigger"] == newest.frame["trigger"].min())
    assert newest.newest is newest and first.newest is first
    assert newest.last_window.newest.frame.equals(newest.last_window.frame)
