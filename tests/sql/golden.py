"""The golden queries: what `parse_query` says of each, and where it is written down."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
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

WHOLE = {"keyless_sliding", "keyless_stream", "lateness", "min_units", "public_groups", "reselect", "sliding_rounds_window"}
WHOLE |= {"table", "table_ending", "table_keyless", "table_public_groups", "changes", "changes_spells", "changes_interval_tree"}
WHOLE |= {path.stem for path in (FOLDER / "accepted").glob("carry_windows*.sql")}
WHOLE |= {"sliding_rounds", "sliding_uneven", "stream_period", "stream_period_quoted", "sums", "time_keys"}
WHOLE |= {"spread", "spread_of_all", "changes_quantiles", "table_quantiles"}
WHOLE |= {path.stem for own in ("panes_*.sql", "sketch_*.sql", "marginals_*.sql") for path in (FOLDER / "accepted").glob(own)}
"""Of these the explanation is kept as it is read. Every sentence that any query gets is in one of them: a test looks."""

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"


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
    """The files of expectations of one query, each with what makes its text.

    Of an accepted query: what was parsed (.json), the plan's public numbers (.plan.json) and, of some, the explanation (.explain.txt).
    """
    if golden.kind == "refused":
        return {golden.path.with_suffix(".txt"): lambda: outcome(golden)}
    made: dict[Path, Callable[[], str]] = {
        golden.path.with_suffix(".json"): lambda: dump(compiled(golden).parsed),
        golden.path.with_suffix(".plan.json"): lambda: json.dumps(compiled(golden).explain_json(), indent=2, ensure_ascii=False) + "\n",
    }
    if golden.path.stem in WHOLE:
        made[golden.path.with_suffix(".explain.txt")] = lambda: compiled(golden).explain()
    return made


def numbers(golden: Golden) -> str:
    """What an explanation says in numbers, in its order; without the query's own text and its identity (they are in the other files)."""
    lines = [line for line in compiled(golden).explain().splitlines() if not line.startswith(("  1. read", "Query identity"))]
    return f"{golden.path.stem}: {' '.join(re.findall(NUMBER, ' '.join(lines)))}"


def expectations() -> Iterator[tuple[Golden, Path, Callable[[], str]]]:
    """Every file of expectations and what makes its text."""
    for kind in ("accepted", "refused"):
        for golden in goldens(kind):
            for path, text in parts(golden).items():
                yield golden, path, text
    yield goldens("accepted")[0], EXPLAINED, lambda: "".join(f"{numbers(golden)}\n" for golden in goldens("accepted"))
