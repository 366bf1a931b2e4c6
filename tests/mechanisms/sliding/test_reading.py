"""What people see of sliding windows, and sources that name nobody: smoothed values stand beside their aggregate, and are no keys."""

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.errors import BudgetError, ConfigError, InputError, QueryError
from dpsql.jobs.tables import print_histogram
from dpsql.jobs.terminal import records
from dpsql.mechanisms.sliding.planner import make_plan
from dpsql.mechanisms.sliding.stages import schedule
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.budget import budgets
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.origin import Origin
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import PublicRows, frame_of
from dpsql.schedule import AT_ONCE
from dpsql.sources.config import Cap, Sources, load_sources
from dpsql.view.page import page
from dpsql.view.standing import Standing
from dpsql.view.words import PREDICTED, heads, left_out
from tests.described import of_plan
from tests.mechanisms.sliding.queries import MINUTE, QUERIES, SOURCE

EVENTS = """\
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 0, privacy_level = EVENT,
           public_groups = (SELECT channel FROM channels))
  key AS channel, COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '3 hours', '1 hour'), channel
"""
USERS = EVENTS.replace(
    "privacy_level = EVENT",
    "privacy_unit_column = user_id, max_rows_contributed = 3, max_groups_contributed = 3",
)
YAML = """\
sources:
  wiki:
    format: parquet
    path: wiki
    schema: key STRING, ts TIMESTAMP
    event_time: ts
    start: 2026-01-01
  channels:
    format: parquet
    path: channels.parquet
    schema: channel STRING
    static: true
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    pq.write_table(pa.table({"channel": ["a", "b"]}), tmp_path / "channels.parquet")
    return written(tmp_path, YAML)


def written(folder: Path, text: str) -> Sources:
    (folder / "sources.yaml").write_text(text)
    return load_sources(folder / "sources.yaml")


@pytest.fixture(params=["", "mechanism = PAPER, "], ids=["ours", "paper"])
def released(sources: Sources, tmp_path: Path, request: pytest.FixtureRequest) -> pd.DataFrame:
    """What the API gives of sixty hours on a source without a privacy unit: PAPER predicts some of its panes, whatever the noise."""
    text = EVENTS.replace("public_groups", f"{request.param}public_groups", 1)
    frame = pd.DataFrame(
        {"key": ["a"] * 720, "ts": [START + timedelta(minutes=5 * i) for i in range(720)]}
    )
    ledger = Ledger(tmp_path / "ledger")
    return dpsql.run_local(
        dpsql.compile(text, sources),
        frame,
        Secret(b"s" * 32),
        until_us=us(START + timedelta(hours=60)),
        ledger=ledger,
    )


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**6


def test_a_smoothed_value_is_no_key(
    released: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: a better guess of sixteen digits among the keys; one chart line for each of its values."""
    rows = PublicRows.of_frame(released)
    published = rows.description
    assert published.keys == ["channel"]
    beside, kind = (
        ("smoothed", "float64") if "edits_smoothed" in released else ("measured", "int32")
    )
    assert released[f"edits_{beside}"].dtype == kind
    assert frame_of(pa.Table.from_pandas(released, preserve_index=False), published).dtypes.equals(
        released.dtypes
    )
    assert set(records(released)[0]) == set(released.columns)
    print_histogram(rows, 1)
    said = capsys.readouterr().out
    print_histogram(rows, 99)
    shown = capsys.readouterr().out
    assert (", predicted" in shown) == (
        beside == "measured"
    ) and "not measured" not in shown.replace("not measured by itself", "")
    for (
        line
    ) in shown.splitlines():  # a prediction passes for no more, and is compared with no error
        assert "predicted" not in line or ("?" not in line and "±" not in line) or "slide" in line
    assert released["edits_stderr"].isna().any() == (beside == "measured")
    head, row, *foot = (line.split() for line in said.splitlines())
    assert head == ["window", "trigger", "channel", "edits", f"edits_{beside}"]
    assert (
        row[-1]
        == f"{released.sort_values(['window_start', 'edits'])[f'edits_{beside}'].iloc[-1]:.0f}"
    )
    assert (PREDICTED in " ".join(word for line in foot for word in line)) == (beside == "measured")


