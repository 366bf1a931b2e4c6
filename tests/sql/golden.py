"""The golden queries: what `parse_query` says of each, and where it is written down."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpsql.compiled import Query, compile_query
from dpsql.config import Source, load_sources
from dpsql.errors import QueryError
from dpsql.parsed_query import ParsedQuery
from dpsql.sql.parse import parse_query

FOLDER = Path(__file__).resolve().parents[1] / "golden"
EXAMPLES = FOLDER.parents[1] / "conf" / "queries"


@dataclass(frozen=True)
class Golden:
    """One query and the folder (kind) it is in."""

    kind: str
    path: Path

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.path.stem}"

    @property
    def text(self) -> str:
        return self.path.read_bytes().decode("utf-8")


@cache
def sources() -> Mapping[str, Source]:
    """The sources of all golden queries."""
    return load_sources(FOLDER / "sources.yaml")


def goldens(kind: str) -> list[Golden]:
    """All queries of one folder, by name."""
    return [Golden(kind, path) for path in sorted((FOLDER / kind).glob("*.sql"))]


def outcome(golden: Golden) -> str:
    """The message of a refused query, the dump of an accepted one."""
    try:
        return dump(parse_query(golden.text, sources(), golden.path.name))
    except QueryError as error:
        return f"{error}\n"


@cache
def compiled(golden: Golden) -> Query:
    """An accepted query with its plan, as a run would have it."""
    return compile_query(golden.text, sources(), golden.path.name)


def dump(parsed: ParsedQuery) -> str:
    """A ParsedQuery as JSON."""
    return json.dumps(dataclasses.asdict(parsed), indent=2, ensure_ascii=False) + "\n"


def parts(golden: Golden) -> Mapping[Path, Callable[[], str]]:
    """The files of expectations of one query, each with what makes its text.

    Of an accepted query: what was parsed (.json), the plan's public numbers (.plan.json) and its explanation (.explain.txt).
    """
    if golden.kind == "refused":
        return {golden.path.with_suffix(".txt"): lambda: outcome(golden)}
    return {
        golden.path.with_suffix(".json"): lambda: dump(compiled(golden).parsed),
        golden.path.with_suffix(".plan.json"): lambda: json.dumps(compiled(golden).explain_json(), indent=2, ensure_ascii=False) + "\n",
        golden.path.with_suffix(".explain.txt"): lambda: compiled(golden).explain(),
    }


def expectations() -> Iterator[tuple[Golden, Path, Callable[[], str]]]:
    """Every file of expectations and what makes its text."""
    for kind in ("accepted", "refused"):
        for golden in goldens(kind):
            for path, text in parts(golden).items():
                yield golden, path, text
