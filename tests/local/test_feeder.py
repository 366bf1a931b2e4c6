"""The feeder: nothing but event time decides, a run id decides the noise, and the public functions hold together."""

import itertools
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.errors import DataError, InputError, LakeError
from dpsql.jobs.tables import print_comparison
from dpsql.local.feeder import Feeder, Stages, run_batches, run_local, split, try_query
from dpsql.local.record_reader import RowReader
from dpsql.parsed_query import Key
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.udfs.stage import Clock
from tests import frozen
from tests.local.conftest import DAY, HOUR, RUN, SQL, Compile, visits
from tests.published.test_readers import query_and_rows

UNTIL = DAY + 24 * HOUR


def test_the_histogram_has_the_promised_columns_in_order(
    compile_on: Compile, secret: Secret
) -> None:
    query = compile_on()
    reader = RowReader(query.plan, query.sources, secret.salt(RUN), {})
    key = secret.noise_key(RUN, query.plan.identity)
    rows = [reader.frame(visits())]
    facts = query.facts(None)
    histogram = run_batches(
        query.plan, rows, noise_key=key, key_types=reader.key_types, until_us=UNTIL, facts=facts
    ).histogram
    assert histogram.column_names == [
        "window_start", "window_end", "trigger", "trigger_time", "page",
        "views", "views_stderr", "visitors", "visitors_stderr", "time_spent", "time_spent_stderr",
    ]  # fmt: skip
    time = pa.timestamp("us", tz="UTC")
    assert [histogram.schema.field(i).type for i in range(6)] == [
        time,
        time,
        pa.int32(),
        time,
        pa.string(),
        pa.int64(),
    ]
    frame = histogram.to_pandas()
    encoded = frame.assign(key=[f"{len(page):04d}{page}" for page in frame["page"]])
    assert list(frame.index) == list(
        encoded.sort_values(["window_start", "trigger", "key"], kind="stable").index
    )
    assert (
        frame["trigger_time"] == frame["window_start"] + frame["trigger"] * pd.Timedelta(hours=6)
    ).all()
    assert set(frame["trigger"]) == {1, 2, 3, 4}


