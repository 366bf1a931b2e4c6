"""The golden queries: what `parse_query` says of each, and where it is written down."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from dpsql.compiled import Query, compile_query, parse_query
from dpsql.description import Fit, Published
from dpsql.errors import QueryError
from dpsql.published import words
from dpsql.published.cubes import of_fit
from dpsql.published.left_out import of_left_out
from dpsql.published.rows import of_cells
from dpsql.sources.config import Source, load_sources
from dpsql.times import microseconds
from tests.frozen import shown

FOLDER = Path(__file__).resolve().parents[1] / "golden"
EXAMPLES = FOLDER.parents[1] / "conf" / "queries"
PLANS = FOLDER / "plans"
"""Of each mechanism and family of options one plan as `python -m tests.frozen --show NAME` prints it: to see what a change is about."""
TABLES = FOLDER / "tables"
"""For each kind of rows what one public table says of itself."""
QUERY = "=== "
SAID = "---\n"
"""In a file of queries: the line that begins one, with its name; the line between its text and what must be said of it. To add a query: its
name, its text and, where what is said of it is to be kept, the second line; `regenerate` writes the rest."""


@dataclass(frozen=True)
class Golden:
    """One query, the folder (kind) it is in, and what must be said of it. `said` is the message of a refused query; of an accepted one the
    explanation, or None where only a digest of its numbers is kept (`tests/frozen.py`). `file` is where that is written."""

    kind: str
    stem: str
    text: str
    said: str | None
    file: Path

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.stem}"


@cache
def sources() -> Mapping[str, Source]:
    return load_sources(FOLDER / "sources.yaml")


@cache
def goldens(kind: str) -> tuple[Golden, ...]:
    """All queries of one folder, by name: the entries of its files, a topic each, and those of `raw`, where every byte counts."""
    found = [golden for file in topics(kind) for golden in entries(kind, file)]
    for path in (FOLDER / kind / "raw").glob("*.sql"):
        said = path.with_suffix(".txt")
        found.append(
            Golden(kind, path.stem, read(path), read(said) if said.exists() else None, said)
        )
    return tuple(sorted(found, key=lambda golden: golden.stem))


def accepted_text(stem: str) -> str:
    return next(golden.text for golden in goldens("accepted") if golden.stem == stem)


def topics(kind: str) -> list[Path]:
    """The files that hold many queries."""
    return sorted((FOLDER / kind).glob("*.txt"))


def entries(kind: str, file: Path) -> Iterator[Golden]:
    for entry in re.split(f"(?m)^{QUERY}", read(file))[1:]:
        stem, _, rest = entry.partition("\n")
        text, *said = re.split(f"(?m)^{SAID}", rest, maxsplit=1)
        yield Golden(kind, stem, text, said[0] if said else None, file)


def written(those: Iterable[Golden]) -> str:
    return "".join(
        f"{QUERY}{each.stem}\n{each.text}{'' if each.said is None else SAID + each.said}"
        for each in those
    )


def anew(golden: Golden) -> Golden:
    """The same query with what is said of it today, if that is kept."""
    return (
        golden
        if golden.said is None and golden.kind == "accepted"
        else dataclasses.replace(golden, said=said(golden))
    )


def read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def said(golden: Golden) -> str:
    """The message of a refused query, the explanation of an accepted one."""
    return explained(golden) if golden.kind == "accepted" else f"{refusal(golden)}\n"


@cache
def refusal(golden: Golden) -> QueryError:
    """The error, whose proposal has the date of one day."""
    try:
        with mock.patch("dpsql.sql.googlesql.now_us", lambda: microseconds("2026-11-26T12:00")):
            parse_query(golden.text, sources(), f"{golden.stem}.sql")
    except QueryError as error:
        return error
    raise AssertionError(f"{golden.name} is accepted")


@cache
def compiled(golden: Golden) -> Query:
    """An accepted query with its plan, as a run would have it."""
    return compile_query(golden.text, sources(), f"{golden.stem}.sql")


@cache
def explained(golden: Golden) -> str:
    return compiled(golden).explain()


def plans() -> dict[Path, Golden]:
    """The files of the plans that are kept, and whose they are."""
    accepted = {golden.stem: golden for golden in goldens("accepted")}
    return {path: accepted[path.stem] for path in sorted(PLANS.iterdir())}


def tables() -> dict[Path, Published]:
    """The files of what public tables say of themselves."""
    accepted = {golden.stem: golden for golden in goldens("accepted")}
    cube = compiled(accepted["marginals_cube"])
    lists = compiled(accepted["sketch_user"])
    people = compiled(accepted["people_of_the_demo"])
    assert lists.shape.sketch is not None
    found = (
        compiled(accepted["panes_event"]).published,
        lists.published,
        of_cells(lists.published, lists.shape.sketch, [("url", "string")]),
        cube.published,
        of_fit(cube.published, Fit("cube", "views", 1000)),
        of_left_out(people.published, people.shape.left_out),
    )
    return {TABLES / f"{published.rows}.json": published for published in found}


def told(published: Published) -> dict[str, Any]:
    """What a public table says of itself to dpsql, and to everybody else."""
    comments = dict(words.columns(published))
    shown = {"description": words.table_description(published), "comments": comments}
    return {"shown": shown, "property": json.loads(published.text())}


def expectations() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Every file of expectations and what makes its text."""
    for kind in ("accepted", "refused"):
        for file in topics(kind):
            yield file, lambda kind=kind, file=file: written(map(anew, entries(kind, file)))
        for golden in goldens(kind):
            if golden.file.parent.name == "raw" and golden.said is not None:
                yield golden.file, partial(said, golden)
    for path, golden in plans().items():
        yield path, lambda golden=golden: shown(compiled(golden))
    for path, published in tables().items():
        yield path, lambda published=published: f"{json.dumps(told(published), indent=1)}\n"
