"""GoogleSQL's own queries for differential privacy: how many are taken as they are written, and how many lead to one that is.

Their text is not in this repository. `DPSQL_GOOGLESQL=.../differential_privacy.test` names the file of GoogleSQL's compliance tests; the ways to say
things that are in it have queries of ours in `test_edits.py`.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from dpsql.compiled import compile_query
from dpsql.errors import QueryError
from dpsql.sources.config import Sources, load_sources

FILE = os.environ.get("DPSQL_GOOGLESQL", "")
pytestmark = pytest.mark.skipif(not FILE, reason="DPSQL_GOOGLESQL names no file")

TAKEN, REWRITTEN, REFUSED = "taken", "rewritten", "refused"
BENT = (
    r"report_format|contribution_bounds_per_group\s*=>\s*\(2, 3\)|max_groups_contributed\s*=\s*NULL"
)
"""What means something else there: a query that has it is never taken as it is written."""


def queries() -> dict[str, str]:
    """The queries that are expected to answer, by name, with an epsilon and a delta that protect somebody."""
    texts = {}
    for block in re.split(r"(?m)^==\s*$", Path(FILE).read_text(encoding="utf-8")):
        query, *answers = re.split(r"(?m)^--\s*$", block)
        name = re.search(r"\[name=(.*?)\]", query)
        lines = [line for line in query.splitlines() if not re.match(r"#|\[.*\]\s*$", line)]
        text = "\n".join(lines).strip()
        answered = answers and not any("ERROR" in answer for answer in answers)
        if name and text and answered and "prepare_database" not in query:
            text = re.sub(r"epsilon\s*=\s*(1e20|100)\b", "epsilon = 1", text)
            texts[name[1]] = re.sub(r"delta\s*=\s*[0-9.e-]+", "delta = 1e-6", text)
    return texts


def declared(bounds: dict[str, list[float]]) -> Sources:
    """The tables of the file."""
    columns = "uid BIGINT, int64_val BIGINT, double_val DOUBLE"
    blocks: dict[str, dict[str, object]] = {
        "testtablewithoutuid": {
            "format": "parquet",
            "path": "without",
            "schema": "int64_val BIGINT, double_val DOUBLE",
            "static": True,
        }
    }
    for number in ("", "2", "3", "4"):
        blocks[f"testtablewithuid{number}"] = {
            "format": "parquet",
            "path": f"with{number}",
            "schema": f"id BIGINT, {columns}" if number else columns,
            "event_time": "ts",
            "privacy_unit": "uid",
            "cap": {"epsilon": 9, "delta": "1e-5", "period": "1 day"},
            "policy": {"bounds": bounds},
        }
    return load_sources(blocks)


@cache
def ends(bounded: bool) -> dict[str, str]:
    """What becomes of each query."""
    bounds = {"int64_val": [1, 4], "double_val": [-2, 4]} if bounded else {}
    sources = declared(bounds)
    found = {}
    for name, text in queries().items():
        try:
            compile_query(text, sources)
            found[name] = TAKEN
        except QueryError as error:
            found[name] = REWRITTEN if error.proposal else REFUSED
            if error.proposal:
                compile_query(error.proposal.text, sources)
    return found


def count(bounded: bool) -> tuple[int, int]:
    """How many are taken, and how many are taken or lead to one that is."""
    said = [*ends(bounded).values()]
    return said.count(TAKEN), len(said) - said.count(REFUSED)


def test_no_query_is_refused_that_was_not() -> None:
    """Catches: a rule that refuses what was taken, an edit that is gone."""
    assert len(queries()) == 87
    taken, led = count(bounded=False)
    assert taken >= 2 and led >= 56, (taken, led)
    taken, led = count(bounded=True)
    assert taken >= 11 and led >= 73, (taken, led)


@pytest.mark.parametrize("bounded", [False, True])
def test_no_query_is_bent(bounded: bool) -> None:
    """Catches: a query that is taken, though it means something else there; a sum that has bounds of nobody."""
    for name, end in ends(bounded).items():
        text = queries()[name]
        if end == TAKEN:
            assert not re.search(BENT, text), name
            if not bounded:
                sums = re.findall(
                    r"(?:SUM|AVG|VAR\w*|STDDEV\w*|PERCENTILE_CONT)\(([^()]*(?:\([^()]*\))?[^()]*)\)",
                    text,
                )
                assert all("contribution_bounds" in call for call in sums), name