def test_the_page_shows_it_below_its_value(released: pd.DataFrame) -> None:
    last = released[released["window_start"] == released["window_start"].max()]
    moment = last["trigger_time"].iloc[0].to_pydatetime()
    published = PublicRows.of_frame(released).description
    text = page(Standing("edits", moment, None, published, 1, moment, moment), last)
    assert ">edits_smoothed<" not in text
    assert text.count('soft">smoothed ' if "edits_smoothed" in last else 'soft">measured ') == len(
        last
    )


def test_what_the_bounds_leave_out_is_said_of_units_and_not_of_rows() -> None:
    of_units, of_rows = (of_plan(make_plan(QUERIES[name], SOURCE)) for name in ("user", "event"))
    assert heads(of_units) == {"edits": "at most 4 each"} and heads(of_rows) == {}
    assert left_out(of_units)[1].startswith(
        "One user_id counts with at most 20 records in 15 minutes, 4 per channel, in at most 3 values"
    )
    assert len(left_out(of_rows)) == 1


def test_a_source_without_a_unit_takes_queries_that_protect_rows(
    sources: Sources, tmp_path: Path
) -> None:
    assert dpsql.compile(EVENTS, sources).plan.query.privacy_unit == ()
    with pytest.raises(QueryError) as refused:
        dpsql.compile(USERS, sources)
    assert [problem.message for problem in refused.value.problems] == [
        "The source wiki declares no privacy unit"
    ]
    with pytest.raises(QueryError, match="An event has no user"):
        dpsql.compile(EVENTS.replace("COUNT(*)", "COUNT(DISTINCT key)"), sources)
    capped = YAML.replace(
        "    start:", "    cap: {epsilon: 1, delta: 1e-6, period: 1 day}\n    start:"
    )
    with pytest.raises(
        ConfigError,
        match=r"sources.yaml:7: a cap of users needs `privacy_unit`.*at sources.wiki.cap",
    ):
        written(tmp_path, capped)
    written(
        tmp_path,
        YAML.replace(
            "    start:", "    cap: {privacy_level: EVENT, epsilon: 1, delta: 0}\n    start:"
        ),
    )


def test_a_start_of_long_ago_is_refused_before_anything_is_closed(
    sources: Sources, tmp_path: Path
) -> None:
    """Catches: `start: 1970-01-01`, which would close a pane for every slide since."""
    times = schedule(make_plan(QUERIES["event"], SOURCE))
    begin = us(START)
    last = begin + AT_ONCE * MINUTE
    times.check_behind(last, begin)
    times.check_behind(last + 9 * MINUTE, begin, begin + 9 * MINUTE)
    with pytest.raises(
        InputError,
        match=r"^100,001 triggers, one each 1 minute after 2026-01-01T00:00:00Z, .* a later `start` of the source",
    ):
        times.check_behind(last + MINUTE, begin)
    long_ago = written(tmp_path, YAML.replace("2026-01-01", "1970-01-01"))
    ledger = Ledger(tmp_path / "ledger")
    with pytest.raises(InputError, match=r"^\d{3},\d{3} triggers"):
        dpsql.run_local(
            dpsql.compile(EVENTS, long_ago),
            pd.DataFrame({"key": ["a"], "ts": [START]}),
            Secret(b"s" * 32),
            until_us=begin,
            ledger=ledger,
        )
    assert not ledger.lines()


def test_two_queries_that_protect_rows_add_up_in_the_ledger(
    sources: Sources, tmp_path: Path
) -> None:
    """Epsilon 0.1 + 0.1 = 0.2, with delta 0; a third one is refused by a cap of 0.2."""
    ledger = Ledger(tmp_path / "ledger")
    cap = Cap(0.2, 0.0, 0, PrivacyLevel.EVENT)
    query = dpsql.compile(EVENTS.replace("epsilon = 1", "epsilon = 0.1"), sources)
    for number in (1, 2):
        ledger.append(query.line(f"{number:032x}", "run", Origin()), cap)
    (spent,) = budgets(ledger.lines(), [dataclasses.replace(query.source, event_cap=cap)])
    assert spent.protects is PrivacyLevel.EVENT
    one_row = next(total for total in spent.totals if total.days == 1)
    assert (one_row.epsilon, one_row.delta) == (pytest.approx(0.2, rel=1e-9), 0.0)
    with pytest.raises(BudgetError):
        ledger.append(query.line(f"{3:032x}", "run", Origin()), cap)
