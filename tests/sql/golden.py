"""The golden queries: what `parse_query` says of each, and where it is written down."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from dpsql.compiled import Query, compile_query, parse_query
from dpsql.config import Source, load_sources
from dpsql.errors import QueryError
from dpsql.parsed_query import ParsedQuery

FOLDER = Path(__file__).resolve().parents[1] / "golden"
ORDER = [
    "epsilon",
    "delta",
    "privacy_unit",
    "max_rows_contributed",
    "max_rows_per_group",
    "max_groups_contributed",
    "contribution_period",
    "window",
    "trigger_interval_us",
    "allowed_lateness_us",
    "max_ahead_us",
    "min_privacy_units_per_group",
    "group_selection_strategy",
    "public_groups",
    "group_selection_share",
    "release",
    "counter",
    "selection_weight_decay",
    "keys_per_unit",
    "carry_windows",
    "max_triggers",
    "hide_below",
    "keys",
    "aggregates",
    "from_sql",
    "stream",
    "static_sources",
    "columns_in_order",
]
"""Of the fields in a dump."""
EXAMPLES = FOLDER.parents[1] / "conf" / "queries"
EXPLAINED = FOLDER / "explained.txt"
"""The numbers of every explanation, a line for each accepted query."""

QUERY, SAID = "=== ", "---\n"
"""In a file of queries: the line that begins one, with its name; the line between its text and what must be said of it.

To add a query: its name, its text and, where what is said of it is to be kept, the second line; `regenerate` writes the rest."""

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"


@dataclass(frozen=True)
class Golden:
    """One query, the folder (kind) it is in, and what must be said of it.

    `said` is the message of a refused query; of an accepted one the explanation, or None where only its numbers are kept. `file` is where
    that is written.
    """

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
    """The sources of all golden queries."""
    return load_sources(FOLDER / "sources.yaml")


@cache
def goldens(kind: str) -> tuple[Golden, ...]:
    """All queries of one folder, by name: the entries of its files, a topic each, and those of `raw`, where every byte counts."""
    found = [golden for file in topics(kind) for golden in entries(kind, file)]
    for path in (FOLDER / kind / "raw").glob("*.sql"):
        said = path.with_suffix(".txt")
        found.append(Golden(kind, path.stem, read(path), read(said) if said.exists() else None, said))
    return tuple(sorted(found, key=lambda golden: golden.stem))


def topics(kind: str) -> list[Path]:
    """The files that hold many queries."""
    return sorted((FOLDER / kind).glob("*.txt"))


def entries(kind: str, file: Path) -> Iterator[Golden]:
    """The queries of one topic, in their order."""
    for entry in re.split(f"(?m)^{QUERY}", read(file))[1:]:
        stem, _, rest = entry.partition("\n")
        text, *said = re.split(f"(?m)^{SAID}", rest, maxsplit=1)
        yield Golden(kind, stem, text, said[0] if said else None, file)


def written(those: Iterable[Golden]) -> str:
    """The file of these queries."""
    return "".join(f"{QUERY}{each.stem}\n{each.text}{'' if each.said is None else SAID + each.said}" for each in those)


def anew(golden: Golden) -> Golden:
    """The same query with what is said of it today, if that is kept."""
    return golden if golden.said is None and golden.kind == "accepted" else dataclasses.replace(golden, said=said(golden))


def read(path: Path) -> str:
    """A file as it is, whatever its ends of lines."""
    return path.read_bytes().decode("utf-8")


def said(golden: Golden) -> str:
    """The message of a refused query, the explanation of an accepted one."""
    return compiled(golden).explain() if golden.kind == "accepted" else f"{refusal(golden)}\n"


@cache
def refusal(golden: Golden) -> QueryError:
    """Why a query is refused."""
    try:
        parse_query(golden.text, sources(), f"{golden.stem}.sql")
    except QueryError as error:
        return error
    raise AssertionError(f"{golden.name} is accepted")


@cache
def compiled(golden: Golden) -> Query:
    """An accepted query with its plan, as a run would have it."""
    return compile_query(golden.text, sources(), f"{golden.stem}.sql")


def dump(parsed: ParsedQuery) -> str:
    """A ParsedQuery as JSON: what is asked of the mechanism among what every query says, in the order of old."""
    given = dataclasses.asdict(parsed)
    flat = given | given.pop("asked")
    flat["window"] = {"event_time": flat["event_time"]} | (flat["window"] or {})
    if parsed.mechanism == "histogram":
        del flat["mechanism"]
        if flat["keys_per_unit"] is None:
            del flat["keys_per_unit"]
        if flat["carry_windows"] == 1:
            del flat["carry_windows"]
    names = [*(name for name in ORDER if name in flat), *(name for name in flat if name not in {*ORDER, "event_time"})]
    return json.dumps({name: flat[name] for name in names}, indent=2, ensure_ascii=False) + "\n"


def parts(golden: Golden) -> Mapping[Path, Callable[[], str]]:
    """What was parsed (.json) and the plan's public numbers (.plan.json) of an accepted query, each with what makes its text."""
    stem = FOLDER / golden.kind / golden.stem
    return {
        stem.with_suffix(".json"): lambda: dump(compiled(golden).parsed),
        stem.with_suffix(".plan.json"): lambda: json.dumps(compiled(golden).explain_json(), indent=2, ensure_ascii=False) + "\n",
    }


def numbers(golden: Golden) -> str:
    """What an explanation says in numbers, in its order; without the query's own text and its identity (they are in the other files)."""
    lines = [line for line in compiled(golden).explain().splitlines() if not line.startswith(("  1. read", "Query identity"))]
    return f"{golden.stem}: {' '.join(re.findall(NUMBER, ' '.join(lines)))}"


def expectations() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Every file of expectations and what makes its text."""
    for kind in ("accepted", "refused"):
        for file in topics(kind):
            yield file, lambda kind=kind, file=file: written(map(anew, entries(kind, file)))
        for golden in goldens(kind):
            if golden.file.parent.name == "raw" and golden.said is not None:
                yield golden.file, partial(said, golden)
            if kind == "accepted":
                yield from parts(golden).items()
    yield EXPLAINED, lambda: "".join(f"{numbers(golden)}\n" for golden in goldens("accepted"))
