"""Exact totals of records that are not public: on no stdout, in no JSON, in no answer."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.jobs.cli import main
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from tests.local.conftest import DAY, HOUR, RUN, SQL, Compile, visits

RECORDS, MALFORMED = 4327, 3719
"""Of one person: in the period, of whom 8 count, and with a time that cannot be read."""
TOTALS = (RECORDS, RECORDS - 8, MALFORMED, RECORDS + MALFORMED)
FOUND = re.compile("|".join(rf"(?<![0-9.]){total:,}(?![0-9])|(?<![0-9.]){total}(?![0-9])" for total in TOTALS))

SOURCE = """sources:
  visits:
    format: json
    path: data
    schema: user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE
    event_time: ts
    privacy_unit: user_id
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A query about one person over a folder of lines."""
    (tmp_path / "data").mkdir()
    line = '{"user_id": "u", "page": "/p", "ts": "2024-02-29T01:00:00Z", "seconds": 1.5}\n'
    (tmp_path / "data" / "a.json").write_text(line * RECORDS + line.replace("2024-02-29T", "x") * MALFORMED)
    (tmp_path / "q.sql").write_text(SQL.replace("FROM visits", "FROM visits WHERE user_id = 'u'"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("flags", [(), ("--json",), ("--output", "o.parquet"), ("--json", "--output", "o.parquet")])
def test_try_tells_no_total_of_records_that_are_not_public(place: Path, public: bool, flags: tuple[str, ...]) -> None:
    """Catches: any predicate answered exactly, outside the budget."""
    (place / "sources.yaml").write_text(SOURCE + ("    public: true\n" if public else ""))
    files = ("--sources", "sources.yaml", "--secret-file", "secret", "--until", "2024-03-01")
    done = CliRunner().invoke(main, ["try", "q.sql", *files, *flags])
    assert done.exit_code == 0, done.output
    assert bool(FOUND.search(done.output)) is public


def test_answers_and_results_show_no_total(compile_on: Compile, secret: Secret, place: Path) -> None:
    """Catches: `drops` of a result that a notebook shows."""
    until = DAY + 24 * HOUR
    query = compile_on((place / "q.sql").read_text(), format="json", path=str(place / "data"))
    result = try_query(query, {}, run_id=RUN, secret=secret, until_us=until)
    assert result.records == RECORDS + MALFORMED and not FOUND.search(repr(result))
    frame = pa.concat_tables([visits(RECORDS)]).to_pandas().assign(user_id="u")
    answer = dpsql.query(SQL, frame, unit="user_id", time="ts", until="2024-03-01", secret=secret)
    assert not FOUND.search(f"{answer!r}{answer._repr_html_()}{answer.explain()}{dpsql.run_local(query, frame, secret, until_us=until)}")