def test_releases_are_near_the_truth(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    pq.write_table(visits(), tmp_path / "visits.parquet")
    query = compile_on(SQL.replace("max_rows_contributed = 8", "max_rows_contributed = 64"))
    result = try_query(
        query,
        {"visits": [tmp_path / "visits.parquet"]},
        run_id=RUN,
        secret=secret,
        until_us=UNTIL,
        compare=True,
    )
    comparison = result.comparison
    assert comparison is not None and result.records == 4000
    truth = comparison["true_histogram"]
    frame = visits().to_pandas()
    assert truth["views"].sum() == 4000 and truth["time_spent"].sum() == pytest.approx(
        frame["seconds"].sum()
    )
    assert (
        truth.set_index("page")["visitors"].to_dict()
        == frame.groupby("page")["user_id"].nunique().to_dict()
    )
    last = result.histogram[result.histogram["trigger"] == 4]
    assert (
        comparison["keys"] == len(truth) == 12
        and comparison["keys_kept"] == len(last)
        and comparison["windows"] == 1
    )
    # l_inf by hand: released values against true ones, a page that is not released counts as 0
    both = truth.merge(last, on="page", how="left", suffixes=("_true", ""))
    error = (both["views"].clip(lower=0).fillna(0) - both["views_true"]).abs()
    assert (
        comparison["columns"]["views"]["l_inf"] == error.max()
        and comparison["columns"]["views"]["l_1"] == error.sum()
    )
    assert error.max() < 6 * last["views_stderr"].max() + 60
    compared = comparison["compared"].set_index("page")
    assert compared["visitors_true"].to_dict() == truth.set_index("page")["visitors"].to_dict()
    assert compared["visitors"].dropna().to_dict() == last.set_index("page")["visitors"].to_dict()
    assert all(isinstance(value, int | np.integer) for value in compared["visitors"].dropna()), (
        "counts stay whole though keys are missing"
    )
    made_of = comparison["made_of"]["views"]
    missing = truth[~truth["page"].isin(last["page"])]["views"].sum() / 4000
    private = last["views"].sum() / 4000
    assert made_of["missing"] == pytest.approx(missing) and made_of["bounds"] == pytest.approx(
        1 - missing - private
    )
    assert made_of["noise"] == pytest.approx(np.sqrt(2 / np.pi) * last["views_stderr"].sum() / 4000)


@pytest.mark.parametrize(("aggregate", "apart"), [("AVG", 0.2), ("STDDEV", 0.5)])
def test_the_parts_of_the_error_of_an_average_can_be_true_together(
    aggregate: str,
    apart: float,
    compile_on: Compile,
    secret: Secret,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches: noise that is said to be larger than all of the error, since no value leaves its bounds."""
    pages = [f"/p{number}" for number in range(400)]
    pq.write_table(
        pa.table({"page": pages, "topic": pages, "rank": pa.array([0] * 400, pa.int32())}),
        tmp_path / "pages",
    )
    table = visits(rows=60_000, users=6_000, pages=400)
    places = (300 * np.random.default_rng(8).random(len(table)) ** 3).astype(
        int
    )  # 100 of the groups have no record, many have few
    pq.write_table(
        table.set_column(1, "page", pa.array(np.array(pages)[places])), tmp_path / "visits.parquet"
    )
    text = SQL.replace(
        "max_rows_contributed = 8",
        "max_rows_contributed = 32, public_groups = (SELECT page FROM pages)",
    )
    text = text.replace("epsilon = 6", "epsilon = 20")
    start = text.index("COUNT(*)")
    text = f"{text[:start]}{aggregate}(least(seconds, 60), contribution_bounds_per_row => (0, 60)) AS mean {text[text.index('FROM visits') :]}"
    files = {"visits": [tmp_path / "visits.parquet"]}
    found = try_query(
        compile_on(text, start_us=DAY),
        files,
        run_id=RUN,
        secret=secret,
        until_us=UNTIL,
        compare=True,
    ).comparison
    assert found is not None
    made_of = found["made_of"]["mean"]
    # Bounds leave nobody out here: noise alone makes the error, and there are enough keys for a median
    assert (
        made_of["typical"] == pytest.approx(made_of["noise"], rel=apart) and made_of["noise"] < 60
    )
    print_comparison(found, 500)
    shown = capsys.readouterr().out
    assert "missing" not in shown
    assert (
        f"mean: a released value is typically {made_of['typical']:.3g} off; noise alone is typically {made_of['noise']:.2g}."
        in shown
    )


def test_until_in_the_middle_of_a_window_compares_what_is_due(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    pq.write_table(visits(), tmp_path / "visits.parquet")
    until = DAY + 13 * HOUR
    result = try_query(
        compile_on(),
        {"visits": [tmp_path / "visits.parquet"]},
        run_id=RUN,
        secret=secret,
        until_us=until,
        compare=True,
    )
    assert set(result.histogram["trigger"]) <= {1, 2}
    assert (
        result.drops["too_far_ahead"] == 0
    )  # ahead of --until, but not of the wall clock: they wait for a later one
    assert result.comparison is not None
    expected = int((visits().column("ts").cast(pa.int64()).to_numpy() < DAY + 12 * HOUR).sum())
    assert result.comparison["true_histogram"]["views"].sum() == expected


def test_windows_with_memory_begin_at_the_declared_start(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    """Records from before it are dropped and counted, however many prove a key, and no range reaches back: another start is another input."""
    sql = SQL.replace(
        "max_rows_contributed",
        "carry_windows = 3, allowed_lateness = '6 hours', max_rows_contributed",
    )
    query = compile_on(sql, start_us=DAY - 21 * HOUR)
    old = visits(400, 400, 1)
    old = old.set_column(
        2,
        "ts",
        pa.array(old["ts"].cast(pa.int64()).to_numpy() - 2 * 24 * HOUR).cast(old["ts"].type),
    )
    (tmp_path / "files").mkdir()
    pq.write_table(pa.concat_tables([old, visits()]), tmp_path / "files" / "both.parquet")
    result = try_query(
        query,
        {"visits": [tmp_path / "files"]},
        run_id=RUN,
        secret=of_its_ledger(secret),
        until_us=UNTIL + 24 * HOUR,
    )
    expected = run_local(query, visits(), secret, RUN, until_us=UNTIL + 24 * HOUR)
    pd.testing.assert_frame_equal(result.histogram, expected)
    assert result.drops["window_closed"] == 400
    assert (compile_on(sql).facts(None).first_window_us, query.facts(None).first_window_us) == (
        None,
        DAY - 24 * HOUR,
    )
    assert compile_on(start_us=DAY).facts(None).first_window_us is None
    with pytest.raises(LakeError, match="another start of the stream"):
        run_local(compile_on(sql, start_us=DAY), visits(), secret, RUN, until_us=UNTIL)


def test_times_of_any_precision_are_the_same_times(compile_on: Compile, secret: Secret) -> None:
    """pandas makes nanoseconds by itself. Catches: a frame that is refused, or read in another unit."""
    frame = visits().to_pandas()
    frame["ts"] = frame["ts"].dt.floor("s")
    expected = run_local(compile_on(), frame, secret, RUN, until_us=UNTIL)
    assert len(expected)
    for unit, zone in itertools.product(("s", "ms", "us", "ns"), ("UTC", None)):
        times = frame["ts"].dt.as_unit(unit)
        other = frame.assign(ts=times if zone else times.dt.tz_localize(None))
        pd.testing.assert_frame_equal(
            run_local(compile_on(), other, secret, RUN, until_us=UNTIL), expected
        )


def of_its_ledger(secret: Secret) -> Secret:
    """As `run_local` binds it to the ledger beside it, so that both have one noise."""
    assert secret.path is not None
    return secret.of_ledger(Ledger.beside(secret.path, secret).own_id())


def test_files_and_frames_give_the_same(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    query = compile_on()
    table = visits()
    for i in range(4):
        pq.write_table(table.slice(i * 1000, 1000), tmp_path / f"part-{i}.parquet")
    seen: list[int] = []
    bound = of_its_ledger(secret)
    result = try_query(
        query,
        {"visits": sorted(tmp_path.glob("part-*"))},
        run_id=RUN,
        secret=bound,
        until_us=UNTIL,
        progress=seen.append,
    )
    pd.testing.assert_frame_equal(
        result.histogram, run_local(query, table, secret, RUN, until_us=UNTIL)
    )
    assert seen == [4000] and result.drops["over_max_rows"] > 0


def test_no_rows_at_all(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    query = compile_on()
    pq.write_table(visits().slice(0, 0), tmp_path / "empty.parquet")
    (tmp_path / "empty.json").touch()
    for name in ("empty.parquet", "empty.json"):
        result = try_query(
            query,
            {"visits": [tmp_path / name]},
            run_id=RUN,
            secret=secret,
            until_us=UNTIL,
            compare=True,
        )
        assert len(result.histogram) == 0 and list(result.histogram.columns)[4:6] == [
            "page",
            "views",
        ]
        assert result.comparison is not None and result.comparison["keys"] == 0


def test_the_wrong_columns_are_an_input_error(compile_on: Compile, secret: Secret) -> None:
    with pytest.raises(
        DataError, match="the records have no column `seconds`; they have user_id, page, ts"
    ):
        run_local(compile_on(), visits().drop_columns(["seconds"]), secret)
    with pytest.raises(DataError, match="no column `nowhere`"):
        run_local(
            compile_on(SQL.replace("page, COUNT", "nowhere AS page, COUNT"), schema=None),
            visits(),
            secret,
        )
    sql = SQL.replace("page, COUNT(*)", "parse_url(page, 'HOST') AS host, COUNT(*)").replace(
        "'1 day'), page", "'1 day'), host"
    )
    with pytest.raises(
        InputError, match="`parse_url` runs on Spark only: use `dpsql run --until-caught-up`"
    ):
        run_local(compile_on(sql), visits(), secret)


def test_static_tables_are_joined(compile_on: Compile, tmp_path: Path) -> None:
    pages = pa.table(
        {
            "page": [f"/p{i}" for i in range(6)],
            "topic": ["news"] * 3 + ["sport"] * 3,
            "rank": pa.array(range(6), pa.int32()),
        }
    )
    (tmp_path / "pages").mkdir()
    pq.write_table(pages, tmp_path / "pages" / "a.parquet")
    query = compile_on()

    def topics(from_sql: str) -> set[bytes]:
        parsed = replace(
            query.parsed,
            from_sql=from_sql,
            static_sources=("pages",),
            keys=(Key("topic", "topic"),),
        )
        rows = RowReader(replace(query.plan, query=parsed), query.sources, b"0" * 16, {}).frame(
            visits()
        )
        return set(rows.column("key_bytes").to_pylist())

    assert topics("FROM visits JOIN pages USING (page)") == {b"0004news", b"0005sport"}
    assert topics(
        "FROM (SELECT v.*, p.topic FROM visits AS v LEFT JOIN pages AS p ON v.page = p.page AND p.rank < 3)"
    ) == {b"0004news", b"----"}


@pytest.mark.parametrize("buckets", [1, 2, 5])
def test_split_keeps_every_row_in_its_bucket(buckets: int) -> None:
    ids = np.array([secrets.randbits(64) - 2**63 for _ in range(100)], np.int64)
    parts = dict(split(pa.table({"key": ids, "n": np.arange(100)}), "key", buckets))
    assert sorted(n for part in parts.values() for n in part.column("n").to_pylist()) == list(
        range(100)
    )
    assert all(
        (part.column("key").to_numpy() % buckets == bucket).all() for bucket, part in parts.items()
    )


@pytest.mark.parametrize(
    "kind", ["sketch_event", "windows_event", "panes_event_keyless", "sketch_user"]
)
def test_rows_of_what_a_stage_takes_fill_any_buckets(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: rows that are spread by a column which the intake does not take."""

    class Strict(Feeder):
        """Three buckets of units and two of keys, whose intake gets the columns that it takes and no other."""

        def __init__(self, stages: Stages, noise_key: bytes) -> None:
            super().__init__(stages, noise_key, (3, 2))
            self._names = stages[0].takes.names

        def micro_batch(self, rows: pa.Table, clock: Clock) -> None:
            super().micro_batch(rows.select(self._names), clock)

    query, expected = query_and_rows(kind)
    monkeypatch.setattr(frozen, "Feeder", Strict)
    assert query_and_rows(kind)[1].equals(expected), query.text


def test_the_demo_shows_channels_that_nobody_listed(secret: Secret) -> None:
    conf = Path(__file__).resolve().parents[2] / "conf"
    query = dpsql.compile(
        (conf / "queries" / "demo.sql").read_text(), dpsql.load_sources(conf / "sources.yaml")
    )
    result = try_query(query, {}, run_id=RUN, secret=secret, compare=True)
    assert result.records == 39_232 and result.comparison is not None
    assert result.comparison["keys"] == 51 and result.comparison["keys_kept"] >= 15
    assert set(result.histogram["trigger"]) == set(range(1, 25))
